"""Turning locks into versions."""

from penstock.store.mvcc import failures
from penstock.store.mvcc.effects import Effects
from penstock.store.mvcc.reader import MvccReader, Outcome


def commit(reader: MvccReader, effects: Effects, key: bytes, start_ts: int, commit_ts: int) -> None:
    """Commit a transaction on a key; repeating it changes nothing.

    Raise Refused when the lock is gone without a version, or may only be committed later.
    """
    if commit_ts <= start_ts:
        raise failures.aborted(f"InvalidTxnTso: commit_ts {commit_ts} is not after start_ts {start_ts}")
    lock = reader.load_lock(key)
    if lock is None or lock.start_ts != start_ts:
        if reader.txn_record(key, start_ts).outcome is not Outcome.COMMITTED:
            raise failures.txn_lock_not_found(key, start_ts)
        return
    if commit_ts < lock.min_commit_ts:
        raise failures.commit_ts_expired(key, start_ts, commit_ts, lock.min_commit_ts)
    if lock.is_pessimistic:
        effects.release(
            key, lock
        )  # left behind by a request that came late; the transaction never wrote here
    else:
        effects.commit(key, lock, commit_ts)
