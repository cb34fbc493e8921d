"""A database, a capture of it and jobs in one process: for tests of everything together.

async with job_world(tmp_path) as world:
    await world.create("shop.items", [("id", "bigint primary key"), ("name", "varchar(64)")])
    await world.insert("shop.items", {"id": 1, "name": "a"})
    await world.register("shop.items/copy", consumer="copy")
    async with world.running(find={"copy": Copying}.__getitem__):
        await world.caught_up("shop.items/copy", await world.now_ts())
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import pyarrow as pa

from penstock.clock import SYSTEM
from penstock.eventstore import manifest_log, paths
from penstock.eventstore.capture.capture import Capture
from penstock.follow.follower import ScanFollower
from penstock.jobs.api import Jobs
from penstock.jobs.consumer import Consumer, find_consumer
from penstock.jobs.iteration.iteration_run import IterationRunner
from penstock.jobs.iteration.spark_frame import Frames
from penstock.jobs.job import Job, JobId, JobState
from penstock.jobs.log.job_log import RUNNER_LEASE
from penstock.jobs.log.log_feed import LogFeed
from penstock.jobs.runner.lease_term import SideTask, seal_options
from penstock.jobs.runner.runner import JobRunner
from penstock.jobs.runner.seams import OnEnd
from penstock.jobs.scheduler.scheduler import Scheduler
from penstock.jobs.spec import JobSpec
from penstock.kv import AsyncClient, Client, Transaction
from penstock.kv.cluster_ref import ClusterRef
from penstock.kv.lease import Lease
from penstock.kv.transact import transact
from penstock.object_storage import open_storage
from penstock.settings import Settings, StoreSettings
from penstock.store.cluster import Cluster
from penstock.tables import Catalog, Table
from penstock.testing.versions import Row
from penstock.verify.schedule import verify_on_schedule

if TYPE_CHECKING:
    from penstock.jobs.iteration.spark_frame import SparkSession

__all__ = ["JobWorld", "job_world"]

P = ParamSpec("P")
T = TypeVar("T")

_WAIT_S = 60.0
_LOOK_S = 0.02


@dataclass
class RunningJobs:
    """A runner of jobs; `ended` ends with its error, if it ends by itself."""

    runner: JobRunner
    ended: "asyncio.Task[None]"


@dataclass
class JobWorld:
    """What tests work with. Blocking things are called through `do`, from the event loop's tests."""

    settings: Settings
    async_client: AsyncClient
    client: Client
    db: Catalog
    source: ScanFollower
    jobs: Jobs
    capture: Capture | None

    async def do(self, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """Run blocking work beside the loop."""
        return await asyncio.to_thread(work, *given, **named)

    async def now_ts(self) -> int:
        """Return a timestamp of the database, after all that was committed."""
        return await self.async_client.timestamp()

    # Tables.

    async def create(
        self, name: str, columns: Sequence[tuple[str, str]], *, primary_key: Sequence[str] = ()
    ) -> int:
        """Make a table, and its database if need be; return its id."""
        database = name.partition(".")[0]
        if database not in await self.do(lambda: [info.name for info in self.db.databases()]):
            await self.do(self.db.create_database, database)
        await self.do(self.db.create_table, name, columns, primary_key=primary_key)
        return await self.table_id(name)

    async def table_id(self, name: str) -> int:
        """Return the id of a table."""
        return await self.do(lambda: self.db.table_info(name).id)

    async def insert(self, name: str, *rows: Row) -> int:
        """Commit rows; return the timestamp of that."""
        return await self.do(self._commit, name, lambda table, txn: table.insert(list(rows), txn=txn))

    async def upsert(self, name: str, *rows: Row) -> int:
        """Put rows in, or in the place of others; return the timestamp of that."""
        return await self.do(self._commit, name, lambda table, txn: table.upsert(list(rows), txn=txn))

    async def delete(self, name: str, *keys: Any) -> int:
        """Delete rows by their keys; return the timestamp of that."""
        return await self.do(self._commit, name, lambda table, txn: table.delete(list(keys), txn=txn))

    def _commit(self, name: str, write: Callable[[Table, Transaction], object]) -> int:
        """Of a later time nothing is certain: without changes a watermark moves in memory only."""

        def work(txn: Transaction) -> Transaction:
            write(self.db.table(name), txn)
            return txn

        return transact(self.db.begin, work, clock=SYSTEM).commit_ts

    async def rows(self, name: str, ts: int | None = None) -> pa.Table:
        """Return a table as of a timestamp, or now."""
        return await self.do(lambda: self.db.table(name).to_arrow(at_ts=ts))

    async def readable(self, name: str, ts: int | None = None) -> int:
        """Wait until a table can be read at a timestamp, or now; return that."""
        at_ts = await self.now_ts() if ts is None else ts
        table_id = await self.table_id(name)

        async def holds() -> bool:
            look = (await self.source.read_progress([table_id])).get(table_id)
            return look is not None and look.readable_ts >= at_ts

        await _until(holds, f"{name} cannot be read at {at_ts}")
        return at_ts

    async def flushed(self, name: str, ts: int) -> None:
        """Wait until storage has a table up to a timestamp: until then only the capture's log may have it."""
        storage = open_storage(self.settings.capture.storage, self.settings.capture.storage_options)
        root = paths.table_root(await self.table_id(name))

        async def holds() -> bool:
            return (await self.do(manifest_log.load, storage, root)).flushed_ts >= ts

        await _until(holds, f"{name} is not flushed up to {ts}")

    # Jobs.

    async def register(
        self,
        job: str,
        *,
        consumer: str,
        options: Mapping[str, str] | None = None,
        columns: Iterable[str] | None = None,
        trigger: Mapping[str, Any] | None = None,
        **detail: Any,
    ) -> Job:
        """Register a job: `database.table/job`, greedy unless `trigger` says otherwise."""
        info: dict[str, Any] = {"consumer": consumer, "options": dict(options or {})}
        if columns is not None:
            info["columns"] = list(columns)
        tree = {"trigger": trigger or {"job_type": "greedy"}, "detail": {"consumer": info, **detail}}
        return await self.do(self._register, JobId.parse(job), JobSpec.parse(tree))

    def _register(self, job_id: JobId, spec: JobSpec) -> Job:
        with self.client.begin() as txn:
            assert self.jobs.register_job(txn, job_id, spec), f"{job_id} is there already"
        return self.jobs.get_job(job_id)

    async def job(self, job: str) -> Job:
        """Return a job as it is in the log."""
        return await self.do(self.jobs.get_job, JobId.parse(job))

    async def caught_up(self, job: str, ts: int) -> Job:
        """Wait until what a job's target has is complete up to a timestamp.

        Tables without changes only move the watermark in the runner's memory: name the time of a change.
        """
        deadline = SYSTEM.monotonic() + _WAIT_S
        while (row := await self.job(job)).watermark < ts:
            assert SYSTEM.monotonic() < deadline, f"{job} does not reach {ts}: {row.status}"
            await SYSTEM.sleep(_LOOK_S)
        return row

    async def wait_until_stopped(self, job: str) -> Job:
        """Wait until a job needs somebody to repair it."""

        async def holds() -> bool:
            return (await self.job(job)).state is JobState.ERROR

        await _until(holds, f"{job} goes on")
        return await self.job(job)

    async def until(self, holds: Callable[[], bool], what: str = "it did not come to pass") -> None:
        """Wait for a condition; fail when that takes a minute."""

        async def said() -> bool:
            return holds()

        await _until(said, what)

    @asynccontextmanager
    async def running(
        self,
        *,
        find: Callable[[str], type[Consumer]] = find_consumer,
        frames: Frames | None = None,
        spark: "Callable[[str], SparkSession] | None" = None,
        owner: str = "runner",
        side_tasks: Iterable[SideTask] = (),
        **executing: Any,
    ) -> AsyncIterator["RunningJobs"]:
        """Run the jobs as `penstock job run` does, until the block ends; `executing` is for iterations."""
        log = self.jobs.log
        await self.do(log.ensure)

        def open_scheduler(on_end: OnEnd) -> Scheduler:
            executor = IterationRunner(
                log, self.source, self.settings, frames=frames, spark=spark, find=find, **executing
            )
            made = Scheduler(executor, self.settings.jobs, on_end=on_end)
            made.start()
            return made

        runner = JobRunner(
            self.settings.jobs,
            acquire=lambda: Lease.acquire(
                self.async_client, RUNNER_LEASE, owner, ttl_s=self.settings.jobs.lease_ttl_s
            ),
            log=log,
            feed=LogFeed(log, self.settings),
            source=self.source,
            open_scheduler=open_scheduler,
            side_tasks=[
                verify_on_schedule(log, self.source, self.settings),
                seal_options(log),
                *side_tasks,
            ],
        )
        running = asyncio.create_task(runner.run(), name="penstock-test-runner")
        try:
            yield RunningJobs(runner, running)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def _until(holds: Callable[[], Any], what: str) -> None:
    deadline = SYSTEM.monotonic() + _WAIT_S
    while not await holds():
        assert SYSTEM.monotonic() < deadline, what
        await SYSTEM.sleep(_LOOK_S)


@asynccontextmanager
async def job_world(
    folder: Path,
    *,
    capture: Mapping[str, Any] | None = None,
    jobs: Mapping[str, Any] | None = None,
    url: str = "",
) -> AsyncIterator[JobWorld]:
    """Yield a world in `folder` with one store and one capture.

    Time passes quickly: what other deployments do every second or ten, it does several times a second.
    """
    store = StoreSettings(data=folder / "kv", pd_addr="127.0.0.1:0", sync=False, resolved_ts_interval_ms=50)
    cluster = await Cluster.start(store)
    settings = Settings(
        pd_addrs=(cluster.pd_addr,),
        capture={
            "id": "a",
            "data": folder / "capture",
            "storage": url or f"file://{folder}/events",
            "flush_interval_s": 0.5,
            "flight_addr": "127.0.0.1:0",
            **(capture or {}),
        },
        jobs={
            "data": folder / "jobs",
            "interval_s": 0.3,
            "greedy_interval_s": 0.05,
            "backoff_s": 0.05,
            "allowed_code": ["support"],
            **(jobs or {}),
        },
    )
    try:
        async with await AsyncClient.connect(settings.pd_addrs, settings=settings.kv) as client:
            capturing = await Capture.start(settings)
            try:
                async with await ScanFollower.connect(settings, client) as source:
                    face = Client(client)
                    yield JobWorld(
                        settings=settings,
                        async_client=client,
                        client=face,
                        db=Catalog(face),
                        source=source,
                        jobs=Jobs(face),
                        capture=capturing,
                    )
            finally:
                await capturing.stop(flush=False)
    finally:
        await asyncio.to_thread(ClusterRef.of(settings).close)  # consumers have one client for the process
        await cluster.stop()
