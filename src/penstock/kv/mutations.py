"""The mutations of a commit: made of the membuffer, held in columns, cut into groups and batches.

Columns, because a large transaction is sliced many times (by region, by size, on every retry)
and a slice of lists costs nothing per key that an object per key would.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from penstock.kv.membuffer import DELETED, NO_FLAG, KeyFlag, MemBuffer
from penstock.proto import kvrpcpb_pb2 as kvrpcpb

PUT, DELETE, LOCK = kvrpcpb.Op.Put, kvrpcpb.Op.Del, kvrpcpb.Op.Lock
INSERT, CHECK_NOT_EXISTS = kvrpcpb.Op.Insert, kvrpcpb.Op.CheckNotExists
_NO_ASSERTION = kvrpcpb.Assertion.NoAssertion

DEFAULT_LOCK_TTL_MS = 3_000
_TTL_FACTOR_MS = 6_000
_TTL_GROWS_FROM_BYTES = 16 * 1024
_MIB = 1024 * 1024


@dataclass(slots=True)
class Mutations:
    """Keys in ascending order and, beside each, what happens to it.

    `locked` says that the transaction holds a pessimistic lock on the key. Every column has the
    length of `keys`.
    """

    keys: list[bytes] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    ops: list[kvrpcpb.Op] = field(default_factory=list)
    locked: list[bool] = field(default_factory=list)
    assertions: list[kvrpcpb.Assertion] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys)

    def append(
        self,
        key: bytes,
        value: bytes,
        op: kvrpcpb.Op,
        *,
        locked: bool = False,
        assertion: kvrpcpb.Assertion = _NO_ASSERTION,
    ) -> None:
        """Add a mutation; the key is greater than every key before it."""
        self.keys.append(key)
        self.values.append(value)
        self.ops.append(op)
        self.locked.append(locked)
        self.assertions.append(assertion)

    def cut(self, part: slice) -> "Mutations":
        """Return a part of the mutations."""
        return Mutations(
            self.keys[part], self.values[part], self.ops[part], self.locked[part], self.assertions[part]
        )

    def select(self, wanted: Callable[[int], bool]) -> "Mutations":
        """Return the mutations at the positions that `wanted` accepts."""
        picked = [i for i in range(len(self.keys)) if wanted(i)]
        if len(picked) == len(self.keys):
            return self
        return Mutations(
            [self.keys[i] for i in picked],
            [self.values[i] for i in picked],
            [self.ops[i] for i in picked],
            [self.locked[i] for i in picked],
            [self.assertions[i] for i in picked],
        )

    def merge(self, other: "Mutations") -> "Mutations":
        """Return both, in order; they share no key."""
        rows = sorted([*self._rows(), *other._rows()])
        merged = Mutations()
        for key, value, op, locked, assertion in rows:
            merged.append(key, value, op, locked=locked, assertion=assertion)
        return merged

    def _rows(self) -> Iterator[tuple[bytes, bytes, kvrpcpb.Op, bool, kvrpcpb.Assertion]]:
        return zip(self.keys, self.values, self.ops, self.locked, self.assertions, strict=True)

    def position(self, key: bytes | None) -> int | None:
        """Return where a key is, None when it is not among them."""
        if key is None:
            return None
        at = bisect_left(self.keys, key)
        return at if at < len(self.keys) and self.keys[at] == key else None

    def committable(self) -> "Mutations":
        """Return the mutations without those that only check and so leave no lock to commit."""
        if CHECK_NOT_EXISTS not in self.ops:
            return self
        return self.select(lambda i: self.ops[i] != CHECK_NOT_EXISTS)

    def to_protos(self) -> list[kvrpcpb.Mutation]:
        """Return the mutations as messages of a prewrite."""
        make = kvrpcpb.Mutation
        if not any(self.assertions):
            return [
                make(op=op, key=key, value=value)
                for op, key, value in zip(self.ops, self.keys, self.values, strict=True)
            ]
        return [
            make(op=op, key=key, value=value, assertion=assertion)
            for op, key, value, assertion in zip(
                self.ops, self.keys, self.values, self.assertions, strict=True
            )
        ]

    @classmethod
    def of_keys(cls, keys: Sequence[bytes]) -> "Mutations":
        """Return bare keys as mutations, for actions that only name keys; `keys` are sorted."""
        count = len(keys)
        return cls(list(keys), [b""] * count, [LOCK] * count, [False] * count, [_NO_ASSERTION] * count)

    @property
    def size(self) -> int:
        """Bytes of keys and values."""
        return sum(map(len, self.keys)) + sum(map(len, self.values))

    @property
    def primary(self) -> bytes | None:
        """The first key that leaves a lock, or None when no key does."""
        return next(
            (key for key, op in zip(self.keys, self.ops, strict=True) if op != CHECK_NOT_EXISTS), None
        )


KeepWrite = Callable[[bytes, bytes], bool]
"""Return whether the write of a value to a key is necessary."""


def collect(buffer: MemBuffer, *, pessimistic: bool, keep: KeepWrite | None = None) -> Mutations:
    """Turn what a transaction wrote and locked into the mutations of its commit.

    `keep` may refuse a put as unnecessary; the key is then only locked, if it was.
    """
    if keep is None and not pessimistic and (uniform := _collect_inserts(buffer)) is not None:
        return uniform
    mutations = Mutations()
    append = mutations.append
    for key, value, flags in buffer.entries():
        if flags is NO_FLAG and value is not None and keep is None:
            append(key, value, PUT if value else DELETE)  # nearly every key of a large transaction
            continue
        op = _op_of(key, value, flags, pessimistic=pessimistic, keep=keep)
        if op is None:
            continue
        append(
            key,
            value if value is not None and op in (PUT, INSERT) else b"",
            op,
            locked=pessimistic and bool(flags & KeyFlag.LOCKED),
            assertion=_assertion_of(flags) if op in (PUT, INSERT, DELETE) else _NO_ASSERTION,
        )
    return mutations


def _collect_inserts(buffer: MemBuffer) -> Mutations | None:
    """Return the mutations of an optimistic bulk insert: each key has a value, to be put or inserted."""
    keys, ops, values = list(buffer.keys()), [], []
    for _, value, flags in buffer.entries():
        if not value or (flags is not NO_FLAG and flags != KeyFlag.PRESUME_NOT_EXISTS):
            return None
        values.append(value)
        ops.append(PUT if flags is NO_FLAG else INSERT)
    count = len(keys)
    return Mutations(keys, values, ops, [False] * count, [_NO_ASSERTION] * count)


def _op_of(
    key: bytes, value: bytes | None, flags: KeyFlag, *, pessimistic: bool, keep: KeepWrite | None
) -> kvrpcpb.Op | None:
    only_locked = LOCK if flags & KeyFlag.LOCKED else None
    if value is None:
        return only_locked
    if value != DELETED:
        if keep is not None and not keep(key, value):
            return only_locked
        return INSERT if flags & KeyFlag.PRESUME_NOT_EXISTS else PUT
    if flags & KeyFlag.PRESUME_NOT_EXISTS and not pessimistic:
        return CHECK_NOT_EXISTS
    if flags & KeyFlag.NEWLY_INSERTED:
        return only_locked
    return DELETE


def _assertion_of(flags: KeyFlag) -> kvrpcpb.Assertion:
    if flags & KeyFlag.ASSERT_EXISTS:
        return kvrpcpb.Assertion.Exist
    if flags & KeyFlag.ASSERT_NOT_EXISTS:
        return kvrpcpb.Assertion.NotExist
    return _NO_ASSERTION


def lock_ttl_ms(txn_bytes: int, elapsed_ms: int, ttl_max_ms: int) -> int:
    """Return how long the locks of a commit live: longer for more data, from the transaction's start on."""
    ttl = DEFAULT_LOCK_TTL_MS
    if txn_bytes >= _TTL_GROWS_FROM_BYTES:
        grown = int(_TTL_FACTOR_MS * math.sqrt(txn_bytes / _MIB))
        ttl = min(max(grown, DEFAULT_LOCK_TTL_MS), max(ttl_max_ms, DEFAULT_LOCK_TTL_MS))
    return ttl + elapsed_ms


def batches(mutations: Mutations, part: slice, bytes_max: int, *, with_values: bool) -> Iterator[slice]:
    """Cut a part of the mutations into runs; each ends once it has reached `bytes_max`."""
    start, size = part.start, 0
    keys, values = mutations.keys, mutations.values
    for i in range(part.start, part.stop):
        size += len(keys[i]) + (len(values[i]) if with_values else 0)
        if size >= bytes_max:
            yield slice(start, i + 1)
            start, size = i + 1, 0
    if start < part.stop:
        yield slice(start, part.stop)


def presplit_keys(mutations: Mutations, part: slice, *, keys_min: int, bytes_each: int) -> list[bytes]:
    """Return where to split a region that one transaction is about to fill, or nothing for a small part."""
    if part.stop - part.start < keys_min:
        return []
    found, size = [], 0
    keys, values = mutations.keys, mutations.values
    for i in range(part.start, part.stop):
        size += len(keys[i]) + len(values[i])
        if size >= bytes_each:
            found.append(keys[i])
            size = 0
    return found
