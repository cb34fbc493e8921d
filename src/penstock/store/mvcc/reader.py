"""Reads of locks and versions through one view, and the locks that a read may ignore.

`mvcc_info` and `find_by_start_ts` show what is stored of a key, for debugging.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from rocksdict import RdictIter

from penstock.clock import TS_MAX
from penstock.errors import Corrupt, show_key
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.store.bounds import KeyBounds
from penstock.store.engine import Cf, EngineView
from penstock.store.mvcc import failures, records
from penstock.store.mvcc.failures import KeyRefused, Reason
from penstock.store.mvcc.records import LockRecord, Write, WriteKind

SEEKING = (Cf.WRITE,)  # cursors a reader needs of its view: for single keys
COMMANDING = (Cf.WRITE, Cf.WRITE)  # for single keys, and all versions of one
SCANNING = (Cf.LOCK, Cf.WRITE, Cf.WRITE)  # for single keys, and one scan each of locks and versions


class Outcome(Enum):
    """What became of a transaction on a key."""

    UNKNOWN = auto()
    COMMITTED = auto()
    ROLLED_BACK = auto()


class TxnRecord(NamedTuple):
    """A transaction's trace among the versions of a key.

    `commit_ts` is set when it is committed. `overlapped` is another transaction's version that is kept
    at this one's start timestamp, where a rollback would have to be recorded.
    """

    outcome: Outcome
    commit_ts: int = 0
    overlapped: Write | None = None


class MvccReader:
    """A consistent view of locks and versions. Each command makes a new one.

    It takes one cursor of the view for its seeks; a scan over versions takes another while it runs. With
    `may_be_locked` it looks for the locks of those keys only that may have one.
    """

    __slots__ = ("_cursor", "_gap", "_may_be_locked", "view")

    def __init__(self, view: EngineView, may_be_locked: Callable[[bytes], bool] | None = None) -> None:
        self.view = view
        self._may_be_locked = may_be_locked
        self._cursor: RdictIter | None = None
        # Where the last seek began and the key that it found, None for the end: between the two is nothing.
        self._gap: tuple[bytes, bytes | None] | None = None

    def load_lock(self, key: bytes) -> LockRecord | None:
        """Return the lock of a key, of any kind."""
        if self._may_be_locked is not None and not self._may_be_locked(key):
            return None
        stored = self.view.get(Cf.LOCK, key)
        return None if stored is None else LockRecord.decode(stored)

    def scan_locks(self, bounds: KeyBounds) -> Iterator[tuple[bytes, LockRecord]]:
        """Yield every lock of a range in key order."""
        for key, stored in self.view.iterate(Cf.LOCK, bounds.start, bounds.end):
            yield key, LockRecord.decode(stored)

    def seek_write(self, key: bytes, ts: int = TS_MAX) -> tuple[int, Write] | None:
        """Return the newest version of any kind committed at or before `ts`, and when it was."""
        prefix = records.escape(key)
        position = prefix + records.suffix(ts)
        gap = self._gap
        if gap is None or position < gap[0] or (gap[1] is not None and position > gap[1]):
            cursor = self._seek(position)
            if cursor.valid():
                gap = self._gap = (position, cursor.key())
            else:
                cursor.status()
                gap = self._gap = (position, None)
        found = gap[1]
        if found is None or not found.startswith(prefix):
            return None
        assert self._cursor is not None
        return records.ts_of(found), Write.decode(self._cursor.value())

    def newest_put(self, key: bytes, ts: int = TS_MAX) -> tuple[int, Write] | None:
        """Return the version a read at `ts` sees; None when the key is absent or deleted then."""
        prefix = records.escape(key)
        cursor = self._seek(prefix + records.suffix(ts))
        while (found := _version(cursor, prefix)) is not None:
            kind = found[1].kind
            if kind is WriteKind.PUT:
                return found
            if kind is WriteKind.DELETE:
                return None
            cursor.next()
        return None

    def get(self, key: bytes, ts: int) -> bytes | None:
        """Return the value a read at `ts` sees, without regard to locks."""
        found = self.newest_put(key, ts)
        return None if found is None else self.value_of(key, found[1])

    def newest_put_before(self, key: bytes, commit_ts: int) -> bytes | None:
        """Return the value that a version committed at `commit_ts` replaced, or None."""
        return self.get(key, commit_ts - 1)

    def value_of(self, key: bytes, record: Write | LockRecord) -> bytes:
        """Return the value of a put; raise Corrupt when it is missing."""
        if record.short_value is not None:
            return record.short_value
        value = self.view.get(Cf.DEFAULT, records.version_key(key, record.start_ts))
        if value is None:
            raise Corrupt(f"the value of {show_key(key)} is missing; restore the data directory from a copy")
        return value

    def txn_record(self, key: bytes, start_ts: int) -> TxnRecord:
        """Search the versions of a key for a transaction.

        A pessimistic transaction may commit after another that began later, so every version from the
        newest down to the start timestamp may be the one.
        """
        prefix = records.escape(key)
        cursor = self._seek(prefix)
        while (found := _version(cursor, prefix)) is not None:
            commit_ts, write = found
            if write.start_ts == start_ts:
                if write.kind is WriteKind.ROLLBACK:
                    return TxnRecord(Outcome.ROLLED_BACK)
                return TxnRecord(Outcome.COMMITTED, commit_ts)
            if commit_ts == start_ts:
                if write.overlapped_rollback:
                    return TxnRecord(Outcome.ROLLED_BACK)
                return TxnRecord(Outcome.UNKNOWN, overlapped=write)
            if commit_ts < start_ts:
                break
            cursor.next()
        return TxnRecord(Outcome.UNKNOWN)

    def versions(self, key: bytes) -> Iterator[tuple[int, Write]]:
        """Yield (commit_ts, version) of a key, of any kind, newest first."""
        prefix = records.escape(key)
        for versioned, stored in self.view.iterate(
            Cf.WRITE, prefix, prefix + b"\xff" * (records.TS_BYTES + 1)
        ):
            yield records.ts_of(versioned), Write.decode(stored)

    def scan_writes(self, bounds: KeyBounds, from_ts: int = 0) -> Iterator[tuple[bytes, int, Write]]:
        """Yield (key, commit_ts, version) committed after `from_ts`, in key order, newest first per key.

        Versions of every kind come, also those without data.
        """
        last_suffix = records.suffix(from_ts)
        for versioned, stored in self.view.iterate(Cf.WRITE, *records.span(bounds)):
            if versioned[-records.TS_BYTES :] < last_suffix:
                yield records.unescape(versioned), records.ts_of(versioned), Write.decode(stored)

    def _seek(self, position: bytes) -> RdictIter:
        cursor = self._cursor
        if cursor is None:
            cursor = self._cursor = self.view.take_cursor(Cf.WRITE)
        self._gap = None  # the cursor moves
        cursor.seek(position)
        return cursor


def _version(cursor: RdictIter, prefix: bytes) -> tuple[int, Write] | None:
    """Return the version under the cursor when it is one of the key with this prefix."""
    if not cursor.valid():
        cursor.status()
        return None
    versioned: bytes = cursor.key()
    if not versioned.startswith(prefix):
        return None
    return records.ts_of(versioned), Write.decode(cursor.value())


@dataclass(frozen=True, slots=True)
class ReadPoint:
    """The timestamp of a read, and how it treats locks and newer versions.

    `passed` are transactions known to commit later than `ts`, or never; `committed` are transactions
    known to be committed at or before `ts` whose locks linger: their locks are read like versions.
    """

    ts: int
    isolation: kvrpcpb.IsolationLevel = kvrpcpb.SI
    passed: frozenset[int] = frozenset()
    committed: frozenset[int] = frozenset()

    @classmethod
    def of(cls, ts: int, context: kvrpcpb.Context) -> "ReadPoint":
        """Build the read point from the context of a request."""
        return cls(
            ts,
            context.isolation_level,
            frozenset(context.resolved_locks),
            frozenset(context.committed_locks),
        )

    @property
    def checks_locks(self) -> bool:
        """Whether locks matter at all."""
        return bool(self.isolation != kvrpcpb.RC)

    @property
    def checks_newer(self) -> bool:
        """Whether a version newer than `ts` fails the read."""
        return bool(self.isolation == kvrpcpb.RCCheckTS)

    def obstacle(self, key: bytes, lock: LockRecord) -> KeyRefused | None:
        """Return the refusal when this lock stops the read, or None when the read may ignore it."""
        if not lock.has_data or lock.start_ts in self.passed:
            return None
        if self.isolation == kvrpcpb.RCCheckTS:
            return failures.write_conflict(
                key,
                start_ts=self.ts,
                primary=lock.primary,
                conflict_ts=lock.start_ts,
                commit_ts=0,
                reason=Reason.RcCheckTs,
            )
        if lock.start_ts > self.ts or lock.min_commit_ts > self.ts:
            return None
        if self.ts == TS_MAX and key == lock.primary and not lock.use_async_commit:
            return None  # the read wants the newest committed version, and this one is not committed yet
        return failures.key_is_locked(key, lock)

    def reads_through(self, lock: LockRecord) -> bool:
        """Return whether the lock's transaction is known as committed, so that it is read like a version."""
        return lock.start_ts in self.committed

    def newer(self, key: bytes, commit_ts: int, write: Write) -> KeyRefused:
        """Return the refusal for a version newer than the read, when the isolation level checks it."""
        return failures.write_conflict(
            key,
            start_ts=self.ts,
            primary=b"",
            conflict_ts=write.start_ts,
            commit_ts=commit_ts,
            reason=Reason.RcCheckTs,
        )


def mvcc_info(reader: MvccReader, key: bytes) -> kvrpcpb.MvccInfo:
    """Return the lock and all versions of a key as the wire describes them."""
    info = kvrpcpb.MvccInfo()
    lock = reader.load_lock(key)
    if lock is not None:
        _show_lock(info, reader, key, lock)
    for commit_ts, write in reader.versions(key):
        _show_write(info, reader, key, commit_ts, write)
    return info


def _show_lock(info: kvrpcpb.MvccInfo, reader: MvccReader, key: bytes, lock: LockRecord) -> None:
    info.lock.CopyFrom(
        kvrpcpb.MvccLock(
            type=lock.kind.op,
            start_ts=lock.start_ts,
            primary=lock.primary,
            short_value=lock.short_value or b"",
            ttl=lock.ttl,
            for_update_ts=lock.for_update_ts,
            txn_size=lock.txn_size,
            use_async_commit=lock.use_async_commit,
            secondaries=lock.secondaries,
            rollback_ts=lock.rollbacks,
        )
    )
    if lock.has_long_value:
        info.values.add(start_ts=lock.start_ts, value=reader.value_of(key, lock))


def _show_write(info: kvrpcpb.MvccInfo, reader: MvccReader, key: bytes, commit_ts: int, write: Write) -> None:
    info.writes.add(
        type=_WRITE_OPS[write.kind],
        start_ts=write.start_ts,
        commit_ts=commit_ts,
        short_value=write.short_value or b"",
        has_overlapped_rollback=write.overlapped_rollback,
    )
    if write.has_long_value:
        info.values.add(start_ts=write.start_ts, value=reader.value_of(key, write))


_WRITE_OPS = {
    WriteKind.PUT: kvrpcpb.Put,
    WriteKind.DELETE: kvrpcpb.Del,
    WriteKind.LOCK: kvrpcpb.Lock,
    WriteKind.ROLLBACK: kvrpcpb.Rollback,
}


def find_by_start_ts(reader: MvccReader, bounds: KeyBounds, start_ts: int) -> bytes | None:
    """Return the first key of a range that a transaction locked or wrote."""
    for key, lock in reader.scan_locks(bounds):
        if lock.start_ts == start_ts:
            return key
    for key, _, write in reader.scan_writes(bounds, max(start_ts - 1, 0)):
        if write.start_ts == start_ts:
            return key
    return None
