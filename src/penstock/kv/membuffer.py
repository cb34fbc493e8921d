"""The writes and locks of a transaction, in memory until it commits. No I/O.

`MemBuffer` holds values and flags; `WriteSet` adds the rules of each kind of write. A delete is an
empty value, so a put refuses one. Staging levels nest: `release` keeps what was written since
`staging`, `cleanup` undoes it, except for the flags that say what the store already did (a lock stays
taken whatever becomes of the writes around it).
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, IntFlag, auto

from penstock.errors import Invalid, KeyExists

DELETED = b""
_INSORT_MAX = 32  # up to this many new keys, inserting each is faster than sorting the whole list


class KeyFlag(IntFlag):
    """What is known of a key besides its value."""

    PRESUME_NOT_EXISTS = 1  # an insert: the commit checks that the key is not there
    LOCKED = 2  # locked by this transaction, or to be locked by its commit when it is optimistic
    LOCKED_VALUE_EXISTS = 4  # the key had a value when it was locked
    NEWLY_INSERTED = 8  # known not to exist before this transaction, so a delete has nothing to do
    ASSERT_EXISTS = 16
    ASSERT_NOT_EXISTS = 32


NO_FLAG = KeyFlag(0)
PERSISTENT = KeyFlag.LOCKED | KeyFlag.LOCKED_VALUE_EXISTS
_ASSERTIONS = KeyFlag.ASSERT_EXISTS | KeyFlag.ASSERT_NOT_EXISTS

_Undo = dict[bytes, tuple[bytes | None, KeyFlag]]


@dataclass(slots=True)
class MemBuffer:
    """A sorted map of written values and key flags, with nested staging levels.

    Invariant: a key is listed when it has a value or a flag; `bytes_used` and `len` count values only.
    """

    bytes_used: int = 0
    _values: dict[bytes, bytes] = field(default_factory=dict)
    _flags: dict[bytes, KeyFlag] = field(default_factory=dict)
    _sorted: list[bytes] = field(default_factory=list)
    _added: list[bytes] = field(default_factory=list)
    _levels: list[_Undo] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: bytes) -> bytes | None:
        """Return the buffered value, DELETED for a deleted key, None when the key was not written."""
        return self._values.get(key)

    def flags(self, key: bytes) -> KeyFlag:
        """Return what is known of the key; no flags for a key never seen."""
        return self._flags.get(key, NO_FLAG)

    def put(self, key: bytes, value: bytes) -> None:
        """Buffer a value; raise Invalid for an empty one, which the store could not tell from a delete."""
        if not value:
            raise Invalid("a value must not be empty: an empty value means a deleted key")
        self._write(key, value)

    def delete(self, key: bytes) -> None:
        """Buffer a delete."""
        self._write(key, DELETED)

    def _write(self, key: bytes, value: bytes) -> None:
        before = self._values.get(key)
        if self._levels:
            self._levels[-1].setdefault(key, (before, self._flags.get(key, NO_FLAG)))
        if before is None:
            if key not in self._flags:
                self._added.append(key)
            self.bytes_used += len(key) + len(value)
        else:
            self.bytes_used += len(value) - len(before)
        self._values[key] = value

    def write_new(self, keys: Sequence[bytes], values: Sequence[bytes], flags: KeyFlag) -> bool:
        """Buffer keys that were never seen before, each once; return False, with nothing done, for others."""
        fresh = dict(zip(keys, values, strict=True))
        if len(fresh) < len(keys) or not fresh.keys().isdisjoint(self._values):
            return False
        if not fresh.keys().isdisjoint(self._flags):
            return False
        if self._levels:
            self._levels[-1].update(dict.fromkeys(keys, (None, NO_FLAG)))
        self._values.update(fresh)
        if flags:
            self._flags.update(dict.fromkeys(keys, flags))
        self._added.extend(keys)
        self.bytes_used += sum(map(len, keys)) + sum(map(len, values))
        return True

    def update_flags(self, key: bytes, *, add: KeyFlag = NO_FLAG, remove: KeyFlag = NO_FLAG) -> None:
        """Change what is known of a key; a new assertion replaces the one before."""
        before = self._flags.get(key, NO_FLAG)
        if add & _ASSERTIONS:
            remove |= _ASSERTIONS
        after = (before & ~remove) | add
        if after == before:
            return
        if self._levels:
            self._levels[-1].setdefault(key, (self._values.get(key), before))
        self._set_flags(key, after)

    def _set_flags(self, key: bytes, flags: KeyFlag) -> None:
        known = key in self._values or key in self._flags
        if flags:
            self._flags[key] = flags
        else:
            self._flags.pop(key, None)
        if not known:
            self._added.append(key)
        elif not flags and key not in self._values:
            self._rebuild()

    def staging(self) -> int:
        """Open a level and return its handle; levels are closed innermost first."""
        self._levels.append({})
        return len(self._levels)

    def release(self, handle: int) -> None:
        """Keep what was written since `staging` gave the handle."""
        undo = self._close(handle)
        if self._levels:
            outer = self._levels[-1]
            for key, before in undo.items():
                outer.setdefault(key, before)

    def cleanup(self, handle: int) -> None:
        """Undo what was written since `staging` gave the handle; PERSISTENT flags stay."""
        for key, (value, flags) in self._close(handle).items():
            current = self._values.pop(key, None)
            if current is not None:
                self.bytes_used -= len(key) + len(current)
            if value is not None:
                self._values[key] = value
                self.bytes_used += len(key) + len(value)
            kept = (flags & ~PERSISTENT) | (self._flags.get(key, NO_FLAG) & PERSISTENT)
            self._flags.pop(key, None)
            if kept:
                self._flags[key] = kept
        self._rebuild()

    def _close(self, handle: int) -> _Undo:
        assert handle == len(self._levels), "staging levels are closed innermost first"
        return self._levels.pop()

    def keys(self) -> list[bytes]:
        """Return every key with a value or a flag, in order. The caller must not change the list."""
        added = self._added
        if added:
            if len(added) <= _INSORT_MAX:
                for key in added:
                    insort(self._sorted, key)
            else:
                self._sorted.extend(added)
                self._sorted.sort()
            self._added = []
        return self._sorted

    def rows(self, lower: bytes, upper: bytes) -> list[tuple[bytes, bytes]]:
        """Return the written (key, value) in [lower, upper), in order; an empty `upper` is the end.

        Deletes are among them, as DELETED.
        """
        keys = self.keys()
        start = bisect_left(keys, lower)
        stop = bisect_left(keys, upper) if upper else len(keys)
        values = self._values
        return [(key, values[key]) for key in keys[start:stop] if key in values]

    def entries(self) -> Iterator[tuple[bytes, bytes | None, KeyFlag]]:
        """Yield (key, value, flags) of every key in order; the value is None for a key only flagged."""
        values, flags = self._values, self._flags
        for key in self.keys():
            yield key, values.get(key), flags.get(key, NO_FLAG)

    def keys_with(self, flag: KeyFlag, lower: bytes = b"", upper: bytes = b"") -> list[bytes]:
        """Return the keys in [lower, upper) that have a flag, in order."""
        return sorted(
            key
            for key, flags in self._flags.items()
            if flags & flag and lower <= key and (not upper or key < upper)
        )

    def _rebuild(self) -> None:
        everything: Iterable[bytes] = self._values.keys() | self._flags.keys()
        self._sorted = sorted(everything)
        self._added = []


class Assertion(Enum):
    """What a writer says it knows of a key; the commit fails with AssertionFailed when it is wrong."""

    EXISTS = KeyFlag.ASSERT_EXISTS
    NOT_EXISTS = KeyFlag.ASSERT_NOT_EXISTS


class InsertNeeds(Enum):
    """What a pessimistic insert has to do before it may write."""

    NOTHING = auto()  # the key is locked and known not to exist, or was deleted here
    LOCK = auto()  # the key was deleted here but never locked
    LOCK_NOT_EXISTING = auto()  # the store checks that the key does not exist when it locks it


def check_key(key: object) -> bytes:
    """Return the key; raise Invalid when it is empty or no bytes."""
    if type(key) is not bytes:
        raise Invalid(f"a key must be bytes, not {type(key).__name__}")
    if not key:
        raise Invalid("a key must not be empty")
    return key


def check_value(value: object) -> bytes:
    """Return the value; raise Invalid when it is empty or no bytes."""
    if type(value) is not bytes:
        raise Invalid(f"a value must be bytes, not {type(value).__name__}")
    if not value:
        raise Invalid("a value must not be empty; use delete to remove a key")
    return value


def _check_many(keys: Sequence[bytes], values: Sequence[bytes]) -> None:
    if len(keys) != len(values):
        raise Invalid(f"{len(keys)} keys have {len(values)} values; pass as many values as keys")
    for key in keys:
        check_key(key)
    for value in values:
        check_value(value)


class WriteSet:
    """Puts, inserts and deletes into the membuffer. Every method raises Invalid for a wrong argument."""

    def __init__(self, *, pessimistic: bool) -> None:
        self.buffer = MemBuffer()
        self._pessimistic = pessimistic

    def put(self, key: bytes, value: bytes, assertion: Assertion | None = None) -> None:
        """Write a value."""
        self.buffer.put(check_key(key), check_value(value))
        if assertion is not None:
            self.buffer.update_flags(key, add=assertion.value)

    def delete(self, key: bytes, assertion: Assertion | None = None) -> None:
        """Delete a key."""
        self.buffer.delete(check_key(key))
        if assertion is not None:
            self.buffer.update_flags(key, add=assertion.value)

    def insert(self, key: bytes, value: bytes) -> None:
        """Write a value of a key that must not exist; raise KeyExists when it was written here."""
        check_value(value)
        before = self.buffer.get(check_key(key))
        if before:
            raise KeyExists(key)
        if before is None:
            # A pessimistic transaction has checked it with the lock; an optimistic one checks at the commit.
            known = KeyFlag.NEWLY_INSERTED if self._pessimistic else KeyFlag(0)
            self.buffer.update_flags(key, add=KeyFlag.PRESUME_NOT_EXISTS | known)
        self.buffer.put(key, value)

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write a value for each key."""
        _check_many(keys, values)
        if not self.buffer.write_new(keys, values, NO_FLAG):
            for key, value in zip(keys, values, strict=True):
                self.buffer.put(key, value)

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Delete keys."""
        for key in keys:
            self.buffer.delete(check_key(key))

    def insert_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write a value for each key, none of which may exist; raise KeyExists for one written here."""
        _check_many(keys, values)
        known = KeyFlag.NEWLY_INSERTED if self._pessimistic else NO_FLAG
        if not self.buffer.write_new(keys, values, KeyFlag.PRESUME_NOT_EXISTS | known):
            for key, value in zip(keys, values, strict=True):
                self.insert(key, value)

    def insert_needs(self, key: bytes) -> InsertNeeds:
        """Return what to lock before a pessimistic insert; raise KeyExists when the key is known to exist."""
        buffered, flags = self.buffer.get(check_key(key)), self.buffer.flags(key)
        if buffered:
            raise KeyExists(key)
        if buffered is not None:
            return InsertNeeds.NOTHING if flags & KeyFlag.LOCKED else InsertNeeds.LOCK
        if not flags & KeyFlag.LOCKED:
            return InsertNeeds.LOCK_NOT_EXISTING
        if flags & KeyFlag.LOCKED_VALUE_EXISTS:
            raise KeyExists(key)
        return InsertNeeds.NOTHING

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo the writes of the block when it raises; what is known of locks stays."""
        handle = self.buffer.staging()
        try:
            yield
        except BaseException:
            self.buffer.cleanup(handle)
            raise
        self.buffer.release(handle)
