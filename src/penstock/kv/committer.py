"""The commit protocol: prewrite, then one of three ways to the end.

One phase: the prewrite was the commit. Async commit: the prewrite decided, the locks are turned into
versions in the background. Two phases: a commit timestamp is fetched, the schema checked at it, the
primary committed, and the secondaries follow in the background. When the newer schema asks for more
writes, `amend` locks them and they join the commit.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock import metrics
from penstock.errors import Aborted, PenstockError, Undetermined
from penstock.kv import backoff
from penstock.kv.actions.commit import Cleanup, Commit
from penstock.kv.actions.pessimistic import LockWait, PessimisticLock, PessimisticRollback
from penstock.kv.actions.prewrite import Prewrite
from penstock.kv.background import abandon
from penstock.kv.batch_executor import BatchExecutor
from penstock.kv.details import CommitDetails
from penstock.kv.mutations import DELETE, INSERT, PUT, Mutations, lock_ttl_ms
from penstock.kv.protocol import (
    CHECKS_ONLY,
    BinlogHook,
    CommitOptions,
    CommitState,
    Mode,
    SchemaHook,
    Write,
    check_age,
    check_commit_ts,
)
from penstock.kv.scope import CommitScope, TxnScope

_AMEND_WAIT_S = 5.0
_RESERVED_MS_MAX = 1_000  # later, a reader has probably passed the reserved timestamp
_WRITE_KEYS = metrics.KV_TXN_WRITE_KV_NUM.labels("general")
_WRITE_BYTES = metrics.KV_TXN_WRITE_SIZE_BYTES.labels("general")
_COUNTERS = {
    Mode.TWO_PHASE: metrics.KV_COMMIT_TXN_COUNTER,
    Mode.ASYNC: metrics.KV_ASYNC_COMMIT_TXN_COUNTER,
    Mode.ONE_PHASE: metrics.KV_ONE_PC_TXN_COUNTER,
}


@dataclass(slots=True)
class Committer:
    """Commits the mutations of one transaction, once.

    After an error other than Undetermined nothing of the transaction is or will be committed, and
    what it left in the store is cleaned up in the background.
    """

    txn: TxnScope
    mutations: Mutations
    options: CommitOptions
    schema: SchemaHook | None = None
    binlog: BinlogHook | None = None
    reserved: tuple[int, int] | None = None  # timestamps that follow each other, asked for at the start
    details: CommitDetails = field(default_factory=CommitDetails)
    unknown: bool = field(default=False, init=False)  # set when the outcome is unknown
    _executor: BatchExecutor = field(init=False)
    _scope: CommitScope = field(init=False)
    _in_doubt: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        mutations, settings = self.mutations, self.txn.session.settings
        self._executor = BatchExecutor(self.txn.session)
        size = mutations.size
        self.txn.primary = self.txn.primary or mutations.primary or mutations.keys[0]
        self._scope = CommitScope(
            self.txn,
            CommitState.plan(
                self.txn.start_ts,
                self.options if mutations.primary is not None else CHECKS_ONLY,
                settings,
                keys=len(mutations),
                key_bytes=sum(map(len, mutations.keys)),
                has_binlog=self.binlog is not None,
            ),
            lock_ttl_ms=lock_ttl_ms(size, self.txn.elapsed_ms(), settings.lock_ttl_ms),
            txn_bytes=size,
            details=self.details,
        )
        self.details.write_keys, self.details.write_bytes = len(mutations), size
        _WRITE_KEYS.observe(len(mutations))
        _WRITE_BYTES.observe(size)

    async def execute(self) -> int:
        """Commit, and return the commit timestamp.

        Raises a Conflict, KeyExists, AssertionFailed or Unavailable when nothing is committed, and
        Undetermined when the outcome is unknown.
        """
        try:
            commit_ts = await self._execute()
        except BaseException as error:
            _COUNTERS[self._scope.state.mode].labels("err").inc()
            self.unknown = self._leaves_open(error)
            if not self.unknown:
                self._clean_up()
            raise
        finally:
            self._record_protocol()
            self.details.commit_backoff_s = self._executor.backoff_ms / 1000
        _COUNTERS[self._scope.state.mode].labels("ok").inc()
        return commit_ts

    def _record_protocol(self) -> None:
        state = self._scope.state
        self.details.protocol = state.mode.value
        if state.fell_back is not None:
            self.details.fell_back_from = state.fell_back.value
        if state.fell_back is Mode.ONE_PHASE:
            metrics.KV_ONE_PC_TXN_COUNTER.labels("fallback").inc()

    def _leaves_open(self, error: BaseException) -> bool:
        """Return whether the outcome is unknown: the call was cancelled after the deciding request."""
        return isinstance(error, Undetermined) or (self._in_doubt and not isinstance(error, PenstockError))

    async def _execute(self) -> int:
        state = self._scope.state
        check_age(self.txn.start_ts, self.txn.session.pd.low_resolution_ts())
        await self._prepare()
        binlog = self._start_binlog()
        try:
            await self._prewrite(self.mutations)
            if binlog is not None:
                with self.details.span(self.txn.session.clock, "wait_prewrite_binlog"):
                    await binlog
        finally:
            await abandon([binlog] if binlog is not None else [])
        if state.one_pc_commit_ts:
            return state.one_pc_commit_ts
        if state.try_async:
            return self._commit_async()
        return await self._commit_in_two_phases()

    async def _prepare(self) -> None:
        """Bound the timestamps that a prewrite may commit at, and name the secondaries where they matter."""
        state = self._scope.state
        if not state.decided_by_prewrite:
            return
        if self.options.exact_schema and self.schema is not None:
            await self._pin(self.schema)
        else:
            await self._bound_commit_ts()
        if state.try_async:
            primary = self.txn.primary
            secondaries = (key for key in self.mutations.committable().keys if key != primary)
            self._scope.secondaries = tuple(secondaries)

    async def _pin(self, schema: SchemaHook) -> None:
        """Check the schema at a timestamp, and let the prewrite commit at the one right after it only.

        Nobody else can have that one: both come from the placement driver. A schema change that commits in
        two phases and that the check did not see is prewritten after the check, so its timestamp is later.
        """
        state, session = self._scope.state, self.txn.session
        reserved = self.reserved
        if reserved is None or self.txn.pessimistic or self.txn.elapsed_ms() > _RESERVED_MS_MAX:
            with self.details.span(session.clock, "get_latest_ts"):
                asked = session.pd.timestamp(), session.pd.timestamp()
                reserved = (await asked[0], await asked[1])
        checked_ts, commit_ts = reserved
        if commit_ts == checked_ts + 1 and await schema.check(self.txn.start_ts, checked_ts):
            state.pin_commit_ts(commit_ts)
        else:
            state.fall_back()

    async def _bound_commit_ts(self) -> None:
        state, session = self._scope.state, self.txn.session
        if not self.options.causal_consistency:
            with self.details.span(session.clock, "get_latest_ts"):
                state.raise_min_commit_ts(await session.pd.timestamp() + 1)
        now_ts = state.bound_commit_ts(
            elapsed_ms=self.txn.elapsed_ms(), safe_window_ms=session.settings.async_commit_safe_window_ms
        )
        if self.schema is not None and not await self.schema.check(self.txn.start_ts, now_ts):
            state.fall_back()

    async def _prewrite(self, mutations: Mutations) -> None:
        state, session = self._scope.state, self.txn.session
        action = Prewrite(self._scope)
        self._in_doubt = state.decided_by_prewrite
        bo = session.backoffer(backoff.PREWRITE_MS, "prewrite")
        with self.details.span(session.clock, "prewrite"):
            await self._executor.run(bo, action, mutations, self.txn.primary)
        self.details.prewrite_regions = max(self.details.prewrite_regions, self._executor.regions)
        if action.assertion_error is not None:
            raise action.assertion_error
        self._in_doubt = state.decided_by_prewrite

    def _commit_async(self) -> int:
        """Return at once: every lock is in place, so every reader will find the transaction committed."""
        scope, session = self._scope, self.txn.session
        scope.commit_ts = scope.state.min_commit_ts
        scope.committed = True
        bo = session.backoffer(backoff.COMMIT_SECONDARIES_MS, "commit")
        action = Commit(scope, primary_first=False)
        work = self._executor.run(bo, action, self.mutations.committable(), self.txn.primary)
        session.background.spawn(work, "async commit")
        return scope.commit_ts

    async def _commit_in_two_phases(self) -> int:
        scope, session = self._scope, self.txn.session
        scope.commit_ts = await self._next_commit_ts()
        if self.schema is not None:
            await self._check_schema(self.schema)
        check_age(self.txn.start_ts, scope.commit_ts)
        bo = session.backoffer(backoff.COMMIT_MS, "commit")
        action = Commit(scope, primary_first=True)
        mutations = self.mutations.committable()
        if mutations:
            self._in_doubt = True
            with self.details.span(session.clock, "commit"):
                await self._executor.run(bo, action, mutations, self.txn.primary, detach_rest=True)
        if self.binlog is not None:
            session.background.spawn(self.binlog.commit(self.txn.start_ts, scope.commit_ts), "binlog commit")
        return scope.commit_ts

    async def _next_commit_ts(self) -> int:
        with self.details.span(self.txn.session.clock, "get_commit_ts"):
            commit_ts = await self.txn.session.pd.timestamp()
        check_commit_ts(self.txn.start_ts, commit_ts)
        return commit_ts

    async def _check_schema(self, schema: SchemaHook) -> None:
        """Raise Aborted when the schema changed since the start, unless the writes can be amended."""
        scope = self._scope
        if await schema.check(self.txn.start_ts, scope.commit_ts):
            return
        changed = Aborted(
            f"the schema changed while transaction {self.txn.start_ts} was running; run the transaction again"
        )
        extra = None
        if self.txn.pessimistic:
            extra = await schema.amend(self.txn.start_ts, scope.commit_ts, self._writes())
        if extra is None:
            raise changed
        amended_ts = scope.commit_ts
        if extra:
            added = await amend(self.txn, self._executor, extra, at_ts=amended_ts)
            self.mutations = self.mutations.merge(added)
            self.details.amended_keys += len(added)
            await self._prewrite(added)
        scope.commit_ts = await self._next_commit_ts()
        if not await schema.check(amended_ts, scope.commit_ts):
            raise changed

    def _writes(self) -> list[Write]:
        columns = zip(self.mutations.ops, self.mutations.keys, self.mutations.values, strict=True)
        return [
            (key, None if op == DELETE else value)
            for op, key, value in columns
            if op in (PUT, INSERT, DELETE)
        ]

    def _start_binlog(self) -> "asyncio.Task[None] | None":
        if self.binlog is None:
            return None
        assert self.txn.primary is not None
        work = self.binlog.prewrite(self.txn.start_ts, self.txn.primary, self._writes())
        return asyncio.ensure_future(work)

    def _clean_up(self) -> None:
        """Roll back what the prewrite left, in the background."""
        session, state = self.txn.session, self._scope.state
        if self.binlog is not None:
            session.background.spawn(self.binlog.skip(self.txn.start_ts), "binlog skip")
        if state.try_one_pc and not self.txn.pessimistic:
            return  # a one-phase prewrite that failed wrote nothing
        if state.try_one_pc:
            action: Cleanup | PessimisticRollback = PessimisticRollback(self.txn, self.txn.for_update_ts)
        else:
            action = Cleanup(self.txn)
        bo = session.backoffer(backoff.CLEANUP_MS, "cleanup")
        work = self._executor.run(bo, action, self.mutations.committable(), self.txn.primary)
        session.background.spawn(work, "cleanup")


async def amend(txn: TxnScope, executor: BatchExecutor, extra: Sequence[Write], *, at_ts: int) -> Mutations:
    """Lock the keys of more writes at `at_ts` and return them as mutations to prewrite.

    Raises LockTimeout, Deadlock, Aborted or Unavailable when a key cannot be locked; the caller then gives
    the transaction up.
    """
    mutations = Mutations()
    for key, value in sorted(extra, key=lambda write: write[0]):
        mutations.append(key, value or b"", DELETE if value is None else PUT, locked=True)
    txn.for_update_ts = max(txn.for_update_ts, at_ts)
    wait = LockWait(deadline=txn.session.clock.monotonic() + _AMEND_WAIT_S, no_wait=False)
    bo = txn.session.backoffer(backoff.PESSIMISTIC_LOCK_MS, "amend")
    await executor.run(bo, PessimisticLock(txn, wait, mutations.keys), mutations, txn.primary)
    return mutations
