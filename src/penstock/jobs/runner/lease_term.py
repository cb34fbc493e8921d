"""The time for which a process is the one runner: from when it has the lease until it loses it or stops.

`LeaseTerm` runs the jobs; `BoardGauges` shows how many there are in each state, and how far each is behind.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable

from prometheus_client import Gauge

from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.errors import Fenced, PenstockError
from penstock.eventloop import WakeUp
from penstock.follow.source import ScanSource
from penstock.jobs.job import Job, JobKey, JobState
from penstock.jobs.log.job_log import JobLog
from penstock.jobs.runner.board import JobBoard
from penstock.jobs.runner.board_log import BoardLog
from penstock.jobs.runner.seams import OpenScheduler, RunnerFeed, RunnerLease, RunnerLog
from penstock.jobs.runner.table_watch import TableWatch
from penstock.jobs.scheduler.scheduler import retry_policy
from penstock.metrics import JOBS_JOBS, JOBS_TICK_SECONDS, JOBS_WATERMARK_LAG_SECONDS
from penstock.settings import JobsSettings

_RETRY_S = 1.0

_log = logging.getLogger(__name__)


SideTask = Callable[[JobBoard, RunnerLease], Coroutine[object, object, None]]
"""Work beside the iterations while the lease is held; runs until it is cancelled."""


def seal_options(log: JobLog, *, clock: Clock = SYSTEM) -> SideTask:
    """Return the work that seals options which an earlier release stored in clear, once in each term.

    Under the lease, because a runner of that release, which cannot read them, does not run then.
    """

    async def seal(_board: JobBoard, _lease: RunnerLease) -> None:
        while True:
            try:
                count = await asyncio.to_thread(log.reseal)
                break
            except PenstockError as error:
                _log.warning("options of jobs are not sealed yet", extra={"error": str(error)})
                await clock.sleep(_RETRY_S)
        if count:
            _log.info("sealed options of jobs", extra={"jobs": count})
        await asyncio.Event().wait()

    return seal


class LeaseTerm:
    """Runs the jobs of a cluster under one lease."""

    def __init__(
        self,
        settings: JobsSettings,
        lease: RunnerLease,
        log: RunnerLog,
        feed: RunnerFeed,
        source: ScanSource,
        open_scheduler: OpenScheduler,
        *,
        side_tasks: Iterable[SideTask] = (),
        on_jobs: Callable[[], None] | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        backoff = retry_policy(settings)
        self._settings = settings
        self._lease = lease
        self._feed = feed
        self._source = source
        self._clock = clock
        self.board = JobBoard(
            interval_s=settings.interval_s,
            retry_delay_s=lambda failures: backoff.delay_s(failures, clock.random()),
        )
        self._log = BoardLog(self.board, log, epoch=lease.epoch)
        self._loop = asyncio.get_running_loop()
        self._wake_up = WakeUp(clock)
        self._scheduler = open_scheduler(self._on_end)
        self._watch = TableWatch(
            self.board,
            self._log,
            source,
            self._scheduler,
            lease,
            jobs_max=settings.iteration_consumers,
            allowed_code=settings.allowed_code,
            clock=clock,
        )
        self._gauges = BoardGauges(self.board)
        self._side_tasks = tuple(side_tasks)
        self._on_jobs = on_jobs
        self._next_full = self._next_fast = clock.monotonic()
        self._retry_at: float | None = None

    async def run(self) -> None:
        """Run until it is cancelled; raise Fenced when the lease is lost, or whatever else ends the term."""
        keeping = asyncio.create_task(self._keep())
        running = asyncio.create_task(self._run())
        try:
            await asyncio.wait((keeping, running), return_when=asyncio.FIRST_COMPLETED)
            for task in (keeping, running):
                if task.done():
                    task.result()
        finally:
            await _end(keeping, running)
            await self._scheduler.close()
            self._watch.close()
            self._gauges.clear()

    async def _keep(self) -> None:
        """Renew the lease. While that fails nothing begins, and a process that takes over fences this one."""
        while True:
            await self._clock.sleep(self._settings.lease_ttl_s / 5)
            try:
                await self._lease.renew()
            except Fenced:
                raise
            except PenstockError as error:
                _log.warning("the runner's lease cannot be renewed", extra={"error": str(error)})

    async def _run(self) -> None:
        ts = await self._log.take_over()
        _log.info("running jobs", extra={"epoch": self._lease.epoch, "jobs": len(list(self.board))})
        settings = self._settings
        duties = [
            asyncio.create_task(self._log.follow(self._feed, ts, self._wake_up.notify)),
            asyncio.create_task(self._regularly(settings.watermark_interval_s, "flush", self._log.flush)),
            asyncio.create_task(self._regularly(settings.collect_interval_s, "collect", self._collect)),
            asyncio.create_task(self._decide()),
        ]
        duties += [asyncio.create_task(work(self.board, self._lease)) for work in self._side_tasks]
        try:
            done, _ = await asyncio.wait(duties, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await _end(*duties)

    async def _collect(self) -> None:
        await self._log.collect(self._settings.dropped_ttl_s)

    async def _regularly(self, interval_s: float, what: str, duty: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._clock.sleep(interval_s)
            await self._try_duty(what, duty)

    async def _try_duty(self, what: str, duty: Callable[[], Awaitable[None]]) -> None:
        """Do something that is repeated in any case; log its failure."""
        try:
            await duty()
        except PenstockError as error:
            _log.warning(
                "a duty of the runner failed; it is repeated", extra={"duty": what, "error": str(error)}
            )

    def _on_end(self, iteration_id: str, key: JobKey, row: Job | None) -> None:
        self._loop.call_soon_threadsafe(self._end_job, iteration_id, key, row)

    def _end_job(self, iteration_id: str, key: JobKey, row: Job | None) -> None:
        self.board.end(iteration_id, key, row, now=self._clock.monotonic())
        self._wake_up.notify()

    async def _decide(self) -> None:
        """Check all tables from time to time, and some of them in between."""
        while True:
            await self._step()
            await self._wake_up.wait(self._idle_s())

    def _idle_s(self) -> float:
        """Return for how long nothing is due."""
        if self.board.has_urgent:
            return 0.0
        now = self._clock.monotonic()
        if not (self._watch.missed or self.board.has_uncertain):
            self._retry_at = None
        elif self._retry_at is None:
            self._retry_at = now + _RETRY_S
        fast = any(table.fast for table in self.board.tables.values())
        times = (
            self._next_full,
            self._next_fast if fast else None,
            self._retry_at,
            self.board.next_retry_at,
        )
        return max(0.0, min(at for at in times if at is not None) - now)

    async def _step(self) -> None:
        now = self._clock.monotonic()
        self.board.release_retries(now)
        for key in self.board.take_canceled():
            self._scheduler.cancel(key)
        await self._try_duty("settle", self._log.settle)
        if self._on_jobs is not None and self.board.tables:
            self._on_jobs()
            self._on_jobs = None
        full = now >= self._next_full
        tables = self._choose_tables(now, full=full)
        first = await self._watch.check_tables(tables) if tables else False
        if full or first:
            await self._try_duty("hold", self._hold)
        if full:
            self._gauges.show(self._watch.now_ts)
        if tables:
            JOBS_TICK_SECONDS.labels("full" if full else "part").observe(self._clock.monotonic() - now)

    async def _hold(self) -> None:
        await self._source.hold(self.board.list_needed_ts())

    def _choose_tables(self, now: float, *, full: bool) -> dict[int, bool]:
        """Return the tables to check now; True: only for jobs that must be checked more often."""
        urgent = self.board.take_urgent()
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            urgent |= self._watch.missed
            self._watch.missed.clear()
        if full:
            self._next_full = now + self._settings.interval_s
            self._next_fast = now + self._settings.greedy_interval_s
            self._watch.missed.clear()
            return dict.fromkeys(self.board.tables, False)
        due: dict[int, bool] = {}
        if now >= self._next_fast:
            self._next_fast = now + self._settings.greedy_interval_s
            due = {table_id: True for table_id, table in self.board.tables.items() if table.fast}
        return due | dict.fromkeys(urgent & self.board.tables.keys(), False)


async def _end(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


_STATES = ("paused", *(state.name.lower() for state in JobState))


class BoardGauges:
    """Gauges of the jobs of a board; removed when cleared, because another process shows them then."""

    def __init__(self, board: JobBoard) -> None:
        self._board = board
        self._lags: dict[str, Gauge] = {}  # by name: looking up a label costs more than setting the gauge

    def show(self, now_ts: int | None) -> None:
        """Show the jobs as they are; lag is behind `now_ts`, the database's time, and is kept without it."""
        states: Counter[str] = Counter()
        left = set(self._lags)
        for tracked in self._board:
            job = tracked.job
            states["paused" if job.spec.paused else job.state.name.lower()] += 1
            if tracked.watermark:
                name = str(job.id)
                left.discard(name)
                if now_ts is not None:
                    self._show_lag(name, now_ts, tracked.watermark)
        for state in _STATES:
            JOBS_JOBS.labels(state).set(states[state])
        self._forget(left)

    def _show_lag(self, name: str, now_ts: int, watermark: int) -> None:
        if name not in self._lags:
            self._lags[name] = JOBS_WATERMARK_LAG_SECONDS.labels(name)
        self._lags[name].set(max(0, physical_ms(now_ts) - physical_ms(watermark)) / 1000)

    def clear(self) -> None:
        """Show nothing any more."""
        for state in _STATES:
            JOBS_JOBS.labels(state).set(0)
        self._forget(set(self._lags))

    def _forget(self, names: set[str]) -> None:
        for name in names:
            del self._lags[name]
            JOBS_WATERMARK_LAG_SECONDS.remove(name)
