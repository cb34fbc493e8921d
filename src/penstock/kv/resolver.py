"""Resolve locks of other transactions.

The primary of a lock says whether its owner is alive, committed or gone; the resolver asks there, and commits
or rolls back the locks that it met accordingly. The decisions are in `locks`; this module sends the requests.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock import metrics
from penstock.clock import TS_MAX, Clock
from penstock.errors import Corrupt, show_key
from penstock.kv import backoff
from penstock.kv.background import Background
from penstock.kv.backoff import Backoffer, BackoffKind
from penstock.kv.locks import (
    Lock,
    MustSync,
    ReadAction,
    Secondaries,
    StatusCache,
    TxnNotFound,
    TxnStatus,
    action_for_read,
    current_ts_for,
    ms_until_expired,
    primary_not_found,
    read_status,
    to_error,
)
from penstock.kv.pd import PdClient
from penstock.kv.region_table import RegionVerId
from penstock.kv.sender import RegionStale, Router
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.settings import KvSettings

_BACKGROUND_MAX = 10_000


def _count(action: str) -> None:
    metrics.KV_LOCK_RESOLVER_ACTIONS_TOTAL.labels(action).inc()


@dataclass(slots=True)
class WriteOutcome:
    """What a writer still has in its way: how many locks, and milliseconds until the first expires."""

    wait_ms: int = 0
    left: int = 0


@dataclass(slots=True)
class ReadOutcome:
    """What a reader may do now: wait, or send these with its next request."""

    wait_ms: int = 0
    ignored: set[int] = field(default_factory=set)
    committed: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Verdict:
    """A transaction's status and, for an async commit that was just decided, all its keys."""

    status: TxnStatus
    keys: list[bytes] = field(default_factory=list)


class LockResolver:
    """Finds out what became of the owners of locks, and commits or rolls back what they left behind."""

    def __init__(
        self, pd: PdClient, router: Router, background: Background, *, settings: KvSettings, clock: Clock
    ) -> None:
        self._pd = pd
        self._router = router
        self._background = background
        self._settings = settings
        self._clock = clock
        self._statuses = StatusCache(settings.resolved_cache_size)

    async def resolve_for_write(self, bo: Backoffer, locks: Sequence[Lock]) -> WriteOutcome:
        """Resolve the locks of dead transactions; leave those of live ones."""
        _count("resolve_for_write")
        outcome = WriteOutcome()
        for of_txn in _by_transaction(locks):
            verdict = await self._judge(bo, of_txn[0], caller_start_ts=0)
            if verdict.status.alive:
                outcome.left += len(of_txn)
                outcome.wait_ms = self._first_to_expire(outcome.wait_ms, of_txn[0], verdict.status)
            else:
                _count("expired")
                await self._carry_out(bo, of_txn, verdict, lite=False)
        return outcome

    async def resolve_for_read(
        self, bo: Backoffer, locks: Sequence[Lock], read_ts: int, *, lite: bool = False
    ) -> ReadOutcome:
        """Learn which locks a reader may ignore or read through; clean up in the background."""
        _count("resolve")
        outcome = ReadOutcome()
        for of_txn in _by_transaction(locks):
            verdict = await self._judge(bo, of_txn[0], caller_start_ts=read_ts)
            action = action_for_read(verdict.status, read_ts)
            if action is ReadAction.WAIT:
                outcome.wait_ms = self._first_to_expire(outcome.wait_ms, of_txn[0], verdict.status)
                continue
            (outcome.committed if action is ReadAction.ACCESS else outcome.ignored).add(of_txn[0].start_ts)
            if not verdict.status.alive:
                _count("expired")
                await self._carry_out_later(of_txn, verdict, lite=lite)
        return outcome

    def _first_to_expire(self, wait_ms: int, lock: Lock, status: TxnStatus) -> int:
        _count("not_expired")
        left_ms = max(1, ms_until_expired(lock.start_ts, status.ttl_ms, self._pd.low_resolution_ts()))
        return min(wait_ms, left_ms) if wait_ms else left_ms

    async def _carry_out_later(self, locks: Sequence[Lock], verdict: _Verdict, *, lite: bool) -> None:
        bo = Backoffer(
            backoff.RESOLVE_MS, clock=self._clock, weight=self._settings.backoff_weight, name="resolve lock"
        )
        work = self._carry_out(bo, locks, verdict, lite=lite)
        if len(self._background) < _BACKGROUND_MAX:
            self._background.spawn(work, "resolve")
        else:
            await work

    async def _judge(
        self, bo: Backoffer, lock: Lock, *, caller_start_ts: int, force: bool = False
    ) -> _Verdict:
        """Find out what became of a lock's owner; with `force` a live one counts as expired."""
        status = await self._status(bo, lock, caller_start_ts=caller_start_ts, force=force)
        if not status.undecided or lock.pessimistic:
            return _Verdict(TxnStatus(action=status.action) if status.undecided else status)
        _count("resolve_async_commit")
        try:
            return await self._ask_secondaries(bo, lock, status)
        except MustSync:
            return _Verdict(
                await self._status(
                    bo, lock, caller_start_ts=caller_start_ts, force=force, force_sync_commit=True
                )
            )

    async def _status(
        self,
        bo: Backoffer,
        lock: Lock,
        *,
        caller_start_ts: int,
        force: bool = False,
        force_sync_commit: bool = False,
    ) -> TxnStatus:
        known = self._statuses.get(lock.start_ts)
        if known is not None:
            return known
        _count("query_txn_status")
        roll_back = False
        while True:
            now_ts = TS_MAX if force else self._pd.low_resolution_ts()
            request = kvrpcpb.CheckTxnStatusRequest(
                primary_key=lock.primary,
                lock_ts=lock.start_ts,
                caller_start_ts=caller_start_ts,
                current_ts=current_ts_for(lock, now_ts),
                rollback_if_not_exist=roll_back,
                force_sync_commit=force_sync_commit,
                resolving_pessimistic_lock=lock.pessimistic,
                verify_is_primary=True,
            )
            answer = await self._router.send_to_key(
                bo, "KvCheckTxnStatus", request, lock.primary, kvrpcpb.CheckTxnStatusResponse
            )
            if answer.error.HasField("txn_not_found"):
                match primary_not_found(lock, now_ts):
                    case TxnNotFound.ROLL_BACK:
                        roll_back = True
                    case TxnNotFound.ALIVE:
                        return TxnStatus(ttl_ms=lock.ttl_ms)
                    case TxnNotFound.WAIT:
                        await bo.backoff(
                            BackoffKind.TXN_NOT_FOUND, f"transaction {lock.start_ts} is not found"
                        )
                continue
            if answer.HasField("error"):
                return self._status_of_error(lock, answer.error)
            status = read_status(
                answer, lock.start_ts, request.current_ts, force_sync_commit=force_sync_commit
            )
            self._remember(lock.start_ts, status)
            return status

    def _status_of_error(self, lock: Lock, error: kvrpcpb.KeyError) -> TxnStatus:
        if not error.HasField("primary_mismatch"):
            raise to_error(error, lock.start_ts)
        if lock.pessimistic:
            # The owner chose another primary after this lock was taken, so it no longer needs it.
            return TxnStatus(action=kvrpcpb.Action.LockNotExistDoNothing)
        raise Corrupt(
            f"lock on {show_key(lock.key)} names a primary that is no primary of transaction {lock.start_ts};"
            " keep the store for inspection"
        )

    def _remember(self, start_ts: int, status: TxnStatus) -> None:
        if status.cacheable:
            committed = status.commit_ts > 0
            _count("query_txn_status_committed" if committed else "query_txn_status_rolled_back")
        self._statuses.save(start_ts, status)

    async def _ask_secondaries(self, bo: Backoffer, lock: Lock, status: TxnStatus) -> _Verdict:
        assert status.secondaries is not None
        _count("query_check_secondary_locks")
        found = Secondaries(status.min_commit_ts)
        keys = sorted(status.secondaries)
        answers = await self._router.send_by_region(
            bo,
            "KvCheckSecondaryLocks",
            keys,
            lambda part: kvrpcpb.CheckSecondaryLocksRequest(keys=part, start_version=lock.start_ts),
            kvrpcpb.CheckSecondaryLocksResponse,
        )
        for part, answer in answers:
            if answer.HasField("error"):
                raise to_error(answer.error, lock.start_ts)
            found.add(len(part), answer.locks, answer.commit_ts)
        decided = TxnStatus(commit_ts=found.commit_ts)
        self._remember(lock.start_ts, decided)
        return _Verdict(decided, sorted({lock.primary, *keys}))

    async def _carry_out(
        self, bo: Backoffer, locks: Sequence[Lock], verdict: _Verdict, *, lite: bool
    ) -> None:
        """Commit or roll back locks of one transaction, as its verdict says."""
        start_ts, commit_ts = locks[0].start_ts, verdict.status.commit_ts
        if locks[0].pessimistic:
            await self._roll_back_pessimistic(bo, locks)
            return
        if verdict.keys:
            await self._resolve_keys(bo, start_ts, commit_ts, verdict.keys)
            return
        light = [lock for lock in locks if lite or lock.txn_size < self._settings.resolve_lock_lite_keys]
        heavy = [
            lock for lock in locks if not lite and lock.txn_size >= self._settings.resolve_lock_lite_keys
        ]
        # The request for the status has resolved the primary, except that of an async commit.
        keys = sorted({lock.key for lock in light if lock.key != lock.primary or lock.use_async_commit})
        if keys:
            _count("query_resolve_lock_lite")
            await self._resolve_keys(bo, start_ts, commit_ts, keys)
        await self._resolve_regions(bo, start_ts, commit_ts, heavy)

    async def _resolve_keys(
        self, bo: Backoffer, start_ts: int, commit_ts: int, keys: Sequence[bytes]
    ) -> None:
        answers = await self._router.send_by_region(
            bo,
            "KvResolveLock",
            keys,
            lambda part: kvrpcpb.ResolveLockRequest(
                start_version=start_ts, commit_version=commit_ts, keys=part
            ),
            kvrpcpb.ResolveLockResponse,
        )
        for _, answer in answers:
            if answer.HasField("error"):
                raise to_error(answer.error, start_ts)

    async def _resolve_regions(
        self, bo: Backoffer, start_ts: int, commit_ts: int, locks: Sequence[Lock]
    ) -> None:
        """Resolve every lock of the transaction in the regions of the given ones."""
        cleaned: set[RegionVerId] = set()
        left = [lock.key for lock in locks]
        while left:
            location = await self._router.cache.locate(bo, left[-1])
            if location.region not in cleaned:
                _count("query_resolve_locks")
                request = kvrpcpb.ResolveLockRequest(start_version=start_ts, commit_version=commit_ts)
                try:
                    answer = await self._router.send_to_region(
                        bo, "KvResolveLock", request, location, kvrpcpb.ResolveLockResponse
                    )
                except RegionStale:
                    continue
                if answer.HasField("error"):
                    raise to_error(answer.error, start_ts)
                cleaned.add(location.region)
            left.pop()

    async def _roll_back_pessimistic(self, bo: Backoffer, locks: Sequence[Lock]) -> None:
        start_ts = locks[0].start_ts
        for_update_ts = max(lock.for_update_ts or TS_MAX for lock in locks)
        answers = await self._router.send_by_region(
            bo,
            "KVPessimisticRollback",
            sorted({lock.key for lock in locks}),
            lambda part: kvrpcpb.PessimisticRollbackRequest(
                start_version=start_ts, for_update_ts=for_update_ts, keys=part
            ),
            kvrpcpb.PessimisticRollbackResponse,
        )
        for _, answer in answers:
            if answer.errors:
                raise to_error(answer.errors[0], start_ts)

    async def decide_for_gc(self, bo: Backoffer, locks: Sequence[Lock]) -> Mapping[int, int]:
        """Decide transactions that are older than the safe point of garbage collection, alive or not.

        Rolls back their pessimistic locks; returns start_ts -> commit_ts (0 is a rollback) of the others.
        """
        _count("batch_resolve")
        fates = {}
        for of_txn in _by_transaction(locks):
            if of_txn[0].pessimistic:
                await self._roll_back_pessimistic(bo, of_txn)
                continue
            verdict = await self._judge(bo, of_txn[0], caller_start_ts=0, force=True)
            fates[of_txn[0].start_ts] = verdict.status.commit_ts
        return fates


def _by_transaction(locks: Sequence[Lock]) -> Iterable[list[Lock]]:
    """Group locks that are resolved alike: those with the same primary, of the same kind."""
    grouped: defaultdict[tuple[int, bytes, bool], list[Lock]] = defaultdict(list)
    for lock in locks:
        grouped[lock.start_ts, lock.primary, lock.pessimistic].append(lock)
    return grouped.values()
