"""Who has which part of a span, and how far the whole is."""

import pytest

from penstock.clock import compose_ts
from penstock.sources.tikv.client import slow_parts
from penstock.sources.tikv.range_lock import LockedRange, RangeLock, RangeLockCancelled, Stale, Wait


def lock(parts: RangeLock, start: str, end: str, region_id: int, version: int) -> LockedRange:
    got = parts.lock(start.encode(), end.encode(), region_id, version)
    assert isinstance(got, LockedRange), got
    return got


def test_a_part_that_changes_hands_keeps_its_timestamp() -> None:
    parts = RangeLock(b"a", b"h", 100)
    first = lock(parts, "a", "e", 1, 1)
    assert first.resolved_ts == 100
    parts.unlock(first, 110)
    again = lock(parts, "a", "e", 1, 2)
    assert again.resolved_ts == 110
    assert parts.lock(b"a", b"e", 1, 2) == Stale(())
    wider = parts.lock(b"a", b"h", 1, 3)
    assert wider == Wait((again,))
    again.resolved_ts = 120
    parts.unlock(again)
    assert lock(parts, "a", "h", 1, 3).resolved_ts == 100


def test_a_newer_region_that_has_a_part_leaves_only_the_gaps() -> None:
    parts = RangeLock(b"a", b"z", 1)
    lock(parts, "c", "g", 1, 10)
    lock(parts, "j", "n", 2, 8)
    lock(parts, "n", "p", 3, 12)
    cases = [
        (("c", "g"), 10, ()),
        (("a", "i"), 10, ((b"a", b"c"), (b"g", b"i"))),
        (("d", "f"), 9, ()),
        (("b", "q"), 5, ((b"b", b"c"), (b"g", b"j"), (b"p", b"q"))),
        (("h", "k"), 8, ((b"h", b"j"),)),
        (("m", ""), 12, ((b"p", b""),)),
    ]
    for (start, end), version, gaps in cases:
        assert parts.lock(start.encode(), end.encode(), 9, version) == Stale(gaps), (start, end)


def test_the_whole_range_takes_the_lowest_timestamp_of_its_parts() -> None:
    parts = RangeLock(b"a", b"d", 9)
    for number, (start, end) in enumerate([("a", "b"), ("b", "c"), ("c", "d")]):
        parts.unlock(lock(parts, start, end, number, 1), 2 + number)
    assert lock(parts, "a", "d", 7, 2).resolved_ts == 2


def test_a_region_that_is_locked_elsewhere_counts_as_overlapping() -> None:
    parts = RangeLock(b"a", b"z", 10)
    first = lock(parts, "a", "e", 1, 2)
    first.resolved_ts = 11
    assert parts.lock(b"f", b"h", 1, 2) == Stale(((b"f", b"h"),))
    assert parts.lock(b"f", b"h", 1, 3) == Wait((first,))
    parts.unlock(lock(parts, "f", "h", 2, 1), 20)
    parts.unlock(first)
    assert lock(parts, "f", "h", 1, 3).resolved_ts == 20, "the range counts, not the region"


def test_nobody_gets_a_part_of_a_stopped_span() -> None:
    parts = RangeLock(b"a", b"z", 1)
    held = lock(parts, "a", "b", 1, 1)
    assert not parts.stop()
    assert parts.lock(b"c", b"d", 2, 1) == RangeLockCancelled()
    assert not parts.drained
    assert parts.unlock(held)


def test_giving_back_what_is_not_held_is_our_own_mistake() -> None:
    parts = RangeLock(b"a", b"z", 1)
    held = lock(parts, "a", "b", 1, 1)
    stranger = LockedRange(b"a", b"b", 1, 1, 1)
    with pytest.raises(AssertionError):
        parts.unlock(stranger)
    parts.unlock(held)
    with pytest.raises(AssertionError):
        parts.unlock(held)


def test_an_unlocked_part_holds_the_minimum_back() -> None:
    parts = RangeLock(b"a", b"c", 100)
    left = lock(parts, "a", "b", 1, 1)
    left.resolved_ts = 101
    assert parts.resolved_ts() == parts.heap_min_ts() == 100
    right = lock(parts, "b", "c", 2, 1)
    right.resolved_ts = 102
    assert parts.resolved_ts() == parts.heap_min_ts() == 101


def test_the_heap_agrees_with_the_scan_after_every_step() -> None:
    parts = RangeLock(b"a", b"z", 10)

    def minimum() -> int:
        assert parts.heap_min_ts() == parts.resolved_ts()
        return parts.heap_min_ts()

    assert minimum() == 10
    one, two, rest = lock(parts, "a", "f", 1, 1), lock(parts, "f", "m", 2, 1), lock(parts, "m", "z", 3, 1)
    for part, ts in ((one, 100), (two, 200), (rest, 300)):
        parts.update(part, ts)
    assert minimum() == 100
    parts.update(one, 400)
    assert minimum() == 200
    parts.update(rest, 50)
    assert minimum() == 50
    parts.unlock(rest)
    assert minimum() == 50
    parts.update(lock(parts, "m", "z", 4, 2), 500)
    assert minimum() == 200
    parts.unlock(one, 150)
    assert minimum() == 150


def test_the_scan_sees_what_the_heap_was_not_told_of() -> None:
    parts = RangeLock(b"a", b"c", 1)
    one, two = lock(parts, "a", "b", 1, 1), lock(parts, "b", "c", 2, 1)
    parts.update(one, 300)
    parts.update(two, 400)
    assert parts.heap_min_ts() == 300
    two.resolved_ts = 200
    assert parts.heap_min_ts() == 300
    assert parts.resolved_ts() == 200


def test_a_span_is_initialized_when_every_key_was_in_an_initialized_part() -> None:
    parts = RangeLock(b"a", b"z", 1)
    left, right = lock(parts, "a", "m", 1, 1), lock(parts, "m", "z", 2, 1)
    parts.initialize(left)
    parts.unlock(left)
    assert not parts.initialized
    parts.initialize(right)
    assert parts.initialized
    lock(parts, "a", "m", 3, 2)
    assert parts.initialized, "a part that is read anew does not undo it"


def test_holes_and_parts_far_behind_are_named() -> None:
    parts = RangeLock(b"a", b"z", compose_ts(1_000))
    quick, slow, scanning = (
        lock(parts, "a", "c", 1, 1),
        lock(parts, "c", "f", 2, 1),
        lock(parts, "f", "k", 3, 1),
    )
    for part, second in ((quick, 1000), (slow, 900), (scanning, 500)):
        part.resolved_ts = compose_ts(second * 1000)
    parts.initialize(quick)
    parts.initialize(slow)
    assert [(p.region_id, p.state, p.lag_s) for p in slow_parts(parts, 1_010_000)] == [
        (2, "initialized", 110.0),
        (0, "not followed", 1009.0),
    ]
    assert (3, "in its scan") in [(p.region_id, p.state) for p in slow_parts(parts, 1_200_000)]


def test_a_hundred_thousand_regions_are_divided_and_measured_in_reasonable_time() -> None:
    parts = RangeLock(b"", b"", 1)
    count = 100_000
    bounds = [b"", *(b"%08d" % n for n in range(1, count)), b""]
    for number in range(count):
        got = parts.lock(bounds[number], bounds[number + 1], number, 1)
        assert isinstance(got, LockedRange)
        got.resolved_ts = 5 + number
    assert parts.resolved_ts() == parts.heap_min_ts() == 5
    assert not parts.holes()
