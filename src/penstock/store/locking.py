"""The pessimistic lock command: try, wait, try again or answer."""

from collections.abc import Sequence

from penstock.clock import Clock
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.store.concurrency import ConcurrencyManager
from penstock.store.lock_waiting import LockWaiting, Waiter
from penstock.store.mvcc import pessimistic
from penstock.store.mvcc.effects import Effects
from penstock.store.mvcc.failures import KeyRefused
from penstock.store.mvcc.pessimistic import Locked
from penstock.store.mvcc.reader import MvccReader
from penstock.store.scheduler import TxnScheduler


class Locking:
    """Takes all locks of a request or none; one key in the way makes the whole request wait."""

    def __init__(
        self, scheduler: TxnScheduler, concurrency: ConcurrencyManager, waiting: LockWaiting, clock: Clock
    ) -> None:
        self._scheduler = scheduler
        self._concurrency = concurrency
        self._waiting = waiting
        self._clock = clock

    async def lock(self, request: kvrpcpb.PessimisticLockRequest) -> kvrpcpb.PessimisticLockResponse:
        """Take the locks, waiting for others to give theirs up for as long as the request allows."""
        keys = [mutation.key for mutation in request.mutations]
        patience = self._waiting.patience(request.wait_timeout)
        deadline = self._clock.monotonic() + patience

        woken: Waiter | None = None

        def attempt(reader: MvccReader, effects: Effects) -> list[Locked] | Waiter:
            if pessimistic.reads_value(request):
                self._concurrency.update_max_ts(request.for_update_ts)
            result = self._attempt(reader, effects, request, can_wait=patience > 0)
            if woken is not None and _holds_or_awaits(woken.key, result, effects):
                woken.gone = None
            return result

        try:
            while True:
                try:
                    result = await self._scheduler.execute(keys, attempt)
                finally:
                    if woken is not None:
                        self._waiting.pass_on(woken)
                if not isinstance(result, Waiter):
                    return _taken(request, result)
                left = max(0.0, deadline - self._clock.monotonic())
                refused = await self._waiting.wait(result, left)
                if refused is not None:
                    return _refused(request, refused)
                woken = result
        except KeyRefused as refused:
            return _refused(request, refused)

    def _attempt(
        self,
        reader: MvccReader,
        effects: Effects,
        request: kvrpcpb.PessimisticLockRequest,
        *,
        can_wait: bool,
    ) -> list[Locked] | Waiter:
        results = []
        for mutation in request.mutations:
            try:
                results.append(pessimistic.lock_key(reader, effects, request, mutation))
            except KeyRefused as refused:
                if refused.lock is None or not can_wait:
                    raise
                effects.discard()
                # The latch is still held: a release cannot slip in between this look and the queue.
                return self._waiting.enter(mutation.key, refused.lock, request)
        return results


def _holds_or_awaits(key: bytes, result: list[Locked] | Waiter, effects: Effects) -> bool:
    """Tell whether the key is no longer free: others are woken when it is again."""
    if isinstance(result, Waiter):
        return result.key == key
    return any(key == taken for taken, _ in effects.acquired)


def _taken(
    request: kvrpcpb.PessimisticLockRequest, results: Sequence[Locked]
) -> kvrpcpb.PessimisticLockResponse:
    response = kvrpcpb.PessimisticLockResponse()
    if request.wake_up_mode == kvrpcpb.WakeUpModeForceLock:
        for result in results:
            response.results.add(
                type=kvrpcpb.LockResultLockedWithConflict if result.conflict_ts else kvrpcpb.LockResultNormal,
                value=result.value or b"",
                existence=result.exists,
                locked_with_conflict_ts=result.conflict_ts,
            )
        return response
    if request.return_values:
        response.values.extend(result.value or b"" for result in results)
    if request.return_values or request.check_existence:
        response.not_founds.extend(not result.exists for result in results)
    return response


def _refused(request: kvrpcpb.PessimisticLockRequest, refused: KeyRefused) -> kvrpcpb.PessimisticLockResponse:
    response = kvrpcpb.PessimisticLockResponse(errors=[refused.error])
    if request.wake_up_mode == kvrpcpb.WakeUpModeForceLock:
        for _ in request.mutations:
            response.results.add(type=kvrpcpb.LockResultFailed)
    return response
