"""The shop's workload against a real store: what it says that it wrote is what is there."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from penstock.cli.demo.lags import DemoCommit
from penstock.cli.demo.shop import CUSTOMERS, ORDER_ITEMS, ORDERS, PRODUCTS, REVIEWS, DemoKeys, Shop
from penstock.cli.demo.watch import Writer, Writers, make_writers
from penstock.clock import SYSTEM
from penstock.errors import Conflict
from penstock.kv import Client
from penstock.tables import Catalog
from support.warmstore import WarmStore


def test_everybody_writes_at_once_and_every_commit_is_told(tmp_path: Path) -> None:
    commits: list[DemoCommit] = []
    with WarmStore.start(tmp_path / "store", stores=1) as store, Client.connect([store.pd_addr]) as client:
        db = Catalog(client)
        shop = Shop(db, SYSTEM, commits.append)
        shop.open(customers=30, products=40)
        assert {table: count(db, table) for table in (CUSTOMERS, PRODUCTS)} == {CUSTOMERS: 30, PRODUCTS: 40}
        assert not any(each.measured for each in commits)

        everybody = [Writer(each.name, each.pause_s / 10, each.actions) for each in make_writers(shop)]
        writers = Writers(everybody, SYSTEM)
        with writers.running():
            until(lambda: ORDER_ITEMS in written(commits))
            assert shop.add_channels() == "column channel added to shop.orders"
            assert shop.open_reviews() == "table shop.reviews created"
            until(lambda: REVIEWS in written(commits) and len(commits) > 60)
            writers.check()

        end_ts = client.timestamp()
        assert all(0 < each.ts < end_ts for each in commits)
        assert len({each.ts for each in commits}) == len(commits)
        orders = db.table(ORDERS).to_arrow(at_ts=end_ts).to_pylist()
        assert {row["channel"] for row in orders} > {"web"} or len(orders) < 20
        assert consistent(db, orders, end_ts)


def count(db: Catalog, table: str) -> int:
    return int(db.table(table).to_arrow().num_rows)


def written(commits: list[DemoCommit]) -> set[str]:
    return {table for each in list(commits) for table in each.rows}


def until(holds: Callable[[], bool]) -> None:
    deadline = SYSTEM.monotonic() + 60
    while not holds():
        assert SYSTEM.monotonic() < deadline, "it did not happen within a minute"
        SYSTEM.pause(0.02)


def consistent(db: Catalog, orders: list[dict[str, object]], ts: int) -> bool:
    """Every order is the sum of its lines: transactions over several tables are all or nothing."""
    sums: dict[object, Decimal] = {}
    for line in db.table(ORDER_ITEMS).to_arrow(at_ts=ts).to_pylist():
        sums[line["order_id"]] = sums.get(line["order_id"], Decimal()) + line["price"]
    return {row["id"]: row["total"] for row in orders} == sums


def test_a_writer_that_fails_ends_the_work() -> None:
    def fail() -> None:
        raise Conflict("always")

    writers = Writers([Writer("clumsy", 0.001, [fail])], SYSTEM)
    with pytest.raises(Conflict, match="always"), writers.running():
        until(lambda: raised(writers.check))


def raised(check: Callable[[], None]) -> bool:
    try:
        check()
    except Conflict:
        return True
    return False


def test_keys_are_given_to_many_and_taken_by_one() -> None:
    keys = DemoKeys(SYSTEM)
    assert (keys.sample(3), keys.take()) == ([], None)
    keys.add(range(10))
    assert set(keys.sample(50)) <= set(range(10))
    assert {keys.take() for _ in range(11)} == {*range(10), None}
