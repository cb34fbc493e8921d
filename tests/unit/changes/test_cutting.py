"""Which part of both caches can be sent."""

import pytest

from penstock.changes.tail import Cut, Extent, complete_ts, find_cut

END = 100
NOTHING = Extent(None, None)


@pytest.mark.parametrize(
    ("data", "tombstones", "expected"),
    [
        (Extent(5, None), Extent(7, None), Cut(END)),  # both small: all of it
        (Extent(5, 20), NOTHING, Cut(19)),  # one side only
        (NOTHING, Extent(5, 20), Cut(19)),
        (Extent(5, 20), Extent(5, 9), Cut(8)),  # the side that is ahead waits
        (Extent(5, 9), Extent(5, 20), Cut(8)),
        (Extent(5, 6), Extent(30, None), Cut(5)),  # it has nothing to send then
        (Extent(5, 5), Extent(7, None), Cut(4, 5)),  # a transaction larger than the cache
        (Extent(5, 5), Extent(5, 5), Cut(4, 5)),
        (Extent(5, 5), Extent(3, 8), Cut(4)),  # what is before it comes first
        (Extent(9, None), Extent(5, 5), Cut(4, 5)),
        (NOTHING, NOTHING, Cut(END)),
    ],
)
def test_the_side_that_has_come_less_far_decides(data: Extent, tombstones: Extent, expected: Cut) -> None:
    assert find_cut(data, tombstones, END) == expected
    assert find_cut(tombstones, data, END) == expected


@pytest.mark.parametrize(
    ("data", "tombstones", "expected"),
    [(Extent(5, 9), Extent(7, None), 4), (NOTHING, Extent(7, 8), 6), (NOTHING, NOTHING, END)],
)
def test_everything_before_what_is_left_is_complete(data: Extent, tombstones: Extent, expected: int) -> None:
    assert complete_ts(data, tombstones, END) == expected
