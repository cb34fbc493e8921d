"""Timeouts of many requests under one timer."""

import asyncio
from collections.abc import Callable

from penstock.kv.rpc.stream import PendingRequest


class Deadlines:
    """The requests that have no answer yet, and the timer of the earliest deadline among them.

    A timer for each request would cost as much as sending it. Most requests are answered long
    before the timer fires, and it then looks at those that are left.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[PendingRequest], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = float("inf")
        self.unanswered: set[PendingRequest] = set()

    def add(self, entry: PendingRequest, timeout_s: float) -> None:
        """Watch a request until it is removed from `unanswered`."""
        entry.deadline = self._loop.time() + timeout_s
        self.unanswered.add(entry)
        if entry.deadline < self._fires_at:
            self._set(entry.deadline)

    def _set(self, at: float) -> None:
        self.stop()
        self._fires_at = at
        self._timer = self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self._timer, self._fires_at = None, float("inf")
        now = self._loop.time()
        late = [entry for entry in self.unanswered if entry.deadline <= now]
        for entry in late:
            self.unanswered.discard(entry)
            self._expire(entry)
        if self.unanswered:
            self._set(min(entry.deadline for entry in self.unanswered))

    def stop(self) -> None:
        """Stop the timer; requests still unanswered are the owner's."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._fires_at = None, float("inf")
