"""Undoing a transaction on a key, and leaving a record so that it cannot come back.

A rollback record stops a request of the same transaction that arrives late. Plain records are
collapsed: a later one removes the one before. A protected record stays, because the fate of the whole
transaction may be read from it (on its primary, or where another client decided it).
"""

from enum import Enum, auto

from penstock.clock import physical_ms
from penstock.store.mvcc import failures
from penstock.store.mvcc.effects import Effects
from penstock.store.mvcc.reader import MvccReader, Outcome, TxnRecord
from penstock.store.mvcc.records import LockRecord, Write, WriteKind


class Missing(Enum):
    """What to do about a transaction that left no trace on the key."""

    ROLL_BACK = auto()
    PROTECT = auto()  # roll back, and keep the record


def is_expired(lock: LockRecord, current_ts: int) -> bool:
    """Tell whether a lock outlived its TTL."""
    return physical_ms(lock.start_ts) + lock.ttl < physical_ms(current_ts)


def clean_up(
    reader: MvccReader, effects: Effects, key: bytes, start_ts: int, *, missing: Missing, current_ts: int = 0
) -> None:
    """Roll a transaction back on a key, whatever its state there.

    Raise Refused when it is committed, or when `current_ts` is given and its lock is still alive.
    """
    lock = reader.load_lock(key)
    if lock is not None and lock.start_ts == start_ts:
        if current_ts and not is_expired(lock, current_ts):
            raise failures.locked(key, lock)
        roll_back_lock(reader, effects, key, lock, collapse=missing is Missing.ROLL_BACK)
        return
    record = reader.txn_record(key, start_ts)
    if record.outcome is Outcome.COMMITTED:
        raise failures.committed(key, start_ts, record.commit_ts)
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
    """Only a computed commit timestamp can equal another transaction's start timestamp."""
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
