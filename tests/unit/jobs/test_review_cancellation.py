"""Consumers on executors that are canceled before they ask for their changes."""

import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from penstock.errors import Aborted
from penstock.follow.source import TableScan
from penstock.jobs.consumer import DataRetriever, JobContext
from penstock.jobs.job import JobState
from support.iterationbench import Bench, item_bench
from support.jobdoubles import TaggedSession, consumer_of, iteration_of, job_row, until


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with item_bench(tmp_path) as made:
        yield made


class _Frames:
    """Frames that stay open until they are released."""

    def __init__(self) -> None:
        self.dataframe = self
        self.opened = 0

    def open(self, _scan: TableScan, _columns: Collection[str] | None) -> "_Frames":
        self.opened += 1
        return self

    def select(self, *_names: str) -> "_Frames":
        return self

    def release(self) -> None:
        self.opened -= 1


@pytest.mark.parametrize("given_up", [False, True])
def test_who_was_canceled_gets_no_frame(bench: Bench, given_up: bool) -> None:
    reached, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    frames, raised = _Frames(), list[BaseException]()

    def late(_job: JobContext, data: DataRetriever) -> None:
        reached.set()
        assert go_on.wait(20)
        try:
            data.dataframe()
        except BaseException as error:
            raised.append(error)
            raise
        finally:
            ended.set()

    bench.options = {
        "frames": frames,
        "spark": lambda _account: TaggedSession(),
        "grace_s": 0.1 if given_up else 20,
    }
    bench.consumers = {"copy": consumer_of(late)}
    job = job_row("j")
    bench.log.rows = {job.key: job}
    with bench.executor() as executor:
        attempt = executor.make_run(iteration_of(job, to_ts=bench.world.ts), last=False, on_end=bench.leave)
        running = threading.Thread(target=attempt.run)
        running.start()
        assert reached.wait(20)
        attempt.cancel(job.key)
        if given_up:
            until(lambda: not running.is_alive())
        go_on.set()
        assert ended.wait(20)
        until(lambda: not running.is_alive())
    assert bench.end("j").state is JobState.CANCELED
    assert [type(error) for error in raised] == [Aborted]
    assert frames.opened == 0


def test_the_spark_jobs_of_who_is_canceled_are_ended(bench: Bench) -> None:
    session, go_on = TaggedSession(), threading.Event()

    def work(job: JobContext, _data: DataRetriever) -> None:
        job.spark()
        assert go_on.wait(60)

    bench.options = {"spark": lambda _account: session}
    bench.consumers = {"copy": consumer_of(work)}
    job = job_row("j")
    bench.log.rows = {job.key: job}
    with bench.executor() as executor:
        attempt = executor.make_run(iteration_of(job, to_ts=bench.world.ts), last=False, on_end=bench.leave)
        running = threading.Thread(target=attempt.run)
        running.start()
        until(lambda: bool(session.tags))
        attempt.cancel(job.key)
        until(lambda: session.interrupted == session.tags)
        go_on.set()
        until(lambda: not running.is_alive())
