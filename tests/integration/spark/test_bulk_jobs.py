"""Reads from the key-value store, loads, merges and verification on a Spark session, against a real store."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from penstock import eventloop
from penstock.clock import SYSTEM
from penstock.control.bulk import compare_table, open_engine
from penstock.errors import Invalid, Unavailable
from penstock.eventstore import manifest_log, paths
from penstock.eventstore.capture.capture import Capture
from penstock.eventstore.manifest import Removal
from penstock.eventstore.manifest_log import ManifestLog
from penstock.eventstore.upkeep.load import RangeTask, find_plan
from penstock.kv.cluster_ref import ClusterRef
from penstock.object_storage import StorageRef
from penstock.settings import KvSettings, Settings
from penstock.spark.bulk import load_snapshot, load_table, merge_table
from penstock.spark.errors import translate_spark_errors
from penstock.spark.tasks import run_on_executors
from penstock.tables import Catalog
from penstock.tables.keys import encode_handle, record_key
from penstock.testing.store import Admin
from penstock.verify.event_store import Difference, verify_table
from support.warmstore import WarmStore

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors do not have the tests

ORDERS = [("id", "bigint primary key"), ("customer", "varchar(64)"), ("total", "decimal(12,2)")]
EVERY_TYPE = [
    ("id", "bigint primary key"),
    ("tiny", "tinyint"),
    ("big", "bigint unsigned"),
    ("real_", "double"),
    ("price", "decimal(12,2)"),
    ("day", "date"),
    ("at", "datetime(6)"),
    ("utc", "timestamp(3)"),
    ("span", "time"),
    ("text_", "varchar(20)"),
    ("raw", "varbinary(20)"),
    ("doc", "json"),
    ("choice", "enum('a','b')"),
]
EVERY_ROW: dict[str, Any] = {
    "id": -5,
    "tiny": -1,
    "big": (1 << 64) - 1,
    "real_": 0.25,
    "price": Decimal("12.50"),
    "day": date(2026, 2, 28),
    "at": datetime(2026, 2, 28, 1, 2, 3, 4),
    "utc": datetime(2026, 2, 28, 1, 2, 3, tzinfo=UTC),
    "span": timedelta(hours=-1),
    "text_": "ü",
    "raw": b"\x00\xff",
    "doc": {"a": 1},
    "choice": "b",
}


class World:
    """A store with a table of four regions, and an event store that is empty at first."""

    def __init__(self, folder: Path, store: WarmStore) -> None:
        self.folder = folder
        self.tree = {
            "pd_addrs": [store.pd_addr],
            "capture": {
                "data": str(folder / "capture"),
                "storage": f"file://{folder}/events",
                "flight_addr": "127.0.0.1:0",
                "flush_interval_s": 0.3,
                "upkeep": {"merge": False},
            },
        }
        self.settings = Settings.model_validate(self.tree)
        self.cluster = ClusterRef.of(self.settings)
        self.db = Catalog(self.cluster.client())
        self.storage = StorageRef(self.settings.capture.storage).open()
        self.store = store

    def table(self, name: str, rows: int = 400, cuts: Sequence[int] = (100, 200, 300)) -> int:
        table_id = self.db.create_table(f"shop.{name}", ORDERS).id
        given = [{"id": n, "customer": f"c{n}", "total": Decimal(n) / 4} for n in range(rows)]
        self.db.table(f"shop.{name}").insert(given)
        self.split(table_id, cuts)
        return table_id

    def split(self, table_id: int, cuts: Sequence[int]) -> None:
        async def cut() -> None:
            admin = Admin(self.store.pd_addr)
            await admin.split([record_key(table_id, n) for n in cuts])
            await admin.close()

        eventloop.run(cut())

    def read(self, spark: SparkSession, name: str, **options: Any) -> DataFrame:
        reader = spark.read.format("penstock").option("from", "kv").option("table", f"shop.{name}")
        return reader.options(pdAddrs=self.store.pd_addr, **options).load()

    def rows(self, name: str, **options: Any) -> list[dict[str, Any]]:
        return self.db.table(f"shop.{name}").to_arrow(**options).to_pylist()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("bulk")
    with WarmStore.start(folder / "store", stores=2) as store:
        made = World(folder, store)
        made.db.create_database("shop")
        yield made
        made.cluster.close()


def in_order(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted(frame.toArrow().to_pylist(), key=lambda row: row["id"])


def until(holds: Any) -> None:
    deadline = SYSTEM.monotonic() + 60
    while not holds():
        assert SYSTEM.monotonic() < deadline, "it did not happen"
        SYSTEM.pause(0.05)


def test_a_table_read_from_the_kv_store_is_what_a_scan_gives(spark: SparkSession, world: World) -> None:
    world.db.create_table("shop.types", EVERY_TYPE)
    world.db.table("shop.types").insert([EVERY_ROW, {"id": 7}])
    frame = world.read(spark, "types")
    expected = world.db.table("shop.types").to_arrow()
    found = frame.toArrow().sort_by("id")
    assert found.column_names == expected.column_names
    assert found.cast(expected.schema).equals(expected)
    kinds = dict(frame.dtypes)
    assert (kinds["at"], kinds["utc"], kinds["big"]) == ("timestamp_ntz", "timestamp", "decimal(20,0)")


def test_ranges_are_planned_by_region_and_survive_splits(spark: SparkSession, world: World) -> None:
    table_id = world.table("ranges")
    frame = world.read(spark, "ranges")
    world.db.table("shop.ranges").delete([5])
    world.split(table_id, [50, 350])
    assert frame.rdd.getNumPartitions() == 6
    assert [row["id"] for row in in_order(frame)] == list(range(400)), "the timestamp is that of the schema"
    part = world.read(spark, "ranges", columns="total,id", rangeFrom=120, rangeTo=180)
    assert part.rdd.getNumPartitions() == 1
    assert in_order(part) == [{"total": Decimal(n) / 4, "id": n} for n in range(120, 180)]
    reader = spark.read.format("penstock").options(pdAddrs=world.store.pd_addr, table="shop.ranges")
    given = reader.option("from", "kv").option("rangeTo", 3)
    assert in_order(given.schema("total decimal(12,2), id long").load())[2] == {
        "total": Decimal("0.50"),
        "id": 2,
    }
    with (
        pytest.raises(Invalid, match=r"column id of shop\.ranges is bigint, not string"),
        translate_spark_errors(),
    ):
        given.schema("id string").load().count()
    before = frame.select("id").count()
    assert (before, world.read(spark, "ranges", columns="id").count()) == (400, 399)


def test_what_people_get_wrong_is_one_line(spark: SparkSession, world: World) -> None:
    world.table("errors", rows=1, cuts=())
    future = world.cluster.client().timestamp() + (3600_000 << 18)
    for options, kind, words in (
        ({"name": "error"}, Invalid, r"there is no table 'shop\.error'; there are "),
        ({"name": "errors", "versionAsOf": future}, Invalid, "is in the future"),
        (
            {"name": "errors", "columns": "nothing"},
            Invalid,
            "no column 'nothing'; it has id, customer, total",
        ),
        ({"name": "errors", "rangeFrom": 1 << 70}, Invalid, "does not fit 64 bits"),
    ):
        with pytest.raises(kind, match=words) as failure, translate_spark_errors():
            world.read(spark, **options).count()
        assert "\n" not in str(failure.value)


def test_a_placement_driver_that_executors_cannot_reach_is_named(spark: SparkSession, world: World) -> None:
    table_id = world.table("unreached", rows=1, cuts=())
    away = ClusterRef(("127.0.0.1:1",), kv=KvSettings(pd_timeout_ms=500))

    def from_nowhere(tasks: Sequence[RangeTask]) -> None:
        run_on_executors(spark, [replace(task, cluster=away) for task in tasks])

    with pytest.raises(Unavailable, match=r"no placement driver answers \(127\.0\.0\.1:1.*check pd_addrs"):
        load_table(world.settings, "shop.unreached", from_nowhere)
    assert find_plan(world.storage, table_id) is not None
    assert load_snapshot(spark, world.settings, "shop.unreached").resumed


@dataclass(frozen=True)
class FailsOnce:
    """A task that ends its executor's worker the first time that its range is tried."""

    task: RangeTask
    mark: Path

    def run(self) -> int:
        if self.task.number == 2 and not self.mark.exists():
            self.mark.touch()
            raise RuntimeError("the executor is gone")
        return self.task.run()


def test_loads_are_verified_merged_and_captured_on(spark: SparkSession, world: World) -> None:
    table_id = world.table("orders", cuts=range(10, 400, 10))
    orders = world.db.table("shop.orders")
    told: list[tuple[int, int]] = []
    stop = threading.Event()

    def write() -> None:
        nth = 0
        while not stop.is_set():
            nth += 1
            orders.insert([{"id": 10_000 + nth, "customer": "new"}])
            orders.update([{"id": nth % 100, "customer": f"changed {nth}"}])
            orders.delete([10_000 + nth - 3])
            SYSTEM.pause(0.02)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            report = load_snapshot(
                spark, world.settings, "shop.orders", progress=lambda *given: told.append(given)
            )
            capture = eventloop.run(Capture.start(world.settings))
            until(lambda: manifest(world, table_id).flushed_ts > report.ts)
        finally:
            stop.set()
            writing.result()
    try:
        assert (report.ranges, report.objects) == (40, 40)
        assert (told[0], told[-1], told == sorted(told)) == ((0, 40), (40, 40), True)
        at_load = verify_table(spark, world.settings, "shop.orders", ts=report.ts)
        assert (at_load.same, at_load.rows, at_load.ranges) == (True, report.rows, 40)
        merged = merge_table(spark, world.settings, "shop.orders")
        assert merged.merges >= 2
        now = world.cluster.client().timestamp()
        until(lambda: capture.store.readable_ts(table_id) >= now)
        newest = verify_table(spark, world.settings, "shop.orders")
        assert newest.ts >= now
        assert (newest.same, newest.rows) == (True, len(world.rows("orders")))
    finally:
        eventloop.run(capture.stop(flush=False))


def manifest(world: World, table_id: int) -> Any:
    return manifest_log.load(world.storage, paths.table_root(table_id))


def test_a_planted_difference_is_found(spark: SparkSession, world: World) -> None:
    table_id = world.table("planted")
    report = load_snapshot(spark, world.settings, "shop.planted")
    log = ManifestLog.open(world.storage, paths.table_root(table_id), writer="vandal")
    victim = next(each for each in log.state.objects.values() if each.key_min == encode_handle(100))
    log.commit(remove=[Removal(id=victim.id, delete_ts=report.ts)])
    told: list[tuple[int, int]] = []
    ours = world.settings.spark.model_copy(update={"master": spark.sparkContext.master})
    settings = world.settings.model_copy(update={"spark": ours})
    with open_engine(settings, lambda *given: told.append(given)) as engine:  # as `penstock table verify`
        found = compare_table(engine, "shop.planted")
    assert told
    assert spark.range(1).count() == 1, "a session that was there goes on"
    assert (found.same, found.ranges_differing, found.differing) == (False, 1, 100)
    assert {each.difference for each in found.mismatches} == {Difference.MISSING}
    assert found.mismatches[0].handle == encode_handle(100).hex()


def test_a_load_goes_on_after_an_executor_failed(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.table("failing")

    def run(tasks: Sequence[RangeTask]) -> None:
        run_on_executors(spark, [FailsOnce(task, tmp_path / "mark") for task in tasks])

    with pytest.raises(Exception, match="the executor is gone"):
        load_table(world.settings, "shop.failing", run)
    report = load_table(world.settings, "shop.failing", run)
    assert (report.resumed, report.rows, report.objects) == (True, 400, 4)
    assert verify_table(spark, world.settings, "shop.failing").same


def test_a_load_goes_on_after_its_driver_was_killed(spark: SparkSession, world: World) -> None:
    table_id = world.table("killed")
    config = world.folder / "penstock.yaml"
    config.write_text(yaml.safe_dump(world.tree))
    script = Path(__file__).with_name("killed_driver.py")
    driver = subprocess.Popen(
        [sys.executable, str(script), str(config), "shop.killed"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "half\n"
    finally:
        driver.kill()
        driver.communicate()
    assert manifest(world, table_id).flushed_ts == 0
    world.db.table("shop.killed").delete([399])
    told: list[tuple[int, int]] = []
    report = load_snapshot(spark, world.settings, "shop.killed", progress=lambda *given: told.append(given))
    assert (report.resumed, report.rows, report.objects, told[-1]) == (True, 400, 4, (2, 2))
    expected = pa.Table.from_pylist(world.rows("killed", at_ts=report.ts))
    assert expected.num_rows == 400
    assert verify_table(spark, world.settings, "shop.killed").same


@dataclass(frozen=True)
class Endless:
    """A task that says that it runs, and then does not end by itself."""

    running: str

    def run(self) -> None:
        from penstock.clock import SYSTEM

        Path(self.running).touch()
        SYSTEM.pause(3600.0)


class StoppedError(Exception):
    """What a caller is interrupted with."""


def test_a_call_that_is_interrupted_ends_its_jobs_on_the_cluster(spark: SparkSession, tmp_path: Path) -> None:
    running = tmp_path / "running"

    def stop(*_: object) -> None:
        raise StoppedError

    def interrupt() -> None:
        while not running.exists():
            SYSTEM.pause(0.05)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, stop)
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        with pytest.raises(StoppedError):
            run_on_executors(spark, [Endless(str(running))] * 32)
    finally:
        signal.signal(signal.SIGUSR1, before)
        interrupting.join()
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()
