"""Arrow batches that are kept in order, beyond memory.

`SpillQueue` is a queue on disk of tuples with batches, written by one thread and read by another. It consists
of several files, so that read ones are removed while more is written. `SpillTable` collects batches and then
gives them as one table: in memory while they are few, else in a mapped file.
"""

import os
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa

from penstock import metrics
from penstock.durable_files import PRIVATE_FILE, create_private, make_private_folder
from penstock.errors import Unavailable

T = TypeVar("T", bound=tuple[Any, ...])

SEGMENT_BYTES = 64 << 20

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(slots=True)
class _ScratchFile:
    """One file, with the number of its items that were not taken yet."""

    path: Path
    descriptor: int
    nbytes: int = 0
    unread: int = 0


@dataclass(frozen=True, slots=True)
class _StoredBatch:
    """A batch on disk: its bytes, and their checksum, which stays in memory."""

    nbytes: int
    checksum: int


@dataclass(frozen=True, slots=True)
class _QueuedItem:
    """The place of an item: its batches lie one after the other from `offset` on."""

    segment: _ScratchFile
    offset: int
    items: tuple[object, ...]
    """The values of the item; in place of a batch, its place."""
    batches: tuple[bool, ...]
    """Which of the values are batches."""


class SpillQueue(Generic[T]):
    """A queue of tuples in its own folder: their batches are on disk, their other values in memory.

    `build` makes an item from its values. `append` and `take` raise OSError when the disk fails; `take`
    raises Unavailable when the disk gives other bytes than it was given.
    """

    def __init__(
        self, folder: Path, build: Callable[[Iterable[Any]], T], *, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self._folder = folder
        self._build = build
        self._segment_bytes = segment_bytes
        self._entries: deque[_QueuedItem] = deque()
        self._segments: list[_ScratchFile] = []
        """Files in order; the last one is being written."""
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._closed = False

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return sum(segment.nbytes for segment in tuple(self._segments))

    def append(self, item: T) -> None:
        """Add an item at the end; do nothing once the queue is closed."""
        batches = tuple(isinstance(value, pa.RecordBatch) for value in item)
        values = [
            _encode_batch(value) if is_batch else value for value, is_batch in zip(item, batches, strict=True)
        ]
        buffers = [value for value, is_batch in zip(values, batches, strict=True) if is_batch]
        items = tuple(
            _StoredBatch(value.size, zlib.crc32(value)) if is_batch else value
            for value, is_batch in zip(values, batches, strict=True)
        )
        with self._lock:
            if self._closed:
                return
            segment = self._writable()
            offset = segment.nbytes
            for buffer in buffers:
                _write(segment.descriptor, buffer, segment.nbytes)
                segment.nbytes += buffer.size
            segment.unread += 1
            self._entries.append(_QueuedItem(segment, offset, items, batches))
            metrics.JOBS_SPOOL_BYTES.inc(segment.nbytes - offset)

    def take(self) -> T | None:
        """Take and return the first item; return None when there is none at the moment."""
        with self._lock:
            if not self._entries:
                return None
            entry = self._entries.popleft()
            item = self._build(_values(entry))
            entry.segment.unread -= 1
            if not entry.segment.unread and entry.segment is not self._segments[-1]:
                self._remove(entry.segment)
            return item

    @property
    def empty(self) -> bool:
        """Whether everything was taken."""
        return not self._entries

    def close(self) -> None:
        """Remove the files. Any thread may call it, also more than once."""
        with self._lock:
            self._closed = True
            self._entries.clear()
            for segment in list(self._segments):
                self._remove(segment)

    def _writable(self) -> _ScratchFile:
        if self._segments and self._segments[-1].nbytes < self._segment_bytes:
            return self._segments[-1]
        make_private_folder(self._folder)
        path = self._folder / f"{next(self._numbers):06}.arrow"
        segment = _ScratchFile(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE_FILE))
        finished = [earlier for earlier in self._segments if not earlier.unread]
        self._segments.append(segment)
        for earlier in finished:
            self._remove(earlier)
        return segment

    def _remove(self, segment: _ScratchFile) -> None:
        self._segments.remove(segment)
        os.close(segment.descriptor)
        segment.path.unlink(missing_ok=True)
        metrics.JOBS_SPOOL_BYTES.dec(segment.nbytes)


def _values(entry: _QueuedItem) -> Iterator[object]:
    offset = entry.offset
    for value, is_batch in zip(entry.items, entry.batches, strict=True):
        if is_batch:
            assert isinstance(value, _StoredBatch)
            yield _read(entry.segment, offset, value)
            offset += value.nbytes
        else:
            yield value


def _encode_batch(batch: pa.RecordBatch) -> pa.Buffer:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    return out.getvalue()


def _read(segment: _ScratchFile, offset: int, stored: _StoredBatch) -> pa.RecordBatch:
    data = os.pread(segment.descriptor, stored.nbytes, offset)
    if zlib.crc32(data) != stored.checksum:
        raise Unavailable(f"spool file {segment.path} was damaged on the disk; the work is tried again")
    return pa.ipc.open_stream(data).read_next_batch()


def _write(descriptor: int, data: pa.Buffer, offset: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(descriptor, left, offset)
        left, offset = left[written:], offset + written


SPOOL_BYTES = 64 << 20
"""Memory of one `SpillTable` before its rows go to disk."""


class SpillTable:
    """Takes batches of one schema, then gives them as one table, in the same order. For one thread.

    `finish` removes the name of the file: its space is freed together with the table.
    """

    def __init__(self, schema: pa.Schema, path: Path, *, memory_bytes: int = SPOOL_BYTES) -> None:
        self._schema = schema
        self._path = path
        self._memory_bytes = memory_bytes
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._writer: pa.RecordBatchFileWriter | None = None

    @property
    def spilled(self) -> bool:
        """Whether rows are on disk."""
        return self._writer is not None

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows; raise OSError when the disk fails."""
        if not batch.num_rows:
            return
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes > self._memory_bytes:
            self._spill()

    def _spill(self) -> None:
        if self._writer is None:
            create_private(self._path)
            self._writer = pa.ipc.new_file(str(self._path), self._schema)
        for batch in self._held:
            self._writer.write_batch(batch)
        self._held, self._held_bytes = [], 0

    def finish(self) -> pa.Table:
        """Return all rows. Add nothing afterwards."""
        if self._writer is None:
            return pa.Table.from_batches(self._held, self._schema)
        self._spill()
        self._writer.close()
        rows = pa.ipc.open_file(pa.memory_map(str(self._path))).read_all()
        self._path.unlink()
        return rows

    def discard(self) -> None:
        """Release everything. A table that `finish` returned stays valid."""
        if self._writer is not None:
            self._writer.close()
        self._path.unlink(missing_ok=True)
