"""The model that simulations compare with: it follows DDLs, and notices every broken promise."""

import os
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock.object_storage import open_storage
from penstock.testing.directory import BrokenPromise, Replica
from support.ticdcfiles import TicdcDirectory, canal_line, column

ID, NOTE = column("id", "BIGINT", pk=True), column("note", "VARCHAR", ColumnPrecision="20")
ORDERS = [ID, NOTE]


@pytest.fixture
def directory(tmp_path: Path) -> TicdcDirectory:
    return TicdcDirectory(open_storage(f"file://{tmp_path}/out"))


def insert(key: int, commit_ts: int, note: str | None = "n") -> bytes:
    return canal_line("INSERT", {"id": str(key), "note": note}, commit_ts=commit_ts)


def update(key: int, commit_ts: int, note: str, was: str) -> bytes:
    old = {"id": str(key), "note": was}
    return canal_line("UPDATE", {"id": str(key), "note": note}, old=old, commit_ts=commit_ts)


def delete(key: int, commit_ts: int) -> bytes:
    return canal_line("DELETE", {"id": str(key), "note": "n"}, commit_ts=commit_ts)


def caught_up(directory: TicdcDirectory, **options: Any) -> Replica:
    replica = Replica(directory.storage, **options)
    replica.catch_up()
    replica.check()
    return replica


def test_rows_are_what_their_changes_make_of_them(directory: TicdcDirectory) -> None:
    directory.schema("shop/orders", 100, ORDERS, query="CREATE", type=3)
    directory.data("shop/orders/100", 1, insert(1, 110) + insert(2, 110) + update(1, 120, "m", "n"))
    directory.data("shop/orders/100", 2, delete(2, 130) + insert(3, 140))
    directory.checkpoint(135)
    replica = caught_up(directory)
    assert replica.tables == {"shop.orders": {(1,): {"id": 1, "note": "m"}}}
    assert replica.checkpoint_ts == 135
    directory.checkpoint(140)
    replica.catch_up()
    assert set(replica.tables["shop.orders"]) == {(1,), (3,)}


def test_an_update_may_move_a_row_to_another_key(directory: TicdcDirectory) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    moved = canal_line("UPDATE", {"id": "9", "note": "n"}, old={"id": "1", "note": "n"}, commit_ts=120)
    directory.data("shop/orders/100", 1, insert(1, 110) + moved)
    directory.checkpoint(200)
    assert set(caught_up(directory).tables["shop.orders"]) == {(9,)}


def test_ddls_change_tables_as_they_change_the_source(directory: TicdcDirectory) -> None:
    price = column("price", "DECIMAL", ColumnDefault="1.50", ColumnPrecision="10", ColumnScale="2")
    must = column("must", "INT", ColumnNullable="false")
    wider = [ID, price, must]
    directory.schema("shop/orders", 100, ORDERS, query="CREATE", type=3)
    directory.data("shop/orders/100", 1, insert(1, 110))
    directory.schema("shop/orders", 150, wider, query="ALTER ... DROP COLUMN ...", type=5)
    directory.checkpoint(150)
    replica = caught_up(directory)
    assert replica.tables == {"shop.orders": {(1,): {"id": 1, "price": Decimal("1.50"), "must": 0}}}
    directory.schema("shop/sold", 160, wider, query="RENAME TABLE shop.orders TO shop.sold", type=14)
    directory.checkpoint(160)
    replica.catch_up()
    assert {name: len(rows) for name, rows in replica.tables.items()} == {"shop.sold": 1}
    directory.schema("shop/sold", 170, wider, query="TRUNCATE TABLE sold", type=11)
    directory.schema("shop/orders", 171, ORDERS, query="CREATE", type=3)
    directory.schema("other/orders", 172, ORDERS, query="CREATE", type=3)
    directory.checkpoint(175)
    replica.catch_up()
    assert replica.tables == {"shop.sold": {}, "shop.orders": {}, "other.orders": {}}
    directory.schema("shop/sold", 180, wider, query="DROP TABLE sold", type=4)
    directory.checkpoint(180)
    replica.catch_up()
    assert set(replica.tables) == {"shop.orders", "other.orders"}
    directory.schema("shop", 190, (), query="DROP DATABASE shop", type=2)
    directory.checkpoint(190)
    replica.catch_up()
    assert set(replica.tables) == {"other.orders"}


def test_an_added_date_that_may_not_be_null_is_zero_in_older_rows_as_files_show_it(
    directory: TicdcDirectory,
) -> None:
    since = column("since", "DATETIME", ColumnScale="3", ColumnNullable="false")
    directory.schema("shop/orders", 100, [ID], query="CREATE", type=3)
    directory.data("shop/orders/100", 1, canal_line("INSERT", {"id": "1"}, commit_ts=110))
    directory.schema("shop/orders", 150, [ID, since], query="ALTER ... ADD COLUMN ...", type=5)
    zero = {"id": "1", "since": "0000-00-00 00:00:00.000"}
    moved = canal_line("UPDATE", zero | {"since": "2024-02-29 01:02:03.456"}, old=zero, commit_ts=160)
    directory.data("shop/orders/150", 1, moved)
    directory.checkpoint(160)
    (row,) = caught_up(directory).tables["shop.orders"].values()
    assert row == {"id": 1, "since": datetime(2024, 2, 29, 1, 2, 3, 456000)}


def test_rows_without_a_key_are_counted(directory: TicdcDirectory) -> None:
    directory.schema("shop/orders", 100, [column("id", "BIGINT"), NOTE])
    directory.data("shop/orders/100", 1, insert(1, 110) + insert(1, 111) + update(1, 112, "m", "n"))
    directory.checkpoint(120)
    replica = caught_up(directory)
    assert set(replica.tables["shop.orders"]) == {(1, "n", 0), (1, "m", 0)}
    directory.data("shop/orders/100", 2, delete(1, 130) + delete(1, 131))
    directory.checkpoint(140)
    with pytest.raises(BrokenPromise, match="not there"):
        replica.catch_up()


def test_ticdc_may_repeat_itself(directory: TicdcDirectory) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    directory.data("shop/orders/100", 1, insert(1, 110) + delete(1, 120))
    directory.data("shop/orders/100", 2, insert(1, 110) + delete(1, 120))
    directory.checkpoint(200)
    assert caught_up(directory, exactly_once=False, cut_commits=True).tables == {"shop.orders": {}}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (insert(1, 120), "I of (1,), which is there"),
        (delete(2, 120), "D of (2,), which is not there"),
        (update(2, 120, "m", "n"), "U of (2,), which is not there"),
        (update(1, 120, "m", "other"), "has another old row"),
    ],
)
def test_a_change_that_does_not_fit_is_noticed(directory: TicdcDirectory, lines: bytes, message: str) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    directory.data("shop/orders/100", 1, insert(1, 110) + lines)
    directory.checkpoint(200)
    with pytest.raises(BrokenPromise) as caught:
        caught_up(directory)
    assert message in str(caught.value)


def test_a_table_that_is_created_twice_is_noticed(directory: TicdcDirectory) -> None:
    directory.schema("shop/orders", 100, ORDERS, query="CREATE", type=3)
    directory.schema("shop/orders", 110, ORDERS, query="CREATE", type=3)
    directory.checkpoint(200)
    with pytest.raises(BrokenPromise, match="already exists"):
        caught_up(directory)


def _back(directory: TicdcDirectory) -> None:
    directory.data("shop/orders/100", 2, insert(3, 130) + insert(4, 125))


def _cut(directory: TicdcDirectory) -> None:
    directory.data("shop/orders/100", 2, insert(3, 120))


def _twice(directory: TicdcDirectory) -> None:
    directory.data("shop/orders/100", 1, insert(2, 120), date="2026-02-05")


def _too_old(directory: TicdcDirectory) -> None:
    directory.data("shop/orders/100", 2, insert(3, 99))


def _too_new(directory: TicdcDirectory) -> None:
    directory.data("shop/orders/100", 2, insert(3, 500))
    directory.schema("shop/orders", 500, ORDERS, query="TRUNCATE TABLE orders", type=11)


def _hole(directory: TicdcDirectory) -> None:
    directory.data("shop/orders/100", 3, insert(3, 130))


def _no_schema(directory: TicdcDirectory) -> None:
    directory.data("shop/orders/101", 1, insert(3, 130))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_back, "go back"),
        (_cut, "the commit of 120 is in"),
        (_twice, "a change of 120 is in"),
        (_too_old, "before its version"),
        (_too_new, "version 500 begins before"),
        (_hole, "there is no file 2"),
        (_no_schema, "no schema file"),
    ],
)
def test_a_broken_promise_is_noticed(
    directory: TicdcDirectory, damage: Callable[[TicdcDirectory], None], message: str
) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    directory.data("shop/orders/100", 1, insert(1, 110) + insert(2, 120))
    directory.checkpoint(200)
    Replica(directory.storage).check()
    damage(directory)
    with pytest.raises(BrokenPromise, match=message):
        Replica(directory.storage).check()


def test_a_file_that_was_written_after_a_later_version_is_noticed(
    directory: TicdcDirectory, tmp_path: Path
) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    late = directory.data("shop/orders/100", 1, insert(1, 110))
    ddl = directory.schema("shop/orders", 150, ORDERS, query="TRUNCATE TABLE orders", type=11)
    directory.checkpoint(200)
    os.utime(tmp_path / "out" / late, (1000, 1000))
    os.utime(tmp_path / "out" / ddl, (1001, 1001))
    Replica(directory.storage).check()
    os.utime(tmp_path / "out" / late, (1002, 1002))
    with pytest.raises(BrokenPromise, match="later version"):
        Replica(directory.storage).check()
