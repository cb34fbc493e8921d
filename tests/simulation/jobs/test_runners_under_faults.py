"""Processes that run jobs, under faults: leases are lost, the log repeats itself, looks fail, processes die.

PENSTOCK_SEED=n repeats one run.
"""

import random  # noqa: TID251 - seeded
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.jobs.job import JobState
from penstock.jobs.log.transitions import resume_job, resync_job, update_spec
from penstock.jobs.spec import JobSpec, TriggerSpec
from penstock.settings import JobsSettings
from support.boardstage import spec_of
from support.campaign import seeds
from support.shakyfeed import SimClock
from support.simjoblog import Chance
from support.simjobs import SimCluster, SimProcess
from support.simloop import SimLoop

Body = Callable[[SimCluster, random.Random], Coroutine[Any, Any, None]]

SEEDS = seeds(4, 40, first=0)
SPECS = ["", "", "", "", "own", "greedy", "2s", "20s+share", "20s"]
TABLES = (1, 2, 3)
SETTINGS = JobsSettings(
    workers=4, queue_max=6, watermark_interval_s=30, collect_interval_s=20, dropped_ttl_s=40
)


class Weather:
    """What people, tables and machines do to a cluster."""

    def __init__(self, cluster: SimCluster, mix: random.Random) -> None:
        self.cluster = cluster
        self.mix = mix
        self.processes = [cluster.start(), cluster.start()]

    async def storm(self, steps: int) -> None:
        for _ in range(steps):
            await self.cluster.chance.clock.sleep(self.mix.random() * 4)
            for _ in range(self.mix.randint(0, 3)):
                self.cluster.tables.commit(self.mix.choice(TABLES))
            self.cluster.tables.collect()
            await self._somebody_does_something()

    async def _somebody_does_something(self) -> None:
        log, mix = self.cluster.log, self.mix
        live = [job for job in log.rows.values() if job.live]
        spec = spec_of(mix.choice(SPECS).split())
        event = mix.random()
        if event < 0.15 or not live:
            table_id, name = mix.choice(TABLES), mix.choice("abcd")
            if not any(job.key.table_id == table_id and job.key.job_name == name for job in live):
                log.register(table_id, name, spec)
        elif event < 0.20:
            log.change(mix.choice(live).key, update_spec(spec, interrupt=mix.random() < 0.5, at=1))
        elif event < 0.23:
            log.drop(mix.choice(live).key)
        elif event < 0.26:
            log.change(mix.choice(live).key, mix.choice([resync_job, PAUSE, resume_job]))
        elif event < 0.32:
            await self._a_process_ends()

    async def _a_process_ends(self) -> None:
        process = self.processes.pop(self.mix.randrange(2))
        await (process.kill() if self.mix.random() < 0.7 else process.stop())
        self.processes.append(self.cluster.start())

    async def calm(self) -> None:
        """Nothing fails any more, and everybody who was stopped goes on."""
        self.cluster.chance.calm()
        for job in list(self.cluster.log.rows.values()):
            if job.live:
                self.cluster.log.change(job.key, resume_job)
        await self.cluster.chance.clock.sleep(240)


PAUSE = update_spec(JobSpec(trigger=TriggerSpec(paused=True)), interrupt=False, at=1)


async def checked(chance: Chance, mix: random.Random, body: Body) -> None:
    cluster = SimCluster(chance, SETTINGS)
    await body(cluster, mix)
    assert not cluster.mistakes


def simulated(seed: int, trouble: float, body: Body) -> None:
    mix = random.Random(seed)
    loop = SimLoop()
    try:
        chance = Chance(mix, SimClock(loop, mix), trouble=trouble)
        loop.run_until_complete(checked(chance, mix, body))
    finally:
        loop.close()


async def everything_arrives(cluster: SimCluster, mix: random.Random) -> None:
    weather = Weather(cluster, mix)
    await weather.storm(120)
    await weather.calm()
    for table_id in TABLES:
        cluster.tables.commit(table_id)
    begun = len(cluster.iterations)
    await cluster.chance.clock.sleep(60)
    live = [job for job in cluster.log.rows.values() if job.live]
    for job in live:
        assert job.state is JobState.COMPLETED, job
        assert cluster.targets[job.key].commits == set(cluster.tables.commits[job.key.table_id]), job
    await shared_alike(cluster, begun)
    dropped = [job.drop_at for job in cluster.log.rows.values() if job.drop_at is not None]
    assert all(at > cluster.chance.clock.wall_ms() - 80_000 for at in dropped), "they are collected"
    for process in weather.processes:
        await process.stop()


async def shared_alike(cluster: SimCluster, begun: int) -> None:
    """The last change of each table was brought to all default jobs by one iteration."""
    for table_id in TABLES:
        members = {
            job.key
            for job in cluster.log.rows.values()
            if job.live
            and job.key.table_id == table_id
            and job.spec.shares
            and job.spec.job_type == "default"
        }
        found = [
            {job.key for job in each.jobs} & members
            for each in cluster.iterations[begun:]
            if each.table_id == table_id
        ]
        assert [keys for keys in found if keys] == ([members] if members else [])


@pytest.mark.parametrize("seed", SEEDS)
def test_every_change_arrives_once_and_those_that_share_agree_again(seed: int) -> None:
    simulated(seed, 0.03, everything_arrives)


@pytest.mark.parametrize("seed", SEEDS)
def test_history_is_held_so_that_nobody_begins_with_nothing_again(seed: int) -> None:
    async def body(cluster: SimCluster, mix: random.Random) -> None:
        for name in "abc":
            cluster.log.register(1, name, spec_of([]))
        process: SimProcess = cluster.start()
        for _ in range(60):
            await cluster.chance.clock.sleep(mix.random() * 8)
            if mix.random() < 0.3:
                cluster.tables.commit(1)
            cluster.tables.collect()
            if mix.random() < 0.1:
                await process.kill()
                process = cluster.start()
        await process.stop()
        assert cluster.tables.oldest[1], "nothing was ever collected"
        assert not cluster.resyncs

    simulated(seed, 0.0, body)
