"""The scheduler: a bounded queue of iterations, a pool of workers, retries, and cancellation at any point."""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from penstock import metrics
from penstock.clock import SYSTEM, Clock
from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.iteration.iteration_run import IterationRun, IterationRunner
from penstock.jobs.job import Job, JobKey
from penstock.jobs.scheduler.fair_queue import FairQueue, Waiting
from penstock.retry import EQUAL_JITTER, BackoffPolicy
from penstock.settings import JobsSettings
from penstock.shares import Shares

_log = logging.getLogger(__name__)

USAGE_INTERVAL_S = 10.0
"""How often the usage of accounts is written to the store."""
ANNOUNCED_S = 0.25
"""Iterations that have waited so long become `pending` in the log; others run without that."""
CLOSE_S = 30.0
"""How long `close` waits for workers to end."""
_RETRY_MAX_S = 60.0

OnEnd = Callable[[str, JobKey, Job | None], None]
"""Called once for each job of an iteration when it leaves: the iteration's id, the job, and its row then."""


def retry_policy(settings: JobsSettings) -> BackoffPolicy:
    """Return when a failed iteration is retried, and how often."""
    return BackoffPolicy(
        base_s=settings.backoff_s, cap_s=_RETRY_MAX_S, jitter=EQUAL_JITTER, attempts=settings.attempts
    )


@dataclass(frozen=True, slots=True)
class _Running:
    """An iteration that a worker executes."""

    waiting: Waiting
    run: IterationRun


@dataclass(frozen=True, slots=True)
class _Duties:
    """Jobs that were canceled while they waited, and waiting iterations that the log does not show yet."""

    canceled: Sequence[tuple[int, Job]]
    unannounced: Sequence[Waiting]


class Scheduler:
    """Iterations in, ends of jobs out. `submit` and `cancel` never block; for any thread.

    A job of an accepted iteration leaves exactly once: when it has completed, has failed for good, was
    canceled, or was taken over by another runner. A job that failed for now is retried after a delay, without
    the siblings that have succeeded.
    """

    def __init__(
        self,
        runner: IterationRunner,
        settings: JobsSettings,
        *,
        on_end: OnEnd,
        weights: Mapping[str, int] | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._runner = runner
        self._on_end = on_end
        self._clock = clock
        self._backoff = retry_policy(settings)
        self._lock = threading.Lock()
        self._ready = threading.Condition(self._lock)  # an iteration can be taken, or the scheduler closes
        self._duties = threading.Condition(self._lock)  # the clerk thread has something to do
        shares = Shares.of(settings.workers, settings.account_workers)
        self._queue = FairQueue(settings.queue_max, weights, shares, consumers_max=settings.account_consumers)
        self._running: dict[int, _Running] = {}
        self._jobs: dict[JobKey, Waiting] = {}  # jobs that have not left, and the iteration they came with
        self._unwritten: list[tuple[int, Job]] = []  # canceled while they waited; not in the log yet
        self._closing = False
        self._workers = [
            threading.Thread(target=self._work, name=f"penstock-jobs-{number}", daemon=True)
            for number in range(shares.most)
        ]
        self._clerk = threading.Thread(target=self._keep, name="penstock-jobs-clerk", daemon=True)

    @property
    def queued(self) -> int:
        """The number of iterations that wait."""
        with self._lock:
            return len(self._queue)

    @property
    def running(self) -> int:
        """The number of iterations that are executed."""
        with self._lock:
            return len(self._running)

    def start(self) -> None:
        """Start the threads; raise Invalid when the directory for scratch files cannot be used."""
        self._runner.open()
        for thread in (*self._workers, self._clerk):
            thread.start()

    def submit(self, iteration: Iteration) -> bool:
        """Let an iteration wait for a worker; return False, with nothing changed, when too many wait already.

        Its jobs are as their rows were last written. None of them may be in another iteration.
        """
        assert iteration.from_ts < iteration.to_ts, "an iteration has a range"
        with self._lock:
            known = [job.key for job in iteration.jobs if job.key in self._jobs]
            assert not known, "a job is in one iteration at a time"
            waiting = None if self._closing else self._queue.offer(iteration, self._clock.monotonic())
            if waiting is None:
                return False
            self._jobs |= {job.key: waiting for job in iteration.jobs}
            self._runner.read_ahead(iteration)  # before a worker can take it
            self._ready.notify()
            if len(self._queue) == 1:
                self._duties.notify()  # with an empty queue the clerk does not check for long waits
            self._count()
            return True

    def cancel(self, key: JobKey) -> bool:
        """Let a job leave, whether it waits or runs, without its siblings; return False if it is not here."""
        with self._lock:
            if key not in self._jobs:
                return False
            self._cancel(key)
            return True

    async def close(self) -> None:
        """Cancel everything, and wait for a while until what runs has ended. No job is here afterwards."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            self._closing = True
            for key in list(self._jobs):
                self._cancel(key)
            self._ready.notify_all()
            self._duties.notify()
        deadline = self._clock.monotonic() + CLOSE_S
        for thread in (*self._workers, self._clerk):
            if thread.ident is not None:
                thread.join(max(0.0, deadline - self._clock.monotonic()))
        with self._lock:
            left = list(self._jobs.items())
        for key, waiting in left:
            self._leave(waiting.number, key, None)
        self._runner.close()

    def _cancel(self, key: JobKey) -> None:
        removed = self._queue.remove(key)
        if removed is not None:
            self._unwritten.append((self._jobs[key].number, removed))
            self._duties.notify()
            self._count()
        for running in self._running.values():
            if any(job.key == key for job in running.waiting.iteration.jobs):
                running.run.cancel(key)

    def _count(self) -> None:
        metrics.JOBS_QUEUED_ITERATIONS.set(len(self._queue))
        metrics.JOBS_RUNNING_ITERATIONS.set(len(self._running))

    def _work(self) -> None:
        while (running := self._next()) is not None:
            began = self._clock.monotonic()
            try:
                again = running.run.run()
            except Exception:  # noqa: BLE001 - our own mistake; the other iterations continue
                facts = {"iteration": running.waiting.iteration.id}
                _log.exception("an iteration failed in an unforeseen way", extra=facts)
                again = []
            seconds = self._clock.monotonic() - began
            metrics.JOBS_ITERATION_SECONDS.observe(seconds)
            self._finish(running, again, seconds)

    def _next(self) -> _Running | None:
        """Wait for an iteration; return None when the scheduler closes."""
        with self._lock:
            while not self._closing:
                taken = self._queue.take()
                if taken is not None:
                    metrics.JOBS_QUEUE_WAIT_SECONDS.observe(self._clock.monotonic() - taken.since)
                    last = self._backoff.is_last(taken.failures)
                    leave = partial(self._leave, taken.number)
                    running = _Running(taken, self._runner.make_run(taken.iteration, last=last, on_end=leave))
                    self._running[taken.number] = running
                    self._count()
                    if len(self._queue):
                        self._ready.notify()  # one end may let several run: each wakes the next
                    return running
                self._ready.wait()
        return None

    def _finish(self, running: _Running, again: list[Job], seconds: float) -> None:
        """Free a worker, and let jobs that failed for now wait for a retry, unless they were canceled."""
        waiting, iteration = running.waiting, running.waiting.iteration
        with self._lock:
            del self._running[waiting.number]
            self._queue.finish(iteration.account, seconds, consumers=len(iteration.jobs))
            unwanted = {job.key for job in again} if self._closing else running.run.canceled
            self._unwritten += [(waiting.number, job) for job in again if job.key in unwanted]
            left = tuple(job for job in again if job.key not in unwanted)
            if left:
                failures = waiting.failures + 1
                wait_s = self._backoff.delay_s(failures, self._clock.random())
                self._queue.retry(
                    replace(
                        waiting, iteration=replace(iteration, jobs=left), failures=failures, announced=True
                    ),
                    self._clock.monotonic() + wait_s,
                )
            lost = {job.key for job in iteration.jobs} - {job.key for job in again}
            self._duties.notify()
            self._count()
        for key in lost:
            self._leave(waiting.number, key, None)  # most have left already

    def _leave(self, number: int, key: JobKey, row: Job | None) -> None:
        """Let a job leave, if it is still here with the iteration of that number."""
        with self._lock:
            found = self._jobs.get(key)
            if found is None or found.number != number:
                return
            del self._jobs[key]
        self._runner.drop_ahead(found.iteration.id)
        try:
            self._on_end(found.iteration.id, key, row)
        except Exception:  # noqa: BLE001 - whatever it was, the job has left
            _log.exception("the callback for the end of a job failed", extra={"job": key.owner})

    def _keep(self) -> None:
        """Do the clerk's work: release retries that are due, write rows of waiting and of canceled jobs."""
        usage_at = self._clock.monotonic() + USAGE_INTERVAL_S
        while (duties := self._wait_for_duties(usage_at)) is not None:
            try:
                self._announce(duties.unannounced)
                self._write_canceled(duties.canceled)
                if self._clock.monotonic() >= usage_at:
                    usage_at = self._clock.monotonic() + USAGE_INTERVAL_S
                    self._runner.usage.flush()
            except Exception:  # noqa: BLE001 - our own mistake; retries continue
                _log.exception("the scheduler's work beside iterations failed")

    def _wait_for_duties(self, usage_at: float) -> _Duties | None:
        """Return what to write, perhaps nothing; None: nothing is left, and nothing more comes."""
        with self._lock:
            while True:
                now = self._clock.monotonic()
                due = self._queue.release_due(now)
                self._ready.notify(len(self._queue))
                unannounced = [] if self._closing else self._queue.hold_unannounced(now - ANNOUNCED_S)
                if self._unwritten or unannounced or now >= usage_at:
                    canceled, self._unwritten = self._unwritten, []
                    return _Duties(canceled, unannounced)
                if self._closing and not self._running:
                    return None
                check_at = now + ANNOUNCED_S if len(self._queue) else usage_at
                self._duties.wait(min(usage_at, check_at, due or usage_at) - now)

    def _announce(self, unannounced: Sequence[Waiting]) -> None:
        """Write that iterations wait, and let them be taken again."""
        if not unannounced:
            return
        rows = self._runner.announce([waiting.iteration for waiting in unannounced])
        with self._lock:
            for waiting in unannounced:
                self._queue.announce(waiting.number, rows)
            # A job that was canceled meanwhile has another row by now.
            self._unwritten = [(number, (rows or {}).get(job.key, job)) for number, job in self._unwritten]
            self._ready.notify(len(unannounced))
        if rows is not None:
            lost = [
                (waiting.number, job)
                for waiting in unannounced
                for job in waiting.iteration.jobs
                if job.key not in rows
            ]
            for number, job in lost:
                self._leave(number, job.key, None)

    def _write_canceled(self, canceled: Sequence[tuple[int, Job]]) -> None:
        if canceled:
            rows = self._runner.cancel([job for _, job in canceled])
            for (number, job), row in zip(canceled, rows, strict=True):
                self._leave(number, job.key, row)
