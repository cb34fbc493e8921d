"""The state of a subscription and of its regions, shared by the parts of the source."""

import logging
import threading
from collections.abc import Callable
from enum import Enum

from penstock.clock import physical_ms
from penstock.proto import metapb_pb2 as metapb
from penstock.sources.tikv.entries import EntryReader
from penstock.sources.tikv.key_ranges import KeyRange, KeySpan
from penstock.sources.tikv.matcher import Matcher
from penstock.sources.tikv.range_lock import LockedRange, RangeLock
from penstock.sources.tikv.routing import FeedEnd, Urgency

__all__ = ["FeedPhase", "RegionFeedState", "RegionTask", "SubscribedSpan"]


_JUMP_MS = 30_000
_log = logging.getLogger(__name__)


class SubscribedSpan:
    """The progress of a subscription; any thread may read and advance its parts.

    With `advance_interval_s` of 0 every progress of a region may advance the span (a heap finds the
    minimum); else it advances at most once an interval, from all parts.
    """

    def __init__(
        self,
        sub_id: int,
        span: KeySpan,
        start_ts: int,
        *,
        advance_interval_s: float,
        now: float,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.sub_id = sub_id
        self.span = span
        self.start_ts = start_ts
        self.on_failure = on_failure
        self.stopped = False
        self.resolved_ts = start_ts  # the last one passed to the pipeline
        self.moved_at = now  # when that was
        self.range_lock = RangeLock(span.start, span.end, start_ts)
        self.lock = threading.Lock()  # guards the range lock and the fields below
        self._interval_s = advance_interval_s
        self._looked_at = now - advance_interval_s
        self._told_start = False

    def initialize(self, locked: LockedRange) -> None:
        """Record that the incremental scan of a part has ended."""
        with self.lock:
            self.range_lock.initialize(locked)

    def raise_resolved(self, locked: LockedRange, ts: int) -> None:
        """Raise the timestamp of a part; ignored before its scan has ended, and when it would decrease."""
        if locked.initialized and ts >= locked.resolved_ts:
            locked.resolved_ts = ts

    def advance(self, now: float) -> int | None:
        """Return the span's resolved timestamp when it is to be passed on, else None.

        The start timestamp itself is passed on once, when every part has been initialized.
        """
        with self.lock:
            if self._interval_s:
                if now - self._looked_at < self._interval_s:
                    return None
                self._looked_at = now
                ts = self.range_lock.resolved_ts()
            else:
                ts = self.range_lock.heap_min_ts()
            if ts < self.resolved_ts or (ts == self.resolved_ts and not self._first_time(ts)):
                return None
            self._warn_of_jump(ts)
            self._told_start = True
            self.resolved_ts = ts
            self.moved_at = now
            return ts

    def _first_time(self, ts: int) -> bool:
        return ts == self.start_ts and not self._told_start and self.range_lock.initialized

    def _warn_of_jump(self, ts: int) -> None:
        jump_ms = physical_ms(ts) - physical_ms(self.resolved_ts)
        if jump_ms > _JUMP_MS and self.resolved_ts > self.start_ts:
            _log.warning(
                "a span's resolved timestamp moved far at once",
                extra={"sub_id": self.sub_id, "table_id": self.span.table_id, "jump_ms": jump_ms},
            )


class RegionTask:
    """A region to subscribe: the part of the span is locked for it."""

    __slots__ = ("created_at", "key_range", "locked", "meta", "span", "urgency")

    def __init__(
        self,
        span: SubscribedSpan,
        meta: metapb.Region,
        locked: LockedRange,
        *,
        urgency: Urgency,
        created_at: float,
    ) -> None:
        self.span = span
        self.meta = meta
        self.locked = locked
        self.key_range: KeyRange = (locked.start, locked.end)
        self.urgency = urgency
        self.created_at = created_at


class FeedPhase(Enum):
    """The phase of a feed; it only goes forward."""

    RUNNING = "running"
    STOPPED = "stopped"  # by an error, or by us: later events are ignored
    REMOVED = "removed"  # and its part of the span was given back


class RegionFeedState:
    """A subscribed region. The receive loop or the processor worker stops it; only the worker does more."""

    __slots__ = ("asked_at", "end", "phase", "reader", "task")

    def __init__(self, task: RegionTask, matcher: Matcher, *, asked_at: float) -> None:
        meta, locked = task.meta, task.locked
        self.task = task
        self.asked_at = asked_at
        self.phase = FeedPhase.RUNNING
        self.end: FeedEnd | None = None
        self.reader = EntryReader(
            meta.id,
            matcher,
            span_start_ts=task.span.start_ts,
            start=locked.start,
            end=locked.end,
            whole=(locked.start, locked.end) == (meta.start_key, meta.end_key),
        )

    @property
    def region_id(self) -> int:
        """The region's id."""
        return self.task.meta.id

    def stop(self, end: FeedEnd) -> bool:
        """Ignore events from now on; return whether it was running. The first reason counts."""
        with self.task.span.lock:  # the receive loop and the region's worker may do it at the same time
            if self.phase is not FeedPhase.RUNNING:
                return False
            self.phase = FeedPhase.STOPPED
            self.end = end
            return True
