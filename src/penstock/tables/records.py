"""One row at a time: between a mapping of column names to Python values, and its key and value.

It also has the value of a column in rows that were written before the column existed.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Any

from penstock.clock import physical_ms
from penstock.errors import Invalid
from penstock.tables.codec import collations, datums, rows
from penstock.tables.codec.datums import NULL, Datum, DatumKind
from penstock.tables.columns import CURRENT_DATE, ColumnInfo, Tp
from penstock.tables.keys import Handle, common_handle, decode_record_key
from penstock.tables.schema import ROWID_COLUMN, HandleKind, IndexColumn, TableInfo
from penstock.tables.values import datum_of_cell, from_datum, storage_kind, to_cell, to_datum, zero_value


def origin_cell(column: ColumnInfo) -> bytes | None:
    """Return the cell of a column in rows that were written before it existed; None is NULL.

    A NOT NULL column without a default reads as its type's zero.
    """
    if column.origin_default is not None:
        return to_cell(column.type, column.origin_default)
    return to_cell(column.type, zero_value(column.type)) if column.type.not_null else None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Record = dict[int, Datum]
"""A row in storage form: a datum for every stored column, by column id."""


def to_record(table: TableInfo, row: Mapping[str, Any], *, start_ts: int) -> Record:
    """Return a new row in storage form, missing columns filled with their defaults.

    Raise Invalid when a column is unknown, a value does not fit, or a column without a default is missing.
    CURRENT_TIMESTAMP is the time of `start_ts`.
    """
    values = {table.column(name).id: value for name, value in row.items() if name != ROWID_COLUMN}
    record: Record = {}
    for column in table.stored_columns:
        value = values[column.id] if column.id in values else default_value(column, start_ts)
        record[column.id] = check_datum(column, value)
    return record


def check_datum(column: ColumnInfo, value: Any) -> Datum:
    """Return a value of a column in storage form; raise Invalid, naming the column, when it does not fit."""
    try:
        datum = to_datum(column.type, value)
    except Invalid as error:
        raise Invalid(f"column {column.name}: {error}") from error
    if datum.kind is DatumKind.NULL and column.type.not_null:
        raise Invalid(f"column {column.name} is NOT NULL and has no value; pass one")
    return datum


def default_value(column: ColumnInfo, start_ts: int) -> Any:
    """Return the value of a column that an insert omits; None is NULL."""
    if column.clock_default is not None:
        now_us = physical_ms(start_ts) * 1000
        cut = now_us % 10 ** (6 - column.type.fsp)  # TiDB cuts digits off, and rounds only what users write
        now = (_EPOCH + timedelta(microseconds=now_us - cut)).replace(tzinfo=None)
        if column.clock_default == CURRENT_DATE:
            return now.date() if column.type.tp is Tp.DATE else datetime.combine(now.date(), time())
        return now
    if column.default_is_expr:
        raise Invalid(f"the default of column {column.name} is an expression; pass a value for the column")
    return column.default


def value_of(table: TableInfo, record: Record, columns: Sequence[ColumnInfo] | None = None) -> bytes:
    """Return the stored value of a row: every cell of the columns that is not already in its key.

    The columns are those that readers see, unless a change of the schema needs more.
    """
    cells = {
        column.id: rows.cell_of(record[column.id])
        for column in (table.stored_columns if columns is None else columns)
        if not _is_left_out(table, column, record[column.id])
    }
    return rows.encode(cells)


def _is_left_out(table: TableInfo, column: ColumnInfo, datum: Datum) -> bool:
    if column in table.handle_columns:
        return in_key_only(table, column)
    return datum.kind is DatumKind.NULL and reads_null_when_absent(column)


def reads_null_when_absent(column: ColumnInfo) -> bool:
    """Return whether a NULL need not be written, because a row without the column reads as NULL."""
    return column.default is None and column.origin_default is None


def in_key_only(table: TableInfo, column: ColumnInfo) -> bool:
    """Return whether the key has the whole value of a primary key column, so that the row need not."""
    if table.handle_kind is HandleKind.INT:
        return True
    assert table.primary_index is not None
    lengths = {part.offset: part.length for part in table.primary_index.columns}
    return lengths[column.offset] < 0 and not collations.needs_restored(column.type)


def key_follows_handle(table: TableInfo) -> bool:
    """Return whether equal handles mean equal primary keys, byte for byte.

    They do not when the handle is a row id, or when a clustered key is cut or folded: 'a' and 'a ' have the
    same handle under a collation that pads, as do 'a' and 'A' under one that ignores case.
    """
    if table.handle_kind is HandleKind.ROWID:
        return not table.primary_key
    return all(in_key_only(table, column) for column in table.primary_key)


def handle_of(table: TableInfo, record: Record) -> Handle:
    """Return the handle of a row that has a clustered primary key."""
    if table.handle_kind is HandleKind.INT:
        return to_signed(int(record[table.primary_key[0].id].value or 0))
    assert table.primary_index is not None
    return common_handle(key_part(table, part, record) for part in table.primary_index.columns)


def to_signed(number: int) -> int:
    """Return the signed 64-bit number with the same bits as an unsigned one."""
    return number - (1 << 64) if number >= 1 << 63 else number


def key_part(table: TableInfo, part: IndexColumn, record: Record) -> bytes:
    """Return a column of a row as bytes of a key: cut to the index's length, in the collation's order."""
    return datums.encode_key(key_datum(table, part, record))


def key_datum(table: TableInfo, part: IndexColumn, record: Record) -> Datum:
    """Return a column of a row as keys contain it, before it is encoded."""
    column = table.columns[part.offset]
    datum = record.get(column.id, NULL)
    if datum.kind is not DatumKind.BYTES or not isinstance(datum.value, bytes):
        return datum
    cut = collations.truncate(column.type, datum.value, part.length)
    return Datum(DatumKind.BYTES, collations.sort_key(column.type, cut))


def read_record(
    table: TableInfo, key: bytes, value: bytes, columns: Sequence[ColumnInfo] | None = None
) -> Record:
    """Decode the columns of a stored row, by default those that readers see; raise Corrupt on damage."""
    _, handle = decode_record_key(key)
    cells = rows.decode(value).cells
    in_key = _from_handle(table, handle)
    read = table.stored_columns if columns is None else columns
    return {column.id: _datum(column, cells, in_key) for column in read}


def _datum(column: ColumnInfo, cells: Mapping[int, bytes | None], in_key: Record) -> Datum:
    if cells.get(column.id) is None and column.id in in_key:
        return in_key[column.id]
    cell = cells[column.id] if column.id in cells else origin_cell(column)
    return datum_of_cell(column.type, cell)


def row_of(table: TableInfo, record: Record) -> dict[str, Any]:
    """Return a row as Python values by column name."""
    return {column.name: from_datum(column.type, record[column.id]) for column in table.stored_columns}


def _from_handle(table: TableInfo, handle: Handle) -> Record:
    if isinstance(handle, int):
        if table.handle_kind is not HandleKind.INT:
            return {}
        column = table.primary_key[0]
        kind = storage_kind(column.type)
        return {column.id: Datum(kind, handle % (1 << 64) if kind is DatumKind.UINT else handle)}
    primary_key, readable = table.primary_key, readable_handle_columns(table)
    pairs = zip(primary_key, datums.decode_first(handle, len(primary_key)), strict=True)
    return {column.id: datum for column, datum in pairs if column in readable}


def readable_handle_columns(table: TableInfo) -> list[ColumnInfo]:
    """Return the primary key columns whose value can be read back from a common handle.

    A padded collation loses only trailing spaces, which do not count. A prefix index or another collation
    loses the value.
    """
    assert table.primary_index is not None
    lengths = [part.length for part in table.primary_index.columns]
    return [
        column
        for column, length in zip(table.primary_key, lengths, strict=True)
        if length < 0 and (collations.pads(column.type) or not collations.needs_restored(column.type))
    ]
