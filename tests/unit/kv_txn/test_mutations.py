"""What a commit makes of a membuffer, and how it is cut into batches."""

import pytest

from penstock.kv.membuffer import KeyFlag, MemBuffer
from penstock.kv.mutations import (
    CHECK_NOT_EXISTS,
    DELETE,
    INSERT,
    LOCK,
    PUT,
    Mutations,
    batches,
    collect,
    lock_ttl_ms,
    presplit_keys,
)
from penstock.proto import kvrpcpb_pb2 as kvrpcpb

NONE = KeyFlag(0)
LOCKED = KeyFlag.LOCKED
PRESUMED = KeyFlag.PRESUME_NOT_EXISTS
NEW = KeyFlag.NEWLY_INSERTED


@pytest.mark.parametrize(
    ("value", "flags", "pessimistic", "op"),
    [
        (None, LOCKED, False, LOCK),
        (None, LOCKED, True, LOCK),
        (None, PRESUMED, False, None),
        (b"v", NONE, False, PUT),
        (b"v", LOCKED, True, PUT),
        (b"v", PRESUMED, False, INSERT),
        (b"v", PRESUMED | LOCKED, True, INSERT),
        (b"", NONE, False, DELETE),
        (b"", LOCKED, True, DELETE),
        (b"", PRESUMED, False, CHECK_NOT_EXISTS),
        (b"", PRESUMED | NEW | LOCKED, True, LOCK),
        (b"", PRESUMED | LOCKED, True, DELETE),
        (b"", NEW, False, None),
        (b"", NEW | LOCKED, False, LOCK),
    ],
)
def test_each_entry_of_the_membuffer_becomes_its_operation(
    value: bytes | None, flags: KeyFlag, pessimistic: bool, op: int | None
) -> None:
    buffer = MemBuffer()
    if value is not None:
        buffer._write(b"k", value)
    buffer.update_flags(b"k", add=flags)
    mutations = collect(buffer, pessimistic=pessimistic)
    assert mutations.ops == ([] if op is None else [op])
    if op is not None:
        assert mutations.values == [value if op in (PUT, INSERT) else b""]
        assert mutations.locked == [pessimistic and bool(flags & LOCKED)]


def test_a_write_that_is_not_needed_is_left_out_but_keeps_its_lock() -> None:
    buffer = MemBuffer()
    buffer.put(b"a", b"1")
    buffer.put(b"b", b"1")
    buffer.update_flags(b"b", add=LOCKED)
    mutations = collect(buffer, pessimistic=True, keep=lambda key, value: False)
    assert (mutations.keys, mutations.ops) == ([b"b"], [LOCK])


def test_assertions_are_attached_to_writes_only() -> None:
    buffer = MemBuffer()
    buffer.put(b"a", b"1")
    buffer.update_flags(b"a", add=KeyFlag.ASSERT_EXISTS)
    buffer.update_flags(b"b", add=KeyFlag.ASSERT_NOT_EXISTS | LOCKED)
    mutations = collect(buffer, pessimistic=True)
    assert mutations.assertions == [kvrpcpb.Assertion.Exist, kvrpcpb.Assertion.NoAssertion]


def test_the_primary_is_the_first_key_that_leaves_a_lock() -> None:
    mutations = Mutations()
    mutations.append(b"a", b"", CHECK_NOT_EXISTS)
    mutations.append(b"b", b"v", PUT)
    assert mutations.primary == b"b"
    assert mutations.committable().keys == [b"b"]
    assert mutations.cut(slice(0, 1)).primary is None


@pytest.mark.parametrize(
    ("size", "elapsed", "ttl"),
    [
        (0, 0, 3_000),
        (16 * 1024 - 1, 0, 3_000),
        (16 * 1024, 0, 3_000),
        (1024 * 1024, 0, 6_000),
        (4 * 1024 * 1024, 0, 12_000),
        (1024 * 1024 * 1024, 0, 20_000),
        (0, 1_500, 4_500),
    ],
)
def test_locks_of_larger_transactions_live_longer(size: int, elapsed: int, ttl: int) -> None:
    assert lock_ttl_ms(size, elapsed, 20_000) == ttl


def of_sizes(*sizes: int) -> Mutations:
    mutations = Mutations()
    for number, size in enumerate(sizes):
        mutations.append(b"%02d" % number, b"v" * (size - 2), PUT)
    return mutations


@pytest.mark.parametrize(
    ("sizes", "with_values", "parts"),
    [
        ((4, 4, 4), True, [(0, 3)]),
        ((5, 5, 5), True, [(0, 2), (2, 3)]),
        ((30, 3, 30), True, [(0, 1), (1, 3)]),
        ((30, 30, 30, 30, 30, 30), False, [(0, 5), (5, 6)]),
        ((), True, []),
    ],
)
def test_a_batch_ends_once_it_has_reached_its_size(
    sizes: tuple[int, ...], with_values: bool, parts: list[tuple[int, int]]
) -> None:
    mutations = of_sizes(*sizes)
    found = batches(mutations, slice(0, len(sizes)), 10, with_values=with_values)
    assert [(part.start, part.stop) for part in found] == parts


def test_a_region_is_split_where_the_size_is_reached_and_only_for_many_keys() -> None:
    mutations = of_sizes(*[5] * 9)
    assert presplit_keys(mutations, slice(0, 9), keys_min=9, bytes_each=20) == [b"03", b"07"]
    assert presplit_keys(mutations, slice(0, 8), keys_min=9, bytes_each=20) == []
    assert presplit_keys(mutations, slice(0, 9), keys_min=9, bytes_each=100) == []


def test_merged_mutations_are_in_order() -> None:
    left, right = Mutations(), Mutations()
    left.append(b"b", b"1", PUT)
    right.append(b"a", b"", DELETE, locked=True)
    right.append(b"c", b"2", PUT)
    merged = left.merge(right)
    assert merged.keys == [b"a", b"b", b"c"]
    assert merged.locked == [True, False, False]
    assert merged.position(b"b") == 1
    assert merged.position(b"bb") is None
