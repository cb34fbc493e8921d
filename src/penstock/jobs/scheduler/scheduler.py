"""Runs iterations: a bounded queue, a pool of workers, retries, and cancellation at any point."""

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

_log = logging.getLogger(__name__)

USAGE_INTERVAL_S = 10.0
"""How often what accounts have used is kept."""
ANNOUNCED_S = 0.25
"""Iterations that have waited so long are `pending` in the log; the others run at once."""
CLOSE_S = 30.0
"""How long workers may take to end."""
_RETRY_MAX_S = 60.0

OnEnd = Callable[[str, JobKey, Job | None], None]
"""Told of each job of an iteration, once, when it leaves: the iteration's id, the job, and its row then."""


def retry_policy(settings: JobsSettings) -> BackoffPolicy:
    """Return when a failed iteration is tried again, and how often."""
    return BackoffPolicy(
        base_s=settings.backoff_s, cap_s=_RETRY_MAX_S, jitter=EQUAL_JITTER, attempts=settings.attempts
    )


@dataclass(frozen=True, slots=True)
class _Running:
    waiting: Waiting
    attempt: IterationRun


@dataclass(frozen=True, slots=True)
class _Duties:
    """Jobs that were canceled while they waited, and iterations that wait without the log saying so."""

    given_up: Sequence[tuple[int, Job]]
    silent: Sequence[Waiting]


class Scheduler:
    """Iterations in, ends of jobs out. `submit` and `cancel` never block; for any thread.

    A job of an iteration that was accepted leaves exactly once: when it has completed, has failed for good,
    was canceled, or is somebody else's. What failed for now is tried again after a while, without the
    siblings that have succeeded.
    """

    def __init__(
        self,
        executor: IterationRunner,
        settings: JobsSettings,
        *,
        on_end: OnEnd,
        weights: Mapping[str, int] | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._executor = executor
        self._on_end = on_end
        self._clock = clock
        self._retrying = retry_policy(settings)
        self._lock = threading.Lock()
        self._ready = threading.Condition(self._lock)  # an iteration waits, or it is time to end
        self._duties = threading.Condition(self._lock)  # something for the clerk
        self._queue = FairQueue(settings.queue_max, weights)
        self._running: dict[int, _Running] = {}
        self._jobs: dict[JobKey, Waiting] = {}  # those that have not left, and what they came with
        self._given_up: list[tuple[int, Job]] = []  # canceled while they waited; not written yet
        self._closing = False
        self._workers = [
            threading.Thread(target=self._work, name=f"penstock-jobs-{number}", daemon=True)
            for number in range(settings.workers)
        ]
        self._clerk = threading.Thread(target=self._keep, name="penstock-jobs-clerk", daemon=True)

    @property
    def queued(self) -> int:
        """Iterations that wait."""
        with self._lock:
            return len(self._queue)

    @property
    def running(self) -> int:
        """Iterations that are executed."""
        with self._lock:
            return len(self._running)

    def start(self) -> None:
        """Begin to work; raise Invalid when the directory for scratch files cannot be used."""
        self._executor.open()
        for thread in (*self._workers, self._clerk):
            thread.start()

    def submit(self, iteration: Iteration) -> bool:
        """Let an iteration wait for a worker; False, and nothing happens, when too many wait already.

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
            self._ready.notify()
            if len(self._queue) == 1:
                self._duties.notify()  # while nobody waits it does not look whether somebody has for long
            self._count()
            return True

    def cancel(self, key: JobKey) -> bool:
        """Let a job leave, whether it waits or runs, without its siblings; False when it is not here."""
        with self._lock:
            if key not in self._jobs:
                return False
            self._cancel(key)
            return True

    async def close(self) -> None:
        """Cancel everything, and wait a while for what runs to end. No job is here afterwards."""
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
        self._executor.close()

    def _cancel(self, key: JobKey) -> None:
        removed = self._queue.remove(key)
        if removed is not None:
            self._given_up.append((self._jobs[key].number, removed))
            self._duties.notify()
            self._count()
        for running in self._running.values():
            if any(job.key == key for job in running.waiting.iteration.jobs):
                running.attempt.cancel(key)

    def _count(self) -> None:
        metrics.JOBS_QUEUED_ITERATIONS.set(len(self._queue))
        metrics.JOBS_RUNNING_ITERATIONS.set(len(self._running))

    def _work(self) -> None:
        while (running := self._next()) is not None:
            began = self._clock.monotonic()
            try:
                again = running.attempt.run()
            except Exception:  # noqa: BLE001 - our own mistake; the other iterations go on
                facts = {"iteration": running.waiting.iteration.id}
                _log.exception("an iteration ended in an unforeseen way", extra=facts)
                again = []
            seconds = self._clock.monotonic() - began
            metrics.JOBS_ITERATION_SECONDS.observe(seconds)
            self._done(running, again, seconds)

    def _next(self) -> _Running | None:
        """Wait for an iteration; None when it is time to end."""
        with self._lock:
            while not self._closing:
                taken = self._queue.take()
                if taken is not None:
                    metrics.JOBS_QUEUE_WAIT_SECONDS.observe(self._clock.monotonic() - taken.since)
                    last = self._retrying.is_last(taken.failures)
                    leave = partial(self._leave, taken.number)
                    running = _Running(
                        taken, self._executor.attempt(taken.iteration, last=last, on_end=leave)
                    )
                    self._running[taken.number] = running
                    self._count()
                    return running
                self._ready.wait()
        return None

    def _done(self, running: _Running, again: list[Job], seconds: float) -> None:
        """A worker is free: let what failed for now wait, unless nobody wants it any more."""
        waiting, iteration = running.waiting, running.waiting.iteration
        with self._lock:
            del self._running[waiting.number]
            self._queue.done(iteration.account, seconds)
            unwanted = {job.key for job in again} if self._closing else running.attempt.canceled
            self._given_up += [(waiting.number, job) for job in again if job.key in unwanted]
            left = tuple(job for job in again if job.key not in unwanted)
            if left:
                failures = waiting.failures + 1
                wait_s = self._retrying.delay_s(failures, self._clock.random())
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
            self._leave(waiting.number, key, None)  # most have left before

    def _leave(self, number: int, key: JobKey, row: Job | None) -> None:
        """Let a job leave, if it is still here with the iteration of that number."""
        with self._lock:
            found = self._jobs.get(key)
            if found is None or found.number != number:
                return
            del self._jobs[key]
        try:
            self._on_end(found.iteration.id, key, row)
        except Exception:  # noqa: BLE001 - whatever it was, the job has left
            _log.exception("the end of a job was not taken", extra={"job": key.owner})

    def _keep(self) -> None:
        """What is done beside iterations: retries that are due, rows of jobs that wait or are canceled."""
        usage_at = self._clock.monotonic() + USAGE_INTERVAL_S
        while (duties := self._wait_for_duties(usage_at)) is not None:
            try:
                self._announce(duties.silent)
                self._write_canceled(duties.given_up)
                if self._clock.monotonic() >= usage_at:
                    usage_at = self._clock.monotonic() + USAGE_INTERVAL_S
                    self._executor.usage.flush()
            except Exception:  # noqa: BLE001 - our own mistake; retries go on
                _log.exception("what the scheduler does beside iterations failed")

    def _wait_for_duties(self, usage_at: float) -> _Duties | None:
        """What there is to write, perhaps nothing; None: nothing is left, and nothing comes any more."""
        with self._lock:
            while True:
                now = self._clock.monotonic()
                due = self._queue.ripen(now)
                self._ready.notify(len(self._queue))
                silent = [] if self._closing else self._queue.hold_silent(now - ANNOUNCED_S)
                if self._given_up or silent or now >= usage_at:
                    given_up, self._given_up = self._given_up, []
                    return _Duties(given_up, silent)
                if self._closing and not self._running:
                    return None
                look_at = now + ANNOUNCED_S if len(self._queue) else usage_at
                self._duties.wait(min(usage_at, look_at, due or usage_at) - now)

    def _announce(self, silent: Sequence[Waiting]) -> None:
        """Write that iterations wait, and let them go on waiting."""
        if not silent:
            return
        rows = self._executor.announce([each.iteration for each in silent])
        with self._lock:
            for each in silent:
                self._queue.announce(each.number, rows)
            # Who was canceled meanwhile has another row by now.
            self._given_up = [(number, (rows or {}).get(job.key, job)) for number, job in self._given_up]
            self._ready.notify(len(silent))
        if rows is not None:
            lost = [
                (each.number, job) for each in silent for job in each.iteration.jobs if job.key not in rows
            ]
            for number, job in lost:
                self._leave(number, job.key, None)

    def _write_canceled(self, given_up: Sequence[tuple[int, Job]]) -> None:
        if given_up:
            rows = self._executor.cancel([job for _, job in given_up])
            for (number, job), row in zip(given_up, rows, strict=True):
                self._leave(number, job.key, row)
