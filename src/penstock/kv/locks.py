"""Locks of other transactions: what became of their owners, and what readers and writers do. No I/O.

`to_error` turns a store's key error into the error that the user of a transaction gets.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from penstock.clock import TS_MAX, physical_ms
from penstock.errors import (
    Aborted,
    AssertionFailed,
    Corrupt,
    KeyExists,
    PenstockError,
    Unavailable,
    WriteConflict,
    show_key,
)
from penstock.proto import kvrpcpb_pb2 as kvrpcpb

PESSIMISTIC = kvrpcpb.Op.PessimisticLock
_FINAL_ACTIONS = frozenset(
    {kvrpcpb.Action.NoAction, kvrpcpb.Action.TTLExpireRollback, kvrpcpb.Action.LockNotExistRollback}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """A lock met in the store."""

    key: bytes
    primary: bytes
    start_ts: int
    ttl_ms: int = 0
    txn_size: int = 0
    pessimistic: bool = False
    for_update_ts: int = 0
    use_async_commit: bool = False
    min_commit_ts: int = 0
    age_ms: int | None = None  # since its last update, when the store knows

    @classmethod
    def of(cls, info: kvrpcpb.LockInfo) -> "Lock":
        """Read a lock from the store's message."""
        return cls(
            key=info.key,
            primary=info.primary_lock,
            start_ts=info.lock_version,
            ttl_ms=info.lock_ttl,
            txn_size=info.txn_size,
            pessimistic=info.lock_type == PESSIMISTIC,
            for_update_ts=info.lock_for_update_ts,
            use_async_commit=info.use_async_commit,
            min_commit_ts=info.min_commit_ts,
            age_ms=info.duration_to_last_update_ms or None,
        )


def is_expired(start_ts: int, ttl_ms: int, now_ts: int) -> bool:
    """Return whether a lock's time to live is over."""
    return physical_ms(now_ts) >= physical_ms(start_ts) + ttl_ms


def ms_until_expired(start_ts: int, ttl_ms: int, now_ts: int) -> int:
    """Return the milliseconds a lock has left, 0 when its time is over."""
    return max(0, physical_ms(start_ts) + ttl_ms - physical_ms(now_ts))


@dataclass(frozen=True, slots=True)
class TxnStatus:
    """What became of a transaction, by its primary lock.

    Alive while `ttl_ms` is set; else committed at `commit_ts`, or rolled back when that is 0.
    `secondaries` is set for an expired async commit, whose fate its secondary locks decide.
    """

    ttl_ms: int = 0
    commit_ts: int = 0
    action: int = kvrpcpb.Action.NoAction
    min_commit_ts: int = 0
    secondaries: tuple[bytes, ...] | None = None

    @property
    def alive(self) -> bool:
        """Whether the transaction may still be running."""
        return self.ttl_ms > 0

    @property
    def undecided(self) -> bool:
        """Whether the secondary locks have to be asked."""
        return self.secondaries is not None

    @property
    def cacheable(self) -> bool:
        """Whether the status can never change."""
        if self.alive or self.undecided:
            return False
        return self.commit_ts > 0 or self.action in _FINAL_ACTIONS

    @property
    def min_commit_ts_pushed(self) -> bool:
        """Whether the transaction will commit after the reader that asked."""
        return self.action == kvrpcpb.Action.MinCommitTSPushed


def read_status(
    answer: kvrpcpb.CheckTxnStatusResponse, start_ts: int, now_ts: int, *, force_sync_commit: bool
) -> TxnStatus:
    """Turn the store's answer about a primary lock into a status."""
    info = answer.lock_info
    if answer.HasField("lock_info") and info.use_async_commit and not force_sync_commit:
        ttl_ms = answer.lock_ttl or info.lock_ttl
        if not is_expired(start_ts, ttl_ms, now_ts):
            return TxnStatus(ttl_ms=ttl_ms, action=answer.action, min_commit_ts=info.min_commit_ts)
        return TxnStatus(
            action=answer.action, min_commit_ts=info.min_commit_ts, secondaries=tuple(info.secondaries)
        )
    if answer.lock_ttl:
        return TxnStatus(ttl_ms=answer.lock_ttl, action=answer.action)
    return TxnStatus(commit_ts=answer.commit_version, action=answer.action)


class TxnNotFound(Enum):
    """What to do when the primary lock and every trace of the transaction are missing."""

    ROLL_BACK = auto()  # ask again, and let the store write a rollback
    WAIT = auto()  # the primary may still be on its way
    ALIVE = auto()  # take the lock's own time to live


def primary_not_found(lock: Lock, now_ts: int) -> TxnNotFound:
    """Decide about a lock whose primary is not there."""
    if is_expired(lock.start_ts, lock.ttl_ms, now_ts):
        return TxnNotFound.ROLL_BACK
    return TxnNotFound.ALIVE if lock.pessimistic else TxnNotFound.WAIT


def current_ts_for(lock: Lock, now_ts: int) -> int:
    """Return the time to judge a lock by: a lock without a time to live has expired at once."""
    return now_ts if lock.ttl_ms else TS_MAX


class MustSync(Exception):
    """A secondary lock is no async-commit lock: ask the primary again, as for two phases."""


@dataclass(slots=True)
class Secondaries:
    """Combines what the regions answer about an async commit's secondary locks.

    With every lock in place the transaction is committed, at the greatest of their minimal commit
    timestamps. One missing lock decides instead: it was committed, or it was rolled back.
    """

    commit_ts: int  # at first the primary's minimal commit timestamp
    missing: bool = False

    def add(self, asked: int, locks: Sequence[kvrpcpb.LockInfo], commit_ts: int) -> None:
        """Take one region's answer; raise MustSync when a lock is of another protocol."""
        if len(locks) < asked:
            if self.missing and self.commit_ts != commit_ts:
                raise Corrupt(
                    f"secondary locks of one transaction are committed at {self.commit_ts} and {commit_ts};"
                    " keep the store for inspection"
                )
            self.missing, self.commit_ts = True, commit_ts
            return
        for lock in locks:
            if not lock.use_async_commit:
                raise MustSync
            if not self.missing:
                self.commit_ts = max(self.commit_ts, lock.min_commit_ts)


class ReadAction(Enum):
    """What a reader does about a lock in its way."""

    IGNORE = auto()  # the owner's change is after the reader, or never
    ACCESS = auto()  # the owner's change is committed before the reader: read through the lock
    WAIT = auto()


def action_for_read(status: TxnStatus, read_ts: int) -> ReadAction:
    """Return what a reader at `read_ts` does about a lock whose owner has this status."""
    assert not status.undecided
    if status.alive:
        return ReadAction.IGNORE if status.min_commit_ts_pushed else ReadAction.WAIT
    if 0 < status.commit_ts <= read_ts:
        return ReadAction.ACCESS
    return ReadAction.IGNORE


@dataclass(slots=True)
class StatusCache:
    """Final statuses of transactions, the oldest forgotten first."""

    size: int
    _statuses: dict[int, TxnStatus] = field(default_factory=dict)

    def get(self, start_ts: int) -> TxnStatus | None:
        """Return a remembered status."""
        return self._statuses.get(start_ts)

    def save(self, start_ts: int, status: TxnStatus) -> None:
        """Remember a status if it is final."""
        if not status.cacheable or start_ts in self._statuses:
            return
        if len(self._statuses) >= self.size:
            del self._statuses[next(iter(self._statuses))]
        self._statuses[start_ts] = status

    def __len__(self) -> int:
        return len(self._statuses)


_SELF_ROLLED_BACK = kvrpcpb.WriteConflict.Reason.SelfRolledBack


def to_error(key_error: kvrpcpb.KeyError, start_ts: int) -> PenstockError:
    """Return the error to raise for a key error other than a lock to resolve."""
    if key_error.HasField("conflict"):
        return _conflict(key_error.conflict, start_ts)
    if key_error.HasField("already_exist"):
        return KeyExists(key_error.already_exist.key)
    if key_error.HasField("assertion_failed"):
        return AssertionFailed(key_error.assertion_failed.key, start_ts=start_ts)
    if key_error.HasField("txn_lock_not_found") or key_error.HasField("txn_not_found"):
        return Aborted(
            f"transaction {start_ts} has no lock left: it was rolled back or expired; run it again"
        )
    if key_error.HasField("locked"):
        lock = key_error.locked
        return Unavailable(
            f"key {show_key(lock.key)} is locked by transaction {lock.lock_version}; try again later"
        )
    text = key_error.abort or key_error.retryable or "unknown key error"
    return Aborted(f"transaction {start_ts} was aborted by the store ({text}); run it again")


def _conflict(conflict: kvrpcpb.WriteConflict, start_ts: int) -> PenstockError:
    if conflict.reason == _SELF_ROLLED_BACK:
        return Aborted(
            f"transaction {start_ts} was rolled back by another one that met its locks; run it again"
        )
    return WriteConflict(
        conflict.key,
        start_ts=conflict.start_ts or start_ts,
        conflict_ts=conflict.conflict_commit_ts or conflict.conflict_ts,
        reason=kvrpcpb.WriteConflict.Reason.Name(conflict.reason),
    )
