"""The writes of a transaction in memory, and the rules of each kind of write. No I/O."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto

from penstock.errors import Invalid, KeyExists
from penstock.kv.membuffer import KeyFlag, MemBuffer


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
            # A pessimistic transaction has seen to it; the commit of an optimistic one checks.
            known = KeyFlag.NEWLY_INSERTED if self._pessimistic else KeyFlag(0)
            self.buffer.update_flags(key, add=KeyFlag.PRESUME_NOT_EXISTS | known)
        self.buffer.put(key, value)

    def insert_needs(self, key: bytes) -> InsertNeeds:
        """Say what to lock before a pessimistic insert; raise KeyExists when the answer is known."""
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
