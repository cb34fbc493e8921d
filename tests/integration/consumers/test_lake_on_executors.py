"""Large first copies: executors write the files, the driver commits them."""

import random  # noqa: TID251 - seeded
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.consumers.lake.parquet import live_files
from penstock.errors import Invalid
from penstock.tables.define import define_table
from penstock.testing.consumers import SourceModel, rows_by_key
from support.everytype import EVERY_TYPE
from support.lakeworld import FORMATS, LakeWorld, as_copied
from support.spark import local_settings, shared_session, stop_session

TEXTS = define_table("items", [("id", "bigint primary key"), ("name", "varchar(99)")])


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield shared_session(local_settings())
    stop_session()


@pytest.fixture
def small_partitions(spark: SparkSession) -> Iterator[None]:
    """As there are when there is much in them."""
    spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
    yield
    spark.conf.unset("spark.sql.adaptive.coalescePartitions.enabled")


@pytest.fixture(params=sorted(FORMATS))
def world(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> Iterator[LakeWorld]:
    made = LakeWorld(request.param, tmp_path, spark=spark)
    yield made
    made.close()


@pytest.mark.usefixtures("small_partitions")
def test_executors_write_a_large_copy_and_tails_go_on(world: LakeWorld, spark: SparkSession) -> None:
    model = SourceModel(replace(EVERY_TYPE, id=1))
    model.churn(random.Random(4), commits=60, numbers=200)
    world.consumer().consume(model.retriever(0, model.ts, large=True, spark=spark))
    found = world.rows(("id",))
    assert len(found) > 30
    assert found == as_copied(model.at(model.ts))
    files = [path for path in (world.folder / "lake").rglob("*.parquet") if "_delta_log" not in str(path)]
    consumer = world.consumer()
    version = consumer.table.latest()
    assert version is not None
    bounds = sorted((each.lowest, each.highest) for each in consumer.table.files(version))
    assert len(bounds) == len(files) == 2  # one of each partition
    assert bounds[0][1] < bounds[1][0]
    begin = model.ts
    model.churn(random.Random(5), commits=20, numbers=200)
    world.consumer().consume(model.retriever(begin, model.ts))
    assert world.rows(("id",)) == as_copied(model.at(model.ts))


def test_a_table_without_a_key_is_written_too(world: LakeWorld, spark: SparkSession) -> None:
    model = SourceModel(replace(define_table("items", [("name", "varchar(99)"), ("v", "vector(4)")]), id=1))
    model.churn(random.Random(4), commits=30)
    world.consumer().consume(model.retriever(0, model.ts, large=True, spark=spark))
    assert rows_by_key(world.table(), ("_handle",)) == model.at(model.ts)


def test_spark_reads_the_files_of_a_copy(tmp_path: Path, spark: SparkSession) -> None:
    world = LakeWorld("parquet", tmp_path)
    model = SourceModel(replace(EVERY_TYPE, id=1))
    for data in model.iterations(random.Random(9), count=4, commits=20):
        world.consumer().consume(data)
    _, files = live_files(world.options["uri"])
    read = spark.read.parquet(*files)
    assert rows_by_key(read.toArrow(), ("id",)) == as_copied(model.at(model.ts))
    world.close()


def test_a_relative_place_is_the_drivers_on_executors_too(
    world: LakeWorld, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.folder)  # workers stay in the folder that the session was started in
    model = SourceModel(TEXTS)
    model.churn(random.Random(4), commits=20)
    place = "catalog.warehouse" if world.format == "iceberg" else "uri"
    consumer = world.consumer(**{place: "lake"})
    consumer.consume(model.retriever(0, model.ts, large=True, spark=spark))
    monkeypatch.chdir(world.folder.parent)
    assert world.rows(("id",)) == model.at(model.ts)


def test_a_folder_that_executors_do_not_see_is_refused(
    world: LakeWorld, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = Path.cwd() / world.folder.name  # which workers make when they look
    monkeypatch.chdir(world.folder)
    model = SourceModel(TEXTS)
    model.churn(random.Random(4), commits=20)
    place = "catalog.warehouse" if world.format == "iceberg" else "uri"
    elsewhere = f"file:///proc/self/cwd/{world.folder.name}"  # another one in each process
    consumer = world.consumer(**{place: elsewhere})
    try:
        with pytest.raises(Invalid, match="executors do not see the folder"):
            consumer.consume(model.retriever(0, model.ts, large=True, spark=spark))
        assert not list(theirs.rglob("*.parquet")), "nothing is written there"
    finally:
        shutil.rmtree(theirs, ignore_errors=True)
    assert consumer.table.latest() is None
    assert not list(world.folder.rglob("*-0.parquet")), "what shows it is removed"
