"""Ids that are never handed out twice, also across restarts."""

import asyncio

from penstock.errors import Invalid
from penstock.store import meta
from penstock.store.engine import Cf, Engine

__all__ = ["Ids"]

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
