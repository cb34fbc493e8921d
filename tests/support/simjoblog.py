"""The job log of a simulated cluster, its feed and the lease: they hesitate, fail and repeat as a seed says.

What is committed is committed; only who hears of it, and when, is left to chance.
"""

import random  # noqa: TID251 - only the type; the simulation's seed decides the numbers
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.clock import Clock, compose_ts
from penstock.errors import Fenced, Unavailable
from penstock.jobs.job import Job, JobId, JobKey, JobState, JobStatus
from penstock.jobs.log.log_feed import LogChange
from penstock.jobs.log.transitions import Transition, drop_job, flush_watermark
from penstock.jobs.spec import JobSpec

__all__ = ["Chance", "SimFeed", "SimJobLog", "SimLease", "SimLeases"]


class Chance:
    """What goes wrong, and how long things take. `calm` ends all trouble.

    The database's time is `ahead_ms` ahead of the wall's: nothing may compare the two.
    """

    def __init__(
        self, mix: random.Random, clock: Clock, *, trouble: float, ahead_ms: int = 3_600_000
    ) -> None:
        self.mix = mix
        self.clock = clock
        self.trouble = trouble
        self.ahead_ms = ahead_ms

    def calm(self) -> None:
        """From now on nothing fails."""
        self.trouble = 0.0

    def strikes(self, weight: float = 1.0) -> bool:
        """Return whether something goes wrong now."""
        return self.mix.random() < self.trouble * weight

    def delay_s(self, longest_s: float) -> float:
        """Return how long something takes."""
        return self.mix.random() * longest_s

    def now_ts(self) -> int:
        """Return the database's time."""
        return compose_ts(self.clock.wall_ms() + self.ahead_ms)


class SimJobLog:
    """Rows, changed by compare-and-set; implements RunnerLog. `history` is everything that was committed."""

    def __init__(self, chance: Chance) -> None:
        self.rows: dict[JobKey, Job] = {}
        self.history: list[tuple[JobKey, Job | None]] = []
        self._chance = chance

    # What people do.

    def register(self, table_id: int, name: str, spec: JobSpec) -> Job:
        """Add a job; its id is one that its name never had."""
        ids = [key.job_id for key, _ in self.history if (key.table_id, key.job_name) == (table_id, name)]
        job = Job(
            key=JobKey(1, table_id, name, max(ids, default=0) + 1),
            id=JobId("shop", f"t{table_id}", name),
            account="a",
            spec=spec,
            state=JobState.COMPLETED,
            watermark=0,
            status=JobStatus(),
            create_at=self._chance.clock.wall_ms(),
        )
        self._put(job)
        return job

    def change(self, key: JobKey, transition: Transition) -> None:
        """Change a row of a live job, whoever has it."""
        if self.rows[key].live:
            self._put(transition(self.rows[key]))

    def drop(self, key: JobKey) -> None:
        """Unregister a job."""
        self.change(key, drop_job(at=self._chance.clock.wall_ms()))

    # RunnerLog.

    def ensure(self) -> object:
        """Take as long as a call to the store; there is nothing to prepare."""
        self._wait()
        return None

    def read_all(self) -> tuple[int, list[Job]]:
        """Return all rows and a timestamp: the length of the history."""
        self._wait()
        return len(self.history), list(self.rows.values())

    def read(self, keys: Iterable[JobKey]) -> list[Job]:
        """Return the rows of these jobs that exist."""
        self._wait()
        return [self.rows[key] for key in keys if key in self.rows]

    def transact(self, changes: Sequence[tuple[Job, Transition]]) -> list[Job | None]:
        """Run the work in one transaction; it may fail before or after the commit."""
        self._wait()
        found = [self._try(job, transition) for job, transition in changes]
        self._wait()
        return found

    def flush_watermarks(self, raised: Sequence[tuple[Job, int]]) -> list[Job | None]:
        """Write watermarks that moved only in memory."""
        return self.transact([(job, flush_watermark(watermark)) for job, watermark in raised])

    def collect(self, dropped_ttl_s: float) -> int:
        """Remove rows of jobs that were dropped long ago."""
        self._wait()
        limit = self._chance.clock.wall_ms() - dropped_ttl_s * 1000
        due = [key for key, job in self.rows.items() if job.drop_at is not None and job.drop_at <= limit]
        for key in due:
            del self.rows[key]
            self.history.append((key, None))
        return len(due)

    def _wait(self) -> None:
        self._chance.clock.pause(self._chance.delay_s(0.05))
        if self._chance.strikes():
            raise Unavailable("the log does not answer")

    def _try(self, job: Job, transition: Transition) -> Job | None:
        row = self.rows.get(job.key)
        if row is None or not row.live or row.status.lsn != job.status.lsn:
            return None
        return self._put(transition(row))

    def _put(self, job: Job) -> Job:
        before = self.rows.get(job.key)
        if before is not None and before != job:
            assert job.watermark >= before.watermark or job.watermark == 0, "a watermark went back"
            assert job.status.lsn >= before.status.lsn
        self.rows[job.key] = job
        self.history.append((job.key, job))
        return job


class SimFeed:
    """Tells what was committed, late and in lumps, sometimes all of it again; implements RunnerFeed."""

    def __init__(self, log: SimJobLog, chance: Chance) -> None:
        self.replays = 0
        self._log = log
        self._chance = chance

    async def follow(self, ts: int) -> AsyncGenerator[LogChange, None]:
        """Follow the rows of the log from a place in its history."""
        while True:
            await self._chance.clock.sleep(0.05 + self._chance.delay_s(0.3))
            if self._chance.strikes(0.3):
                self.replays += 1
                ts = len(self._log.history)
                yield LogChange(tuple(self._log.rows.values()), whole=True)
                continue
            news = dict(self._log.history[ts:])
            ts = len(self._log.history)
            if news:
                rows = tuple(job for job in news.values() if job is not None)
                yield LogChange(rows, tuple(key for key, job in news.items() if job is None))


@dataclass(frozen=True)
class _Holding:
    owner: str = ""
    epoch: int = 0
    until: float = 0.0


class SimLeases:
    """Who may run jobs."""

    def __init__(self, chance: Chance, *, ttl_s: float) -> None:
        self.holding = _Holding()
        self.chance = chance
        self.ttl_s = ttl_s

    async def acquire(self, owner: str, *, dead: Callable[[], bool] = lambda: False) -> "SimLease":
        """Become the one runner; raise Unavailable while somebody else is."""
        now = self.chance.clock.monotonic()
        if self.holding.until > now or self.chance.strikes(0.5):
            raise Unavailable("jobs are run by another process")
        self.holding = _Holding(owner, self.holding.epoch + 1, now + self.ttl_s)
        return SimLease(self, self.holding, dead)


class SimLease:
    """The lease as its holder sees it; implements RunnerLease. A dead holder lets it run out."""

    def __init__(self, leases: SimLeases, holding: _Holding, dead: Callable[[], bool]) -> None:
        self.epoch = holding.epoch
        self._leases = leases
        self._until = holding.until
        self._dead = dead

    @property
    def lapsed(self) -> bool:
        """Whether the lease has expired by this clock."""
        return self._leases.chance.clock.monotonic() >= self._until

    async def renew(self) -> None:
        """Renew the lease; it may fail or take long."""
        chance = self._leases.chance
        await chance.clock.sleep(chance.delay_s(0.05))
        if self._dead() or chance.strikes(2):
            raise Unavailable("the store does not answer")
        if self._leases.holding.epoch != self.epoch:
            raise Fenced("another process has the lease")
        self._until = chance.clock.monotonic() + self._leases.ttl_s
        self._leases.holding = replace(self._leases.holding, until=self._until)

    async def give_up(self) -> None:
        """Release the lease, if it is still held."""
        self._until = 0.0
        if not self._dead() and self._leases.holding.epoch == self.epoch:
            self._leases.holding = replace(self._leases.holding, until=0.0)
