"""One try at an iteration: its jobs begin together, share one scan, and each ends on its own.

What executes iterations, and what it is made of.

A directory of this process for scratch files; those of processes that have ended are removed.
"""

import fcntl
import logging
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from penstock import metrics
from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid, PenstockError
from penstock.follow.cluster_tables import TableGone
from penstock.follow.source import ScanSource
from penstock.jobs.consumer import Consumer, find_consumer
from penstock.jobs.iteration.consumer_run import GRACE_S, ConsumerRun, ConsumerServices, IterationLog
from penstock.jobs.iteration.iteration import AttemptCount, Iteration, OutcomeKind, RunOutcome
from penstock.jobs.iteration.shared_scan import ScanConfig, SharedScan
from penstock.jobs.iteration.spark_frame import Frames
from penstock.jobs.job import Job, JobKey
from penstock.jobs.log.transitions import canceled, pending, started
from penstock.jobs.usage import Usage, UsageMeter
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.jobs.iteration.spark_frame import SparkSession


_OURS, _NEW, _LOCK = "runner-", ".new-", "LOCK"


class Scratch:
    """A directory below `data` that no other process uses, whoever shares `data`."""

    def __init__(self, data: Path, *, clock: Clock = SYSTEM) -> None:
        self._data = data
        self._name = clock.unique_id()
        self._lock: IO[bytes] | None = None

    @property
    def folder(self) -> Path:
        """Where it is, while it is open."""
        return self._data / f"{_OURS}{self._name}"

    def open(self) -> None:
        """Make it, and remove what others left; raise Invalid when the directory cannot be used."""
        new = self._data / f"{_NEW}{self._name}"
        try:
            new.mkdir(parents=True)
            self._lock = (new / _LOCK).open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            new.rename(self.folder)  # only now others see it: it is locked
            for other in self._data.glob(f"{_OURS}*"):
                if other != self.folder:
                    _remove_unused(other)
        except OSError as error:
            raise Invalid(
                f"directory {self._data} cannot be used ({error.strerror}); check jobs.data"
            ) from error

    def close(self) -> None:
        """Remove it. Can be called twice."""
        if self._lock is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._lock.close()
            self._lock = None


def _remove_unused(folder: Path) -> None:
    try:
        with (folder / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except (BlockingIOError, FileNotFoundError):
        return  # it is used, or somebody else was faster


_log = logging.getLogger(__name__)

OnEnd = Callable[[JobKey, Job | None], None]
"""Told of each job when it leaves an iteration: its row as it was written then; None: it is not known."""


@dataclass(frozen=True, slots=True)
class IterationServices:
    """What iterations are executed with."""

    log: IterationLog
    reading: ScanConfig
    workshop: ConsumerServices
    usage: UsageMeter
    scratch: Scratch


class IterationRun:
    """One try. `run` is for one thread; `cancel` for any."""

    def __init__(self, tools: IterationServices, attempt: AttemptCount, on_end: OnEnd) -> None:
        self._tools = tools
        self._clock = tools.workshop.clock
        self._try = attempt
        self._on_end = on_end
        self._changed = threading.Condition()
        self._runs: dict[JobKey, ConsumerRun] = {}
        self._open: set[JobKey] = set()  # whose runs have not ended
        self._canceled: set[JobKey] = set()
        self._again: list[Job] = []

    @property
    def iteration(self) -> Iteration:
        """What is tried."""
        return self._try.iteration

    @property
    def canceled(self) -> frozenset[JobKey]:
        """The jobs that somebody has canceled."""
        with self._changed:
            return frozenset(self._canceled)

    def cancel(self, key: JobKey) -> None:
        """Let one job end soon; it leaves as canceled, unless it ends otherwise before."""
        with self._changed:
            self._canceled.add(key)
            if key in self._runs:
                self._runs[key].cancel()
            self._changed.notify_all()

    def run(self) -> list[Job]:
        """Execute it; return the jobs that are to be tried again, as their rows are now.

        Every other job has left by then.
        """
        jobs = self._begin(self.iteration.jobs)
        if jobs:
            folder = self._tools.scratch.folder / f"{self.iteration.id}-{self._clock.unique_id()[:8]}"
            shared = SharedScan(self._tools.reading, self.iteration, jobs, folder)
            self._start(jobs, shared, folder)
            self._wait()
            self._finish(shared, folder)
        return self._again

    def _begin(self, jobs: Sequence[Job]) -> list[Job]:
        """Write that the jobs run; those whose rows were as they were seen."""
        iteration, at = self.iteration, self._clock.wall_ms()
        begins = [
            (job, started(iteration.from_ts, iteration.to_ts, runner=job.status.runner, at=at))
            for job in jobs
        ]
        try:
            rows = self._tools.log.transact(begins)
        except PenstockError as error:
            facts = {"table_id": iteration.table_id, "error": str(error)}
            _log.warning("an iteration cannot begin: the log does not answer", extra=facts)
            for job in jobs:
                self._unwritten(job)
            return []
        for job, row in zip(jobs, rows, strict=True):
            if row is None:
                self._leave(job.key, None, OutcomeKind.FENCED)
        begun = [row for row in rows if row is not None]
        return begun if self._check_table(begun) else []

    def _check_table(self, jobs: Sequence[Job]) -> bool:
        """Whether there is a table to read; else that is how the jobs end."""
        try:
            gone = self._tools.reading.source.gone(self.iteration.table_id)
            if gone is None:
                return True
            raise TableGone(gone)
        except PenstockError as error:
            ending = self._try.stopped(error, at=self._clock.wall_ms(), by_source=True)
        for job in jobs:
            self._write(job, ending, None)
        return False

    def _start(self, jobs: Sequence[Job], shared: SharedScan, folder: Path) -> None:
        runs = {
            job.key: ConsumerRun(
                job,
                self._try,
                shared,
                self._tools.workshop,
                folder / f"{job.key.job_name}-{job.key.job_id}",
                ended=self._settle,
            )
            for job in jobs
        }
        with self._changed:
            self._runs = runs
            self._open = set(runs)
            for key in self._canceled & self._open:
                runs[key].cancel()
        for run in runs.values():
            run.start()

    def _wait(self) -> None:
        """Wait until every run has ended; not for long for those that were canceled."""
        while late := self._late_runs():
            for run in late:
                run.abandon()

    def _late_runs(self) -> list[ConsumerRun]:
        """Those to give up now, when there are some; none once all have ended."""
        with self._changed:
            while self._open:
                now = self._clock.monotonic()
                runs = [self._runs[key] for key in self._open]
                limits = [(run.give_up_at, run) for run in runs if run.give_up_at is not None]
                late = [run for at, run in limits if at <= now]
                if late:
                    return late
                self._changed.wait(min((at - now for at, _ in limits), default=None))
        return []

    def _finish(self, shared: SharedScan, folder: Path) -> None:
        if not shared.finish(self._tools.workshop.grace_s):
            _log.warning("a scan does not end", extra={"table_id": self.iteration.table_id})
        self._tools.usage.add(self.iteration.account, Usage(task_seconds=shared.read_seconds))
        if not any(run.abandoned for run in self._runs.values()):  # else files may be used still
            shutil.rmtree(folder, ignore_errors=True)

    def _settle(self, run: ConsumerRun, ending: RunOutcome) -> None:
        """A run has ended: write it, and let its job leave or wait for another try."""
        try:
            self._tools.usage.add(run.job.account, run.usage)
            self._write(run.job, ending, run.written)
        finally:
            with self._changed:
                self._open.discard(run.job.key)
                self._changed.notify_all()

    def _write(self, job: Job, ending: RunOutcome, written: Job | None) -> None:
        _tell(job, ending)
        row = written
        if ending.transition is not None:
            try:
                (row,) = self._tools.log.transact([(job, ending.transition)])
            except PenstockError as error:
                facts = {"job": str(job.id), "error": str(error)}
                _log.warning("the end of an iteration cannot be written", extra=facts)
                self._unwritten(job)
                return
        if row is not None and ending.how is OutcomeKind.RETRIED:
            metrics.JOBS_ENDINGS_TOTAL.labels(OutcomeKind.RETRIED.value).inc()
            self._again.append(row)
        else:
            self._leave(job.key, row, ending.how if row is not None else OutcomeKind.FENCED)

    def _unwritten(self, job: Job) -> None:
        """The log does not answer: try again with the row as it was, or leave it to whoever reads the log."""
        if self._try.last:
            self._leave(job.key, None, OutcomeKind.FAILED)
        else:
            metrics.JOBS_ENDINGS_TOTAL.labels(OutcomeKind.RETRIED.value).inc()
            self._again.append(job)

    def _leave(self, key: JobKey, row: Job | None, how: OutcomeKind) -> None:
        metrics.JOBS_ENDINGS_TOTAL.labels(how.value).inc()
        self._on_end(key, row)


def _tell(job: Job, ending: RunOutcome) -> None:
    if ending.failure is None:
        return
    facts = {"job": str(job.id), "code": int(ending.failure.code), "error": ending.failure.message}
    if ending.how is OutcomeKind.RESYNCED:
        _log.warning("history is gone: the job begins with all rows again", extra=facts)
    elif ending.how is OutcomeKind.PERMANENT:
        _log.error("a job failed and has to be repaired", extra=facts)
    else:
        _log.warning("an iteration of a job failed", extra=facts)


class IterationRunner:
    """Executes iterations. Open it before the first attempt.

    `spark` gives the session, with the pool of an account set for the thread that asks; a consumer that
    needs neither it nor `frames` never does. `grace_s` is how long a canceled consumer is waited for.
    """

    def __init__(
        self,
        log: IterationLog,
        source: ScanSource,
        settings: Settings,
        *,
        frames: Frames | None = None,
        spark: "Callable[[str], SparkSession] | None" = None,
        find: Callable[[str], type[Consumer]] = find_consumer,
        usage: UsageMeter | None = None,
        grace_s: float = GRACE_S,
        clock: Clock = SYSTEM,
    ) -> None:
        self.usage = usage or UsageMeter(clock=clock)
        self._clock = clock
        self._tools = IterationServices(
            log=log,
            reading=ScanConfig(source, settings.jobs, frames, clock),
            workshop=ConsumerServices(log, settings, find, spark, clock, grace_s),
            usage=self.usage,
            scratch=Scratch(settings.jobs.data, clock=clock),
        )

    def open(self) -> None:
        """Make a place for scratch files; raise Invalid when there can be none."""
        self._tools.scratch.open()

    def attempt(self, iteration: Iteration, *, last: bool, on_end: OnEnd) -> IterationRun:
        """A try at an iteration, which does not begin yet; `last`: what fails is not tried again."""
        return IterationRun(self._tools, AttemptCount(iteration, last), on_end)

    def announce(self, iterations: Sequence[Iteration]) -> dict[JobKey, Job] | None:
        """Write that iterations wait for a worker; the rows of the jobs that nobody else has taken meanwhile.

        None: the log does not answer.
        """
        waits = [
            (job, pending(each.from_ts, each.to_ts, runner=job.status.runner))
            for each in iterations
            for job in each.jobs
        ]
        try:
            rows = self._tools.log.transact(waits)
        except PenstockError as error:
            _log.warning("that iterations wait cannot be written", extra={"error": str(error)})
            return None
        return {row.key: row for row in rows if row is not None}

    def cancel(self, jobs: Sequence[Job]) -> list[Job | None]:
        """Write that jobs that waited are canceled; what their rows are now, None where that is not known."""
        at = self._clock.wall_ms()
        try:
            return self._tools.log.transact([(job, canceled(at=at)) for job in jobs])
        except PenstockError as error:
            _log.warning("that jobs were canceled cannot be written", extra={"error": str(error)})
            return [None] * len(jobs)

    def close(self) -> None:
        """Keep what was used, and remove the scratch files."""
        self.usage.flush()
        self._tools.scratch.close()
