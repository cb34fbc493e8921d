"""The write-ahead log of one capture: raw batches of all its tables, on the local disk.

One thread writes. It takes everything that is queued (up to a bound), writes it, forces it to the disk once,
and only then calls back: a group commit. When a write or a sync fails, the log is failed for good: nothing
more is acknowledged, since nobody can tell what the disk holds; a restart reads it and goes on.
"""

import fcntl
import logging
import os
import threading
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa

from penstock import metrics
from penstock.clock import SYSTEM, Clock
from penstock.errors import Corrupt, Invalid, PenstockError, Unavailable
from penstock.eventstore import frames, paths
from penstock.eventstore.frames import FrameKind
from penstock.eventstore.retention import Retention
from penstock.eventstore.storage import sync_folder

_log = logging.getLogger(__name__)

_GROUP_BYTES = 16 * 1024 * 1024
_VECTORS = 512  # buffers of one writev call; the kernel takes 1024
_RESOLVED_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Location:
    """Where a frame is, for reading it again."""

    segment: int
    offset: int


@dataclass(frozen=True, slots=True)
class _Item:
    kind: FrameKind
    table_id: int
    payload: pa.Buffer | bytes
    payload_sum: int
    max_ts: int
    stored: Callable[[Location], None]


Replay = Callable[[frames.Frame, Location], None]


class Wal:
    """See the module. `append` may be called from any thread."""

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int,
        queue_bytes: int,
        failed: Callable[[PenstockError], None],
        clock: Clock = SYSTEM,
        sync: Callable[[int], None] = os.fdatasync,
    ) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._queue_bytes = queue_bytes
        self._on_failure = failed
        self._clock = clock
        self._sync = sync
        self._lock = threading.Condition()
        self._queue: deque[_Item] = deque()
        self._queued_bytes = 0
        self._resolved: dict[int, int] = {}  # newest of every table
        self._unwritten: dict[int, int] = {}  # those not in the log yet
        self._closing = False
        self._failure: PenstockError | None = None
        self._retention = Retention()
        self._sizes: dict[int, int] = {}
        self._maps: dict[int, pa.Buffer] = {}
        self._group = 0
        self._segment = 0
        self._at = 0
        self._empty_at = 0
        self._file: IO[bytes] | None = None
        self._owner: IO[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-wal", daemon=True)

    def start(self, replay: Replay) -> None:
        """Replay what the disk holds, oldest first, then accept appends.

        The torn end of the last segment is cut off. Raises Corrupt when acknowledged frames are damaged,
        Invalid when the folder cannot be used.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._owner = (self._folder / "LOCK").open("wb")
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Invalid(f"log {self._folder} is used by another process; give each its own data") from error
        except OSError as error:
            raise Invalid(
                f"log {self._folder} cannot be used ({error.strerror}); check capture.data"
            ) from error
        segments = paths.wal_segments(self._folder)
        free: list[int] = []
        for number, path in segments:
            free += self._replay_segment(number, path, replay, last=number == segments[-1][0])
        self._begin_segment(segments[-1][0] + 1 if segments else 1)
        self._remove(free)
        self._thread.start()

    def _replay_segment(self, number: int, path: Path, replay: Replay, *, last: bool) -> list[int]:
        """Replay one segment; return the earlier ones that turned out to be free."""
        data = _map(path)
        if not frames.has_segment_header(data, number):
            if not last:
                raise Corrupt(f"log segment {path} has no header; keep it for inspection")
            _log.warning("log segment without a header removed", extra={"path": str(path)})
            path.unlink()
            return []
        scan = frames.scan_segment(data)
        if scan.end < data.size:
            if scan.damaged or not last:
                raise Corrupt(f"log segment {path} is damaged at offset {scan.end}; keep it for inspection")
            _cut(path, scan.end)
            _log.warning(
                "torn end of the log cut off",
                extra={"path": str(path), "offset": scan.end, "bytes": data.size - scan.end},
            )
        with self._lock:
            self._sizes[number] = scan.end
            free = self._retention.begin(number)
        for frame in scan.frames:
            self._group = frame.group
            if frame.kind is FrameKind.RESOLVED:
                self._replay_resolved(frame)
            else:
                if frame.kind is FrameKind.FORGET:
                    self._resolved.pop(frame.table_id, None)
                    free += self._retention.forget(frame.table_id)
                replay(frame, Location(number, frame.offset))
        return free

    def _replay_resolved(self, frame: frames.Frame) -> None:
        # A segment's first frame states every table's resolved-ts. What older segments say beyond it is void:
        # the rows it speaks of, or the word to forget them, may have gone with a segment in between.
        if frame.offset == frames.SEGMENT_HEADER_BYTES:
            self._resolved.clear()
        self._resolved |= frames.decode_resolved(frame)

    def resolved(self) -> dict[int, int]:
        """The newest resolved timestamp recorded for each table."""
        with self._lock:
            return dict(self._resolved)

    def keep(self, location: Location, table_id: int, max_ts: int) -> None:
        """Say during replay that a frame's changes up to `max_ts` are still needed."""
        with self._lock:
            self._retention.add(location.segment, table_id, max_ts)

    def append(
        self, table_id: int, batch: pa.RecordBatch, max_ts: int, stored: Callable[[Location], None]
    ) -> None:
        """Queue a raw batch; `stored` is called on the log's thread once it is on the disk.

        Blocks while the queue is full; a batch larger than the queue enters alone. Raises what failed the
        log.
        """
        payload = frames.encode_rows(batch)
        self._enqueue(
            _Item(FrameKind.ROWS, table_id, payload, zlib.crc32(payload), max_ts, stored), payload.size
        )

    def mark_resolved(self, table_id: int, ts: int) -> None:
        """Record a resolved timestamp with the next group, or within a second; never blocks."""
        with self._lock:
            self._resolved[table_id] = ts
            if not self._unwritten:
                self._lock.notify_all()
            self._unwritten[table_id] = ts

    def forget(self, table_id: int) -> None:
        """Void everything of a table; on return that is on the disk. Raises what failed the log."""
        done = threading.Event()
        with self._lock:
            self._resolved.pop(table_id, None)
            self._unwritten.pop(table_id, None)
        self._enqueue(_Item(FrameKind.FORGET, table_id, b"", 0, 0, lambda _: done.set()), 0)
        while not done.wait(timeout=0.1):
            self._check()
        with self._lock:
            free = self._retention.forget(table_id)
        self._remove(free)

    def flushed(self, table_id: int, flushed_ts: int) -> None:
        """Changes of a table up to `flushed_ts` are not needed any more: segments may go."""
        with self._lock:
            free = self._retention.flushed(table_id, flushed_ts)
        self._remove(free)

    def load(self, location: Location) -> pa.RecordBatch:
        """Read a raw batch again; raise Unavailable when its segment has gone (its rows were flushed)."""
        with self._lock:
            data = self._maps.get(location.segment)
            if data is None or data.size < self._sizes.get(location.segment, 0):
                try:
                    data = _map(paths.wal_segment(self._folder, location.segment))
                except FileNotFoundError as error:
                    raise Unavailable(
                        "rows of the log were flushed meanwhile; plan the read again"
                    ) from error
                self._maps[location.segment] = data
        frame = frames.read_frame(data, location.offset)
        if frame is None:
            raise Corrupt(f"log segment {location.segment} is damaged at offset {location.offset}")
        return frames.decode_rows(frame)

    @property
    def disk_bytes(self) -> int:
        """Bytes of all segments."""
        with self._lock:
            return sum(self._sizes.values())

    def close(self) -> None:
        """Write what is queued, then stop. Safe to call twice."""
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        for file in (self._file, self._owner):
            if file is not None:
                file.close()

    def _check(self) -> None:
        if self._failure is not None:
            raise Unavailable(f"the log has failed ({self._failure}); restart the capture") from self._failure
        if self._closing and not self._thread.is_alive():
            raise Unavailable("the log is closed")

    def _enqueue(self, item: _Item, weight: int) -> None:
        with self._lock:
            while (
                self._queued_bytes and self._queued_bytes + weight > self._queue_bytes and not self._failure
            ):
                self._lock.wait()
            self._check()
            if self._closing:
                raise Unavailable("the log is closed")
            self._queue.append(item)
            self._queued_bytes += weight
            self._lock.notify_all()

    def _run(self) -> None:
        try:
            while True:
                group, resolved = self._next_group()
                if not group and not resolved:
                    return
                places = self._write_group(group, resolved)
                for item, place in zip(group, places, strict=True):
                    item.stored(place)
        except PenstockError as error:
            self._fail(error)
        except OSError as error:
            self._fail(
                Unavailable(f"log {self._folder} cannot be written ({error.strerror}); free or mend the disk")
            )
        except Exception as error:
            _log.exception("a callback of the log failed")
            self._fail(Unavailable(f"a callback of the log failed ({type(error).__name__})"))
            raise

    def _fail(self, error: PenstockError) -> None:
        with self._lock:
            self._failure = error
            self._lock.notify_all()
        self._on_failure(error)

    def _next_group(self) -> tuple[list[_Item], dict[int, int]]:
        """Wait for work; nothing at all means that the log is closed and written."""
        with self._lock:
            while not self._queue and not self._closing:
                if self._unwritten:
                    self._lock.wait_for(lambda: self._queue or self._closing, timeout=_RESOLVED_EVERY_S)
                    break
                self._lock.wait()
            group: list[_Item] = []
            weight = 0
            while self._queue and (not group or weight + len(self._queue[0].payload) <= _GROUP_BYTES):
                item = self._queue.popleft()
                weight += len(item.payload)
                group.append(item)
            resolved, self._unwritten = self._unwritten, {}
            return group, resolved

    def _write_group(self, group: list[_Item], resolved: dict[int, int]) -> list[Location]:
        started = self._clock.monotonic()
        weight = sum(len(item.payload) for item in group)
        if self._at > self._empty_at and self._at + weight > self._segment_bytes:
            self._begin_segment(self._segment + 1)
        items = group
        if resolved:
            payload = frames.encode_resolved(resolved)
            items = [*group, _Item(FrameKind.RESOLVED, 0, payload, zlib.crc32(payload), 0, _ignore)]
        places = self._write(items)
        with self._lock:
            for item in group:
                if item.kind is FrameKind.ROWS:
                    self._retention.add(self._segment, item.table_id, item.max_ts)
            self._sizes[self._segment] = self._at
            self._queued_bytes -= weight
            self._lock.notify_all()
        metrics.EVENTSTORE_WAL_WRITE_SECONDS.observe(self._clock.monotonic() - started)
        metrics.EVENTSTORE_WAL_GROUP_BYTES.observe(weight)
        metrics.EVENTSTORE_WAL_BYTES.set(self.disk_bytes)
        return places[: len(group)]

    def _write(self, items: list[_Item]) -> list[Location]:
        """Write one group and force it to the disk."""
        assert self._file is not None
        self._group += 1
        places: list[Location] = []
        vectors: list[pa.Buffer | bytes] = []
        for index, item in enumerate(items):
            length = len(item.payload)
            header = frames.encode_header(
                item.kind, item.table_id, length, item.payload_sum, group=self._group, first=index == 0
            )
            places.append(Location(self._segment, self._at))
            vectors += (header, item.payload, bytes(frames.padding(length)))
            self._at += len(header) + length + frames.padding(length)
        handle = self._file.fileno()
        for start in range(0, len(vectors), _VECTORS):
            _write_all(handle, vectors[start : start + _VECTORS])
        self._sync(handle)
        return places

    def _begin_segment(self, number: int) -> None:
        """Open the next segment. It starts with every table's resolved-ts, so that older segments may go."""
        if self._file is not None:
            self._file.close()
        path = paths.wal_segment(self._folder, number)
        self._file = path.open("xb", buffering=0)
        self._file.write(frames.segment_header(number))
        self._sync(self._file.fileno())
        sync_folder(self._folder)
        self._segment, self._at = number, frames.SEGMENT_HEADER_BYTES
        with self._lock:
            self._sizes[number] = self._at
            free = self._retention.begin(number)
            payload = frames.encode_resolved(self._resolved)
        self._write([_Item(FrameKind.RESOLVED, 0, payload, zlib.crc32(payload), 0, _ignore)])
        self._empty_at = self._at
        self._remove(free)

    def _remove(self, segments: list[int]) -> None:
        for number in segments:
            with self._lock:
                self._maps.pop(number, None)
                self._sizes.pop(number, None)
            paths.wal_segment(self._folder, number).unlink(missing_ok=True)


def _ignore(_: Location) -> None:
    return


def _map(path: Path) -> pa.Buffer:
    if path.stat().st_size == 0:
        return pa.py_buffer(b"")
    with pa.memory_map(str(path), "r") as file:
        return file.read_buffer()


def _cut(path: Path, size: int) -> None:
    with path.open("rb+") as file:
        file.truncate(size)
        os.fsync(file.fileno())


def _write_all(handle: int, vectors: list[pa.Buffer | bytes]) -> None:
    written = os.writev(handle, vectors)
    total = sum(len(vector) for vector in vectors)
    if written < total:  # a short write: go on with what is left
        rest = b"".join(bytes(vector) for vector in vectors)[written:]
        while rest:
            rest = rest[os.write(handle, rest) :]
