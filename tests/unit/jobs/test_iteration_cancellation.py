"""Jobs that are canceled while they run."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from penstock.errors import Aborted, Fenced
from penstock.jobs.consumer import DataRetriever, JobContext
from penstock.jobs.job import JobState
from support.iterationbench import Bench, item_bench
from support.jobdoubles import Copy, MemoryTxn, consumer_of, iteration_of, job_row, until


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with item_bench(tmp_path) as made:
        yield made


def _in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_canceled_job_ends_at_its_next_look_and_its_siblings_go_on(bench: Bench) -> None:
    reached, go_on, good = threading.Event(), threading.Event(), Copy()
    raised: list[Exception] = []

    def waits(_job: JobContext, data: DataRetriever) -> None:
        reached.set()
        go_on.wait(20)
        try:
            data.next()
        except Aborted as error:
            raised.append(error)
            raise

    bench.consumers = {"waits": consumer_of(waits), "good": good.consumer()}
    jobs = [job_row(name, name) for name in bench.consumers]
    bench.log.rows = {job.key: job for job in jobs}
    with bench.executor() as executor:
        attempt = executor.make_run(iteration_of(*jobs, to_ts=bench.world.ts), last=False, on_end=bench.leave)
        running = _in_background(attempt.run)
        assert reached.wait(20)
        attempt.cancel(jobs[0].key)
        go_on.set()
        until(lambda: not running.is_alive())
    assert raised
    assert bench.end("waits").state is JobState.CANCELED
    assert bench.end("waits").watermark == 0
    assert bench.end("good").watermark == bench.world.ts == good.ts


def test_a_consumer_that_ignores_cancellation_is_given_up_and_what_it_does_does_not_count(
    bench: Bench,
) -> None:
    reached, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    fenced: list[Exception] = []

    def ignores(job: JobContext, data: DataRetriever) -> None:
        job.scratch.mkdir(parents=True)
        reached.set()
        assert go_on.wait(20)
        assert job.scratch.exists()  # it may still be used
        try:
            data.update_watermark(MemoryTxn())  # type: ignore[arg-type] # what the log in memory takes
        except Fenced as error:
            fenced.append(error)
        ended.set()

    bench.consumers = {"copy": consumer_of(ignores)}
    job = job_row("j")
    bench.log.rows = {job.key: job}
    with bench.executor() as executor:
        attempt = executor.make_run(iteration_of(job, to_ts=bench.world.ts), last=False, on_end=bench.leave)
        running = _in_background(attempt.run)
        assert reached.wait(20)
        attempt.cancel(job.key)
        until(lambda: not running.is_alive())
        assert bench.end("j").state is JobState.CANCELED
        assert REGISTRY.get_sample_value("penstock_jobs_abandoned_consumers") == 1
        go_on.set()
        assert ended.wait(20)
        until(lambda: REGISTRY.get_sample_value("penstock_jobs_abandoned_consumers") == 0)
    assert fenced
    assert bench.log.row("j").state is JobState.CANCELED
    assert bench.log.row("j").watermark == 0


def test_the_commit_of_a_consumer_that_was_given_up_is_found_by_the_next_iteration(bench: Bench) -> None:
    copy, reached, go_on = Copy(), threading.Event(), threading.Event()

    def late(step: str) -> None:
        if step == "commit":
            reached.set()
            assert go_on.wait(20)

    bench.consumers = {"copy": copy.consumer(late)}
    job = job_row("j")
    bench.log.rows = {job.key: job}
    with bench.executor() as executor:
        attempt = executor.make_run(iteration_of(job, to_ts=bench.world.ts), last=False, on_end=bench.leave)
        running = _in_background(attempt.run)
        assert reached.wait(20)
        attempt.cancel(job.key)
        until(lambda: not running.is_alive())
        go_on.set()
        until(lambda: copy.ts > 0)
    assert bench.log.row("j").watermark == 0
    bench.run(bench.log.row("j"))
    assert bench.end("j").watermark == copy.ts
    assert copy.commits == [copy.ts]


def test_what_was_canceled_before_it_began_never_begins(bench: Bench) -> None:
    def consume(_job: JobContext, _data: DataRetriever) -> None:
        raise AssertionError("it begins")

    bench.consumers = {"copy": consumer_of(consume)}
    job = job_row("j")
    bench.log.rows = {job.key: job}
    with bench.executor() as executor:
        attempt = executor.make_run(iteration_of(job, to_ts=bench.world.ts), last=False, on_end=bench.leave)
        attempt.cancel(job.key)
        attempt.run()
    assert bench.end("j").state is JobState.CANCELED


def test_who_had_finished_when_it_was_canceled_has_completed(bench: Bench) -> None:
    copy, reached, go_on = Copy(), threading.Event(), threading.Event()

    def committed(step: str) -> None:
        if step == "committed":
            reached.set()
            assert go_on.wait(20)

    bench.consumers = {"copy": copy.consumer(committed)}
    bench.options["grace_s"] = 20
    job = job_row("j")
    bench.log.rows = {job.key: job}
    with bench.executor() as executor:
        attempt = executor.make_run(iteration_of(job, to_ts=bench.world.ts), last=False, on_end=bench.leave)
        running = _in_background(attempt.run)
        assert reached.wait(20)
        attempt.cancel(job.key)
        go_on.set()
        until(lambda: not running.is_alive())
    assert (bench.end("j").state, bench.end("j").watermark) == (JobState.COMPLETED, bench.world.ts)
