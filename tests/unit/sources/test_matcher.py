"""Prewrites meet their commits, in memory and on disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.sources.tikv.matcher import Matcher
from penstock.sources.tikv.prewrite_spill import CachedEnd, PrewriteMemory, PrewriteSpill, SpilledPrewrite

PLENTY = 1 << 30


class Place:
    """Makes matchers that share a bound and a disk."""

    def __init__(self, directory: Path, limit: int) -> None:
        self.memory = PrewriteMemory(limit)
        self.spill = PrewriteSpill(directory)

    def matcher(self, *, initialized: bool = True) -> Matcher:
        matcher = Matcher(self.memory, self.spill)
        if initialized:
            assert list(matcher.initialize()) == []
        return matcher


@pytest.fixture(params=[PLENTY, 0], ids=["in memory", "on disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path, request.param)
    yield place
    place.spill.close()


def put(matcher: Matcher, start_ts: int, key: bytes, value: bytes, old: bytes = b"", gen: int = 0) -> None:
    matcher.put(start_ts, key, value, old, gen)
    matcher.settle()


def test_a_commit_takes_value_and_old_value_of_its_prewrite(place: Place) -> None:
    matcher = place.matcher()
    put(matcher, 1, b"a", b"new", b"old")
    put(matcher, 2, b"a", b"other")
    assert matcher.match(1, b"a") == SpilledPrewrite(b"new", b"old")
    assert matcher.match(1, b"a") is None
    assert len(matcher) == 1


def test_a_rollback_removes_one_prewrite_and_no_other(place: Place) -> None:
    matcher = place.matcher()
    put(matcher, 1, b"a", b"v1")
    put(matcher, 1, b"b", b"v2")
    matcher.rollback(1, b"a")
    matcher.rollback(1, b"never written")
    matcher.rollback(9, b"a")
    assert matcher.match(1, b"a") is None
    assert matcher.match(1, b"b") == SpilledPrewrite(b"v2", b"")
    assert len(matcher) == 0


def test_an_empty_prewrite_that_comes_later_does_not_replace_the_real_one(place: Place) -> None:
    matcher = place.matcher()
    put(matcher, 1, b"a", b"real", b"old")
    put(matcher, 1, b"a", b"")
    assert matcher.match(1, b"a") == SpilledPrewrite(b"real", b"old")
    assert len(matcher) == 0


def test_a_real_prewrite_replaces_an_empty_one(place: Place) -> None:
    matcher = place.matcher()
    put(matcher, 1, b"a", b"")
    put(matcher, 1, b"a", b"real", b"old")
    assert matcher.match(1, b"a") == SpilledPrewrite(b"real", b"old")


def test_before_the_scan_has_ended_an_empty_prewrite_matches_nothing(place: Place) -> None:
    matcher = place.matcher(initialized=False)
    put(matcher, 1, b"a", b"")
    put(matcher, 2, b"b", b"whole")
    assert matcher.match(1, b"a") is None
    assert matcher.match(2, b"b") == SpilledPrewrite(b"whole", b"")
    matcher.cache(CachedEnd(1, 5, 1, b"a"))
    put(matcher, 1, b"a", b"real", b"old")
    assert list(matcher.initialize()) == [(CachedEnd(1, 5, 1, b"a"), SpilledPrewrite(b"real", b"old"))]
    assert len(matcher) == 0


def test_a_delete_with_its_empty_value_matches_once_the_scan_has_ended(place: Place) -> None:
    matcher = place.matcher()
    put(matcher, 1, b"a", b"", b"old")
    assert matcher.match(1, b"a") == SpilledPrewrite(b"", b"old")


def test_cached_commits_match_in_order_and_the_rest_is_dropped(place: Place) -> None:
    matcher = place.matcher(initialized=False)
    ends = [CachedEnd(ts, ts + 1, 1, b"k%d" % ts) for ts in (4, 1, 3, 2)]
    for end in ends:
        matcher.cache(end)
        matcher.settle()
    matcher.cache(CachedEnd(2, 3, 1, b"another key"))
    matcher.settle()
    for ts in (1, 2, 4):
        put(matcher, ts, b"k%d" % ts, b"v%d" % ts)
    found = list(matcher.initialize())
    assert [(end.start_ts, row.value) for end, row in found] == [(4, b"v4"), (1, b"v1"), (2, b"v2")]
    assert (matcher.cached, len(matcher)) == (0, 0)
    assert list(matcher.initialize()) == []


def test_cached_rollbacks_remove_their_prewrites(place: Place) -> None:
    matcher = place.matcher(initialized=False)
    for ts in (1, 2):
        put(matcher, ts, b"a", b"v")
        matcher.cache(CachedEnd(ts, 0, 0, b"a"))
        matcher.settle()
    assert list(matcher.initialize()) == []
    assert (matcher.cached, len(matcher)) == (0, 0)


def test_of_a_pipelined_transaction_the_highest_generation_wins(place: Place) -> None:
    matcher = place.matcher(initialized=False)
    for generation in (1, 2, 4, 3):
        put(matcher, 1, b"a", b"generation %d" % generation, gen=generation)
    assert matcher.match(1, b"a") is None, "a later generation may still come"
    assert len(matcher) == 1
    list(matcher.initialize())
    assert matcher.match(1, b"a") == SpilledPrewrite(b"generation 4", b"", 4)
    assert len(matcher) == 0


def test_a_finished_transaction_leaves_no_memory_behind(place: Place) -> None:
    matcher = place.matcher()
    for number in range(100):
        put(matcher, number, b"a", b"v" * 100)
        assert matcher.match(number, b"a") is not None
        matcher.settle()
    assert (matcher._txns, matcher._spilled, place.memory.used) == ({}, {}, 0)


def test_a_closed_matcher_gives_everything_back(place: Place) -> None:
    matcher = place.matcher(initialized=False)
    put(matcher, 1, b"a", b"v")
    matcher.cache(CachedEnd(7, 8, 1, b"b"))
    matcher.settle()
    matcher.close()
    assert (len(matcher), matcher.cached, place.memory.used) == (0, 0, 0)
    again = place.matcher(initialized=False)
    assert again.match(1, b"a") is None
    assert list(again.initialize()) == []


def test_memory_stays_within_the_bound_whatever_the_transaction(tmp_path: Path) -> None:
    limit = 50_000
    place = Place(tmp_path, limit)
    matcher = place.matcher()
    for number in range(2000):
        matcher.put(1, b"key %d" % number, b"v" * 100, b"o" * 100)
        if number % 10 == 0:
            matcher.settle()
            assert place.memory.used <= limit
    matcher.settle()
    assert len(matcher) == 2000
    found = [matcher.match(1, b"key %d" % number) for number in range(2000)]
    assert set(found) == {SpilledPrewrite(b"v" * 100, b"o" * 100)}
    assert len(matcher) == 0
    place.spill.close()


def test_the_largest_transaction_goes_to_disk_first(tmp_path: Path) -> None:
    place = Place(tmp_path, 20_000)
    matcher = place.matcher()
    put(matcher, 1, b"small", b"v")
    for number in range(100):
        put(matcher, 2, b"k%d" % number, b"v" * 100)
    assert 1 in matcher._txns
    assert 2 in matcher._spilled
    place.spill.close()


def test_regions_on_one_disk_do_not_see_each_other(tmp_path: Path) -> None:
    place = Place(tmp_path, 0)
    one, other = place.matcher(), place.matcher()
    put(one, 1, b"a", b"one")
    put(other, 1, b"a", b"other")
    one.close()
    assert other.match(1, b"a") == SpilledPrewrite(b"other", b"")
    place.spill.close()


def test_the_files_of_a_spill_are_gone_after_close(tmp_path: Path) -> None:
    place = Place(tmp_path, 0)
    put(place.matcher(), 1, b"a", b"v")
    assert list(tmp_path.iterdir())
    place.spill.close()
    assert not list(tmp_path.iterdir())
