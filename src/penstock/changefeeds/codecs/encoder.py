"""One face for all formats: row changes become blocks, and stretches of blocks become payloads.

Payloads of text, compressed so that one after the other they are one file.
"""

import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.changefeeds.codecs.canal_json import CanalJson
from penstock.changefeeds.codecs.csv import Separated
from penstock.changefeeds.codecs.debezium import DebeziumJson
from penstock.changefeeds.codecs.options import Compression, EncoderOptions
from penstock.changefeeds.codecs.parquet import ParquetRows, row_bytes
from penstock.changefeeds.codecs.row_changes import RowChanges
from penstock.columnar.text_lines import Ints, content
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.columns import ColumnInfo

_ZSTD_LEVEL = 3
_GZIP_LEVEL = 6

_COMPRESS: dict[Compression, Callable[[bytes], bytes]] = {
    "none": lambda payload: payload,
    "gzip": lambda payload: gzip.compress(payload, _GZIP_LEVEL, mtime=0),
    "zstd": lambda payload: pa.Codec("zstd", _ZSTD_LEVEL).compress(payload, asbytes=True),
}

SUFFIXES: dict[Compression, str] = {"none": "", "gzip": ".gz", "zstd": ".zst"}


def compressed(payload: bytes, compression: Compression) -> bytes:
    """A gzip member or a zstd frame of its own; the same payload gives the same bytes."""
    return _COMPRESS[compression](payload) if payload else payload


class EncodedRows(Protocol):
    """Some changes, encoded."""

    @property
    def nbytes(self) -> Ints:
        """How many bytes each change takes."""

    def slice(self, start: int, stop: int) -> "EncodedRows":
        """Some of them that follow each other."""


class Encoder(Protocol):
    """What a format does. The same changes give the same bytes."""

    def encode(self, changes: RowChanges) -> EncodedRows:
        """Encode some changes."""

    def payload(self, blocks: Sequence[EncodedRows]) -> bytes:
        """What is kept of blocks of this encoder, one after the other."""


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Lines, in one piece of memory."""

    held: memoryview
    bounds: Ints

    @property
    def nbytes(self) -> Ints:
        """How many bytes each change takes."""
        return np.diff(self.bounds)

    def slice(self, start: int, stop: int) -> "TextBlock":
        """Some of them that follow each other."""
        return TextBlock(self.held, self.bounds[start : stop + 1])


class LineFormat(Protocol):
    """A format that has a text for each change."""

    def lines(self, changes: RowChanges) -> pa.Array:
        """The text of each change, as binary."""


class TextEncoder:
    """Encodes lines. `keys` has key columns only, for changes of which no more is known."""

    def __init__(self, whole: LineFormat, keys: LineFormat, options: EncoderOptions) -> None:
        self._whole = whole
        self._keys = keys
        self._compression = options.compression

    def encode(self, changes: RowChanges) -> TextBlock:
        """Encode some changes."""
        held, bounds = content(self._lines(changes))
        return TextBlock(held.data, bounds)

    def _lines(self, changes: RowChanges) -> pa.Array:
        known = changes.known
        if known.all() or self._keys is self._whole:
            return self._whole.lines(changes)
        whole, keys = self._whole.lines(changes.where(known)), self._keys.lines(changes.where(~known))
        place = np.where(known, np.cumsum(known) - 1, len(whole) + np.cumsum(~known) - 1)
        return pa.concat_arrays([whole, keys]).take(pa.array(place))

    def payload(self, blocks: Sequence[EncodedRows]) -> bytes:
        """What is kept of blocks of this encoder, one after the other."""
        texts = [
            each.held[each.bounds[0] : each.bounds[-1]] for each in blocks if isinstance(each, TextBlock)
        ]
        return compressed(b"".join(texts), self._compression)


@dataclass(frozen=True, slots=True)
class RowsBlock:
    """Rows, and how many of them each change has."""

    rows: pa.RecordBatch
    counts: Ints

    @property
    def nbytes(self) -> Ints:
        """How many bytes each change takes."""
        if not len(self.counts):
            return self.counts
        found: Ints = np.add.reduceat(row_bytes(self.rows), np.cumsum(self.counts) - self.counts)
        return found

    def slice(self, start: int, stop: int) -> "RowsBlock":
        """Some of them that follow each other."""
        before, inside = int(self.counts[:start].sum()), int(self.counts[start:stop].sum())
        return RowsBlock(self.rows.slice(before, inside), self.counts[start:stop])


class ParquetEncoder:
    """Encodes rows into Arrow streams."""

    def __init__(self, rows: ParquetRows) -> None:
        self._rows = rows

    def encode(self, changes: RowChanges) -> RowsBlock:
        """Encode some changes."""
        return RowsBlock(*self._rows.rows(changes))

    def payload(self, blocks: Sequence[EncodedRows]) -> bytes:
        """What is kept of blocks of this encoder, one after the other."""
        return self._rows.payload([each.rows for each in blocks if isinstance(each, RowsBlock)])


def shown_columns(schema: SchemaVersion, options: EncoderOptions) -> list[ColumnInfo]:
    """The columns to send, in the order of the table; those of the primary key are always among them."""
    table = schema.table
    if options.columns is None:
        return list(table.stored_columns)
    wanted = {table.column(name).id for name in options.columns} | {each.id for each in table.primary_key}
    return [column for column in table.stored_columns if column.id in wanted]


def encoder_of(schema: SchemaVersion, options: EncoderOptions) -> Encoder:
    """What encodes changes of a table; raise Invalid when the format cannot have its columns."""
    columns = shown_columns(schema, options)
    keys = {column.id for column in schema.table.primary_key}
    key_columns = [column for column in columns if column.id in keys]
    if options.protocol == "parquet":
        return ParquetEncoder(ParquetRows(schema, columns))
    if options.protocol == "csv":
        lines = Separated(schema, columns, options)
        return TextEncoder(lines, lines, options)
    made = CanalJson if options.protocol == "canal-json" else DebeziumJson
    return TextEncoder(made(schema, columns, options), made(schema, key_columns, options), options)


def header_of(schema: SchemaVersion, options: EncoderOptions) -> bytes:
    """What comes before the first line of a file."""
    if options.protocol != "csv":
        return b""
    header = Separated(schema, shown_columns(schema, options), options).header()
    return compressed(header, options.compression)


_EXTENSIONS = {"canal-json": ".json", "csv": ".csv", "parquet": ".parquet", "debezium": ".json"}


def extension_of(options: EncoderOptions) -> str:
    """How the names of data files end; Parquet is compressed inside."""
    suffix = "" if options.protocol == "parquet" else SUFFIXES[options.compression]
    return _EXTENSIONS[options.protocol] + suffix
