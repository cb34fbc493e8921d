"""Ranges of keys and their timestamps."""

import pytest

from penstock.errors import Invalid
from penstock.sources.tikv.key_ranges import KeySpan, RangeTsMap, intersect, left_cover, lower_end


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ((b"a", b"c"), (b"b", b"d"), (b"b", b"c")),
        ((b"a", b"c"), (b"c", b"d"), None),
        ((b"", b""), (b"b", b"d"), (b"b", b"d")),
        ((b"a", b""), (b"b", b""), (b"b", b"")),
        ((b"a", b"b"), (b"", b""), (b"a", b"b")),
    ],
)
def test_ranges_share_what_both_hold(one: object, other: object, shared: object) -> None:
    assert intersect(one, other) == shared
    assert intersect(other, one) == shared


def test_an_empty_end_is_behind_every_other() -> None:
    assert lower_end(b"", b"\xff") == b"\xff"
    assert lower_end(b"", b"") == b""


@pytest.mark.parametrize(
    ("regions", "wanted", "covered"),
    [
        ([], (b"a", b"b"), 0),
        ([(b"", b"")], (b"", b""), 1),
        ([(b"a", b"b")], (b"a", b"b"), 1),
        ([(b"", b"m"), (b"m", b"")], (b"", b""), 2),
        ([(b"b", b"c")], (b"a", b"c"), 0),
        ([(b"a", b"b"), (b"c", b"d")], (b"a", b"d"), 1),
        ([(b"a", b"b"), (b"b", b"c"), (b"d", b"e")], (b"a", b"z"), 2),
        ([(b"a", b"c"), (b"c", b"e"), (b"e", b"g")], (b"b", b"d"), 2),
        ([(b"a", b"b")], (b"c", b"d"), 0),
    ],
    ids=[
        "none",
        "everything",
        "exact",
        "open ends",
        "left missing",
        "gap",
        "gap later",
        "more than asked",
        "before",
    ],
)
def test_the_regions_that_cover_the_left_part_are_counted(
    regions: list[tuple[bytes, bytes]], wanted: tuple[bytes, bytes], covered: int
) -> None:
    assert left_cover(regions, wanted) == covered


def test_a_timestamp_is_set_once_and_used_only_where_it_is_set() -> None:
    ts = RangeTsMap()
    ts.set(b"a", b"e", 10)
    with pytest.raises(AssertionError):
        ts.set(b"d", b"f", 11)
    ts.unset(b"b", b"c")
    with pytest.raises(AssertionError):
        ts.min(b"a", b"c")
    with pytest.raises(AssertionError):
        ts.unset(b"a", b"d")
    with pytest.raises(AssertionError):
        ts.min(b"e", b"f")
    ts.set(b"b", b"c", 5)
    assert ts.min(b"a", b"e") == 5
    assert ts.min(b"c", b"e") == 10


def test_the_minimum_of_a_part_looks_at_that_part_only() -> None:
    ts = RangeTsMap()
    ts.set(b"a", b"z", 100)
    ts.unset(b"b", b"e")
    ts.set(b"b", b"c", 3)
    ts.set(b"c", b"d", 2)
    ts.set(b"d", b"e", 1)
    assert [ts.min(b"a", b"b"), ts.min(b"a", b"c"), ts.min(b"c", b"z"), ts.min(b"b", b"b\x00")] == [
        100,
        3,
        1,
        3,
    ]
    assert ts.min(b"a\xff", b"b") == 100
    assert ts.min(b"b\x00", b"c\x00") == 2
    assert ts.lowest() == 1


def test_the_end_of_keys_can_be_the_end_of_a_range() -> None:
    ts = RangeTsMap()
    ts.set(b"", b"", 7)
    ts.unset(b"m", b"")
    assert list(ts) == [(b"", b"m", 7)]
    with pytest.raises(AssertionError):
        ts.min(b"a", b"")
    ts.set(b"m", b"", 8)
    assert ts.min(b"", b"") == 7
    assert ts.min(b"z", b"") == 8


def test_discarding_takes_what_is_there() -> None:
    ts = RangeTsMap()
    ts.set(b"b", b"d", 1)
    ts.set(b"f", b"h", 2)
    ts.discard(b"a", b"c")
    ts.discard(b"g", b"")
    ts.discard(b"x", b"y")
    assert list(ts) == [(b"c", b"d", 1), (b"f", b"g", 2)]


def test_a_span_without_keys_is_refused() -> None:
    with pytest.raises(Invalid, match="is empty"):
        KeySpan(1, b"b", b"b")
    assert KeySpan(0, b"", b"").end == b""
