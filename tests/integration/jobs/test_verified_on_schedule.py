"""Targets of running jobs, compared with their sources on schedule: what is damaged is found and told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import SYSTEM
from penstock.control import jobs
from penstock.control.deployment import open_deployment
from penstock.control.verify import VerifyOptions, verify_targets
from penstock.errors import Fenced
from penstock.jobs.job import JobId
from penstock.jobs.log.job_log import RUNNER_LEASE
from penstock.kv.lease import read_lease
from penstock.verify.results import LastVerification, VerificationResults
from support.jobworld import JobWorld, job_world

JOB = "shop.items/copy"


async def until(world: JobWorld, holds: Callable[[], bool]) -> None:
    """Wait for something that has to be read from the database."""
    deadline = SYSTEM.monotonic() + 60
    while not await world.do(holds):
        assert SYSTEM.monotonic() < deadline
        await SYSTEM.sleep(0.05)


async def until_found(world: JobWorld, *, same: bool) -> LastVerification:
    outcomes, key = VerificationResults(world.jobs.log), (await world.job(JOB)).key
    found: list[LastVerification] = []

    def holds() -> bool:
        found[:] = outcomes.read([key]).values()
        return bool(found) and found[0].same is same

    await until(world, holds)
    return found[0]


async def test_a_damaged_target_is_found_by_the_schedule_and_the_job_goes_on(tmp_path: Path) -> None:
    async with job_world(tmp_path, jobs={"collect_interval_s": 0.2, "dropped_ttl_s": 0.0}) as world:
        await world.create("shop.items", [("id", "bigint primary key"), ("name", "varchar(40)")])
        await world.insert("shop.items", *({"id": n, "name": f"n{n}"} for n in range(20)))
        await world.register(JOB, consumer="kv", options={"table": "shop.copy"}, verify="1s")
        async with world.running():
            first = await until_found(world, same=True)
            assert (first.source_rows, first.target_rows, first.problem) == (20, 20, "")
            await world.delete("shop.copy", 3)
            await world.upsert("shop.copy", {"id": 4, "name": "other"}, {"id": 99, "name": "extra"})
            bad = await until_found(world, same=False)
            assert (bad.counts.missing, bad.counts.different, bad.counts.extra) == (1, 1, 1)
            assert "differs" in bad.problem
            ts = await world.insert("shop.items", {"id": 50, "name": "later"})
            await world.caught_up(JOB, ts)
            shown = await world.do(_shown, world)
            assert shown["verified"]["same"] is False
            assert shown["verified"]["differences"] == 3
            assert shown["state"] != "error"
            assert await world.do(_exit, world) == (False, 3)
            key = (await world.job(JOB)).key
            epoch = (await read_lease(world.async_client, RUNNER_LEASE)).epoch
            with pytest.raises(Fenced, match="another process has the lease"):
                await world.do(VerificationResults(world.jobs.log).note, key, bad, epoch=epoch - 1)
            await world.do(_unregister, world)
            outcomes = VerificationResults(world.jobs.log)
            await until(world, lambda: not outcomes.read([key]))
            with pytest.raises(Fenced, match="dropped"):
                await world.do(outcomes.note, key, bad, epoch=epoch)


def _shown(world: JobWorld) -> dict[str, Any]:
    with open_deployment(world.settings) as deployment:
        (listed,) = jobs.list_jobs(deployment, None)
        status = jobs.read_job_status(deployment, JobId.parse(JOB))
    assert listed["verified"]["same"] == status["verified"]["same"]
    return status


def _exit(world: JobWorld) -> tuple[bool | None, int]:
    """What the command finds at once, up to now."""
    with open_deployment(world.settings) as deployment:
        (report,) = verify_targets(deployment, [JOB], VerifyOptions(at="now"))
    shown = report.details()
    return report.same, shown["missing"] + shown["different"] + shown["extra"]


def _unregister(world: JobWorld) -> None:
    with world.client.begin() as txn:
        assert world.jobs.unregister_job(txn, JobId.parse(JOB))
