"""The write-ahead log of one capture: raw batches of all its tables, on the local disk.

One thread writes. It takes everything that is queued (up to a bound), writes it, forces it to the disk once,
and only then calls back: a group commit. When a write or a sync fails, the log has failed for good: it
acknowledges nothing more, because the content of the disk is unknown. A restart reads the disk and goes on.

Invariant: every change of a table between its cut-ts and its resolved-ts, as the disk has them, is on the
disk. So a cut-ts is written before the segments that it is about are removed, and before a resolved-ts above
it.
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
from penstock.durable_files import make_folder, open_private, sync_data
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
    name_segment,
    read_segment,
)

__all__ = ["Wal"]

_log = logging.getLogger(__name__)

_GROUP_BYTES = 16 * 1024 * 1024
_RESOLVED_EVERY_S = 1.0

Replay = Callable[[Frame, LogLocation], None]


@dataclass(frozen=True, slots=True)
class _QueuedRecord:
    """A record in the queue."""

    record: Record
    max_ts: int
    stored: Callable[[LogLocation], None]


@dataclass(frozen=True, slots=True)
class _CommitGroup:
    """Records that are written together, and the events to set once they are written."""

    items: list[_QueuedRecord]
    resolved: dict[int, int]
    waiting: list[threading.Event]

    def __bool__(self) -> bool:
        return bool(self.items or self.resolved or self.waiting)


class Wal:
    """The log of one folder, which one process uses at a time. Thread-safe, but for `start` and `close`.

    `on_failure` is called once, on the log's thread, with the error that failed the log.
    """

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int,
        queue_bytes: int,
        on_failure: Callable[[PenstockError], None],
        clock: Clock = SYSTEM,
        sync: Sync = sync_data,
    ) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._queue_bytes = queue_bytes
        self._on_failure = on_failure
        self._clock = clock
        self._sync = sync
        self._lock = threading.Condition()
        self._queue: deque[_QueuedRecord] = deque()
        self._queued_bytes = 0
        self._resolved: dict[int, int] = {}  # the newest resolved-ts of every table
        self._unwritten: dict[int, int] = {}  # those that are not in the log yet
        self._uncut: set[int] = set()  # tables whose cut-ts is not in the log yet
        self._waiting: list[threading.Event] = []  # set once the next group is written
        self._closing = False
        self._failure: PenstockError | None = None
        self._retention = Retention()
        self._sizes: dict[int, int] = {}  # of the segments that are needed, whose files exist
        self._maps: dict[int, pa.Buffer] = {}
        self._group = 0
        self._segment: SegmentFile | None = None
        self._empty_bytes = 0  # size of a segment without groups
        self._owner: IO[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-wal", daemon=True)

    def start(self, replay: Replay) -> None:
        """Replay the ROWS and FORGET frames on the disk, oldest first, then accept appends.

        The torn end of the last segment is cut off. Raises Corrupt when acknowledged frames are damaged,
        Invalid when the folder cannot be used.
        """
        try:
            make_folder(self._folder)
            self._owner = open_private(self._folder / "LOCK", "wb")
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
                with name_segment(path):
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
        # A segment's first group has every table's marks. Other marks of older segments are void: the rows
        # that they are about, or the FORGET frame, may have been removed with a segment in between.
        marks = self._resolved if frame.kind is FrameKind.RESOLVED else self._retention.cut
        if whole:
            marks.clear()
        marks |= frames.decode_marks(frame)

    def keep(self, location: LogLocation, table_id: int, max_ts: int) -> None:
        """Record during replay that a frame's changes, up to `max_ts`, are needed until they are flushed."""
        with self._lock:
            self._retention.add(location.segment, table_id, max_ts)

    def resolved_by_table(self) -> dict[int, int]:
        """Return the newest resolved timestamp recorded for each table."""
        with self._lock:
            return dict(self._resolved)

    def cover(self, table_id: int) -> LogCover:
        """Return the range of a table's changes that is in the log for certain."""
        with self._lock:
            return LogCover(self._retention.cut.get(table_id, 0), self._resolved.get(table_id, 0))

    def begin(self, table_id: int, ts: int) -> None:
        """Record that the log has no change of a table up to `ts`, and every one after it; never blocks."""
        with self._lock:
            self._retention.cut[table_id] = ts
            self._uncut.add(table_id)

    def append(
        self, table_id: int, batch: pa.RecordBatch, max_ts: int, stored: Callable[[LogLocation], None]
    ) -> None:
        """Queue a raw batch; `stored` is called on the log's thread once it is on the disk.

        Blocks while the queue is full; a batch larger than the queue enters alone. Raises Unavailable when
        the log has failed or is closed.
        """
        payload = frames.encode_rows(batch)
        record = Record(FrameKind.ROWS, table_id, payload, zlib.crc32(payload))
        self._enqueue(_QueuedRecord(record, max_ts, stored))

    def mark_resolved(self, table_id: int, ts: int) -> None:
        """Record a resolved timestamp with the next group, or within a second; never blocks."""
        with self._lock:
            self._resolved[table_id] = ts
            if not self._unwritten:
                self._lock.notify_all()
            self._unwritten[table_id] = ts

    def forget(self, table_id: int) -> None:
        """Void everything of a table; on return the disk says so. Raises Unavailable when the log failed."""
        done = threading.Event()
        with self._lock:
            self._resolved.pop(table_id, None)
            self._unwritten.pop(table_id, None)
        record = Record(FrameKind.FORGET, table_id, b"", zlib.crc32(b""))
        self._enqueue(_QueuedRecord(record, 0, lambda _: done.set()))
        while not done.wait(timeout=0.1):
            self._check_open()
        with self._lock:
            free = self._retention.forget(table_id)
        self._remove_after_marks(free)

    def mark_flushed(self, table_id: int, flushed_ts: int) -> None:
        """Record that a table's changes up to `flushed_ts` are flushed, and remove free segments."""
        with self._lock:
            free = self._retention.mark_flushed(table_id, flushed_ts)
        self._remove_after_marks(free)

    def _remove_after_marks(self, free: list[int]) -> None:
        """Remove segments once the log has the cut-ts of their tables; else they stay for a restart."""
        if not free:
            return
        written = threading.Event()
        with self._lock:
            self._uncut.update(self._retention.cut)
            self._waiting.append(written)
            self._lock.notify_all()
        while not written.wait(timeout=0.1):
            if not self._thread.is_alive():
                return
        self._remove(free)

    def load(self, location: LogLocation) -> pa.RecordBatch:
        """Read a raw batch again; raise Unavailable when its segment was removed (its rows were flushed)."""
        with self._lock:
            size = self._sizes.get(location.segment)
            if size is None:  # the file may still exist: a map would keep its bytes on the disk for ever
                raise Unavailable("rows of the log were flushed meanwhile; plan the read again")
            data = self._maps.get(location.segment)
            if data is None or data.size < size:
                data = self._maps[location.segment] = map_file(
                    paths.wal_segment(self._folder, location.segment)
                )
        frame = frames.read_frame(data, location.offset)
        if frame is None:
            raise Corrupt(
                f"log segment {location.segment} is damaged at {location.offset}; keep it for inspection"
            )
        return frames.decode_rows(frame)

    @property
    def disk_bytes(self) -> int:
        """Bytes of all segments."""
        with self._lock:
            return sum(self._sizes.values())

    def close(self) -> None:
        """Write what is queued, then stop. Closing twice is fine."""
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

    def _enqueue(self, item: _QueuedRecord) -> None:
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
                for written in group.waiting:
                    written.set()
        except PenstockError as error:
            self._fail(error)
        except OSError as error:
            self._fail(
                Unavailable(
                    f"log {self._folder} cannot be written ({error.strerror}); free or repair the disk"
                )
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

    def _next_group(self) -> _CommitGroup:
        """Wait for work; an empty group means that the log is closed and written."""
        with self._lock:
            while not self._is_due():
                if not self._unwritten:
                    self._lock.wait()
                    continue
                self._lock.wait_for(self._is_due, timeout=_RESOLVED_EVERY_S)
                if self._unwritten:  # else their tables were forgotten meanwhile, and there is still no work
                    break
            items: list[_QueuedRecord] = []
            weight = 0
            while self._queue and (not items or weight + len(self._queue[0].record.payload) <= _GROUP_BYTES):
                item = self._queue.popleft()
                weight += len(item.record.payload)
                items.append(item)
            group = _CommitGroup(items, self._unwritten, self._waiting)
            self._unwritten, self._waiting = {}, []
            return group

    def _is_due(self) -> bool:
        return bool(self._queue or self._waiting or self._closing)

    def _write_group(self, group: _CommitGroup) -> list[LogLocation]:
        """Write a group, and the marks after it; return where its items are."""
        started = self._clock.monotonic()
        records = [item.record for item in group.items]
        weight = sum(len(record.payload) for record in records)
        segment = self._segment
        assert segment is not None
        if segment.size > self._empty_bytes and segment.size + weight > self._segment_bytes:
            segment = self._begin_segment(segment.number + 1)
        with self._lock:  # here, so that it is not older than the marks of a segment that has just begun
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
        """Open the next segment. It starts with every table's marks, so that older ones can be removed."""
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
