"""Bytes in flight between a source and its consumer, bounded by a quota."""

import threading
from collections import deque
from collections.abc import Callable

__all__ = ["Cancelled", "InflightQuota", "QuotaOwner"]


class Cancelled(Exception):
    """A batch was refused: its span was cancelled, or the pipeline closed. It has to be pulled again."""


class QuotaOwner:
    """A taker of quota. Once `cancelled`, it gets none."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False


class _QuotaWaiter:
    __slots__ = ("granted", "owner", "turn", "weight")

    def __init__(self, weight: int, owner: QuotaOwner) -> None:
        self.weight = weight
        self.owner = owner
        self.granted = False
        self.turn = threading.Lock()
        self.turn.acquire()


class InflightQuota:
    """A weighted semaphore that serves callers in the order of their requests.

    Invariant: `used` is the sum of the weights taken and not released. It
    exceeds `limit` only while one batch that is heavier than the whole limit is alone in flight.
    """

    def __init__(self, limit: int) -> None:
        assert limit > 0
        self.limit = limit
        self.used = 0
        self._taken = 0  # batches since the start
        self._released = 0
        self._waited = 0
        self._reported = 0
        self._lock = threading.Lock()
        self._waiting: deque[_QuotaWaiter] = deque()
        self._closed = False

    @property
    def batches(self) -> int:
        """How many batches hold quota."""
        return self._taken - self._released

    def try_acquire(self, weight: int, owner: QuotaOwner) -> bool:
        """Take quota for one batch if no other caller waits and it fits; return whether it did.

        Raises Cancelled when the owner is cancelled or the quota closed.
        """
        with self._lock:
            if owner.cancelled or self._closed:
                raise Cancelled
            used = self.used + weight
            if self._waiting or (used > self.limit and used != weight):
                return False
            self.used = used
            self._taken += 1
            return True

    def acquire(self, weight: int, owner: QuotaOwner) -> None:
        """Take quota for one batch, after the callers that asked before.

        Raises Cancelled, having taken nothing, when the owner is cancelled or the quota closed,
        before or during the wait.
        """
        with self._lock:
            if owner.cancelled or self._closed:
                raise Cancelled
            waiter = _QuotaWaiter(weight, owner)
            self._waiting.append(waiter)
            self._admit()
        waiter.turn.acquire()
        if not waiter.granted:
            raise Cancelled

    def release(self, weight: int, batches: int = 1) -> None:
        """Give back the weight of some batches and admit the callers that waited for it."""
        with self._lock:
            self.used -= weight
            self._released += batches
            assert self.used >= 0, "quota was released twice"
            if self._waiting:
                self._admit()

    def cancel(self, owner: QuotaOwner) -> None:
        """Refuse the owner from now on; callers that wait for it get Cancelled."""
        with self._lock:
            owner.cancelled = True
            self._dismiss(lambda waiter: waiter.owner is owner)
            self._admit()

    def close(self) -> None:
        """Refuse all callers from now on."""
        with self._lock:
            self._closed = True
            self._dismiss(lambda _: True)

    def take_unwaited(self) -> int:
        """Return how many batches got in without waiting since the last call."""
        with self._lock:
            unwaited = self._taken - self._waited
            count = unwaited - self._reported
            self._reported = unwaited
            return count

    def _admit(self) -> None:
        while self._waiting:
            weight = self._waiting[0].weight
            if self.used + weight > self.limit and self.used:
                return
            waiter = self._waiting.popleft()
            self.used += weight
            self._taken += 1
            self._waited += 1
            waiter.granted = True
            waiter.turn.release()

    def _dismiss(self, refused: Callable[[_QuotaWaiter], bool]) -> None:
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            if refused(waiter):
                waiter.turn.release()
            else:
                self._waiting.append(waiter)
