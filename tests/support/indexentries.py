"""What an index entry says of its row, read back: the other way round from `penstock.tables.indexes`."""

from penstock.tables.codec import collations, datums, rows
from penstock.tables.codec.datums import Datum, DatumKind
from penstock.tables.codec.ordered import INT_BYTES
from penstock.tables.columns import ColumnFlag
from penstock.tables.indexes import split_value
from penstock.tables.keys import PREFIX_BYTES
from penstock.tables.records import Record
from penstock.tables.schema import IndexInfo, TableInfo
from penstock.tables.values import datum_of_cell

__all__ = ["decode_indexed_record"]


def decode_indexed_record(table: TableInfo, index: IndexInfo, key: bytes, value: bytes) -> Record:
    """Return the indexed columns of the row an entry points to, as they were written (up to a prefix)."""
    segments = split_value(value)
    cells = rows.decode(segments.restored).cells if segments.restored else {}
    record: Record = {}
    at = PREFIX_BYTES + INT_BYTES
    for part in index.columns:
        column = table.columns[part.offset]
        datum, at = datums.decode(key, at)
        restored = cells.get(column.id)
        if restored is not None and segments.version and collations.pads(column.type):
            if isinstance(datum.value, bytes):  # the key of NULL has NULL, beside a count of 0
                signed = column.type.flag & ColumnFlag.PRI_KEY
                spaces = rows.cell_int(restored) if signed else rows.cell_uint(restored)
                datum = Datum(DatumKind.BYTES, datum.value + b" " * spaces)
        elif restored is not None:
            datum = datum_of_cell(column.type, restored)
        record[column.id] = datum
    return record
