"""Resolves locks of dead transactions, which hold back resolved timestamps."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from penstock import metrics
from penstock.clock import Clock, compose_ts, physical_ms
from penstock.errors import PenstockError
from penstock.sources.tikv.range_lock import LockedRange
from penstock.sources.tikv.subscription import SubscribedSpan

__all__ = ["LockChecker", "resolve_target"]

FENCE_MS = 4_000
TICK_S = 2.0
AGAIN_AFTER_S = 10.0
TASKS_MAX = 1024

_log = logging.getLogger(__name__)


def resolve_target(
    resolved_ts: int, *, initialized: bool, still_ms: float, now_ms: int, fence_ms: int = FENCE_MS
) -> int | None:
    """Return up to which start timestamp a span's locks are worth resolving; None for none.

    Only for a span whose regions have all been scanned, and whose resolved timestamp has not moved for
    the length of the fence and is at least that far behind.
    """
    behind_ms = now_ms - physical_ms(resolved_ts)
    if not initialized or still_ms < fence_ms or behind_ms < fence_ms:
        return None
    return compose_ts(physical_ms(resolved_ts) + fence_ms)


class LockChecker:
    """Every two seconds resolves the locks in the slowest regions of spans that do not advance."""

    def __init__(
        self,
        spans: Callable[[], Iterable[SubscribedSpan]],
        resolve: Callable[[int, bytes, bytes], Awaitable[int]],
        *,
        now_ms: Callable[[], int],
        clock: Clock,
    ) -> None:
        self._spans = spans
        self._resolve = resolve
        self._now_ms = now_ms
        self._clock = clock
        self._queue: asyncio.Queue[tuple[LockedRange, int]] = asyncio.Queue(TASKS_MAX)
        self._asked_at: dict[LockedRange, float] = {}

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tick())
            group.create_task(self._work())

    def check(self) -> None:
        """Queue a task for each region that holds its span back; drop those that the queue cannot hold."""
        now = self._clock.monotonic()
        self._asked_at = {
            part: at for part, at in self._asked_at.items() if part.held and now - at < AGAIN_AFTER_S
        }
        for span in self._spans():
            for part, target in self._behind(span, now):
                try:
                    self._queue.put_nowait((part, target))
                except asyncio.QueueFull:
                    metrics.PULLER_RESOLVE_LOCK_DROPPED_TOTAL.inc()
                else:
                    self._asked_at[part] = now

    def _behind(self, span: SubscribedSpan, now: float) -> list[tuple[LockedRange, int]]:
        with span.lock:
            target = resolve_target(
                span.resolved_ts,
                initialized=span.range_lock.initialized,
                still_ms=(now - span.moved_at) * 1000,
                now_ms=self._now_ms(),
            )
            if target is None or span.stopped:
                return []
            parts = span.range_lock.locked_ranges()
        return [
            (part, target)
            for part in parts
            if part.initialized and part.resolved_ts < target and part not in self._asked_at
        ]

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep(TICK_S)
            self.check()

    async def _work(self) -> None:
        while True:
            part, target = await self._queue.get()
            if not part.held or part.resolved_ts >= target:
                continue
            metrics.PULLER_RESOLVE_LOCK_TOTAL.inc()
            try:
                left = await self._resolve(target, part.start, part.end)
            except PenstockError as error:
                _log.warning(
                    "locks could not be resolved", extra={"region_id": part.region_id, "error": str(error)}
                )
                continue
            if left:
                _log.info(
                    "a region waits for transactions that are alive",
                    extra={"region_id": part.region_id, "locks": left},
                )
