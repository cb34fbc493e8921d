"""How far a subscription is complete: the resolved timestamp and the locks that hold it back."""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

__all__ = ["LockTable", "Resolver"]

_STALE_STARTS_MAX = 64  # starts of finished transactions kept before the heap is rebuilt


@dataclass(slots=True)
class LockTable:
    """The locks of unfinished transactions, by transaction.

    Invariant: `_starts` is a heap that holds every start_ts of `_keys`. It may also hold some of
    transactions that are finished; they are dropped when they come to the top, or all together once
    they outnumber the living.
    """

    _keys: dict[int, set[bytes]] = field(default_factory=dict)
    _starts: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def add(self, key: bytes, start_ts: int) -> None:
        """Track a lock; tracking it again changes nothing."""
        keys = self._keys.get(start_ts)
        if keys is not None:
            keys.add(key)
            return
        self._keys[start_ts] = {key}
        heappush(self._starts, start_ts)

    def remove(self, key: bytes, start_ts: int) -> bool:
        """Forget a lock; return whether it was tracked."""
        keys = self._keys.get(start_ts)
        if keys is None or key not in keys:
            return False
        keys.remove(key)
        if not keys:
            del self._keys[start_ts]
            if len(self._starts) > 2 * len(self._keys) + _STALE_STARTS_MAX:
                self._starts = list(self._keys)
                heapify(self._starts)
        return True

    def oldest(self) -> int | None:
        """Return the smallest start_ts of a tracked lock."""
        starts = self._starts
        while starts and starts[0] not in self._keys:
            heappop(starts)
        return starts[0] if starts else None


@dataclass(slots=True)
class Resolver:
    """The resolved timestamp of one subscription.

    Promise: after `resolve` has returned ts, no change with commit_ts <= ts arrives that is not
    sent already. The caller's bound covers every transaction whose prewrite was not seen yet (see
    progress.py); a transaction whose lock is tracked commits above its start_ts.

    Invariant: `resolved_ts` never decreases. A lock may be tracked late with a start_ts below it; the
    proof of the bound says that such a transaction commits above it all the same.
    """

    locks: LockTable = field(default_factory=LockTable)
    resolved_ts: int = 0

    def resolve(self, bound: int) -> int:
        """Take a new bound into account; return the resolved timestamp."""
        oldest = self.locks.oldest()
        ts = bound if oldest is None else min(bound, oldest)
        self.resolved_ts = max(self.resolved_ts, ts)
        return self.resolved_ts

    def resolve_at_least(self, ts: int) -> None:
        """Never report less than `ts` again: it was reported on behalf of this subscription."""
        self.resolved_ts = max(self.resolved_ts, ts)
