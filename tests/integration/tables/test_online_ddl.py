"""Schema changes of our own that touch rows: beside writers, after a crash, and back when they cannot be."""

import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import SYSTEM
from penstock.errors import Conflict, Invalid, KeyExists
from penstock.kv import Client
from penstock.tables import Catalog, DuplicateRow, Index, Table
from penstock.tables.columns import SchemaState
from penstock.tables.ddl_jobs import DdlAction
from penstock.tables.garbage import DROPPED_RANGES
from penstock.tables.meta import MetaReader
from penstock.tables.online_ddl import DdlProgress, OnlineDdl
from support.onlinestates import assert_entries_agree
from support.warmstore import WarmStore

COLUMNS = [("id", "bigint"), ("v", "varchar(20)"), ("n", "int")]
KINDS = {"int": (["id"], True), "common": (["id", "n"], True), "implicit": (["id"], False)}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    data: Path = tmp_path_factory.mktemp("ddl") / "store"
    with WarmStore.start(data, stores=1) as store, Client.connect([store.pd_addr]) as connected:
        yield connected


@pytest.fixture
def db(client: Client) -> Iterator[Catalog]:
    catalog = Catalog(client)
    catalog._online = OnlineDdl(client, batch_rows=7)
    catalog.create_database("shop")
    yield catalog
    catalog.drop_database("shop")


def create(db: Catalog, kind: str = "int", rows: int = 30) -> Table:
    key, clustered = KINDS[kind]
    db.create_table(
        "shop.t", COLUMNS, primary_key=key, clustered=clustered, indexes=[Index("by_n", ["n", "v"])]
    )
    table = db.table("shop.t")
    table.insert([row(number) for number in range(rows)])
    return table


def row(number: int, **changed: Any) -> dict[str, Any]:
    return {"id": number, "v": str(number * 10), "n": number % 3, **changed}


def jobs_since(db: Catalog, seen: int) -> list[Any]:
    return db.history()[seen:]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unique", [False, True])
def test_an_index_is_filled_in_and_dropped(db: Catalog, client: Client, kind: str, unique: bool) -> None:
    table, seen = create(db, kind), len(db.history())
    steps: list[DdlProgress] = []
    info = db.add_index("shop.t", "by_v", ["v(3)"], unique=unique, progress=steps.append)
    assert info.index("by_v").unique is unique
    assert [one["id"] for one in table.find("by_v", "120")] == [12]
    assert_entries_agree(client, "shop.t")
    states = list(dict.fromkeys(step.state for step in steps))
    assert states == ["write only", "write reorg"]
    assert steps[-1].rows == 30
    assert db.unfinished_ddl() == []
    assert db.add_index("shop.t", "by_v", ["v"], if_not_exists=True) == db.table_info("shop.t")
    db.drop_index("shop.t", "BY_V")
    db.drop_index("shop.t", "by_v", if_exists=True)
    with pytest.raises(Invalid, match="has no index 'by_v'"):
        db.drop_index("shop.t", "by_v")
    added, dropped = jobs_since(db, seen)
    assert (added.type, dropped.type) == (DdlAction.ADD_INDEX, DdlAction.DROP_INDEX)
    kind_of_key = "UNIQUE KEY" if unique else "KEY"
    assert added.query == f"ALTER TABLE `t` ADD {kind_of_key} `by_v` (`v`(3))"
    assert dropped.query == "ALTER TABLE `t` DROP INDEX `by_v`"
    assert added.succeeded
    assert dropped.table is not None
    assert dropped.table.find_index("by_v") is None
    assert dropped.schema_version - added.schema_version == 4
    meta = MetaReader(client.snapshot(client.timestamp()))
    assert [
        meta.diff(number).type for number in range(added.schema_version - 3, added.schema_version + 1)
    ] == [DdlAction.ADD_INDEX] * 4
    table.delete([(5, 2) if kind == "common" else 5])
    recorded = [field for field, _ in meta.fields(DROPPED_RANGES)]
    assert len(recorded) >= 1


def test_a_unique_index_over_equal_values_is_rolled_back(db: Catalog, client: Client) -> None:
    table, seen = create(db), len(db.history())
    before = db.table_info("shop.t")
    with pytest.raises(Invalid, match="index by_n2 of t cannot be unique") as refused:
        db.add_index("shop.t", "by_n2", ["n"], unique=True)
    after = db.table_info("shop.t")
    assert (after.indexes, after.columns) == (before.indexes, before.columns)
    assert db.unfinished_ddl() == []
    (job,) = jobs_since(db, seen)
    assert not job.succeeded
    assert job.error == str(refused.value)
    table.insert([row(100)])
    db.add_index("shop.t", "by_n2", ["n"])
    assert_entries_agree(client, "shop.t", garbage=True)
    with pytest.raises(Invalid, match="already has an index"):
        db.add_index("shop.t", "by_n2", ["v"])


def test_writers_go_on_while_an_index_is_added(db: Catalog, client: Client) -> None:
    table = create(db, rows=60)
    stop, refused, written = threading.Event(), list[str](), list[int]()

    def write(first: int) -> None:
        mine, number = Catalog(client).table("shop.t"), first
        while not stop.is_set():
            try:
                mine.insert([row(number)])
                mine.update([row(number % 60, v=str(number * 10 + 1))])
                mine.delete([number - 20])
            except (Conflict, KeyExists):
                pass
            except Invalid as error:  # in the end the column takes numbers, and no more texts
                refused.append(str(error))
                return
            written.append(number)
            number += 2

    writers = [threading.Thread(target=write, args=(1000 + nth,)) for nth in range(2)]
    for writer in writers:
        writer.start()
    try:
        db.add_index("shop.t", "by_v", ["v"])
        db.add_index("shop.t", "plain", ["n"])
        db.drop_index("shop.t", "plain")
        db.modify_column("shop.t", "v", "bigint")
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert len(written) > 5
    assert all("column v" in error for error in refused)
    assert [index.name for index in table.info.indexes] == ["by_n", "by_v"]
    assert_entries_agree(client, "shop.t", garbage=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_takes_a_type_that_needs_other_bytes(db: Catalog, client: Client, kind: str) -> None:
    table, seen = create(db, kind), len(db.history())
    old_id = db.table_info("shop.t").column("v").id
    steps: list[DdlProgress] = []
    info = db.modify_column("shop.t", "v", "decimal(12,2) default 5", progress=steps.append)
    assert [column.name for column in info.columns] == ["id", "v", "n"]
    assert info.column("v").id > old_id
    assert all(column.state is SchemaState.PUBLIC for column in info.columns)
    expected = [row(number, v=Decimal(number * 10)) for number in range(30)]
    assert sorted(table.to_arrow().to_pylist(), key=lambda one: one["id"]) == expected
    assert {one["id"] for one in table.find("by_n", 1, Decimal(10))} == {1}
    table.insert([{"id": 99, "n": 1}])
    assert [one["v"] for one in table.to_arrow().to_pylist() if one["id"] == 99] == [Decimal(5)]
    (job,) = jobs_since(db, seen)
    assert (job.type, job.query) == (
        DdlAction.MODIFY_COLUMN,
        "ALTER TABLE `t` MODIFY COLUMN `v` decimal(12,2) DEFAULT '5'",
    )
    assert job.table is not None
    assert [column.id for column in job.table.columns] == [column.id for column in info.columns]
    widened = db.modify_column("shop.t", "n", "bigint" if kind != "common" else "int comment 'rest'")
    assert widened.column("n").id == info.column("n").id


def test_a_value_that_cannot_be_converted_rolls_the_change_back(db: Catalog) -> None:
    table = create(db)
    table.update([row(17, v="secret17")])
    before = db.table_info("shop.t")
    with pytest.raises(Invalid, match="column v of t cannot become bigint") as refused:
        db.modify_column("shop.t", "v", "bigint")
    assert "secret" not in str(refused.value)
    after = db.table_info("shop.t")
    assert (after.columns, after.indexes) == (before.columns, before.indexes)
    table.update([row(17, n=None)])
    with pytest.raises(Invalid, match="column n of t cannot become int"):
        db.modify_column("shop.t", "n", "int not null")
    table.update([row(17)])
    assert db.modify_column("shop.t", "n", "int not null").column("n").type.not_null
    assert db.modify_column("shop.t", "v", "bigint").column("v").id > before.column("v").id
    assert [one["v"] for one in table.to_arrow().to_pylist()] == [number * 10 for number in range(30)]


class Killed(Exception):
    """The process dies here."""


def die_after(steps: int) -> Any:
    left = [steps]

    def progress(_: DdlProgress) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    return progress


@pytest.mark.parametrize("steps", range(5))
def test_a_change_whose_process_died_is_continued_by_the_same_call(
    db: Catalog, client: Client, steps: int
) -> None:
    table = create(db)
    with pytest.raises(Killed):
        db.add_index("shop.t", "by_v", ["v"], progress=die_after(steps))
    (job,) = db.unfinished_ddl()
    assert job.query.startswith("ALTER TABLE `t` ADD KEY `by_v`")
    table.insert([row(200 + steps)])
    other = Catalog(client)
    other.add_index("shop.t", "by_v", ["v"])
    assert db.unfinished_ddl() == []
    assert_entries_agree(client, "shop.t")
    assert [done.id for done in db.history() if done.type == DdlAction.ADD_INDEX][-1] == job.id


@pytest.mark.parametrize("steps", range(5))
def test_a_change_whose_process_died_is_finished_by_the_next_change_of_the_table(
    db: Catalog, client: Client, steps: int
) -> None:
    table = create(db)
    with pytest.raises(Killed):
        db.modify_column("shop.t", "v", "bigint", progress=die_after(steps))
    table.delete([3])
    Catalog(client).add_column("shop.t", "later", "int default 4")
    assert db.unfinished_ddl() == []
    assert table.get(4) == {**row(4, v=40), "later": 4}
    assert_entries_agree(client, "shop.t", garbage=True)


def test_a_change_can_be_cancelled_or_finished_by_its_id(db: Catalog, client: Client) -> None:
    create(db)
    for ending in ("cancel", "finish"):
        with pytest.raises(Killed):
            db.add_index("shop.t", "by_v", ["v"], progress=die_after(2))
        (job,) = db.unfinished_ddl()
        if ending == "cancel":
            db.cancel_ddl(job.id)
            assert db.table_info("shop.t").find_index("by_v") is None
            with pytest.raises(Invalid, match="was cancelled"):
                db.finish_ddl(job.id)
        else:
            assert db.finish_ddl(job.id).index("by_v").state is SchemaState.PUBLIC
    with pytest.raises(Invalid, match="is not running"):
        db.cancel_ddl(job.id)


def test_a_dropped_table_takes_its_unfinished_change_along(db: Catalog) -> None:
    create(db)
    with pytest.raises(Killed):
        db.add_index("shop.t", "by_v", ["v"], progress=die_after(1))
    (job,) = db.unfinished_ddl()
    db.drop_table("shop.t")
    assert db.unfinished_ddl() == []
    with pytest.raises(Invalid, match="ended with its table"):
        db.finish_ddl(job.id)


def test_two_processes_may_run_one_change(db: Catalog, client: Client) -> None:
    create(db, rows=100)
    with pytest.raises(Killed):
        db.add_index("shop.t", "by_v", ["v"], unique=True, progress=die_after(3))
    (job,) = db.unfinished_ddl()
    runners = [OnlineDdl(client, clock=SYSTEM, batch_rows=5) for _ in range(3)]
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda runner=runner: found.append(runner.run(job.id))) for runner in runners
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [table.index("by_v").state for table in found] == [SchemaState.PUBLIC] * 3
    assert_entries_agree(client, "shop.t")


def test_a_column_is_renamed_at_once(db: Catalog, client: Client) -> None:
    table, seen = create(db), len(db.history())
    db.rename_column("shop.t", "v", "words")
    assert table.get(2) == {"id": 2, "words": "20", "n": 2}
    assert [one["id"] for one in table.find("by_n", 2, "20")] == [2]
    table.insert([{"id": 50, "words": "x", "n": 0}])
    with pytest.raises(Invalid, match="already has a column N"):
        db.rename_column("shop.t", "words", "N")
    (job,) = jobs_since(db, seen)
    assert job.query == "ALTER TABLE `t` RENAME COLUMN `v` TO `words`"
    assert job.type == DdlAction.MODIFY_COLUMN
    assert_entries_agree(client, "shop.t")


def test_what_exists_or_does_not_may_be_passed_over(db: Catalog) -> None:
    create(db)
    seen = len(db.history())
    assert db.create_database("shop", if_not_exists=True).name == "shop"
    assert db.create_table("shop.t", COLUMNS, if_not_exists=True) == db.table_info("shop.t")
    assert db.add_column("shop.t", "V", "int", if_not_exists=True) == db.table_info("shop.t")
    db.drop_column("shop.t", "nope", if_exists=True)
    db.drop_table("shop.nope", if_exists=True)
    db.drop_table("nope.nope", if_exists=True)
    db.drop_database("nope", if_exists=True)
    db.drop_index("shop.t", "nope", if_exists=True)
    assert jobs_since(db, seen) == []


def test_a_unique_index_that_is_being_added_refuses_duplicates_already(db: Catalog) -> None:
    table = create(db)
    with pytest.raises(Killed):
        db.add_index("shop.t", "by_v", ["v"], unique=True, progress=die_after(4))
    with pytest.raises(DuplicateRow, match="unique index by_v"):
        table.insert([row(300, v="0")])
    (job,) = db.unfinished_ddl()
    assert db.finish_ddl(job.id).index("by_v").unique
