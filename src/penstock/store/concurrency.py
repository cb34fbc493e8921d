"""The newest read timestamp, and the locks that are decided but not yet visible.

Why an async or one-phase commit never changes what a snapshot has shown: a read first raises `max_ts` to its
timestamp, then checks the guards, then takes its view. A prewrite first sets its guards, then takes a commit
timestamp above `max_ts`, then queues its write; the guards stay until the write is visible. So for a read and
a prewrite of the same key there are three cases: the read came first, and the commit lies after it; or the
read meets the guard; or the view shows the write. Each of the two sequences runs on the event loop without a
pause, so the order of its steps does not matter to the other.

The same holds for the keys that may be locked: a key is noted before the write of its lock is queued, and
forgotten after the removal is visible. So a view taken now shows no lock of a key that is not noted.
"""

from collections.abc import Iterable, Iterator, Sequence

from penstock.clock import TS_MAX
from penstock.store.bounds import KeyBounds
from penstock.store.mvcc.records import LockRecord

_SUSPECTS_MAX = 1024  # up to so many noted keys, a range checks them one by one


class ConcurrencyManager:
    """`max_ts` never decreases; a key has at most one guard, because its latch is held meanwhile.

    `locked` are the keys that have a lock when the storage starts.
    """

    def __init__(self, max_ts: int, locked: Iterable[bytes] = ()) -> None:
        self.max_ts = max_ts
        self._guards: dict[bytes, LockRecord] = {}
        self._noted = set(locked)

    def update_max_ts(self, ts: int) -> None:
        """Record a read at `ts`. TS_MAX means "the newest version" and no moment, so it is ignored."""
        if self.max_ts < ts < TS_MAX:
            self.max_ts = ts

    def guard(self, locks: Iterable[tuple[bytes, LockRecord]]) -> None:
        """Let readers meet these locks from now on."""
        self._guards.update(locks)

    def lift(self, locks: Iterable[tuple[bytes, LockRecord]]) -> None:
        """Forget guards whose write is visible."""
        for key, _ in locks:
            self._guards.pop(key, None)  # a request may name a key twice

    def guards_of(self, keys: Iterable[bytes]) -> Iterator[tuple[bytes, LockRecord]]:
        """Yield the guards on some keys."""
        if self._guards:
            for key in keys:
                lock = self._guards.get(key)
                if lock is not None:
                    yield key, lock

    def guards_in(self, bounds: KeyBounds) -> Iterator[tuple[bytes, LockRecord]]:
        """Yield the guards inside a range, in key order."""
        return iter(sorted((item for item in self._guards.items() if bounds.contains(item[0])), key=_by_key))

    def note_locks(self, locks: Iterable[tuple[bytes, LockRecord]]) -> None:
        """Expect locks on these keys from now on."""
        self._noted.update([key for key, _ in locks])

    def forget_locks(self, keys: Iterable[bytes]) -> None:
        """Expect no locks on these keys any more: their removal is visible."""
        self._noted.difference_update(keys)

    def may_be_locked(self, key: bytes) -> bool:
        """Return whether a view taken now may show a lock of the key."""
        return key in self._noted

    def suspects(self, bounds: KeyBounds) -> Sequence[bytes] | None:
        """Return the keys of a range that a view taken now may show a lock of, in order.

        Return None when so many keys are locked that reading the range of locks is cheaper.
        """
        if len(self._noted) > _SUSPECTS_MAX:
            return None
        return sorted(filter(bounds.contains, self._noted)) if self._noted else ()

    def min_lock_ts(self) -> int | None:
        """Return the oldest start timestamp among the guards: what it commits is not visible yet."""
        return min((lock.start_ts for lock in self._guards.values()), default=None)


def _by_key(item: tuple[bytes, LockRecord]) -> bytes:
    return item[0]
