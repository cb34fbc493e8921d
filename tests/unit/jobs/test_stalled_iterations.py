"""Iterations that make no progress are ended, and consumers that ignore that are abandoned and counted."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from penstock.errors import Aborted, Fenced
from penstock.jobs.consumer import Consumer, DataRetriever, JobContext
from penstock.jobs.iteration.consumer_run import AbandonedConsumers
from penstock.jobs.job import ErrorCode, JobState
from support.iterationbench import Bench, all_rows, item_bench
from support.jobdoubles import MemoryTxn, TaggedSession, consumer_of, iteration_of, job_row, until

STALL_S = 0.3


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with item_bench(tmp_path) as made:
        made.settings["stall_s"] = STALL_S
        yield made


def _stalls() -> float:
    return REGISTRY.get_sample_value("penstock_jobs_stalled_total") or 0.0


def test_a_consumer_that_waits_for_its_target_for_too_long_is_ended_and_retried(bench: Bench) -> None:
    before = _stalls()

    class Waiting(Consumer):
        def __init__(self, job: JobContext) -> None:
            super().__init__(job)
            self.interrupted = threading.Event()

        def consume(self, data: DataRetriever) -> None:
            data.next()
            assert self.interrupted.wait(20), "nobody interrupts it"
            raise ConnectionError("the connection broke")

        def interrupt(self) -> None:
            self.interrupted.set()

    bench.consumers = {"copy": Waiting}
    (again,) = bench.run(job_row("j"))
    assert (again.status.error_code, int(ErrorCode.STALLED)) == (ErrorCode.STALLED, 4)
    assert "jobs.stall_s" in again.status.error_msg
    assert (again.status.failures, again.watermark) == (1, 0)
    assert _stalls() == before + 1
    assert bench.run(bench.log.row("j"), last=True) == []
    assert bench.end("j").status.error_code == ErrorCode.STALLED
    assert bench.end("j").state is JobState.COMPLETED, "it waits for its next iteration"


def test_a_slow_consumer_with_progress_is_not_ended(bench: Bench) -> None:
    def slow(job: JobContext, data: DataRetriever) -> None:
        all_rows(data)
        for _ in range(8):
            threading.Event().wait(STALL_S / 2)
            job.progressed()

    bench.consumers = {"copy": consumer_of(slow)}
    assert bench.run(job_row("j")) == []
    assert bench.end("j").status.error_code == 0


def test_a_patient_consumer_may_work_longer(bench: Bench) -> None:
    class Training(Consumer):
        patience = 50

        def consume(self, data: DataRetriever) -> None:
            all_rows(data)
            threading.Event().wait(STALL_S * 3)

    bench.consumers = {"copy": Training}
    assert bench.run(job_row("j")) == []


class _Frames:
    """A DataFrame that is nothing but there."""

    columns = ("id", "name", "_commit_ts", "_deleted")

    def __init__(self) -> None:
        self.dataframe, self.rows = self, 1

    def open(self, *_: object) -> "_Frames":
        return self

    def select(self, *_: str) -> "_Frames":
        return self

    def release(self) -> None:
        return


def test_work_on_executors_of_spark_connect_is_not_timed(bench: Bench) -> None:
    def write(_job: JobContext, data: DataRetriever) -> None:
        data.dataframe()
        threading.Event().wait(STALL_S * 3)

    bench.options |= {"frames": _Frames(), "spark": lambda _account: TaggedSession()}
    bench.consumers = {"copy": consumer_of(write)}
    assert bench.run(job_row("j")) == []


class _Stage:
    numCompletedTasks = numActiveTasks = 1  # noqa: N815 - Spark's names


class _Job:
    stageIds, status = (1,), "RUNNING"  # noqa: N815 - Spark's name


class _Context(TaggedSession):
    """A context of which one task runs; a session is its own context."""

    def __init__(self, *, active: int = 1) -> None:
        super().__init__()
        self.stage = _Stage()
        self.stage.numActiveTasks = active
        self.group = ""
        self.addJobTag, self.cancelJobsWithTag = self.addTag, self.interruptTag
        self.removeJobTag, self.getJobTags = self.removeTag, self.getTags

    @property
    def sparkContext(self) -> "_Context":
        return self

    def setJobGroup(self, group: str, _what: str) -> None:
        self.group = group

    def statusTracker(self) -> "_Context":
        return self

    def getJobIdsForGroup(self, group: str) -> list[int]:
        return [1] if group == self.group else []

    def getJobInfo(self, _job: int) -> _Job:
        return _Job()

    def getStageInfo(self, _stage: int) -> _Stage:
        return self.stage


def _write_on_executors(bench: Bench, context: _Context, wait: Callable[[], object]) -> None:
    class Writing(Consumer):
        def consume(self, data: DataRetriever) -> None:
            assert self.job.spark() is not None
            data.dataframe()
            wait()

    bench.options |= {"frames": _Frames(), "spark": lambda _account: context}
    bench.consumers = {"copy": Writing}


def test_work_on_executors_of_which_no_task_completes_is_ended(bench: Bench) -> None:
    context = _Context()

    def work() -> None:
        until(lambda: bool(context.interrupted))
        raise ConnectionError("the job was cancelled")

    _write_on_executors(bench, context, work)
    (again,) = bench.run(job_row("j"))
    assert again.status.error_code == ErrorCode.STALLED
    assert context.interrupted == {context.group}, "its jobs are ended"


@pytest.mark.parametrize("waits", [True, False])
def test_work_on_executors_goes_on_while_tasks_complete_or_wait_for_cores(
    bench: Bench, *, waits: bool
) -> None:
    context = _Context(active=0 if waits else 1)

    def work() -> None:
        for _ in range(30):
            threading.Event().wait(STALL_S / 5)
            context.stage.numCompletedTasks += not waits

    _write_on_executors(bench, context, work)
    assert bench.run(job_row("j")) == []


def test_waiting_for_changes_is_not_the_consumers_stall(bench: Bench) -> None:
    """A consumer that waits for its slow sibling, or for the source, does not stall."""
    bench.settings |= {"consumer_batches": 1, "consumer_patience_s": 60}

    def slow(job: JobContext, data: DataRetriever) -> None:
        for _ in range(6):
            threading.Event().wait(STALL_S / 2)
            job.progressed()
        all_rows(data)

    def quick(_job: JobContext, data: DataRetriever) -> None:
        all_rows(data)

    bench.consumers = {"slow": consumer_of(slow), "quick": consumer_of(quick)}
    assert bench.run(job_row("slow", "slow"), job_row("quick", "quick")) == []


def test_a_consumer_that_ignores_its_end_is_abandoned_cannot_write_and_leaves_no_files(bench: Bench) -> None:
    abandoned, reached, go_on = AbandonedConsumers(), threading.Event(), threading.Event()
    raised: list[type[Exception]] = []

    def deaf(job: JobContext, data: DataRetriever) -> None:
        job.scratch.mkdir(parents=True)
        reached.set()
        assert go_on.wait(20)
        calls: list[Callable[[], object]] = [
            lambda: data.update_watermark(MemoryTxn()),  # type: ignore[arg-type] # the log in memory takes it
            data.next,
        ]
        for call in calls:
            try:
                call()
            except (Fenced, Aborted) as error:
                raised.append(type(error))

    bench.consumers = {"copy": consumer_of(deaf)}
    bench.options["abandoned"] = abandoned
    job = job_row("j")
    bench.log.rows = {job.key: job}
    with bench.executor() as executor:
        run = executor.make_run(iteration_of(job, to_ts=bench.world.ts), last=False, on_end=bench.leave)
        (again,) = run.run()
        assert again.status.error_code == ErrorCode.STALLED
        assert abandoned.count == 1
        (runner,) = (bench.folder / "jobs").glob("runner-*")
        left = [path for path in runner.iterdir() if path.is_dir()]
        assert len(left) == 1, "its files may be in use"
        go_on.set()
        until(lambda: abandoned.count == 0)
        until(lambda: not left[0].exists())
    assert raised == [Fenced, Aborted]
    assert bench.log.row("j").watermark == 0
