"""What the runner and its iterations count, when it happens and not else."""

import random  # noqa: TID251 - seeded
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
from prometheus_client import REGISTRY

from penstock.errors import Unavailable
from penstock.jobs.log.log_feed import LogChange
from penstock.jobs.spec import JobSpec
from penstock.settings import JobsSettings
from support.boardstage import spec_of
from support.shakyfeed import SimClock
from support.simjoblog import Chance, SimFeed
from support.simjobs import SimCluster
from support.simloop import SimLoop

Body = Callable[[SimCluster], Coroutine[Any, Any, None]]


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"penstock_jobs_{name}", labels) or 0.0


@contextmanager
def counting(*names: str) -> Iterator[Callable[[], list[float]]]:
    """How often each has happened since."""
    before = [counted(name) for name in names]
    yield lambda: [counted(name) - was for name, was in zip(names, before, strict=True)]


def simulated(body: Body, **settings: Any) -> None:
    """Run one process without trouble."""
    mix, loop = random.Random(7), SimLoop()

    async def run() -> None:
        cluster = SimCluster(Chance(mix, SimClock(loop, mix), trouble=0), JobsSettings(**settings))
        process = cluster.start()
        try:
            await body(cluster)
        finally:
            await process.stop()
        assert not cluster.mistakes

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


async def sleep(cluster: SimCluster, seconds: float) -> None:
    await cluster.chance.clock.sleep(seconds)


def test_a_runner_counts_its_takeover_what_it_adopts_and_what_it_submits() -> None:
    async def body(cluster: SimCluster) -> None:
        cluster.tables.commit(1)
        cluster.log.register(1, "a", spec_of([]))
        await sleep(cluster, 25)
        assert counted("runner") == 1
        assert counted("jobs", state="completed") == 1

    with counting("takeovers_total", "adopted_total") as grown:
        first = counted("submitted_total", rule="first")
        simulated(body)
        assert grown()[0] == 1
        assert counted("submitted_total", rule="first") == first + 1
    assert counted("runner") == 0


def test_looks_that_fail_are_counted() -> None:
    async def body(cluster: SimCluster) -> None:
        cluster.log.register(1, "a", spec_of([]))
        await sleep(cluster, 15)
        assert grown() == [0]

        async def fails(_: object) -> Any:
            raise Unavailable("nobody answers")

        cluster.tables.read_progress = fails  # type: ignore[method-assign] # a fault
        await sleep(cluster, 30)
        assert grown()[0] >= 2

    with counting("look_failures_total") as grown:
        simulated(body)


def test_iterations_for_which_there_is_no_room_are_counted() -> None:
    async def body(cluster: SimCluster) -> None:
        cluster.slowness_s = 60
        for table_id in range(1, 6):
            cluster.tables.commit(table_id)
            cluster.log.register(table_id, "a", spec_of([]))
        await sleep(cluster, 30)
        assert grown()[0] >= 3

    with counting("refused_iterations_total") as grown:
        simulated(body, queue_max=2)


def test_triggers_that_give_no_answer_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("triggers_that_fail")
    module.it = lambda _: 1 / 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)

    async def body(cluster: SimCluster) -> None:
        cluster.tables.commit(1)
        cluster.log.register(1, "a", JobSpec.parse({"trigger": {"job_type": "triggers_that_fail:it"}}))
        await sleep(cluster, 30)
        assert grown()[0] >= 1

    with counting("trigger_faults_total") as grown:
        simulated(body)


def test_a_log_that_is_read_again_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def follow(self: SimFeed, ts: int) -> Any:
        yield LogChange((), ())
        for _ in range(2):
            yield LogChange(tuple(self._log.rows.values()), whole=True)
        await self._chance.clock.sleep(10**6)

    monkeypatch.setattr(SimFeed, "follow", follow)

    async def body(cluster: SimCluster) -> None:
        await sleep(cluster, 5)

    with counting("log_replays_total") as grown:
        simulated(body)
        assert grown() == [2]


def test_watermarks_of_quiet_tables_are_counted_when_raised_and_when_written() -> None:
    async def body(cluster: SimCluster) -> None:
        cluster.tables.commit(1)
        cluster.log.register(1, "a", spec_of([]))
        await sleep(cluster, 100)
        raised, flushed = grown()
        assert raised >= flushed >= 1

    with counting("raised_watermarks_total", "flushed_watermarks_total") as grown:
        simulated(body, watermark_interval_s=30)


def test_rows_that_are_collected_are_counted() -> None:
    async def body(cluster: SimCluster) -> None:
        for name in ("a", "b"):
            cluster.log.drop(cluster.log.register(1, name, spec_of([])).key)
        await sleep(cluster, 60)
        assert grown() == [2]

    with counting("collected_total") as grown:
        simulated(body, dropped_ttl_s=10, collect_interval_s=5)
