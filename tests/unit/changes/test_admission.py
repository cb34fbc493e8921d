from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.changes.limits import CountedChanges, ReadLimit, last_admitted_ts


def held(*times: int, row_bytes: int = 10) -> CountedChanges:
    return CountedChanges.from_times(np.array(times, np.int64), row_bytes)


def unread(rows: int, min_ts: int, max_ts: int) -> CountedChanges:
    def times() -> np.ndarray:
        raise AssertionError("this is not to be read")

    return CountedChanges(rows, rows * 10, min_ts, max_ts, times)


def test_everything_that_fits_is_admitted_unread() -> None:
    assert last_admitted_ts([unread(5, 11, 20), unread(5, 21, 30)], 10, 99, ReadLimit(rows=10)) == 99


def test_the_range_ends_before_the_commit_that_would_be_too_much() -> None:
    assert last_admitted_ts([held(11, 12, 12, 14, 15)], 10, 99, ReadLimit(rows=3)) == 13
    assert last_admitted_ts([held(11, 12, 12, 14, 15)], 10, 99, ReadLimit(rows=2)) == 11


def test_bytes_are_limited_too() -> None:
    assert last_admitted_ts([held(11, 12, 13, 14)], 10, 99, ReadLimit(nbytes=25)) == 12
    assert last_admitted_ts([held(11, 12, 13, 14)], 10, 99, ReadLimit(rows=1, nbytes=25)) == 11


def test_a_commit_that_is_too_large_is_admitted_alone() -> None:
    assert last_admitted_ts([held(12, 12, 12), held(12, 15)], 10, 99, ReadLimit(rows=1)) == 12
    assert last_admitted_ts([held(12, 12, 12)], 10, 99, ReadLimit(nbytes=1)) == 12


def test_what_was_read_before_does_not_count() -> None:
    assert last_admitted_ts([held(1, 2, 3, 11, 12, 13)], 10, 99, ReadLimit(rows=2)) == 12


def test_only_what_the_decision_depends_on_is_read() -> None:
    pieces = [unread(4, 11, 20), held(21, 25), held(26, 27), unread(9, 40, 50)]
    assert last_admitted_ts(pieces, 10, 99, ReadLimit(rows=6)) == 25
    assert last_admitted_ts([*pieces[:3], held(40, 40), unread(9, 60, 70)], 10, 99, ReadLimit(rows=9)) == 39


def test_without_changes_the_whole_range_is_admitted() -> None:
    assert last_admitted_ts([], 10, 99, ReadLimit(rows=1)) == 99
    assert not ReadLimit()


@given(
    st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=8), max_size=6),
    st.integers(0, 20),
    st.integers(21, 45),
    st.integers(1, 12),
    st.one_of(st.none(), st.integers(1, 150)),
)
def test_the_end_is_the_one_that_counting_every_change_gives(
    pieces: list[list[int]], from_ts: int, to_ts: int, rows: int, nbytes: int | None
) -> None:
    limit = ReadLimit(rows, nbytes)
    end = last_admitted_ts([held(*each) for each in pieces], from_ts, to_ts, limit)
    times = [ts for each in pieces for ts in each if from_ts < ts <= to_ts]
    assert end == expected(times, from_ts, to_ts, limit)


def expected(times: Iterable[int], from_ts: int, to_ts: int, limit: ReadLimit) -> int:
    taken = 0
    for ts in sorted(set(times)):
        count = list(times).count(ts)
        if not limit.allows(taken + count, (taken + count) * 10):
            return ts - 1 if taken else ts
        taken += count
    return to_ts


@pytest.mark.parametrize("limit", [ReadLimit(rows=1), ReadLimit(nbytes=1)])
def test_a_limit_is_true_when_it_limits(limit: ReadLimit) -> None:
    assert limit
