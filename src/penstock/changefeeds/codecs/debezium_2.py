"""debezium files: a change event in each line, its values as Debezium's connector for MySQL has them."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from penstock.changefeeds.codecs.decoded_changes import (
    OP_DELETE,
    OP_INSERT,
    OP_UPDATE,
    DecodedChanges,
    as_struct,
)
from penstock.changefeeds.codecs.lines import BLOCK_BYTES, Readable, blocks, parse_json
from penstock.changefeeds.codecs.text_cells import TextForm, base64_bytes, from_text
from penstock.errors import Corrupt
from penstock.tables.arrow import arrow_schema, arrow_type
from penstock.tables.columns import ColumnInfo
from penstock.tables.fieldtypes import INTEGER_BITS, FieldType, Tp
from penstock.tables.schema import TableInfo

_KINDS = pa.array(["c", "r", "u", "d"])
_OPS = pa.array([OP_INSERT, OP_INSERT, OP_UPDATE, OP_DELETE])
_FORM = TextForm(base64_bytes, numbered_elements=False)
_MILLISECOND_DIGITS = 3


def decode(
    stream: Readable, table: TableInfo, *, terminator: str, block_bytes: int = BLOCK_BYTES
) -> Iterator[DecodedChanges]:
    """The changes of a file, in bounded memory; raise Corrupt when a line is not of that form."""
    row = pa.struct([pa.field(column.name, _written(column.type)) for column in table.stored_columns])
    schema = pa.schema(
        [
            ("op", pa.string()),
            ("before", row),
            ("after", row),
            ("source", pa.struct([("commit_ts", pa.uint64())])),
        ]
    )
    line_end = "\n" if "\n" in terminator else terminator
    for block in blocks(stream, line_end.encode(), block_bytes):
        yield _changes(parse_json(block, schema), table)


def _changes(lines: pa.RecordBatch, table: TableInfo) -> DecodedChanges:
    kinds = pc.index_in(lines.column("op"), _KINDS)
    if kinds.null_count:
        raise Corrupt("a line is no change of a row; keep the file")
    ops = _OPS.take(kinds)
    before, after = lines.column("before"), lines.column("after")
    shown = pc.if_else(pc.equal(ops, OP_DELETE), before, after)
    if shown.null_count:
        raise Corrupt("a change has no row; keep the file")
    updated = pc.and_(pc.equal(ops, OP_UPDATE), pc.is_valid(before))
    commit_ts = pc.struct_field(lines.column("source"), "commit_ts")
    return DecodedChanges(ops, commit_ts, _rows(shown, table), as_struct(_rows(before, table), updated))


def _rows(values: pa.StructArray, table: TableInfo) -> pa.RecordBatch:
    columns = [
        _typed(column, pc.struct_field(values, [place])) for place, column in enumerate(table.stored_columns)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(table))


def _written(kind: FieldType) -> pa.DataType:
    """The JSON type of a column's values."""
    if kind.tp in INTEGER_BITS:
        return pa.uint64() if kind.unsigned else pa.int64()
    if kind.tp in {Tp.YEAR, Tp.DATE, Tp.DATETIME, Tp.DURATION}:
        return pa.int64()
    if kind.tp in {Tp.FLOAT, Tp.DOUBLE}:
        return pa.float64()
    return pa.bool_() if _is_flag(kind) else pa.string()


def _typed(column: ColumnInfo, values: pa.Array) -> pa.Array:
    kind = column.type
    wanted = arrow_type(kind)
    if kind.tp is Tp.DATE:
        return values.cast(pa.int32()).cast(wanted)
    if kind.tp is Tp.DATETIME:
        unit = "ms" if kind.fsp <= _MILLISECOND_DIGITS else "us"
        return values.cast(pa.timestamp(unit)).cast(wanted)
    if kind.tp is Tp.TIMESTAMP:
        return from_text(column, pc.utf8_rtrim(pc.replace_substring(values, "T", " "), "Z"), _FORM)
    if kind.tp is Tp.BIT and not _is_flag(kind):
        return _bits(values, wanted)
    if pa.types.is_string(values.type):
        return from_text(column, values, _FORM)
    if pa.types.is_boolean(values.type):
        return values.cast(pa.int8()).cast(wanted)
    return pc.cast(values, wanted, safe=kind.tp is not Tp.FLOAT)


def _is_flag(kind: FieldType) -> bool:
    return kind.tp is Tp.BIT and kind.flen <= 1


def _bits(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Bytes, the lowest first."""
    numbers = [
        None if text is None else int.from_bytes(base64_bytes(text), "little") for text in values.to_pylist()
    ]
    return pa.array(numbers, pa.uint64()).cast(wanted)
