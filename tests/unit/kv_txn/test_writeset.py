"""The rules of each kind of write."""

import pytest

from penstock.errors import Invalid, KeyExists
from penstock.kv.membuffer import Assertion, InsertNeeds, KeyFlag, WriteSet


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        (b"", b"v", "must not be empty"),
        ("k", b"v", "must be bytes, not str"),
        (bytearray(b"k"), b"v", "must be bytes, not bytearray"),
        (b"k", b"", "use delete"),
        (b"k", "v", "must be bytes, not str"),
        (b"k", None, "must be bytes, not NoneType"),
    ],
)
def test_a_wrong_key_or_value_is_refused(key: bytes, value: bytes, match: str) -> None:
    writes = WriteSet(pessimistic=False)
    with pytest.raises(Invalid, match=match):
        writes.put(key, value)
    with pytest.raises(Invalid, match=match):
        writes.insert(key, value)
    assert len(writes.buffer) == 0


def test_an_insert_over_an_own_write_fails_at_once() -> None:
    writes = WriteSet(pessimistic=False)
    writes.put(b"k", b"1")
    with pytest.raises(KeyExists):
        writes.insert(b"k", b"2")


def test_an_insert_after_an_own_delete_is_a_plain_write() -> None:
    writes = WriteSet(pessimistic=False)
    writes.delete(b"k")
    writes.insert(b"k", b"2")
    assert writes.buffer.flags(b"k") == KeyFlag(0)
    assert writes.buffer.get(b"k") == b"2"


def test_an_insert_deleted_and_inserted_again_still_checks_that_the_key_does_not_exist() -> None:
    writes = WriteSet(pessimistic=False)
    writes.insert(b"k", b"1")
    writes.delete(b"k")
    writes.insert(b"k", b"2")
    assert writes.buffer.flags(b"k") & KeyFlag.PRESUME_NOT_EXISTS


def test_a_savepoint_undoes_its_writes_and_keeps_locks() -> None:
    writes = WriteSet(pessimistic=True)
    writes.put(b"a", b"1")

    def fail_inside() -> None:
        with writes.savepoint():
            writes.put(b"a", b"2", Assertion.EXISTS)
            writes.delete(b"b")
            writes.buffer.update_flags(b"b", add=KeyFlag.LOCKED)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_inside()
    assert list(writes.buffer.entries()) == [(b"a", b"1", KeyFlag(0)), (b"b", None, KeyFlag.LOCKED)]
    with writes.savepoint():
        writes.put(b"a", b"3")
    assert writes.buffer.get(b"a") == b"3"


@pytest.mark.parametrize(
    ("value", "flags", "needs"),
    [
        (None, KeyFlag(0), InsertNeeds.LOCK_NOT_EXISTING),
        (None, KeyFlag.LOCKED, InsertNeeds.NOTHING),
        (None, KeyFlag.LOCKED | KeyFlag.LOCKED_VALUE_EXISTS, KeyExists),
        (b"", KeyFlag(0), InsertNeeds.LOCK),
        (b"", KeyFlag.LOCKED | KeyFlag.LOCKED_VALUE_EXISTS, InsertNeeds.NOTHING),
        (b"v", KeyFlag.LOCKED, KeyExists),
    ],
)
def test_a_pessimistic_insert_locks_what_it_does_not_know(
    value: bytes | None, flags: KeyFlag, needs: InsertNeeds | type[KeyExists]
) -> None:
    writes = WriteSet(pessimistic=True)
    if value is not None:
        writes.buffer._write(b"k", value)
    writes.buffer.update_flags(b"k", add=flags)
    if isinstance(needs, InsertNeeds):
        assert writes.insert_needs(b"k") is needs
    else:
        with pytest.raises(needs):
            writes.insert_needs(b"k")
