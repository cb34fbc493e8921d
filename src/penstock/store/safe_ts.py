"""The timestamp at or below which no transaction commits any more."""

import asyncio

from penstock.clock import SYSTEM, Clock
from penstock.store.bounds import EVERYTHING
from penstock.store.engine import Engine
from penstock.store.mvcc.reader import MvccReader
from penstock.store.storage import TxnStorage
from penstock.store.tso import Tso

__all__ = ["SafeTs"]

_FRESH_S = 0.2


class SafeTs:
    """Computes the safe timestamp: no transaction commits at or below it any more. It never decreases."""

    def __init__(self, engine: Engine, storage: TxnStorage, tso: Tso, *, clock: Clock = SYSTEM) -> None:
        self._engine = engine
        self._storage = storage
        self._tso = tso
        self._clock = clock
        self._ts = 0
        self._computed_at = float("-inf")
        self._computing = asyncio.Lock()

    async def get(self) -> int:
        """Return a value that is at most a fraction of a second old."""
        async with self._computing:
            if self._clock.monotonic() - self._computed_at >= _FRESH_S:
                self._ts = max(self._ts, await self._compute())
                self._computed_at = self._clock.monotonic()
            return self._ts

    async def _compute(self) -> int:
        ts = await self._tso.current()
        concurrency = self._storage.concurrency
        concurrency.update_max_ts(ts)  # from here on, every computed commit timestamp is above `ts`
        in_memory = concurrency.min_lock_ts()
        view = self._engine.view()
        on_disk = await asyncio.to_thread(
            lambda: min((lock.start_ts for _, lock in MvccReader(view).scan_locks(EVERYTHING)), default=None)
        )
        return min([ts, *(start_ts - 1 for start_ts in (in_memory, on_disk) if start_ts is not None)])
