"""Following the job log of a real store."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.clock import SYSTEM
from penstock.jobs.api import Jobs
from penstock.jobs.job import Job, JobId, JobKey, JobState
from penstock.jobs.log import log_feed
from penstock.jobs.log.job_rows import LOG_NAME
from penstock.jobs.log.log_feed import LatestRows, LogChange, LogFeed
from penstock.jobs.log.transitions import adopt_job, complete_iteration, flush_watermark, start_iteration
from penstock.jobs.spec import JobSpec
from penstock.kv import Client
from penstock.settings import KvSettings, Settings
from penstock.tables import Catalog
from penstock.testing.store import Admin
from support.warmstore import WarmStore

SPEC = JobSpec.parse({"detail": {"consumer": {"consumer": "delta"}}})
SEARCH = JobId("shop", "orders", "search")
KV = KvSettings(safe_point_refresh_ms=50)
WAIT_S = 30.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmStore]:
    with WarmStore.start(tmp_path_factory.mktemp("logfeed") / "store", stores=1) as running:
        yield running


@pytest.fixture
def jobs(store: WarmStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    monkeypatch.setattr(log_feed, "_CHECK_S", 0.1)
    with Client.connect([store.pd_addr], settings=KV) as client:
        catalog = Catalog(client)
        catalog.create_database("shop")
        catalog.create_table("shop.orders", [("id", "bigint primary key")])
        yield Jobs(client, catalog=catalog)
        for database in catalog.databases():
            catalog.drop_database(database.name)


@dataclass
class Follower:
    """What somebody knows who follows the log."""

    rows: dict[JobKey, Job]
    changes: list[LogChange] = field(default_factory=list)

    def apply(self, change: LogChange) -> None:
        self.changes.append(change)
        if change.whole:
            self.rows.clear()
        self.rows |= {job.key: job for job in change.rows}
        for key in change.removed:
            self.rows.pop(key, None)

    @property
    def replays(self) -> int:
        return sum(change.whole for change in self.changes)

    async def until(self, said: Callable[["Follower"], bool]) -> None:
        deadline = SYSTEM.monotonic() + WAIT_S
        while not said(self):
            assert SYSTEM.monotonic() < deadline, "it does not come"
            await SYSTEM.sleep(0.01)


@asynccontextmanager
async def following(store: WarmStore, jobs: Jobs) -> AsyncIterator[Follower]:
    """Somebody who reads all jobs and then follows."""
    ts, rows = await asyncio.to_thread(jobs.log.read_all)
    follower = Follower({job.key: job for job in rows})
    feed = LogFeed(jobs.log, Settings(pd_addrs=(store.pd_addr,), kv=KV))

    async def follow() -> None:
        async with aclosing(feed.follow(ts)) as changes:
            async for change in changes:
                follower.apply(change)

    task = asyncio.create_task(follow())
    try:
        yield follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def transacted(jobs: Jobs, work: Callable[..., Any], *arguments: Any) -> Any:
    with jobs.log.client.begin() as txn:
        return work(txn, *arguments)


async def do(jobs: Jobs, work: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.to_thread(transacted, jobs, work, *arguments)


async def log_now(jobs: Jobs) -> dict[JobKey, Job]:
    return {job.key: job for job in (await asyncio.to_thread(jobs.log.read_all))[1]}


async def test_whatever_is_committed_comes(store: WarmStore, jobs: Jobs) -> None:
    await do(jobs, jobs.register_job, SEARCH, SPEC)
    async with following(store, jobs) as seen:
        (job,) = seen.rows.values()
        await do(jobs, jobs.register_job, JobId("shop", "orders", "other"), SPEC)
        await seen.until(lambda seen: len(seen.rows) == 2)
        (job,) = await asyncio.to_thread(jobs.log.transact, [(job, start_iteration(0, 10, runner=1, at=1))])
        await seen.until(lambda seen: seen.rows[job.key].state is JobState.RUNNING)
        (job,) = await asyncio.to_thread(jobs.log.transact, [(job, complete_iteration(10, at=1))])
        await asyncio.to_thread(jobs.log.transact, [(job, flush_watermark(20))])
        await seen.until(lambda seen: seen.rows[job.key].watermark == 20)
        await do(jobs, jobs.unregister_job, SEARCH)
        await seen.until(lambda seen: not seen.rows[job.key].live)
        await asyncio.to_thread(jobs.log.collect, 0)
        await seen.until(lambda seen: job.key not in seen.rows)
        assert seen.rows == await log_now(jobs)
        assert seen.replays == 0


async def test_what_is_rolled_back_never_comes(store: WarmStore, jobs: Jobs) -> None:
    await asyncio.to_thread(jobs.log.ensure)
    async with following(store, jobs) as seen:

        def undone() -> None:
            with jobs.log.client.begin() as txn:
                jobs.register_job(txn, SEARCH, SPEC)
                txn.rollback()

        await asyncio.to_thread(undone)
        await do(jobs, jobs.register_job, JobId("shop", "orders", "later"), SPEC)
        await seen.until(lambda seen: bool(seen.rows))
        assert [job.id.job for change in seen.changes for job in change.rows] == ["later"]


async def test_a_log_that_is_not_there_yet_is_made_and_followed(store: WarmStore, jobs: Jobs) -> None:
    async with following(store, jobs) as seen:
        await seen.until(lambda seen: seen.replays == 1)
        await do(jobs, jobs.register_job, SEARCH, SPEC)
        await seen.until(lambda seen: len(seen.rows) == 1)


async def test_a_log_with_another_table_id_is_read_anew(store: WarmStore, jobs: Jobs) -> None:
    await do(jobs, jobs.register_job, SEARCH, SPEC)
    async with following(store, jobs) as seen:
        await asyncio.to_thread(jobs.log.catalog.drop_table, LOG_NAME)
        await seen.until(lambda seen: seen.replays == 1)
        assert seen.rows == {}
        await do(jobs, jobs.register_job, JobId("shop", "orders", "new"), SPEC)
        await seen.until(lambda seen: len(seen.rows) == 1)
        await asyncio.to_thread(jobs.log.catalog.truncate_table, LOG_NAME)
        await seen.until(lambda seen: not seen.rows)
        await do(jobs, jobs.register_job, SEARCH, SPEC)
        await seen.until(lambda seen: [job.id for job in seen.rows.values()] == [SEARCH])
        assert seen.replays == 2


async def test_the_log_is_read_anew_when_its_history_may_be_gone(store: WarmStore, jobs: Jobs) -> None:
    await do(jobs, jobs.register_job, SEARCH, SPEC)
    async with following(store, jobs) as seen:
        await do(jobs, jobs.register_job, JobId("shop", "orders", "b"), SPEC)
        await seen.until(lambda seen: len(seen.rows) == 2)
        client = jobs.log.client
        await asyncio.to_thread(client.gc, await asyncio.to_thread(client.timestamp))
        await seen.until(lambda seen: seen.replays == 1)
        await do(jobs, jobs.unregister_job, SEARCH)
        await seen.until(lambda seen: sum(job.live for job in seen.rows.values()) == 1)
        assert seen.rows == await log_now(jobs)


async def test_the_log_is_read_anew_when_its_subscription_fails(
    store: WarmStore, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(jobs.log.ensure)
    put, failures = LatestRows.put, iter([True])

    def fail_once(rows: LatestRows, *change: Any) -> bool:
        assert not next(failures, False), "a mistake of ours"
        return put(rows, *change)

    monkeypatch.setattr(LatestRows, "put", fail_once)
    async with following(store, jobs) as seen:
        await do(jobs, jobs.register_job, SEARCH, SPEC)
        await seen.until(lambda seen: seen.replays == 1)
        assert [job.id for job in seen.rows.values()] == [SEARCH]
        await do(jobs, jobs.unregister_job, SEARCH)
        await seen.until(lambda seen: not any(job.live for job in seen.rows.values()))
        assert seen.replays == 1


async def test_nothing_is_missed_when_the_store_is_killed_and_comes_back(
    store: WarmStore, jobs: Jobs
) -> None:
    await do(jobs, jobs.register_job, SEARCH, SPEC)
    async with following(store, jobs) as seen:
        await asyncio.to_thread(store.kill)
        await asyncio.to_thread(store.restart)
        await do(jobs, jobs.register_job, JobId("shop", "orders", "b"), SPEC)
        await seen.until(lambda seen: len(seen.rows) == 2)
        assert seen.rows == await log_now(jobs)


async def test_a_damaged_row_counts_as_gone_and_the_others_come(store: WarmStore, jobs: Jobs) -> None:
    await do(jobs, jobs.register_job, SEARCH, SPEC)
    async with following(store, jobs) as seen:
        (key,) = seen.rows
        row = {"account_id": 0, "table_id": key.table_id, "job_name": "search", "job_id": 1, "job_spec": []}
        await asyncio.to_thread(lambda: jobs.log.catalog.table(LOG_NAME).update([row]))
        await do(jobs, jobs.register_job, JobId("shop", "orders", "other"), SPEC)
        await seen.until(lambda seen: [job.id.job for job in seen.rows.values()] == ["other"])
        assert (key,) in [change.removed for change in seen.changes]


async def test_nothing_is_missed_while_regions_split_and_stores_fail(store: WarmStore, jobs: Jobs) -> None:
    for number in range(6):
        await do(jobs, jobs.register_job, JobId("shop", "orders", f"j{number}"), SPEC)
    rows = await asyncio.to_thread(jobs.log.ensure)
    admin = Admin(store.pd_addr)
    try:
        async with following(store, jobs) as seen:
            for epoch in range(1, 6):
                known = list((await log_now(jobs)).values())
                await asyncio.to_thread(jobs.log.transact, [(job, adopt_job(epoch)) for job in known])
                await admin.split([rows.key(known[epoch].key)])
                await admin.stop_store(next(iter(store.store_addrs)))
                await admin.start_store(next(iter(store.store_addrs)))
            await seen.until(lambda seen: {job.status.runner for job in seen.rows.values()} == {5})
            assert seen.rows == await log_now(jobs)
    finally:
        await admin.close()
