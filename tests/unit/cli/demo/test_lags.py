"""How long commits take, by what stages say."""

import pytest

from penstock.cli.demo.lags import Arrivals, DemoCommit, percentile
from penstock.clock import compose_ts

ORDERS, ITEMS = "shop.orders", "shop.order_items"


def at(ms: int) -> int:
    return compose_ts(ms)


def test_a_commit_arrives_when_a_stage_has_everything_up_to_it() -> None:
    stage = Arrivals("readable")
    stage.expect(DemoCommit(at(1000), {ORDERS: 2}))
    stage.expect(DemoCommit(at(2000), {ORDERS: 3}))
    stage.reach({ORDERS: at(1999)}, 2500)
    assert (stage.rows, stage.lags_ms, stage.latest_ms) == (2, [1500], 1500)
    stage.reach({ORDERS: at(2000)}, 2600)
    assert (stage.rows, stage.lags_ms, stage.latest_ms) == (5, [600, 1500], 600)


def test_each_table_of_a_commit_arrives_on_its_own() -> None:
    stage = Arrivals("readable")
    stage.expect(DemoCommit(at(1000), {ORDERS: 1, ITEMS: 4}))
    stage.reach({ORDERS: at(3000)}, 3000)
    assert (stage.rows, stage.oldest_ms(3000)) == (1, 2000)
    stage.reach({ORDERS: at(3000), ITEMS: at(3000)}, 4000)
    assert (stage.rows, stage.oldest_ms(4000)) == (5, 0)


def test_a_stage_expects_the_tables_that_it_follows_only() -> None:
    stage = Arrivals("delta table", frozenset({ORDERS}))
    stage.expect(DemoCommit(at(1000), {ORDERS: 1, ITEMS: 4}))
    stage.expect(DemoCommit(at(1500), {ITEMS: 4}))
    stage.reach({ORDERS: at(9000), ITEMS: at(9000)}, 9000)
    assert (stage.rows, len(stage.lags_ms)) == (1, 1)


def test_commits_that_are_told_late_arrive_all_the_same() -> None:
    stage = Arrivals("readable")
    stage.expect(DemoCommit(at(2000), {ORDERS: 1}))
    stage.reach({ORDERS: at(3000)}, 3000)
    stage.expect(DemoCommit(at(1000), {ORDERS: 1}))
    stage.reach({ORDERS: at(3000)}, 3100)
    assert stage.rows == 2
    assert stage.oldest_ms(5000) == 0


def test_rows_that_were_there_before_count_and_are_not_measured() -> None:
    stage = Arrivals("readable")
    stage.expect(DemoCommit(at(1000), {ORDERS: 500}, measured=False))
    stage.reach({ORDERS: at(60_000)}, 60_000)
    assert (stage.rows, stage.lags_ms, stage.lag_ms(0.5)) == (500, [], None)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, None), ([7], 0.99, 7), (range(1, 101), 0.5, 51), (range(1, 101), 0.99, 100), ([1, 3], 0.0, 1)],
)
def test_percentiles(values: list[int], share: float, expected: int | None) -> None:
    assert percentile(list(values), share) == expected
