"""Pessimistic locks: taken before keys are written, and rolled back."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.errors import Deadlock, LockTimeout
from penstock.kv.backoff import Backoffer, BackoffKind
from penstock.kv.batch_executor import MutationBatch
from penstock.kv.locks import Lock, to_error
from penstock.kv.scope import TxnScope, write_context
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto.fingerprint import fingerprint64

NO_WAIT = -1
_TOO_FRESH_MS = 300  # a lock changed this recently has a live owner: do not ask for its status
_AT_ONCE_S = 0.01


@dataclass(slots=True)
class LockWait:
    """How long a call waits for locks, over all its requests."""

    deadline: float  # of the clock's monotonic time
    no_wait: bool

    def timeout_ms(self, now: float) -> int:
        """Return the wait to ask of the store."""
        left_ms = int((self.deadline - now) * 1000)
        return NO_WAIT if self.no_wait or left_ms <= 0 else left_ms

    def over(self, now: float) -> bool:
        """Whether the call must fail now rather than go on waiting."""
        return self.no_wait or now >= self.deadline


@dataclass(slots=True)
class PessimisticLock:
    """Locks keys at the transaction's for_update_ts; learns whether each exists and, if asked, its value.

    Raises WriteConflict when a key was committed after for_update_ts, Deadlock, KeyExists where the
    keys must not exist, LockTimeout when the wait is over.
    """

    scope: TxnScope
    wait: LockWait
    keys: Sequence[bytes]  # of the whole call
    must_not_exist: bool = False
    return_values: bool = False
    is_first_lock: bool = False
    values: dict[bytes, bytes | None] = field(default_factory=dict)
    existing: set[bytes] = field(default_factory=set)

    name = "2pc_pessimistic_lock"
    with_values = False
    primary_first = True
    is_one_request = False
    stops_on_error = True

    def note_batches(self, batches: Sequence[MutationBatch]) -> None:
        """Do nothing: the action works with any number of batches."""

    async def apply(self, bo: Backoffer, batch: MutationBatch) -> None:
        """Lock the keys of one batch, all or none of them."""
        session = self.scope.session
        clock = session.clock
        while True:
            sent_at = clock.monotonic()
            answer = await session.router.send_to_region(
                bo,
                "KvPessimisticLock",
                self._request(batch, sent_at),
                batch.location,
                kvrpcpb.PessimisticLockResponse,
            )
            if not answer.errors:
                self._take_answer(batch, answer)
                return
            locks = self._locks_in_the_way(answer.errors)
            wait_ms = await self._clear(bo, locks)
            now = clock.monotonic()
            if wait_ms and self.wait.over(now):
                raise LockTimeout(locks[0].key, no_wait=self.wait.no_wait)
            if wait_ms and now - sent_at < _AT_ONCE_S:
                # The store did not wait for the lock itself.
                await bo.backoff(BackoffKind.TXN_LOCK_FAST, "a key is locked", max_ms=wait_ms)

    def _locks_in_the_way(self, errors: Sequence[kvrpcpb.KeyError]) -> list[Lock]:
        for error in errors:
            if error.HasField("deadlock"):
                raise self._deadlock(error.deadlock)
            if not error.HasField("locked"):
                raise to_error(error, self.scope.start_ts)
        return [Lock.of(error.locked) for error in errors]

    def _deadlock(self, found: kvrpcpb.Deadlock) -> Deadlock:
        """Return the error; repeating the call can help when the cycle went through its own keys."""
        return Deadlock(
            found.lock_key,
            waits_for_ts=found.lock_ts,
            retryable=found.deadlock_key_hash in map(fingerprint64, self.keys),
            wait_chain=tuple((entry.txn, entry.wait_for_txn) for entry in found.wait_chain),
        )

    async def _clear(self, bo: Backoffer, locks: Sequence[Lock]) -> int:
        """Resolve locks of dead transactions; return the milliseconds that a live one may last, or 0."""
        fresh = [lock for lock in locks if lock.age_ms is not None and lock.age_ms < _TOO_FRESH_MS]
        if fresh and not self.wait.no_wait:
            return _TOO_FRESH_MS
        return (await self.scope.session.resolver.resolve_for_write(bo, locks)).wait_ms

    def _request(self, batch: MutationBatch, now: float) -> kvrpcpb.PessimisticLockRequest:
        scope = self.scope
        exists = kvrpcpb.Assertion
        assertion = exists.NotExist if self.must_not_exist else exists.NoAssertion
        return kvrpcpb.PessimisticLockRequest(
            context=write_context(),
            mutations=[
                kvrpcpb.Mutation(op=kvrpcpb.Op.PessimisticLock, key=key, assertion=assertion)
                for key in batch.mutations.keys
            ],
            primary_lock=scope.primary,
            start_version=scope.start_ts,
            lock_ttl=scope.elapsed_ms() + scope.session.settings.lock_ttl_ms,
            for_update_ts=scope.for_update_ts,
            is_first_lock=self.is_first_lock,
            wait_timeout=self.wait.timeout_ms(now),
            return_values=self.return_values,
            check_existence=True,
            min_commit_ts=scope.for_update_ts + 1,
        )

    def _take_answer(self, batch: MutationBatch, answer: kvrpcpb.PessimisticLockResponse) -> None:
        keys = batch.mutations.keys
        self.existing.update(
            key for key, not_found in zip(keys, answer.not_founds, strict=True) if not not_found
        )
        if self.return_values:
            self.values.update(
                (key, value if key in self.existing else None)
                for key, value in zip(keys, answer.values, strict=True)
            )
        if batch.is_primary:
            self.scope.note_primary_locked()


@dataclass(slots=True)
class PessimisticRollback:
    """Removes pessimistic locks taken at `for_update_ts` or before; later ones of the transaction stay."""

    scope: TxnScope
    for_update_ts: int

    name = "2pc_pessimistic_rollback"
    with_values = False
    primary_first = False
    is_one_request = False
    stops_on_error = False

    def note_batches(self, batches: Sequence[MutationBatch]) -> None:
        """Do nothing: the action works with any number of batches."""

    async def apply(self, bo: Backoffer, batch: MutationBatch) -> None:
        """Unlock the keys of one batch."""
        request = kvrpcpb.PessimisticRollbackRequest(
            context=write_context(),
            start_version=self.scope.start_ts,
            for_update_ts=self.for_update_ts,
            keys=batch.mutations.keys,
        )
        answer = await self.scope.session.router.send_to_region(
            bo, "KVPessimisticRollback", request, batch.location, kvrpcpb.PessimisticRollbackResponse
        )
        if answer.errors:
            raise to_error(answer.errors[0], self.scope.start_ts)
