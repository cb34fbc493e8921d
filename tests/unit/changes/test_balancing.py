"""Shares of about as many rows each, by what statistics say."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changes.plan import Split, Weight, handle_ranges, split_by_handle, split_by_time

TS = 1 << 58


def shares(weights: list[Weight], rows_max: int, from_ts: int = 0, to_ts: int = 1000) -> list[Split]:
    found = split_by_time(weights, from_ts, to_ts, rows_max)
    assert [found[0].from_ts, found[-1].to_ts] == [from_ts, to_ts]
    assert all(one.to_ts == other.from_ts for one, other in pairwise(found))
    return found


def test_small_objects_share_a_partition() -> None:
    weights = [Weight(10, ts, ts + 9) for ts in range(1, 1000, 10)]
    found = shares(weights, 100)
    assert [share.rows for share in found] == [100] * 10
    assert all(share.large_ts is None for share in found)


def test_an_object_larger_than_a_partition_is_cut_by_time() -> None:
    found = shares([Weight(1000, 101, 200)], 100)
    assert [share.rows for share in found] == [100] * 10
    assert [(share.from_ts, share.to_ts) for share in found[1:-1]] == [
        (100 + 10 * part, 110 + 10 * part) for part in range(1, 9)
    ]


def test_sides_and_partitions_that_overlap_are_added() -> None:
    found = shares([Weight(500, 1, 1000), Weight(500, 1, 500), Weight(1000, 501, 1000)], 500)
    assert sum(share.rows for share in found) == pytest.approx(2000, abs=5)
    assert all(share.rows <= 500 for share in found)
    assert len(found) <= 6


def test_shares_end_where_objects_do_if_they_are_about_even_then() -> None:
    weights = [Weight(100, ts, ts + 99) for ts in range(1, 1000, 100)]
    found = shares(weights, 340)
    assert [share.to_ts for share in found] == [333, 666, 1000]
    assert all(332 <= share.rows <= 335 for share in found)
    weights = [Weight(rows, ts, ts + 249) for rows, ts in ((98, 1), (104, 251), (99, 501), (103, 751))]
    assert [share.to_ts for share in shares(weights, 101)] == [250, 500, 750, 1000]


def test_no_share_is_left_small_because_the_others_ended_early() -> None:
    both = [Weight(212, 1 + 90 * nth, 90 + 90 * nth) for nth in range(11)]
    both += [Weight(90, 100 + 82 * nth, 181 + 82 * nth) for nth in range(10)]
    rows = sum(each.rows for each in both)
    found = shares(both, -(-rows // 4))
    assert len(found) == 4
    assert max(share.rows for share in found) <= 1.15 * min(share.rows for share in found)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5_000), st.integers(1, 900), st.integers(0, 99)), max_size=12),
    st.integers(1, 3_000),
)
def test_shares_are_as_few_and_as_even_as_may_be(objects: list[tuple[int, int, int]], rows_max: int) -> None:
    weights = [Weight(rows, start, start + length) for rows, start, length in objects]
    found = shares(weights, rows_max)
    rows = sum(each.rows for each in weights)
    assert sum(share.rows for share in found) == pytest.approx(rows, abs=len(found))
    at = _rows_at_each(weights)
    for share in found:
        at_once = at[share.from_ts + 1 : share.to_ts + 1].max()
        if share.large_ts is None:
            assert at_once <= rows_max + 0.001
            assert share.rows <= 1.33 * rows_max + at_once + 1
        else:
            assert share.rows == pytest.approx(at[share.large_ts], abs=0.6)
            assert share.rows >= rows_max
    if at.max() <= rows_max / 16:  # timestamps are told apart well enough
        assert len(found) <= max(1, -(-rows // rows_max))


def _rows_at_each(weights: list[Weight]) -> npt.NDArray[np.float64]:
    found = np.zeros(1001)
    for each in weights:
        found[each.min_ts : each.max_ts + 1] += each.rows / (each.max_ts - each.min_ts + 1)
    return found


def test_a_single_timestamp_with_many_rows_is_a_share_of_its_own() -> None:
    found = shares([Weight(40, 1, 100), Weight(900, 50, 50), Weight(40, 200, 300)], 100)
    assert [share.large_ts for share in found] == [None, 50, None]
    assert found[1].rows >= 900
    assert found[1].from_ts == 49


def test_only_the_part_of_an_object_within_the_range_counts() -> None:
    assert [share.rows for share in shares([Weight(1000, 1, 1000)], 10_000, 900, 1000)] == [100]
    assert [share.rows for share in shares([Weight(1000, 1, 100)], 10_000, 100, 1000)] == [0]


def test_a_range_without_rows_is_one_share() -> None:
    assert shares([], 10) == [Split(0, 1000, 0)]


def test_neighbouring_timestamps_are_told_apart_however_large_they_are() -> None:
    weights = [Weight(100, TS + nth, TS + nth) for nth in range(1, 6)]
    found = shares(weights, 100, TS, TS + 5)
    assert [(share.from_ts - TS, share.to_ts - TS, share.rows) for share in found] == [
        (nth, nth + 1, 100) for nth in range(5)
    ]


def test_fractions_of_a_row_after_a_large_commit_are_not_divided() -> None:
    end = 4 * TS
    large_ts = end - 20_000
    weights = [Weight(1, 1, end), Weight(5_000, large_ts, large_ts)]
    weights += [
        Weight(1_001, large_ts - (nth + 1) * 10**9 + 1, large_ts - nth * 10**9 - 1) for nth in range(99)
    ]
    assert 90 <= len(shares(weights, 1_000, 0, end)) <= 105


def test_handles_divide_the_row_groups_of_a_transaction() -> None:
    groups = [(b"%02d" % number, 100) for number in range(10)]
    cuts = split_by_handle(reversed(groups), 250)
    assert cuts == [b"02", b"04", b"06", b"08"]
    assert handle_ranges(cuts) == [(b"", b"02"), (b"02", b"04"), (b"04", b"06"), (b"06", b"08"), (b"08", b"")]
    assert handle_ranges([]) == [(b"", b"")]


def test_groups_that_begin_with_the_same_handle_stay_together() -> None:
    assert split_by_handle([(b"a", 100)] * 3 + [(b"b", 100)], 100) == [b"b"]
