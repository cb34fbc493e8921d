"""One run of an iteration: its jobs begin together, share one scan, and each ends on its own.

`IterationRunner` makes runs, and writes the rows of jobs that wait. `Scratch` is the directory for their
files.
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
from penstock.durable_files import PRIVATE_FOLDER, make_data_directory, open_private
from penstock.errors import Invalid, PenstockError
from penstock.follow.source import ScanSource, TableGone
from penstock.jobs.consumer import Consumer
from penstock.jobs.error_codes import TooManyAbandoned
from penstock.jobs.iteration.consumer_run import (
    GRACE_S,
    AbandonedConsumers,
    ConsumerRun,
    ConsumerServices,
    IterationLog,
)
from penstock.jobs.iteration.fan_out import SpoolTotals
from penstock.jobs.iteration.iteration import Iteration, OutcomeKind, OutcomePolicy, RunOutcome
from penstock.jobs.iteration.range_read import EarlyReads, RoundReader
from penstock.jobs.iteration.rounds import ReadRounds
from penstock.jobs.iteration.shared_scan import ScanConfig, SharedScan
from penstock.jobs.iteration.spark_frame import Frames
from penstock.jobs.job import Job, JobKey
from penstock.jobs.log.transitions import cancel_iteration, queue_iteration, start_iteration
from penstock.jobs.usage import Usage, UsageMeter
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.jobs.iteration.spark_frame import SparkSession

_log = logging.getLogger(__name__)

OnEnd = Callable[[JobKey, Job | None], None]
"""Called for each job when it leaves an iteration, with the row that was written then; None: unknown."""


@dataclass(frozen=True, slots=True)
class IterationServices:
    """What iterations are executed with."""

    log: IterationLog
    scan_config: ScanConfig
    consumer_services: ConsumerServices
    usage: UsageMeter
    scratch: "Scratch"
    read_ahead: EarlyReads | None = None


class IterationRun:
    """One run. `run` is for one thread; `cancel` for any."""

    def __init__(self, services: IterationServices, outcomes: OutcomePolicy, on_end: OnEnd) -> None:
        self._services = services
        self._clock = services.consumer_services.clock
        self._outcomes = outcomes
        self._on_end = on_end
        self._changed = threading.Condition()
        self._runs: dict[JobKey, ConsumerRun] = {}
        self._open: set[JobKey] = set()  # jobs whose consumers have not ended
        self._canceled: set[JobKey] = set()
        self._gone: set[JobKey] = set()  # jobs whose abandoned consumers have returned
        self._again: list[Job] = []
        self._folder: Path | None = None

    @property
    def iteration(self) -> Iteration:
        """The iteration that is run."""
        return self._outcomes.iteration

    @property
    def canceled(self) -> frozenset[JobKey]:
        """The jobs that were canceled."""
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
        """Execute the iteration; return the jobs to retry, as their rows are now. All others have left."""
        jobs = self._begin(self.iteration.jobs)
        if jobs:
            folder = self._services.scratch.folder / f"{self.iteration.id}-{self._clock.unique_id()[:8]}"
            ahead = self._services.read_ahead
            early = None if ahead is None else ahead.take(self.iteration.id)
            shared = SharedScan(self._services.scan_config, self.iteration, jobs, folder, early)
            self._start(jobs, shared, folder)
            self._wait()
            self._finish(shared, folder)
            if ahead is not None:
                for job in jobs:
                    ahead.note_batches(job.key, batches=shared.batches_taken)
        return self._again

    def _begin(self, jobs: Sequence[Job]) -> list[Job]:
        """Write that the jobs run; return those whose rows were as they were seen."""
        iteration, at = self.iteration, self._clock.wall_ms()
        begins = [
            (job, start_iteration(iteration.from_ts, iteration.to_ts, runner=job.status.runner, at=at))
            for job in jobs
        ]
        try:
            rows = self._services.log.transact(begins)
        except PenstockError as error:
            facts = {"table_id": iteration.table_id, "error": str(error)}
            _log.warning("an iteration cannot begin: the log does not answer", extra=facts)
            for job in jobs:
                self._leave_unwritten(job)
            return []
        for job, row in zip(jobs, rows, strict=True):
            if row is None:
                self._leave(job.key, None, OutcomeKind.FENCED)
        begun = [row for row in rows if row is not None]
        return self._end_refused(begun)

    def _end_refused(self, jobs: Sequence[Job]) -> list[Job]:
        """End the jobs of accounts that have no table to read any more, or may begin nothing now.

        Return the others.
        """
        source = self._services.scan_config.source
        ended: dict[str, RunOutcome] = {}
        for account in {job.account for job in jobs}:
            try:
                self._services.consumer_services.abandoned.check(account)
            except TooManyAbandoned as error:
                ended[account] = self._outcomes.fail(error, at=self._clock.wall_ms(), by_source=False)
                continue
            try:
                gone = source.why_gone(self.iteration.table_id, account)
                if gone is not None:
                    raise TableGone(gone)
            except PenstockError as error:
                ended[account] = self._outcomes.fail(error, at=self._clock.wall_ms(), by_source=True)
        for job in jobs:
            if job.account in ended:
                self._write(job, ended[job.account], None)
        return [job for job in jobs if job.account not in ended]

    def _start(self, jobs: Sequence[Job], shared: SharedScan, folder: Path) -> None:
        runs = {
            job.key: ConsumerRun(
                job,
                self._outcomes,
                shared,
                self._services.consumer_services,
                folder / f"{job.key.job_name}-{job.key.job_id}",
                ended=self._settle,
                returned=self._clear_up,
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
        """Wait until every consumer has ended; end those that stall, and abandon what does not end."""
        while overdue := self._overdue_runs():
            for run in overdue:  # without the lock, which others need to cancel: Spark may be asked
                if run.give_up_at is None:
                    run.stall()
                elif run.give_up_at <= self._clock.monotonic():
                    run.abandon()

    def _overdue_runs(self) -> list[ConsumerRun]:
        """Wait until there are runs to end or to abandon, and return these; none once all have ended."""
        with self._changed:
            while self._open:
                now = self._clock.monotonic()
                runs = [self._runs[key] for key in self._open]
                limits = [(run.give_up_at, run) for run in runs if run.give_up_at is not None]
                checks = [(at, run) for run in runs if (at := run.stalls_at) is not None]
                overdue = [run for at, run in (*limits, *checks) if at <= now]
                if overdue:
                    return overdue
                times = [at for at, _ in (*limits, *checks)]
                self._changed.wait(min(times) - now if times else None)
        return []

    def _finish(self, shared: SharedScan, folder: Path) -> None:
        if not shared.finish(self._services.consumer_services.grace_s):
            _log.warning("a scan does not end", extra={"table_id": self.iteration.table_id})
        self._services.usage.add(self.iteration.account, Usage(task_seconds=shared.read_seconds))
        with self._changed:
            self._folder = folder
        self._clear_up(None)

    def _clear_up(self, returned: ConsumerRun | None) -> None:
        """Remove the files of the iteration, unless an abandoned consumer may still use them."""
        with self._changed:
            if returned is not None:
                self._gone.add(returned.job.key)
            used = any(run.abandoned and key not in self._gone for key, run in self._runs.items())
            folder = None if used else self._folder
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _settle(self, run: ConsumerRun, outcome: RunOutcome) -> None:
        """Write the outcome of a consumer that has ended; let its job leave, or wait for a retry."""
        try:
            self._services.usage.add(run.job.account, run.usage)
            self._write(run.job, outcome, run.written)
        finally:
            with self._changed:
                self._open.discard(run.job.key)
                self._changed.notify_all()

    def _write(self, job: Job, outcome: RunOutcome, written: Job | None) -> None:
        _log_outcome(job, outcome)
        row = written
        if outcome.transition is not None:
            try:
                (row,) = self._services.log.transact([(job, outcome.transition)])
            except PenstockError as error:
                facts = {"job": str(job.id), "error": str(error)}
                _log.warning("the end of an iteration cannot be written", extra=facts)
                self._leave_unwritten(job)
                return
        if row is not None and outcome.kind is OutcomeKind.RETRIED:
            metrics.JOBS_ENDINGS_TOTAL.labels(OutcomeKind.RETRIED.value).inc()
            self._again.append(row)
        else:
            self._leave(job.key, row, outcome.kind if row is not None else OutcomeKind.FENCED)

    def _leave_unwritten(self, job: Job) -> None:
        """Retry with the row as it was, because the log does not answer; after the last try leave the job."""
        if self._outcomes.last:
            self._leave(job.key, None, OutcomeKind.FAILED)
        else:
            metrics.JOBS_ENDINGS_TOTAL.labels(OutcomeKind.RETRIED.value).inc()
            self._again.append(job)

    def _leave(self, key: JobKey, row: Job | None, kind: OutcomeKind) -> None:
        metrics.JOBS_ENDINGS_TOTAL.labels(kind.value).inc()
        self._on_end(key, row)


def _log_outcome(job: Job, outcome: RunOutcome) -> None:
    if outcome.failure is None:
        return
    facts = {"job": str(job.id), "code": int(outcome.failure.code), "error": outcome.failure.message}
    if outcome.kind is OutcomeKind.RESYNCED:
        _log.warning("history is gone: the job begins again with all rows", extra=facts)
    elif outcome.kind is OutcomeKind.PERMANENT:
        _log.error("a job failed and has to be repaired", extra=facts)
    else:
        _log.warning("an iteration of a job failed", extra=facts)


class IterationRunner:
    """Makes runs of iterations. Open it before the first run.

    `rounds` reads batches on Spark, and `frames` DataFrames; without them this process reads. `spark` returns
    the session, with the pool of an account set for the calling thread. `grace_s` is how long a canceled
    consumer is waited for.
    """

    def __init__(
        self,
        log: IterationLog,
        source: ScanSource,
        settings: Settings,
        *,
        frames: Frames | None = None,
        rounds: ReadRounds | None = None,
        spark: "Callable[[str], SparkSession] | None" = None,
        find: Callable[[str], type[Consumer]] | None = None,
        usage: UsageMeter | None = None,
        abandoned: AbandonedConsumers | None = None,
        grace_s: float = GRACE_S,
        clock: Clock = SYSTEM,
    ) -> None:
        self.usage = usage or UsageMeter(clock=clock)
        self._clock = clock
        reader = None if rounds is None else RoundReader(rounds)
        self._services = IterationServices(
            log=log,
            scan_config=ScanConfig(
                source, settings.jobs, frames, reader, clock, SpoolTotals(settings.api.spool_limits)
            ),
            consumer_services=ConsumerServices(
                log, settings, find, spark, clock, abandoned or AbandonedConsumers(), grace_s
            ),
            usage=self.usage,
            scratch=Scratch(settings.jobs.data, clock=clock),
            read_ahead=None if reader is None else EarlyReads(reader, source, settings.jobs),
        )

    def open(self) -> None:
        """Create the directory for scratch files; raise Invalid when it cannot be used."""
        self._services.scratch.open()

    def make_run(self, iteration: Iteration, *, last: bool, on_end: OnEnd) -> IterationRun:
        """Return a run of an iteration, which is not started yet; `last`: what fails is not retried."""
        return IterationRun(self._services, OutcomePolicy(iteration, last), on_end)

    def read_ahead(self, iteration: Iteration) -> None:
        """Begin to read for an iteration that waits for a worker, if that is of use. Does not block."""
        if self._services.read_ahead is not None:
            self._services.read_ahead.begin(iteration)

    def drop_ahead(self, iteration_id: str) -> None:
        """Give up what was read for an iteration that has left. Does not block."""
        if self._services.read_ahead is not None:
            self._services.read_ahead.drop(iteration_id)

    def announce(self, iterations: Sequence[Iteration]) -> dict[JobKey, Job] | None:
        """Write that iterations wait for a worker; return the rows of jobs that no other runner has taken.

        Returns None when the log does not answer.
        """
        waits = [
            (job, queue_iteration(iteration.from_ts, iteration.to_ts, runner=job.status.runner))
            for iteration in iterations
            for job in iteration.jobs
        ]
        try:
            rows = self._services.log.transact(waits)
        except PenstockError as error:
            _log.warning(
                "cannot write that iterations wait: the log does not answer", extra={"error": str(error)}
            )
            return None
        return {row.key: row for row in rows if row is not None}

    def cancel(self, jobs: Sequence[Job]) -> list[Job | None]:
        """Write that waiting jobs are canceled; return their rows now, None where they are unknown."""
        at = self._clock.wall_ms()
        try:
            return self._services.log.transact([(job, cancel_iteration(at=at)) for job in jobs])
        except PenstockError as error:
            _log.warning(
                "cannot write that jobs were canceled: the log does not answer", extra={"error": str(error)}
            )
            return [None] * len(jobs)

    def close(self) -> None:
        """Write the usage, and remove the scratch files."""
        if self._services.read_ahead is not None:
            self._services.read_ahead.close()
        self.usage.flush()
        self._services.scratch.close()


_PREFIX, _NEW_PREFIX, _LOCK = "runner-", ".new-", "LOCK"


class Scratch:
    """A directory below `data` that no other process uses, even if several share `data`."""

    def __init__(self, data: Path, *, clock: Clock = SYSTEM) -> None:
        self._data = data
        self._name = clock.unique_id()
        self._lock: IO[bytes] | None = None

    @property
    def folder(self) -> Path:
        """The directory, while it is open."""
        return self._data / f"{_PREFIX}{self._name}"

    def open(self) -> None:
        """Create it, and remove those of ended processes; raise Invalid when `data` cannot be used."""
        new = self._data / f"{_NEW_PREFIX}{self._name}"
        try:
            make_data_directory(self._data)
            new.mkdir(mode=PRIVATE_FOLDER)
            self._lock = open_private(new / _LOCK, "wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            new.rename(self.folder)  # others see it only now that it is locked
            for other in self._data.glob(f"{_PREFIX}*"):
                if other != self.folder:
                    _remove_unused(other)
        except OSError as error:
            raise Invalid(
                f"directory {self._data} cannot be used ({error.strerror}); check jobs.data"
            ) from error

    def close(self) -> None:
        """Remove it. May be called twice."""
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
        return  # a process uses it, or another process has removed it
