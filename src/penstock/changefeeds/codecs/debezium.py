"""debezium: a change event of Debezium in each line, without its schema. Encoder and decoder.

Values are as Debezium's connector for MySQL writes them, with decimals as strings, so that they stay exact.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changefeeds.codecs.decoded_changes import (
    OP_DELETE,
    OP_INSERT,
    OP_UPDATE,
    DecodedChanges,
    as_struct,
)
from penstock.changefeeds.codecs.options import EncoderOptions
from penstock.changefeeds.codecs.row_changes import DELETE, RowChanges
from penstock.changefeeds.codecs.text_cells import (
    BLOCK_BYTES,
    Readable,
    TextForm,
    base64_bytes,
    from_text,
    parse_json_lines,
    read_blocks,
)
from penstock.clock import LOGICAL_BITS
from penstock.columnar.text_lines import JSON, Lines, base64_cells, json_string, numbers, spread
from penstock.errors import Corrupt
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables import impossible_dates
from penstock.tables.arrow import arrow_schema, arrow_type
from penstock.tables.columns import INTEGER_BITS, PACKED_TIMES, ColumnInfo, FieldType, Tp
from penstock.tables.schema import TableInfo
from penstock.tables.text_values import fixed_floats, texts

_KINDS = (b"c", b"u", b"d")  # values of `op`, in the order of RowChanges.kinds
_SNAPSHOT = b"r"
_OPS = {"c": OP_INSERT, "r": OP_INSERT, "u": OP_UPDATE, "d": OP_DELETE}
_OP_NAMES, _DECODED_OPS = pa.array(list(_OPS)), pa.array(list(_OPS.values()))
_NUMBERS = frozenset({*INTEGER_BITS, Tp.YEAR, Tp.FLOAT, Tp.DOUBLE, Tp.DATE, Tp.DATETIME, Tp.DURATION})
_MILLISECOND_DIGITS = 3


class DebeziumJson:
    """Encodes a table's changes as lines: before, after, source, op, ts_ms."""

    def __init__(self, schema: SchemaVersion, columns: Sequence[ColumnInfo], options: EncoderOptions) -> None:
        self._name = schema.name
        self._columns = columns
        self._names = [json_string(column.name) for column in columns]
        self._end = b'","ts_ms":%d,"transaction":null}%s' % (
            options.encoded_at_ms,
            options.terminator.encode(),
        )
        self._table = (
            b'","db":%s,"table":%s,"server_id":0,"gtid":null,"file":"","pos":0,"row":0,"thread":0'
            % (
                json_string(schema.database),
                json_string(schema.table.name),
            )
        )

    def lines(self, changes: RowChanges) -> pa.Array:
        """Return a line, with its terminator, for each change."""
        deletes: np.ndarray = changes.kinds == DELETE
        rows = self._objects(changes.rows)
        lines = Lines(len(changes))
        lines.text(b'{"before":')
        self._add_before(lines, changes, rows)
        lines.text(b',"after":')
        lines.cells(_null_where(deletes, rows))
        lines.text(b',"source":{"version":"2.4.0.Final","connector":"penstock","name":"penstock","ts_ms":')
        lines.cells(numbers(changes.commit_ts >> LOGICAL_BITS))
        lines.text(b',"snapshot":"' + (b"true" if changes.snapshot else b"false") + self._table)
        lines.text(b',"query":null,"commit_ts":')
        lines.cells(numbers(changes.commit_ts))
        lines.text(b'},"op":"')
        lines.choice((_SNAPSHOT,) if changes.snapshot else _KINDS, changes.kinds)
        lines.text(self._end)
        return lines.build()

    def _add_before(self, lines: Lines, changes: RowChanges, rows: pa.Array) -> None:
        updates, deletes = changes.updates, changes.kinds == DELETE
        before = _null_where(~deletes, rows)
        if updates.any():
            old = spread(self._objects(changes.old), updates, b"null")
            before = pc.if_else(pa.array(updates), old, before)
        lines.cells(before)

    def _objects(self, rows: pa.RecordBatch) -> pa.Array:
        lines = Lines(rows.num_rows)
        lines.text(b"{")
        for number, (name, column) in enumerate(zip(self._names, self._columns, strict=True)):
            lines.text(b"%s%s:" % (b"," * bool(number), name))
            bare = column.type.tp in _NUMBERS or _is_flag(column.type)
            values = _cells(column.type, self._replace_impossible(column, rows.column(column.name)))
            lines.cells(values, quote=b"" if bare else b'"', null=b"null")
        lines.text(b"}")
        return lines.build()

    def _replace_impossible(self, column: ColumnInfo, values: pa.Array) -> pa.Array:
        """Return dates that no calendar has as TiCDC and Debezium write them; the log names their columns.

        They are 1970-01-01 in TIMESTAMP and NOT NULL columns, and null in others.
        """
        found = impossible_dates.find(values) if column.type.tp in PACKED_TIMES else None
        if found is None:
            return values
        shown = impossible_dates.hide_column(values)
        is_null = column.type.tp is not Tp.TIMESTAMP and not column.type.not_null
        written = "NULL" if is_null else "1970-01-01"
        impossible_dates.log_columns(self._name, [column.name], reads_as=written)
        return shown if is_null else pc.if_else(pa.array(found), pa.scalar(0, values.type), shown)


def _null_where(mask: np.ndarray, cells: pa.Array) -> pa.Array:
    """Return the cells, with JSON's null where the mask is true."""
    if not mask.any():
        return cells
    return pc.if_else(pa.array(mask), pa.scalar(b"null", pa.binary()), cells)


def _is_flag(kind: FieldType) -> bool:
    return kind.tp is Tp.BIT and kind.flen <= 1


def _datetime_type(kind: FieldType) -> pa.DataType:
    return pa.timestamp("ms" if kind.fsp <= _MILLISECOND_DIGITS else "us")


def _cells(kind: FieldType, values: pa.Array) -> pa.Array:
    if kind.is_string:
        return base64_cells(values) if kind.is_binary else JSON.apply(values)
    if kind.tp is Tp.BIT:
        return _bits(kind, values)
    if kind.tp in {Tp.FLOAT, Tp.DOUBLE}:
        return fixed_floats(values)
    if kind.tp is Tp.DATE:
        return values.cast(pa.int32()).cast(pa.string())
    if kind.tp is Tp.DURATION:
        return values.cast(pa.int64()).cast(pa.string())
    if kind.tp is Tp.DATETIME:
        return values.cast(_datetime_type(kind), safe=False).cast(pa.int64()).cast(pa.string())
    if kind.tp is Tp.TIMESTAMP:
        written = pc.replace_substring(texts(kind, values), " ", "T")
        return pc.binary_join_element_wise(written, "Z", "")
    return JSON.apply(texts(kind, values).cast(pa.string()))


def _bits(kind: FieldType, values: pa.Array) -> pa.Array:
    """Return one bit as a boolean, more as bytes in base64, the lowest byte first."""
    if _is_flag(kind):
        return pc.if_else(pc.greater(values, 0), "true", "false")
    width = (kind.flen + 7) // 8
    known = values.fill_null(0)
    if pa.types.is_decimal(known.type):
        # A decimal has 16 bytes, of which the lower 8 hold up to 64 bits.
        words = np.frombuffer(known.buffers()[1], "<u8")[2 * known.offset :: 2][: len(known)]
    else:
        words = known.to_numpy().astype("<u8")
    held = np.ascontiguousarray(words).view(np.uint8).reshape(-1, 8)[:, :width]
    cells = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(width), len(known), [None, pa.py_buffer(np.ascontiguousarray(held))]
    ).cast(pa.binary())
    return pc.if_else(values.is_valid(), base64_cells(cells), pa.scalar(None, pa.binary()))


_FORM = TextForm(base64_bytes, numbered_elements=False)


def decode(
    stream: Readable, table: TableInfo, *, terminator: str, block_bytes: int = BLOCK_BYTES
) -> Iterator[DecodedChanges]:
    """Yield the changes of a file, in bounded memory; raise Corrupt when a line has another form."""
    row = pa.struct([pa.field(column.name, _json_type(column.type)) for column in table.stored_columns])
    schema = pa.schema(
        [
            ("op", pa.string()),
            ("before", row),
            ("after", row),
            ("source", pa.struct([("commit_ts", pa.uint64())])),
        ]
    )
    line_end = "\n" if "\n" in terminator else terminator
    for block in read_blocks(stream, line_end.encode(), block_bytes):
        yield _decode_lines(parse_json_lines(block, schema), table)


def _decode_lines(lines: pa.RecordBatch, table: TableInfo) -> DecodedChanges:
    kinds = pc.index_in(lines.column("op"), _OP_NAMES)
    if kinds.null_count:
        raise Corrupt("a line is no change of a row; keep the file")
    ops = _DECODED_OPS.take(kinds)
    before, after = lines.column("before"), lines.column("after")
    rows = pc.if_else(pc.equal(ops, OP_DELETE), before, after)
    if rows.null_count:
        raise Corrupt("a change has no row; keep the file")
    updated = pc.and_(pc.equal(ops, OP_UPDATE), pc.is_valid(before))
    commit_ts = pc.struct_field(lines.column("source"), "commit_ts")
    return DecodedChanges(
        ops, commit_ts, _parse_rows(rows, table), as_struct(_parse_rows(before, table), updated)
    )


def _parse_rows(values: pa.StructArray, table: TableInfo) -> pa.RecordBatch:
    columns = [
        _parse_column(column, pc.struct_field(values, [place]))
        for place, column in enumerate(table.stored_columns)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(table))


def _json_type(kind: FieldType) -> pa.DataType:
    """Return the Arrow type that a column's JSON values are parsed as."""
    if kind.tp in INTEGER_BITS:
        return pa.uint64() if kind.unsigned else pa.int64()
    if kind.tp in {Tp.YEAR, Tp.DATE, Tp.DATETIME, Tp.DURATION}:
        return pa.int64()
    if kind.tp in {Tp.FLOAT, Tp.DOUBLE}:
        return pa.float64()
    return pa.bool_() if _is_flag(kind) else pa.string()


def _parse_column(column: ColumnInfo, values: pa.Array) -> pa.Array:
    kind = column.type
    wanted = arrow_type(kind)
    if kind.tp is Tp.DATE:
        return values.cast(pa.int32()).cast(wanted)
    if kind.tp is Tp.DATETIME:
        return values.cast(_datetime_type(kind)).cast(wanted)
    if kind.tp is Tp.TIMESTAMP:
        return from_text(column, pc.utf8_rtrim(pc.replace_substring(values, "T", " "), "Z"), _FORM)
    if kind.tp is Tp.BIT and not _is_flag(kind):
        return _decode_bits(values, wanted)
    if pa.types.is_string(values.type):
        return from_text(column, values, _FORM)
    if pa.types.is_boolean(values.type):
        return values.cast(pa.int8()).cast(wanted)
    return pc.cast(values, wanted, safe=kind.tp is not Tp.FLOAT)


def _decode_bits(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return numbers of bytes in base64, the lowest byte first."""
    numbers = [
        None if text is None else int.from_bytes(base64_bytes(text), "little") for text in values.to_pylist()
    ]
    return pa.array(numbers, pa.uint64()).cast(wanted)
