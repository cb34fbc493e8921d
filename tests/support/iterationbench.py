"""A table, a log and targets in memory around the real execution of iterations."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock import eventloop
from penstock.errors import Invalid
from penstock.follow.source import ScanSource
from penstock.jobs.consumer import Consumer, DataRetriever
from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.iteration.iteration_run import IterationRunner
from penstock.jobs.job import Job, JobKey
from penstock.jobs.scheduler.scheduler import OnEnd, Scheduler
from penstock.jobs.usage import Usage, UsageMeter
from penstock.settings import ApiSettings, JobsSettings, Settings
from penstock.testing.versions import Row
from support.itemtables import item, item_table
from support.jobdoubles import MemoryLog, WorldSource, iteration_of
from support.tableworld import TableWorld

__all__ = ["Bench", "all_rows", "item_bench"]


@dataclass
class Bench:
    """A table, a log and consumers by name; `ends` is what was told of each job."""

    world: TableWorld
    source: ScanSource
    folder: Path
    log: MemoryLog = field(default_factory=MemoryLog)
    consumers: dict[str, type[Consumer]] = field(default_factory=dict)
    ends: dict[str, Job | None] = field(default_factory=dict)
    used: dict[str, Usage] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    accounts: dict[str, Any] = field(default_factory=dict)
    """Settings of accounts of the API, by name."""
    options: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def executor(self) -> Iterator[IterationRunner]:
        """Return an open executor of iterations."""
        made = self._executor()
        made.open()
        try:
            yield made
        finally:
            made.close()

    @contextmanager
    def scheduler(self, *, on_end: OnEnd | None = None) -> Iterator[Scheduler]:
        """Return a started scheduler that ends quickly."""
        made = Scheduler(self._executor(), self._settings.jobs, on_end=on_end or self._leave)
        made.start()
        try:
            yield made
        finally:
            eventloop.run(made.close())

    def iteration(self, *jobs: Job, from_ts: int = 0) -> Iteration:
        """Return an iteration of jobs, up to now, and put the jobs into the log. Their names make its id."""
        self.log.rows |= {job.key: job for job in jobs}
        made = iteration_of(*jobs, from_ts=from_ts, to_ts=self.world.ts)
        return replace(made, id="+".join(job.key.job_name for job in jobs))

    @property
    def _settings(self) -> Settings:
        return Settings(
            jobs=JobsSettings(data=self.folder / "jobs", **self.settings),
            api=ApiSettings(accounts=self.accounts),
        )

    def _executor(self) -> IterationRunner:
        bench = self

        class Meter(UsageMeter):
            def add(self, account: str, usage: Usage) -> None:
                bench.used[account] = bench.used.get(account, Usage()) + usage

        options = {"grace_s": 0.2, "usage": Meter(), **self.options}
        return IterationRunner(self.log, self.source, self._settings, find=self._find, **options)

    def _leave(self, iteration_id: str, key: JobKey, row: Job | None) -> None:
        assert key.job_name in iteration_id, "a job leaves the iteration that it was in"
        self.leave(key, row)

    def _find(self, name: str) -> type[Consumer]:
        if name not in self.consumers:
            raise Invalid(f"there is no consumer {name!r}")
        return self.consumers[name]

    def leave(self, key: JobKey, row: Job | None) -> None:
        """Record that a job leaves, with its row."""
        assert key.job_name not in self.ends, "a job leaves once"
        self.ends[key.job_name] = row

    def run(self, *jobs: Job, from_ts: int = 0, to_ts: int = 0, last: bool = False) -> list[Job]:
        """Try an iteration; the jobs that are to be tried again."""
        self.log.rows |= {job.key: job for job in jobs}
        return self.repeat(
            iteration_of(*jobs, from_ts=from_ts, to_ts=to_ts or self.world.resolve()), last=last
        )

    def repeat(self, iteration: Iteration, *, last: bool = False) -> list[Job]:
        """Try it once more, with rows as they are given."""
        self.ends = {}
        with self.executor() as executor:
            return executor.make_run(iteration, last=last, on_end=self.leave).run()

    def end(self, name: str) -> Job:
        """Return the row that a job has left with; it is what the log has."""
        row = self.ends[name]
        assert row is not None
        assert row == self.log.row(name)
        return row


@contextmanager
def item_bench(folder: Path) -> Iterator[Bench]:
    """Return a bench with a table of five items."""
    with TableWorld(folder / "world", item_table()) as world:
        for number in range(5):
            world.commit(item("integer", number, f"first {number}"))
        world.resolve()
        yield Bench(world, WorldSource(world), folder)


def all_rows(data: DataRetriever) -> list[Row]:
    """Return everything that a consumer is given, inserts before deletes in each batch."""
    rows: list[Row] = []
    while True:
        inserts, deletes, no_more_data = data.next()
        rows += inserts.to_pylist() + deletes.to_pylist()
        if no_more_data:
            return rows
