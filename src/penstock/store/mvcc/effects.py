"""The effects of an action: collected while it decides, applied as one atomic write."""

from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.store.engine import Cf, Mutation
from penstock.store.mvcc import records
from penstock.store.mvcc.records import SHORT_VALUE_MAX, WRITE_KINDS, LockKind, LockRecord, Write
from penstock.store.observe import Change, ChangeKind, WriteOp

_OPS = {LockKind.PUT: WriteOp.PUT, LockKind.DELETE: WriteOp.DELETE, LockKind.LOCK: WriteOp.LOCK}


class ReleasedLock(NamedTuple):
    """A lock that goes away; `commit_ts` is 0 when its transaction did not commit here."""

    key: bytes
    start_ts: int
    commit_ts: int


@dataclass(slots=True)
class Effects:
    """Mutations, and what to report once they are durable.

    `guards` are locks that readers must meet from before the write is queued until it is durable, because an
    async or one-phase commit fixes its earliest commit timestamp before its locks or versions are visible.
    """

    mutations: list[Mutation] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    released: list[ReleasedLock] = field(default_factory=list)
    acquired: list[tuple[bytes, LockRecord]] = field(default_factory=list)
    guards: list[tuple[bytes, LockRecord]] = field(default_factory=list)

    def discard(self) -> None:
        """Drop all effects."""
        for part in (self.mutations, self.changes, self.released, self.acquired, self.guards):
            part.clear()

    def acquire(self, key: bytes, lock: LockRecord) -> None:
        """Take a pessimistic lock."""
        self.rewrite_lock(key, lock)
        self.acquired.append((key, lock))

    def rewrite_lock(self, key: bytes, lock: LockRecord) -> None:
        """Change the TTL or the timestamps of a lock; observers do not see it."""
        self.mutations.append((Cf.LOCK, key, lock.encode()))

    def prewrite(self, key: bytes, lock: LockRecord, value: bytes) -> None:
        """Write a prewrite lock with the value it announces; a short one goes into the lock."""
        value = self._place_value(key, lock, value)
        self.mutations.append((Cf.LOCK, key, lock.encode()))
        self.acquired.append((key, lock))
        if lock.has_data:
            self._record_change(ChangeKind.PREWRITE, key, lock, 0, value)

    def commit_at_once(self, key: bytes, lock: LockRecord, value: bytes, commit_ts: int) -> None:
        """Write the version that `lock` would have announced, without ever writing the lock."""
        value = self._place_value(key, lock, value)
        self.put_write(key, commit_ts, _version(lock))
        if lock.has_data:
            self._record_change(ChangeKind.COMMITTED, key, lock, commit_ts, value)

    def commit(self, key: bytes, lock: LockRecord, commit_ts: int) -> None:
        """Turn a prewrite lock into a version."""
        write = _version(lock)
        write.overlapped_rollback = commit_ts in lock.rollbacks
        self.put_write(key, commit_ts, write)
        self.release(key, lock, commit_ts)
        if lock.has_data:
            self._record_change(ChangeKind.COMMIT, key, lock, commit_ts, lock.short_value or b"")

    def roll_back(self, key: bytes, lock: LockRecord) -> None:
        """Remove a lock, and the value it announced."""
        if lock.has_long_value:
            self.mutations.append((Cf.DEFAULT, records.version_key(key, lock.start_ts), None))
        self.release(key, lock)
        if lock.has_data:
            self._record_change(ChangeKind.ROLLBACK, key, lock, 0, b"")

    def release(self, key: bytes, lock: LockRecord, commit_ts: int = 0) -> None:
        """Remove a lock that announces no value."""
        self.mutations.append((Cf.LOCK, key, None))
        self.released.append(ReleasedLock(key, lock.start_ts, commit_ts))

    def put_write(self, key: bytes, commit_ts: int, write: Write) -> None:
        """Write a version."""
        self.mutations.append((Cf.WRITE, records.version_key(key, commit_ts), write.encode()))

    def delete_write(self, key: bytes, commit_ts: int, write: Write) -> None:
        """Remove a version, and its value."""
        self.mutations.append((Cf.WRITE, records.version_key(key, commit_ts), None))
        if write.has_long_value:
            self.mutations.append((Cf.DEFAULT, records.version_key(key, write.start_ts), None))

    def _place_value(self, key: bytes, lock: LockRecord, value: bytes) -> bytes:
        """Store the value where readers look for it; return the value that the lock announces, if any."""
        if lock.kind is not LockKind.PUT:
            return b""
        if len(value) <= SHORT_VALUE_MAX:
            lock.short_value = value
        else:
            self.mutations.append((Cf.DEFAULT, records.version_key(key, lock.start_ts), value))
        return value

    def _record_change(
        self, kind: ChangeKind, key: bytes, lock: LockRecord, commit_ts: int, value: bytes
    ) -> None:
        change = Change(kind, key, lock.start_ts, commit_ts, _OPS[lock.kind], value, lock.txn_source)
        self.changes.append(change)


def _version(lock: LockRecord) -> Write:
    """Return the version that a lock announces."""
    return Write(WRITE_KINDS[lock.kind], lock.start_ts, lock.short_value, txn_source=lock.txn_source)
