"""Large ranges: executors make the rows of indexes and write them, the driver commits."""

import random  # noqa: TID251 - seeded
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.errors import Fenced, Invalid
from penstock.tables.define import define_table
from penstock.tables.schema import TableInfo
from penstock.testing.consumers import rows_by_key
from support.everytype import EVERY_TYPE
from support.indexworld import IndexWorld
from support.spark import local_settings, shared_session

ITEMS = define_table(
    "items",
    [("a", "varchar(9)"), ("n", "int"), ("name", "text"), ("v", "vector(3)"), ("took", "time")],
    primary_key=["n", "a"],
)


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return shared_session(local_settings())


@pytest.mark.parametrize(
    ("table", "column"), [(ITEMS, "name"), (EVERY_TYPE, "doc")], ids=["pair", "every type"]
)
def test_a_fulltext_index_made_on_executors_is_the_one_made_here(
    tmp_path: Path, spark: SparkSession, table: TableInfo, column: str
) -> None:
    world = IndexWorld(tmp_path, "fulltext", table, {"text_columns": column}, spark=spark)
    mix = random.Random(3)
    for _ in range(2):
        world.source.churn(mix, commits=30)
        world.catch_up(large=True)
        shown = world.rows().drop_columns(["_terms"])
        assert rows_by_key(shown, world.changes().keys) == world.source.at(world.source.ts)
        assert world.verifier().verify().same
    word = "river" if column == "name" else "n"
    wanted = [row for row in world.source.at(world.source.ts).values() if word in (row[column] or "")]
    assert world.search(word, k=1000).rows.num_rows == len(wanted) > 0


def test_vectors_made_on_executors_are_those_made_here_and_earlier_ones_are_kept(
    tmp_path: Path, spark: SparkSession
) -> None:
    options = {
        "text_columns": "name",
        "embedding": "support.indexfunctions:embedded",
        "dimension": "2",
    }
    world = IndexWorld(tmp_path, "vector", ITEMS, options, spark=spark)
    mix = random.Random(3)
    world.source.churn(mix, commits=30)
    world.catch_up(large=True)
    assert world.verifier().verify().same
    # Where the text has not changed, the embedding is not asked: one that always fails does not matter.
    rows = [{**row, "took": None} for row in world.source.at(world.source.ts).values()]
    world.source.commit(*rows)
    table = world.consumer().table
    before = table.latest()
    assert before is not None
    world.options["embedding"] = "support.indexfunctions:wrong"
    recipe = before.marker.recipe.replace(":embedded", ":wrong")
    table.change(before, None, lambda marker, _: replace(marker, recipe=recipe))
    world.catch_up(large=True)
    assert world.rows().column("took").null_count == world.rows().num_rows
    world.source.commit({**rows[0], "name": "another text"})
    with pytest.raises(Invalid, match="other than 2 dimensions"):
        world.catch_up(large=True)


def test_a_vector_that_is_wrong_is_a_permanent_error_from_executors_too(
    tmp_path: Path, spark: SparkSession
) -> None:
    world = IndexWorld(tmp_path, "vector", ITEMS, {"vector_column": "v"}, spark=spark)
    world.source.commit({"a": "x", "n": 1, "name": "secret", "v": [1, 2], "took": None})
    with pytest.raises(Invalid, match="column v has a vector of other than 3") as refused:
        world.catch_up(large=True)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_relative_place_is_the_drivers_on_executors_too(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.chdir(tmp_path)  # workers stay in the folder that the session was started in
    world = IndexWorld(
        tmp_path, "fulltext", ITEMS, {"text_columns": "name", "uri": f"{scheme}some/index"}, spark=spark
    )
    for seed in (1, 2):
        world.source.churn(random.Random(seed), commits=20)
        world.catch_up(large=True)
    monkeypatch.chdir(tmp_path.parent)
    world.options["uri"] = str(tmp_path / "some" / "index")
    assert world.verifier().verify().same
    assert not list((tmp_path / "some" / "index").glob("_penstock-probe-*"))


def test_a_folder_that_executors_do_not_see_is_refused(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {
        "text_columns": "name",
        "uri": f"/proc/self/cwd/{tmp_path.name}",
    }  # another one in each process
    world = IndexWorld(tmp_path, "fulltext", ITEMS, options, spark=spark)
    world.source.churn(random.Random(1), commits=20)
    with pytest.raises(Invalid, match="executors do not see the folder"):
        world.catch_up(large=True)
    assert world.consumer().table.latest() is None


def test_a_large_range_that_was_overtaken_is_fenced(tmp_path: Path, spark: SparkSession) -> None:
    world = IndexWorld(tmp_path, "fulltext", ITEMS, {"text_columns": "name"}, spark=spark)
    world.source.churn(random.Random(1), commits=20)
    world.catch_up()
    world.source.churn(random.Random(2), commits=20)
    given_up = world.changes(large=True)
    given_up.fault = lambda _: world.catch_up() if world.consumer().committed_ts() != given_up.to_ts else None
    with pytest.raises(Fenced):
        world.consumer().consume(given_up)
    assert world.verifier().verify().same
