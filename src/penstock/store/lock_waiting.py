"""Pessimistic lock requests that wait for another transaction's lock, and the detection of deadlocks.

`DeadlockDetector` keeps the graph of waits; `LockWaiting` keeps the queues.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock import metrics
from penstock.clock import Clock
from penstock.proto import deadlock_pb2 as deadlock
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto.fingerprint import fingerprint64
from penstock.store.mvcc import failures
from penstock.store.mvcc.effects import ReleasedLock
from penstock.store.mvcc.failures import KeyRefused, Reason
from penstock.store.mvcc.records import LockRecord

Chain = list[deadlock.WaitForEntry]


class _Edge(NamedTuple):
    entry: deadlock.WaitForEntry
    seen_at: float


@dataclass(slots=True)
class DeadlockDetector:
    """The graph of waits. An edge that nobody removes expires `ttl_s` after it was last seen.

    Invariant: the live edges have no cycle, because an edge that would close one is refused.
    """

    ttl_s: float
    _edges: dict[int, dict[int, dict[bytes, _Edge]]] = field(default_factory=dict)  # txn, wait_for, key

    def detect(self, entry: deadlock.WaitForEntry, now: float) -> Chain | None:
        """Add a wait and return None, or refuse it and return the cycle that it would close.

        The cycle begins with the lock's holder; its last entry is the refused one, and the one before
        that is the wait for the refused transaction.
        """
        path = self._path(entry.wait_for_txn, entry.txn, now)
        if path is not None:
            return [*path, entry]
        waits = self._edges.setdefault(entry.txn, {}).setdefault(entry.wait_for_txn, {})
        waits[entry.key] = _Edge(entry, now)
        return None

    def remove(self, entry: deadlock.WaitForEntry) -> None:
        """Forget a wait that is over; it may be gone already."""
        targets = self._edges.get(entry.txn, {})
        waits = targets.get(entry.wait_for_txn, {})
        waits.pop(entry.key, None)
        if not waits:
            targets.pop(entry.wait_for_txn, None)
        if not targets:
            self._edges.pop(entry.txn, None)

    def is_empty(self) -> bool:
        """Return whether nobody waits."""
        return not self._edges

    def _path(self, source: int, target: int, now: float) -> Chain | None:
        """Return the waits that lead from one transaction to another, if any do."""
        came_by: dict[int, deadlock.WaitForEntry] = {}
        stack = [source]
        while stack:
            txn = stack.pop()
            for waited_for, entry in self._live(txn, now):
                if waited_for in came_by or waited_for == source:
                    continue
                came_by[waited_for] = entry
                if waited_for == target:
                    return _trace(came_by, source, target)
                stack.append(waited_for)
        return None

    def _live(self, txn: int, now: float) -> list[tuple[int, deadlock.WaitForEntry]]:
        targets = self._edges.get(txn, {})
        live = []
        for waited_for, waits in list(targets.items()):
            for key, edge in list(waits.items()):
                if now - edge.seen_at > self.ttl_s:
                    del waits[key]
            if waits:
                live.append((waited_for, next(iter(waits.values())).entry))
            else:
                del targets[waited_for]
        return live


def _trace(came_by: dict[int, deadlock.WaitForEntry], source: int, target: int) -> Chain:
    chain = []
    txn = target
    while txn != source:
        entry = came_by[txn]
        chain.append(entry)
        txn = entry.txn
    chain.reverse()
    return chain


@dataclass(slots=True, eq=False)
class Waiter:
    """A request that waits for `lock` on `key`.

    `resumes`: when the lock goes away, the request tries again in place; otherwise it is answered with a
    conflict, and the client repeats it with a new timestamp. `detects`: its waits can be part of a cycle.
    """

    key: bytes
    lock: LockRecord
    start_ts: int
    primary: bytes
    resumes: bool
    detects: bool
    tag: bytes
    began_at: float
    updated_at: float  # when another lock was last seen in the way
    woken: "asyncio.Future[KeyRefused | None]" = field(default_factory=asyncio.Future)
    gone: ReleasedLock | None = None  # the lock whose end let it try again in place

    def entry(self, now: float) -> deadlock.WaitForEntry:
        """Return the wait as an edge of the graph."""
        return deadlock.WaitForEntry(
            txn=self.start_ts,
            wait_for_txn=self.lock.start_ts,
            key_hash=fingerprint64(self.key),
            key=self.key,
            resource_group_tag=self.tag,
            wait_time=int((now - self.began_at) * 1000),
        )

    def wake(self, answer: KeyRefused | None) -> None:
        """Let the request continue, once."""
        if not self.woken.done():
            self.woken.set_result(answer)

    def yield_to(self, gone: ReleasedLock) -> None:
        """Let the request take the key of a lock that went away."""
        if self.resumes:
            self.gone = gone
        self.wake(None if self.resumes else _conflict(self, gone))


class LockWaiting:
    """Queues of waiting requests, one for each locked key.

    When a lock goes away, the request of the oldest transaction is woken at once. The others are woken a
    little later, so that the first usually finds the key free. But behind a request that takes the lock in
    place they keep waiting, for the new holder, unless it fails to take the lock.
    """

    def __init__(self, clock: Clock, *, timeout_ms: int, wake_up_delay_ms: int) -> None:
        self._clock = clock
        self._timeout_s = timeout_ms / 1000
        self._delay_s = wake_up_delay_ms / 1000
        self._detector = DeadlockDetector(self._timeout_s)
        self._queues: dict[bytes, list[Waiter]] = {}
        self._wakers: set[asyncio.Task[None]] = set()

    def patience(self, wait_timeout_ms: int) -> float:
        """Return for how many seconds a request may wait; 0 when it declines to wait."""
        if wait_timeout_ms < 0:
            return 0
        return min(wait_timeout_ms / 1000, self._timeout_s) if wait_timeout_ms else self._timeout_s

    def enter(self, key: bytes, lock: LockRecord, request: kvrpcpb.PessimisticLockRequest) -> Waiter:
        """Join the queue of a key, while its latch is held; raise KeyRefused when that closes a cycle."""
        now = self._clock.monotonic()
        waiter = Waiter(
            key,
            lock,
            request.start_version,
            request.primary_lock,
            resumes=bool(request.wake_up_mode == kvrpcpb.WakeUpModeForceLock),
            detects=not request.is_first_lock,  # a transaction without locks keeps nobody waiting
            tag=request.context.resource_group_tag,
            began_at=now,
            updated_at=now,
        )
        deadlock = self._detect(waiter)
        if deadlock is not None:
            raise deadlock
        self._queues.setdefault(key, []).append(waiter)
        return waiter

    async def wait(self, waiter: Waiter, patience_s: float) -> KeyRefused | None:
        """Wait until the lock may be tried again (None) or the request must be answered with a refusal."""
        timer = asyncio.ensure_future(self._clock.sleep(patience_s))
        outcome = "cancelled"
        try:
            await asyncio.wait((waiter.woken, timer), return_when=asyncio.FIRST_COMPLETED)
            outcome = "woken" if waiter.woken.done() else "timeout"
            return waiter.woken.result() if waiter.woken.done() else self._timeout_refusal(waiter)
        finally:
            timer.cancel()
            self._leave(waiter)
            if outcome == "cancelled":
                self.pass_on(waiter)
            waited = self._clock.monotonic() - waiter.began_at
            metrics.STORE_LOCK_WAIT_SECONDS.labels(outcome).observe(waited)

    def notice(self, acquired: Iterable[tuple[bytes, LockRecord]], released: Iterable[ReleasedLock]) -> None:
        """Take note of the locks that a durable write took and released."""
        if not self._queues:
            return
        for key, lock in acquired:
            for waiter in tuple(self._queues.get(key, ())):
                if lock.start_ts not in {waiter.lock.start_ts, waiter.start_ts}:
                    self._retarget(waiter, lock)
        for gone in released:
            queue = self._queues.get(gone.key)
            if queue:
                self._wake(queue, gone)

    def pass_on(self, waiter: Waiter) -> None:
        """Give others their turn at a key that a woken request did not take."""
        gone, waiter.gone = waiter.gone, None
        queue = self._queues.get(waiter.key)
        if queue and gone is not None:
            self._wake(queue, gone)

    def entries(self) -> list[deadlock.WaitForEntry]:
        """Return every wait as an edge of the graph."""
        now = self._clock.monotonic()
        return [waiter.entry(now) for queue in self._queues.values() for waiter in queue]

    async def close(self) -> None:
        """Wake no more requests; those that still wait run into their timeout."""
        for waker in self._wakers:
            waker.cancel()
        await asyncio.gather(*self._wakers, return_exceptions=True)

    def _wake(self, queue: Sequence[Waiter], gone: ReleasedLock) -> None:
        waiting = sorted((w for w in queue if not w.woken.done()), key=lambda w: w.start_ts)
        if not waiting:
            return
        first, *others = waiting
        first.yield_to(gone)
        if others and not first.resumes:
            waker = asyncio.ensure_future(self._wake_later(others, gone))
            self._wakers.add(waker)
            waker.add_done_callback(self._wakers.discard)

    async def _wake_later(self, others: Sequence[Waiter], gone: ReleasedLock) -> None:
        await self._clock.sleep(self._delay_s)
        for waiter in others:
            if waiter.woken.done():
                continue
            waiter.yield_to(gone)
            if waiter.resumes:
                return

    def _retarget(self, waiter: Waiter, lock: LockRecord) -> None:
        now = self._clock.monotonic()
        self._detector.remove(waiter.entry(now))
        waiter.lock = lock
        waiter.updated_at = now
        deadlock = self._detect(waiter)
        if deadlock is not None:
            waiter.wake(deadlock)

    def _detect(self, waiter: Waiter) -> KeyRefused | None:
        if not waiter.detects:
            return None
        now = self._clock.monotonic()
        chain = self._detector.detect(waiter.entry(now), now)
        if chain is None:
            return None
        metrics.STORE_DEADLOCKS_TOTAL.inc()
        return failures.deadlock_refusal(waiter.key, waiter.lock.start_ts, closing=chain[-2], chain=chain)

    def _leave(self, waiter: Waiter) -> None:
        self._detector.remove(waiter.entry(waiter.began_at))
        queue = self._queues[waiter.key]
        queue.remove(waiter)
        if not queue:
            del self._queues[waiter.key]

    def _timeout_refusal(self, waiter: Waiter) -> KeyRefused:
        refused = failures.key_is_locked(waiter.key, waiter.lock)
        since = self._clock.monotonic() - waiter.updated_at
        refused.error.locked.duration_to_last_update_ms = max(1, int(since * 1000))
        return refused


def _conflict(waiter: Waiter, gone: ReleasedLock) -> KeyRefused:
    return failures.write_conflict(
        waiter.key,
        start_ts=waiter.start_ts,
        primary=waiter.primary,
        conflict_ts=gone.start_ts,
        commit_ts=gone.commit_ts,
        reason=Reason.PessimisticRetry,
    )
