"""A region of a subscription: what is asked of a store, and what comes back."""

from enum import Enum

from penstock.proto import metapb_pb2 as metapb
from penstock.sources.tikv.entries import EntryReader
from penstock.sources.tikv.key_ranges import KeyRange
from penstock.sources.tikv.matcher import Matcher
from penstock.sources.tikv.priority import Urgency
from penstock.sources.tikv.range_lock import LockedRange
from penstock.sources.tikv.routing import FeedEnd
from penstock.sources.tikv.subscription import SubscribedSpan

__all__ = ["FeedPhase", "RegionFeedState", "RegionTask"]


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
    """How far the life of a feed is. It only goes forward."""

    RUNNING = "running"
    STOPPED = "stopped"  # by an error, or by us: whatever still comes is ignored
    REMOVED = "removed"  # and its part of the span was given back


class RegionFeedState:
    """A subscribed region. The receive loop stops it, or its processor worker, which does all else."""

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
        """Ignore what comes from now on; return whether it was running. The first reason counts."""
        with self.task.span.lock:  # the receive loop and the region's worker may both want to
            if self.phase is not FeedPhase.RUNNING:
                return False
            self.phase = FeedPhase.STOPPED
            self.end = end
            return True
