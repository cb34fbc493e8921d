r"""The two records of a key, its lock and its versions, and the keys under which they are stored.

Records (docs/format.md) begin with numbers of fixed size, so that a scan finds the value of a version by a
slice; rare parts follow under a flag. Timestamps are 8 bytes, big-endian.

A lock is stored under the raw key. A version or a long value is stored under the escaped key followed by the
inverted timestamp, so that the versions of a key are neighbours, newest first, and keys keep their order.
Escaping (`\0` becomes `\0\xff`, and `\0\0` ends the key) is one call of the interpreter in each direction;
the memcomparable groups of the wire would need a loop for each row of a scan.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from penstock.clock import TS_MAX
from penstock.errors import Corrupt
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.store.bounds import KeyBounds

SHORT_VALUE_MAX = 1024  # a longer value is kept once, in its own column family, and not moved at commit


class LockKind(IntEnum):
    """What a lock announces."""

    PUT = 0
    DELETE = 1
    LOCK = 2
    PESSIMISTIC = 5

    @property
    def op(self) -> kvrpcpb.Op:
        """The kind as the wire names it."""
        return _LOCK_OPS[self]


_LOCK_OPS = {
    LockKind.PUT: kvrpcpb.Put,
    LockKind.DELETE: kvrpcpb.Del,
    LockKind.LOCK: kvrpcpb.Lock,
    LockKind.PESSIMISTIC: kvrpcpb.PessimisticLock,
}


class WriteKind(IntEnum):
    """What a version says. LOCK and ROLLBACK carry no data; reads skip them."""

    PUT = 0
    DELETE = 1
    LOCK = 2
    ROLLBACK = 3


# The first byte of a version: its kind in the low bits, then flags.
_KIND_MASK = 0x03
_SHORT = 0x04
_OVERLAPPED_ROLLBACK = 0x08
_PROTECTED = 0x10
_SOURCE = 0x20
PUT_SHORT = WriteKind.PUT | _SHORT
WRITE_HEAD_BYTES = 9
_WRITE_HEAD = struct.Struct(">BQ")
_SOURCE_PART = struct.Struct(">Q")


@dataclass(slots=True)
class Write:
    """A version of a key, kept under its commit timestamp (a rollback: under its start timestamp).

    `short_value` is None when the value is long (kept under the start timestamp) or there is none.
    `overlapped_rollback`: the transaction whose start timestamp equals this commit timestamp was
    rolled back on this key; there is room for one record only. TiKV adds a fence here because its
    collection of old versions may run beside the rewrite of a version; ours holds the key's latch.
    `protected`: a rollback that must not be dropped when a later one is written. `txn_source` says who
    wrote it, as the writer's request did.
    """

    kind: WriteKind
    start_ts: int
    short_value: bytes | None = None
    overlapped_rollback: bool = False
    protected: bool = False
    txn_source: int = 0

    def encode(self) -> bytes:
        """Return the stored form."""
        flags: int = self.kind
        if self.overlapped_rollback:
            flags |= _OVERLAPPED_ROLLBACK
        if self.protected:
            flags |= _PROTECTED
        source = b""
        if self.txn_source:
            flags |= _SOURCE
            source = _SOURCE_PART.pack(self.txn_source)
        if self.short_value is None:
            return _WRITE_HEAD.pack(flags, self.start_ts) + source
        return _WRITE_HEAD.pack(flags | _SHORT, self.start_ts) + source + self.short_value

    @classmethod
    def decode(cls, stored: bytes) -> "Write":
        """Read the stored form; raise Corrupt when it is damaged."""
        if len(stored) < WRITE_HEAD_BYTES:
            raise Corrupt("a version is cut short; restore the data directory from a copy")
        flags, start_ts = _WRITE_HEAD.unpack_from(stored)
        at, txn_source = WRITE_HEAD_BYTES, 0
        if flags & _SOURCE:
            (txn_source,) = _SOURCE_PART.unpack_from(stored, at)
            at += _SOURCE_PART.size
        return cls(
            WRITE_KINDS[flags & _KIND_MASK],
            start_ts,
            stored[at:] if flags & _SHORT else None,
            bool(flags & _OVERLAPPED_ROLLBACK),
            bool(flags & _PROTECTED),
            txn_source,
        )

    @property
    def has_long_value(self) -> bool:
        """Whether the value is kept apart, under the start timestamp."""
        return self.kind is WriteKind.PUT and self.short_value is None

    def rolls_back(self, start_ts: int, commit_ts: int) -> bool:
        """Tell whether this record, kept under `commit_ts`, says that `start_ts` was rolled back."""
        return commit_ts == start_ts and (self.kind is WriteKind.ROLLBACK or self.overlapped_rollback)


WRITE_KINDS = tuple(WriteKind)  # by value

# A lock: kind, flags, start_ts, ttl, for_update_ts, txn_size, min_commit_ts, length of the primary, primary;
# then secondaries (count, then length and bytes each), rollbacks (count, timestamps) and the source of the
# transaction when flagged; then the short value to the end when flagged.
_LOCK_HEAD = struct.Struct(">BBQQQQQI")
_COUNT = struct.Struct(">I")
_LOCK_SHORT = 0x01
_LOCK_ASYNC = 0x02
_LOCK_ROLLBACKS = 0x04
_LOCK_CONFLICT = 0x08
_LOCK_SOURCE = 0x10
_LOCK_KINDS = {kind.value: kind for kind in LockKind}


@dataclass(slots=True)
class LockRecord:
    """The lock of a key; there is at most one.

    `min_commit_ts` is 0 when no client asked for it. `rollbacks` are protected rollbacks of other
    transactions at whose timestamp this lock may be committed (see `Write.overlapped_rollback`); only an
    async commit can meet one. `with_conflict`: the lock was forced although a newer version exists;
    `for_update_ts` is that version's timestamp. `txn_source` says who writes, as the writer's request did.
    """

    kind: LockKind
    start_ts: int
    primary: bytes
    ttl: int
    for_update_ts: int = 0
    txn_size: int = 0
    min_commit_ts: int = 0
    short_value: bytes | None = None
    use_async_commit: bool = False
    secondaries: tuple[bytes, ...] = ()
    rollbacks: tuple[int, ...] = ()
    with_conflict: bool = False
    txn_source: int = 0

    def encode(self) -> bytes:
        """Return the stored form."""
        flags = (
            (_LOCK_SHORT if self.short_value is not None else 0)
            | (_LOCK_ASYNC if self.use_async_commit else 0)
            | (_LOCK_ROLLBACKS if self.rollbacks else 0)
            | (_LOCK_CONFLICT if self.with_conflict else 0)
            | (_LOCK_SOURCE if self.txn_source else 0)
        )
        head = _LOCK_HEAD.pack(
            self.kind,
            flags,
            self.start_ts,
            self.ttl,
            self.for_update_ts,
            self.txn_size,
            self.min_commit_ts,
            len(self.primary),
        )
        parts = [head, self.primary]
        if self.use_async_commit:
            parts.append(_COUNT.pack(len(self.secondaries)))
            for key in self.secondaries:
                parts += (_COUNT.pack(len(key)), key)
        if self.rollbacks:
            parts.append(struct.pack(f">I{len(self.rollbacks)}Q", len(self.rollbacks), *self.rollbacks))
        if self.txn_source:
            parts.append(_SOURCE_PART.pack(self.txn_source))
        if self.short_value is not None:
            parts.append(self.short_value)
        return b"".join(parts)

    @classmethod
    def decode(cls, stored: bytes) -> "LockRecord":
        """Read the stored form; raise Corrupt for other bytes."""
        try:
            return cls._decode(stored)
        except (struct.error, KeyError) as error:
            raise Corrupt("a lock's record is damaged; restore the data directory from a copy") from error

    @classmethod
    def _decode(cls, stored: bytes) -> "LockRecord":
        kind, flags, start_ts, ttl, for_update_ts, txn_size, min_commit_ts, size = _LOCK_HEAD.unpack_from(
            stored
        )
        at = _LOCK_HEAD.size + size
        lock = cls(
            _LOCK_KINDS[kind],
            start_ts,
            stored[_LOCK_HEAD.size : at],
            ttl,
            for_update_ts,
            txn_size,
            min_commit_ts,
            use_async_commit=bool(flags & _LOCK_ASYNC),
            with_conflict=bool(flags & _LOCK_CONFLICT),
        )
        if flags & _LOCK_ASYNC:
            lock.secondaries, at = _decode_keys(stored, at)
        if flags & _LOCK_ROLLBACKS:
            (count,) = _COUNT.unpack_from(stored, at)
            lock.rollbacks = struct.unpack_from(f">{count}Q", stored, at + _COUNT.size)
            at += _COUNT.size + 8 * count
        if flags & _LOCK_SOURCE:
            (lock.txn_source,) = _SOURCE_PART.unpack_from(stored, at)
            at += _SOURCE_PART.size
        if flags & _LOCK_SHORT:
            lock.short_value = stored[at:]
        return lock

    @property
    def is_pessimistic(self) -> bool:
        """Whether it holds the key without announcing data yet."""
        return self.kind is LockKind.PESSIMISTIC

    @property
    def has_data(self) -> bool:
        """Whether it announces a new version with data: a put or a delete."""
        return self.kind is LockKind.PUT or self.kind is LockKind.DELETE

    @property
    def has_long_value(self) -> bool:
        """Whether the value is kept apart, under the start timestamp."""
        return self.kind is LockKind.PUT and self.short_value is None

    def info(self, key: bytes) -> kvrpcpb.LockInfo:
        """Return the lock as the wire describes it to a client."""
        return kvrpcpb.LockInfo(
            primary_lock=self.primary,
            lock_version=self.start_ts,
            key=key,
            lock_ttl=self.ttl,
            txn_size=self.txn_size,
            lock_type=self.kind.op,
            lock_for_update_ts=self.for_update_ts,
            use_async_commit=self.use_async_commit,
            min_commit_ts=self.min_commit_ts,
            secondaries=self.secondaries,
        )


def _decode_keys(stored: bytes, at: int) -> tuple[tuple[bytes, ...], int]:
    (count,) = _COUNT.unpack_from(stored, at)
    at += _COUNT.size
    keys = []
    for _ in range(count):
        (size,) = _COUNT.unpack_from(stored, at)
        at += _COUNT.size
        keys.append(stored[at : at + size])
        at += size
    return tuple(keys), at


_TS = struct.Struct(">Q")
ZERO, ESCAPED, END = b"\0", b"\0\xff", b"\0\0"
TS_BYTES = _TS.size
TAIL_BYTES = len(END) + TS_BYTES


def escape(key: bytes) -> bytes:
    """Return the prefix shared by the versions of `key`."""
    return key.replace(ZERO, ESCAPED) + END


def unescape(versioned: bytes) -> bytes:
    """Return the raw key of a versioned key."""
    return versioned[:-TAIL_BYTES].replace(ESCAPED, ZERO)


def suffix(ts: int) -> bytes:
    """Return the end of a versioned key; a later timestamp gives a smaller suffix."""
    return _TS.pack(TS_MAX - ts)


def version_key(key: bytes, ts: int) -> bytes:
    """Return the versioned key under which the version of `key` at `ts` is kept."""
    return escape(key) + _TS.pack(TS_MAX - ts)


def ts_of(versioned: bytes) -> int:
    """Return the timestamp of a versioned key."""
    inverted: int = _TS.unpack_from(versioned, len(versioned) - TS_BYTES)[0]
    return TS_MAX - inverted


def span(bounds: KeyBounds) -> tuple[bytes, bytes]:
    """Return the range of versioned keys that holds the raw keys of `bounds`."""
    return escape(bounds.start) if bounds.start else b"", escape(bounds.end) if bounds.end else b""
