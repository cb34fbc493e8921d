"""The write-ahead log of one capture: raw batches of all its tables, on the local disk.

One thread writes. It takes everything that is queued (up to a bound), writes it, forces it to the disk once,
and only then calls back: a group commit. When a write or a sync fails, the log is failed for good: nothing
more is acknowledged, since nobody can tell what the disk holds; a restart reads it and goes on.

Invariant: every change of a table between its cut-ts and its resolved-ts, as the disk states them, is on the
disk. So a cut-ts is written before the segments that it speaks of go, and before a resolved-ts above it.
"""

import fcntl
import logging
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
from penstock.durable_files import make_folder, sync_data
from penstock.errors import Corrupt, Invalid, PenstockError, Unavailable
from penstock.eventstore import paths
from penstock.eventstore.log import frames
from penstock.eventstore.log.frames import Frame, FrameKind
from penstock.eventstore.log.segments import (
    LogCover,
    LogLocation,
    Record,
    Retention,
    SegmentFile,
    Sync,
    map_file,
    read_segment,
)

__all__ = ["Wal"]

_log = logging.getLogger(__name__)

_GROUP_BYTES = 16 * 1024 * 1024
_RESOLVED_EVERY_S = 1.0

Replay = Callable[[Frame, LogLocation], None]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A record in the queue."""

    record: Record
    max_ts: int
    stored: Callable[[LogLocation], None]


@dataclass(frozen=True, slots=True)
class _Group:
    """What is written together, and who waits for no more than that."""

    items: list[_Waiting]
    resolved: dict[int, int]
    waiting: list[threading.Event]

    def __bool__(self) -> bool:
        return bool(self.items or self.resolved or self.waiting)


class Wal:
    """See the module. Thread-safe, but for `start` and `close`."""

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int,
        queue_bytes: int,
        failed: Callable[[PenstockError], None],
        clock: Clock = SYSTEM,
        sync: Sync = sync_data,
    ) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._queue_bytes = queue_bytes
        self._on_failure = failed
        self._clock = clock
        self._sync = sync
        self._lock = threading.Condition()
        self._queue: deque[_Waiting] = deque()
        self._queued_bytes = 0
        self._resolved: dict[int, int] = {}  # newest of every table
        self._unwritten: dict[int, int] = {}  # those not in the log yet
        self._uncut: set[int] = set()  # tables whose cut-ts is not in the log yet
        self._waiting: list[threading.Event] = []  # for the next group, whatever is in it
        self._closing = False
        self._failure: PenstockError | None = None
        self._retention = Retention()
        self._sizes: dict[int, int] = {}  # of the segments that are needed; their files are there
        self._maps: dict[int, pa.Buffer] = {}
        self._group = 0
        self._segment: SegmentFile | None = None
        self._empty_bytes = 0  # size of a segment without groups
        self._owner: IO[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-wal", daemon=True)

    def start(self, replay: Replay) -> None:
        """Replay the rows and forgets that the disk holds, oldest first, then accept appends.

        The torn end of the last segment is cut off. Raises Corrupt when acknowledged frames are damaged,
        Invalid when the folder cannot be used.
        """
        try:
            make_folder(self._folder)
            self._owner = (self._folder / "LOCK").open("wb")
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._recover(replay)
        except BlockingIOError as error:
            raise Invalid(f"log {self._folder} is used by another process; give each its own data") from error
        except OSError as error:
            raise Invalid(
                f"log {self._folder} cannot be used ({error.strerror}); check capture.data"
            ) from error
        self._thread.start()

    def _recover(self, replay: Replay) -> None:
        segments = paths.wal_segments(self._folder)
        free: list[int] = []
        for number, path in segments:
            found = read_segment(path, number, last=number == segments[-1][0])
            if found is not None:
                free += self._replay_segment(number, *found, replay)
        self._begin_segment(segments[-1][0] + 1 if segments else 1)
        self._remove(free)

    def _replay_segment(self, number: int, found: list[Frame], size: int, replay: Replay) -> list[int]:
        """Replay one segment; return the earlier ones that turned out to be free."""
        with self._lock:
            self._sizes[number] = size
            free = self._retention.begin(number)
        for frame in found:
            self._group = frame.group
            if frame.kind in (FrameKind.RESOLVED, FrameKind.CUT):
                self._replay_marks(frame, whole=frame.group == found[0].group)
                continue
            if frame.kind is FrameKind.FORGET:
                self._resolved.pop(frame.table_id, None)
                free += self._retention.forget(frame.table_id)
            replay(frame, LogLocation(number, frame.offset))
        return free

    def _replay_marks(self, frame: Frame, *, whole: bool) -> None:
        # A segment's first group states every table's marks. What older segments say beyond it is void: the
        # rows it speaks of, or the word to forget them, may have gone with a segment in between.
        marks = self._resolved if frame.kind is FrameKind.RESOLVED else self._retention.cut
        if whole:
            marks.clear()
        marks |= frames.decode_marks(frame)

    def keep(self, location: LogLocation, table_id: int, max_ts: int) -> None:
        """Say during replay that a frame's changes, up to `max_ts`, are needed until they are flushed."""
        with self._lock:
            self._retention.add(location.segment, table_id, max_ts)

    def resolved_by_table(self) -> dict[int, int]:
        """The newest resolved timestamp recorded for each table."""
        with self._lock:
            return dict(self._resolved)

    def cover(self, table_id: int) -> LogCover:
        """What of a table is in the log for certain."""
        with self._lock:
            return LogCover(self._retention.cut.get(table_id, 0), self._resolved.get(table_id, 0))

    def begin(self, table_id: int, ts: int) -> None:
        """Nothing of a table is in the log up to `ts`, and everything will be from there on; never blocks."""
        with self._lock:
            self._retention.cut[table_id] = ts
            self._uncut.add(table_id)

    def append(
        self, table_id: int, batch: pa.RecordBatch, max_ts: int, stored: Callable[[LogLocation], None]
    ) -> None:
        """Queue a raw batch; `stored` is called on the log's thread once it is on the disk.

        Blocks while the queue is full; a batch larger than the queue enters alone. Raises what failed the
        log.
        """
        payload = frames.encode_rows(batch)
        record = Record(FrameKind.ROWS, table_id, payload, zlib.crc32(payload))
        self._enqueue(_Waiting(record, max_ts, stored))

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
        record = Record(FrameKind.FORGET, table_id, b"", zlib.crc32(b""))
        self._enqueue(_Waiting(record, 0, lambda _: done.set()))
        while not done.wait(timeout=0.1):
            self._check_open()
        with self._lock:
            free = self._retention.forget(table_id)
        self._give_up(free)

    def mark_flushed(self, table_id: int, flushed_ts: int) -> None:
        """Changes of a table up to `flushed_ts` are not needed any more: segments may go."""
        with self._lock:
            free = self._retention.mark_flushed(table_id, flushed_ts)
        self._give_up(free)

    def _give_up(self, free: list[int]) -> None:
        """Remove segments, once the disk says what goes with them; if it cannot, they stay for a restart."""
        if not free:
            return
        said = threading.Event()
        with self._lock:
            self._uncut.update(self._retention.cut)
            self._waiting.append(said)
            self._lock.notify_all()
        while not said.wait(timeout=0.1):
            if not self._thread.is_alive():
                return
        self._remove(free)

    def load(self, location: LogLocation) -> pa.RecordBatch:
        """Read a raw batch again; raise Unavailable when its segment has gone (its rows were flushed)."""
        with self._lock:
            size = self._sizes.get(location.segment)
            if size is None:  # it may still have its name: a map would keep its bytes on the disk for ever
                raise Unavailable("rows of the log were flushed meanwhile; plan the read again")
            data = self._maps.get(location.segment)
            if data is None or data.size < size:
                data = self._maps[location.segment] = map_file(
                    paths.wal_segment(self._folder, location.segment)
                )
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
        if self._segment is not None:
            self._segment.close()
        if self._owner is not None:
            self._owner.close()

    def _check_open(self) -> None:
        if self._failure is not None:
            raise Unavailable(f"the log has failed ({self._failure}); restart the capture") from self._failure
        if self._closing and not self._thread.is_alive():
            raise Unavailable("the log is closed")

    def _enqueue(self, item: _Waiting) -> None:
        weight = len(item.record.payload)
        with self._lock:
            while (
                self._queued_bytes and self._queued_bytes + weight > self._queue_bytes and not self._failure
            ):
                self._lock.wait()
            self._check_open()
            if self._closing:
                raise Unavailable("the log is closed")
            self._queue.append(item)
            self._queued_bytes += weight
            self._lock.notify_all()

    def _run(self) -> None:
        try:
            while True:
                group = self._next_group()
                if not group:
                    return
                places = self._write_group(group)
                for item, place in zip(group.items, places, strict=True):
                    item.stored(place)
                for said in group.waiting:
                    said.set()
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

    def _next_group(self) -> _Group:
        """Wait for work; nothing at all means that the log is closed and written."""
        with self._lock:
            while not self._is_due():
                if not self._unwritten:
                    self._lock.wait()
                    continue
                self._lock.wait_for(self._is_due, timeout=_RESOLVED_EVERY_S)
                if self._unwritten:  # else their table was forgotten meanwhile: there is still no work
                    break
            items: list[_Waiting] = []
            weight = 0
            while self._queue and (not items or weight + len(self._queue[0].record.payload) <= _GROUP_BYTES):
                item = self._queue.popleft()
                weight += len(item.record.payload)
                items.append(item)
            group = _Group(items, self._unwritten, self._waiting)
            self._unwritten, self._waiting = {}, []
            return group

    def _is_due(self) -> bool:
        return bool(self._queue or self._waiting or self._closing)

    def _write_group(self, group: _Group) -> list[LogLocation]:
        """Write a group, and the marks after it; return where its items are."""
        started = self._clock.monotonic()
        records = [item.record for item in group.items]
        weight = sum(len(record.payload) for record in records)
        segment = self._segment
        assert segment is not None
        if segment.size > self._empty_bytes and segment.size + weight > self._segment_bytes:
            segment = self._begin_segment(segment.number + 1)
        with self._lock:  # now, so that it is not older than what a segment that has just begun states
            cut = {
                table_id: self._retention.cut[table_id]
                for table_id in self._uncut
                if table_id in self._retention.cut
            }
            self._uncut.clear()
        marks = [*_marks(FrameKind.CUT, cut), *_marks(FrameKind.RESOLVED, group.resolved)]
        self._group += 1
        places = segment.write([*records, *marks], group=self._group)
        with self._lock:
            for item in group.items:
                if item.record.kind is FrameKind.ROWS:
                    self._retention.add(segment.number, item.record.table_id, item.max_ts)
            self._sizes[segment.number] = segment.size
            self._queued_bytes -= weight
            self._lock.notify_all()
        metrics.EVENTSTORE_WAL_WRITE_SECONDS.observe(self._clock.monotonic() - started)
        metrics.EVENTSTORE_WAL_GROUP_BYTES.observe(weight)
        metrics.EVENTSTORE_WAL_BYTES.set(self.disk_bytes)
        return places[: len(records)]

    def _begin_segment(self, number: int) -> SegmentFile:
        """Open the next segment. It starts with every table's marks, so that older segments may go."""
        if self._segment is not None:
            self._segment.close()
        segment = self._segment = SegmentFile(self._folder, number, self._sync)
        with self._lock:
            free = self._retention.begin(number)
            marks = [
                *_marks(FrameKind.CUT, self._retention.cut, always=True),
                *_marks(FrameKind.RESOLVED, self._resolved, always=True),
            ]
        self._group += 1
        segment.write(marks, group=self._group)
        self._empty_bytes = segment.size
        with self._lock:
            self._sizes[number] = segment.size
        self._remove(free)
        return segment

    def _remove(self, segments: list[int]) -> None:
        for number in segments:
            with self._lock:
                self._maps.pop(number, None)
                self._sizes.pop(number, None)
            paths.wal_segment(self._folder, number).unlink(missing_ok=True)


def _marks(kind: FrameKind, marks: dict[int, int], *, always: bool = False) -> list[Record]:
    if not marks and not always:
        return []
    payload = frames.encode_marks(marks)
    return [Record(kind, 0, payload, zlib.crc32(payload))]
