"""Parquet files of a copy: what is known of them, where they are, and how rows are divided into them."""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.columnar.key_order import chunk_rows
from penstock.consumers.schema_evolution import shape_rows
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
"""The least age of files that belong to nothing when they are removed: no writer is that slow."""
_FOOTERS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a copy. All values of the key's first column are from `lowest` to `highest`, or NULL."""

    path: str
    rows: int
    nbytes: int
    lowest: Any = field(default=None, repr=False)
    """None when it is unknown, or there is no value."""
    highest: Any = field(default=None, repr=False)
    nulls: bool = True
    """Whether the key's first column may be NULL: a zero date is."""
    origin: Any = field(default=None, repr=False, compare=False)
    """The format's own object."""

    @property
    def bounded(self) -> bool:
        """Whether its bounds are known."""
        return self.lowest is not None and self.highest is not None


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that was just written, and belongs to no commit yet."""

    path: str
    nbytes: int
    footer: pq.FileMetaData = field(repr=False)

    def file(self, key: str) -> DataFile:
        """Return it with the bounds of the key's first column."""
        return DataFile(self.path, self.footer.num_rows, self.nbytes, *_bounds(self.footer, key))


class FileStore(Protocol):
    """Where files are, by paths relative to the copy; `penstock.object_storage.ObjectStorage` is one.

    A written file is durable and visible on return. Raises Unavailable for errors that may pass.
    """

    def write(self, path: str, data: bytes) -> None:
        """Write a file."""

    def open(self, path: str) -> pa.NativeFile:
        """Open a file for reading by range."""

    def names(self, folder: str) -> list[str]:
        """Return the paths of all files in a folder."""

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""


def read_rows(store: FileStore, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, some at a time; columns that were added later are NULL."""
    with store.open(path) as opened:
        file = pq.ParquetFile(opened)
        present = set(file.schema_arrow.names)
        wanted = [name for name in schema.names if name in present]
        nbytes = sum(file.metadata.row_group(at).total_byte_size for at in range(file.num_row_groups))
        for batch in file.iter_batches(chunk_rows(file.metadata.num_rows, nbytes), columns=wanted):
            yield shape_rows(batch, schema)


def check_only_attempts(store: FileStore, folder: str, place: str) -> None:
    """Raise Invalid when a place that should be empty has more than files of failed attempts."""
    ours = re.compile(rf"{STAGING}.*|{folder}/\d+/[0-9a-f]{{12}}-[0-9-]+\.parquet")
    if any(not ours.fullmatch(path) for path in store.names("")):
        raise Invalid(f"{place} has files that are not Penstock's; give an empty place, or remove them")


def remove_half_written(storage: ObjectStorage, now_ms: int) -> None:
    """Remove what killed writers have left of files in a local directory."""
    for left in storage.list_objects(STAGING):
        if left.path != STAGING_LOCK and left.modified_ms < now_ms - STRAY_MS:
            storage.delete(left.path)


def with_bounds(store: FileStore, files: Sequence[DataFile], key: str) -> list[DataFile]:
    """Return files with the bounds of a column, read from their footers if they are unknown."""

    def read_bounds(file: DataFile) -> DataFile:
        if file.bounded:
            return file
        with store.open(file.path) as opened:
            lowest, highest, nulls = _bounds(pq.ParquetFile(opened).metadata, key)
        return replace(file, lowest=lowest, highest=highest, nulls=nulls)

    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        return list(pool.map(read_bounds, files))


def _bounds(footer: pq.FileMetaData, key: str) -> tuple[Any, Any, bool]:
    """Return the least and the greatest value of a column, and whether it may be NULL.

    (None, None, True) if the footer does not have them.
    """
    paths = [footer.schema.column(place).path for place in range(footer.num_columns)]
    place = paths.index(key) if key in paths else -1
    least: list[Any] = []
    most: list[Any] = []
    nulls = False
    kind = footer.schema.column(place).physical_type if place >= 0 else None
    for group in range(footer.num_row_groups):
        chunk = footer.row_group(group).column(place) if place >= 0 else None
        if chunk is not None and chunk.physical_type != kind:  # asked for statistics, pyarrow would abort
            raise pa.ArrowInvalid(f"chunks of {key} have another type than the column")
        statistics = chunk.statistics if chunk is not None else None
        if statistics is None or not statistics.has_min_max:
            return None, None, True
        least.append(statistics.min)
        most.append(statistics.max)
        nulls |= statistics.null_count != 0
    return min(least, default=None), max(most, default=None), nulls


FILE_BYTES = 64 << 20
"""Bytes of rows in memory that make a file; on storage it is several times smaller."""
GROUP_BYTES = 16 << 20
"""Bytes of rows in memory that make a row group."""


class FileWriter:
    """Divides rows into files. `schema` has, beside the columns, what a format needs in its files.

    A full file ends when there are rows for half of another one: otherwise each rewrite with a few more rows
    would add one small file. Names are `folder/name-00000.parquet` and so on: two writers of one folder need
    two names.
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
        """End the current file: the next rows belong to another range of keys."""
        self._write_held()
        self._end()

    def _write_held(self) -> None:
        if not self._held:
            return
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._output, self._schema, compression="zstd")
        rows = pa.Table.from_batches(
            [pa.RecordBatch.from_arrays(batch.columns, schema=self._schema) for batch in self._held]
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
