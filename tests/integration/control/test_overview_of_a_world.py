"""The overview of a real deployment in one process: what flows, what holds it back, who does not answer."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import metrics
from penstock.changefeeds.commands import create_changefeed
from penstock.changefeeds.model import ChangefeedState
from penstock.cli.service import MetricServer
from penstock.clock import SYSTEM, physical_ms
from penstock.control.deployment import Deployment
from penstock.control.jobs import read_job_status
from penstock.control.overview.gather import FactsCache
from penstock.control.overview.model import Overview
from penstock.control.overview.overview import read_overview
from penstock.control.part_states import PartKind, PartState, PartStatus, UpStates
from penstock.control.tables import list_tables
from penstock.errors import Conflict, Invalid
from penstock.eventstore.capture.lease import PREFIX, CaptureLease
from penstock.jobs.freshness import FreshnessReader
from penstock.jobs.job import JobId
from penstock.kv import AsyncClient
from penstock.kv.lease import LeaseRecord
from penstock.settings import KvSettings, Settings, StoreSettings, UpSettings, parse_changefeed
from penstock.store.cluster import Cluster
from penstock.tables.keys import record_key
from support.jobdoubles import Copy
from support.jobworld import JobWorld, job_world
from support.oddtables import put_description, with_type

COLUMNS = [("id", "bigint primary key"), ("title", "varchar(99)")]
WAIT_S = 30.0


@asynccontextmanager
async def deployment_of(world: JobWorld, folder: Path) -> AsyncIterator[Deployment]:
    settings = world.settings.model_copy(update={"up": UpSettings(data=folder / "up")})
    async with AsyncExitStack() as closing:
        yield Deployment(settings, world.async_client, closing)


async def look(
    world: JobWorld, deployment: Deployment, rates: FactsCache | None = None, **how: Any
) -> Overview:
    return await world.do(read_overview, deployment, rates or FactsCache(), **how)


async def until(
    world: JobWorld, deployment: Deployment, holds: Any, rates: FactsCache | None = None, **how: Any
) -> Overview:
    deadline = SYSTEM.monotonic() + WAIT_S
    while not holds(found := await look(world, deployment, rates, **how)):
        assert SYSTEM.monotonic() < deadline, found.model_dump_json(indent=2)
        await SYSTEM.sleep(0.05)
    return found


def whats(found: Overview) -> list[str]:
    return [each.what.value for each in found.problems]


async def test_a_deployment_shows_its_tables_changefeeds_jobs_and_who_runs_them(tmp_path: Path) -> None:
    async with job_world(tmp_path) as world, deployment_of(world, tmp_path) as deployment:
        await world.create("shop.orders", COLUMNS)
        await world.insert("shop.orders", {"id": 1, "title": "a"})
        await world.register(
            "shop.orders/find", consumer="fulltext", options={"uri": "x", "columns": "title"}
        )
        now_ts = await world.now_ts()
        wanted = parse_changefeed({"sink_uri": f"file://{tmp_path}/files?protocol=csv"}, origin="test")
        await create_changefeed(deployment.feeds, "files", wanted, now_ts=now_ts)

        found = await until(world, deployment, lambda seen: whats(seen) == ["no_runner"])
        assert [each.name for each in found.parts] == ["store", "a"]
        assert found.parts[1].addr == world.capture.advertised_addr
        assert [each.job for each in found.jobs] == found.indexes == ["shop.orders/find"]
        assert (found.jobs[0].lacks, found.jobs[0].lag_s) == ("no runner", None)

        run = await deployment.feeds.acquire("files", "host-7", ttl_s=60)
        copying = Copy().consumer()
        async with world.running(find=lambda _name: copying):

            def flows(seen: Overview) -> bool:
                return seen.healthy and all(each.lag_s is not None for each in seen.stages)

            found = await until(world, deployment, flows)
            assert found.jobs[0].lacks is None
            assert [each.name for each in found.parts] == [
                "store", "a", "changefeeds host-7", "jobs runner"
            ]  # fmt: skip
            (orders,) = found.tables
            assert (orders.table, orders.captured, orders.held_by) == ("shop.orders", True, None)
            assert orders.table_id == await world.table_id("shop.orders")
            assert orders.readable_ts is not None
            assert orders.readable_ts > now_ts
            assert orders.changed_ts is not None
            assert orders.changed_ts <= now_ts

            await run.keep_state(ChangefeedState.FAILED, "Unavailable: the disk is full")
            found = await look(world, deployment)
            assert whats(found) == ["changefeed_failed"]
            assert "the disk is full" in found.problems[0].message
            mine = await look(world, deployment, account="nobody")
            assert (mine.tables, mine.changefeeds, mine.jobs, mine.healthy) == ([], [], [], True)


async def test_a_table_that_cannot_be_captured_is_told_to_whoever_asks_and_its_job_goes_on_once_it_can(
    tmp_path: Path,
) -> None:
    async with job_world(tmp_path) as world, deployment_of(world, tmp_path) as deployment:
        table_id = await world.create("shop.orders", COLUMNS)
        await world.create("shop.others", COLUMNS)
        described = (await world.do(world.db.table_info, "shop.orders")).to_json()
        first = await world.insert("shop.orders", {"id": 1, "title": "a"})
        await world.register("shop.orders/find", consumer="copy")
        copy = Copy()
        copying = copy.consumer()
        async with world.running(find=lambda _name: copying):
            await world.caught_up("shop.orders/find", first)
            await world.do(
                put_description, world.client, "shop.orders", lambda tree: with_type(tree, "title")
            )
            found = await until(world, deployment, lambda seen: whats(seen) == ["table_uncapturable"])
            (problem,) = found.problems
            assert problem.part == "shop.orders"
            assert "column title: type 200 is unknown; upgrade Penstock" in problem.message
            rows = {row.table: row for row in found.tables}
            refusal = rows["shop.orders"].refusal
            assert refusal is not None
            assert refusal.since_ts > first
            assert (rows["shop.orders"].captured, rows["shop.others"].captured) == (False, True)
            assert (found.jobs[0].lacks, found.jobs[0].lacks_because) == (
                "cannot be captured",
                refusal.reason,
            )
            listed = {row["table"]: row for row in await world.do(list_tables, deployment)}
            assert listed["shop.orders"]["refusal"]["since_ts"] == refusal.since_ts
            assert listed["shop.orders"]["readable_ts"] >= first
            assert listed["shop.others"]["refusal"] is None
            status = await world.do(read_job_status, deployment, JobId.parse("shop.orders/find"))
            assert status["lacks_because"] == refusal.reason
            waiting = FreshnessReader(world.jobs.get_job, world.source, world.settings.jobs)
            with pytest.raises(Invalid, match=r"cannot be captured .*upgrade Penstock.*; fix the cause"):
                await waiting.wait_for(JobId.parse("shop.orders/find"))
            assert await world.do(world.source.why_gone, table_id) is None

            await world.do(put_description, world.client, "shop.orders", lambda _: described)
            second = await world.insert("shop.orders", {"id": 2, "title": "b"})
            await world.caught_up("shop.orders/find", second)
            found = await until(world, deployment, lambda seen: seen.healthy)
            assert [row.captured for row in found.tables] == [True, True]
        assert sorted(copy.rows) == [(1,), (2,)]


class Patience:
    """A schema check that takes as long as a test likes: the transaction is prewritten by then."""

    def __init__(self) -> None:
        self.prewritten = asyncio.Event()
        self.over = asyncio.Event()

    async def check(self, since_ts: int, until_ts: int) -> bool:
        self.prewritten.set()
        await self.over.wait()
        return False

    async def amend(self, since_ts: int, until_ts: int, writes: Sequence[Any]) -> None:
        return None


async def test_the_lock_that_holds_a_table_back_is_named_with_the_table_of_its_primary(
    tmp_path: Path,
) -> None:
    async with job_world(tmp_path) as world, deployment_of(world, tmp_path) as deployment:
        ids = {name: await world.create(name, COLUMNS) for name in ("shop.orders", "shop.items")}
        await world.insert("shop.items", {"id": 9, "title": "secret"})
        await world.readable("shop.items")
        now_ts = await world.now_ts()
        wanted = parse_changefeed(
            {"sink_uri": f"file://{tmp_path}/files?protocol=csv", "tables": ["shop.items"]}, origin="test"
        )
        await create_changefeed(deployment.feeds, "files", wanted, now_ts=now_ts)
        await deployment.feeds.acquire("files", "host", ttl_s=60)
        lasting = KvSettings(ttl_refreshed_txn_bytes=0)  # its locks live as long as it does
        async with await AsyncClient.connect(world.settings.pd_addrs, settings=lasting) as client:
            patience = Patience()
            txn = client.begin(schema=patience, async_commit=False, one_pc=False)
            await txn.put(record_key(ids["shop.orders"], 1), b"secret")  # the primary is the first
            await txn.put(record_key(ids["shop.items"], 1), b"secret")
            committing = asyncio.ensure_future(txn.commit())
            await patience.prewritten.wait()
            start_ts = await txn.start_ts

            def is_held(seen: Overview) -> bool:
                rows = [each for each in seen.tables if each.held_by and each.held_by.kind == "lock"]
                feeds = [each for each in seen.changefeeds if each.held_by and each.held_by.kind == "lock"]
                return len(rows) == 2 and len(feeds) == 1

            found = await until(world, deployment, is_held)
            for row in found.tables:
                assert row.held_by is not None
                assert row.held_by.name == str(start_ts)
                assert row.held_by.detail.endswith("its primary key is in shop.orders")
                assert row.lag_s is not None
                assert row.lag_s > 2
                assert row.readable_ts is not None
                assert physical_ms(row.readable_ts) <= physical_ms(start_ts) + 1000
            capturing = next(each for each in found.stages if each.stage == "capture")
            assert capturing.held_by is not None
            assert capturing.held_by.kind == "lock"
            assert "secret" not in found.model_dump_json()

            patience.over.set()
            with pytest.raises(Conflict):
                await committing
            found = await until(world, deployment, lambda seen: all(not each.held_by for each in seen.tables))
            assert found.stages[1].held_by is None


async def test_a_capture_that_hangs_is_a_problem_and_nobody_waits_for_it(tmp_path: Path) -> None:
    async with job_world(tmp_path) as world, deployment_of(world, tmp_path) as deployment:
        await world.create("shop.orders", COLUMNS)
        await world.readable("shop.orders")
        with socket.create_server(("127.0.0.1", 0)) as hanging:  # takes calls and never answers
            addr = f"127.0.0.1:{hanging.getsockname()[1]}"
            ghost = CaptureLease(
                "ghost", addr, LeaseRecord("data", 1, physical_ms(await world.now_ts()) + 60_000)
            )
            async with world.async_client.begin() as txn:
                await txn.put(PREFIX + b"ghost", ghost.write())
            began = SYSTEM.monotonic()
            found = await look(world, deployment)
            took_s = SYSTEM.monotonic() - began
            assert took_s < 6
            assert whats(found) == ["part_silent"]
            assert found.problems[0].part == "ghost"
            assert [each.captured for each in found.tables] == [True]
            assert addr not in (await look(world, deployment, account="sys")).model_dump_json()


async def test_under_up_parts_rates_and_spools_come_from_what_it_says_and_from_their_metrics(
    tmp_path: Path,
) -> None:
    async with job_world(tmp_path) as world, deployment_of(world, tmp_path) as deployment:
        await world.create("shop.orders", COLUMNS)
        await world.readable("shop.orders")
        wanted = parse_changefeed({"sink_uri": f"file://{tmp_path}/files?protocol=csv"}, origin="test")
        await create_changefeed(deployment.feeds, "files", wanted, now_ts=await world.now_ts())
        await deployment.feeds.acquire("files", "host", ttl_s=60)
        spooled = metrics.SINK_SPOOL_BYTES.labels("files")
        spooled.set(90)
        for mark, nbytes in (("quota", 100), ("high", 80), ("low", 60)):
            metrics.SINK_SPOOL_MARK_BYTES.labels("files", mark).set(nbytes)
        try:
            with MetricServer.start("127.0.0.1:0") as server:
                running = PartStatus(
                    name="capture-1",
                    kind=PartKind.CAPTURE,
                    state=PartState.RUNNING,
                    pid=1234,
                    since_ms=SYSTEM.wall_ms(),
                    metrics_addr=server.addr,
                    addr=world.capture.advertised_addr,
                )
                folder = deployment.settings.up.data
                UpStates(os.getpid(), (running,)).write(folder)
                rates = FactsCache()
                await world.do(rates.read_counters, deployment.settings)
                await world.insert("shop.orders", {"id": 1, "title": "a"})
                await world.readable("shop.orders")
                found = await until(world, deployment, lambda seen: seen.stages[1].rate, rates)
                assert [(each.name, each.pid) for each in found.parts] == [("capture-1", 1234)]
                spool = found.changefeeds[0].spool
                assert spool is not None
                assert (spool.bytes, spool.level, spool.high, spool.low) == (90, 0.9, 0.8, 0.6)
                hidden = await look(world, deployment, rates, account="sys")
                assert (hidden.parts[0].pid, hidden.parts[0].addr) == (None, None)

                down = replace(
                    running, name="jobs", kind=PartKind.JOBS, state=PartState.WAITING, error="killed"
                )
                UpStates(os.getpid(), (running, down)).write(folder)
                found = await look(world, deployment)
                assert whats(found) == ["part_not_running"]
            assert whats(await look(world, deployment)) == ["part_silent", "part_not_running"]
        finally:
            metrics.SINK_SPOOL_BYTES.remove("files")
            for mark in ("quota", "high", "low"):
                metrics.SINK_SPOOL_MARK_BYTES.remove("files", mark)


async def test_a_cluster_that_is_gone_is_told_of_soon_while_the_deployment_waits_for_it(
    tmp_path: Path,
) -> None:
    store = StoreSettings(data=tmp_path / "kv", pd_addr="127.0.0.1:0", sync=False)
    cluster = await Cluster.start(store)
    up = UpSettings(data=tmp_path / "up")
    settings = Settings(pd_addrs=(cluster.pd_addr,), up=up, kv={"pd_timeout_ms": 500})
    async with (
        await AsyncClient.connect(settings.pd_addrs, settings=settings.kv) as client,
        AsyncExitStack() as closing,
    ):
        deployment = Deployment(settings, client, closing)
        try:
            assert (await asyncio.to_thread(read_overview, deployment, FactsCache())).healthy
        finally:
            await cluster.stop()
        down = PartStatus(name="store", kind=PartKind.STORE, state=PartState.WAITING, error="killed")
        UpStates(os.getpid(), (down,)).write(up.data)
        began = SYSTEM.monotonic()
        found = await asyncio.to_thread(read_overview, deployment, FactsCache())
        assert SYSTEM.monotonic() - began < 6
        assert whats(found) == ["cluster_silent", "part_not_running"]
        assert [each.lag_s for each in found.stages] == [0.0, None, None, None, None]


async def test_many_who_look_at_once_cost_as_much_as_one(tmp_path: Path) -> None:
    async with job_world(tmp_path) as world, deployment_of(world, tmp_path) as deployment:
        rates = FactsCache()
        found = await asyncio.gather(*(look(world, deployment, rates) for _ in range(10)))
        assert len({each.now_ts for each in found}) <= 3
