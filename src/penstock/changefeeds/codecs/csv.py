"""csv: a line for each change, with the bytes that TiCDC writes."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.changefeeds.codecs.options import EncoderOptions
from penstock.changefeeds.codecs.row_changes import DELETE, INSERT, Kinds, RowChanges
from penstock.columnar.text_lines import (
    Lines,
    Substitution,
    as_binary,
    base64_cells,
    hex_cells,
    numbers,
    spread,
)
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.columns import ColumnInfo
from penstock.tables.fieldtypes import INTEGER_BITS, Tp
from penstock.tables.text_values import general_floats, texts

_KINDS = ("I", "U", "D")
_BARE = frozenset({*INTEGER_BITS, Tp.YEAR, Tp.BIT, Tp.FLOAT, Tp.DOUBLE})
_META = ("operation", "table", "schema")


class Separated:
    """Lines of a table's changes. An update is one line, or with `output_old_value` two."""

    def __init__(self, schema: SchemaVersion, columns: Sequence[ColumnInfo], options: EncoderOptions) -> None:
        self._columns = columns
        self._csv = options.csv
        self._terminator = options.terminator.encode()
        self._delimiter = options.csv.delimiter.encode()
        self._quote = options.csv.quote.encode()
        self._null = options.csv.null.encode()
        self._protected = _protection(options.csv.quote, options.csv.delimiter)
        self._kinds = [self._string(each) for each in _KINDS]
        self._names = b"%s%s%s%s" % (
            self._delimiter,
            self._string(schema.table.name),
            self._delimiter,
            self._string(schema.database),
        )

    def header(self) -> bytes:
        """The names of what lines have, if they are wanted."""
        if not self._csv.output_field_header:
            return b""
        meta = [
            *_META,
            *["commit-ts"] * self._csv.include_commit_ts,
            *["is-update"] * self._csv.output_old_value,
        ]
        names = [*(f"ticdc-meta${name}" for name in meta), *(column.name for column in self._columns)]
        return self._delimiter.join(map(self._header_cell, names)) + self._terminator

    def lines(self, changes: RowChanges) -> pa.Array:
        """A line, with its terminator, for each change, or two."""
        updates = changes.updates
        if not self._csv.output_old_value or not updates.any():
            return self._lines(changes, changes.kinds, changes.rows)
        kinds = changes.kinds.copy()
        kinds[updates] = INSERT
        now = self._lines(changes, kinds, changes.rows)
        updated = changes.where(updates)
        kinds = updated.kinds.copy()
        kinds[:] = DELETE
        before = self._lines(updated, kinds, updated.old)
        return pc.binary_join_element_wise(spread(before, updates, b""), now, b"")

    def _lines(self, changes: RowChanges, kinds: Kinds, rows: pa.RecordBatch) -> pa.Array:
        lines = Lines(len(changes))
        lines.choice(self._kinds, kinds)
        lines.text(self._names)
        if self._csv.include_commit_ts:
            lines.text(self._delimiter)
            lines.cells(numbers(changes.commit_ts))
        if self._csv.output_old_value:
            lines.text(self._delimiter)
            lines.choice((b"false", b"true"), changes.updates.astype("i1"))
        for column in self._columns:
            lines.text(self._delimiter)
            quote = b"" if column.type.tp in _BARE else self._quote
            lines.cells(self._cells(column, rows.column(column.name)), quote=quote, null=self._null)
        lines.text(self._terminator)
        return lines.build()

    def _cells(self, column: ColumnInfo, values: pa.Array) -> pa.Array:
        kind = column.type
        if kind.tp in {Tp.FLOAT, Tp.DOUBLE}:
            return general_floats(values)
        if kind.tp in _BARE:
            return texts(kind, values)
        if kind.is_binary:
            values = (base64_cells if self._csv.binary_encoding_method == "base64" else hex_cells)(values)
        return self._protected.apply(texts(kind, values))

    def _header_cell(self, name: str) -> bytes:
        """A name: bare, as TiCDC writes it, unless a reader would take it for something else."""
        marks = {*self._csv.delimiter, *self._csv.quote, *self._terminator.decode(), "\r", "\n"}
        if self._quote and name != self._csv.null and not marks.intersection(name):
            return name.encode()
        return self._string(name)

    def _string(self, text: str) -> bytes:
        cell: bytes = self._protected.apply(as_binary(pa.array([text], pa.string())))[0].as_py()
        return b"%s%s%s" % (self._quote, cell, self._quote)


def _protection(quote: str, delimiter: str) -> Substitution:
    """In quotes, quotes are doubled; without them a backslash stands before what would end a cell or line."""
    if quote:
        return Substitution({quote.encode(): quote.encode() * 2})
    escaped = {b"\r": b"\\r", b"\n": b"\\n", b"\\": b"\\\\"}
    if any(delimiter.startswith(delimiter[at:]) for at in range(1, len(delimiter))):
        # Behind "a|" a delimiter "||" would be found one place too early, so that each "|" is escaped.
        escaped[delimiter[0].encode()] = b"\\" + delimiter[0].encode()
    escaped[delimiter.encode()] = "".join(f"\\{each}" for each in delimiter).encode()
    return Substitution(escaped)
