"""csv files: a line for each change; what kind of change it is comes first, then the columns.

Which of the optional cells there are (commit-ts, is-update), and whether there is a header, is found out from
the file; only the dialect has to be told.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv

from penstock.changefeeds.codecs.csvlines import parse_lines
from penstock.changefeeds.codecs.decoded_changes import DecodedChanges, no_old, unknown_ts
from penstock.changefeeds.codecs.lines import BLOCK_BYTES, Readable, blocks
from penstock.changefeeds.codecs.options import CsvOptions
from penstock.changefeeds.codecs.pairs import Halves, paired
from penstock.changefeeds.codecs.text_cells import TextForm, base64_bytes, from_text
from penstock.errors import Corrupt, Invalid
from penstock.tables.arrow import arrow_schema
from penstock.tables.schema import TableInfo

_OPERATION, _COMMIT_TS, _IS_UPDATE = (
    "ticdc-meta$operation",
    "ticdc-meta$commit-ts",
    "ticdc-meta$is-update",
)
_META = (_OPERATION, "ticdc-meta$table", "ticdc-meta$schema")
_EXTRAS_MAX = 2


def decode(
    stream: Readable,
    table: TableInfo,
    dialect: CsvOptions,
    *,
    terminator: str,
    time_zone: str,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[DecodedChanges]:
    """The changes of a file, in bounded memory.

    An update that was written as a delete and an insert (`output-old-value`) is one change again. Raises
    Corrupt for what is no such csv, Invalid when the columns are not those of the schema file.
    """
    if _is_plain(dialect.delimiter) and _is_plain(dialect.quote) and terminator in {"\r\n", "\n"}:
        texts = blocks(stream, b"\n", block_bytes, quote=dialect.quote.encode())
        cells_max = len(table.stored_columns) + len(_META) + _EXTRAS_MAX
        lines: Iterator[pa.RecordBatch] = (
            _parsed(block, cells_max, dialect) for block in texts if block.strip()
        )
    else:
        lines = parse_lines(stream, dialect, terminator, block_bytes)
    to_bytes = bytes.fromhex if dialect.binary_encoding_method == "hex" else base64_bytes
    form = TextForm(to_bytes, numbered_elements=False, time_zone=time_zone)
    return paired(_halves(lines, table, form, dialect))


def _is_plain(mark: str) -> bool:
    """Whether Arrow takes it for a delimiter or a quote."""
    return len(mark) == 1 and "\0" < mark < "\x80"


def _halves(
    lines: Iterator[pa.RecordBatch], table: TableInfo, form: TextForm, dialect: CsvOptions
) -> Iterator[Halves]:
    layout: _Layout | None = None
    for batch in lines:
        found = batch
        if layout is None:
            layout, found = _layout(batch, table, dialect)
        if batch.num_columns != layout.cells:
            raise Corrupt("csv lines have different numbers of cells; check delimiter and quote")
        yield layout.read(found, table, form)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which cell holds what."""

    cells: int
    columns: tuple[int, ...]  # of the table, in its order
    commit_ts: int | None
    is_update: int | None

    def read(self, lines: pa.RecordBatch, table: TableInfo, form: TextForm) -> Halves:
        """Changes, and which of them are halves of updates."""
        if lines.num_rows and not pc.all(pc.is_in(lines.column(0), pa.array(["I", "U", "D"]))).as_py():
            raise Corrupt("a csv line begins with none of I, U and D; check delimiter and quote")
        cells = [lines.column(place) for place in self.columns]
        values = [
            from_text(column, text, form) for column, text in zip(table.stored_columns, cells, strict=True)
        ]
        rows = pa.RecordBatch.from_arrays(values, schema=arrow_schema(table))
        if self.commit_ts is None:
            commit_ts = unknown_ts(lines.num_rows)
        else:
            commit_ts = _numbers(lines.column(self.commit_ts))
        if self.is_update is None:
            halves = pa.nulls(lines.num_rows, pa.bool_()).fill_null(fill_value=False)
        else:
            halves = pc.equal(lines.column(self.is_update), "true")
        return DecodedChanges(lines.column(0), commit_ts, rows, no_old(rows)), halves


def _numbers(text: pa.Array) -> pa.Array:
    try:
        return pc.cast(text, pa.uint64())
    except pa.ArrowInvalid as error:
        raise Corrupt("a commit-ts in a csv line is no number; keep the file") from error


def _layout(batch: pa.RecordBatch, table: TableInfo, dialect: CsvOptions) -> tuple[_Layout, pa.RecordBatch]:
    first = [column[0].as_py() for column in batch.columns]
    names = [column.name for column in table.stored_columns]
    if first[0] == _OPERATION:
        missing = [name for name in names if name not in first]
        if missing:
            raise Invalid(_mismatch(table, f"its header lacks {missing[0]}"))
        columns = tuple(len(first) - 1 - first[::-1].index(name) for name in names)
        places = {name: first.index(name) for name in (_COMMIT_TS, _IS_UPDATE) if name in first}
        return _Layout(len(first), columns, places.get(_COMMIT_TS), places.get(_IS_UPDATE)), batch.slice(1)
    extras = _extras(first, len(names), dialect)
    if extras is None:
        raise Invalid(_mismatch(table, f"its lines have {len(first)} cells for {len(names)} columns"))
    begin = len(_META) + len(extras)
    places = {name: len(_META) + place for place, name in enumerate(extras)}
    columns = tuple(range(begin, begin + len(names)))
    return _Layout(len(first), columns, places.get(_COMMIT_TS), places.get(_IS_UPDATE)), batch


def _extras(first: list[str | None], columns: int, dialect: CsvOptions) -> tuple[str, ...] | None:
    """The optional cells: those that the options tell, or, if they do not fit, those that the file shows."""
    told = ((_COMMIT_TS,) if dialect.include_commit_ts else ()) + (
        (_IS_UPDATE,) if dialect.output_old_value else ()
    )
    count = len(first) - len(_META) - columns
    if count == len(told):
        return told
    one = _IS_UPDATE if first[len(_META)] in {"true", "false"} else _COMMIT_TS
    return {0: (), 1: (one,), 2: (_COMMIT_TS, _IS_UPDATE)}.get(count)


def _mismatch(table: TableInfo, what: str) -> str:
    return (
        f"a csv file of table {table.name} does not fit its schema file: {what};"
        " give the csv options that it was written with"
    )


def _parsed(block: bytes, cells_max: int, dialect: CsvOptions) -> pa.RecordBatch:
    try:
        found = pv.read_csv(
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
    return found.combine_chunks().to_batches()[0]
