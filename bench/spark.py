"""Reading with Spark, against Spark's own Parquet reader: `python bench/spark.py [changes]`.

One run measures, in programs of their own and in turn: how long a session and its first query take, with and
without the archive of classes. Then, on one session: snapshots and change feeds through the data source
against `spark.read.parquet` over the same columns of the same objects, both read to the last value of every
row (format `noop`); the SQL functions against the same reads as one task; what a stream costs while nothing
happens; and loading a table from the key-value store, by its number of regions.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from changes import DELETED, MIXED, START, Written, a_table, seconds, show, versus, write_deleted, write_mixed
from penstock import eventloop
from penstock.eventstore import paths
from penstock.eventstore.paths import Side
from penstock.eventstore.read.find import NameMarks
from penstock.kv.cluster_ref import ClusterRef
from penstock.object_storage import StorageRef
from penstock.settings import Settings, SparkSettings
from penstock.spark import fast_start_conf, register
from penstock.spark.bulk import load_snapshot
from penstock.spark.options import parse_options
from penstock.spark.session import build_session
from penstock.spark.stream import STREAM_READER
from penstock.spark.tasks import Parallelism
from penstock.tables import Catalog
from penstock.tables.arrow import arrow_schema
from penstock.tables.keys import record_key
from penstock.testing.store import Admin
from support.itemtables import item
from support.servedworld import ServedDatabase
from support.spark import latest_offset
from support.warmstore import WarmStore

SNAPSHOT_TARGET, FEED_TARGET, FUNCTION_TARGET = ">= 0.95", ">= 0.90", ">= 0.90"
IDLE_S = 10.0
STARTS = {
    "ours-without": "Penstock's session without the archive",
    "ours": "Penstock's session",
    "own": "a user's session",
    "own-fast": "a user's session with fast_start_conf",
}
STARTS_TIMES = 2
INSERT_ROWS = 2_000  # in one transaction
ORDERS = [
    ("id", "bigint primary key"),
    ("customer", "bigint"),
    ("state", "varchar(10)"),
    ("note", "varchar(80)"),
]


def named(storage: StorageRef, table_id: int, name: str, scratch: Path) -> Written:
    """A table in the making that can be found by its name."""
    NameMarks(storage.open()).mark([("bench", name)], table_id)
    version = a_table(table_id)
    version = replace(version, database="bench", table=replace(version.table, name=name))
    return Written(storage, version, scratch)


def consumed(frame: DataFrame) -> int:
    """Read a frame to its end, without doing anything with it."""
    frame.write.format("noop").mode("overwrite").save()
    return 0


def plain(spark: SparkSession, folder: Path, table: Written, side: Side, columns: list[str]) -> DataFrame:
    """The objects of one side as Parquet files."""
    root = paths.table_root(table.schema.table.id)
    files = [
        str(folder / "objects" / paths.object_path(root, side, each.id))
        for each in table.objects
        if each.side == side
    ]
    return spark.read.parquet(*files).select(*columns)


def load(spark: SparkSession, storage: StorageRef, table: str, **options: Any) -> DataFrame:
    given = {"table": f"bench.{table}", "storage": storage.url, **options}
    return spark.read.format("penstock").options(**given).load()


def compare(what: str, ours: DataFrame, theirs: list[DataFrame], rows: int, target: str) -> None:
    """The speed of a read against that of other reads that have the same rows."""
    (best_s, _), (plain_s, _) = versus(lambda: consumed(ours), lambda: sum(map(consumed, theirs)), times=5)
    detail = f"{rows / best_s:12,.0f} rows/s against {rows / plain_s:12,.0f}"
    show(what, plain_s / best_s, target, detail)


def measure_reads(spark: SparkSession, folder: Path, changes: int) -> None:
    storage = StorageRef(f"file://{folder}/objects")
    deleted = named(storage, DELETED, "deleted", folder)
    mixed = named(storage, MIXED, "mixed", folder)
    deleted.commit(write_deleted(deleted, changes))
    mixed.commit(write_mixed(mixed, changes))
    columns = arrow_schema(deleted.schema.table).names

    started = time.perf_counter()
    rows = load(spark, storage, "deleted", columns="id").count()
    print(f"first query, a count of one column: {time.perf_counter() - started:.1f} s")

    measure_point(spark, storage, rows)
    told = sum(each.rows for each in mixed.objects)
    for chosen in (columns, columns[:3]):
        wide = f"{len(chosen)} columns"
        data = plain(spark, folder, deleted, "data", chosen)
        snapshot = load(spark, storage, "deleted", columns=",".join(chosen))
        compare(f"snapshot with a tenth deleted, {wide} / Parquet", snapshot, [data], rows, SNAPSHOT_TARGET)
        times = ["_commit_ts", "_start_ts", "_update"]
        sides = [
            plain(spark, folder, mixed, "data", [*chosen, *times]),
            plain(
                spark, folder, mixed, "tombstone", ["id", *times, *(f"_old.{each}" for each in chosen[1:])]
            ),
        ]
        feed = load(
            spark,
            storage,
            "mixed",
            readChangeFeed="true",
            startingVersion=START,
            columns=",".join(chosen),
        )
        compare(f"change feed, {wide} / Parquet of both sides", feed, sides, told, FEED_TARGET)
    measure_functions(spark, storage, rows, told)


def measure_functions(spark: SparkSession, storage: StorageRef, rows: int, told: int) -> None:
    """The SQL functions, which Spark runs as one task, against the same reads as one task."""
    spark.conf.set("spark.penstock.storage", storage.url)
    register(spark)
    feed = load(spark, storage, "mixed", readChangeFeed="true", startingVersion=START).coalesce(1)
    changes = spark.sql(f"SELECT * FROM penstock_changes('bench.mixed', {START})")
    compare("penstock_changes / the feed as one task", changes, [feed], told, FUNCTION_TARGET)
    snapshot = spark.sql("SELECT * FROM penstock_snapshot('bench.deleted')")
    table = load(spark, storage, "deleted").coalesce(1)
    compare("penstock_snapshot / the snapshot as one task", snapshot, [table], rows, FUNCTION_TARGET)


def measure_idle(folder: Path) -> None:
    """A stream of one table whose capture has nothing new, asked as often as Spark asks."""
    with ServedDatabase(folder / "idle") as world:
        table = world.create_table("shop.items", "integer")
        world.commit((table, [], [item("integer", number, "x") for number in range(100)]))
        world.resolve_all()
        options = parse_options({**world.options(), "readChangeFeed": "true"})
        reader = STREAM_READER(options, StructType(), None, parallelism=Parallelism(1))
        offset = latest_offset(reader, {"ts": 0})
        latest_offset(reader, offset)
        cpu_s, until = time.process_time(), time.perf_counter() + IDLE_S
        while time.perf_counter() < until:
            assert latest_offset(reader, offset) == offset
            time.sleep(0.01)
        share = (time.process_time() - cpu_s) / IDLE_S
    show("an idle stream and its capture, share of a core", share, "<= 0.05", f"{IDLE_S:.0f} s")


def measure_starts(folder: Path) -> None:
    """A session and its first query, each in a program of its own, with and without what makes it faster."""
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in STARTS}
    for _ in range(STARTS_TIMES):
        for kind in STARTS:
            done = subprocess.run(
                [sys.executable, __file__, "--start", kind],
                cwd=folder,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                env={name: value for name, value in os.environ.items() if name != "SPARK_HOME"},
            )
            session_s, query_s = json.loads(done.stdout.splitlines()[-1])
            found[kind].append((session_s, query_s))
    best = {kind: min(times, key=sum) for kind, times in found.items()}
    for kind, (session_s, query_s) in best.items():
        print(f"{STARTS[kind]}: session {session_s:.1f} s, first query {query_s:.1f} s")
    for without, with_ in (("ours-without", "ours"), ("own", "own-fast")):
        ratio = sum(best[without]) / sum(best[with_])
        show(f"{STARTS[without]} / {STARTS[with_]}", ratio, ">= 1.40", "session and first query")


def run_start(kind: str) -> None:
    """Start a session, run a first query in Python workers, and print how long both took."""
    started = time.perf_counter()
    if kind.startswith("own"):
        builder = SparkSession.builder.master("local[2]").config("spark.driver.host", "127.0.0.1")
        conf: dict[str, Any] = {**fast_start_conf()} if kind == "own-fast" else {}
        spark = builder.config(map=conf).getOrCreate()
    else:
        # With an option of the user's own about sharing, Penstock names no archive.
        options = {} if kind == "ours" else {"spark.driver.extraJavaOptions": "-Xshare:auto"}
        spark = build_session(Settings(spark=SparkSettings(master="local[2]", conf=options)))
    session_s = time.perf_counter() - started
    spark.range(1000).mapInArrow(lambda batches: batches, "id long").groupBy().sum().collect()
    print(json.dumps([session_s, time.perf_counter() - started - session_s]))
    spark.stop()


def measure_point(spark: SparkSession, storage: StorageRef, rows: int) -> None:
    """One row of a table by its key: chosen by the option, and filtered by Spark; loads count for both."""

    def by_option() -> int:
        return load(spark, storage, "deleted", where="id = 1").count()

    def by_filter() -> int:
        return load(spark, storage, "deleted").where("id = 1").count()

    (ours_s, found), (theirs_s, same) = versus(by_option, by_filter, times=5)
    assert found == same
    detail = f"{ours_s:.2f} s against {theirs_s:.2f} s for {rows:,} rows"
    show("one row by its key, filtered by Spark / by the option", theirs_s / ours_s, ">= 2.00", detail)


def measure_loads(spark: SparkSession, folder: Path, rows: int) -> None:
    """A table of the embedded store, divided into more and more regions."""
    with WarmStore.start(folder / "store", stores=1) as store:
        base = Settings(pd_addrs=(store.pd_addr,))
        cluster = ClusterRef.of(base)
        catalog = Catalog(cluster.client())
        catalog.create_database("bench")
        given = [
            {"id": each, "customer": each % 10_007, "state": "paid", "note": "n" * 60} for each in range(rows)
        ]
        speeds: list[float] = []
        for regions in (1, 2, 4, 8):
            name = f"bench.orders{regions}"
            table_id = catalog.create_table(name, ORDERS).id
            for first in range(0, rows, INSERT_ROWS):
                catalog.table(name).insert(given[first : first + INSERT_ROWS])
            eventloop.run(_split(store.pd_addr, table_id, rows, regions))
            tree = {"capture": {"storage": f"file://{folder}/loaded{regions}", "data": str(folder / "c")}}
            settings = base.model_copy(update={"capture": Settings.model_validate(tree).capture})
            took, loaded = seconds(partial(_load, spark, settings, name))
            speeds.append(loaded / took)
            target = ">= 0.90" if regions > 1 else ""
            what = f"load from the key-value store, {regions} region(s) / 1"
            show(what, speeds[-1] / speeds[0], target, f"{speeds[-1]:12,.0f} rows/s")
        cluster.close()


def _load(spark: SparkSession, settings: Settings, name: str) -> int:
    return load_snapshot(spark, settings, name).rows


async def _split(pd_addr: str, table_id: int, rows: int, regions: int) -> None:
    admin = Admin(pd_addr)
    cuts = [record_key(table_id, rows * each // regions) for each in range(1, regions)]
    if cuts:
        await admin.split(cuts)
    await admin.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("changes", nargs="?", type=int, default=4_000_000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--start", choices=list(STARTS), help="only start a session, as a part of a run")
    chosen = parser.parse_args()
    if chosen.start:
        run_start(chosen.start)
        return
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        measure_starts(folder)
        measure_idle(folder)
        spark = build_session(Settings(spark=SparkSettings(master=chosen.master, driver_memory="2g")))
        measure_reads(spark, folder, chosen.changes)
        measure_loads(spark, folder, min(100_000, chosen.changes))
        spark.stop()


if __name__ == "__main__":
    main()
