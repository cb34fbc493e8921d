"""Pessimistic locks: taken before the data is known, to keep other transactions off a key."""

from dataclasses import dataclass

from penstock.errors import show_key
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.store.mvcc import failures
from penstock.store.mvcc.effects import Effects
from penstock.store.mvcc.failures import Reason
from penstock.store.mvcc.prewrite import check_absent
from penstock.store.mvcc.reader import MvccReader
from penstock.store.mvcc.records import LockKind, LockRecord, Write


@dataclass(frozen=True, slots=True)
class LockedKey:
    """A key after a lock request. `value` is None when the key does not exist or was not read."""

    value: bytes | None = None
    exists: bool = False
    conflict_ts: int = 0  # the lock was forced over a version of this timestamp


def reads_value(request: kvrpcpb.PessimisticLockRequest) -> bool:
    """Return whether a lock request reads: then later commits must come after its for_update_ts."""
    return (
        request.return_values
        or request.check_existence
        or any(mutation.assertion == kvrpcpb.NotExist for mutation in request.mutations)
    )


def lock_key(
    reader: MvccReader, effects: Effects, request: kvrpcpb.PessimisticLockRequest, mutation: kvrpcpb.Mutation
) -> LockedKey:
    """Take a pessimistic lock; repeating it changes nothing.

    Raise KeyRefused when another transaction's lock or newer version is in the way, the key exists and must
    not, or the transaction was rolled back. In force mode a newer version is no obstacle.
    """
    key = mutation.key
    if mutation.op != kvrpcpb.PessimisticLock:
        raise failures.abort(f"a lock request cannot carry operation {mutation.op}; it is not supported")
    if request.lock_only_if_exists and not request.return_values:
        raise failures.abort(f"LockIfExistsFailed: {show_key(key)}: lock_only_if_exists needs return_values")
    lock = reader.load_lock(key)
    if lock is None:
        return _take(reader, effects, request, mutation)
    if lock.start_ts != request.start_version:
        raise failures.key_is_locked(key, lock)
    if not lock.is_pessimistic:
        raise failures.lock_type_not_match(key, request.start_version, lock)
    return _take_again(reader, effects, request, mutation, lock)


def _take(
    reader: MvccReader, effects: Effects, request: kvrpcpb.PessimisticLockRequest, mutation: kvrpcpb.Mutation
) -> LockedKey:
    key = mutation.key
    newest = reader.seek_write(key)
    conflict_ts = 0
    if newest is not None:
        conflict_ts = _check_newest(reader, request, key, newest)
        if not conflict_ts and mutation.assertion == kvrpcpb.NotExist:
            check_absent(reader, key, newest)
    result = _look(reader, request, key, request.for_update_ts, conflict_ts)
    if not request.lock_only_if_exists or result.exists:
        effects.acquire(key, _lock(request, conflict_ts))
    return result


def _take_again(
    reader: MvccReader,
    effects: Effects,
    request: kvrpcpb.PessimisticLockRequest,
    mutation: kvrpcpb.Mutation,
    lock: LockRecord,
) -> LockedKey:
    """Answer a request whose transaction already holds the lock.

    In force mode, a lock newer than the request was taken over a conflict by an equal request whose answer
    got lost, so the conflict is reported again.
    """
    for_update_ts = request.for_update_ts
    conflict_ts = 0
    if _is_forced(request) and lock.for_update_ts > for_update_ts:
        conflict_ts = for_update_ts = lock.for_update_ts
    if mutation.assertion == kvrpcpb.NotExist and reader.newest_put(mutation.key, for_update_ts) is not None:
        raise failures.already_exists(mutation.key)
    if for_update_ts > lock.for_update_ts:
        effects.rewrite_lock(mutation.key, _lock(request, 0))
    return _look(reader, request, mutation.key, for_update_ts, conflict_ts)


def _check_newest(
    reader: MvccReader,
    request: kvrpcpb.PessimisticLockRequest,
    key: bytes,
    newest: tuple[int, Write],
) -> int:
    """Look for a conflict or a rollback; return the timestamp of a conflict that is overridden, or 0."""
    start_ts = request.start_version
    commit_ts, write = newest
    if commit_ts > request.for_update_ts and not _is_forced(request):
        raise failures.write_conflict(
            key,
            start_ts=start_ts,
            primary=request.primary_lock,
            conflict_ts=write.start_ts,
            commit_ts=commit_ts,
            reason=Reason.PessimisticRetry,
        )
    at_start = newest if commit_ts <= start_ts else reader.seek_write(key, start_ts)
    if at_start is not None and at_start[1].rolls_back(start_ts, at_start[0]):
        raise failures.abort(
            f"PessimisticLockRolledBack: transaction {start_ts} was rolled back on {show_key(key)}"
        )
    if write.start_ts == start_ts and commit_ts > start_ts:
        raise failures.already_committed(key, start_ts, commit_ts)
    return commit_ts if commit_ts > request.for_update_ts else 0


def _look(
    reader: MvccReader,
    request: kvrpcpb.PessimisticLockRequest,
    key: bytes,
    ts: int,
    conflict_ts: int,
) -> LockedKey:
    """Read what the request asks for; after a conflict always return the newest value."""
    if not (request.return_values or request.check_existence or conflict_ts):
        return LockedKey()
    found = reader.newest_put(key, max(ts, conflict_ts))
    if found is None:
        return LockedKey(conflict_ts=conflict_ts)
    wanted = request.return_values or conflict_ts
    value = reader.value_of(key, found[1]) if wanted else None
    return LockedKey(value, exists=True, conflict_ts=conflict_ts)


def _lock(request: kvrpcpb.PessimisticLockRequest, conflict_ts: int) -> LockRecord:
    return LockRecord(
        LockKind.PESSIMISTIC,
        request.start_version,
        request.primary_lock,
        request.lock_ttl,
        for_update_ts=conflict_ts or request.for_update_ts,
        min_commit_ts=request.min_commit_ts,
        with_conflict=conflict_ts != 0,
    )


def _is_forced(request: kvrpcpb.PessimisticLockRequest) -> bool:
    return bool(request.wake_up_mode == kvrpcpb.WakeUpModeForceLock)


def unlock_key(reader: MvccReader, effects: Effects, key: bytes, start_ts: int, for_update_ts: int) -> None:
    """Release a pessimistic lock taken at or before `for_update_ts`; do nothing when there is none."""
    lock = reader.load_lock(key)
    if (
        lock is not None
        and lock.is_pessimistic
        and lock.start_ts == start_ts
        and lock.for_update_ts <= for_update_ts
    ):
        effects.release(key, lock)
