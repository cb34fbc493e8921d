"""How many requests callers may make: a bucket for each, by the time that is given."""

import pytest

from penstock.shares import RateLimit


def taken(limit: RateLimit, key: str, now: float, times: int) -> list[bool]:
    return [limit.take(key, now) == 0 for _ in range(times)]


def test_a_burst_is_let_through_and_no_more() -> None:
    limit = RateLimit(2, 3)
    assert taken(limit, "ann", 0.0, 5) == [True, True, True, False, False]


def test_who_waits_as_long_as_it_is_told_is_let_through() -> None:
    limit = RateLimit(2, 1)
    assert limit.take("ann", 10.0) == 0
    wait = limit.take("ann", 10.1)
    assert wait == pytest.approx(0.4)
    assert limit.take("ann", 10.1 + wait) == 0


def test_refusals_cost_nothing() -> None:
    limit = RateLimit(1, 1)
    assert taken(limit, "ann", 0.0, 50).count(True) == 1
    assert limit.take("ann", 1.0) == 0


def test_a_bucket_never_holds_more_than_a_burst() -> None:
    limit = RateLimit(100, 2)
    limit.take("ann", 0.0)
    assert taken(limit, "ann", 1e6, 4) == [True, True, False, False]


def test_callers_do_not_take_from_each_other() -> None:
    limit = RateLimit(1, 1)
    assert [limit.take("ann", 0.0), limit.take("bob", 0.0)] == [0, 0]
    assert limit.take("ann", 0.0) > 0


def test_a_clock_that_goes_back_gives_nothing() -> None:
    limit = RateLimit(10, 1)
    assert limit.take("ann", 5.0) == 0
    assert limit.take("ann", 0.0) > 0


def test_callers_that_come_once_are_forgotten() -> None:
    limit = RateLimit(1, 1, keys_max=3)
    for number in range(100):
        assert limit.take(f"address {number}", 0.0) == 0
    assert limit.take("address 99", 0.0) > 0, "the newest are known"
    assert limit.take("address 0", 0.0) == 0, "the oldest are not"
