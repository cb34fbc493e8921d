"""csv dialects that Arrow does not read: no quotes, delimiters of several characters, odd line ends."""

import codecs
import re
from collections.abc import Generator, Iterator

import pyarrow as pa

from penstock.changefeeds.codecs.lines import Readable
from penstock.changefeeds.codecs.options import CsvOptions
from penstock.errors import Corrupt

_BATCH_ROWS = 8_192
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r"}


def parse_lines(
    stream: Readable, dialect: CsvOptions, terminator: str, block_bytes: int
) -> Iterator[pa.RecordBatch]:
    """The cells of each line, as batches of text columns; raise Corrupt when lines differ in length."""
    page: list[list[str | None]] = []
    for cells in _records(stream, _Cells(dialect, terminator), block_bytes):
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


class _Cells:
    """Reads one cell at a time."""

    def __init__(self, dialect: CsvOptions, terminator: str) -> None:
        self._dialect = dialect
        delimiter, line_end, quote = map(re.escape, (dialect.delimiter, terminator, dialect.quote))
        ends = f"(?P<end>{delimiter}|{line_end})"
        first = re.escape(dialect.delimiter[0] + terminator[0])
        # Possessive: a cell that is cut off by the end of the text must not match as a shorter one.
        if quote:
            bare = rf"(?P<bare>(?!{quote})(?:[^{first}]++|(?!{delimiter}|{line_end})[{first}])*+)"
            cell = rf"(?:{quote}(?P<quoted>(?:[^{quote}]++|{quote}{quote})*+){quote}|{bare})"
        else:
            cell = rf"(?P<bare>(?:[^{first}\\]++|\\.|(?!{delimiter}|{line_end})[{first}])*+)"
        self._whole = re.compile(cell + ends, re.DOTALL)
        self._line_end = terminator

    def read(self, text: str, at: int) -> tuple[str | None, int, bool] | None:
        """The cell at a place, the place after it, and whether it ends its line; None: text is missing."""
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
        return bare if quote or "\\" not in bare else _ESCAPE.sub(_unescaped, bare)


def _unescaped(found: re.Match[str]) -> str:
    return _ESCAPED.get(found[1], found[1])


def _records(stream: Readable, cells: _Cells, block_bytes: int) -> Iterator[list[str | None]]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    text = ""
    while data := stream.read(block_bytes):
        text += _decoded(decoder, data)
        text = yield from _whole_records(text, cells)
    if text:
        raise Corrupt("the last csv line does not end; check quote and terminator, or keep the file")


def _whole_records(text: str, cells: _Cells) -> Generator[list[str | None], None, str]:
    """The records that are whole; what is left of the text is returned."""
    at = done = 0
    record: list[str | None] = []
    while at < len(text) and (found := cells.read(text, at)) is not None:
        value, at, is_last = found
        record.append(value)
        if is_last:
            yield record
            record, done = [], at
    return text[done:]


def _decoded(decoder: codecs.IncrementalDecoder, data: bytes) -> str:
    try:
        return decoder.decode(data)
    except UnicodeDecodeError as error:
        raise Corrupt("a csv file is not UTF-8; keep the file") from error
