"""The transactional storage: one coroutine for each RPC, and the waiting of pessimistic lock requests.

Every method takes the request and the raw-key bounds of its region, and returns the response. A refusal is in
the response, never raised. The caller has checked the region and the keys.
"""

from collections.abc import Sequence

from penstock.clock import Clock
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.settings import StoreSettings
from penstock.store.bounds import KeyBounds
from penstock.store.concurrency import ConcurrencyManager
from penstock.store.engine import Cf, Engine
from penstock.store.lock_waiting import LockWaiting, Waiter
from penstock.store.mvcc import failures, pessimistic, resolve
from penstock.store.mvcc.effects import Effects
from penstock.store.mvcc.failures import KeyRefused
from penstock.store.mvcc.pessimistic import LockedKey
from penstock.store.mvcc.prewrite import prewrite, reads_existence
from penstock.store.mvcc.reader import SCANNING, MvccReader, find_by_start_ts, mvcc_info
from penstock.store.mvcc.resolve import commit
from penstock.store.observe import ApplyObserver
from penstock.store.reading import StoreReader
from penstock.store.scheduler import TxnScheduler
from penstock.store.sweeping import Sweeping, fates_of, resolve_key


class Locking:
    """The pessimistic lock command: takes all locks of a request or none.

    One locked key makes the whole request wait; then it tries again or answers.
    """

    def __init__(
        self, scheduler: TxnScheduler, concurrency: ConcurrencyManager, waiting: LockWaiting, clock: Clock
    ) -> None:
        self._scheduler = scheduler
        self._concurrency = concurrency
        self._waiting = waiting
        self._clock = clock

    async def lock(self, request: kvrpcpb.PessimisticLockRequest) -> kvrpcpb.PessimisticLockResponse:
        """Take the locks; wait for locks of other transactions for as long as the request allows."""
        keys = [mutation.key for mutation in request.mutations]
        patience = self._waiting.patience(request.wait_timeout)
        deadline = self._clock.monotonic() + patience

        woken: Waiter | None = None

        def attempt(reader: MvccReader, effects: Effects) -> list[LockedKey] | Waiter:
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
                    return _granted_response(request, result)
                left = max(0.0, deadline - self._clock.monotonic())
                refused = await self._waiting.wait(result, left)
                if refused is not None:
                    return _refused_response(request, refused)
                woken = result
        except KeyRefused as refused:
            return _refused_response(request, refused)

    def _attempt(
        self,
        reader: MvccReader,
        effects: Effects,
        request: kvrpcpb.PessimisticLockRequest,
        *,
        can_wait: bool,
    ) -> list[LockedKey] | Waiter:
        results = []
        for mutation in request.mutations:
            try:
                results.append(pessimistic.lock_key(reader, effects, request, mutation))
            except KeyRefused as refused:
                if refused.lock is None or not can_wait:
                    raise
                effects.discard()
                # The latch is still held: no release can happen between this check and joining the queue.
                return self._waiting.enter(mutation.key, refused.lock, request)
        return results


def _holds_or_awaits(key: bytes, result: list[LockedKey] | Waiter, effects: Effects) -> bool:
    """Return whether the key is taken; others are woken when it becomes free."""
    if isinstance(result, Waiter):
        return result.key == key
    return any(key == taken for taken, _ in effects.acquired)


def _granted_response(
    request: kvrpcpb.PessimisticLockRequest, results: Sequence[LockedKey]
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


def _refused_response(
    request: kvrpcpb.PessimisticLockRequest, refused: KeyRefused
) -> kvrpcpb.PessimisticLockResponse:
    response = kvrpcpb.PessimisticLockResponse(errors=[refused.error])
    if request.wake_up_mode == kvrpcpb.WakeUpModeForceLock:
        for _ in request.mutations:
            response.results.add(type=kvrpcpb.LockResultFailed)
    return response


class TxnStorage:
    """Transactions over an engine.

    `max_ts` must be at or above every timestamp of a read before a restart, and `collected_ts` at or above
    every safe point up to which versions were collected.
    """

    def __init__(
        self, engine: Engine, *, clock: Clock, settings: StoreSettings, max_ts: int, collected_ts: int = 0
    ) -> None:
        self.engine = engine
        self._collected_ts = collected_ts
        locked = (key for key, _ in engine.view((Cf.LOCK,)).iterate(Cf.LOCK))
        self.concurrency = ConcurrencyManager(max_ts, locked)
        self._waiting = LockWaiting(
            clock, timeout_ms=settings.lock_wait_timeout_ms, wake_up_delay_ms=settings.wake_up_delay_ms
        )
        self._scheduler = TxnScheduler(engine, self.concurrency, self._waiting, clock)
        self._reading = StoreReader(engine, self.concurrency, clock)
        self._locking = Locking(self._scheduler, self.concurrency, self._waiting, clock)
        self._sweeping = Sweeping(engine, self._scheduler, clock=clock)

    @property
    def observer(self) -> ApplyObserver | None:
        """The observer of every durable change."""
        return self._scheduler.observer

    @observer.setter
    def observer(self, observer: ApplyObserver | None) -> None:
        self._scheduler.observer = observer

    async def close(self) -> None:
        """Stop background work; the engine stays open."""
        await self._waiting.close()

    async def kv_get(self, request: kvrpcpb.GetRequest, _: KeyBounds) -> kvrpcpb.GetResponse:
        """Read one key at a timestamp."""
        return self._reading.get(request)

    async def kv_batch_get(self, request: kvrpcpb.BatchGetRequest, _: KeyBounds) -> kvrpcpb.BatchGetResponse:
        """Read many keys at a timestamp."""
        return self._reading.batch_get(request)

    async def kv_scan(self, request: kvrpcpb.ScanRequest, bounds: KeyBounds) -> kvrpcpb.ScanResponse:
        """Read a range at a timestamp."""
        return await self._reading.scan(request, bounds)

    async def kv_prewrite(self, request: kvrpcpb.PrewriteRequest, _: KeyBounds) -> kvrpcpb.PrewriteResponse:
        """Lock the keys of a commit, or commit them at once if the client allows it."""

        def act(reader: MvccReader, effects: Effects) -> kvrpcpb.PrewriteResponse:
            if reads_existence(request):
                self.concurrency.update_max_ts(request.start_version)
            response = prewrite(reader, effects, request, self.concurrency.max_ts)
            if effects.mutations and request.start_version < self._collected_ts:
                effects.discard()  # what it conflicts with may have been collected
                return kvrpcpb.PrewriteResponse(
                    errors=[failures.before_safe_point(request.start_version).error]
                )
            return response

        return await self._scheduler.execute([mutation.key for mutation in request.mutations], act)

    async def kv_pessimistic_lock(
        self, request: kvrpcpb.PessimisticLockRequest, _: KeyBounds
    ) -> kvrpcpb.PessimisticLockResponse:
        """Lock keys before their data is known; wait for other transactions if needed."""
        return await self._locking.lock(request)

    async def kv_pessimistic_rollback(
        self, request: kvrpcpb.PessimisticRollbackRequest, bounds: KeyBounds
    ) -> kvrpcpb.PessimisticRollbackResponse:
        """Release pessimistic locks; without keys, all locks of the transaction in the region."""

        def act(reader: MvccReader, effects: Effects) -> None:
            for key in dict.fromkeys(request.keys):
                pessimistic.unlock_key(reader, effects, key, request.start_version, request.for_update_ts)

        if request.keys:
            await self._scheduler.execute(request.keys, act)
        else:
            await self._sweeping.unlock(request.start_version, request.for_update_ts, bounds)
        return kvrpcpb.PessimisticRollbackResponse()

    async def kv_commit(self, request: kvrpcpb.CommitRequest, _: KeyBounds) -> kvrpcpb.CommitResponse:
        """Turn locks into versions, all or none."""

        def act(reader: MvccReader, effects: Effects) -> None:
            for key in dict.fromkeys(request.keys):
                commit(reader, effects, key, request.start_version, request.commit_version)

        try:
            await self._scheduler.execute(request.keys, act)
        except KeyRefused as refused:
            return kvrpcpb.CommitResponse(error=refused.error)
        return kvrpcpb.CommitResponse(commit_version=request.commit_version)

    async def kv_cleanup(self, request: kvrpcpb.CleanupRequest, _: KeyBounds) -> kvrpcpb.CleanupResponse:
        """Roll a transaction back on one key, unless its lock is alive or it is committed."""

        def act(reader: MvccReader, effects: Effects) -> None:
            resolve.clean_up(
                reader,
                effects,
                request.key,
                request.start_version,
                missing=resolve.Missing.PROTECT,
                current_ts=request.current_ts,
            )

        self.concurrency.update_max_ts(request.start_version)
        try:
            await self._scheduler.execute((request.key,), act)
        except KeyRefused as refused:
            if refused.commit_ts:
                return kvrpcpb.CleanupResponse(commit_version=refused.commit_ts)
            return kvrpcpb.CleanupResponse(error=refused.error)
        return kvrpcpb.CleanupResponse()

    async def kv_batch_rollback(
        self, request: kvrpcpb.BatchRollbackRequest, _: KeyBounds
    ) -> kvrpcpb.BatchRollbackResponse:
        """Roll a transaction back on its keys, all or none."""

        def act(reader: MvccReader, effects: Effects) -> None:
            for key in dict.fromkeys(request.keys):
                resolve_key(reader, effects, key, request.start_version, 0)

        self.concurrency.update_max_ts(request.start_version)
        try:
            await self._scheduler.execute(request.keys, act)
        except KeyRefused as refused:
            return kvrpcpb.BatchRollbackResponse(error=refused.error)
        return kvrpcpb.BatchRollbackResponse()

    async def kv_check_txn_status(
        self, request: kvrpcpb.CheckTxnStatusRequest, _: KeyBounds
    ) -> kvrpcpb.CheckTxnStatusResponse:
        """Return the state of a transaction by its primary key; decide it when its lock has expired."""
        for ts in (request.lock_ts, request.current_ts, request.caller_start_ts):
            self.concurrency.update_max_ts(ts)
        try:
            return await self._scheduler.execute(
                (request.primary_key,),
                lambda reader, effects: resolve.check_txn_status(reader, effects, request),
            )
        except KeyRefused as refused:
            return kvrpcpb.CheckTxnStatusResponse(error=refused.error)

    async def kv_check_secondary_locks(
        self, request: kvrpcpb.CheckSecondaryLocksRequest, _: KeyBounds
    ) -> kvrpcpb.CheckSecondaryLocksResponse:
        """Return whether an async commit has all its secondary locks here, and make the answer final."""
        self.concurrency.update_max_ts(request.start_version)
        return await self._scheduler.execute(
            request.keys, lambda reader, effects: resolve.check_secondary_locks(reader, effects, request)
        )

    async def kv_txn_heart_beat(
        self, request: kvrpcpb.TxnHeartBeatRequest, _: KeyBounds
    ) -> kvrpcpb.TxnHeartBeatResponse:
        """Extend the life of a primary lock."""
        try:
            return await self._scheduler.execute(
                (request.primary_lock,), lambda reader, effects: resolve.heart_beat(reader, effects, request)
            )
        except KeyRefused as refused:
            return kvrpcpb.TxnHeartBeatResponse(error=refused.error)

    async def kv_resolve_lock(
        self, request: kvrpcpb.ResolveLockRequest, bounds: KeyBounds
    ) -> kvrpcpb.ResolveLockResponse:
        """Commit or roll back the locks of transactions whose fate is known."""

        def act(reader: MvccReader, effects: Effects) -> None:
            for key in dict.fromkeys(request.keys):
                resolve_key(reader, effects, key, request.start_version, request.commit_version)

        fates = fates_of(request)
        for start_ts in fates:
            self.concurrency.update_max_ts(start_ts)
        try:
            if request.keys:
                await self._scheduler.execute(request.keys, act)
            else:
                await self._sweeping.resolve(fates, bounds)
        except KeyRefused as refused:
            return kvrpcpb.ResolveLockResponse(error=refused.error)
        return kvrpcpb.ResolveLockResponse()

    async def kv_scan_lock(
        self, request: kvrpcpb.ScanLockRequest, bounds: KeyBounds
    ) -> kvrpcpb.ScanLockResponse:
        """List the locks of transactions up to a timestamp."""
        return self._reading.scan_locks(request, bounds)

    async def kv_gc(self, request: kvrpcpb.GCRequest, bounds: KeyBounds) -> kvrpcpb.GCResponse:
        """Drop the versions that no read or transaction at or after the safe point needs."""
        self._collected_ts = max(self._collected_ts, request.safe_point)
        await self._sweeping.collect(request.safe_point, bounds)
        return kvrpcpb.GCResponse()

    async def kv_delete_range(
        self, request: kvrpcpb.DeleteRangeRequest, bounds: KeyBounds
    ) -> kvrpcpb.DeleteRangeResponse:
        """Remove a range regardless of transactions; the client guarantees that nobody uses it."""
        within = bounds.clamp(request.start_key, request.end_key)
        if within is not None and not request.notify_only:
            await self._sweeping.remove(within)
        return kvrpcpb.DeleteRangeResponse()

    async def unsafe_destroy_range(
        self, request: kvrpcpb.UnsafeDestroyRangeRequest, bounds: KeyBounds
    ) -> kvrpcpb.UnsafeDestroyRangeResponse:
        """Remove a range regardless of transactions and regions."""
        within = bounds.clamp(request.start_key, request.end_key)
        if within is not None:
            await self._sweeping.remove(within)
        return kvrpcpb.UnsafeDestroyRangeResponse()

    async def mvcc_get_by_key(
        self, request: kvrpcpb.MvccGetByKeyRequest, _: KeyBounds
    ) -> kvrpcpb.MvccGetByKeyResponse:
        """Return the lock and all versions of a key."""
        return kvrpcpb.MvccGetByKeyResponse(
            info=mvcc_info(MvccReader(self.engine.view(SCANNING)), request.key)
        )

    async def mvcc_get_by_start_ts(
        self, request: kvrpcpb.MvccGetByStartTsRequest, bounds: KeyBounds
    ) -> kvrpcpb.MvccGetByStartTsResponse:
        """Return the lock and all versions of the first key that a transaction touched."""
        reader = MvccReader(self.engine.view(SCANNING))
        key = find_by_start_ts(reader, bounds, request.start_ts)
        if key is None:
            return kvrpcpb.MvccGetByStartTsResponse()
        return kvrpcpb.MvccGetByStartTsResponse(key=key, info=mvcc_info(reader, key))

    async def get_lock_wait_info(
        self, _: kvrpcpb.GetLockWaitInfoRequest, __: KeyBounds
    ) -> kvrpcpb.GetLockWaitInfoResponse:
        """Return which transactions wait for which."""
        return kvrpcpb.GetLockWaitInfoResponse(entries=self._waiting.entries())
