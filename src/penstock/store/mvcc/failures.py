"""Refusals in the words of the wire: a KeyError says what the client does next.

Each function returns the refusal for one cause.
"""

from collections.abc import Sequence

from penstock.errors import show_key
from penstock.proto import deadlock_pb2 as deadlock
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.store.mvcc.records import LockRecord, Write

Reason = kvrpcpb.WriteConflict.Reason


class KeyRefused(Exception):
    """An action cannot be done on a key: the client gets `error` and nothing is written.

    `lock` is the lock in the way, when another transaction's lock is the cause. `may_be_retry`: a repeated
    request of a transaction that was committed meanwhile gets this refusal too. `commit_ts` is set when the
    cause is that the transaction is committed.
    """

    def __init__(
        self,
        error: kvrpcpb.KeyError,
        *,
        lock: LockRecord | None = None,
        may_be_retry: bool = False,
        commit_ts: int = 0,
    ) -> None:
        super().__init__(error)
        self.error = error
        self.lock = lock
        self.may_be_retry = may_be_retry
        self.commit_ts = commit_ts


def key_is_locked(key: bytes, lock: LockRecord, *, resolve_now: bool = False) -> KeyRefused:
    """Another transaction holds the key; with `resolve_now` the client need not respect its TTL."""
    info = lock.info(key)
    if resolve_now:
        info.lock_ttl = 0
    return KeyRefused(kvrpcpb.KeyError(locked=info), lock=lock, may_be_retry=True)


def write_conflict(
    key: bytes, *, start_ts: int, primary: bytes, conflict_ts: int, commit_ts: int, reason: Reason
) -> KeyRefused:
    """Another transaction committed the key, or this one was rolled back on it."""
    conflict = kvrpcpb.WriteConflict(
        start_ts=start_ts,
        conflict_ts=conflict_ts,
        key=key,
        primary=primary,
        conflict_commit_ts=commit_ts,
        reason=reason,
    )
    text = f"write conflict on {show_key(key)}: {start_ts} met {conflict_ts} committed at {commit_ts}"
    return KeyRefused(kvrpcpb.KeyError(conflict=conflict, retryable=text), may_be_retry=True)


def pessimistic_lock_not_found(key: bytes, start_ts: int, why: str) -> KeyRefused:
    """The pessimistic lock that a prewrite needs is gone."""
    text = f"PessimisticLockNotFound: {show_key(key)} of transaction {start_ts}: {why}"
    return KeyRefused(kvrpcpb.KeyError(abort=text), may_be_retry=True)


def lock_type_not_match(key: bytes, start_ts: int, lock: LockRecord) -> KeyRefused:
    """The transaction's own lock is of the other kind: pessimistic or prewritten."""
    return abort(f"LockTypeNotMatch: {show_key(key)} of transaction {start_ts} has a {lock.kind.name} lock")


def already_exists(key: bytes) -> KeyRefused:
    """The key exists although the request needs it to be new."""
    return KeyRefused(kvrpcpb.KeyError(already_exist=kvrpcpb.AlreadyExist(key=key)))


def assertion_failed(
    key: bytes, start_ts: int, assertion: kvrpcpb.Assertion, found: tuple[int, Write] | None
) -> KeyRefused:
    """The client's assertion about the key's existence is wrong."""
    commit_ts, existing_ts = (found[0], found[1].start_ts) if found else (0, 0)
    failed = kvrpcpb.AssertionFailed(
        start_ts=start_ts,
        key=key,
        assertion=assertion,
        existing_start_ts=existing_ts,
        existing_commit_ts=commit_ts,
    )
    return KeyRefused(kvrpcpb.KeyError(assertion_failed=failed))


def txn_lock_not_found(key: bytes, start_ts: int) -> KeyRefused:
    """The lock to commit is gone and the transaction is not committed."""
    text = f"TxnLockNotFound: {show_key(key)} has no lock of transaction {start_ts}"
    return KeyRefused(kvrpcpb.KeyError(retryable=text, txn_lock_not_found=kvrpcpb.TxnLockNotFound(key=key)))


def txn_not_found(key: bytes, start_ts: int) -> KeyRefused:
    """The primary key has no trace of the transaction."""
    return KeyRefused(kvrpcpb.KeyError(txn_not_found=kvrpcpb.TxnNotFound(start_ts=start_ts, primary_key=key)))


def commit_ts_expired(key: bytes, start_ts: int, commit_ts: int, min_commit_ts: int) -> KeyRefused:
    """A reader pushed the lock: it must be committed at a later timestamp than the request's."""
    expired = kvrpcpb.CommitTsExpired(
        start_ts=start_ts, attempted_commit_ts=commit_ts, key=key, min_commit_ts=min_commit_ts
    )
    return KeyRefused(kvrpcpb.KeyError(commit_ts_expired=expired))


def primary_mismatch(key: bytes, lock: LockRecord) -> KeyRefused:
    """The key asked about is not the primary of its lock's transaction."""
    mismatch = kvrpcpb.PrimaryMismatch(lock_info=lock.info(key))
    return KeyRefused(kvrpcpb.KeyError(primary_mismatch=mismatch))


def already_committed(key: bytes, start_ts: int, commit_ts: int) -> KeyRefused:
    """The transaction to roll back is committed."""
    text = f"Committed: transaction {start_ts} is committed at {commit_ts} on {show_key(key)}"
    return KeyRefused(kvrpcpb.KeyError(abort=text), commit_ts=commit_ts)


def deadlock_refusal(
    key: bytes, lock_ts: int, *, closing: deadlock.WaitForEntry, chain: Sequence[deadlock.WaitForEntry]
) -> KeyRefused:
    """Waiting for the lock would close a cycle; `closing` is the wait for this transaction in it."""
    return KeyRefused(
        kvrpcpb.KeyError(
            deadlock=kvrpcpb.Deadlock(
                lock_ts=lock_ts,
                lock_key=key,
                deadlock_key_hash=closing.key_hash,
                wait_chain=chain,
                deadlock_key=closing.key,
            )
        )
    )


def before_safe_point(start_ts: int) -> KeyRefused:
    """The transaction began before the safe point of garbage collection."""
    return abort(f"GcTooEarly: transaction {start_ts} is older than the safe point of garbage collection")


def abort(text: str) -> KeyRefused:
    """The transaction cannot continue, and the wire has no specific message for the reason."""
    return KeyRefused(kvrpcpb.KeyError(abort=text))
