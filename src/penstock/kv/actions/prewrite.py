"""The first phase: lock every key with its new value, or commit at once when the store grants that."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.clock import TS_MAX, physical_ms
from penstock.errors import AssertionFailed, PenstockError, Undetermined, WriteConflict
from penstock.kv.backoff import Backoffer, BackoffKind
from penstock.kv.batch_executor import MutationBatch
from penstock.kv.locks import Lock, to_error
from penstock.kv.scope import CommitScope, write_context
from penstock.kv.sender import RegionStale
from penstock.proto import kvrpcpb_pb2 as kvrpcpb

_ACTION = kvrpcpb.PrewriteRequest.PessimisticAction


@dataclass(slots=True)
class Prewrite:
    """Prewrites batches and lets their answers decide the protocol.

    Raises WriteConflict, KeyExists, Aborted, Unavailable; Undetermined when a request that may have
    committed the transaction got no answer. A failed assertion is kept in `assertion_error` until
    every batch is done, because any other error explains more.
    """

    scope: CommitScope
    assertion_error: AssertionFailed | None = None
    _lost: Exception | None = field(default=None, init=False)

    name = "2pc_prewrite"
    with_values = True
    primary_first = False
    stops_on_error = True

    @property
    def is_one_request(self) -> bool:
        """Whether the prewrite may be the commit, which takes one request."""
        return self.scope.state.try_one_pc

    def note_batches(self, batches: Sequence[MutationBatch]) -> None:
        """Give up one-phase commit unless there is exactly one batch."""
        state = self.scope.state
        if len(batches) > 1 and state.try_one_pc and self._lost is not None:
            raise self._undetermined_error(self._lost)
        state.note_batch_count(len(batches))

    async def apply(self, bo: Backoffer, batch: MutationBatch) -> None:
        """Prewrite one batch, all or none of its keys."""
        lost = [self._lost] if batch.regrouped and self._lost is not None else []
        try:
            await self._apply(bo, batch, lost)
        except RegionStale as stale:
            self._lost = lost[0] if lost else self._lost
            if lost and self.scope.state.decided_by_prewrite:
                stale.in_doubt = self._undetermined_error(lost[0])
            raise
        except PenstockError as error:
            if lost and self.scope.state.decided_by_prewrite:
                raise self._undetermined_error(lost[0]) from error
            raise

    async def _apply(self, bo: Backoffer, batch: MutationBatch, lost: list[Exception]) -> None:
        session = self.scope.txn.session
        while True:
            request = self._request(batch)
            answer = await session.router.sender.send(
                bo, "KvPrewrite", request, batch.location.region, on_rpc_error=lost.append
            )
            assert isinstance(answer, kvrpcpb.PrewriteResponse)
            if not answer.errors:
                self._take_answer(batch, answer)
                return
            locks = self._locks_in_the_way(answer.errors, in_doubt=bool(lost))
            if not locks:
                return
            with self.scope.details.span(session.clock, "resolve_lock"):
                wait_ms = (await session.resolver.resolve_for_write(bo, locks)).wait_ms
            if wait_ms:
                await bo.backoff(
                    BackoffKind.TXN_LOCK, f"transaction {locks[0].start_ts} holds locks", max_ms=wait_ms
                )

    def _take_answer(self, batch: MutationBatch, answer: kvrpcpb.PrewriteResponse) -> None:
        self.scope.state.take_answer(
            min_commit_ts=answer.min_commit_ts, one_pc_commit_ts=answer.one_pc_commit_ts
        )
        refreshed = self.scope.txn.session.settings.ttl_refreshed_txn_bytes
        if batch.is_primary and self.scope.txn_bytes > refreshed and not self.scope.state.one_pc_commit_ts:
            self.scope.txn.note_primary_locked()

    def _locks_in_the_way(self, errors: Sequence[kvrpcpb.KeyError], *, in_doubt: bool) -> list[Lock]:
        """Return the locks to resolve; raise what cannot be waited out."""
        start_ts = self.scope.txn.start_ts
        locks = []
        for error in errors:
            if error.HasField("locked"):
                locks.append(Lock.of(error.locked))
            elif error.HasField("assertion_failed"):
                found = to_error(error, start_ts)
                assert isinstance(found, AssertionFailed)
                self.assertion_error = self.assertion_error or found
            else:
                raise to_error(error, start_ts)
        for lock in locks:
            # A transaction that began later and locked first wins. But when an earlier attempt may have
            # committed this one, the lock may have come after that: the store decides.
            if not self.scope.txn.pessimistic and lock.start_ts > start_ts and not in_doubt:
                raise WriteConflict(lock.key, start_ts=start_ts, conflict_ts=lock.start_ts, reason="locked")
        return locks

    def _undetermined_error(self, cause: Exception) -> Undetermined:
        error = Undetermined(
            f"transaction {self.scope.txn.start_ts} may or may not be committed: the store did not answer"
            " its prewrite; read the keys before running it again"
        )
        error.__cause__ = cause
        return error

    def _request(self, batch: MutationBatch) -> kvrpcpb.PrewriteRequest:
        scope, txn, state = self.scope, self.scope.txn, self.scope.state
        mutations = batch.mutations
        asserts = any(mutations.assertions)
        request = kvrpcpb.PrewriteRequest(
            context=write_context(retry=batch.regrouped, txn_source=txn.txn_source),
            mutations=mutations.to_protos(),
            primary_lock=txn.primary,
            start_version=txn.start_ts,
            lock_ttl=self._ttl_ms(),
            txn_size=TS_MAX if batch.regrouped else batch.region_keys,
            for_update_ts=txn.for_update_ts if txn.pessimistic else 0,
            min_commit_ts=state.request_min_commit_ts(txn.for_update_ts),
            assertion_level=kvrpcpb.AssertionLevel.Strict if asserts else kvrpcpb.AssertionLevel.Off,
        )
        if txn.pessimistic:
            request.pessimistic_actions.extend(
                _ACTION.DO_PESSIMISTIC_CHECK if locked else _ACTION.SKIP_PESSIMISTIC_CHECK
                for locked in mutations.locked
            )
        if state.try_async:
            request.use_async_commit = True
            if batch.is_primary:
                request.secondaries.extend(scope.secondaries)
        if state.try_one_pc:
            request.try_one_pc = True
        if state.decided_by_prewrite:
            request.max_commit_ts = state.max_commit_ts
        return request

    def _ttl_ms(self) -> int:
        scope, txn, state = self.scope, self.scope.txn, self.scope.state
        if state.try_async and txn.pessimistic:
            # The lock must outlive every commit timestamp that the store may choose.
            return max(scope.lock_ttl_ms, physical_ms(state.max_commit_ts) - physical_ms(txn.start_ts) + 1)
        return scope.lock_ttl_ms
