"""What tests of the region side share: spans, tasks and feeds without a cluster."""

from penstock.proto import metapb_pb2 as metapb
from penstock.sources.tikv.key_ranges import KeySpan
from penstock.sources.tikv.matcher import Matcher
from penstock.sources.tikv.prewrite_spill import PrewriteMemory, PrewriteSpill
from penstock.sources.tikv.range_lock import LockedRange
from penstock.sources.tikv.routing import Urgency
from penstock.sources.tikv.subscription import RegionFeedState, RegionTask, SubscribedSpan

__all__ = ["a_feed", "a_matcher", "a_span", "a_task"]


def _raise(error: Exception) -> None:
    raise error


def a_span(sub_id: int = 1, start_ts: int = 1, interval_s: float = 0.0) -> SubscribedSpan:
    return SubscribedSpan(
        sub_id,
        KeySpan(5, b"a", b"z"),
        start_ts,
        advance_interval_s=interval_s,
        now=0.0,
        on_failure=_raise,
    )


def a_task(
    span: SubscribedSpan,
    region_id: int = 1,
    start: bytes = b"a",
    end: bytes = b"z",
    *,
    urgency: Urgency = Urgency.HIGH,
    created_at: float = 0.0,
) -> RegionTask:
    meta = metapb.Region(id=region_id, start_key=start, end_key=end)
    meta.region_epoch.version = 1
    locked = span.range_lock.lock(start, end, region_id, 1)
    assert isinstance(locked, LockedRange)
    return RegionTask(span, meta, locked, urgency=urgency, created_at=created_at)


def a_matcher() -> Matcher:
    return Matcher(PrewriteMemory(1 << 30), PrewriteSpill())


def a_feed(task: RegionTask) -> RegionFeedState:
    return RegionFeedState(task, a_matcher(), asked_at=0.0)
