"""Jobs over a recorded history of TiDB: Parquet copies and copies in the cluster are TiDB's tables.

They are read by this process; in `make soak` and of any other record, by Spark as well.
"""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock import eventloop
from penstock.consumers.lake.parquet import live_files
from penstock.errors import Invalid
from penstock.eventstore.sides import HANDLE
from penstock.follow.follower import ScanFollower
from penstock.jobs.api import Jobs
from penstock.jobs.freshness import FreshnessReader
from penstock.jobs.iteration.rounds import ReadRounds, SparkReadJobs
from penstock.jobs.iteration.spark_frame import SparkFrames
from penstock.jobs.job import Job, JobId, JobState
from penstock.jobs.spec import JobSpec
from penstock.tables.keys import meta_string_key
from penstock.tables.meta import NEXT_GLOBAL_ID, SCHEMA_VERSION
from support.historyworld import DEADLINE_S, HistoryWorld, compares_every_point
from support.jobworld import JobWorld
from support.tidb_history import PointTable, TidbRecord

pytestmark = pytest.mark.timeout(1800)

COPIES = "penstock_copies"
ENGINES = ("local", "spark") if compares_every_point() else ("local",)
KINDS = ("parquet", "kv")
FAR_AWAY = 1_000_000
ROOMS = count(1)
NEEDS_REBUILD = {10001, 10002}  # a schema that the target cannot follow; a table that was truncated


class Copies:
    """Jobs of every table, which are registered when a table comes and rebuilt when a DDL stops them."""

    def __init__(self, world: HistoryWorld, source: ScanFollower) -> None:
        self._world = world
        self._jobs = Jobs(world.client)
        self._freshness = FreshnessReader(self._jobs.get_job, source, world.settings.jobs)
        self.rebuilt: set[str] = set()

    def follow(self, tables: list[PointTable], ts: int) -> None:
        """Have jobs of these tables, and wait until all targets have everything up to a timestamp."""
        known = {(job.id.table_name, job.id.job): job for job in self._jobs.get_jobs()}
        for table in tables:
            table_id = self._world.db.table_info(table.name, at_ts=ts).id
            for kind in KINDS:
                job = known.get((table.name, kind))
                if job is None or job.key.table_id != table_id:
                    self.register(table, kind, table_id)
        for table in tables:
            for kind in KINDS:
                self._wait(job_id(table, kind), ts)

    def register(self, table: PointTable, kind: str, table_id: int) -> None:
        """Register a job of a table, in place of the one before."""
        options = {"uri": f"file://{self._world.folder}/{COPIES}/{table_id}"}
        if kind == "kv":
            options = {"table": f"{COPIES}.t{table_id}"}
        consumer = {"consumer": kind, "options": options}
        spec = JobSpec.parse({"trigger": {"job_type": "greedy"}, "detail": {"consumer": consumer}})
        with self._world.client.begin() as txn:
            self._jobs.unregister_job(txn, job_id(table, kind))
        with self._world.client.begin() as txn:
            assert self._jobs.register_job(txn, job_id(table, kind), spec)

    def _wait(self, job: JobId, ts: int) -> None:
        try:
            eventloop.run(self._freshness.wait_for(job, ts, timeout_s=DEADLINE_S))
        except Invalid:
            stopped = self._jobs.get_job(job)
            assert stopped.state is JobState.ERROR
            assert stopped.status.error_code in NEEDS_REBUILD, f"{job} stopped: {stopped.status}"
            self.rebuilt.add(str(job))
            with self._world.client.begin() as txn:
                self._jobs.rebuild_job(txn, job)
            eventloop.run(self._freshness.wait_for(job, ts, timeout_s=DEADLINE_S))

    def job(self, table: PointTable, kind: str) -> Job:
        return self._jobs.get_job(job_id(table, kind))

    def read_parquet(self, table: PointTable, _ts: int) -> pa.Table:
        """Read the Parquet copy as others read it."""
        _, urls = live_files(self.job(table, "parquet").spec.detail.consumer.options["uri"])
        parts = [pq.read_table(url.removeprefix("file://")) for url in urls]
        if not parts:
            return self._world.read_cluster(table, _ts).slice(0, 0)
        return pa.concat_tables(parts).select(list(table.stored_columns))

    def read_kv(self, table: PointTable, _ts: int) -> pa.Table:
        """Read the copy in the cluster."""
        found = self._world.db.table(self.job(table, "kv").spec.detail.consumer.options["table"]).to_arrow()
        return found.select(list(table.stored_columns))


def job_id(table: PointTable, kind: str) -> JobId:
    database, _, name = table.name.partition(".")
    return JobId(database, name, kind)


def make_room(world: HistoryWorld) -> None:
    """Let our own tables have ids and versions that the record does not use, and that never come again."""
    with world.client.begin() as txn:
        for key in (NEXT_GLOBAL_ID, SCHEMA_VERSION):
            txn.put(meta_string_key(key), str(FAR_AWAY * next(ROOMS)).encode())


@contextmanager
def running(world: HistoryWorld, spark: SparkSession | None = None) -> Iterator[Copies]:
    assert world.capture is not None
    client = world.replay_state.client
    source = eventloop.run(ScanFollower.connect(world.settings, client))
    jobs = JobWorld(
        settings=world.settings,
        async_client=client,
        client=world.client,
        db=world.db,
        source=source,
        jobs=Jobs(world.client),
        capture=world.capture,
    )
    with ExitStack() as stack:
        stack.callback(lambda: eventloop.run(source.__aexit__(None, None, None)))
        on_spark = {} if spark is None else read_on_spark(spark, stack)
        runner = jobs.running(**on_spark)
        eventloop.run(runner.__aenter__())
        stack.callback(lambda: eventloop.run(runner.__aexit__(None, None, None)))
        yield Copies(world, source)


def read_on_spark(spark: SparkSession, stack: ExitStack) -> dict[str, Any]:
    """Return what `penstock job run` gives its iterations with `engine: spark`."""
    rounds = stack.enter_context(closing(ReadRounds(SparkReadJobs(lambda: spark))))
    return {"frames": SparkFrames(lambda: spark), "rounds": rounds, "spark": lambda _account: spark}


def world_of_jobs(folder: Path, record: TidbRecord | None = None) -> HistoryWorld:
    jobs = {"data": folder / "jobs", "interval_s": 0.3, "greedy_interval_s": 0.05, "backoff_s": 0.05}
    return HistoryWorld(folder, record, jobs=jobs)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("golden", "share"), [((1, 2), 0.0), ((6, 8), 0.5)])
def test_copies_are_tidbs_tables_at_the_points(
    tmp_path: Path, request: pytest.FixtureRequest, golden: tuple[int, int], share: float, engine: str
) -> None:
    spark = request.getfixturevalue("spark") if engine == "spark" else None
    with world_of_jobs(tmp_path) as world:
        # All points cost minutes of a processor: `make soak` goes on to the end of the record.
        part = world.choose_part(golden, share)
        points = world.record.points[part.first : part.last]
        world.replay(world.record.points[part.start - 1])
        world.start_capture()
        make_room(world)
        world.db.create_database(COPIES)
        with running(world, spark) as copies:
            for point in points:
                ts = world.replay(point)
                make_room(world)
                world.catch_up()
                tables = [table for table in world.comparable(point) if not is_refused(world, table, ts)]
                copies.follow(tables, ts)
                chosen = replace(point, tables={table.name: table for table in tables})
                for read in (copies.read_parquet, copies.read_kv):
                    assert world.compare(read, [(chosen, ts)]) == []


def is_refused(world: HistoryWorld, table: PointTable, ts: int) -> bool:
    """Return whether jobs refuse a table: its rows have no key but the handle, and a column has that name."""
    keys = world.db.table_info(table.name, at_ts=ts).primary_key
    return not keys and HANDLE in map(str.lower, table.columns)
