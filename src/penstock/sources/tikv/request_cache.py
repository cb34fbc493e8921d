"""The regions that wait to be subscribed on one store, and how many may be in their scan at a time."""

import asyncio
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from penstock.clock import Clock, physical_ms
from penstock.sources.tikv.routing import FORCED_MAX, priority
from penstock.sources.tikv.subscription import RegionFeedState, RegionTask

__all__ = ["Deregister", "RequestCache"]

STALE_AFTER_S = 180 * 60.0  # a scan that takes longer stops holding back others


class Deregister:
    """Ask a store to end everything of a subscription."""

    __slots__ = ("sub_id",)

    def __init__(self, sub_id: int) -> None:
        self.sub_id = sub_id


class RequestCache:
    """Tasks by priority. A task taken is *pending* until its scan has ended or its feed has.

    `next` gives no more than `pending_max` pending tasks out, except urgent ones: those whose region
    was followed a moment ago would hold their whole span back. What waits is bounded by the regions
    of the subscriptions, each of which is in at most one place.
    """

    def __init__(self, pending_max: int, *, clock: Clock, now_ms: Callable[[], int]) -> None:
        self._pending_max = max(1, pending_max)
        self._clock = clock
        self._now_ms = now_ms
        self._waiting: list[tuple[float, int, RegionTask]] = []
        self._added = 0
        self._control: deque[Deregister] = deque()
        self._pending: dict[RegionFeedState, float] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def pending(self) -> int:
        """How many tasks were taken and are in their scan."""
        return len(self._pending)

    def add(self, task: RegionTask) -> None:
        """Queue a task."""
        self._added += 1
        # Both the wait and the lag grow by a second a second, so the order of tasks does not change.
        heappush(self._waiting, (self._value(task), self._added, task))
        self._changed.set()

    def deregister(self, sub_id: int) -> list[RegionTask]:
        """End a subscription: its request goes before all others; return its tasks, which leave the queue."""
        self._control.append(Deregister(sub_id))
        dropped = [task for _, _, task in self._waiting if task.span.sub_id == sub_id]
        if dropped:
            self._waiting = [item for item in self._waiting if item[2].span.sub_id != sub_id]
            heapify(self._waiting)
        self._changed.set()
        return dropped

    async def wait(self) -> None:
        """Wait until there is a region to subscribe."""
        while not self._waiting:
            self._control.clear()  # without a stream there is nothing to end
            self._changed.clear()
            await self._changed.wait()

    async def next(self) -> RegionTask | Deregister:
        """Wait for something that may be sent now, and take it."""
        while True:
            if self._control:
                return self._control.popleft()
            if self._waiting and (len(self._pending) < self._pending_max or self._urgent()):
                return heappop(self._waiting)[2]
            self._changed.clear()
            await self._changed.wait()

    def mark_sent(self, state: RegionFeedState) -> None:
        """Record that a task that was taken is now this feed, in its scan."""
        self._pending[state] = self._clock.monotonic()

    def settle(self, state: RegionFeedState) -> None:
        """Stop counting a feed as pending: its scan has ended, or the feed has."""
        if self._pending.pop(state, None) is not None:
            self._changed.set()

    def sweep(self) -> None:
        """Stop counting feeds whose scan takes too long."""
        now = self._clock.monotonic()
        stale = [state for state, sent_at in self._pending.items() if now - sent_at >= STALE_AFTER_S]
        for state in stale:
            self.settle(state)

    def clear(self) -> list[RegionTask]:
        """Remove and return every task that waits; nothing is pending afterwards."""
        tasks = [task for _, _, task in sorted(self._waiting, key=lambda item: item[:2])]
        self._waiting.clear()
        self._control.clear()
        self._pending.clear()
        return tasks

    def _urgent(self) -> bool:
        return self._value(self._waiting[0][2]) <= FORCED_MAX

    def _value(self, task: RegionTask) -> float:
        lag_s = max(0, self._now_ms() - physical_ms(task.locked.resolved_ts)) / 1000
        return priority(task.urgency, waited_s=self._clock.monotonic() - task.created_at, lag_s=lag_s)
