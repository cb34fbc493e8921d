"""The state machine of one span."""

import pytest

from penstock.sources.barriers import COMPACTED_MIN, NOTHING_WAITS, Barriers, PlacedBarrier


def ready(barriers: Barriers) -> list[int]:
    told = []
    while (ts := barriers.take_ready()) is not None:
        told.append(ts)
    return told


def with_data(count: int) -> Barriers:
    barriers = Barriers()
    assert [barriers.add_data() for _ in range(count)] == list(range(1, count + 1))
    return barriers


def test_a_resolved_timestamp_without_data_before_it_is_ready_at_once() -> None:
    barriers = Barriers()
    assert barriers.add_resolved(10) is PlacedBarrier.NEW
    assert ready(barriers) == [10]


def test_a_resolved_timestamp_waits_for_the_whole_prefix_whatever_the_order_of_callbacks() -> None:
    barriers = with_data(3)
    barriers.add_resolved(100)
    assert barriers.mark_persisted(2)
    assert barriers.mark_persisted(3)
    assert ready(barriers) == []
    assert barriers.done == {2, 3}
    assert barriers.mark_persisted(1)
    assert barriers.acked_seq == 3
    assert barriers.done == set()
    assert ready(barriers) == [100]


def test_data_after_a_resolved_timestamp_does_not_hold_it_back() -> None:
    barriers = with_data(1)
    barriers.add_resolved(10)
    barriers.add_data()
    barriers.add_resolved(20)
    barriers.mark_persisted(1)
    assert ready(barriers) == [10]
    barriers.mark_persisted(2)
    assert ready(barriers) == [20]


def test_timestamps_that_wait_for_the_same_data_become_one() -> None:
    barriers = with_data(1)
    assert [barriers.add_resolved(ts) for ts in (10, 12, 11)] == [
        PlacedBarrier.NEW,
        PlacedBarrier.MERGED,
        PlacedBarrier.DROPPED,
    ]
    assert barriers.waiting == 1
    barriers.mark_persisted(1)
    assert ready(barriers) == [12]


@pytest.mark.parametrize("late", [5, 10])
def test_a_timestamp_not_above_an_earlier_one_is_dropped_even_if_it_waits_for_more_data(late: int) -> None:
    barriers = with_data(1)
    barriers.add_resolved(10)
    barriers.add_data()
    assert barriers.add_resolved(late) is PlacedBarrier.DROPPED
    barriers.mark_persisted(1)
    barriers.mark_persisted(2)
    assert ready(barriers) == [10]


def test_a_timestamp_not_above_one_that_was_told_is_dropped() -> None:
    barriers = Barriers()
    barriers.add_resolved(10)
    assert ready(barriers) == [10]
    assert barriers.add_resolved(9) is PlacedBarrier.DROPPED
    assert barriers.add_resolved(10) is PlacedBarrier.DROPPED
    assert ready(barriers) == []


@pytest.mark.parametrize("order", [(1, 1), (2, 1, 2), (2, 2, 1)])
def test_a_batch_persisted_twice_counts_once(order: tuple[int, ...]) -> None:
    barriers = with_data(2)
    news = [barriers.mark_persisted(seq) for seq in order]
    assert news.count(True) == len(set(order))


def test_a_batch_that_never_arrived_cannot_be_persisted() -> None:
    with pytest.raises(AssertionError, match="before it arrived"):
        Barriers().mark_persisted(1)


def test_the_told_part_of_a_long_list_is_given_up_although_the_list_is_never_empty() -> None:
    barriers = Barriers()
    rounds = 3 * COMPACTED_MIN
    for number in range(1, rounds + 1):
        barriers.add_data()
        barriers.add_resolved(number)
        if number > 1:
            barriers.mark_persisted(number - 1)
            assert ready(barriers) == [number - 1]
        assert len(barriers._ts) <= 2 * COMPACTED_MIN
    assert barriers.compactions == 2
    assert barriers.waiting == 1


def test_a_list_that_is_told_to_its_end_is_emptied_without_a_compaction() -> None:
    barriers = with_data(1)
    barriers.add_resolved(1)
    barriers.mark_persisted(1)
    assert ready(barriers) == [1]
    assert (barriers._ts, barriers.compactions, barriers.next_wait_seq) == ([], 0, NOTHING_WAITS)
