"""canal-json: a line for each change, with the bytes that TiCDC writes."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changefeeds.codecs.mysqltypes import java_type, mysql_type, promotion
from penstock.changefeeds.codecs.options import EncoderOptions
from penstock.changefeeds.codecs.row_changes import RowChanges
from penstock.clock import LOGICAL_BITS
from penstock.columnar.text_lines import JSON, LATIN1_JSON, Lines, json_string, numbers, spread, truths
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.columns import ColumnInfo
from penstock.tables.fieldtypes import Tp
from penstock.tables.text_values import enum_numbers, set_numbers, texts

_KINDS = (b"INSERT", b"UPDATE", b"DELETE")
_ESCAPED = {Tp.JSON, Tp.GEOMETRY, Tp.NULL}


class CanalJson:
    """Lines of a table's changes; mysqlType has the order of the columns, which in TiCDC is any."""

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
        """A line, with its terminator, for each change."""
        lines = Lines(len(changes))
        lines.text(self._head)
        lines.choice(_KINDS, changes.kinds)
        lines.text(b'","es":')
        lines.cells(numbers(changes.commit_ts >> LOGICAL_BITS))
        lines.text(self._times)
        self._java_types(lines, changes.rows)
        lines.text(self._types)
        rows = [cells(column, changes.rows.column(column.name)) for column in self._columns]
        self._old(lines, changes, rows)
        lines.text(b',"data":')
        self._object(lines, rows)
        if self._options.enable_tidb_extension:
            lines.text(b',"_tidb":{"commitTs":')
            lines.cells(numbers(changes.commit_ts))
            lines.text(b"}")
        lines.text(b"}" + self._options.terminator.encode())
        return lines.build()

    def _java_types(self, lines: Lines, rows: pa.RecordBatch) -> None:
        """The types of the values: large ones of an unsigned column have the next wider one."""
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

    def _old(self, lines: Lines, changes: RowChanges, rows: Sequence[pa.Array]) -> None:
        updates = changes.updates
        if not updates.any():
            lines.text(b"null")
            return
        old = [cells(column, changes.old.column(column.name)) for column in self._columns]
        if self._options.only_output_updated_columns:
            made = self._updated(old, [each.filter(pa.array(updates)) for each in rows])
        else:
            inner = Lines(changes.old.num_rows)
            self._object(inner, old)
            made = inner.build()
        lines.cells(made if updates.all() else spread(made, updates, b"null"))

    def _object(self, lines: Lines, rows: Sequence[pa.Array]) -> None:
        lines.text(b"[{")
        for number, (name, values) in enumerate(zip(self._names, rows, strict=True)):
            lines.text(b"%s%s:" % (b"," * bool(number), name))
            lines.cells(values, quote=b'"', null=b"null")
        lines.text(b"}]")

    def _updated(self, old: Sequence[pa.Array], new: Sequence[pa.Array]) -> pa.Array:
        """The old rows, without the columns that are the same in the new ones."""
        lines = Lines(len(old[0]))
        lines.text(b"[{")
        for name, before, after in zip(self._names, old, new, strict=True):
            same = truths(pc.equal(before, after)) | truths(pc.and_(before.is_null(), after.is_null()))
            member = Lines(len(before))
            member.text(b",%s:" % name)
            member.cells(before, quote=b'"', null=b"null")
            lines.cells(pc.if_else(pa.array(same), pa.scalar(b"", pa.binary()), member.build()))
        lines.text(b"}]")
        return pc.replace_substring(lines.build(), b"[{,", b"[{", max_replacements=1)


def cells(column: ColumnInfo, values: pa.Array) -> pa.Array:
    """What stands between the quotes of a value: all of them are strings, and enums and sets are numbers."""
    kind = column.type
    if kind.is_string:
        return LATIN1_JSON.apply(values) if kind.is_binary else JSON.apply(values)
    if kind.tp is Tp.ENUM:
        return enum_numbers(kind.elems, values)
    if kind.tp is Tp.SET:
        return set_numbers(kind.elems, values)
    return JSON.apply(values) if kind.tp in _ESCAPED else texts(kind, values)
