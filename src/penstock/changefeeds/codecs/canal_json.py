"""canal-json: a line of JSON for each change, its values as text. Encoder and decoder.

The encoder writes the bytes that TiCDC writes, with MySQL's name and Java's number of each column's type.
"""

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

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
from penstock.changefeeds.codecs.row_changes import RowChanges
from penstock.changefeeds.codecs.text_cells import (
    BLOCK_BYTES,
    Readable,
    TextForm,
    from_text,
    latin1_bytes,
    parse_json_lines,
    read_blocks,
)
from penstock.clock import LOGICAL_BITS
from penstock.columnar.text_lines import JSON, LATIN1_JSON, Lines, json_string, numbers, spread, truths
from penstock.errors import Corrupt
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.arrow import arrow_schema
from penstock.tables.columns import BLOBS, ColumnFlag, ColumnInfo, FieldType, Tp
from penstock.tables.schema import TableInfo
from penstock.tables.text_values import enum_numbers, set_numbers, texts

MYSQL_TYPE_NAMES = {
    Tp.TINY: "tinyint",
    Tp.SHORT: "smallint",
    Tp.INT24: "mediumint",
    Tp.LONG: "int",
    Tp.LONGLONG: "bigint",
    Tp.FLOAT: "float",
    Tp.DOUBLE: "double",
    Tp.NULL: "null",
    Tp.UNSPECIFIED: "unspecified",
    Tp.TIMESTAMP: "timestamp",
    Tp.DATE: "date",
    Tp.DURATION: "time",
    Tp.DATETIME: "datetime",
    Tp.YEAR: "year",
    Tp.VARCHAR: "varchar",
    Tp.BIT: "bit",
    Tp.VECTOR_FLOAT32: "vector",
    Tp.JSON: "json",
    Tp.NEW_DECIMAL: "decimal",
    Tp.ENUM: "enum",
    Tp.SET: "set",
    Tp.TINY_BLOB: "tinytext",
    Tp.MEDIUM_BLOB: "mediumtext",
    Tp.LONG_BLOB: "longtext",
    Tp.BLOB: "text",
    Tp.VAR_STRING: "var_string",
    Tp.STRING: "char",
    Tp.GEOMETRY: "geometry",
}
"""TiDB's name of each type, without its size; schema files have them in upper case."""

# Numbers of java.sql.Types.
_BIT, _TINYINT, _BIGINT, _CHAR, _DECIMAL, _INTEGER, _SMALLINT = -7, -6, -5, 1, 3, 4, 5
_REAL, _DOUBLE, _VARCHAR, _DATE, _TIME, _TIMESTAMP, _BLOB, _CLOB = 7, 8, 12, 91, 92, 93, 2004, 2005
_JAVA = {
    **dict.fromkeys((Tp.BIT, Tp.SET), _BIT),
    **dict.fromkeys((Tp.INT24, Tp.LONG, Tp.ENUM), _INTEGER),
    **dict.fromkeys((Tp.DATETIME, Tp.TIMESTAMP), _TIMESTAMP),
    **dict.fromkeys(BLOBS, _CLOB),
    Tp.TINY: _TINYINT,
    Tp.SHORT: _SMALLINT,
    Tp.LONGLONG: _BIGINT,
    Tp.STRING: _CHAR,
    Tp.NEW_DECIMAL: _DECIMAL,
    Tp.FLOAT: _REAL,
    Tp.DOUBLE: _DOUBLE,
    Tp.DATE: _DATE,
    Tp.DURATION: _TIME,
}


class Promotion(NamedTuple):
    """Values of an unsigned column above `above` do not fit its Java type; their lines have `java_type`."""

    above: int
    java_type: int


_PROMOTIONS = {
    Tp.TINY: Promotion((1 << 7) - 1, _SMALLINT),
    Tp.SHORT: Promotion((1 << 15) - 1, _INTEGER),
    Tp.LONG: Promotion((1 << 31) - 1, _BIGINT),
    Tp.LONGLONG: Promotion((1 << 63) - 1, _DECIMAL),
}


def mysql_type(kind: FieldType) -> str:
    """Return MySQL's name of a type without its size, such as `bigint unsigned`."""
    name = MYSQL_TYPE_NAMES[kind.tp]
    if kind.charset == "binary":
        name = name.replace("text", "blob") if kind.tp in BLOBS else name
        name = name.replace("char", "binary") if kind.tp in {Tp.STRING, Tp.VARCHAR} else name
    if kind.unsigned and kind.tp not in {Tp.BIT, Tp.YEAR}:
        name += " unsigned"
    return name + (" zerofill" if kind.flag & ColumnFlag.ZEROFILL and kind.tp is not Tp.YEAR else "")


def java_type(kind: FieldType) -> int:
    """Return the type's number in java.sql.Types."""
    return _BLOB if kind.is_binary else _JAVA.get(kind.tp, _VARCHAR)


def promotion(kind: FieldType) -> Promotion | None:
    """Return the type of large values of an unsigned column; None when all values fit."""
    return _PROMOTIONS.get(kind.tp) if kind.unsigned else None


_TYPES = ("INSERT", "UPDATE", "DELETE")  # of lines, in the order of RowChanges.kinds
_OPS = pa.array([OP_INSERT, OP_UPDATE, OP_DELETE])
_ESCAPED = {Tp.JSON, Tp.GEOMETRY, Tp.NULL, Tp.UNSPECIFIED}


class CanalJson:
    """Encodes a table's changes as lines. mysqlType has the order of the columns; in TiCDC it has none."""

    def __init__(self, schema: SchemaVersion, columns: Sequence[ColumnInfo], options: EncoderOptions) -> None:
        self._columns = columns
        self._names = [json_string(column.name) for column in columns]
        self._options = options
        keys = {column.id for column in schema.table.primary_key}
        names = [json_string(column.name) for column in schema.table.stored_columns if column.id in keys]
        self._head = b'{"id":0,"database":%s,"table":%s,"pkNames":[%s],"isDdl":false,"type":"' % (
            json_string(schema.database),
            json_string(schema.table.name),
            b",".join(names),
        )
        self._times = b',"ts":%d,"sql":"","sqlType":' % options.encoded_at_ms
        self._types = b',"mysqlType":{%s},"old":' % b",".join(
            b"%s:%s" % (name, json_string(mysql_type(column.type)))
            for name, column in zip(self._names, columns, strict=True)
        )

    def lines(self, changes: RowChanges) -> pa.Array:
        """Return a line, with its terminator, for each change."""
        lines = Lines(len(changes))
        lines.text(self._head)
        lines.choice([name.encode() for name in _TYPES], changes.kinds)
        lines.text(b'","es":')
        lines.cells(numbers(changes.commit_ts >> LOGICAL_BITS))
        lines.text(self._times)
        self._add_java_types(lines, changes.rows)
        lines.text(self._types)
        rows = [value_cells(column, changes.rows.column(column.name)) for column in self._columns]
        self._add_old(lines, changes, rows)
        lines.text(b',"data":')
        self._add_object(lines, rows)
        if self._options.enable_tidb_extension:
            lines.text(b',"_tidb":{"commitTs":')
            lines.cells(numbers(changes.commit_ts))
            lines.text(b"}")
        lines.text(b"}" + self._options.terminator.encode())
        return lines.build()

    def _add_java_types(self, lines: Lines, rows: pa.RecordBatch) -> None:
        """Add the types of the values: large values of an unsigned column have the next wider type."""
        lines.text(b"{" if self._columns else b"null")
        for number, (name, column) in enumerate(zip(self._names, self._columns, strict=True)):
            lines.text(b"%s%s:" % (b"," * bool(number), name))
            usual, larger = b"%d" % java_type(column.type), promotion(column.type)
            if larger is None:
                lines.text(usual)
            else:
                above = truths(pc.greater(rows.column(column.name), larger.above))
                lines.choice((usual, b"%d" % larger.java_type), above.astype(np.int8))
        lines.text(b"}" if self._columns else b"")

    def _add_old(self, lines: Lines, changes: RowChanges, rows: Sequence[pa.Array]) -> None:
        updates = changes.updates
        if not updates.any():
            lines.text(b"null")
            return
        old = [value_cells(column, changes.old.column(column.name)) for column in self._columns]
        if self._options.only_output_updated_columns:
            objects = self._changed_objects(old, [cells.filter(pa.array(updates)) for cells in rows])
        else:
            inner = Lines(changes.old.num_rows)
            self._add_object(inner, old)
            objects = inner.build()
        lines.cells(objects if updates.all() else spread(objects, updates, b"null"))

    def _add_object(self, lines: Lines, rows: Sequence[pa.Array]) -> None:
        lines.text(b"[{")
        for number, (name, values) in enumerate(zip(self._names, rows, strict=True)):
            lines.text(b"%s%s:" % (b"," * bool(number), name))
            lines.cells(values, quote=b'"', null=b"null")
        lines.text(b"}]")

    def _changed_objects(self, old: Sequence[pa.Array], new: Sequence[pa.Array]) -> pa.Array:
        """Return the old rows without the columns that are the same in the new ones."""
        lines = Lines(len(old[0]))
        lines.text(b"[{")
        for name, before, after in zip(self._names, old, new, strict=True):
            same = truths(pc.equal(before, after)) | truths(pc.and_(before.is_null(), after.is_null()))
            member = Lines(len(before))
            member.text(b",%s:" % name)
            member.cells(before, quote=b'"', null=b"null")
            lines.cells(pc.if_else(pa.array(same), pa.scalar(b"", pa.binary()), member.build()))
        lines.text(b"}]")
        # Every member begins with a comma; the first one that is left must not.
        return pc.replace_substring(lines.build(), b"[{,", b"[{", max_replacements=1)


def value_cells(column: ColumnInfo, values: pa.Array) -> pa.Array:
    """Return what is between the quotes of each value: all are strings; enums and sets are numbers."""
    kind = column.type
    if kind.is_string:
        return LATIN1_JSON.apply(values) if kind.is_binary else JSON.apply(values)
    if kind.tp is Tp.ENUM:
        return enum_numbers(kind.elems, values)
    if kind.tp is Tp.SET:
        return set_numbers(kind.elems, values)
    return JSON.apply(values) if kind.tp in _ESCAPED else texts(kind, values)


def decode(
    stream: Readable, table: TableInfo, *, terminator: str, time_zone: str, block_bytes: int = BLOCK_BYTES
) -> Iterator[DecodedChanges]:
    """Yield the changes of a file, in bounded memory; raise Corrupt when a line has another form.

    Lines that are no changes of rows (DDLs, watermarks) are skipped.
    """
    form = TextForm(latin1_bytes, numbered_elements=True, time_zone=time_zone)
    line_end = "\n" if "\n" in terminator else terminator
    for block in read_blocks(stream, line_end.encode(), block_bytes):
        yield _decode_block(block, table, form)


def _decode_block(block: bytes, table: TableInfo, form: TextForm) -> DecodedChanges:
    lines = _parse(block, table)
    kinds = pc.index_in(lines["type"], pa.array(_TYPES))
    numbers = pc.indices_nonzero(pc.is_valid(kinds))  # of the lines that are changes of rows
    lines, ops = lines.take(numbers), _OPS.take(kinds.take(numbers))
    new, old = _only_rows(lines["data"], needed=True), _only_rows(lines["old"], needed=False)
    updated = pc.and_(pc.equal(ops, OP_UPDATE), pc.is_valid(old))
    complete_old = _complete_old(old, new, updated, block, numbers)
    schema = arrow_schema(table)
    rows, before = (
        pa.RecordBatch.from_arrays(
            [from_text(column, text.field(place), form) for place, column in enumerate(table.stored_columns)],
            schema=schema,
        )
        for text in (new, complete_old)
    )
    commit_ts = pc.struct_field(lines["_tidb"], "commitTs")
    return DecodedChanges(ops, commit_ts, rows, as_struct(before, updated))


def _parse(block: bytes, table: TableInfo) -> pa.RecordBatch:
    row = pa.struct([pa.field(column.name, pa.string()) for column in table.stored_columns])
    schema = pa.schema(
        [
            ("type", pa.string()),
            ("data", pa.list_(row)),
            ("old", pa.list_(row)),
            ("_tidb", pa.struct([("commitTs", pa.uint64())])),
        ]
    )
    return parse_json_lines(block, schema)


def _only_rows(lists: pa.ListArray, *, needed: bool) -> pa.StructArray:
    """Return the one row in each list; null where there is no list."""
    lengths = pc.list_value_length(lists)
    expected = pc.equal(lengths, 1)
    if not pc.all(expected, skip_nulls=not needed, min_count=0).as_py():
        raise Corrupt("a line of canal-json holds no row, or several, where one belongs; keep the file")
    if lists.null_count:
        starts = pc.cast(pc.if_else(pc.is_valid(lists), lists.offsets[:-1], None), pa.int64())
        return lists.values.take(starts)
    return lists.flatten()


def _complete_old(
    old: pa.StructArray, new: pa.StructArray, updated: pa.Array, block: bytes, numbers: pa.Array
) -> pa.StructArray:
    """Return the rows before updates, with unchanged columns filled in where only changed ones are written.

    A missing column reads as null. Where the value after is not null, the line itself decides whether the
    column is missing or null; `numbers` has the line of each change.
    """
    olds = [pc.struct_field(old, [place]) for place in range(old.type.num_fields)]
    news = [pc.struct_field(new, [place]) for place in range(old.type.num_fields)]
    in_doubt = [
        pc.and_(updated, pc.and_(pc.is_null(before), pc.is_valid(after)))
        for before, after in zip(olds, news, strict=True)
    ]
    doubted = sorted({place for mask in in_doubt for place in pc.indices_nonzero(mask).to_pylist()})
    if doubted:
        lines = [line for line in block.splitlines() if line.strip()]
        doubted_lines = numbers.take(pa.array(doubted)).to_pylist()
        names = {row: _old_names(lines[number]) for row, number in zip(doubted, doubted_lines, strict=True)}
        for place, field in enumerate(old.type):
            missing = [row for row in doubted if field.name not in names[row]]
            mask = pc.is_in(pa.array(range(len(old))), pa.array(missing, pa.int64()))
            olds[place] = pc.if_else(mask, news[place], olds[place])
    return pa.StructArray.from_arrays(olds, fields=list(old.type))


def _old_names(line: bytes) -> set[str]:
    return set(json.loads(line)["old"][0])
