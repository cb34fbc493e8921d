"""Finding out, or deciding, what becomes of another client's transaction."""

from penstock.clock import TS_MAX
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.store.mvcc import failures
from penstock.store.mvcc.effects import Effects
from penstock.store.mvcc.reader import MvccReader, Outcome
from penstock.store.mvcc.records import LockRecord
from penstock.store.mvcc.rollback import is_expired, record_missing, roll_back_lock

Response = kvrpcpb.CheckTxnStatusResponse


def check_txn_status(
    reader: MvccReader, effects: Effects, request: kvrpcpb.CheckTxnStatusRequest
) -> kvrpcpb.CheckTxnStatusResponse:
    """Tell the state of a transaction by its primary key.

    A lock past its TTL is rolled back. A live one is told with its TTL; a reader that meets it pushes the
    earliest commit timestamp past its own, so that it need not wait. Raise Refused when the transaction
    left no trace and is not to be rolled back for that, or the key is not its primary.
    """
    key, start_ts = request.primary_key, request.lock_ts
    lock = reader.load_lock(key)
    if lock is None or lock.start_ts != start_ts:
        return _missing(reader, effects, request, lock)
    if request.verify_is_primary and lock.primary != key:
        if request.resolving_pessimistic_lock or not lock.is_pessimistic:
            raise failures.primary_mismatch(key, lock)
        # The transaction chose another primary since: this lock is a leftover of a failed statement.
        effects.release(key, lock)
        return _missing(reader, effects, request, None)
    if lock.use_async_commit and not request.force_sync_commit:
        return _alive(key, lock, kvrpcpb.NoAction)  # its fate is decided by all its locks together
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
    """Tell whether an async commit has all of these locks.

    A key without its lock gets a protected rollback, so that a prewrite under way cannot complete the
    transaction behind the caller's back. The first key that is committed or rolled back decides.
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
    """Lengthen the life of a primary lock; raise Refused when it is gone."""
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
