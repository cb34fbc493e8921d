"""What a store's key error means to the user of a transaction."""

from penstock.errors import (
    Aborted,
    AssertionFailed,
    KeyExists,
    PenstockError,
    Unavailable,
    WriteConflict,
    show_key,
)
from penstock.proto import kvrpcpb_pb2 as kvrpcpb

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
