"""What copies promise in every format, each read by a reader of its own."""

import os
import random  # noqa: TID251 - seeded
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.changes.columns import key_names
from penstock.clock import compose_ts
from penstock.errors import Aborted, Fenced, Invalid
from penstock.jobs.consumer import DataRetriever
from penstock.jobs.error_codes import SchemaRefused, TargetDiffers
from penstock.tables.alter import add_column, drop_column, modify_column
from penstock.tables.define import define_table
from penstock.tables.schema import TableInfo
from penstock.testing.consumers import SourceModel, rows_by_key
from penstock.verify.compare import Comparison
from support.everytype import EVERY_TYPE
from support.itemtables import item_table
from support.lakeworld import FORMATS, Killed, LakeWorld, as_copied

KEY = ("id",)


@pytest.fixture(params=sorted(FORMATS))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LakeWorld]:
    made = LakeWorld(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def source() -> SourceModel:
    model = SourceModel(replace(item_table("integer"), id=1))
    model.commit(*({"id": number, "name": f"n{number}"} for number in range(20)))
    return model


def first(world: LakeWorld, source: SourceModel) -> None:
    world.consumer().consume(source.retriever(0, source.ts))


def tail(world: LakeWorld, source: SourceModel) -> None:
    world.consumer().consume(source.retriever(world.committed_ts(), source.ts))


def files_of(world: LakeWorld) -> set[str]:
    return {str(path.relative_to(world.folder)) for path in (world.folder / "lake").rglob("*.parquet")}


def test_a_copy_follows_its_source(world: LakeWorld, source: SourceModel) -> None:
    assert world.committed_ts() == 0
    first(world, source)
    assert world.committed_ts() == source.ts
    source.commit({"id": 3, "name": "other"}, {"id": 99, "name": "new"}, delete=[(5,)])
    source.commit({"id": 3, "name": "again"}, delete=[(99,)])
    tail(world, source)
    assert world.rows(KEY) == source.at(source.ts)
    assert world.committed_ts() == source.ts


@pytest.mark.parametrize("table", [EVERY_TYPE, define_table("items", [("v", "vector(4)"), ("t", "time")])])
def test_columns_of_every_type_are_copied(world: LakeWorld, table: TableInfo) -> None:
    model = SourceModel(replace(table, id=1))
    for data in model.iterations(random.Random(5), count=4):
        world.consumer().consume(data)
        found = world.rows(data.keys)
        expected = as_copied(model.at(data.to_ts))
        if data.keys == ("_handle",):
            found = {key: {name: row[name] for name in ("v", "t")} for key, row in found.items()}
        assert found == expected


def test_the_copy_of_an_empty_table_is_there(world: LakeWorld) -> None:
    model = SourceModel(replace(item_table("integer"), id=1))
    model.ts += 10
    first(world, model)
    assert world.committed_ts() == model.ts
    assert world.table().num_rows == 0
    model.commit({"id": 1, "name": "one"})
    tail(world, model)
    assert world.rows(KEY) == model.at(model.ts)


def test_a_range_without_changes_moves_the_watermark(world: LakeWorld, source: SourceModel) -> None:
    first(world, source)
    source.ts += 100
    tail(world, source)
    assert world.committed_ts() == source.ts
    assert world.rows(KEY) == source.at(source.ts)


def test_only_chosen_columns_are_copied(world: LakeWorld, source: SourceModel) -> None:
    source.alter(add_column(source.table, "more", "int"))
    source.commit({"id": 1, "name": "one", "more": 5})
    world.consumer().consume(source.retriever(0, source.ts, columns=["more"]))
    assert set(world.table().column_names) == {"id", "more"}
    data = source.retriever(world.committed_ts(), source.commit({"id": 2, "name": "two", "more": 6}))
    with pytest.raises(SchemaRefused, match="column name was not copied before"):
        world.consumer().consume(data)


# one writer


def test_a_commit_is_made_once(world: LakeWorld, source: SourceModel) -> None:
    first(world, source)
    data = source.retriever(source.ts, source.commit({"id": 1, "name": "x"}))
    world.consumer().consume(data)
    before = files_of(world)
    with pytest.raises(Fenced):
        world.consumer().consume(data.again())
    assert files_of(world) == before
    assert world.rows(KEY) == source.at(source.ts)


def test_an_iteration_that_was_given_up_changes_nothing(world: LakeWorld, source: SourceModel) -> None:
    first(world, source)
    zombie = world.consumer()
    zombie.committed_ts()
    late = source.retriever(source.ts, source.commit({"id": 1, "name": "late"}))
    world.consumer().consume(late.again())
    source.commit({"id": 1, "name": "later"})
    tail(world, source)
    with pytest.raises(Fenced):
        zombie.consume(late)
    assert world.rows(KEY) == source.at(source.ts)


def test_a_first_copy_that_was_given_up_changes_nothing(world: LakeWorld, source: SourceModel) -> None:
    zombie = world.consumer()
    zombie.committed_ts()
    late = source.retriever(0, source.ts)
    source.commit({"id": 1, "name": "later"})
    first(world, source)
    before = files_of(world)
    with pytest.raises(Fenced):
        zombie.consume(late)
    assert files_of(world) == before
    assert world.rows(KEY) == source.at(source.ts)


def test_a_tail_needs_its_own_copy(world: LakeWorld, source: SourceModel) -> None:
    data = source.retriever(5, source.ts)
    with pytest.raises(Fenced):
        world.consumer().consume(data)
    first(world, source)
    with pytest.raises(Fenced):
        world.consumer(job_id=2).consume(source.retriever(source.ts, source.ts + 1))


def test_a_job_that_is_registered_anew_takes_the_copy_over(world: LakeWorld, source: SourceModel) -> None:
    first(world, source)
    newer = world.consumer(job_id=2)
    assert newer.committed_ts() == 0
    source.commit(delete=[(1,)])
    newer.consume(source.retriever(0, source.ts))
    assert world.consumer(job_id=2).committed_ts() == source.ts
    assert world.consumer(job_id=1).committed_ts() == 0
    with pytest.raises(TargetDiffers, match="newer job"):
        world.consumer(job_id=1).consume(source.retriever(0, source.ts))
    assert world.rows(KEY) == source.at(source.ts)


def test_the_copy_of_another_job_is_not_overwritten(world: LakeWorld, source: SourceModel) -> None:
    first(world, source)
    with pytest.raises(Invalid, match=r"is kept by job shop.items/job; give shop.items/other a target"):
        world.consumer(job="other").consume(source.retriever(0, source.ts))


# crashes


def test_a_copy_is_made_anew_in_one_commit(world: LakeWorld, source: SourceModel) -> None:
    first(world, source)
    before = world.rows(KEY)
    source.commit(*({"id": number, "name": "anew"} for number in range(5)), delete=[(7,)])
    for steps in range(20):
        try:
            world.mortal(steps).consume(source.retriever(0, source.ts))
        except Killed:
            assert world.rows(KEY) == (before if world.committed_ts() < source.ts else source.at(source.ts))
        else:
            break
    assert steps > 3
    assert world.rows(KEY) == source.at(source.ts)


def test_what_killed_attempts_left_is_removed(world: LakeWorld, source: SourceModel) -> None:
    for steps in range(2, 4):
        with pytest.raises(Killed):
            world.mortal(steps).consume(source.retriever(0, source.ts))
    left = files_of(world)
    assert left
    first(world, source)
    assert len(files_of(world)) == 1
    assert not left & files_of(world)
    live = files_of(world)
    source.commit({"id": 1, "name": "x"})
    with pytest.raises(Killed):
        world.mortal(3).consume(source.retriever(world.committed_ts(), source.ts))
    assert len(files_of(world)) == 2
    tail(world, source)
    assert len(files_of(world)) == 2  # the live one, and that from before, for those who are reading it
    assert files_of(world) > live


def test_an_iteration_that_fails_leaves_nothing_behind(world: LakeWorld, source: SourceModel) -> None:
    first(world, source)
    before = files_of(world)
    source.commit({"id": 1, "name": "x"})
    data = source.retriever(world.committed_ts(), source.ts)

    def canceled(_: str) -> None:
        raise Aborted("canceled")

    data.fault = canceled
    with pytest.raises(Aborted):
        world.consumer().consume(data)
    again = source.retriever(0, source.ts)
    again.fault = canceled
    with pytest.raises(Aborted):
        world.consumer().consume(again)
    assert files_of(world) == before
    assert list((world.folder / "scratch").glob("*")) == []


# schemas


def changed(world: LakeWorld, source: SourceModel, table: TableInfo, more: object = 8) -> None:
    """Another schema, and a row that is written in it."""
    source.alter(table)
    source.commit({"id": 1, "name": "new", "title": "new", "more": more})
    tail(world, source)


def column(world: LakeWorld, name: str) -> dict[object, object]:
    return {row["id"]: row[name] for row in world.table().to_pylist()}


def test_an_added_column_flows(world: LakeWorld, source: SourceModel) -> None:
    first(world, source)
    changed(world, source, add_column(source.table, "more", "int"))
    assert column(world, "more") == {**dict.fromkeys(range(20)), 1: 8}


def test_an_added_column_has_its_default_in_older_rows(world: LakeWorld, source: SourceModel) -> None:
    first(world, source)
    changed(world, source, add_column(source.table, "more", "int not null default 5"))
    assert column(world, "more") == {**dict.fromkeys(range(20), 5), 1: 8}


def test_a_dropped_column_is_null_from_then_on(world: LakeWorld, source: SourceModel) -> None:
    source.alter(add_column(source.table, "more", "int"))
    source.commit({"id": 1, "name": "one", "more": 1}, {"id": 2, "name": "two", "more": 2})
    first(world, source)
    changed(world, source, drop_column(source.table, "more"))
    found = column(world, "more")
    assert (found[1], found[2]) == (None, 2)
    assert column(world, "name")[1] == "new"


def test_a_renamed_column_keeps_what_it_has(world: LakeWorld, source: SourceModel) -> None:
    first(world, source)
    columns = [replace(each, name="title") if each.name == "name" else each for each in source.table.columns]
    changed(world, source, source.table.with_columns(columns))
    assert "name" not in world.table().column_names
    assert column(world, "title") == {**{number: f"n{number}" for number in range(20)}, 1: "new"}


def test_a_column_that_comes_back_begins_anew(world: LakeWorld, source: SourceModel) -> None:
    source.alter(add_column(source.table, "more", "int"))
    source.commit({"id": 1, "name": "one", "more": 1}, {"id": 2, "name": "two", "more": 2})
    first(world, source)
    table = add_column(drop_column(source.table, "more"), "more", "varchar(9) default 'z'")
    changed(world, source, table, "8")
    assert column(world, "more") == {**dict.fromkeys(range(20), "z"), 1: "8"}


def test_a_type_becomes_a_wider_one(world: LakeWorld) -> None:
    table = define_table("items", [("id", "int primary key"), ("n", "int"), ("d", "decimal(6,2)")])
    model = SourceModel(replace(table, id=1))
    model.commit({"id": 1, "n": 5, "d": 1}, {"id": 2, "n": 6, "d": 2})
    first(world, model)
    model.alter(modify_column(modify_column(model.table, "n", "bigint"), "d", "decimal(9,3)"))
    model.commit({"id": 2, "n": 1 << 40, "d": 3})
    tail(world, model)
    assert world.rows(KEY) == model.at(model.ts)
    assert world.table().schema.field("n").type == pa.int64()
    model.alter(modify_column(model.table, "id", "bigint"))
    model.commit({"id": 1 << 40, "n": 1, "d": 3})
    tail(world, model)
    assert world.rows(KEY) == model.at(model.ts)


def test_a_schema_that_does_not_fit_stops_the_job_and_a_copy_made_anew_takes_it(
    world: LakeWorld, source: SourceModel
) -> None:
    first(world, source)
    columns = [*source.table.columns[:1], define_table("t", [("x", "int"), ("name", "date")]).columns[1]]
    source.alter(source.table.with_columns(columns))
    source.commit({"id": 77, "name": None})
    with pytest.raises(SchemaRefused, match="repair --rebuild"):
        tail(world, source)
    other = SourceModel(source.table)
    other.commit({"id": 1, "name": None})
    world.consumer().consume(other.retriever(0, other.ts))
    assert world.rows(KEY) == other.at(other.ts)
    assert world.table().schema.field("name").type == pa.date32()


# comparing


def difference(world: LakeWorld, source: SourceModel, folder: Path, data: DataRetriever) -> list[object]:
    consumer = world.consumer()
    with Comparison(consumer.expected(_rows(source, data)).schema, len(data.keys), folder) as comparison:
        comparison.expect([consumer.expected(_rows(source, data))])
        comparison.find(consumer.present(world.committed_ts()))
        return [each.counts for each in comparison.differences()]


def _rows(source: SourceModel, data: DataRetriever) -> pa.RecordBatch:
    rows = [{**dict(zip(data.keys, key, strict=True)), **row} for key, row in source.at(data.to_ts).items()]
    return pa.RecordBatch.from_pylist(rows, data.columns)


@pytest.mark.parametrize("table", [EVERY_TYPE, item_table("composite"), item_table("no key")])
def test_a_copy_can_be_compared_and_mended(world: LakeWorld, table: TableInfo, tmp_path: Path) -> None:
    model = SourceModel(replace(table, id=1))
    model.churn(random.Random(3), commits=12)
    data = model.retriever(0, model.ts)
    first(world, model)
    assert difference(world, model, tmp_path / "cmp", data) == []
    good = pa.Table.from_batches([_rows(model, data)])
    assert good.num_rows >= 4
    spoiled = world.consumer()
    spoiled.repair(_wrong(good.slice(0, 1), data.keys), good.slice(1, 1).select(list(data.keys)), model.ts)
    assert difference(world, model, tmp_path / "cmp", data) != []
    mending = world.consumer()
    mending.repair(good.slice(0, 2), good.slice(0, 0).select(list(data.keys)), model.ts)
    assert difference(world, model, tmp_path / "cmp", data) == []
    assert world.committed_ts() == model.ts


def _wrong(row: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    cells = {
        name: row.column(name) if name in keys else pa.nulls(1, row.schema.field(name).type)
        for name in row.schema.names
    }
    return pa.table(cells)


def test_a_copy_that_moved_is_neither_shown_nor_mended(world: LakeWorld, source: SourceModel) -> None:
    first(world, source)
    before = source.ts
    source.commit({"id": 1, "name": "x"})
    tail(world, source)
    nothing = source.retriever(0, source.ts).columns.empty_table()
    with pytest.raises(Fenced):
        next(world.consumer().present(before))
    with pytest.raises(Fenced):
        world.consumer().repair(nothing, nothing.select(["id"]), before)


def test_old_versions_go_after_an_hour_and_with_their_files(world: LakeWorld, source: SourceModel) -> None:
    world.consumer(history="0s").consume(source.retriever(0, source.ts))
    for number in range(3):
        source.ts = compose_ts((source.ts >> 18) + 3_600_000)
        source.commit({"id": number, "name": "x"})
        data = source.retriever(world.committed_ts(), source.ts)
        world.consumer(history="0s").consume(data)
    assert len(files_of(world)) == 1
    assert world.rows(KEY) == source.at(source.ts)


@pytest.mark.parametrize("kind", ["composite", "no key", "not clustered"])
def test_rows_are_known_by_any_kind_of_key(world: LakeWorld, kind: str) -> None:
    model = SourceModel(replace(item_table(kind), id=1))
    for data in model.iterations(random.Random(2), count=5):
        world.consumer().consume(data)
        assert rows_by_key(world.table(), key_names(model.table)) == model.at(data.to_ts)


@pytest.mark.parametrize("world", ["delta", "parquet"], indirect=True)
def test_what_a_killed_writer_has_left_half_written_goes_after_a_day(
    world: LakeWorld, source: SourceModel
) -> None:
    first(world, source)
    tail(world, source)
    half, lock = (world.folder / "lake/staging" / name for name in ("0" * 32, "lock"))
    for path in (half, lock):
        path.write_bytes(b"PAR1")
        os.utime(path, (0, 0))
    fresh = half.with_name("1" * 32)
    fresh.write_bytes(b"PAR1")
    world.consumer().table.maintain()
    assert [path.name for path in sorted(half.parent.iterdir())] == [fresh.name, "lock"]
    assert world.rows(KEY) == source.at(source.ts)
