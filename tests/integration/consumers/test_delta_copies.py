"""Delta tables beside what others do with them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Schema, TableFeatures, Transaction, write_deltalake

from penstock.errors import Fenced, Invalid, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.alter import add_column
from penstock.tables.define import define_table
from penstock.testing.consumers import SourceModel
from support.itemtables import item_table
from support.lakeworld import LakeWorld

KEY = ("id",)
ITEM_COLUMNS = [("id", "bigint primary key"), ("name", "varchar(200)")]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LakeWorld]:
    made = LakeWorld("delta", tmp_path)
    yield made
    made.close()


@pytest.fixture
def source() -> SourceModel:
    model = SourceModel(replace(item_table("integer"), id=1))
    model.commit(*({"id": number, "name": f"n{number}"} for number in range(20)))
    return model


def table(world: LakeWorld) -> DeltaTable:
    return DeltaTable(world.options["uri"])


def test_a_table_of_somebody_else_is_refused(world: LakeWorld, source: SourceModel) -> None:
    write_deltalake(world.options["uri"], pa.table({"id": [1]}))
    with pytest.raises(Invalid, match="is not Penstock's; give the job a place of its own"):
        world.committed_ts()
    with pytest.raises(Invalid, match="is not Penstock's"):
        world.consumer().consume(source.retriever(0, source.ts))
    assert table(world).to_pyarrow_table().to_pylist() == [{"id": 1}]


def test_a_directory_with_files_of_somebody_else_is_refused(world: LakeWorld, source: SourceModel) -> None:
    folder = world.folder / "lake"
    folder.mkdir()
    pq.write_table(pa.table({"id": [1]}), folder / "mine.parquet")
    with pytest.raises(Invalid, match="has files that are not Penstock's"):
        world.consumer().consume(source.retriever(0, source.ts))


def test_a_column_that_delta_cannot_have_is_left_out(tmp_path: Path) -> None:
    model = SourceModel(replace(define_table("items", [*ITEM_COLUMNS, ("a b", "int")]), id=1))
    model.commit({"id": 1, "name": "one", "a b": 1})
    world = LakeWorld("delta", tmp_path, columns=("name",))
    begin = 0
    for row in ({"id": 2, "name": "two", "a b": 2}, {"id": 1, "name": "uno", "a b": 3}):
        world.consumer().check(SchemaVersion(0, 1, model.table, "shop"))
        world.consumer().consume(model.retriever(begin, model.ts, columns=("name",)))
        begin = model.ts
        model.commit(row)
    world.consumer().consume(model.retriever(begin, model.ts, columns=("name",)))
    assert {row["id"]: row for row in table(world).to_pyarrow_table().to_pylist()} == {
        1: {"id": 1, "name": "uno"},
        2: {"id": 2, "name": "two"},
    }
    world.close()


def test_each_commit_says_whose_it_is_and_up_to_when(world: LakeWorld, source: SourceModel) -> None:
    world.consumer().consume(source.retriever(0, source.ts))
    last = table(world).history(1)[0]
    assert last["penstock.job"] == "shop.items/job"
    assert last["penstock.watermark"] == str(source.ts)
    assert table(world).metadata().description == "Copy that Penstock keeps for job shop.items/job"


def test_others_may_compact_the_table_between_commits(world: LakeWorld, source: SourceModel) -> None:
    world.consumer().consume(source.retriever(0, source.ts))
    for number in (100, 200, 300):
        begin = source.ts
        source.commit({"id": number, "name": "x"})
        world.consumer().consume(source.retriever(begin, source.ts))
        table(world).optimize.compact()
        table(world).create_checkpoint()
    assert world.rows(KEY) == source.at(source.ts)
    assert world.committed_ts() == source.ts


def test_a_commit_of_others_meanwhile_makes_it_try_again(world: LakeWorld, source: SourceModel) -> None:
    world.consumer().consume(source.retriever(0, source.ts))
    slow = world.consumer()
    slow.committed_ts()
    table(world).alter.set_table_description("mine now")
    begin = source.ts
    data = source.retriever(begin, source.commit({"id": 1, "name": "x"}))
    with pytest.raises(Unavailable, match="by another writer"):
        slow.consume(data)
    world.consumer().consume(data.again())
    assert world.rows(KEY) == source.at(source.ts)


@pytest.mark.parametrize("whole", [False, True], ids=["a tail", "a new copy"])
def test_nothing_is_put_on_top_of_rows_that_nobody_looked_at(
    world: LakeWorld, source: SourceModel, whole: bool
) -> None:
    """An append of somebody else conflicts with nothing by Delta's rules: only the version tells."""
    world.consumer().consume(source.retriever(0, source.ts))
    slow = world.consumer()
    begin = slow.committed_ts()
    theirs = pa.table({"id": [1], "name": ["theirs"]}, schema=world.table().schema)
    write_deltalake(world.options["uri"], theirs, mode="append")
    known = table(world).version()
    data = source.retriever(0 if whole else begin, source.commit({"id": 1, "name": "x"}))
    with pytest.raises(Unavailable, match="by another writer; try again"):
        slow.consume(data)
    assert table(world).version() == known
    world.consumer().consume(data.again())
    assert world.rows(KEY) == source.at(source.ts)  # each key once


def test_columns_that_others_add_stay(world: LakeWorld, source: SourceModel) -> None:
    world.consumer().consume(source.retriever(0, source.ts))
    theirs = Schema.from_arrow(pa.schema([("theirs", pa.string())])).fields
    table(world).alter.add_columns(theirs)
    begin = source.ts
    source.commit({"id": 1, "name": "x"})
    world.consumer().consume(source.retriever(begin, source.ts))
    assert world.table().schema.names == ["id", "name", "theirs"]
    assert {row["id"]: row["name"] for row in world.table().to_pylist()}[1] == "x"


def test_what_would_change_the_meaning_of_files_is_refused(world: LakeWorld, source: SourceModel) -> None:
    world.consumer().consume(source.retriever(0, source.ts))
    table(world).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    assert world.committed_ts() == source.ts  # as long as there are no such vectors
    table(world).alter.add_feature(TableFeatures.ColumnMapping, allow_protocol_versions_increase=True)
    with pytest.raises(Invalid, match="columnMapping, which a copy cannot have"):
        world.committed_ts()


def test_a_local_time_that_comes_later_is_declared(world: LakeWorld, source: SourceModel) -> None:
    world.consumer().consume(source.retriever(0, source.ts))
    begin = source.ts
    source.alter(add_column(source.table, "at", "datetime default '2026-01-02 03:04:05'"))
    source.commit({"id": 500, "name": "new", "at": None})
    world.consumer().consume(source.retriever(begin, source.ts))
    assert "timestampNtz" in (table(world).protocol().reader_features or ())
    assert world.table().num_rows == 21


def test_a_watermark_that_others_set_back_is_seen(world: LakeWorld, source: SourceModel) -> None:
    world.consumer().consume(source.retriever(0, source.ts))
    other = CommitProperties(app_transactions=[Transaction("penstock/watermark", 7)])
    table(world).create_write_transaction([], "append", table(world).schema(), commit_properties=other)
    assert world.committed_ts() == 7
    with pytest.raises(Fenced):
        world.consumer().consume(source.retriever(source.ts, source.ts + 2))


def test_names_that_delta_cannot_have_are_refused_when_the_job_is_registered(world: LakeWorld) -> None:
    named = define_table("items", [("id", "int primary key"), ("a b", "int")])
    with pytest.raises(Invalid, match=r"'a b' of shop\.items"):
        world.consumer().check(SchemaVersion(1, 1, named, "shop"))


def test_commits_read_no_older_than_the_last_checkpoint(world: LakeWorld, source: SourceModel) -> None:
    world.consumer().consume(source.retriever(0, source.ts))
    for number in range(101):
        begin = source.ts
        source.commit({"id": number % 7, "name": str(number)})
        world.consumer().consume(source.retriever(begin, source.ts))
    checkpoints = list((world.folder / "lake" / "_delta_log").glob("*.checkpoint.parquet"))
    assert checkpoints
    assert world.rows(KEY) == source.at(source.ts)
