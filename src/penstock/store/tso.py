"""The timestamp oracle, and ids that are never given twice, also across restarts."""

import asyncio
from dataclasses import dataclass

from penstock.clock import LOGICAL_MAX, SYSTEM, Clock, compose_ts
from penstock.errors import Invalid
from penstock.store import meta
from penstock.store.engine import Cf, Engine

__all__ = ["Ids", "Timeline", "Tso"]


WINDOW_MS = 3_000


@dataclass(slots=True)
class Timeline:
    """Hands out timestamps that only grow, none at or past `limit_ms`.

    Invariant: nothing at or past `limit_ms` was ever handed out, so a successor that begins there
    repeats nothing.
    """

    physical: int
    limit_ms: int
    logical: int = 0

    def take(self, count: int, wall_ms: int) -> int | None:
        """Return the largest of `count` new timestamps; None when the limit has to be moved first."""
        physical, logical = self.physical, self.logical
        if wall_ms > physical:
            physical, logical = wall_ms, 0
        if logical + count > LOGICAL_MAX:
            physical, logical = physical + 1, 0
        if physical >= self.limit_ms:
            return None
        self.physical, self.logical = physical, logical + count
        return compose_ts(self.physical, self.logical)

    def wants_room(self, wall_ms: int) -> bool:
        """Return whether less than half of a window is left."""
        return max(self.physical, wall_ms) + WINDOW_MS // 2 >= self.limit_ms


class Tso:
    """Timestamps for the cluster, monotonic across restarts.

    The limit of what may be handed out is durable before it is used. It is moved ahead of need, so
    that a caller rarely waits for the disk.
    """

    def __init__(self, engine: Engine, *, clock: Clock = SYSTEM) -> None:
        self._engine = engine
        self._clock = clock
        limit = meta.unpack(engine.view().get(Cf.META, meta.TSO))
        self._timeline = Timeline(physical=max(limit, clock.wall_ms()), limit_ms=limit)
        self._extension: asyncio.Task[None] | None = None

    async def allocate(self, count: int = 1) -> int:
        """Return the largest of `count` consecutive timestamps, all above every earlier one."""
        if not 1 <= count <= LOGICAL_MAX:
            raise Invalid(f"{count} timestamps were asked for at once; ask for 1 to {LOGICAL_MAX}")
        while (ts := self._timeline.take(count, self._clock.wall_ms())) is None:
            await asyncio.shield(self._extend())
        if self._timeline.wants_room(self._clock.wall_ms()):
            self._extend()
        return ts

    async def current(self) -> int:
        """Return a new timestamp: above every one handed out before."""
        return await self.allocate(1)

    def latest(self) -> int:
        """Return a timestamp at or above every one handed out so far."""
        return compose_ts(self._timeline.physical, self._timeline.logical)

    def _extend(self) -> asyncio.Task[None]:
        if self._extension is None or self._extension.done():
            self._extension = asyncio.ensure_future(self._move_limit())
            # The next caller without room gets the failure; here it is only marked as retrieved.
            self._extension.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._extension

    async def _move_limit(self) -> None:
        limit = max(self._timeline.physical + 1, self._clock.wall_ms()) + WINDOW_MS
        await self._engine.write([(Cf.META, meta.TSO, meta.pack(limit))])
        self._timeline.limit_ms = limit

    async def close(self) -> None:
        """Wait for a write under way."""
        if self._extension is not None:
            await asyncio.wait([self._extension])


_WINDOW = 1000
_COUNT_MAX = 1 << 20


class Ids:
    """Hands out runs of ids from a window whose end is durable before any of it is used."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._limit = meta.unpack(engine.view().get(Cf.META, meta.IDS))
        self._next = self._limit + 1
        self._extending = asyncio.Lock()

    async def allocate(self, count: int = 1) -> int:
        """Return the first of `count` consecutive new ids."""
        if not 1 <= count <= _COUNT_MAX:
            raise Invalid(f"{count} ids were asked for at once; ask for 1 to {_COUNT_MAX}")
        async with self._extending:
            first = self._next
            if first + count - 1 > self._limit:
                limit = first + count - 1 + _WINDOW
                await self._engine.write([(Cf.META, meta.IDS, meta.pack(limit))])
                self._limit = limit
            self._next = first + count
            return first
