"""The end of transactions: commit, rollback, status checks by other clients, and garbage collection.

A rollback leaves a record that stops a late request of the same transaction. Plain records are collapsed: a
later one removes the one before. A protected record stays, because the outcome of the whole transaction may
be read from it (on its primary, or where another client decided it).
"""

from collections.abc import Iterable, Iterator
from enum import Enum, auto

from penstock.clock import TS_MAX, physical_ms
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.store.mvcc import failures
from penstock.store.mvcc.effects import Effects
from penstock.store.mvcc.reader import MvccReader, Outcome, TxnRecord
from penstock.store.mvcc.records import LockRecord, Write, WriteKind


class Missing(Enum):
    """What to do when a transaction left no trace on the key."""

    ROLL_BACK = auto()
    PROTECT = auto()  # roll back, and keep the record


def is_expired(lock: LockRecord, current_ts: int) -> bool:
    """Return whether a lock has outlived its TTL."""
    return physical_ms(lock.start_ts) + lock.ttl < physical_ms(current_ts)


def clean_up(
    reader: MvccReader, effects: Effects, key: bytes, start_ts: int, *, missing: Missing, current_ts: int = 0
) -> None:
    """Roll a transaction back on a key, whatever its state there.

    Raise KeyRefused when it is committed, or when `current_ts` is given and its lock is still alive.
    """
    lock = reader.load_lock(key)
    if lock is not None and lock.start_ts == start_ts:
        if current_ts and not is_expired(lock, current_ts):
            raise failures.key_is_locked(key, lock)
        roll_back_lock(reader, effects, key, lock, collapse=missing is Missing.ROLL_BACK)
        return
    record = reader.txn_record(key, start_ts)
    if record.outcome is Outcome.COMMITTED:
        raise failures.already_committed(key, start_ts, record.commit_ts)
    if record.outcome is Outcome.UNKNOWN:
        record_missing(
            reader, effects, key, start_ts, record=record, other=lock, protect=missing is Missing.PROTECT
        )


def roll_back_lock(
    reader: MvccReader, effects: Effects, key: bytes, lock: LockRecord, *, collapse: bool = True
) -> None:
    """Remove the transaction's own lock and record the rollback."""
    record = reader.txn_record(key, lock.start_ts)
    assert record.outcome is not Outcome.COMMITTED, "a committed transaction cannot still hold its lock"
    effects.roll_back(key, lock)
    if record.outcome is Outcome.UNKNOWN:
        _record(effects, key, lock.start_ts, record, protect=key == lock.primary)
        if collapse:
            _collapse(reader, effects, key, lock.start_ts)


def record_missing(
    reader: MvccReader,
    effects: Effects,
    key: bytes,
    start_ts: int,
    *,
    record: TxnRecord,
    other: LockRecord | None,
    protect: bool,
) -> None:
    """Record a rollback where the transaction has neither lock nor version; `other` is a foreign lock."""
    _collapse(reader, effects, key, start_ts)
    if other is not None and protect and record.overlapped is None and _may_commit_at(other, start_ts):
        other.rollbacks += (start_ts,)
        effects.rewrite_lock(key, other)
    _record(effects, key, start_ts, record, protect=protect)


def _may_commit_at(lock: LockRecord, ts: int) -> bool:
    """Return whether a lock may be committed at `ts`.

    Only a computed commit timestamp can equal another transaction's start timestamp.
    """
    return lock.use_async_commit and lock.min_commit_ts <= ts


def _record(effects: Effects, key: bytes, start_ts: int, record: TxnRecord, *, protect: bool) -> None:
    overlapped = record.overlapped
    if overlapped is None:
        effects.put_write(key, start_ts, Write(WriteKind.ROLLBACK, start_ts, protected=protect))
    elif protect:
        overlapped.overlapped_rollback = True
        effects.put_write(key, start_ts, overlapped)


def _collapse(reader: MvccReader, effects: Effects, key: bytes, start_ts: int) -> None:
    found = reader.seek_write(key, start_ts)
    if found is not None and found[1].kind is WriteKind.ROLLBACK and not found[1].protected:
        effects.delete_write(key, *found)


Response = kvrpcpb.CheckTxnStatusResponse


def check_txn_status(
    reader: MvccReader, effects: Effects, request: kvrpcpb.CheckTxnStatusRequest
) -> kvrpcpb.CheckTxnStatusResponse:
    """Return the state of a transaction by its primary key.

    Roll an expired lock back. Return a live lock with its TTL; a reader pushes the earliest commit timestamp
    past its own, so that it need not wait. Raise KeyRefused when the transaction left no trace and the
    request does not roll it back, or when the key is not its primary.
    """
    key, start_ts = request.primary_key, request.lock_ts
    lock = reader.load_lock(key)
    if lock is None or lock.start_ts != start_ts:
        return _missing(reader, effects, request, lock)
    if request.verify_is_primary and lock.primary != key:
        if request.resolving_pessimistic_lock or not lock.is_pessimistic:
            raise failures.primary_mismatch(key, lock)
        # The transaction has chosen another primary since: this lock is left over from a failed statement.
        effects.release(key, lock)
        return _missing(reader, effects, request, None)
    if lock.use_async_commit and not request.force_sync_commit:
        return _alive(key, lock, kvrpcpb.NoAction)  # all its locks together decide its outcome
    if is_expired(lock, request.current_ts):
        if lock.is_pessimistic and request.resolving_pessimistic_lock:
            effects.release(key, lock)
            return Response(action=kvrpcpb.TTLExpirePessimisticRollback)
        roll_back_lock(reader, effects, key, lock)
        return Response(action=kvrpcpb.TTLExpireRollback)
    return _push(effects, request, lock)


def _push(
    effects: Effects, request: kvrpcpb.CheckTxnStatusRequest, lock: LockRecord
) -> kvrpcpb.CheckTxnStatusResponse:
    caller_ts = request.caller_start_ts
    if lock.min_commit_ts and caller_ts != TS_MAX and caller_ts >= lock.min_commit_ts:
        lock.min_commit_ts = max(caller_ts + 1, request.current_ts)
        effects.rewrite_lock(request.primary_key, lock)
    pushed = caller_ts == TS_MAX or (caller_ts and lock.min_commit_ts > caller_ts)
    action = kvrpcpb.MinCommitTSPushed if pushed else kvrpcpb.NoAction
    return _alive(request.primary_key, lock, action)


def _alive(key: bytes, lock: LockRecord, action: kvrpcpb.Action) -> kvrpcpb.CheckTxnStatusResponse:
    return Response(lock_ttl=lock.ttl, action=action, lock_info=lock.info(key))


def _missing(
    reader: MvccReader, effects: Effects, request: kvrpcpb.CheckTxnStatusRequest, other: LockRecord | None
) -> kvrpcpb.CheckTxnStatusResponse:
    key, start_ts = request.primary_key, request.lock_ts
    record = reader.txn_record(key, start_ts)
    if record.outcome is Outcome.COMMITTED:
        return Response(commit_version=record.commit_ts)
    if record.outcome is Outcome.ROLLED_BACK:
        return Response()
    if not request.rollback_if_not_exist:
        raise failures.txn_not_found(key, start_ts)
    if request.resolving_pessimistic_lock:
        return Response(action=kvrpcpb.LockNotExistDoNothing)
    record_missing(reader, effects, key, start_ts, record=record, other=other, protect=True)
    return Response(action=kvrpcpb.LockNotExistRollback)


def check_secondary_locks(
    reader: MvccReader, effects: Effects, request: kvrpcpb.CheckSecondaryLocksRequest
) -> kvrpcpb.CheckSecondaryLocksResponse:
    """Return whether an async commit has all of these locks.

    A key without its lock gets a protected rollback, so that a prewrite under way cannot complete the
    transaction after this answer. The first key that is committed or rolled back decides.
    """
    start_ts = request.start_version
    locks = []
    for key in request.keys:
        lock = reader.load_lock(key)
        own = lock is not None and lock.start_ts == start_ts
        if lock is not None and own and not lock.is_pessimistic:
            locks.append(lock.info(key))
            continue
        record = reader.txn_record(key, start_ts)
        if lock is not None and own:
            effects.release(key, lock)
        if record.outcome is Outcome.UNKNOWN:
            record_missing(
                reader, effects, key, start_ts, record=record, other=None if own else lock, protect=True
            )
        return kvrpcpb.CheckSecondaryLocksResponse(commit_ts=record.commit_ts)
    return kvrpcpb.CheckSecondaryLocksResponse(locks=locks)


def heart_beat(
    reader: MvccReader, effects: Effects, request: kvrpcpb.TxnHeartBeatRequest
) -> kvrpcpb.TxnHeartBeatResponse:
    """Extend the life of a primary lock; raise KeyRefused when it is gone."""
    key = request.primary_lock
    lock = reader.load_lock(key)
    if lock is None or lock.start_ts != request.start_version:
        raise failures.txn_not_found(key, request.start_version)
    pushes = lock.min_commit_ts < request.min_commit_ts and not lock.use_async_commit
    if lock.ttl < request.advise_lock_ttl or pushes:
        lock.ttl = max(lock.ttl, request.advise_lock_ttl)
        if pushes:
            lock.min_commit_ts = request.min_commit_ts
        effects.rewrite_lock(key, lock)
    return kvrpcpb.TxnHeartBeatResponse(lock_ttl=lock.ttl)


def commit(reader: MvccReader, effects: Effects, key: bytes, start_ts: int, commit_ts: int) -> None:
    """Commit a transaction on a key; repeating it changes nothing.

    Raise KeyRefused when the lock is gone without a version, or may only be committed later.
    """
    if commit_ts <= start_ts:
        raise failures.abort(f"InvalidTxnTso: commit_ts {commit_ts} is not after start_ts {start_ts}")
    lock = reader.load_lock(key)
    if lock is None or lock.start_ts != start_ts:
        if reader.txn_record(key, start_ts).outcome is not Outcome.COMMITTED:
            raise failures.txn_lock_not_found(key, start_ts)
        return
    if commit_ts < lock.min_commit_ts:
        raise failures.commit_ts_expired(key, start_ts, commit_ts, lock.min_commit_ts)
    if lock.is_pessimistic:
        effects.release(key, lock)  # left by a late request; the transaction never wrote here
    else:
        effects.commit(key, lock, commit_ts)


def garbage(versions: Iterable[tuple[int, Write]], safe_ts: int) -> Iterator[tuple[int, Write]]:
    """Yield the versions of one key, given newest first, that no read at or after `safe_ts` needs.

    The newest put at or before it stays. A delete goes together with everything it hides.
    """
    settled = False
    for commit_ts, write in versions:
        if commit_ts > safe_ts:
            continue
        if settled or write.kind is not WriteKind.PUT:
            yield commit_ts, write
        settled = settled or write.kind in {WriteKind.PUT, WriteKind.DELETE}


def collect(reader: MvccReader, effects: Effects, keys: Iterable[bytes], safe_ts: int) -> None:
    """Remove the garbage of some keys."""
    for key in keys:
        for commit_ts, write in garbage(reader.versions(key), safe_ts):
            effects.delete_write(key, commit_ts, write)
