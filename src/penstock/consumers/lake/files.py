"""Parquet files of a copy: what is known of them, where they are kept, and their rows."""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.consumers.lake.key_order import chunk_rows
from penstock.consumers.lakeschema import shaped
from penstock.errors import Invalid
from penstock.object_storage import STAGING, STAGING_LOCK, ObjectStorage

__all__ = [
    "STRAY_MS",
    "DataFile",
    "FileStore",
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
    for each in storage.listed(STAGING):
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
