"""Subscriptions of spans of keys: every committed change, and how far they are complete.

`slow_parts` says which parts of a span hold it back, for the log.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from penstock import clock as clocks
from penstock import metrics
from penstock.clock import Clock, physical_ms
from penstock.errors import Invalid, show_key
from penstock.kv import AsyncClient
from penstock.kv.pd import PdClient
from penstock.kv.rpc.connections import Dialer
from penstock.settings import KvSettings, PullerSettings, TlsSettings
from penstock.sources.pipeline import AdvanceResolvedTs, ConsumeKvEvents, SpanPipelineManager
from penstock.sources.tikv.follower import RegionFollower
from penstock.sources.tikv.key_ranges import KeySpan
from penstock.sources.tikv.lock_checker import LockChecker
from penstock.sources.tikv.matcher import Matcher
from penstock.sources.tikv.prewrite_spill import PrewriteMemory, PrewriteSpill
from penstock.sources.tikv.processor import RegionEventProcessor
from penstock.sources.tikv.range_lock import RangeLock
from penstock.sources.tikv.request_cache import RequestCache
from penstock.sources.tikv.request_worker import RegionRequestWorker, StoreWorkers
from penstock.sources.tikv.routing import Urgency
from penstock.sources.tikv.subscription import SubscribedSpan

__all__ = ["LAG_MAX_S", "SCAN_MAX_S", "SlowPart", "SubscriptionClient", "slow_parts"]


LAG_MAX_S = 60
SCAN_MAX_S = 600


class SlowPart(NamedTuple):
    """A part that is behind: its region (0: no region follows it), by how much, and its first key."""

    region_id: int
    state: str
    lag_s: float
    start: str


def slow_parts(parts: RangeLock, now_ms: int) -> Iterator[SlowPart]:
    """Return the parts behind by more than a minute (ten during their scan), and every hole."""
    for part in parts.locked_ranges():
        lag_s = (now_ms - physical_ms(part.resolved_ts)) / 1000
        if lag_s > (LAG_MAX_S if part.initialized else SCAN_MAX_S):
            state = "initialized" if part.initialized else "in its scan"
            yield SlowPart(part.region_id, state, lag_s, show_key(part.start))
    for start, _, ts in parts.holes():
        yield SlowPart(0, "not followed", (now_ms - physical_ms(ts)) / 1000, show_key(start))


_LOG_SLOW_S = 30.0
_SLOW_SHOWN = 10
_MEASURE_S = 10.0

_log = logging.getLogger(__name__)
_ids = itertools.count(1)  # never used twice in a process: a late event cannot match another subscription


class SubscriptionClient:
    """Pulls the changes of any number of spans from a cluster; used from one event loop.

    Delivery is at least once: after a region split, moved or failed, rows that were delivered before
    may come again, unchanged. Such rows lie above the last resolved timestamp that was passed on, and
    (key, start_ts, commit_ts) identifies them. No change is left out.
    """

    def __init__(
        self,
        pd: PdClient,
        kv: AsyncClient,
        dialer: Dialer,
        *,
        settings: PullerSettings,
        clock: Clock,
    ) -> None:
        self._pd = pd
        self._kv = kv
        self._dialer = dialer
        self._settings = settings
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._spans: dict[int, SubscribedSpan] = {}
        self._ended: dict[int, asyncio.Future[None]] = {}
        self._memory = PrewriteMemory(settings.prewrite_memory_bytes)
        self._spill = PrewriteSpill(settings.spill_dir)
        self._pipeline = SpanPipelineManager(
            workers=settings.workers,
            queue_size=settings.queue_size,
            quota_bytes=settings.quota_bytes,
            on_failure=self._on_consumer_failed,
            clock=clock,
        )
        self._follower = RegionFollower(
            pd, clock=clock, on_failed=self._end_subscription, on_drained=self._on_drained
        )
        self._processor = RegionEventProcessor(
            self._pipeline,
            on_scanned=self._follower.finish_scan,
            on_ended=self._follower.end_feed,
            on_failed=self._follower.fail_span,
            workers=settings.region_workers,
            queue_size=settings.region_queue_size,
            queue_bytes=settings.region_queue_bytes,
            clock=clock,
        )
        self._stores = StoreWorkers(pd, self._new_worker)
        self._follower.start(self._stores)
        checker = LockChecker(self._spans_now, kv.resolve_locks_before, now_ms=self._now_ms, clock=clock)
        self._rounds = [
            asyncio.create_task(work, name="penstock-puller")
            for work in (checker.run(), self._log_slow_regions(), self._measure())
        ]
        for task in self._rounds:
            task.add_done_callback(_log_end)
        self._unregistering: set[asyncio.Task[None]] = set()

    @classmethod
    async def connect(
        cls,
        pd_addrs: Sequence[str],
        *,
        tls: TlsSettings | None = None,
        kv: KvSettings | None = None,
        settings: PullerSettings | None = None,
        clock: Clock = clocks.SYSTEM,
    ) -> "SubscriptionClient":
        """Find the cluster by its placement drivers; raise Unavailable when none of them answers."""
        kv = kv or KvSettings()
        pd = await PdClient.connect(pd_addrs, tls=tls, settings=kv, clock=clock)
        try:
            client = await AsyncClient.connect(pd_addrs, tls=tls, settings=kv, clock=clock)
        except BaseException:
            await pd.close()
            raise
        return cls(pd, client, Dialer(tls, kv), settings=settings or PullerSettings(), clock=clock)

    async def subscribe(
        self,
        span: KeySpan,
        start_ts: int,
        consume_kv_events: ConsumeKvEvents,
        advance_resolved_ts: AdvanceResolvedTs,
        *,
        advance_interval_ms: int = 100,
        on_failure: Callable[[Exception], None] | None = None,
    ) -> int:
        """Pull every change of the span committed after `start_ts`; return the subscription's id.

        Both callbacks run on pipeline threads. `on_failure` is called on the event loop when the
        subscription has ended by a failure: a callback raised, or the store broke its promises.
        """
        if start_ts <= 0 or advance_interval_ms < 0:
            raise Invalid(
                f"a subscription starts at a timestamp above 0, not at {start_ts}, and advances every"
                f" 0 milliseconds or more, not {advance_interval_ms}"
            )
        sub_id = next(_ids)
        subscribed = SubscribedSpan(
            sub_id,
            span,
            start_ts,
            advance_interval_s=advance_interval_ms / 1000,
            now=self._clock.monotonic(),
            on_failure=on_failure or _ignore,
        )
        self._spans[sub_id] = subscribed
        self._ended[sub_id] = self._loop.create_future()
        await asyncio.to_thread(self._pipeline.register, sub_id, consume_kv_events, advance_resolved_ts)
        self._follower.follow(subscribed, (span.start, span.end), Urgency.LOW)
        return sub_id

    async def unsubscribe(self, sub_id: int) -> None:
        """End a subscription; none of its callbacks runs after the return. Twice is harmless."""
        span = self._spans.get(sub_id)
        if span is None:
            return
        self._pipeline.cancel(sub_id)
        self._follower.stop(span)
        await asyncio.shield(self._ended[sub_id])

    def resolved_ts(self, sub_id: int) -> int:
        """Return how far a subscription has been read; its consumer may have got less."""
        return self._spans[sub_id].resolved_ts

    async def close(self) -> None:
        """End everything; nothing is called back after the return."""
        for task in self._rounds:
            task.cancel()
        await asyncio.gather(*self._rounds, return_exceptions=True)
        await self._stores.close()
        await self._follower.close()
        closing = asyncio.to_thread(self._pipeline.close)
        await asyncio.gather(closing, self._processor.close(), *self._unregistering)
        for ended in self._ended.values():
            ended.set_result(None)
        self._ended.clear()
        await asyncio.to_thread(self._spill.close)
        await self._kv.close()
        await self._pd.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _new_worker(self, store_id: int, addr: str) -> RegionRequestWorker:
        return RegionRequestWorker(
            store_id,
            addr,
            dialer=self._dialer,
            cluster_id=self._pd.cluster_id,
            cache=RequestCache(
                self._settings.pending_regions_per_store, clock=self._clock, now_ms=self._now_ms
            ),
            processor=self._processor,
            on_given_back=self._follower.take_back,
            on_lost=self._follower.lose_store,
            new_matcher=lambda: Matcher(self._memory, self._spill),
            clock=self._clock,
        )

    def _now_ms(self) -> int:
        """Return the cluster's time, a few seconds old at most: local clocks may be wrong."""
        return physical_ms(self._pd.low_resolution_ts())

    def _spans_now(self) -> list[SubscribedSpan]:
        return list(self._spans.values())

    def _on_consumer_failed(self, sub_id: int, error: Exception) -> None:
        # On a pipeline thread.
        self._loop.call_soon_threadsafe(self._fail_consumer, sub_id, error)

    def _fail_consumer(self, sub_id: int, error: Exception) -> None:
        span = self._spans.get(sub_id)
        if span is not None:
            self._follower.fail_span(span, error)

    def _end_subscription(self, span: SubscribedSpan, error: Exception) -> None:
        _log.error(
            "a subscription cannot go on",
            extra={"sub_id": span.sub_id, "table_id": span.span.table_id},
            exc_info=error,
        )
        self._pipeline.cancel(span.sub_id)
        self._follower.stop(span)
        span.on_failure(error)

    def _on_drained(self, span: SubscribedSpan) -> None:
        if self._spans.pop(span.sub_id, None) is not None:
            task = asyncio.create_task(self._unregister(span.sub_id))
            self._unregistering.add(task)
            task.add_done_callback(self._unregistering.discard)

    async def _unregister(self, sub_id: int) -> None:
        await asyncio.to_thread(self._pipeline.unregister, sub_id)
        self._ended.pop(sub_id).set_result(None)

    async def _log_slow_regions(self) -> None:
        while True:
            await self._clock.sleep(_LOG_SLOW_S)
            now_ms = self._now_ms()
            for span in self._spans_now():
                with span.lock:
                    slow = list(slow_parts(span.range_lock, now_ms))
                for part in sorted(slow, key=lambda part: -part.lag_s)[:_SLOW_SHOWN]:
                    _log.warning("a region is slow", extra={"sub_id": span.sub_id, **part._asdict()})

    async def _measure(self) -> None:
        while True:
            self._measure_once()
            await self._clock.sleep(_MEASURE_S)

    def _measure_once(self) -> None:
        initialized = asked = 0
        slowest = now_ms = self._now_ms()
        for span in self._spans_now():
            slowest = min(slowest, physical_ms(span.resolved_ts))
            with span.lock:
                parts = span.range_lock.locked_ranges()
            ready = sum(part.initialized for part in parts)
            initialized += ready
            asked += len(parts) - ready
        metrics.PULLER_REGIONS.labels("initialized").set(initialized)
        metrics.PULLER_REGIONS.labels("asked").set(asked)
        metrics.PULLER_RESOLVED_TS_LAG.set((now_ms - slowest) / 1000)


def _log_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        _log.error("a background task of the puller ended", exc_info=task.exception())


def _ignore(error: Exception) -> None:
    """Do nothing: the failure is in the log."""
