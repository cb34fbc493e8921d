"""Changes as one DataFrame: one row for each key, whatever parts it was read in."""

import random  # noqa: TID251 - seeded by the test
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.changes.columns import own_columns
from penstock.changes.limits import ReadLimit
from penstock.errors import StaleRead, Unavailable
from penstock.follow.scans import scan_snapshot, scan_tail
from penstock.follow.source import TableScan
from penstock.jobs.error_codes import SchemaRefused
from penstock.jobs.iteration import spark_frame
from penstock.jobs.iteration.spark_frame import SparkFrames, own_frame
from penstock.tables import alter
from penstock.tables.define import define_table
from penstock.tables.schema import TableInfo
from penstock.testing.versions import key_of
from support.everytype import EVERY_CELL, EVERY_ROW, EVERY_TYPE
from support.itemtables import TABLES, item, item_table
from support.rowcounts import RowCounts
from support.servedworld import ServedWorld


@pytest.fixture
def on_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is read in small parts."""
    monkeypatch.setattr(spark_frame, "_PART_ROWS_MIN", 8)
    monkeypatch.setattr(spark_frame, "_PART_ROWS_MAX", 8)


def scan_of(world: ServedWorld, from_ts: int, to_ts: int) -> TableScan:
    rows = world.flight_rows()
    view = world.view(rows)
    return scan_tail(view, from_ts, to_ts, ReadLimit()) if from_ts else scan_snapshot(view, to_ts)


@contextmanager
def opened(spark: SparkSession, scan: TableScan, columns: list[str] | None = None) -> Iterator[DataFrame]:
    frame = SparkFrames(lambda: spark).open(scan, columns)
    try:
        yield frame.dataframe
    finally:
        frame.release()


def by_key(frame: DataFrame, table: TableInfo) -> dict[tuple[Any, ...], dict[str, Any]]:
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in frame.toArrow().to_pylist():
        key = key_of(table, row)
        assert key not in found, "a key is there twice"
        found[key] = row
    return found


def check(world: ServedWorld, frame: DataFrame, from_ts: int, to_ts: int) -> None:
    """The rows of a frame lead from one moment to the other."""
    table = world.versions.table_at(to_ts)
    rows = dict(world.versions.at(from_ts)) if from_ts else {}
    rows = {key: {**row} for key, row in rows.items()}
    for key, row in by_key(frame, table).items():
        assert row["_commit_ts"] > from_ts
        assert row["_commit_ts"] <= to_ts
        if row["_deleted"]:
            rows.pop(key, None)
        else:
            rows[key] = {name: cell for name, cell in row.items() if not name.startswith("_")}
    wanted = world.versions.at(to_ts)
    assert rows.keys() == wanted.keys()
    changed = {key for key in wanted if rows[key] != wanted[key]}
    assert not changed


def churn(world: ServedWorld, kind: str, mix: random.Random, commits: int = 12) -> int:
    for _ in range(commits):
        live = world.versions.live()
        gone = mix.sample(live, min(len(live), mix.randrange(3)))
        made = {}
        for _ in range(mix.randrange(1, 6)):
            row = item(kind, mix.randrange(25), mix.choice("abcdef") * mix.randrange(1, 5))
            made[world.key(row)] = row
        world.commit(*made.values(), delete=[key for key in gone if key not in made])
    return world.resolve()


@pytest.mark.usefixtures("on_executors")
@pytest.mark.parametrize("kind", TABLES)
def test_a_row_that_changes_in_many_parts_is_there_once_as_it_was_last(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    mix = random.Random(kind)
    with ServedWorld(tmp_path, item_table(kind)) as world:
        start = churn(world, kind, mix)
        world.flush()
        churn(world, kind, mix)
        world.flush()
        end = churn(world, kind, mix)
        scan = scan_of(world, start, end)
        assert len(spark_frame._plan_parts(spark, scan, None, _wanted(scan)).parts) > 2
        with opened(spark, scan) as frame:
            check(world, frame, start, end)
            assert "hashpartitioning" in _plan(frame)
        snapshot = scan_of(world, 0, end)
        with opened(spark, snapshot) as frame:
            check(world, frame, 0, end)
            assert "hashpartitioning" not in _plan(frame), "rows are shuffled"


def _wanted(scan: TableScan) -> Any:
    from penstock.changes.columns import choose_columns

    return spark_frame.FrameColumns(scan.schema, choose_columns(scan.schema.table, None))


def _plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


@pytest.mark.usefixtures("on_executors")
def test_columns_with_names_of_changes_have_their_own_names(spark: SparkSession, tmp_path: Path) -> None:
    columns = [("_Handle", "bigint"), ("_Commit_Ts", "int"), ("_deleted", "int"), ("_old", "int")]
    table = define_table("items", columns, primary_key=["_Handle", "_deleted"])
    made = {n: {"_Handle": n, "_Commit_Ts": n + 1, "_deleted": 7, "_old": None} for n in range(40)}
    with ServedWorld(tmp_path, replace(table, id=1)) as world:
        start = world.commit({**made[1], "_Commit_Ts": 5})
        world.resolve()
        world.flush()
        for rows in (range(30), range(20, 40)):
            world.commit(*(made[n] for n in rows))
            world.resolve()
            world.flush()
        world.commit(delete=[world.key(made[3])])
        end = world.resolve()
        for from_ts in (0, start):
            with opened(spark, scan_of(world, from_ts, end)) as frame:
                own = own_frame(frame, table, None)
                assert own.columns == [
                    "_Handle",
                    "_deleted",
                    "_Commit_Ts",
                    "_old",
                    "_commit_ts ",
                    "_deleted ",
                ]
                found = own.toArrow().to_pylist()
            gone = [row for row in found if row.pop("_deleted ")]
            assert all(row.pop("_commit_ts ") > from_ts for row in found if row not in gone)
            there = [row for row in found if row not in gone]
            assert sorted(there, key=lambda row: row["_Handle"]) == [made[n] for n in range(40) if n != 3]
            assert [row["_Handle"] for row in gone] == ([3] if from_ts else [])
    chosen = own_columns(table, ["_old"]).names
    assert chosen == ["_Handle", "_deleted", "_old"]


@pytest.mark.parametrize("kind", TABLES)
def test_few_changes_are_read_by_a_task_as_well(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    with ServedWorld(tmp_path, item_table(kind)) as world:
        start = churn(world, kind, random.Random(1))
        world.flush()
        end = churn(world, kind, random.Random(2))
        for from_ts in (start, 0):
            on_spark, local = RowCounts("spark"), RowCounts("local")
            with opened(spark, scan_of(world, from_ts, end)) as frame:
                assert (on_spark.new, local.new) == ({"read": frame.count()}, {})
                check(world, frame, from_ts, end)
                assert "MapInArrow" in _plan(frame)


@pytest.mark.usefixtures("on_executors")
def test_rows_come_with_the_columns_of_the_end_whatever_they_were_called(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = item_table("composite")
    with ServedWorld(tmp_path, table) as world:
        start = churn(world, "composite", random.Random(1))
        world.commit(item("composite", 1, "old"))
        world.flush()
        wider = alter.add_column(table, "size", "int default 7")
        columns = [replace(each, name="title") if each.name == "name" else each for each in wider.columns]
        world.alter(wider.with_columns(columns))
        world.commit({"id": 2, "part": "p2", "title": "new", "size": 3})
        scan = scan_of(world, start, world.resolve())
        for chosen, names in (
            (None, ["part", "id", "title", "size"]),
            (["SIZE", "title"], ["part", "id", "title", "size"]),
            ([], ["part", "id"]),
        ):
            with opened(spark, scan, chosen) as frame:
                assert frame.columns == [*names, "_commit_ts", "_deleted"]
                found = {row["id"]: tuple(row[name] for name in names[2:]) for row in frame.collect()}
                assert found == ({1: ("old", 7), 2: ("new", 3)} if chosen != [] else {1: (), 2: ()})


@pytest.mark.usefixtures("on_executors")
def test_every_type_goes_through_executors(spark: SparkSession, tmp_path: Path) -> None:
    with ServedWorld(tmp_path, EVERY_TYPE) as world:
        world.commit(EVERY_ROW)
        first = world.flush()
        world.commit({**EVERY_ROW, "id": 1, **dict.fromkeys(("day", "raw", "doc", "wide"))})
        world.commit({**EVERY_ROW, "id": 2})
        world.flush()
        world.commit(delete=[(-5,)])
        end = world.resolve()
        with opened(spark, scan_of(world, 0, first)) as frame:
            (row,) = frame.toArrow().drop_columns(["_commit_ts", "_deleted"]).to_pylist()
            assert row == EVERY_CELL
        with opened(spark, scan_of(world, first, end)) as frame:
            found = by_key(frame, EVERY_TYPE)
            assert found.keys() == {(-5,), (1,), (2,)}
            assert found[-5,]["_deleted"]
            assert {name: found[2,][name] for name in EVERY_CELL} == {**EVERY_CELL, "id": 2}
            assert found[1,]["day"] is None


@pytest.mark.usefixtures("on_executors")
@pytest.mark.usefixtures("on_executors")
def test_columns_may_have_dots_and_quotes_in_their_names(spark: SparkSession, tmp_path: Path) -> None:
    table = item_table()
    names = {"id": "item.id", "name": "item`s name"}
    table = replace(table, columns=tuple(replace(each, name=names[each.name]) for each in table.columns))
    with ServedWorld(tmp_path, table) as world:
        start = world.commit({"item.id": 0, "item`s name": "first"})
        for number in range(20):
            world.commit({"item.id": number % 7, "item`s name": f"n{number}"})
        world.commit(delete=[(3,)])
        end = world.resolve()
        world.flush()
        with opened(spark, scan_of(world, start, end)) as frame:
            check(world, frame, start, end)


def test_partitions_of_a_table_are_one_frame(spark: SparkSession, tmp_path: Path) -> None:
    table = item_table("integer", table_id=9, partitions=(1, 2))
    with ServedWorld(tmp_path, table, partitions=(1, 2)) as world:
        start = world.commit(item("integer", 1, "a"), item("integer", 2, "b"), into=0)
        world.flush()
        world.commit(item("integer", 1, "c"), into=1)  # it moves to the other partition
        end = world.resolve()
        with opened(spark, scan_of(world, start, end)) as frame:
            check(world, frame, start, end)
            assert frame.count() == 1


@pytest.mark.usefixtures("on_executors")
def test_an_empty_range_is_an_empty_frame(spark: SparkSession, tmp_path: Path) -> None:
    with ServedWorld(tmp_path, item_table()) as world:
        start = world.flush()
        world.tick()
        end = world.resolve()
        for from_ts in (start, 0):
            with opened(spark, scan_of(world, from_ts, end)) as frame:
                assert frame.count() == 0
                assert frame.columns == ["id", "name", "_commit_ts", "_deleted"]


@pytest.mark.usefixtures("on_executors")
def test_a_frame_is_computed_once_and_let_go(spark: SparkSession, tmp_path: Path) -> None:
    with ServedWorld(tmp_path, item_table()) as world:
        start = world.commit(item("integer", 1, "a"))
        world.commit(item("integer", 1, "b"))
        world.flush()
        frame = SparkFrames(lambda: spark).open(scan_of(world, start, world.ts), None)
        world.flight.close()  # nobody asks again
        assert frame.dataframe.is_cached
        assert [row["name"] for row in frame.dataframe.collect()] == ["b"]
        frame.release()
        assert not frame.dataframe.is_cached


@pytest.mark.usefixtures("on_executors")
def test_what_cannot_be_read_is_said_when_the_frame_is_opened(spark: SparkSession, tmp_path: Path) -> None:
    with ServedWorld(tmp_path, item_table()) as world:
        start = world.commit(item("integer", 1, "a"))
        world.commit(item("integer", 2, "b"))
        scan = scan_of(world, start, world.resolve())
        world.flight.close()
        with pytest.raises(Unavailable):
            SparkFrames(lambda: spark).open(scan, None)


def test_a_table_with_another_key_is_refused_before_anything_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = item_table("not clustered")
    with ServedWorld(tmp_path, table) as world:
        start = world.commit(item("not clustered", 1, "a"))
        world.commit(item("not clustered", 2, "b"))
        world.alter(replace(define_table("items", [("id", "bigint"), ("name", "varchar(200)")]), id=1))
        world.commit(item("no key", 3, "c"))
        scan = scan_of(world, start, world.resolve())
        with pytest.raises(SchemaRefused, match="--rebuild"):
            SparkFrames(lambda: spark).open(scan, None)


def test_history_that_is_gone_keeps_its_name(spark: SparkSession, tmp_path: Path) -> None:
    with ServedWorld(tmp_path, item_table()) as world:
        start = world.commit(item("integer", 1, "a"))
        world.commit(item("integer", 1, "b"))
        world.flush()
        scan = scan_of(world, start, world.ts)
        world.store.record_fact(1, {"kind": "begun", "ts": world.ts})
        with pytest.raises(StaleRead):
            SparkFrames(lambda: spark).open(scan, None)
