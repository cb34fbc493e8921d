"""Parquet files of a copy: what is known of them, where they are kept, and their rows.

How a stream of rows becomes Parquet files of about one size.
"""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.columnar.key_order import chunk_rows
from penstock.consumers.schema_evolution import shaped
from penstock.errors import Invalid
from penstock.object_storage import STAGING, STAGING_LOCK, ObjectStorage

__all__ = [
    "FILE_BYTES",
    "STRAY_MS",
    "DataFile",
    "FileStore",
    "FileWriter",
    "WrittenFile",
    "check_only_attempts",
    "read_rows",
    "remove_half_written",
    "with_bounds",
]


STRAY_MS = 86_400_000
"""How old files are at least that belong to nothing when they are removed: nobody is still writing them."""
_FOOTERS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a copy. All values of the key's first column are from `lowest` to `highest`, or NULL."""

    path: str
    rows: int
    nbytes: int
    lowest: Any = field(default=None, repr=False)
    """None when it is not known, or there is no value."""
    highest: Any = field(default=None, repr=False)
    nulls: bool = True
    """Whether the key's first column may be NULL: a zero date is."""
    origin: Any = field(default=None, repr=False, compare=False)
    """What the format knows it by."""

    @property
    def bounded(self) -> bool:
        """Whether it is known where its keys are."""
        return self.lowest is not None and self.highest is not None


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that was just written, and belongs to nothing yet."""

    path: str
    nbytes: int
    footer: pq.FileMetaData = field(repr=False)

    def file(self, key: str) -> DataFile:
        """What is known of it, by the key's first column."""
        return DataFile(self.path, self.footer.num_rows, self.nbytes, *_bounds(self.footer, key))


class FileStore(Protocol):
    """Where files are, by paths relative to the copy; penstock.object_storage.Storage is one.

    A written file is durable and visible on return. Raises Unavailable for what may pass.
    """

    def write(self, path: str, data: bytes) -> None:
        """Write a file."""

    def open(self, path: str) -> pa.NativeFile:
        """Open a file for reading by range."""

    def names(self, folder: str) -> list[str]:
        """The paths of all files in a folder."""

    def delete(self, path: str) -> None:
        """Remove a file; one that is not there is removed already."""


def read_rows(store: FileStore, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a file, some at a time, in columns that may have come later: those are NULL."""
    with store.open(path) as opened:
        file = pq.ParquetFile(opened)
        there = set(file.schema_arrow.names)
        wanted = [name for name in schema.names if name in there]
        nbytes = sum(file.metadata.row_group(at).total_byte_size for at in range(file.num_row_groups))
        for batch in file.iter_batches(chunk_rows(file.metadata.num_rows, nbytes), columns=wanted):
            yield shaped(batch, schema)


def check_only_attempts(store: FileStore, folder: str, place: str) -> None:
    """Raise Invalid when a place that should be empty has more than what attempts of jobs left there."""
    ours = re.compile(rf"{STAGING}.*|{folder}/\d+/[0-9a-f]{{12}}-[0-9-]+\.parquet")
    if any(not ours.fullmatch(path) for path in store.names("")):
        raise Invalid(f"{place} has files that are not Penstock's; give an empty place, or remove them")


def remove_half_written(storage: ObjectStorage, now_ms: int) -> None:
    """Remove what writers that were killed have left of files in a local directory."""
    for each in storage.list_objects(STAGING):
        if each.path != STAGING_LOCK and each.modified_ms < now_ms - STRAY_MS:
            storage.delete(each.path)


def with_bounds(store: FileStore, files: Sequence[DataFile], key: str) -> list[DataFile]:
    """Files with what their footers say of a column, where it is not known."""

    def looked(file: DataFile) -> DataFile:
        if file.bounded:
            return file
        with store.open(file.path) as opened:
            lowest, highest, nulls = _bounds(pq.ParquetFile(opened).metadata, key)
        return replace(file, lowest=lowest, highest=highest, nulls=nulls)

    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        return list(pool.map(looked, files))


def _bounds(footer: pq.FileMetaData, key: str) -> tuple[Any, Any, bool]:
    """The least and the greatest value of a column, and whether it may be NULL.

    (None, None, True) where the footer does not say.
    """
    paths = [footer.schema.column(place).path for place in range(footer.num_columns)]
    place = paths.index(key) if key in paths else -1
    least: list[Any] = []
    most: list[Any] = []
    nulls = False
    for group in range(footer.num_row_groups):
        statistics = footer.row_group(group).column(place).statistics if place >= 0 else None
        if statistics is None or not statistics.has_min_max:
            return None, None, True
        least.append(statistics.min)
        most.append(statistics.max)
        nulls |= statistics.null_count != 0
    return min(least, default=None), max(most, default=None), nulls


FILE_BYTES = 64 << 20
"""Bytes of rows in memory that make a file; on storage it is some times smaller."""
GROUP_BYTES = 16 << 20
"""Bytes of rows in memory that make a row group."""


class FileWriter:
    """Cuts rows into files. `schema` has, beside the columns, what a format wants of its files.

    A file that is full ends when there are rows for half of another: else each time that it is written again
    with few rows more, there would be one small file more. Names are `folder/name-00000.parquet` and so on:
    two writers of one folder need two names.
    """

    def __init__(
        self,
        store: FileStore,
        schema: pa.Schema,
        *,
        folder: str,
        name: str,
        written: list[WrittenFile] | None = None,
        file_bytes: int | None = None,
    ) -> None:
        self.written = [] if written is None else written
        self._store = store
        self._schema = schema
        self._prefix = f"{folder}/{name}"
        self._file_bytes = file_bytes or FILE_BYTES
        self._number = 0
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._begin()

    def _begin(self) -> None:
        self._bytes = 0
        self._output = pa.BufferOutputStream()
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: Sequence[pa.RecordBatch]) -> None:
        """Add rows; those of one call are no larger than a file should be."""
        for batch in rows:
            if batch.num_rows:
                self._held.append(batch)
                self._held_bytes += batch.nbytes
        if self._bytes >= self._file_bytes and self._held_bytes >= self._file_bytes // 2:
            self._end()
        if self._bytes < self._file_bytes and self._held_bytes >= GROUP_BYTES:
            self._write_held()

    def cut(self) -> None:
        """End the current file: rows that come belong to another stretch of keys."""
        self._write_held()
        self._end()

    def _write_held(self) -> None:
        if not self._held:
            return
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._output, self._schema, compression="zstd")
        rows = pa.Table.from_batches(
            [pa.RecordBatch.from_arrays(each.columns, schema=self._schema) for each in self._held]
        )
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._bytes += self._held_bytes
        self._held, self._held_bytes = [], 0

    def _end(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        data = self._output.getvalue()
        path = f"{self._prefix}-{self._number:05}.parquet"
        self._store.write(path, data.to_pybytes())
        self.written.append(WrittenFile(path, data.size, self._writer.writer.metadata))
        self._number += 1
        self._begin()
