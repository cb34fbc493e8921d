"""A cluster of two hosts that grows, shrinks and repeats slow tasks, over an event store on S3."""

import random  # noqa: TID251 - seeded
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.object_storage import StorageRef
from penstock.spark.bulk import load_snapshot
from penstock.spark.tasks import run_on_executors
from penstock.testing.consumers import SourceModel
from penstock.verify.event_store import verify_table
from support.campaign import length
from support.gate import Gate, GatedStorage
from support.indexworld import IndexWorld
from support.itemtables import item_table
from support.lakeworld import LakeWorld, as_copied
from support.loadedworld import DEADLINE_S, LoadedWorld, until
from support.s3server import S3Server
from support.spark import shared_session, stop_session
from support.sparkcluster import SparkCluster
from support.warmstore import WarmStore

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(length(0, 1) == 0, reason="`make soak` runs it: a cluster of its own takes its time"),
]

ELASTIC = {
    "spark.decommission.enabled": "true",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "2s",
    "spark.speculation": "true",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
    "spark.storage.decommission.enabled": "true",
}


@pytest.fixture(scope="module")
def elastic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    # Two hosts: Spark does not repeat a slow task on the host where it runs.
    with SparkCluster(tmp_path_factory.mktemp("elastic"), conf=ELASTIC, hosts=2) as running:
        yield running
        stop_session()


@pytest.fixture(scope="module")
def world(
    elastic: SparkCluster, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoadedWorld]:
    """A table that executors loaded to S3, with changes."""
    spark = shared_session(elastic.settings())
    folder = tmp_path_factory.mktemp("world")
    bucket = s3_server.bucket()
    with WarmStore.start(folder / "store") as store:
        events = StorageRef(f"{bucket.url}/events", bucket.options)
        made = LoadedWorld(spark, folder, store.pd_addr, events=events)
        made.change()
        yield made
        made.close()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    (tmp_path / "gate").mkdir()
    return Gate(tmp_path / "gate")


def in_order(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted(frame.toArrow().to_pylist(), key=lambda row: row["id"])


def test_executors_come_with_work_read_s3_and_go_when_there_is_none(
    elastic: SparkCluster, world: LoadedWorld, gate: Gate
):
    until(lambda: not elastic.executors(), "idle executors stay")
    frame = world.frame(partitionBytes=1)
    assert frame.rdd.getNumPartitions() >= 2
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(lambda: in_order(frame.mapInArrow(gate.batches, frame.schema)))
        try:
            until(lambda: len(elastic.executors()) == 2, "the cluster does not grow")
            until(lambda: len(gate.waiting()) == 2, "only one executor works")
        finally:
            gate.open()
        assert job.result(timeout=DEADLINE_S) == world.rows()
    until(lambda: not elastic.executors(), "the cluster does not shrink")


def test_a_load_has_every_row_once_when_spark_repeats_a_slow_task(
    world: LoadedWorld, gate: Gate, monkeypatch: pytest.MonkeyPatch
):
    slow = replace(gate, first_only=True)
    storage = GatedStorage(world.events.url, world.events.options, gate=slow, after="write")

    def gated(spark: SparkSession, tasks: Sequence[Any], **more: Any) -> Any:
        return run_on_executors(spark, [replace(task, storage=storage) for task in tasks], **more)

    monkeypatch.setattr("penstock.spark.bulk.run_on_executors", gated)
    table_id = world.create("shop.repeated")
    try:
        report = load_snapshot(world.spark, world.settings, "shop.repeated")
        assert len(slow.waiting()) == 1, "the first try came to its end"
    finally:
        gate.open()
    assert (report.ranges, report.rows) == (2, 200)
    assert len(world.list_stored(table_id)) == 3, "one range was written twice"
    verified = verify_table(world.spark, world.settings, "shop.repeated")
    assert (verified.same, verified.rows) == (True, 200)


def test_reads_go_on_while_executors_are_killed_and_workers_leave(
    elastic: SparkCluster, world: LoadedWorld, tmp_path: Path
):
    leaving = "worker-1"
    for step in range(length(1, 4)):
        (tmp_path / str(step)).mkdir()
        gate = Gate(tmp_path / str(step))
        frame = world.frame(partitionBytes=1)
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(lambda: in_order(frame.mapInArrow(gate.batches, frame.schema)))  # noqa: B023 - awaited here
            try:
                until(lambda: len(gate.waiting()) >= 2, "no two executors work")  # noqa: B023
                assert len(elastic.executors_of(leaving)) == 1
                elastic.kill_executor(of=gate.waiting()[0])
                elastic.decommission(leaving)
            finally:
                gate.open()
            assert job.result(timeout=DEADLINE_S) == world.rows()
        until(lambda: not elastic.executors_of(leaving), "a worker that leaves keeps executors")  # noqa: B023
        assert in_order(world.frame(partitionBytes=1)) == world.rows()
        assert not elastic.executors_of(leaving)
        leaving = elastic.add_worker()


def test_executors_write_lake_tables_and_indexes(world: LoadedWorld, tmp_path: Path):
    model = SourceModel(item_table())
    model.churn(random.Random(1), commits=30, numbers=100)
    copy = LakeWorld("delta", tmp_path / "lake", spark=world.spark)
    copy.consumer().consume(model.retriever(0, model.ts, large=True, spark=world.spark))
    assert copy.rows(("id",)) == as_copied(model.at(model.ts))
    copy.close()
    index = IndexWorld(
        tmp_path / "index", "fulltext", item_table(), {"text_columns": "name"}, spark=world.spark
    )
    index.source.churn(random.Random(2), commits=30, numbers=100)
    index.catch_up(large=True)
    assert index.verifier().verify().same
