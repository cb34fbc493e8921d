"""Follows every key of every span by exactly one region, through splits, moves and failures."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from penstock import metrics
from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.kv.pd import PdClient, RegionInfo
from penstock.proto import metapb_pb2 as metapb
from penstock.sources.tikv.key_ranges import KeyRange, intersect, left_cover
from penstock.sources.tikv.range_lock import LockedRange, RangeLockCancelled, Stale
from penstock.sources.tikv.request_worker import StoreWorkers
from penstock.sources.tikv.routing import FeedEnd, FeedEndReason, RetryPauses, Route, Urgency, route
from penstock.sources.tikv.subscription import RegionFeedState, RegionTask, SubscribedSpan

__all__ = ["RegionFollower"]

_REGIONS_PER_LOAD = 1024
_LOADS_AT_ONCE = 1024
_LOAD_AGAIN_S = 0.1

_log = logging.getLogger(__name__)


class RegionFollower:
    """Divides spans into regions, and follows the keys of a region that ended again. For one event loop.

    `on_failed(span, error)` is called when a span cannot go on, `on_drained(span)` when the last region
    of a stopped span is gone.
    """

    def __init__(
        self,
        pd: PdClient,
        *,
        clock: Clock,
        on_failed: Callable[[SubscribedSpan, Exception], None],
        on_drained: Callable[[SubscribedSpan], None],
    ) -> None:
        self._pd = pd
        self._clock = clock
        self._on_failed = on_failed
        self._on_drained = on_drained
        self._stores: StoreWorkers | None = None
        self._pauses = RetryPauses()
        self._loads = asyncio.Semaphore(_LOADS_AT_ONCE)
        self._released: dict[SubscribedSpan, list[asyncio.Future[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, stores: StoreWorkers) -> None:
        """Set the stores; call it once, before `follow`."""
        self._stores = stores

    def follow(self, span: SubscribedSpan, key_range: KeyRange, urgency: Urgency) -> None:
        """Find the regions of a part of the span and follow them."""
        self._spawn(self._divide(span, key_range, urgency))

    def stop(self, span: SubscribedSpan) -> None:
        """Stop following a span; `on_drained` is called when its last region is gone."""
        if span.stopped:
            return
        span.stopped = True
        with span.lock:
            span.range_lock.stop()
        self._wake(span)
        assert self._stores is not None
        for worker in self._stores:
            worker.deregister(span.sub_id)
        self._check_drained(span)

    async def close(self) -> None:
        """Cancel all running work."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def finish_scan(self, state: RegionFeedState) -> None:
        """Forget the failures of a region whose incremental scan has ended; another scan may begin."""
        self._pauses.forget(state.task.key_range)
        assert self._stores is not None
        for worker in self._stores:
            worker.cache.settle(state)

    def end_feed(self, state: RegionFeedState) -> None:
        """Take back the region of a feed that has ended and whose events are all handled."""
        assert state.end is not None
        self.take_back(state.task, state.end)

    def fail_span(self, span: SubscribedSpan, error: Exception) -> None:
        """Report that a span cannot go on, unless it is stopped."""
        if not span.stopped:
            self._on_failed(span, error)

    def lose_store(self, store_id: int) -> None:
        """Ask for the address of a store again, because its stream ended."""
        assert self._stores is not None
        self._stores.forget_addr(store_id)

    def take_back(self, task: RegionTask, end: FeedEnd) -> None:
        """Unlock a region's part of the span, and follow its keys again if the reason allows it."""
        span = task.span
        metrics.PULLER_FEED_ERRORS_TOTAL.labels(end.reason.value).inc()
        with span.lock:
            span.range_lock.unlock(task.locked)
        self._wake(span)
        if span.stopped:
            self._check_drained(span)
            return
        decided = route(end)
        if decided.fatal is not None:
            self.fail_span(span, decided.fatal)
        elif not decided.ignored:
            _log.info(
                "a region is followed again",
                extra={"sub_id": span.sub_id, "region_id": task.meta.id, "reason": end.reason.value},
            )
            self._spawn(self._retry(task, end, decided))

    async def _retry(self, task: RegionTask, end: FeedEnd, decided: Route) -> None:
        pause = self._pauses.next_s(
            task.key_range, end, now=self._clock.monotonic(), draw=self._clock.random()
        )
        await self._clock.sleep(pause)
        leader = _peer_on(task.meta, end.leader_store_id) if decided.same_region else None
        if leader is None:
            await self._divide(task.span, task.key_range, decided.urgency)
        else:
            await self._follow_region(task.span, RegionInfo(task.meta, leader), decided.urgency)

    async def _divide(self, span: SubscribedSpan, key_range: KeyRange, urgency: Urgency) -> None:
        start, end = key_range
        while not span.stopped:
            found = await self._load((start, end))
            for info in found:
                self._spawn(self._follow_region(span, info, urgency))
            if not found:
                await self._clock.sleep(_LOAD_AGAIN_S)
                continue
            start = found[-1].meta.end_key
            if not start or (end and start >= end):
                return

    async def _load(self, key_range: KeyRange) -> list[RegionInfo]:
        """Return the regions that cover the left part of a range; none when they cannot be loaded now."""
        try:
            async with self._loads:
                found = await self._pd.scan_regions(*key_range, _REGIONS_PER_LOAD)
        except PenstockError as error:
            _log.warning("regions could not be loaded", extra={"error": str(error)})
            return []
        ranges = [(info.meta.start_key, info.meta.end_key) for info in found]
        return found[: left_cover(ranges, key_range)]

    async def _follow_region(self, span: SubscribedSpan, info: RegionInfo, urgency: Urgency) -> None:
        """Lock the region's part of the span, once older regions have released it, and ask its leader."""
        meta = info.meta
        part = intersect((meta.start_key, meta.end_key), (span.span.start, span.span.end))
        if part is None:
            return
        while True:
            with span.lock:
                locked = span.range_lock.lock(*part, meta.id, meta.region_epoch.version)
            if isinstance(locked, RangeLockCancelled):
                return
            if isinstance(locked, Stale):
                await self._look_again(span, locked, urgency)
                return
            if isinstance(locked, LockedRange):
                break
            released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._released.setdefault(span, []).append(released)
            await released
        now = self._clock.monotonic()
        await self._ask(RegionTask(span, meta, locked, urgency=urgency, created_at=now), info.leader)

    async def _look_again(self, span: SubscribedSpan, stale: Stale, urgency: Urgency) -> None:
        if stale.retry:
            await self._clock.sleep(_LOAD_AGAIN_S)
        for gap in stale.retry:
            self.follow(span, gap, urgency)

    async def _ask(self, task: RegionTask, leader: metapb.Peer | None) -> None:
        """Pass a region to the worker of its leader."""
        assert self._stores is not None
        if leader is None:
            self.take_back(task, FeedEnd(FeedEndReason.NO_LEADER))
            return
        try:
            worker = await self._stores.get(leader.store_id)
        except PenstockError as error:
            self.take_back(task, FeedEnd(FeedEndReason.STORE_NOT_FOUND, str(error)))
            return
        if worker is None:
            self.take_back(task, FeedEnd(FeedEndReason.STORE_NOT_FOUND))
        elif task.span.stopped:
            self.take_back(task, FeedEnd(FeedEndReason.CANCELLED))
        else:
            worker.cache.add(task)

    def _wake(self, span: SubscribedSpan) -> None:
        for waiter in self._released.pop(span, ()):
            if not waiter.done():
                waiter.set_result(None)

    def _check_drained(self, span: SubscribedSpan) -> None:
        with span.lock:
            drained = span.range_lock.drained
        if drained:
            self._on_drained(span)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)

    def _forget_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("following a region failed", exc_info=error)


def _peer_on(region: metapb.Region, store_id: int) -> metapb.Peer | None:
    return next((peer for peer in region.peers if store_id and peer.store_id == store_id), None)
