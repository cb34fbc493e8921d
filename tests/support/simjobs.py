"""A simulated cluster that runs jobs: tables that change, targets, schedulers, and processes that die.

The runner is real; tables are lists of commit timestamps, a target is the set of those that it has. Times and
faults are of the seed. What may never happen is asserted where it would.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from penstock.changes.batches import ChangesHandle
from penstock.changes.limits import ReadLimit
from penstock.clock import compose_ts, physical_ms
from penstock.errors import PenstockError, Unavailable
from penstock.follow.source import ReadableRange, TableScan
from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.job import ErrorCode, Job, JobKey
from penstock.jobs.log.transitions import (
    Transition,
    cancel_iteration,
    complete_iteration,
    fail_iteration,
    resync_job,
    start_iteration,
)
from penstock.jobs.runner.runner import JobRunner
from penstock.jobs.runner.seams import OnEnd
from penstock.settings import JobsSettings
from support.simjoblog import Chance, SimFeed, SimJobLog, SimLease, SimLeases

__all__ = ["SimCluster", "SimProcess", "SimScheduler", "SimTables"]

_OWN_WATERMARKS = frozenset("aceg")
"""Jobs whose targets keep the watermark beside the rows, and do not ask the log."""


class SimTables:
    """Tables, their changes, and how much history is kept; implements ScanSource as far as needed."""

    def __init__(self, chance: Chance) -> None:
        self.commits: dict[int, list[int]] = defaultdict(list)
        self.fates: dict[int, str] = {}
        self.uncaptured: set[int] = set()
        self.oldest: dict[int, int] = defaultdict(int)
        self.held: dict[int, int] = {}
        self.progress_reads = 0
        self._chance = chance

    def commit(self, table_id: int) -> int:
        """Change a table."""
        ts = max(self._chance.now_ts(), self.commits[table_id][-1] + 1 if self.commits[table_id] else 0)
        self.commits[table_id].append(ts)
        return ts

    def collect(self) -> None:
        """Let go of history that nobody holds: what is older than half a minute, and not held."""
        old_ts = compose_ts(physical_ms(self._chance.now_ts()) - 30_000)
        for table_id in self.commits:
            self.oldest[table_id] = max(self.oldest[table_id], min(old_ts, self.held.get(table_id, old_ts)))

    async def now_ts(self) -> int:
        """Return the current timestamp of the world."""
        self._shake()
        return self._chance.now_ts()

    async def read_progress(self, table_ids: Collection[int]) -> dict[int, ReadableRange]:
        """Return up to where tables can be read: about a second ago."""
        self.progress_reads += 1
        await self._chance.clock.sleep(self._chance.delay_s(0.02))
        self._shake(3)
        readable_ts = compose_ts(physical_ms(self._chance.now_ts()) - 1000)
        return {
            number: ReadableRange(readable_ts, self._changed_ts(number, readable_ts), self.oldest[number])
            for number in table_ids
            if number not in self.uncaptured
        }

    def _changed_ts(self, table_id: int, readable_ts: int) -> int:
        """Sometimes more than is true: that nothing has changed since is all that is promised."""
        if self._chance.strikes():
            return readable_ts
        return max((ts for ts in self.commits[table_id] if ts <= readable_ts), default=0)

    def why_gone(self, table_id: int, account: str = "sys") -> str | None:
        """Return why a table is not there."""
        del account
        return self.fates.get(table_id)

    async def hold(self, needed: Mapping[int, int]) -> None:
        """Hold the history of tables from timestamps on."""
        self._shake()
        self.held = dict(needed)

    def _shake(self, weight: float = 1.0) -> None:
        if self._chance.strikes(weight):
            raise Unavailable("the source does not answer")

    def scan(self, table_id: int, from_ts: int, to_ts: int, limit: ReadLimit) -> TableScan:
        """Not asked here: the simulated scheduler knows the commits."""
        raise NotImplementedError

    def open(
        self, scan: TableScan, columns: Collection[str] | None, *, impossible_dates: bool = False
    ) -> ChangesHandle:
        """Not asked here."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close the source."""


@dataclass
class SimTarget:
    """What a target has: its watermark, and the commits up to it."""

    ts: int = 0
    commits: set[int] = field(default_factory=set)


class SimScheduler:
    """Executes iterations of one process; implements RunnerScheduler. One that is dead works on unseen."""

    def __init__(self, cluster: "SimCluster", process: "SimProcess", on_end: OnEnd) -> None:
        self._cluster = cluster
        self._process = process
        self._on_end = on_end
        self._jobs: set[JobKey] = set()
        self._canceled: set[JobKey] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._workers = asyncio.Semaphore(cluster.settings.workers)

    def submit(self, iteration: Iteration) -> bool:
        """Run an iteration in its own task."""
        assert iteration.from_ts < iteration.to_ts, "an iteration without a range"
        if len(self._tasks) >= self._cluster.settings.queue_max:
            return False
        for job in iteration.jobs:
            assert job.key not in self._jobs, "a job in two iterations"
            self._jobs.add(job.key)
        self._cluster.iterations.append(iteration)
        task = asyncio.create_task(self._execute(iteration))
        self._tasks.add(task)
        task.add_done_callback(self._drop_task)
        return True

    def _drop_task(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._cluster.mistakes.append(error)

    def cancel(self, key: JobKey) -> bool:
        """Cancel the iteration of a job."""
        self._canceled.add(key)
        return key in self._jobs

    async def close(self) -> None:
        """Start no more iterations and wait for the running ones."""
        self._canceled |= self._jobs
        if not self._process.dead and self._tasks:
            await asyncio.wait(self._tasks)

    async def _execute(self, iteration: Iteration) -> None:
        chance = self._cluster.chance
        async with self._workers:
            span = iteration.from_ts, iteration.to_ts
            jobs = []
            for job in iteration.jobs:
                begin = start_iteration(*span, runner=job.status.runner, at=1)
                row = await self._write(job, cancel_iteration(at=1) if job.key in self._canceled else begin)
                if row is None or job.key in self._canceled:
                    self._leave(iteration, job.key, row)
                else:
                    jobs.append(row)
            seen = {job.key: self._cluster.targets[job.key].ts for job in jobs}
            await chance.clock.sleep(0.01 + chance.delay_s(self._cluster.slowness_s))
            stale = 0 < iteration.from_ts < self._cluster.tables.oldest[iteration.table_id]
            end_ts = self._end_ts(iteration)
            for job in jobs:
                await chance.clock.sleep(chance.delay_s(0.2))
                end = self._finish(iteration, job, end_ts, seen[job.key], stale=stale)
                self._leave(iteration, job.key, await end)

    def _end_ts(self, iteration: Iteration) -> int:
        """Sometimes it is capped."""
        chance = self._cluster.chance
        inside = [
            ts
            for ts in self._cluster.tables.commits[iteration.table_id]
            if iteration.from_ts < ts < iteration.to_ts
        ]
        return (
            chance.mix.choice(inside)
            if inside and iteration.from_ts and chance.strikes(5)
            else iteration.to_ts
        )

    async def _finish(
        self, iteration: Iteration, job: Job, end_ts: int, seen_ts: int, *, stale: bool
    ) -> Job | None:
        chance = self._cluster.chance
        if job.key in self._canceled:
            return await self._write(job, cancel_iteration(at=1))
        if chance.strikes(2):
            code = ErrorCode.CUT_OFF if chance.strikes(10) else ErrorCode.TEMPORARY
            return await self._write(job, fail_iteration(code, "trouble", at=1))
        target = self._cluster.targets[job.key]
        if iteration.from_ts and seen_ts > iteration.from_ts:  # committed by one of whom nobody heard
            return await self._write(job, complete_iteration(seen_ts, at=1))
        if stale:
            self._cluster.resyncs += 1
            return await self._write(job, resync_job)
        if self._is_fenced(job, target, seen_ts):
            return None
        self._commit(iteration, job, target, end_ts)
        return await self._write(job, complete_iteration(end_ts, at=1))

    def _is_fenced(self, job: Job, target: SimTarget, seen_ts: int) -> bool:
        """Return whether a target refuses a commit: by the log's transaction, or by its own watermark."""
        row = self._cluster.log.rows.get(job.key)
        if job.key.job_name in _OWN_WATERMARKS:
            return target.ts != seen_ts
        return row is None or not row.live or row.status.lsn != job.status.lsn

    def _commit(self, iteration: Iteration, job: Job, target: SimTarget, end_ts: int) -> None:
        """Rows and watermark at once."""
        changes = self._cluster.tables.commits[iteration.table_id]
        if iteration.first:
            target.commits = {ts for ts in changes if ts <= end_ts}
        else:
            target.commits |= {ts for ts in changes if iteration.from_ts < ts <= end_ts}
        target.ts = end_ts
        missing = {ts for ts in changes if ts <= end_ts} - target.commits
        assert not missing, f"{job.id} skipped changes"

    async def _write(self, job: Job, transition: Transition) -> Job | None:
        try:
            (row,) = await asyncio.to_thread(self._cluster.log.transact, [(job, transition)])
        except PenstockError:
            return None
        return row

    def _leave(self, iteration: Iteration, key: JobKey, row: Job | None) -> None:
        self._jobs.discard(key)
        self._canceled.discard(key)
        if not self._process.dead:
            self._on_end(iteration.id, key, row)


class SimProcess:
    """A process that runs jobs whenever it may."""

    def __init__(self, cluster: "SimCluster", name: str) -> None:
        self.dead = False
        self.runner = JobRunner(
            cluster.settings,
            acquire=lambda: self._acquire(cluster.leases, name),
            log=cluster.log,
            feed=cluster.feed,
            source=cluster.tables,
            open_scheduler=lambda on_end: SimScheduler(cluster, self, on_end),
            clock=cluster.chance.clock,
        )
        self._task = asyncio.create_task(self.runner.run())

    async def _acquire(self, leases: SimLeases, name: str) -> SimLease:
        return await leases.acquire(name, dead=lambda: self.dead)

    async def kill(self) -> None:
        """It decides nothing any more, and gives nothing up; what it had begun goes on for a while."""
        self.dead = True
        await self.stop()

    async def stop(self) -> None:
        """End it in good order."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class SimCluster:
    """Everything together. Make it on the loop that it lives on."""

    def __init__(self, chance: Chance, settings: JobsSettings) -> None:
        self.chance = chance
        self.settings = settings
        self.slowness_s = 2.0
        self.log = SimJobLog(chance)
        self.feed = SimFeed(self.log, chance)
        self.leases = SimLeases(chance, ttl_s=settings.lease_ttl_s)
        self.tables = SimTables(chance)
        self.targets: dict[JobKey, SimTarget] = defaultdict(SimTarget)
        self.iterations: list[Iteration] = []
        self.resyncs = 0
        self.mistakes: list[BaseException] = []
        self._started = 0

    def start(self) -> SimProcess:
        """Return one more process."""
        self._started += 1
        return SimProcess(self, f"runner-{self._started}")
