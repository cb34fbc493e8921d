"""Local latches: optimistic transactions of one process queue here instead of conflicting in the store.

A transaction latches the keys of its commit in one global order, waits in turn for those that are
taken, and learns without a request that it must lose when a key was committed after it began.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from penstock import metrics
from penstock.clock import Clock, physical_ms
from penstock.errors import WriteConflict

_EXPIRE_AFTER_MS = 120_000
_RECYCLE_AFTER_OPERATIONS = 50_000
_RECYCLE_EVERY_MS = 60_000


@dataclass(slots=True, eq=False)
class Latch:
    """One transaction's claim on its keys: the first `taken` of them are held.

    `commit_ts` is set by the holder before release when its keys were committed.
    """

    start_ts: int
    keys: tuple[bytes, ...]
    taken: int = 0
    stale_key: bytes | None = None
    stale_ts: int = 0
    commit_ts: int = 0
    waited_s: float = 0

    @property
    def settled(self) -> bool:
        """Whether the claim waits for nothing more: it holds every key, or it has lost."""
        return self.stale_key is not None or self.taken == len(self.keys)


@dataclass(slots=True)
class _Node:
    holder: Latch | None = None
    commit_ts: int = 0
    waiting: deque[Latch] = field(default_factory=deque)


class LatchTable:
    """Who holds which key, and when each key was last committed. No waiting happens here.

    Invariant: a key with waiting claims has a holder, and claims are served in the order they came.
    """

    def __init__(self, slots: int) -> None:
        count = 1 << max(slots - 1, 0).bit_length()
        self._mask = count - 1
        self._slots: list[dict[bytes, _Node]] = [{} for _ in range(count)]
        self._operations = 0
        self._recycled_ms = 0

    def claim(self, keys: Iterable[bytes], start_ts: int) -> Latch:
        """Return a claim on the keys, to be driven by `acquire`."""
        mask = self._mask
        return Latch(start_ts, tuple(sorted(set(keys), key=lambda key: (hash(key) & mask, key))))

    def acquire(self, latch: Latch) -> bool:
        """Take keys until one is held by another; return whether the claim is settled."""
        while not latch.settled:
            key = latch.keys[latch.taken]
            node = self._slots[hash(key) & self._mask].setdefault(key, _Node())
            if node.commit_ts > latch.start_ts:
                latch.stale_key, latch.stale_ts = key, node.commit_ts
            elif node.holder is None:
                node.holder = latch
                latch.taken += 1
            else:
                node.waiting.append(latch)
                return False
        return True

    def release(self, latch: Latch, now_ms: int) -> list[Latch]:
        """Give up a claim, settled or not; return the claims that settled because of it."""
        if not latch.settled:
            self._node(latch.keys[latch.taken]).waiting.remove(latch)
        freed = deque(self._node(key) for key in latch.keys[: latch.taken])
        for node in freed:
            node.commit_ts = max(node.commit_ts, latch.commit_ts)
            node.holder = None
        latch.taken = 0
        settled = []
        for node in freed:
            while node.holder is None and node.waiting:
                waiter = node.waiting.popleft()
                if self.acquire(waiter):
                    settled.append(waiter)
        self._recycle(now_ms, len(latch.keys))
        return settled

    def _node(self, key: bytes) -> _Node:
        return self._slots[hash(key) & self._mask][key]

    def _recycle(self, now_ms: int, operations: int) -> None:
        self._operations += operations
        if self._operations < _RECYCLE_AFTER_OPERATIONS and now_ms - self._recycled_ms < _RECYCLE_EVERY_MS:
            return
        self._operations, self._recycled_ms = 0, now_ms
        for slot in self._slots:
            for key in [key for key, node in slot.items() if _forgettable(node, now_ms)]:
                del slot[key]

    def __len__(self) -> int:
        return sum(map(len, self._slots))


def _forgettable(node: _Node, now_ms: int) -> bool:
    return node.holder is None and physical_ms(node.commit_ts) + _EXPIRE_AFTER_MS < now_ms


class LocalLatches:
    """Holds latches around commits, waiting for those of other transactions."""

    def __init__(self, slots: int, *, clock: Clock) -> None:
        self._table = LatchTable(slots)
        self._clock = clock
        self._waiting: dict[Latch, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def hold(self, keys: Iterable[bytes], start_ts: int) -> AsyncIterator[Latch]:
        """Hold the keys for the block; raise WriteConflict when one was committed after `start_ts`.

        Set `commit_ts` on the latch inside the block once the keys are committed.
        """
        began = self._clock.monotonic()
        latch = self._table.claim(keys, start_ts)
        try:
            if not self._table.acquire(latch):
                self._waiting[latch] = asyncio.get_running_loop().create_future()
                await self._waiting[latch]
            latch.waited_s = self._clock.monotonic() - began
            metrics.KV_LOCAL_LATCH_WAIT_SECONDS.observe(latch.waited_s)
            if latch.stale_key is not None:
                raise WriteConflict(
                    latch.stale_key, start_ts=start_ts, conflict_ts=latch.stale_ts, reason="local latch"
                )
            yield latch
        finally:
            self._waiting.pop(latch, None)
            for settled in self._table.release(latch, self._clock.wall_ms()):
                waiter = self._waiting.pop(settled, None)
                if waiter is not None and not waiter.done():
                    waiter.set_result(None)
