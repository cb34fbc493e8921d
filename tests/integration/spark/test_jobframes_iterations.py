"""Iterations whose consumers take their changes as a DataFrame, beside one that takes batches."""

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from prometheus_client import REGISTRY
from pyspark.sql import SparkSession

from penstock import tracing
from penstock.jobs.consumer import Consumer, DataRetriever, DataType, read_net_changes
from penstock.jobs.iteration.spark_frame import SparkFrames
from penstock.settings import TracingSettings
from penstock.spark.labels import enter_pool
from support.jobworld import job_world
from support.tracereceiver import TraceReceiver

COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)"), ("size", "int")]

Rows = dict[int, dict[str, Any]]


def framed(rows: Rows, large: list[bool]) -> type[Consumer]:
    class Framed(Consumer):
        def consume(self, data: DataRetriever) -> None:
            assert self.job.spark() is not None
            changes = data.dataframe().toArrow().to_pylist()
            if changes:  # time may go on without any
                large.append(data.large)
            if data.data_type is DataType.SNAPSHOT:
                rows.clear()
            for row in changes:
                rows.pop(row["id"], None)
                if not row["_deleted"]:
                    rows[row["id"]] = {name: row[name] for name in data.columns.names}

    return Framed


def batched(rows: Rows) -> type[Consumer]:
    class Batched(Consumer):
        def consume(self, data: DataRetriever) -> None:
            if data.data_type is DataType.SNAPSHOT:
                rows.clear()
            net = read_net_changes(data, self.job.scratch)
            for row in net.changed_keys.to_pylist():
                rows.pop(row["id"], None)
            for row in net.upserts.select(data.columns.names).to_pylist():
                rows[row["id"]] = row

    return Batched


def in_pool(spark: SparkSession) -> Callable[[str], SparkSession]:
    def session(account: str) -> SparkSession:
        enter_pool(spark, account)
        return spark

    return session


def _persisted(spark: SparkSession) -> set[int]:
    return set(spark.sparkContext._jsc.getPersistentRDDs())


async def test_consumers_of_frames_and_of_batches_end_with_the_same_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    before = _persisted(spark)  # of other tests of this process
    frames: list[Rows] = [{}, {}]
    batches: Rows = {}
    large: list[bool] = []
    consumers = {"a": framed(frames[0], large), "b": framed(frames[1], large), "c": batched(batches)}
    async with job_world(tmp_path) as world:
        await world.create("shop.items", COLUMNS)
        await world.insert("shop.items", *({"id": each, "name": "a", "size": each} for each in range(50)))
        shared = {"job_type": "default"}
        await world.register("shop.items/a", consumer="a", trigger=shared)
        await world.register("shop.items/b", consumer="b", trigger=shared, columns=["size"])
        await world.register("shop.items/c", consumer="c", trigger=shared)
        running = world.running(
            find=consumers.__getitem__, frames=SparkFrames(lambda: spark), spark=in_pool(spark)
        )
        async with running:
            await world.until(lambda: len(frames[0]) == len(frames[1]) == len(batches) == 50)
            await world.upsert("shop.items", {"id": 1, "name": "b", "size": 7})
            await world.delete("shop.items", 2, 3)
            await world.upsert("shop.items", {"id": 1, "name": "c", "size": 8})
            await world.until(
                lambda: all(each.get(1, {}).get("size") == 8 for each in (*frames, batches)), "rows differ"
            )
            wanted = {row["id"]: row for row in (await world.rows("shop.items")).to_pylist()}
            assert frames[0] == batches == wanted
            assert frames[1] == {key: {"id": key, "size": row["size"]} for key, row in wanted.items()}
            assert all(large)
        for name in "abc":
            assert (await world.job(f"shop.items/{name}")).status.error_code == 0
    assert _persisted(spark) <= before, "a frame was not released"


async def test_what_executors_have_is_traced_as_well(spark: SparkSession, tmp_path: Path) -> None:
    rows: Rows = {}
    find = {"a": framed(rows, [])}.__getitem__
    with TraceReceiver() as receiver:
        async with job_world(tmp_path) as world:
            traced = tracing.configure(
                TracingSettings(endpoint=receiver.endpoint, sample=1.0),
                cluster_id=world.async_client.cluster_id,
                service="jobs",
            )
            with traced:
                await world.create("shop.items", COLUMNS)
                await world.insert("shop.items", {"id": 1, "name": "a", "size": 1})
                await world.register("shop.items/a", consumer="a")
                async with world.running(find=find, frames=SparkFrames(lambda: spark), spark=in_pool(spark)):
                    await world.until(lambda: len(rows) == 1)
                    commit_ts = await world.upsert(
                        "shop.items", {"id": 1, "name": "b", "size": 2}, {"id": 2, "name": "b", "size": 2}
                    )
                    trace = await world.do(receiver.wait_for, commit_ts, "job")
    (job,) = [span for span in trace if span.name == "job"]
    assert (job.attributes["penstock.job"], job.attributes["penstock.rows"]) == ("shop.items/a", 2)


def hang_once(path: str) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for tasks, of which the first never ends."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            Path(path).touch(exist_ok=False)
        except FileExistsError:
            yield from batches
        else:
            threading.Event().wait()

    return work


async def test_work_on_executors_of_which_no_task_completes_is_ended_and_retried(
    spark: SparkSession, tmp_path: Path
) -> None:
    begun, rows = tmp_path / "begun", []

    class Hanging(Consumer):
        def consume(self, data: DataRetriever) -> None:
            assert self.job.spark() is not None
            changes = data.dataframe().select("id")
            rows.extend(changes.mapInArrow(hang_once(str(begun)), "id long").toArrow().to_pylist())

    async with job_world(tmp_path, jobs={"stall_s": 2.0}) as world:
        await world.create("shop.items", COLUMNS)
        await world.insert("shop.items", {"id": 1, "name": "a", "size": 1})
        await world.register("shop.items/hang", consumer="hang")
        running = world.running(
            find=lambda _: Hanging, frames=SparkFrames(lambda: spark), spark=in_pool(spark)
        )
        before = REGISTRY.get_sample_value("penstock_jobs_stalled_total") or 0.0
        async with running:
            await world.until(lambda: bool(rows), "the iteration is not ended, or not retried")
        assert (REGISTRY.get_sample_value("penstock_jobs_stalled_total") or 0.0) > before
        assert not spark.sparkContext.statusTracker().getActiveJobsIds(), "the job of the hanging task runs"
