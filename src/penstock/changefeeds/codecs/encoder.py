"""Encoders of all formats behind one interface: row changes become blocks, blocks become payloads.

Each payload of a text format is compressed by itself, so that payloads one after the other are one file.
"""

import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.changefeeds.codecs.canal_json import CanalJson
from penstock.changefeeds.codecs.csv import CsvLines
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


def compress(payload: bytes, compression: Compression) -> bytes:
    """Return a gzip member or a zstd frame of its own; the same payload gives the same bytes."""
    return _COMPRESS[compression](payload) if payload else payload


class EncodedRows(Protocol):
    """A block of encoded changes."""

    @property
    def nbytes(self) -> Ints:
        """How many bytes each change takes."""

    def slice(self, start: int, stop: int) -> "EncodedRows":
        """Return the changes in [start, stop)."""


class Encoder(Protocol):
    """Encodes the changes of one table. The same changes give the same bytes."""

    def encode(self, changes: RowChanges) -> EncodedRows:
        """Encode some changes as a block."""

    def payload(self, blocks: Sequence[EncodedRows]) -> bytes:
        """Return the bytes of blocks of this encoder, one after the other."""


class LineFormat(Protocol):
    """A text format with a line, or lines, for each change."""

    def lines(self, changes: RowChanges) -> pa.Array:
        """Return the text of each change, as binary."""


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Lines in one piece of memory, with the bounds of each change."""

    held: memoryview
    bounds: Ints

    @property
    def nbytes(self) -> Ints:
        """How many bytes each change takes."""
        return np.diff(self.bounds)

    def slice(self, start: int, stop: int) -> "TextBlock":
        """Return the changes in [start, stop); nothing is copied."""
        return TextBlock(self.held, self.bounds[start : stop + 1])


class TextEncoder:
    """Encodes lines. `keys` has the key columns only, for deleted rows of which no more is known."""

    def __init__(self, whole: LineFormat, keys: LineFormat, options: EncoderOptions) -> None:
        self._whole = whole
        self._keys = keys
        self._compression = options.compression

    def encode(self, changes: RowChanges) -> TextBlock:
        """Encode changes as lines."""
        held, bounds = content(self._lines(changes))
        return TextBlock(held.data, bounds)

    def _lines(self, changes: RowChanges) -> pa.Array:
        known = changes.known
        if known.all() or self._keys is self._whole:
            return self._whole.lines(changes)
        whole, keys = self._whole.lines(changes.where(known)), self._keys.lines(changes.where(~known))
        # Back into the order of the changes: the n-th known one is line n of `whole`, the others of `keys`.
        place = np.where(known, np.cumsum(known) - 1, len(whole) + np.cumsum(~known) - 1)
        return pa.concat_arrays([whole, keys]).take(pa.array(place))

    def payload(self, blocks: Sequence[EncodedRows]) -> bytes:
        """Return the lines of blocks, one after the other, compressed."""
        texts = [
            block.held[block.bounds[0] : block.bounds[-1]] for block in blocks if isinstance(block, TextBlock)
        ]
        return compress(b"".join(texts), self._compression)


@dataclass(frozen=True, slots=True)
class RowsBlock:
    """Rows of Parquet, and how many of them each change has."""

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
        """Return the changes in [start, stop); nothing is copied."""
        before, inside = int(self.counts[:start].sum()), int(self.counts[start:stop].sum())
        return RowsBlock(self.rows.slice(before, inside), self.counts[start:stop])


class ParquetEncoder:
    """Encodes changes as rows of Arrow streams, which become one Parquet file."""

    def __init__(self, rows: ParquetRows) -> None:
        self._rows = rows

    def encode(self, changes: RowChanges) -> RowsBlock:
        """Encode changes as rows."""
        return RowsBlock(*self._rows.rows(changes))

    def payload(self, blocks: Sequence[EncodedRows]) -> bytes:
        """Return the rows of blocks as one Arrow stream."""
        return self._rows.payload([block.rows for block in blocks if isinstance(block, RowsBlock)])


def output_columns(schema: SchemaVersion, options: EncoderOptions) -> list[ColumnInfo]:
    """Return the columns to send, in the order of the table; the primary key's are always among them."""
    table = schema.table
    if options.columns is None:
        return list(table.stored_columns)
    wanted = {table.column(name).id for name in options.columns}
    wanted |= {column.id for column in table.primary_key}
    return [column for column in table.stored_columns if column.id in wanted]


def encoder_of(schema: SchemaVersion, options: EncoderOptions) -> Encoder:
    """Return the encoder of a table's changes; raise Invalid when the format cannot have its columns."""
    columns = output_columns(schema, options)
    keys = {column.id for column in schema.table.primary_key}
    key_columns = [column for column in columns if column.id in keys]
    if options.protocol == "parquet":
        return ParquetEncoder(ParquetRows(schema, columns))
    if options.protocol == "csv":
        lines = CsvLines(schema, columns, options)
        return TextEncoder(lines, lines, options)
    line_format = CanalJson if options.protocol == "canal-json" else DebeziumJson
    whole, keys_only = line_format(schema, columns, options), line_format(schema, key_columns, options)
    return TextEncoder(whole, keys_only, options)


def header_of(schema: SchemaVersion, options: EncoderOptions) -> bytes:
    """Return what comes before the first line of a file."""
    if options.protocol != "csv":
        return b""
    header = CsvLines(schema, output_columns(schema, options), options).header()
    return compress(header, options.compression)
