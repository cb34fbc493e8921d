"""The process that runs jobs, on a simulated cluster without faults but those of each test."""

import random  # noqa: TID251 - seeded
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from penstock.clock import compose_ts, physical_ms
from penstock.errors import Unavailable
from penstock.jobs.job import ErrorCode, Job, JobState
from penstock.jobs.log.transitions import queue_iteration, resume_job, update_spec
from penstock.jobs.runner import custom_triggers
from penstock.jobs.runner.custom_triggers import TriggerContext
from penstock.jobs.spec import JobSpec
from penstock.settings import JobsSettings
from support.boardstage import spec_of
from support.shakyfeed import SimClock
from support.simjoblog import Chance
from support.simjobs import SimCluster
from support.simloop import SimLoop

ALLOWED = ("triggers", "triggers_that_fail", "nightly", "no", "penstock.clock")
"""The modules of triggers that tests make; another one is refused, as in test_custom_code.py."""

Body = Callable[[SimCluster], Coroutine[Any, Any, None]]


def simulated(body: Body, *, ahead_ms: int = 3_600_000, **settings: Any) -> None:
    mix = random.Random(7)
    loop = SimLoop()

    async def run() -> None:
        chance = Chance(mix, SimClock(loop, mix), trouble=0, ahead_ms=ahead_ms)
        cluster = SimCluster(chance, JobsSettings(**{"allowed_code": ALLOWED, **settings}))
        cluster.slowness_s = 0.1
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


def row(cluster: SimCluster, job: Job) -> Job:
    return cluster.log.rows[job.key]


def complete(cluster: SimCluster, job: Job) -> bool:
    return cluster.targets[job.key].commits == set(cluster.tables.commits[job.key.table_id])


def test_a_new_job_does_not_wait_for_the_next_look() -> None:
    async def body(cluster: SimCluster) -> None:
        cluster.tables.commit(1)
        await sleep(cluster, 13)
        job = cluster.log.register(1, "a", spec_of([]))
        await sleep(cluster, 1)
        assert row(cluster, job).state is JobState.COMPLETED
        assert complete(cluster, job)

    simulated(body)


def test_changes_come_with_the_next_look_and_to_greedy_jobs_at_once() -> None:
    async def body(cluster: SimCluster) -> None:
        cluster.tables.commit(1)
        slow = cluster.log.register(1, "a", spec_of([]))
        swift = cluster.log.register(1, "b", spec_of(["greedy"]))
        await sleep(cluster, 25)
        cluster.tables.commit(1)
        await sleep(cluster, 1.9)  # tables can be read up to a second ago
        assert (complete(cluster, swift), complete(cluster, slow)) == (True, False)
        await sleep(cluster, 10)
        assert complete(cluster, slow)

    simulated(body)


def test_nothing_begins_while_tables_cannot_be_looked_at_and_nothing_with_an_invented_end() -> None:
    async def body(cluster: SimCluster) -> None:
        cluster.tables.commit(1)
        look = cluster.tables.read_progress

        async def fails(_: object) -> Any:
            raise Unavailable("nobody answers")

        cluster.tables.read_progress = fails  # type: ignore[method-assign] # a fault
        job = cluster.log.register(1, "a", spec_of([]))
        await sleep(cluster, 60)
        assert not cluster.iterations
        cluster.tables.read_progress = look  # type: ignore[method-assign] # the fault is over
        await sleep(cluster, 3)
        assert complete(cluster, job)
        now_ts = cluster.chance.now_ts()
        assert all(0 < each.to_ts <= now_ts for each in cluster.iterations)

    simulated(body)


def test_a_table_that_is_not_captured_yet_is_waited_for() -> None:
    async def body(cluster: SimCluster) -> None:
        cluster.tables.commit(1)
        cluster.tables.uncaptured.add(1)
        job = cluster.log.register(1, "a", spec_of([]))
        await sleep(cluster, 33)
        assert not cluster.iterations
        cluster.tables.uncaptured.clear()
        await sleep(cluster, 2.5)
        assert complete(cluster, job)

    simulated(body)


@pytest.mark.parametrize("ahead_ms", [-3_600_000, 0, 86_400_000])
def test_the_clock_of_the_wall_decides_nothing(ahead_ms: int) -> None:
    async def body(cluster: SimCluster) -> None:
        cluster.tables.commit(1)
        jobs = [cluster.log.register(1, words[0], spec_of(words[1:])) for words in (["a"], ["b", "30s"])]
        await sleep(cluster, 15)
        cluster.tables.commit(1)
        await sleep(cluster, 12)
        assert [complete(cluster, job) for job in jobs] == [True, False]
        await sleep(cluster, 25)
        assert [complete(cluster, job) for job in jobs] == [True, True]

    simulated(body, ahead_ms=ahead_ms)


def test_quiet_tables_cost_one_look_for_all_of_them() -> None:
    async def body(cluster: SimCluster) -> None:
        for table_id in range(1, 41):
            cluster.tables.commit(table_id)
            for name in "abcde":
                cluster.log.register(table_id, name, spec_of([]))
        await sleep(cluster, 25)
        looks, iterations = cluster.tables.progress_reads, len(cluster.iterations)
        written = len(cluster.log.history)
        cluster.tables.commit(7)
        await sleep(cluster, 100)
        assert cluster.tables.progress_reads - looks == 10
        assert [len(each.jobs) for each in cluster.iterations[iterations:]] == [5]
        assert len(cluster.log.history) - written == 10  # five jobs begin and end; nothing else is written

    simulated(body, workers=16)


def test_a_full_queue_delays_iterations_and_loses_none() -> None:
    async def body(cluster: SimCluster) -> None:
        jobs = []
        for table_id in range(1, 9):
            cluster.tables.commit(table_id)
            jobs.append(cluster.log.register(table_id, "a", spec_of([])))
        await sleep(cluster, 12)
        assert all(complete(cluster, job) for job in jobs)

    simulated(body, workers=1, queue_max=1)


def test_the_job_of_a_table_that_is_gone_is_stopped_with_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    async def body(cluster: SimCluster) -> None:
        cluster.tables.commit(1)
        cluster.tables.commit(2)
        gone, other = (cluster.log.register(table_id, "a", spec_of([])) for table_id in (1, 2))
        await sleep(cluster, 5)
        cluster.tables.fates[1] = "table t1 was truncated; rebuild the job with `penstock job repair`"
        cluster.tables.commit(2)
        await sleep(cluster, 30)
        stopped = row(cluster, gone)
        assert (stopped.state, stopped.status.error_code) == (JobState.ERROR, ErrorCode.TABLE_GONE)
        assert "penstock job repair" in stopped.status.error_msg
        assert stopped.status.failures == 1
        assert complete(cluster, other)
        assert 1 not in cluster.tables.held
        told = [each for each in caplog.records if each.getMessage() == "a job stops: its table is gone"]
        assert [each.__dict__["job"] for each in told] == [str(gone.id)]

    simulated(body)


def test_watermarks_that_moved_in_memory_are_written_each_hour_and_nothing_else_of_the_row() -> None:
    async def body(cluster: SimCluster) -> None:
        cluster.tables.commit(1)
        job, dropped = (cluster.log.register(1, name, spec_of([])) for name in "ab")
        await sleep(cluster, 3500)
        before = row(cluster, job)
        cluster.log.drop(dropped.key)
        end = row(cluster, dropped)
        await sleep(cluster, 200)
        after = row(cluster, job)
        assert physical_ms(after.watermark) - physical_ms(before.watermark) > 3_500_000
        assert after == replace(before, watermark=after.watermark)
        assert row(cluster, dropped) == end

    simulated(body)


def test_dropped_jobs_are_collected_when_they_have_been_so_for_a_day() -> None:
    assert JobsSettings().dropped_ttl_s == 86_400
    assert JobsSettings().collect_interval_s == 3600

    async def body(cluster: SimCluster) -> None:
        job = cluster.log.register(1, "a", spec_of([]))
        cluster.log.drop(job.key)
        await sleep(cluster, 860)
        assert job.key in cluster.log.rows
        await sleep(cluster, 50)
        assert job.key not in cluster.log.rows

    simulated(body, dropped_ttl_s=864, collect_interval_s=36)


def test_history_is_held_as_far_as_the_log_needs_it() -> None:
    async def body(cluster: SimCluster) -> None:
        cluster.tables.commit(1)
        behind = cluster.log.register(1, "a", spec_of(["paused"]))
        job = cluster.log.register(1, "b", spec_of([]))
        await sleep(cluster, 30)
        assert cluster.tables.held == {1: row(cluster, job).watermark}
        cluster.log.change(behind.key, resume_job)
        await sleep(cluster, 30)
        assert cluster.tables.held == {1: min(row(cluster, each).watermark for each in (job, behind))}

    simulated(body)


def test_the_end_of_a_first_iteration_is_held_before_it_is_reached() -> None:
    async def body(cluster: SimCluster) -> None:
        cluster.slowness_s = 500.0
        cluster.tables.commit(1)
        cluster.log.register(1, "a", spec_of([]))
        await sleep(cluster, 2)
        (first,) = cluster.iterations
        assert cluster.tables.held == {1: first.to_ts}

    simulated(body)


def test_an_interrupting_spec_ends_the_iteration_and_the_next_begins_where_it_began() -> None:
    async def body(cluster: SimCluster) -> None:
        cluster.tables.commit(1)
        job = cluster.log.register(1, "a", spec_of([]))
        await sleep(cluster, 5)
        cluster.slowness_s = 50.0
        cluster.tables.commit(1)
        await sleep(cluster, 12)
        assert row(cluster, job).state is JobState.RUNNING
        cluster.slowness_s = 0.1
        cluster.log.change(job.key, update_spec(spec_of(["own"]), interrupt=True, at=1))
        assert row(cluster, job).state is JobState.CANCELED
        await sleep(cluster, 70)
        begun = [each.from_ts for each in cluster.iterations]
        assert begun[1] == begun[2]
        assert complete(cluster, job)

    simulated(body)


def test_another_process_takes_over_and_the_first_stops() -> None:
    async def body(cluster: SimCluster) -> None:
        cluster.tables.commit(1)
        job = cluster.log.register(1, "a", spec_of([]))
        await sleep(cluster, 5)
        cluster.leases.holding = replace(cluster.leases.holding, until=0.0)  # as if it had run out
        second = cluster.start()
        try:
            await taken_over(cluster, job)
        finally:
            await second.stop()

    async def taken_over(cluster: SimCluster, job: Job) -> None:
        await sleep(cluster, 1)
        assert cluster.leases.holding.owner == "runner-2"
        adopted = row(cluster, job)
        assert (adopted.status.runner, adopted.state) == (2, JobState.COMPLETED)
        cluster.tables.commit(1)
        await sleep(cluster, 15)
        assert complete(cluster, job)
        assert cluster.leases.holding.owner == "runner-2"

    simulated(body)


def test_a_row_that_a_vanished_runner_was_busy_with_is_adopted() -> None:
    async def body(cluster: SimCluster) -> None:
        cluster.tables.commit(1)
        await sleep(cluster, 2)
        job = cluster.log.register(1, "a", spec_of([]))
        cluster.log.change(job.key, queue_iteration(0, 5, runner=0))
        await sleep(cluster, 3)
        assert complete(cluster, job)
        assert row(cluster, job).status.runner == 1

    simulated(body)


def test_without_the_lease_nothing_begins() -> None:
    async def body(cluster: SimCluster) -> None:
        cluster.tables.commit(1)
        job = cluster.log.register(1, "a", spec_of([]))
        await sleep(cluster, 5)
        cluster.chance.strikes = lambda weight=1.0: weight == 2  # type: ignore[method-assign] # renewing fails
        await sleep(cluster, 16)
        begun = len(cluster.iterations)
        cluster.tables.commit(1)
        await sleep(cluster, 60)
        assert len(cluster.iterations) == begun
        del cluster.chance.strikes
        await sleep(cluster, 15)
        assert complete(cluster, job)

    simulated(body)


# Custom triggers.


def installed(monkeypatch: pytest.MonkeyPatch, trigger: Callable[[TriggerContext], object]) -> JobSpec:
    """A spec whose trigger is this function."""
    name = f"triggers.of_{trigger.__name__}"
    module = ModuleType(name)
    module.it = trigger  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    return JobSpec.parse({"trigger": {"job_type": f"{name}:it"}})


def test_a_custom_trigger_says_when(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TriggerContext] = []

    def when_told(context: TriggerContext) -> bool:
        asked.append(context)
        return context.behind_s > 40 and bool(context.changed)

    async def body(cluster: SimCluster) -> None:
        cluster.tables.commit(1)
        await sleep(cluster, 2)
        job = cluster.log.register(1, "a", installed(monkeypatch, when_told))
        await sleep(cluster, 5)
        assert complete(cluster, job)
        cluster.tables.commit(1)
        await sleep(cluster, 30)
        assert not complete(cluster, job)
        await sleep(cluster, 20)
        assert complete(cluster, job)
        assert asked[0].job == job.id
        assert all(each.watermark for each in asked)  # a new job begins without being asked
        assert asked[0].now_ts >= compose_ts(physical_ms(cluster.chance.now_ts()) - 60_000)

    simulated(body)


def test_a_trigger_that_raises_is_told_in_the_status_and_hurts_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = True

    def raises(_: TriggerContext) -> bool:
        if broken:
            raise ZeroDivisionError("a secret")
        return False

    async def body(cluster: SimCluster) -> None:
        nonlocal broken
        cluster.tables.commit(1)
        job = cluster.log.register(1, "a", installed(monkeypatch, raises))
        other = cluster.log.register(1, "b", spec_of([]))
        await sleep(cluster, 5)
        cluster.tables.commit(1)
        await sleep(cluster, 20)
        status = row(cluster, job).status
        assert (status.error_code, row(cluster, job).state) == (ErrorCode.TRIGGER, JobState.COMPLETED)
        assert "raised ZeroDivisionError" in status.error_msg
        assert "secret" not in status.error_msg
        assert complete(cluster, other)
        broken = False
        await sleep(cluster, 100)
        status = row(cluster, job).status
        assert (status.error_code, status.error_msg, status.failures) == (0, "", 0)

    simulated(body)


def test_a_trigger_that_does_not_answer_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    async def body(cluster: SimCluster) -> None:
        def hangs(_: TriggerContext) -> bool:
            nonlocal asked
            asked += 1
            cluster.chance.clock.pause(1000)
            return True

        cluster.tables.commit(1)
        job = cluster.log.register(1, "a", installed(monkeypatch, hangs))
        other = cluster.log.register(1, "b", spec_of([]))
        await sleep(cluster, 5)
        cluster.tables.commit(1)
        await sleep(cluster, 300)
        assert asked == 1
        assert "has not answered" in row(cluster, job).status.error_msg
        assert complete(cluster, other)

    simulated(body)


@pytest.mark.parametrize("name", ["no.such.module:trigger", "penstock.clock:no_such", "no-such-entry-point"])
def test_a_trigger_that_there_is_not_stops_the_job(name: str) -> None:
    async def body(cluster: SimCluster) -> None:
        cluster.tables.commit(1)
        job = cluster.log.register(1, "a", JobSpec.parse({"trigger": {"job_type": name}}))
        await sleep(cluster, 25)
        assert (row(cluster, job).state, row(cluster, job).status.error_code) == (
            JobState.ERROR,
            ErrorCode.REFUSED,
        )
        assert name in row(cluster, job).status.error_msg

    simulated(body)


def test_a_trigger_that_returns_no_bool_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def vague(_: TriggerContext) -> object:
        return "perhaps"

    spec = installed(monkeypatch, vague)
    context: Any = SimpleNamespace(job="j")
    request = custom_triggers.TriggerRequest(spec.job_type, context)
    said = custom_triggers.ask_trigger(request, ALLOWED)
    assert said == custom_triggers.Fault(
        ErrorCode.REFUSED, f"trigger {spec.job_type} returned str; it has to return a bool"
    )


def test_a_trigger_is_found_by_the_name_of_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(_: TriggerContext) -> bool:
        return True

    def points(group: str) -> dict[str, Any]:
        assert group == "penstock.triggers"
        return {"at-night": SimpleNamespace(value="nightly:entry")}

    monkeypatch.setitem(sys.modules, "nightly", SimpleNamespace(entry=entry))
    monkeypatch.setattr(custom_triggers, "entry_points", points)
    assert custom_triggers.find_trigger("at-night", ALLOWED) is entry
