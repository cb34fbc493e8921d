"""One reader, many consumers: each consumer gets every batch once, in order, and at its own speed.

Each consumer has a queue. A consumer that does not keep up holds the reader back once its queue is full. When
another consumer has waited for it long enough, its queue is detached: its batches go to disk, and the reader
does not wait for it any more. Once it has taken everything from disk, it is attached again.
"""

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from penstock import metrics
from penstock.clock import SYSTEM, Clock
from penstock.errors import Aborted, Unavailable
from penstock.jobs.error_codes import CutOff

T = TypeVar("T")


class BatchQueue(Protocol[T]):
    """The batches of a detached queue. Thread-safe; may raise OSError."""

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""

    @property
    def empty(self) -> bool:
        """Whether everything was taken."""

    def append(self, batch: T) -> None:
        """Keep a batch."""

    def take(self) -> T | None:
        """Return the first batch; None when there is none now."""

    def close(self) -> None:
        """Free the disk space."""


@dataclass(slots=True)
class ConsumerQueue(Generic[T]):
    """What a consumer was given and has not taken. Pure: the caller holds the lock.

    Invariant: the batches that were not taken are in `batches`, then in `spool`, in order.
    """

    batches_max: int
    batches: deque[T] = field(default_factory=deque)
    spool: BatchQueue[T] | None = None
    asked: bool = False
    """Whether its consumer waits for a batch."""
    held_s: float = 0.0
    """How long others have waited for it."""
    closed: Exception | None = None
    """Why nothing more is given: the error that its consumer gets when it asks."""

    @property
    def attached(self) -> bool:
        """Whether the reader considers it."""
        return self.closed is None and self.spool is None

    @property
    def full(self) -> bool:
        """Whether the reader waits for it now."""
        return self.attached and len(self.batches) >= self.batches_max

    @property
    def starving(self) -> bool:
        """Whether its consumer waits for the reader."""
        return self.attached and self.asked and not self.batches


class SpoolTotals:
    """The bytes of all spools of a process, by account and spool. Thread-safe.

    When those of an account in `limits` together are above its limit, its largest spools are cut off.
    """

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._limits = dict(limits)
        self._lock = threading.Lock()
        self._spools: dict[str, dict[Hashable, tuple[int, Callable[[int], None]]]] = {}

    def put(self, account: str, spool: Hashable, nbytes: int, cut_off: Callable[[int], None]) -> None:
        """Count a spool that has so many bytes now; 0: it is gone.

        `cut_off` gets the limit; it may be called at once, or from another thread.
        """
        limit = self._limits.get(account)
        if limit is None:
            return
        chosen = []
        with self._lock:
            spools = self._spools.setdefault(account, {})
            spools.pop(spool, None)
            if nbytes:
                spools[spool] = nbytes, cut_off
            while sum(size for size, _ in spools.values()) > limit:
                largest = max(spools, key=lambda name: spools[name][0])
                chosen.append(spools.pop(largest)[1])
            if not spools:
                del self._spools[account]
        for cut in chosen:
            cut(limit)


UNCOUNTED = SpoolTotals({})
"""Spools without a limit of their account."""


class FanOut(Generic[T]):
    """The queues of all consumers, by name. One thread calls `give`, `end` or `fail`; each consumer, `take`.

    Consumers wait for another one's queue for at most `patience_s` in total. At most `batches_max` batches
    are in memory, beside those that the reader and the consumers hold. Each spool has at most `spool_bytes`:
    a consumer that needs more is cut off. `totals` counts the spools of `account`, and may cut one off too.
    """

    def __init__(
        self,
        names: Iterable[Hashable],
        *,
        batches_max: int,
        patience_s: float,
        spool_bytes: int,
        open_spool: Callable[[Hashable], BatchQueue[T]],
        account: str = "",
        totals: SpoolTotals = UNCOUNTED,
        clock: Clock = SYSTEM,
    ) -> None:
        self._account = account
        self._totals = totals
        self._queues = {name: ConsumerQueue[T](batches_max) for name in names}
        self._patience_s = patience_s
        self._spool_bytes = spool_bytes
        self._open_spool = open_spool
        self._clock = clock
        self._changed = threading.Condition()
        self._ended = False
        self._failure: Exception | None = None

    def give(self, batch: T) -> bool:
        """Put a batch into every queue, once there is room; return False when no consumer wants more."""
        with self._changed:
            self._attach()
            late = self._wait_for_room()
            for queue in self._queues.values():
                if queue.attached:
                    queue.batches.append(batch)
            self._changed.notify_all()
            spooled = [
                queue for queue in self._queues.values() if queue.closed is None and queue.spool is not None
            ]
        for queue, waiting in late:
            for earlier in waiting:
                self._spool(queue, earlier)
        for queue in spooled:
            self._spool(queue, batch)
        with self._changed:
            return any(queue.closed is None for queue in self._queues.values())

    def end(self) -> None:
        """Say that everything was given."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Say that the source failed: every consumer that asks from now on gets the error."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def take(self, name: Hashable) -> T | None:
        """Return the next batch, once there is one; None when all were taken.

        Raises the error of the source, CutOff when the consumer was too slow, Aborted when it was canceled,
        and Unavailable when its spool failed.
        """
        queue = self._queues[name]
        while True:
            with self._changed:
                spool = self._wait_for_batch(queue)
                if spool is None:
                    return queue.batches.popleft() if queue.batches else None
            try:
                batch = spool.take()
            except OSError as error:
                raise _spool_error(error) from error
            if batch is not None:  # else the queue was closed in the meantime
                return batch

    def _wait_for_batch(self, queue: ConsumerQueue[T]) -> BatchQueue[T] | None:
        """Wait until the queue has a batch, or all were taken; return the spool if the batch is there."""
        queue.asked = True
        self._changed.notify_all()
        try:
            while True:
                if queue.closed is not None:
                    raise queue.closed
                if self._failure is not None:
                    raise self._failure
                if queue.batches:
                    return None
                if queue.spool is not None and not queue.spool.empty:
                    return queue.spool
                if self._ended:
                    return None
                self._changed.wait()
        finally:
            queue.asked = False
            self._changed.notify_all()

    def close(self, name: Hashable, reason: Exception | None = None) -> None:
        """Give a consumer nothing more; it gets `reason` as its error, by default that it was canceled."""
        with self._changed:
            self._close(self._queues[name], reason or Aborted("the job was canceled"))

    def check(self, name: Hashable) -> None:
        """Raise the error of a consumer that gets nothing more."""
        with self._changed:
            closed = self._queues[name].closed
            if closed is not None:
                raise closed

    def _close(self, queue: ConsumerQueue[T], reason: Exception) -> None:
        if queue.closed is None:
            queue.closed = reason
        queue.batches.clear()
        if queue.spool is not None:
            queue.spool.close()
            self._count(queue, 0)
        self._changed.notify_all()

    def _count(self, queue: ConsumerQueue[T], nbytes: int) -> None:
        def cut_off(limit: int) -> None:
            with self._changed:
                self._close(
                    queue, _cut_off("the slow consumers of its account need", limit, "spool_bytes_max")
                )

        self._totals.put(self._account, id(queue), nbytes, cut_off)

    def _attach(self) -> None:
        for queue in self._queues.values():
            if queue.closed is None and queue.spool is not None and queue.spool.empty and not queue.batches:
                queue.spool.close()
                queue.spool = None
                self._count(queue, 0)

    def _wait_for_room(self) -> list[tuple[ConsumerQueue[T], list[T]]]:
        """Wait until no queue is full; return those for which others waited too long, with their batches."""
        late: list[tuple[ConsumerQueue[T], list[T]]] = []
        while full := [(name, queue) for name, queue in self._queues.items() if queue.full]:
            if not any(queue.starving for queue in self._queues.values()):
                self._changed.wait()
                continue
            patience_s = self._patience_s - max(queue.held_s for _, queue in full)
            if patience_s > 0:
                before = self._clock.monotonic()
                self._changed.wait(patience_s)
                for _, queue in full:
                    queue.held_s += self._clock.monotonic() - before
                continue
            for name, queue in full:
                if queue.held_s >= self._patience_s:
                    queue.spool = self._open_spool(name)
                    late.append((queue, list(queue.batches)))
                    queue.batches.clear()
                    metrics.JOBS_DETACHED_TOTAL.inc()
        return late

    def _spool(self, queue: ConsumerQueue[T], batch: T) -> None:
        """Put a batch on disk, without the lock: no other consumer waits for that."""
        reason: Exception | None = None
        assert queue.spool is not None, "a detached queue has a spool"
        try:
            queue.spool.append(batch)
            if queue.spool.nbytes > self._spool_bytes:
                reason = _cut_off(
                    "it is behind the other jobs of its table by", self._spool_bytes, "jobs.spool_bytes"
                )
            else:
                self._count(queue, queue.spool.nbytes)
        except OSError as error:
            reason = _spool_error(error)
        with self._changed:
            if reason is not None:
                self._close(queue, reason)
            elif queue.closed is not None:  # in the meantime: it may have been counted after that
                self._count(queue, 0)
            self._changed.notify_all()


def _cut_off(what: str, nbytes: int, setting: str) -> CutOff:
    metrics.JOBS_CUT_OFF_TOTAL.inc()
    return CutOff(
        f"{what} more than {nbytes} bytes on disk ({setting}); it catches up in an iteration of its own"
    )


def _spool_error(error: OSError) -> Unavailable:
    return Unavailable(f"the spool of a slow consumer failed ({error.strerror}); check the disk of jobs.data")
