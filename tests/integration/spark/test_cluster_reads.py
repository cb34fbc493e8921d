"""Loading, reading, streaming and merging on a standalone cluster, also when an executor dies."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock import eventloop
from penstock.clock import SYSTEM
from penstock.eventstore.capture import Capture
from penstock.kv.clusterref import ClusterRef
from penstock.settings import Settings
from penstock.spark import register
from penstock.spark.loading import load_snapshot
from penstock.spark.merging import merge_table
from penstock.tables import Catalog
from penstock.tables.keys import record_key
from penstock.testing.sparkcluster import SparkCluster, is_alive
from penstock.testing.store import Admin, StoreProcess

pytestmark = pytest.mark.timeout(300)

DEADLINE_S = 120
NAME = "shop.orders"
ORDERS = [("id", "bigint primary key"), ("customer", "varchar(64)")]


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = SYSTEM.monotonic() + DEADLINE_S
    while not holds():
        assert SYSTEM.monotonic() < deadline, what
        SYSTEM.pause(0.05)


class World:
    """A table of two regions that executors loaded, and the capture that goes on from there."""

    def __init__(self, spark: SparkSession, folder: Path, pd_addr: str) -> None:
        self.settings = Settings.model_validate(
            {
                "pd_addrs": [pd_addr],
                "capture": {
                    "data": str(folder / "capture"),
                    "storage": f"file://{folder}/events",
                    "flight_addr": "127.0.0.1:0",
                    "flush_interval_s": 0.3,
                    "upkeep": {"merge": False},
                },
            }
        )
        self.folder = folder
        self.cluster = ClusterRef.of(self.settings)
        self.db = Catalog(self.cluster.client())
        self.db.create_database("shop")
        self.table_id = self.db.create_table(NAME, ORDERS).id
        self.orders = self.db.table(NAME)
        self.orders.insert([{"id": number, "customer": f"c{number}"} for number in range(200)])
        eventloop.run(self._split(pd_addr))
        self.load = load_snapshot(spark, self.settings, NAME)
        self.capture = eventloop.run(Capture.start(self.settings))
        register(spark, self.settings)
        self.spark = spark

    async def _split(self, pd_addr: str) -> None:
        admin = Admin(pd_addr)
        await admin.split([record_key(self.table_id, 100)])
        await admin.close()

    def close(self) -> None:
        eventloop.run(self.capture.stop(flush=False))
        self.cluster.close()

    def change(self) -> None:
        """Change some rows, and wait until that can be read."""
        self.orders.update([{"id": 1, "customer": "changed"}])
        self.orders.delete([2])
        self.orders.insert([{"id": 1000, "customer": "new"}])
        self.catch_up()

    def catch_up(self) -> None:
        now = self.cluster.client().timestamp()
        until(lambda: self.capture.store.readable_ts(self.table_id) >= now, "the capture does not catch up")

    def frame(self, **options: Any) -> DataFrame:
        return self.spark.read.format("penstock").options(table=NAME, **options).load()

    def feed(self, **options: Any) -> DataFrame:
        return self.frame(readChangeFeed=True, startingVersion=self.load.ts + 1, **options)

    def rows(self) -> list[dict[str, Any]]:
        return self.orders.to_arrow().to_pylist()


@pytest.fixture(scope="module")
def world(cluster_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("reads")
    with StoreProcess.start(folder / "store") as store:
        made = World(cluster_spark, folder, store.pd_addr)
        made.change()
        yield made
        made.close()


def in_order(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted(frame.toArrow().to_pylist(), key=lambda row: (row["id"], row.get("_change_type", "")))


def test_executors_load_and_read_a_table_and_its_changes(world: World):
    assert (world.load.rows, world.load.ranges) == (200, 2)
    assert in_order(world.frame()) == world.rows()
    changes = in_order(world.feed().select("id", "customer", "_change_type"))
    assert [tuple(each.values()) for each in changes] == [
        (1, "changed", "update_postimage"),
        (1, "c1", "update_preimage"),
        (2, "c2", "delete"),
        (1000, "new", "insert"),
    ]


def test_a_read_is_the_same_when_an_executor_dies_in_the_middle(
    cluster: SparkCluster, world: World, tmp_path: Path
):
    folder = str(tmp_path)

    def held(batches):
        from pathlib import Path

        from penstock.clock import SYSTEM

        for batch in batches:
            Path(folder, SYSTEM.unique_id()).touch()
            deadline = SYSTEM.monotonic() + 120
            while not Path(folder, "go").exists() and SYSTEM.monotonic() < deadline:
                SYSTEM.pause(0.05)
            yield batch

    frame = world.frame(partitionBytes=1)
    until(lambda: len(cluster.executors()) == 2, "two executors did not start")
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(lambda: in_order(frame.mapInArrow(held, frame.schema)))
        until(lambda: len(list(tmp_path.iterdir())) >= 2, "no two parts are being read")
        victim = cluster.kill_executor()
        until(lambda: not is_alive(victim), "the executor lives on")
        (tmp_path / "go").touch()
        assert job.result(timeout=DEADLINE_S) == world.rows()


def test_a_stream_gives_the_rows_then_the_changes(world: World, tmp_path: Path):
    batches: list[list[dict[str, Any]]] = []

    def run() -> None:
        frame = world.spark.readStream.format("penstock").options(table=NAME, readChangeFeed=True).load()
        writer = frame.writeStream.foreachBatch(lambda batch, _: batches.append(in_order(batch)))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(DEADLINE_S), "the stream does not end"

    before = world.rows()
    run()
    world.orders.update([{"id": 7, "customer": "streamed"}])
    world.catch_up()
    run()
    assert [{"id": each["id"], "customer": each["customer"]} for each in batches[0]] == before
    assert {each["_change_type"] for each in batches[0]} == {"insert"}
    assert [(each["_change_type"], each["customer"]) for each in batches[-1]] == [
        ("update_postimage", "streamed"),
        ("update_preimage", "c7"),
    ]


def test_executors_merge_what_they_loaded(world: World):
    for number in range(12):
        world.orders.insert([{"id": 2000 + number, "customer": "more"}])
        world.catch_up()
        flushed = world.capture.store.readable_ts(world.table_id)
        until(
            lambda ts=flushed: world.capture.store.ownership(world.table_id).state.flushed_ts >= ts,
            "the capture does not flush",
        )
    objects = len(world.capture.store.ownership(world.table_id).state.visible("data", 1 << 62))
    report = merge_table(world.spark, world.settings, NAME)
    state = world.capture.store.ownership(world.table_id).state
    assert report.merges
    assert len(state.visible("data", 1 << 62)) < objects
    assert in_order(world.frame()) == world.rows()
