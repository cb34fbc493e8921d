"""Iterations in, ends of jobs out: workers, retries, cancellation, fairness, closing."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from penstock import eventloop
from penstock.errors import Unavailable
from penstock.jobs.consumer import DataRetriever, JobContext
from penstock.jobs.job import JobState
from support.iterationbench import Bench, all_rows, item_bench
from support.jobdoubles import Copy, consumer_of, iteration_of, job_row, until


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with item_bench(tmp_path) as made:
        made.settings = {"backoff_s": 0.01, "workers": 4}
        yield made


class Gated:
    """A consumer that says who has begun, and goes on once it is let through."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._open = threading.Semaphore(0)

    def consume(self, job: JobContext, data: DataRetriever) -> None:
        self.begun.append(job.id.job)
        assert self._open.acquire(timeout=20)
        all_rows(data)

    def let(self, count: int) -> None:
        self._open.release(count)


def test_every_job_of_an_iteration_leaves_once_and_completed(bench: Bench) -> None:
    copies = {name: Copy() for name in "abc"}
    bench.consumers = {name: copy.consumer() for name, copy in copies.items()}
    with bench.scheduler() as scheduler:
        assert scheduler.submit(bench.iteration(*(job_row(name, name) for name in copies)))
        until(lambda: len(bench.ends) == 3)
    assert all(bench.end(name).watermark == copy.ts == bench.world.ts for name, copy in copies.items())


def test_what_failed_for_now_is_tried_again_without_its_siblings(bench: Bench) -> None:
    good, tries = Copy(), []

    def stumble(_job: JobContext, data: DataRetriever) -> None:
        tries.append(len(all_rows(data)))
        if len(tries) < 4:
            raise Unavailable("away")

    bench.consumers = {"good": good.consumer(), "bad": consumer_of(stumble)}
    with bench.scheduler() as scheduler:
        scheduler.submit(bench.iteration(job_row("good", "good"), job_row("bad", "bad")))
        until(lambda: len(bench.ends) == 2)
    assert tries == [5, 5, 5, 5]  # all of it each time
    assert good.commits == [bench.world.ts]
    assert bench.end("bad").watermark == bench.world.ts
    assert bench.log.states("bad") == [JobState.RUNNING, JobState.PENDING] * 3 + [
        JobState.RUNNING,
        JobState.COMPLETED,
    ]


def test_tries_come_to_an_end_and_the_error_stays(bench: Bench) -> None:
    tries: list[int] = []

    def fail(_job: JobContext, _data: DataRetriever) -> None:
        tries.append(1)
        raise Unavailable("away")

    bench.settings["attempts"] = 3
    bench.consumers = {"copy": consumer_of(fail)}
    with bench.scheduler() as scheduler:
        scheduler.submit(bench.iteration(job_row("j")))
        until(lambda: bool(bench.ends))
        assert scheduler.queued == 0
    row = bench.end("j")
    assert (len(tries), row.status.failures, row.status.error_code) == (3, 3, 1)
    assert (row.state, row.watermark) == (JobState.COMPLETED, 0)


def test_a_full_queue_refuses_an_iteration_with_all_of_its_jobs(bench: Bench) -> None:
    gate = Gated()
    bench.settings |= {"workers": 1, "queue_max": 1}
    bench.consumers = {"copy": consumer_of(gate.consume)}
    with bench.scheduler() as scheduler:
        assert scheduler.submit(bench.iteration(job_row("running")))
        until(lambda: gate.begun == ["running"])
        assert scheduler.submit(bench.iteration(job_row("waits")))
        refused = bench.iteration(job_row("x"), job_row("y"))
        assert not scheduler.submit(refused)
        assert not scheduler.cancel(refused.jobs[0].key)
        gate.let(4)
        until(lambda: len(bench.ends) == 2)
        assert scheduler.submit(refused)
        until(lambda: len(bench.ends) == 4)


def test_as_many_run_as_there_are_workers(bench: Bench) -> None:
    gate = Gated()
    bench.settings["workers"] = 3
    bench.consumers = {"copy": consumer_of(gate.consume)}
    with bench.scheduler() as scheduler:
        for number in range(5):
            scheduler.submit(bench.iteration(job_row(f"job{number}")))
        until(lambda: len(gate.begun) == 3)
        assert (scheduler.running, scheduler.queued) == (3, 2)
        gate.let(5)
        until(lambda: len(bench.ends) == 5)
        until(lambda: scheduler.running == 0)


def test_a_lone_iteration_does_not_wait_behind_a_thousand_of_another_account(bench: Bench) -> None:
    begun: list[str] = []
    bench.settings |= {"workers": 2}
    gate = threading.Event()

    def consume(job: JobContext, data: DataRetriever) -> None:
        assert gate.wait(20)
        begun.append(job.id.job)
        all_rows(data)

    bench.consumers = {"copy": consumer_of(consume)}
    with bench.scheduler() as scheduler:
        for number in range(100):
            scheduler.submit(bench.iteration(job_row(f"many{number}", account="many")))
        until(lambda: scheduler.running == 2)
        scheduler.submit(bench.iteration(job_row("only", account="few")))
        gate.set()
        until(lambda: "only" in bench.ends)
        assert begun.index("only") <= 3
        until(lambda: len(bench.ends) == 101)


def test_the_more_urgent_goes_first(bench: Bench) -> None:
    gate = Gated()
    bench.settings["workers"] = 1
    bench.consumers = {"copy": consumer_of(gate.consume)}
    with bench.scheduler() as scheduler:
        scheduler.submit(bench.iteration(job_row("running")))
        until(lambda: gate.begun == ["running"])
        for name, priority in (("low", -5), ("none", 0), ("high", 5)):
            scheduler.submit(bench.iteration(job_row(name, detail={"priority": priority})))
        gate.let(4)
        until(lambda: len(bench.ends) == 4)
    assert gate.begun == ["running", "high", "none", "low"]


def test_a_job_that_waits_is_canceled_without_its_siblings(bench: Bench) -> None:
    gate = Gated()
    bench.settings["workers"] = 1
    bench.consumers = {"copy": consumer_of(gate.consume)}
    with bench.scheduler() as scheduler:
        scheduler.submit(bench.iteration(job_row("running")))
        until(lambda: gate.begun == ["running"])
        waiting = bench.iteration(job_row("gone"), job_row("kept"))
        scheduler.submit(waiting)
        assert scheduler.cancel(waiting.jobs[0].key)
        until(lambda: "gone" in bench.ends)
        assert bench.end("gone").state is JobState.CANCELED  # it is written
        gate.let(2)
        until(lambda: len(bench.ends) == 3)
        assert not scheduler.cancel(waiting.jobs[1].key)
    assert gate.begun == ["running", "kept"]


def test_what_waits_for_a_worker_is_pending_in_the_log(bench: Bench) -> None:
    gate = Gated()
    bench.settings["workers"] = 1
    bench.consumers = {"copy": consumer_of(gate.consume)}
    with bench.scheduler() as scheduler:
        scheduler.submit(bench.iteration(job_row("running")))
        until(lambda: gate.begun == ["running"])
        waiting = bench.iteration(*(job_row(name) for name in ("a", "b", "c", "stale")))
        scheduler.submit(waiting)
        bench.log.touch("stale", lambda job: job.with_status(runner=9))
        until(lambda: bench.log.row("a").state is JobState.PENDING)
        assert bench.log.row("a").status.to_ts == bench.world.ts
        until(lambda: "stale" in bench.ends)
        assert bench.ends["stale"] is None
        scheduler.cancel(waiting.jobs[1].key)
        until(lambda: "b" in bench.ends)
        assert bench.end("b").state is JobState.CANCELED
        gate.let(3)
        until(lambda: len(bench.ends) == 5)
    assert bench.log.states("running") == [JobState.RUNNING, JobState.COMPLETED]  # it waited for nothing
    assert bench.log.states("a") == [JobState.PENDING, JobState.RUNNING, JobState.COMPLETED]
    assert bench.end("c").watermark == bench.world.ts


def test_who_is_canceled_while_the_log_is_told_that_it_waits_is_canceled_there_too(bench: Bench) -> None:
    gate, reached, go_on = Gated(), threading.Event(), threading.Event()
    bench.settings["workers"] = 1
    bench.consumers = {"copy": consumer_of(gate.consume)}
    with bench.scheduler() as scheduler:
        scheduler.submit(bench.iteration(job_row("running")))
        until(lambda: gate.begun == ["running"])

        def slowly(_step: str) -> None:
            reached.set()
            assert go_on.wait(20)

        bench.log.fault = slowly
        waiting = bench.iteration(job_row("j"))
        scheduler.submit(waiting)
        assert reached.wait(20)
        scheduler.cancel(waiting.jobs[0].key)
        go_on.set()
        until(lambda: "j" in bench.ends)
        assert bench.end("j").state is JobState.CANCELED
        gate.let(1)


def test_a_log_that_is_away_does_not_keep_what_waits_from_its_turn(bench: Bench) -> None:
    gate, told = Gated(), threading.Event()
    bench.settings["workers"] = 1
    bench.consumers = {"copy": consumer_of(gate.consume)}
    with bench.scheduler() as scheduler:
        scheduler.submit(bench.iteration(job_row("running")))
        until(lambda: gate.begun == ["running"])

        def away(_step: str) -> None:
            told.set()
            raise Unavailable("the store is away")

        bench.log.fault = away
        scheduler.submit(bench.iteration(job_row("j")))
        assert told.wait(20)
        bench.log.fault = lambda _step: None
        gate.let(2)
        until(lambda: len(bench.ends) == 2)
    assert bench.end("j").watermark == bench.world.ts


def test_a_job_that_runs_is_canceled_and_may_begin_anew(bench: Bench) -> None:
    copy, reached, go_on = Copy(), threading.Event(), threading.Event()

    def hold(step: str) -> None:
        if step == "begin":
            reached.set()
            assert go_on.wait(20)

    bench.options["grace_s"] = 20
    bench.consumers = {"copy": copy.consumer(hold)}
    with bench.scheduler() as scheduler:
        iteration = bench.iteration(job_row("j"))
        scheduler.submit(iteration)
        assert reached.wait(20)
        assert scheduler.cancel(iteration.jobs[0].key)
        go_on.set()
        until(lambda: "j" in bench.ends)
        row = bench.end("j")
        assert (row.state, row.watermark) == (JobState.CANCELED, 0)
        bench.ends = {}
        scheduler.submit(bench.iteration(row))
        until(lambda: "j" in bench.ends)
    assert bench.end("j").watermark == copy.ts == bench.world.ts


def test_a_job_that_waits_to_be_tried_again_is_canceled(bench: Bench) -> None:
    def fail(_job: JobContext, _data: DataRetriever) -> None:
        raise Unavailable("away")

    bench.settings["backoff_s"] = 1000
    bench.consumers = {"copy": consumer_of(fail)}
    with bench.scheduler() as scheduler:
        iteration = bench.iteration(job_row("j"))
        scheduler.submit(iteration)
        until(lambda: bench.log.row("j").state is JobState.PENDING and scheduler.running == 0)
        assert scheduler.queued == 1
        assert scheduler.cancel(iteration.jobs[0].key)
        until(lambda: "j" in bench.ends)
        assert scheduler.queued == 0
    assert bench.end("j").state is JobState.CANCELED


def test_who_fails_while_it_is_canceled_is_not_tried_again(bench: Bench) -> None:
    reached, go_on, tries = threading.Event(), threading.Event(), []

    def fail(_job: JobContext, _data: DataRetriever) -> None:
        tries.append(1)
        reached.set()
        assert go_on.wait(20)
        raise Unavailable("away")

    bench.options["grace_s"] = 20
    bench.consumers = {"copy": consumer_of(fail)}
    with bench.scheduler() as scheduler:
        iteration = bench.iteration(job_row("j"))
        scheduler.submit(iteration)
        assert reached.wait(20)
        scheduler.cancel(iteration.jobs[0].key)
        go_on.set()
        until(lambda: "j" in bench.ends)
    assert bench.end("j").state is JobState.CANCELED
    assert len(tries) == 1


def test_closing_cancels_what_runs_and_what_waits_and_writes_it(bench: Bench) -> None:
    gate = Gated()
    bench.settings |= {"workers": 1}
    bench.consumers = {"copy": consumer_of(gate.consume)}
    with bench.scheduler() as scheduler:
        scheduler.submit(bench.iteration(job_row("running")))
        until(lambda: gate.begun == ["running"])
        scheduler.submit(bench.iteration(job_row("waits"), job_row("too")))
        eventloop.run(scheduler.close())
        assert not scheduler.submit(bench.iteration(job_row("late")))
    gate.let(1)
    assert {name: row and row.state for name, row in bench.ends.items()} == {
        "running": JobState.CANCELED,
        "waits": JobState.CANCELED,
        "too": JobState.CANCELED,
    }
    until(lambda: REGISTRY.get_sample_value("penstock_jobs_abandoned_consumers") == 0)


def test_closing_twice_and_without_a_start_is_harmless(bench: Bench) -> None:
    with bench.scheduler() as scheduler:
        eventloop.run(scheduler.close())


def test_a_log_that_is_away_when_a_job_is_canceled_leaves_the_row_unknown(bench: Bench) -> None:
    gate = Gated()
    bench.settings["workers"] = 1
    bench.consumers = {"copy": consumer_of(gate.consume)}
    with bench.scheduler() as scheduler:
        scheduler.submit(bench.iteration(job_row("running")))
        until(lambda: gate.begun == ["running"])
        waiting = bench.iteration(job_row("j"))
        scheduler.submit(waiting)

        def away(_step: str) -> None:
            raise Unavailable("the store is away")

        bench.log.fault = away
        scheduler.cancel(waiting.jobs[0].key)
        until(lambda: bench.ends.get("j", "") is None)
        bench.log.fault = lambda _step: None
        gate.let(1)


def test_a_mistake_in_one_iteration_does_not_stop_the_others(bench: Bench) -> None:
    copy = Copy()
    bench.consumers = {"copy": copy.consumer()}
    with bench.scheduler() as scheduler, ExitStack() as mended:

        def broken(_step: str) -> None:
            raise RuntimeError("a mistake")

        bench.log.fault = broken
        mended.callback(setattr, bench.log, "fault", lambda _step: None)
        scheduler.submit(bench.iteration(job_row("unlucky")))
        until(lambda: "unlucky" in bench.ends)
        assert bench.ends["unlucky"] is None
        bench.log.fault = lambda _step: None
        scheduler.submit(bench.iteration(job_row("next")))
        until(lambda: "next" in bench.ends)
    assert bench.end("next").watermark == copy.ts


def test_who_is_told_of_ends_may_fail_without_harm(bench: Bench) -> None:
    copy = Copy()
    bench.consumers = {"copy": copy.consumer()}
    bench.ends = {"twice": None}  # so that being told of it fails
    with bench.scheduler() as scheduler:
        scheduler.submit(bench.iteration(job_row("twice")))
        until(lambda: copy.ts > 0 and scheduler.running == 0)
        scheduler.submit(bench.iteration(job_row("next")))
        until(lambda: "next" in bench.ends)


def test_a_job_is_in_one_iteration_at_a_time_and_a_range_is_one(bench: Bench) -> None:
    gate = Gated()
    bench.consumers = {"copy": consumer_of(gate.consume)}
    with bench.scheduler() as scheduler:
        iteration = bench.iteration(job_row("j"))
        scheduler.submit(iteration)
        with pytest.raises(AssertionError, match="one iteration"):
            scheduler.submit(iteration)
        with pytest.raises(AssertionError, match="range"):
            scheduler.submit(iteration_of(job_row("k"), from_ts=5, to_ts=5))
        gate.let(1)
        until(lambda: "j" in bench.ends)


def test_waiting_and_running_iterations_are_counted(bench: Bench) -> None:
    gate = Gated()
    bench.settings["workers"] = 1
    bench.consumers = {"copy": consumer_of(gate.consume)}
    with bench.scheduler() as scheduler:
        for name in ("a", "b"):
            scheduler.submit(bench.iteration(job_row(name)))
        until(lambda: gate.begun == ["a"])
        assert REGISTRY.get_sample_value("penstock_jobs_running_iterations") == 1
        assert REGISTRY.get_sample_value("penstock_jobs_queued_iterations") == 1
        gate.let(2)
        until(lambda: len(bench.ends) == 2 and scheduler.running == 0)
        assert REGISTRY.get_sample_value("penstock_jobs_running_iterations") == 0
