"""Verification of targets on schedule, beside the iterations of a runner: one target at a time.

`next_due` decides which target comes next; it is pure. `ScheduledVerification` compares it and keeps the
result.
"""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from penstock.clock import SYSTEM, Clock
from penstock.errors import Fenced, PenstockError, Unavailable
from penstock.follow.source import ScanSource
from penstock.jobs.api import Jobs
from penstock.jobs.job import Job, JobKey, JobState
from penstock.jobs.log.job_log import JobLog
from penstock.jobs.runner.board import JobBoard
from penstock.jobs.runner.seams import RunnerLease
from penstock.jobs.usage import Usage, UsageMeter
from penstock.metrics import JOBS_DIFFERENCES, JOBS_VERIFICATIONS_TOTAL, JOBS_VERIFY_SECONDS
from penstock.settings import Settings
from penstock.verify.isolated import IsolatedVerification, verification_processes
from penstock.verify.results import LastVerification, VerificationResults
from penstock.worker_processes import WorkerProcesses

__all__ = ["DueVerification", "ScheduledVerification", "next_due", "verify_on_schedule"]

_log = logging.getLogger(__name__)

_POLL_S = 5.0
_END_S = 10.0  # for a comparison to end after the runner
_NICENESS = 10
_LOOK_S = 1.0  # between looks whether a comparison proceeds
_PATIENCE = 4
"""How many times `jobs.stall_s` a comparison may take for a batch: it sorts what does not fit in memory."""


class DueVerification(NamedTuple):
    """A job whose target is to be compared at `at_ms`, in milliseconds since the epoch."""

    at_ms: int
    job: Job


def next_due(jobs: Iterable[Job], last: Mapping[JobKey, LastVerification]) -> DueVerification | None:
    """Return the job that is due first, now or later; None when no target is to be compared.

    A job is due an interval after its last comparison ended, whatever the result, or after it was registered.
    A job that has no rows yet or is stopped by an error is not compared before that is over.
    """
    due = [
        DueVerification(_due_at_ms(job, job.spec.verify_s, last.get(job.key)), job)
        for job in jobs
        if job.spec.verify_s is not None and _can_be_compared(job)
    ]
    return min(due, key=lambda found: (found.at_ms, found.job.key.job_name), default=None)


def _can_be_compared(job: Job) -> bool:
    return job.live and bool(job.watermark) and job.state is not JobState.ERROR


def _due_at_ms(job: Job, interval_s: float, last: LastVerification | None) -> int:
    return (job.create_at if last is None else last.ended_ms) + int(interval_s * 1000)


def verify_on_schedule(
    log: JobLog, source: ScanSource, settings: Settings, usage: UsageMeter | None = None
) -> Callable[[JobBoard, RunnerLease], Coroutine[object, object, None]]:
    """Return the side task of a runner that verifies targets on schedule; `usage` is charged for it."""
    jobs, results = Jobs(log.client, catalog=log.catalog, keys=log.keyring), VerificationResults(log)
    stall_s = _PATIENCE * settings.jobs.stall_s

    async def run(board: JobBoard, lease: RunnerLease) -> None:
        processes = verification_processes(settings, count=1)
        targets = IsolatedVerification(jobs, lambda: source, settings, processes, stall_s=stall_s)
        await ScheduledVerification(
            board, lease, targets, results, processes, stall_s=stall_s, usage=usage
        ).run()

    return run


class ScheduledVerification:
    """Compares the targets that are due, for as long as the lease is held. A difference does not change the
    job.

    Comparisons have a thread of their own with a lower priority, so that they delay no iteration. One that
    does not proceed for `stall_s` is given up: a target that never answers does not keep the targets of
    others from being compared, and is not compared again before that thread has returned.
    """

    def __init__(
        self,
        board: JobBoard,
        lease: RunnerLease,
        targets: IsolatedVerification,
        results: VerificationResults,
        processes: WorkerProcesses | None = None,
        *,
        stall_s: float = 3600.0,
        usage: UsageMeter | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._board = board
        self._lease = lease
        self._targets = targets
        self._results = results
        self._processes = processes
        self._usage = usage
        self._stall_s = stall_s
        self._clock = clock
        self._last: dict[JobKey, LastVerification] = {}
        self._given_up: set[JobKey] = set()  # jobs whose comparisons have not returned
        self._measured: set[str] = set()  # jobs whose differences the metric shows

    async def run(self) -> None:
        """Compare until it is cancelled; a comparison that runs then is given up."""
        try:
            await self._read_last_results()
            while True:
                self._remove_old_metrics()
                jobs = [tracked.job for tracked in self._board if tracked.job.key not in self._given_up]
                due = next_due(jobs, self._last)
                wait_s = _POLL_S if due is None else (due.at_ms - self._clock.wall_ms()) / 1000
                if due is None or wait_s > 0 or self._lease.lapsed:
                    await self._clock.sleep(min(max(wait_s, 0.1), _POLL_S))
                    continue
                await self._compare(due.job)
        finally:
            self._remove_metrics(set(self._measured))
            await self._end_processes()

    async def _end_processes(self) -> None:
        if self._processes is not None:
            await asyncio.to_thread(self._processes.close)

    async def _read_last_results(self) -> None:
        """Read the results of earlier runners; nothing is compared before that works."""
        jobs = {tracked.job.key: tracked.job for tracked in self._board}
        while True:
            try:
                self._last = await asyncio.to_thread(self._results.read, list(jobs))
            except PenstockError as error:
                _log.warning("earlier comparisons cannot be read", extra={"error": str(error)})
                await self._clock.sleep(_POLL_S)
            else:
                break
        for key, last in self._last.items():
            self._set_metric(jobs[key], last)

    async def _compare(self, job: Job) -> None:
        comparison = _RunningComparison(self._clock, self._lease)
        began = self._clock.monotonic()
        thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-verify", initializer=_lower_priority)
        running = asyncio.get_running_loop().run_in_executor(thread, self._verify, job, comparison)
        thread.shutdown(wait=False)
        try:
            result = await self._wait_for(running, job, comparison)
        except asyncio.CancelledError:
            comparison.stopped.set()
            await self._end_processes()
            await asyncio.wait([running], timeout=_END_S)
            raise
        JOBS_VERIFY_SECONDS.observe(self._clock.monotonic() - began)
        self._last[job.key] = result
        await self._keep_result(job, result)

    async def _wait_for(
        self, running: "asyncio.Future[LastVerification]", job: Job, comparison: "_RunningComparison"
    ) -> LastVerification:
        """Return the result of a comparison; give it up when it does not proceed."""
        while not (await asyncio.wait([running], timeout=_LOOK_S))[0]:
            if self._clock.monotonic() < comparison.proceeded_at + self._stall_s:
                continue
            comparison.stopped.set()
            self._given_up.add(job.key)
            running.add_done_callback(lambda _: self._given_up.discard(job.key))
            error = (
                f"it did not proceed for {self._stall_s:g} s ({_PATIENCE} x jobs.stall_s); check the target"
            )
            return LastVerification(ended_ms=self._clock.wall_ms(), error=error)
        return running.result()

    def _verify(self, job: Job, comparison: "_RunningComparison") -> LastVerification:
        """Compare a target, and charge its account; a failure is a result too."""
        began = self._clock.monotonic()
        used = Usage()
        try:
            report = self._targets.verify(job.id, proceed=comparison.proceed)
        except PenstockError as error:
            return LastVerification(ended_ms=self._clock.wall_ms(), error=str(error))
        except Exception as error:  # noqa: BLE001 - any consumer's code; its message may show values
            _log.error("a comparison failed", extra={"job": str(job.id), "error": type(error).__name__})
            return LastVerification(ended_ms=self._clock.wall_ms(), error=type(error).__name__)
        else:
            used = Usage(report.rows, report.nbytes)
        finally:
            if self._usage is not None:
                seconds = self._clock.monotonic() - began
                self._usage.add(job.account, used + Usage(task_seconds=seconds))
        return LastVerification.of(report, ended_ms=self._clock.wall_ms())

    async def _keep_result(self, job: Job, result: LastVerification) -> None:
        outcome = {True: "same", False: "differs", None: "failed"}[result.same]
        JOBS_VERIFICATIONS_TOTAL.labels(outcome).inc()
        self._set_metric(job, result)
        if result.problem:
            _log.warning("a target was verified", extra={"job": str(job.id), "problem": result.problem})
        try:
            await asyncio.to_thread(self._results.note, job.key, result, epoch=self._lease.epoch)
        except Fenced:
            _log.info(
                "the result of a comparison is not kept: the job or the lease is gone",
                extra={"job": str(job.id)},
            )
        except PenstockError as error:
            _log.warning(
                "the result of a comparison cannot be kept", extra={"job": str(job.id), "error": str(error)}
            )

    def _set_metric(self, job: Job, result: LastVerification) -> None:
        if result.same is not None:
            self._measured.add(str(job.id))
            JOBS_DIFFERENCES.labels(str(job.id)).set(result.counts.total)

    def _remove_old_metrics(self) -> None:
        """Remove the metrics of jobs that are gone or are not compared any more."""
        left = {str(tracked.job.id) for tracked in self._board if tracked.job.spec.verify_s is not None}
        self._remove_metrics(self._measured - left)

    def _remove_metrics(self, names: set[str]) -> None:
        for name in names:
            JOBS_DIFFERENCES.remove(name)
        self._measured -= names


class _RunningComparison:
    """A comparison that runs: when it last proceeded, and whether it should stop."""

    def __init__(self, clock: Clock, lease: RunnerLease) -> None:
        self._clock = clock
        self._lease = lease
        self.stopped = threading.Event()
        self.proceeded_at = clock.monotonic()

    def proceed(self) -> None:
        """Record progress; raise Unavailable when the comparison is to end."""
        self.proceeded_at = self._clock.monotonic()
        if self.stopped.is_set() or self._lease.lapsed:
            raise Unavailable("this process does not run the jobs any more")


def _lower_priority() -> None:
    """Lower the priority of this thread alone: on Linux each thread has its own."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
