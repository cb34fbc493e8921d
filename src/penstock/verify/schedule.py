"""Comparing targets with their sources on schedule, beside the iterations: one at a time.

Which target is to be compared next. Pure.

What the runner compares targets with: their care, and where results are kept.
"""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from penstock.clock import SYSTEM, Clock
from penstock.errors import Fenced, PenstockError, Unavailable
from penstock.follow.source import ScanSource
from penstock.jobs.api import Jobs
from penstock.jobs.job import Job, JobKey, JobState
from penstock.jobs.log.job_log import JobLog
from penstock.jobs.runner.board import JobBoard
from penstock.jobs.runner.seams import RunnerLease
from penstock.metrics import JOBS_DIFFERENCES, JOBS_VERIFICATIONS_TOTAL, JOBS_VERIFY_SECONDS
from penstock.settings import Settings
from penstock.verify.results import LastVerification, Outcomes
from penstock.verify.target import TargetVerification, TargetVerifyReport

__all__ = [
    "Due",
    "RunnerVerifier",
    "ScheduledCare",
    "ScheduledVerification",
    "next_due",
    "verify_on_schedule",
]


class Due(NamedTuple):
    """A job whose target is to be compared, and when: in milliseconds since the epoch."""

    at_ms: int
    job: Job


def next_due(jobs: Iterable[Job], last: Mapping[JobKey, LastVerification]) -> Due | None:
    """The first that is due, now or later; None: there is none.

    A job is due an interval after its last comparison came to its end, whatever that found, or after it was
    registered. One that has no rows yet, or is stopped by an error, waits until that is over.
    """
    due = [Due(_at_ms(job, job.spec.verify_s, last), job) for job in jobs if _can_be(job)]
    return min(due, key=lambda each: (each.at_ms, each.job.key.job_name), default=None)


def _can_be(job: Job) -> bool:
    return (
        job.live and job.spec.verify_s is not None and bool(job.watermark) and job.state is not JobState.ERROR
    )


def _at_ms(job: Job, interval_s: float | None, last: Mapping[JobKey, LastVerification]) -> int:
    assert interval_s is not None, "it is to be compared"
    known = last.get(job.key)
    return (job.create_at if known is None else known.ended_ms) + int(interval_s * 1000)


_LOOK_S = 5.0
_END_S = 10.0
_NICENESS = 10

_log = logging.getLogger(__name__)


class RunnerVerifier(Protocol):
    """Compares targets. Blocks; every method may raise Unavailable."""

    def last(self, keys: Iterable[JobKey]) -> dict[JobKey, LastVerification]:
        """What was found the last time, of those that were compared ever."""

    def verify(self, job: Job, proceed: Callable[[], None]) -> TargetVerifyReport:
        """Compare a target; `proceed` is called now and then, and what it raises ends the comparison."""

    def note(self, key: JobKey, last: LastVerification, *, epoch: int) -> None:
        """Keep what was found; Fenced when the lease of that epoch is lost, or the job is gone."""


class ScheduledVerification:
    """Compares what is due, for as long as the lease is held. A difference changes nothing for the job.

    Comparisons have a thread of their own with a lower priority, so that they hold up no iteration.
    """

    def __init__(
        self, board: JobBoard, lease: RunnerLease, verifier: RunnerVerifier, *, clock: Clock = SYSTEM
    ) -> None:
        self._board = board
        self._lease = lease
        self._verifier = verifier
        self._clock = clock
        self._last: dict[JobKey, LastVerification] = {}
        self._shown: set[str] = set()

    async def run(self) -> None:
        """Compare until it is cancelled; what is under way then is given up."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-verify", initializer=_lower_priority)
        try:
            await self._recall()
            while True:
                self._forget()
                due = next_due((each.job for each in self._board), self._last)
                wait_s = _LOOK_S if due is None else (due.at_ms - self._clock.wall_ms()) / 1000
                if due is None or wait_s > 0 or self._lease.lapsed:
                    await self._clock.sleep(min(max(wait_s, 0.1), _LOOK_S))
                    continue
                await self._compare(due.job, thread)
        finally:
            thread.shutdown(wait=False, cancel_futures=True)
            self._hide(set(self._shown))

    async def _recall(self) -> None:
        """Learn what was found before; while that does not work nothing is compared."""
        jobs = {each.job.key: each.job for each in self._board}
        while True:
            try:
                self._last = await asyncio.to_thread(self._verifier.last, list(jobs))
            except PenstockError as error:
                _log.warning("earlier comparisons cannot be read", extra={"error": str(error)})
                await self._clock.sleep(_LOOK_S)
            else:
                break
        for key, last in self._last.items():
            self._show(jobs[key], last)

    async def _compare(self, job: Job, thread: ThreadPoolExecutor) -> None:
        stopped = threading.Event()
        began = self._clock.monotonic()
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(thread, self._found, job, stopped)
        try:
            found = await asyncio.shield(running)
        except asyncio.CancelledError:
            stopped.set()
            await asyncio.wait([running], timeout=_END_S)
            raise
        JOBS_VERIFY_SECONDS.observe(self._clock.monotonic() - began)
        self._last[job.key] = found
        await self._note(job, found)

    def _found(self, job: Job, stopped: threading.Event) -> LastVerification:
        """Compare; whatever goes wrong is what was found."""

        def proceed() -> None:
            if stopped.is_set() or self._lease.lapsed:
                raise Unavailable("this process does not run the jobs any more")

        try:
            report = self._verifier.verify(job, proceed)
        except PenstockError as error:
            return LastVerification(ended_ms=self._clock.wall_ms(), error=str(error))
        except Exception as error:  # noqa: BLE001 - a consumer is anybody's code, and its words may show values
            _log.error("a comparison failed", extra={"job": str(job.id), "error": type(error).__name__})
            return LastVerification(ended_ms=self._clock.wall_ms(), error=type(error).__name__)
        return LastVerification.of(report, ended_ms=self._clock.wall_ms())

    async def _note(self, job: Job, found: LastVerification) -> None:
        result = {True: "same", False: "differs", None: "failed"}[found.same]
        JOBS_VERIFICATIONS_TOTAL.labels(result).inc()
        self._show(job, found)
        if found.problem:
            _log.warning("a target was verified", extra={"job": str(job.id), "problem": found.problem})
        try:
            await asyncio.to_thread(self._verifier.note, job.key, found, epoch=self._lease.epoch)
        except Fenced:
            _log.info(
                "what was verified is not noted: the job or the lease is gone", extra={"job": str(job.id)}
            )
        except PenstockError as error:
            _log.warning("what was verified cannot be noted", extra={"job": str(job.id), "error": str(error)})

    def _show(self, job: Job, found: LastVerification) -> None:
        if found.same is not None:
            self._shown.add(str(job.id))
            JOBS_DIFFERENCES.labels(str(job.id)).set(found.counts.total)

    def _forget(self) -> None:
        """Show nothing of jobs that are gone, or are not compared any more."""
        left = {str(each.job.id) for each in self._board if each.job.spec.verify_s is not None}
        self._hide(self._shown - left)

    def _hide(self, names: set[str]) -> None:
        for name in names:
            JOBS_DIFFERENCES.remove(name)
        self._shown -= names


def verify_on_schedule(
    verifier: RunnerVerifier,
) -> Callable[[JobBoard, RunnerLease], Coroutine[object, object, None]]:
    """The task of a runner that compares targets on schedule."""
    return lambda board, lease: ScheduledVerification(board, lease, verifier).run()


def _lower_priority() -> None:
    """Of this thread alone: on Linux each has its own."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


class ScheduledCare:
    """Implements RunnerVerifier over a job log."""

    def __init__(self, log: JobLog, source: ScanSource, settings: Settings, *, clock: Clock = SYSTEM) -> None:
        jobs = Jobs(log.client, catalog=log.catalog)
        self._care = TargetVerification(jobs, source, settings, clock=clock)
        self._outcomes = Outcomes(log)

    def last(self, keys: Iterable[JobKey]) -> dict[JobKey, LastVerification]:
        """See RunnerVerifier."""
        return self._outcomes.read(keys)

    def verify(self, job: Job, proceed: Callable[[], None]) -> TargetVerifyReport:
        """See RunnerVerifier."""
        return self._care.verify(job.id, proceed=proceed)

    def note(self, key: JobKey, last: LastVerification, *, epoch: int) -> None:
        """See RunnerVerifier."""
        self._outcomes.note(key, last, epoch=epoch)
