"""csv: a line for each change, first the kind of change, then the columns. Encoder and decoder.

The encoder writes the bytes that TiCDC writes. The decoder finds out from the file which optional cells it
has (commit-ts, is-update) and whether it has a header; it only needs the dialect. Arrow parses plain
dialects; a parser of our own reads the others: no quotes, delimiters of several characters, odd line ends.
"""

import codecs
import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv

from penstock.changefeeds.codecs.decoded_changes import (
    OP_DELETE,
    OP_INSERT,
    OP_UPDATE,
    DecodedChanges,
    Halves,
    no_old,
    pair_halves,
    unknown_ts,
)
from penstock.changefeeds.codecs.options import CsvOptions, EncoderOptions
from penstock.changefeeds.codecs.row_changes import DELETE, INSERT, Kinds, RowChanges
from penstock.changefeeds.codecs.text_cells import (
    BLOCK_BYTES,
    Readable,
    TextForm,
    base64_bytes,
    from_text,
    read_blocks,
)
from penstock.columnar.text_lines import (
    Lines,
    Substitution,
    as_binary,
    base64_cells,
    hex_cells,
    numbers,
    spread,
)
from penstock.errors import Corrupt, Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.arrow import arrow_schema
from penstock.tables.columns import INTEGER_BITS, ColumnInfo, Tp
from penstock.tables.schema import TableInfo
from penstock.tables.text_values import general_floats, texts

_OPS = (OP_INSERT, OP_UPDATE, OP_DELETE)  # in the order of RowChanges.kinds
_BARE = frozenset({*INTEGER_BITS, Tp.YEAR, Tp.BIT, Tp.FLOAT, Tp.DOUBLE})
_OPERATION, _COMMIT_TS, _IS_UPDATE = "ticdc-meta$operation", "ticdc-meta$commit-ts", "ticdc-meta$is-update"
_META = (_OPERATION, "ticdc-meta$table", "ticdc-meta$schema")
_OPTIONAL_CELLS_MAX = 2  # commit-ts and is-update
_BATCH_ROWS = 8_192
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r"}


class CsvLines:
    """Encodes a table's changes as lines. An update is one line, or two with `output_old_value`."""

    def __init__(self, schema: SchemaVersion, columns: Sequence[ColumnInfo], options: EncoderOptions) -> None:
        self._columns = columns
        self._csv = options.csv
        self._terminator = options.terminator.encode()
        self._delimiter = options.csv.delimiter.encode()
        self._quote = options.csv.quote.encode()
        self._null = options.csv.null.encode()
        self._protected = _protection(options.csv.quote, options.csv.delimiter)
        self._ops = [self._string(op) for op in _OPS]
        self._names = b"%s%s%s%s" % (
            self._delimiter,
            self._string(schema.table.name),
            self._delimiter,
            self._string(schema.database),
        )

    def header(self) -> bytes:
        """Return the line with the names of the cells; empty unless the options ask for it."""
        if not self._csv.output_field_header:
            return b""
        names = [*_META, *_optional_cells(self._csv), *(column.name for column in self._columns)]
        return self._delimiter.join(map(self._header_cell, names)) + self._terminator

    def lines(self, changes: RowChanges) -> pa.Array:
        """Return a line, or two, with its terminator, for each change."""
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
        lines.choice(self._ops, kinds)
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
        if kind.tp is Tp.YEAR:
            # TiCDC's consumer gives the cell to MySQL as a text, and there '0' is the year 2000.
            return pc.utf8_lpad(texts(kind, values).cast(pa.string()), 4, "0").cast(pa.binary())
        if kind.tp in _BARE:
            return texts(kind, values)
        if kind.is_binary:
            values = (base64_cells if self._csv.binary_encoding_method == "base64" else hex_cells)(values)
        return self._protected.apply(texts(kind, values))

    def _header_cell(self, name: str) -> bytes:
        """Return a name: bare, as TiCDC writes it, unless a reader would take it for something else."""
        marks = {*self._csv.delimiter, *self._csv.quote, *self._terminator.decode(), "\r", "\n"}
        if self._quote and name != self._csv.null and not marks.intersection(name):
            return name.encode()
        return self._string(name)

    def _string(self, text: str) -> bytes:
        cell: bytes = self._protected.apply(as_binary(pa.array([text], pa.string())))[0].as_py()
        return b"%s%s%s" % (self._quote, cell, self._quote)


def _protection(quote: str, delimiter: str) -> Substitution:
    """Return how texts are escaped: quotes are doubled; without quotes a backslash escapes cell ends."""
    if quote:
        return Substitution({quote.encode(): quote.encode() * 2})
    escaped = {b"\r": b"\\r", b"\n": b"\\n", b"\\": b"\\\\"}
    if any(delimiter.startswith(delimiter[at:]) for at in range(1, len(delimiter))):
        # After a cell that ends with "|", "||" would be found one place too early: escape each "|".
        escaped[delimiter[0].encode()] = b"\\" + delimiter[0].encode()
    escaped[delimiter.encode()] = "".join(f"\\{char}" for char in delimiter).encode()
    return Substitution(escaped)


def _optional_cells(csv: CsvOptions) -> list[str]:
    return [*[_COMMIT_TS] * csv.include_commit_ts, *[_IS_UPDATE] * csv.output_old_value]


def decode(
    stream: Readable,
    table: TableInfo,
    dialect: CsvOptions,
    *,
    terminator: str,
    time_zone: str,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[DecodedChanges]:
    """Yield the changes of a file, in bounded memory.

    An update that is written as a delete and an insert (`output-old-value`) is one change again. Raises
    Corrupt when the file is no such csv, Invalid when the columns are not those of the schema file.
    """
    if _is_plain(dialect.delimiter) and _is_plain(dialect.quote) and terminator in {"\r\n", "\n"}:
        texts = read_blocks(stream, b"\n", block_bytes, quote=dialect.quote.encode())
        cells_max = len(table.stored_columns) + len(_META) + _OPTIONAL_CELLS_MAX
        lines: Iterator[pa.RecordBatch] = (
            _parse_block(block, cells_max, dialect) for block in texts if block.strip()
        )
    else:
        lines = parse_lines(stream, dialect, terminator, block_bytes)
    to_bytes = bytes.fromhex if dialect.binary_encoding_method == "hex" else base64_bytes
    form = TextForm(to_bytes, numbered_elements=False, time_zone=time_zone)
    return pair_halves(_halves(lines, table, form, dialect))


def _is_plain(mark: str) -> bool:
    """Return whether Arrow accepts a text as delimiter or quote."""
    return len(mark) == 1 and "\0" < mark < "\x80"


def _halves(
    lines: Iterator[pa.RecordBatch], table: TableInfo, form: TextForm, dialect: CsvOptions
) -> Iterator[Halves]:
    layout: _CsvLayout | None = None
    for batch in lines:
        rows = batch
        if layout is None:
            layout, rows = _find_layout(batch, table, dialect)
        if batch.num_columns != layout.cells:
            raise Corrupt("csv lines have different numbers of cells; check delimiter and quote")
        yield layout.read(rows, table, form)


@dataclass(frozen=True, slots=True)
class _CsvLayout:
    """Which cells of a line have what."""

    cells: int
    columns: tuple[int, ...]  # the cells of the table's columns, in its order
    commit_ts: int | None
    is_update: int | None

    def read(self, lines: pa.RecordBatch, table: TableInfo, form: TextForm) -> Halves:
        """Return changes, and which of them are halves of updates."""
        if lines.num_rows and not pc.all(pc.is_in(lines.column(0), pa.array(_OPS))).as_py():
            raise Corrupt("a csv line begins with none of I, U and D; check delimiter and quote")
        cells = [lines.column(place) for place in self.columns]
        values = [
            from_text(column, text, form) for column, text in zip(table.stored_columns, cells, strict=True)
        ]
        rows = pa.RecordBatch.from_arrays(values, schema=arrow_schema(table))
        if self.commit_ts is None:
            commit_ts = unknown_ts(lines.num_rows)
        else:
            commit_ts = _parse_timestamps(lines.column(self.commit_ts))
        if self.is_update is None:
            halves = pa.nulls(lines.num_rows, pa.bool_()).fill_null(fill_value=False)
        else:
            halves = pc.equal(lines.column(self.is_update), "true")
        return DecodedChanges(lines.column(0), commit_ts, rows, no_old(rows)), halves


def _parse_timestamps(text: pa.Array) -> pa.Array:
    try:
        return pc.cast(text, pa.uint64())
    except pa.ArrowInvalid as error:
        raise Corrupt("a commit-ts in a csv line is no number; keep the file") from error


def _find_layout(
    batch: pa.RecordBatch, table: TableInfo, dialect: CsvOptions
) -> tuple[_CsvLayout, pa.RecordBatch]:
    """Return the layout by the first line, and the batch without the header."""
    first = [column[0].as_py() for column in batch.columns]
    names = [column.name for column in table.stored_columns]
    if first[0] == _OPERATION:
        missing = [name for name in names if name not in first]
        if missing:
            raise Invalid(_mismatch(table, f"its header has no column {missing[0]}"))
        # The last cell of a name: a column may be called like a cell before the columns.
        columns = tuple(len(first) - 1 - first[::-1].index(name) for name in names)
        places = {name: first.index(name) for name in (_COMMIT_TS, _IS_UPDATE) if name in first}
        return _CsvLayout(len(first), columns, places.get(_COMMIT_TS), places.get(_IS_UPDATE)), batch.slice(1)
    optional = _find_optional_cells(first, len(names), dialect)
    if optional is None:
        raise Invalid(_mismatch(table, f"its lines have {len(first)} cells for {len(names)} columns"))
    begin = len(_META) + len(optional)
    places = {name: len(_META) + place for place, name in enumerate(optional)}
    columns = tuple(range(begin, begin + len(names)))
    return _CsvLayout(len(first), columns, places.get(_COMMIT_TS), places.get(_IS_UPDATE)), batch


def _find_optional_cells(first: list[str | None], columns: int, dialect: CsvOptions) -> list[str] | None:
    """Return the optional cells: those of the options, or, if they do not fit, those that the line shows."""
    expected = _optional_cells(dialect)
    count = len(first) - len(_META) - columns
    if count == len(expected):
        return expected
    one = _IS_UPDATE if first[len(_META)] in {"true", "false"} else _COMMIT_TS
    return {0: [], 1: [one], 2: [_COMMIT_TS, _IS_UPDATE]}.get(count)


def _mismatch(table: TableInfo, difference: str) -> str:
    return (
        f"a csv file of table {table.name} does not fit its schema file: {difference};"
        " give the csv options that it was written with"
    )


def _parse_block(block: bytes, cells_max: int, dialect: CsvOptions) -> pa.RecordBatch:
    try:
        parsed = pv.read_csv(
            pa.BufferReader(block),
            read_options=pv.ReadOptions(
                use_threads=False, block_size=len(block) + 1, autogenerate_column_names=True
            ),
            parse_options=pv.ParseOptions(
                delimiter=dialect.delimiter, quote_char=dialect.quote, newlines_in_values=True
            ),
            convert_options=pv.ConvertOptions(
                column_types={f"f{place}": pa.string() for place in range(cells_max)},
                null_values=[dialect.null],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        raise Corrupt("a csv file cannot be parsed; check delimiter and quote, or keep the file") from error
    return parsed.combine_chunks().to_batches()[0]


def parse_lines(
    stream: Readable, dialect: CsvOptions, terminator: str, block_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yield the cells of each line as batches of text columns; raise Corrupt when lines differ in length.

    This is the parser for dialects that Arrow does not read.
    """
    page: list[list[str | None]] = []
    for cells in _records(stream, _CsvCells(dialect, terminator), block_bytes):
        page.append(cells)
        if len(page) == _BATCH_ROWS:
            yield _batch(page)
            page = []
    if page:
        yield _batch(page)


def _batch(page: list[list[str | None]]) -> pa.RecordBatch:
    if len({len(cells) for cells in page}) > 1:
        raise Corrupt("csv lines have different numbers of cells; check delimiter and quote")
    columns = [pa.array(column, pa.string()) for column in zip(*page, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=[f"f{place}" for place in range(len(columns))])


class _CsvCells:
    """Reads the cells of a dialect, one at a time."""

    def __init__(self, dialect: CsvOptions, terminator: str) -> None:
        self._dialect = dialect
        delimiter, line_end, quote = map(re.escape, (dialect.delimiter, terminator, dialect.quote))
        ends = f"(?P<end>{delimiter}|{line_end})"
        first = re.escape(dialect.delimiter[0] + terminator[0])
        # Repetitions are possessive: a cell that the text's end cuts off must not match as a shorter one.
        if quote:
            bare = rf"(?P<bare>(?!{quote})(?:[^{first}]++|(?!{delimiter}|{line_end})[{first}])*+)"
            cell = rf"(?:{quote}(?P<quoted>(?:[^{quote}]++|{quote}{quote})*+){quote}|{bare})"
        else:
            cell = rf"(?P<bare>(?:[^{first}\\]++|\\.|(?!{delimiter}|{line_end})[{first}])*+)"
        self._whole = re.compile(cell + ends, re.DOTALL)
        self._line_end = terminator

    def read(self, text: str, at: int) -> tuple[str | None, int, bool] | None:
        """Return the cell at a place, the place after it, and if it ends a line; None when it is cut off."""
        found = self._whole.match(text, at)
        if found is None:
            return None
        return self._value(found), found.end(), found["end"] == self._line_end

    def _value(self, found: re.Match[str]) -> str | None:
        quote = self._dialect.quote
        if quote and found["quoted"] is not None:
            return found["quoted"].replace(quote * 2, quote)
        bare = found["bare"]
        if bare == self._dialect.null:
            return None
        return bare if quote or "\\" not in bare else _ESCAPE.sub(_unescape, bare)


def _unescape(found: re.Match[str]) -> str:
    return _ESCAPED.get(found[1], found[1])


def _records(stream: Readable, cells: _CsvCells, block_bytes: int) -> Iterator[list[str | None]]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    text = ""
    while data := stream.read(block_bytes):
        text += _decode_text(decoder, data)
        text = yield from _whole_records(text, cells)
    if text:
        raise Corrupt("the last csv line does not end; check quote and terminator, or keep the file")


def _whole_records(text: str, cells: _CsvCells) -> Generator[list[str | None], None, str]:
    """Yield the records that are whole; return the rest of the text."""
    at = done = 0
    record: list[str | None] = []
    while at < len(text) and (found := cells.read(text, at)) is not None:
        value, at, is_last = found
        record.append(value)
        if is_last:
            yield record
            record, done = [], at
    return text[done:]


def _decode_text(decoder: codecs.IncrementalDecoder, data: bytes) -> str:
    try:
        return decoder.decode(data)
    except UnicodeDecodeError as error:
        raise Corrupt("a csv file is not UTF-8; keep the file") from error
