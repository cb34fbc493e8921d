"""Directories replayed into tables of a real store."""

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from penstock.changefeeds.codecs.decoder import FileOptions
from penstock.changefeeds.directory.listing import DirectoryLayout
from penstock.changefeeds.directory.progress import DirectoryProgress
from penstock.changefeeds.directory.reader import DirectoryReader
from penstock.changefeeds.directory.replay import Replayer
from penstock.errors import Invalid
from penstock.kv import Client
from penstock.object_storage import open_storage
from penstock.tables import Catalog
from penstock.testing.directory import Replica
from support.ticdcfiles import TicdcDirectory, canal_line, column
from support.warmstore import WarmStore

ID, NOTE = column("id", "BIGINT", pk=True), column("note", "VARCHAR", ColumnPrecision="20")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    data: Path = tmp_path_factory.mktemp("replay") / "store"
    with WarmStore.start(data, stores=1) as store, Client.connect([store.pd_addr]) as connected:
        yield connected


@pytest.fixture
def db(client: Client) -> Iterator[Catalog]:
    catalog = Catalog(client)
    yield catalog
    for database in catalog.databases():
        catalog.drop_database(database.name)


@pytest.fixture
def directory(tmp_path: Path) -> TicdcDirectory:
    return TicdcDirectory(open_storage(f"file://{tmp_path}/out"))


class Consumer:
    def __init__(self, directory: TicdcDirectory, db: Catalog) -> None:
        self.directory = directory
        self.replayer = Replayer(db)
        self.progress = DirectoryProgress()

    def round(self, checkpoint_ts: int) -> None:
        self.directory.checkpoint(checkpoint_ts)
        reader = DirectoryReader(self.directory.storage, FileOptions(), DirectoryLayout(), self.progress)
        for delivery in reader.round():
            self.replayer.take(delivery)
            self.replayer.take(delivery)  # as after a crash: nothing may change


def rows(db: Catalog, name: str) -> list[dict[str, Any]]:
    return list(db.table(name).to_arrow().to_pylist())


def change(kind: str, key: int, note: str | None, ts: int, **more: Any) -> bytes:
    return canal_line(kind, {"id": str(key), "note": note}, commit_ts=ts, **more)


def test_tables_follow_the_directory_through_rows_and_ddls(directory: TicdcDirectory, db: Catalog) -> None:
    consumer = Consumer(directory, db)
    directory.schema("shop", 90, (), query="CREATE DATABASE shop", type=1)
    directory.schema("shop/orders", 100, [ID, NOTE], query="CREATE TABLE orders ...", type=3)
    directory.data(
        "shop/orders/100",
        1,
        change("INSERT", 1, "a", 110)
        + change("INSERT", 2, "b", 110)
        + change("UPDATE", 1, "c", 120, old={"id": "1", "note": "a"})
        + change("DELETE", 2, "b", 130),
    )
    consumer.round(200)
    assert rows(db, "shop.orders") == [{"id": 1, "note": "c"}]

    price = column("price", "DECIMAL", ColumnDefault="1.50", ColumnPrecision="10", ColumnScale="2")
    wider = [ID, price, column("note", "VARCHAR", ColumnPrecision="40")]
    directory.schema("shop/orders", 210, wider, query="ALTER TABLE orders ADD COLUMN price ...", type=5)
    directory.schema("shop/sold", 220, wider, query="RENAME TABLE `shop`.`orders` TO `shop`.`sold`", type=14)
    sold = canal_line("INSERT", {"id": "3", "price": "2.25", "note": "x" * 40}, commit_ts=230)
    directory.data("shop/sold/220", 1, sold)
    consumer.round(300)
    assert [(row["id"], str(row["price"])) for row in rows(db, "shop.sold")] == [(1, "1.50"), (3, "2.25")]
    replica = Replica(directory.storage)
    replica.catch_up()
    assert {(row["id"],): row for row in rows(db, "shop.sold")} == replica.tables["shop.sold"]

    directory.schema("shop/sold", 310, [ID, price], query="ALTER TABLE sold DROP COLUMN note", type=6)
    consumer.round(310)
    assert [set(row) for row in rows(db, "shop.sold")] == [{"id", "price"}] * 2
    directory.schema("shop/sold", 320, [ID, price], query="TRUNCATE TABLE sold", type=11)
    consumer.round(320)
    assert rows(db, "shop.sold") == []
    directory.schema("shop/sold", 330, [ID, price], query="DROP TABLE sold", type=4)
    consumer.round(330)
    assert [table.name for table in db.tables("shop")] == []
    directory.schema("shop", 340, (), query="DROP DATABASE shop", type=2)
    consumer.round(340)
    assert "shop" not in {database.name for database in db.databases()}


def test_rows_that_exchange_unique_values_are_replayed_into_a_table_that_has_the_key(
    directory: TicdcDirectory, db: Catalog
) -> None:
    db.create_database("shop")
    db.create_table("shop.orders", [("id", "bigint primary key"), ("note", "varchar(20) unique")])
    directory.schema("shop/orders", 100, [ID, NOTE])
    exchange = [
        ("INSERT", 1, "a", 110),
        ("INSERT", 2, "b", 110),
        *(("DELETE", 1, "a", 120), ("DELETE", 2, "b", 120)),
        *(("INSERT", 1, "b", 120), ("INSERT", 2, "a", 120)),
    ]
    consumer = Consumer(directory, db)
    directory.data("shop/orders/100", 1, b"".join(change(*each) for each in exchange[:2]))
    consumer.round(115)
    directory.data("shop/orders/100", 2, b"".join(change(*each) for each in exchange[2:]))
    consumer.round(200)
    assert rows(db, "shop.orders") == [{"id": 1, "note": "b"}, {"id": 2, "note": "a"}]


def test_a_table_whose_creation_is_not_in_the_directory_is_made_of_its_schema_file(
    directory: TicdcDirectory, db: Catalog
) -> None:
    directory.schema("shop/orders", 100, [ID, NOTE, column("tag", "CHAR", ColumnPrecision="4", pk=True)])
    line = canal_line("INSERT", {"id": "1", "note": None, "tag": "t"}, commit_ts=110)
    gone = canal_line("DELETE", {"id": "1", "note": None, "tag": "u"}, commit_ts=111)
    directory.data("shop/orders/100", 1, line + gone)
    Consumer(directory, db).round(200)
    assert rows(db, "shop.orders") == [{"id": 1, "note": None, "tag": "t"}]
    assert [each.name for each in db.table_info("shop.orders").primary_key] == ["id", "tag"]


def test_a_row_that_moves_to_another_key_leaves_none_behind(directory: TicdcDirectory, db: Catalog) -> None:
    directory.schema("shop/orders", 100, [ID, NOTE])
    moved = change("UPDATE", 9, "a", 120, old={"id": "1", "note": "a"})
    directory.data("shop/orders/100", 1, change("INSERT", 1, "a", 110) + moved)
    Consumer(directory, db).round(200)
    assert rows(db, "shop.orders") == [{"id": 9, "note": "a"}]


def test_many_changes_of_few_rows_end_as_the_last_of_each(directory: TicdcDirectory, db: Catalog) -> None:
    directory.schema("shop/orders", 100, [ID, NOTE])
    lines = [change("INSERT" if ts < 10 else "UPDATE", ts % 10, str(ts), 110 + ts) for ts in range(5_000)]
    directory.data("shop/orders/100", 1, b"".join(lines))
    Consumer(directory, db).round(10_000)
    assert rows(db, "shop.orders") == [{"id": key, "note": str(4_990 + key)} for key in range(10)]


def test_a_zero_date_goes_into_a_column_that_has_no_nulls(directory: TicdcDirectory, db: Catalog) -> None:
    day = column("day", "DATE", ColumnNullable="false")
    directory.schema("shop/orders", 100, [ID, day])
    lines = [
        canal_line("INSERT", {"id": str(key), "day": text}, commit_ts=110)
        for key, text in enumerate(["0000-00-00", "2026-02-28"])
    ]
    directory.data("shop/orders/100", 1, b"".join(lines))
    Consumer(directory, db).round(200)
    assert [row["day"] for row in rows(db, "shop.orders")] == [None, date(2026, 2, 28)]


def test_a_table_that_was_there_stays_as_it_is(directory: TicdcDirectory, db: Catalog) -> None:
    db.create_database("shop")
    db.create_table(
        "shop.orders", [("ID", "bigint primary key"), ("Note", "varchar(30)"), ("own", "int default 7")]
    )
    directory.schema("shop/orders", 100, [ID, NOTE], query="CREATE TABLE orders ...", type=3)
    directory.data("shop/orders/100", 1, change("INSERT", 1, "a", 110))
    Consumer(directory, db).round(200)
    assert rows(db, "shop.orders") == [{"ID": 1, "Note": "a", "own": 7}]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([("id", "bigint primary key")], "has no column note"),
        ([("id", "bigint"), ("note", "varchar(20)")], "no primary key"),
        (
            [("id", "bigint"), ("note", "varchar(20)"), ("k", "int primary key")],
            "no column k of the primary key",
        ),
    ],
)
def test_a_table_with_other_columns_is_refused_in_one_line(
    directory: TicdcDirectory, db: Catalog, columns: list[tuple[str, str]], message: str
) -> None:
    db.create_database("shop")
    db.create_table("shop.orders", columns)
    directory.schema("shop/orders", 100, [ID, NOTE])
    directory.data("shop/orders/100", 1, change("INSERT", 1, "a", 110))
    with pytest.raises(Invalid, match=message) as caught:
        Consumer(directory, db).round(200)
    assert "shop.orders" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_found_is_refused(directory: TicdcDirectory, db: Catalog) -> None:
    consumer = Consumer(directory, db)
    directory.schema("shop/orders", 100, [ID, NOTE])
    consumer.round(100)
    db.drop_table("shop.orders")
    directory.data("shop/orders/100", 1, change("INSERT", 1, "a", 110))
    with pytest.raises(Invalid, match=r"table shop\.orders does not exist"):
        consumer.round(200)
    directory.storage.delete("shop/orders/100/2026-02-04/meta/CDC.index")
    directory.schema("shop/sold", 210, [ID, NOTE], query="RENAME TABLE shop.gone TO shop.sold", type=14)
    with pytest.raises(Invalid, match=r"shop\.gone, which becomes shop\.sold, is not there"):
        consumer.round(300)
