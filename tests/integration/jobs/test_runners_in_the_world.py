"""Runners with the real log, feed, lease, scheduler and source."""

from pathlib import Path

import pytest

from penstock.errors import Invalid
from penstock.jobs.freshness import FreshnessReader
from penstock.jobs.job import JobId
from penstock.jobs.log.job_log import RUNNER_LEASE
from penstock.jobs.spec import JobSpec
from penstock.kv.lease import read_lease
from support.jobdoubles import Copy
from support.jobworld import JobWorld, job_world

COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)")]
DEFAULT = {"job_type": "default"}


def desk_of(world: JobWorld) -> FreshnessReader:
    return FreshnessReader(world.jobs.get_job, world.source, world.settings.jobs)


async def test_jobs_that_come_one_after_the_other_end_in_one_iteration(tmp_path: Path) -> None:
    copies = {name: Copy() for name in "abc"}
    async with job_world(tmp_path) as world:
        await world.create("shop.items", COLUMNS)
        desk = desk_of(world)
        async with world.running(find=lambda name: copies[name].consumer()):
            for number, name in enumerate(copies):
                ts = await world.insert("shop.items", {"id": number, "name": name})
                await world.register(f"shop.items/{name}", consumer=name, trigger=DEFAULT)
                await desk.wait_for(JobId.parse(f"shop.items/{name}"), ts)
            await desk.wait_for(JobId.parse("shop.items/a"))  # by then the others have caught up
            await agree(world, copies)
            ts = await world.insert("shop.items", {"id": 10, "name": "all"})
            spans = set()
            for name in copies:
                await desk.wait_for(JobId.parse(f"shop.items/{name}"), ts)
                status = (await world.job(f"shop.items/{name}")).status
                spans.add((status.from_ts, status.to_ts))
            assert len(spans) == 1, "each had an iteration of its own"
            assert all(len(copy.rows) == 4 for copy in copies.values())


async def agree(world: JobWorld, copies: dict[str, Copy]) -> None:
    """Change the table until one iteration brings all of them the same."""
    for number in range(100, 130):
        ts = await world.upsert("shop.items", {"id": 0, "name": str(number)})
        for name in copies:
            await desk_of(world).wait_for(JobId.parse(f"shop.items/{name}"), ts)
        if len({copy.commits[-1] for copy in copies.values()}) == 1:
            return
    pytest.fail("they never agree")


async def test_a_runner_that_stands_by_takes_over_when_the_first_one_stops(tmp_path: Path) -> None:
    copy = Copy()
    async with job_world(tmp_path) as world:
        await world.create("shop.items", COLUMNS)
        await world.insert("shop.items", {"id": 1, "name": "a"})
        await world.register("shop.items/copy", consumer="copy")
        async with world.running(find=lambda _: copy.consumer(), owner="first") as _:
            ts = await world.insert("shop.items", {"id": 2, "name": "b"})
            await desk_of(world).wait_for(JobId.parse("shop.items/copy"), ts)
            standing_by = world.running(find=lambda _: copy.consumer(), owner="second")
            await standing_by.__aenter__()
            assert (await read_lease(world.async_client, RUNNER_LEASE)).owner == "first"
        try:
            ts = await world.insert("shop.items", {"id": 3, "name": "c"})
            await desk_of(world).wait_for(JobId.parse("shop.items/copy"), ts)
            found = await read_lease(world.async_client, RUNNER_LEASE)
            assert (found.owner, found.epoch) == ("second", 2)
            assert (await world.job("shop.items/copy")).status.runner == 2
            assert sorted(key for (key,) in copy.rows) == [1, 2, 3]
            assert copy.commits == sorted(set(copy.commits))
        finally:
            await standing_by.__aexit__(None, None, None)


async def test_who_waits_for_a_job_that_was_paused_is_told_so(tmp_path: Path) -> None:
    copy = Copy()
    async with job_world(tmp_path) as world:
        await world.create("shop.items", COLUMNS)
        ts = await world.insert("shop.items", {"id": 1, "name": "a"})
        await world.register("shop.items/copy", consumer="copy")
        job_id = JobId.parse("shop.items/copy")
        async with world.running(find=lambda _: copy.consumer()):
            found = await desk_of(world).wait_for(job_id, ts)
            assert found.covers(ts)
            await world.do(_pause, world, job_id)
            before_ts = await world.now_ts()
            ts = await world.insert("shop.items", {"id": 2, "name": "b"})
            await world.readable("shop.items", ts)
            with pytest.raises(Invalid, match="paused"):
                await desk_of(world).wait_for(job_id, ts)
            covered = await desk_of(world).coverage(job_id)
            assert covered.missing == 1
            assert covered.oldest_ts is not None
            assert before_ts < covered.oldest_ts <= ts


def _pause(world: JobWorld, job_id: JobId) -> None:
    with world.client.begin() as txn:
        world.jobs.update_job_spec(txn, job_id, JobSpec.parse({"trigger": {"paused": True}}))
