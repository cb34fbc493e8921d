"""Files of the log, which of them may be removed, and what the log is worth beside a manifest.

`SegmentFile` and `read_segment` are the files: one is written at a time, any may be read again. `Retention`
decides which segments may be removed, and `LogCover` from where a table goes on; both are pure. The log and
the manifest are on different disks, so one of them may be a copy of an earlier time, restored from a backup.
In any case a table goes on from a timestamp up to which every change is in objects or in the log.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import pyarrow as pa

from penstock.durable_files import open_private, sync_data, sync_folder
from penstock.errors import Corrupt
from penstock.eventstore import paths
from penstock.eventstore.log import frames
from penstock.eventstore.log.frames import Frame, FrameKind

_log = logging.getLogger(__name__)

_VECTORS = 512  # buffers of one writev call; the kernel takes 1024

Sync = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class LogLocation:
    """The place of a frame, for reading it again."""

    segment: int
    offset: int


@dataclass(frozen=True, slots=True)
class Record:
    """A frame to be written."""

    kind: FrameKind
    table_id: int
    payload: pa.Buffer | bytes
    payload_sum: int


class SegmentFile:
    """The segment that is being written. Every group is on the disk when `write` returns."""

    def __init__(self, folder: Path, number: int, sync: Sync) -> None:
        self.number = number
        self._sync = sync
        self._file = open_private(paths.wal_segment(folder, number), "xb", buffering=0)
        try:
            self._file.write(frames.segment_header(number))  # synced with the first group
            sync_folder(folder)
        except OSError:
            self._file.close()
            raise
        self.size = frames.SEGMENT_HEADER_BYTES

    def write(self, records: Sequence[Record], *, group: int) -> list[LogLocation]:
        """Write one group; return where its frames are. After OSError the content of the disk is unknown."""
        places: list[LogLocation] = []
        vectors: list[pa.Buffer | bytes] = []
        for index, record in enumerate(records):
            length = len(record.payload)
            header = frames.encode_header(
                record.kind, record.table_id, length, record.payload_sum, group=group, first=index == 0
            )
            places.append(LogLocation(self.number, self.size))
            vectors += (header, record.payload, bytes(frames.padding(length)))
            self.size += len(header) + length + frames.padding(length)
        handle = self._file.fileno()
        for start in range(0, len(vectors), _VECTORS):
            _write_all(handle, vectors[start : start + _VECTORS])
        self._sync(handle)
        return places

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_segment(path: Path, number: int, *, last: bool) -> tuple[list[Frame], int] | None:
    """Return the frames of a segment and its size; None when its creation was cut short, and it is removed.

    The torn end of the last segment is cut off. On return the disk has what is returned: the process that
    wrote it may have been killed before it could sync it. Raises Corrupt for any other damage.
    """
    if path.is_symlink():
        raise Corrupt(f"log segment {path} is a symbolic link; put the file itself in its place")
    if not path.is_file():  # to open a FIFO would take for ever
        raise Corrupt(f"log segment {path} is no regular file; put the file itself in its place")
    data = map_file(path)
    if not frames.has_segment_header(data, number):
        if not last or not frames.is_unfinished(data, number):
            raise Corrupt(f"log segment {path} has no header; keep it for inspection")
        _log.warning("log segment without a header removed", extra={"path": str(path)})
        path.unlink()
        sync_folder(
            path.parent
        )  # else it may come back beside the next segment, when it is no longer the last
        return None
    with name_segment(path):
        scan = frames.scan_segment(data)
    torn = scan.end < data.size
    if torn and (scan.damaged or not last):
        raise Corrupt(f"log segment {path} is damaged at offset {scan.end}; keep it for inspection")
    with path.open("rb+") as file:
        if torn:
            file.truncate(scan.end)
        sync_data(file.fileno())
    if torn:
        _log.warning(
            "torn end of the log cut off",
            extra={"path": str(path), "offset": scan.end, "bytes": data.size - scan.end},
        )
    return scan.frames, scan.end


@contextmanager
def name_segment(path: Path) -> Iterator[None]:
    """Add the path of a segment to a Corrupt of what is in it."""
    try:
        yield
    except Corrupt as error:
        raise Corrupt(f"log segment {path}: {error}") from error


def map_file(path: Path) -> pa.Buffer:
    """Map a file's bytes as they are now; they stay readable when the file is removed."""
    if path.stat().st_size == 0:
        return pa.py_buffer(b"")
    with pa.memory_map(str(path), "r") as file:
        return file.read_buffer()


def _write_all(handle: int, vectors: list[pa.Buffer | bytes]) -> None:
    written = os.writev(handle, vectors)
    if written < sum(len(vector) for vector in vectors):  # a short write: write the rest
        rest = b"".join(bytes(vector) for vector in vectors)[written:]
        while rest:
            rest = rest[os.write(handle, rest) :]


@dataclass(slots=True)
class Retention:
    """What each segment is still needed for.

    A segment is free when it is sealed and every table in it has been flushed up to its newest change there.
    Segments become free in any order. `cut` has, for every table with changes in a segment that became free,
    the newest of those changes: up to there the log may miss changes, however far the table is flushed.
    """

    cut: dict[int, int] = field(default_factory=dict)  # table -> commit-ts
    _newest: dict[int, dict[int, int]] = field(default_factory=dict)  # segment -> table -> newest commit-ts
    _needed: dict[int, set[int]] = field(default_factory=dict)  # segment -> tables not flushed up to there
    _active: int = 0

    def begin(self, segment: int) -> list[int]:
        """Start a segment, sealing the one before; return the segments that are free now."""
        self._newest[segment], self._needed[segment] = {}, set()
        self._active = segment
        return self._collect()

    def add(self, segment: int, table_id: int, max_ts: int) -> None:
        """Record that a segment has changes of a table up to `max_ts`."""
        tables = self._newest[segment]
        tables[table_id] = max(max_ts, tables.get(table_id, 0))
        self._needed[segment].add(table_id)

    def mark_flushed(self, table_id: int, flushed_ts: int) -> list[int]:
        """Record that a table's changes up to `flushed_ts` are in objects; return the free segments."""
        for segment, needed in self._needed.items():
            if table_id in needed and self._newest[segment][table_id] <= flushed_ts:
                needed.discard(table_id)
        return self._collect()

    def forget(self, table_id: int) -> list[int]:
        """Forget a table, none of whose changes count any more; return the segments that are free now."""
        self.cut.pop(table_id, None)
        for segment, needed in self._needed.items():
            needed.discard(table_id)
            self._newest[segment].pop(table_id, None)
        return self._collect()

    def _collect(self) -> list[int]:
        free = [number for number, needed in self._needed.items() if not needed and number != self._active]
        for number in free:
            del self._needed[number]
            for table_id, newest_ts in self._newest.pop(number).items():
                self.cut[table_id] = max(newest_ts, self.cut.get(table_id, 0))
        return sorted(free)


class Fit(Enum):
    """How the log goes on from a manifest's `flushed_ts`."""

    JOINS = "the log has every change after the objects"
    ENDS = "the log has no change after the objects, and begins anew there"
    GAP = "the log misses changes after the objects, which must be pulled again"


@dataclass(frozen=True, slots=True)
class LogCover:
    """The log has every change of a table in (cut_ts, resolved_ts], and some or none of the others."""

    cut_ts: int = 0
    resolved_ts: int = 0

    def fit_to(self, flushed_ts: int) -> Fit:
        """Return how the log fits to objects that hold every change up to `flushed_ts`."""
        if self.resolved_ts <= flushed_ts:
            return Fit.ENDS
        return Fit.JOINS if self.cut_ts <= flushed_ts else Fit.GAP
