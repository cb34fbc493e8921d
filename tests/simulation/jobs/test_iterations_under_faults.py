"""Iterations under faults: whoever fails, is slow, canceled or dies, a target is its source at its watermark.

The table, the scheduler and everything below it are real; the log and the targets are in memory. Faults are
drawn by the seed, their moments by the threads. PENSTOCK_SEED=n runs one seed alone.
"""

import random  # noqa: TID251 - seeded
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from penstock.clock import SYSTEM
from penstock.errors import Unavailable
from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.job import Job, JobKey, JobState
from penstock.jobs.log.transitions import BUSY, adopt_job
from penstock.jobs.scheduler.scheduler import Scheduler
from penstock.tables.define import define_table
from penstock.testing.consumers import Fault
from penstock.testing.versions import Snapshot, in_schema
from support.campaign import seeds
from support.itemtables import item, item_table
from support.iterationbench import Bench
from support.jobdoubles import Copy, WorldSource, job_row, until
from support.tableworld import TableWorld

SEEDS = seeds(4, 40, first=0)
NAMES = ("a", "b", "c", "d", "e")
ROUNDS = 25


@dataclass
class Weather:
    """Faults at any step, as long as it is bad. For any thread."""

    mix: random.Random
    bad: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock)

    def chance(self) -> float:
        with self.lock:
            return self.mix.random()

    def fault(self, likely: float, *, slow: float = 0.0) -> Fault:
        def happen(step: str) -> None:
            if not self.bad:
                return
            if self.chance() < slow:
                SYSTEM.pause(self.chance() * 0.03)
            if self.chance() < likely:
                raise Unavailable(f"no {step} in this weather")

        return happen


@dataclass
class Kept(Copy):
    """A copy that remembers what it was at each of its watermarks."""

    history: dict[int, Snapshot] = field(default_factory=dict)

    def remember(self, step: str) -> None:
        if step == "committed":
            self.history[self.ts] = self.rows


class Shepherd:
    """What the runner does: submits jobs that are idle, alone or together, and reads rows that it lost."""

    def __init__(self, bench: Bench, mix: random.Random) -> None:
        self.bench = bench
        self.mix = mix
        self.lock = threading.Lock()
        self.flying: set[JobKey] = set()
        self.number = 0

    def on_end(self, _iteration_id: str, key: JobKey, row: Job | None) -> None:
        with self.lock:
            assert key in self.flying, "a job leaves once"
            log = self.bench.log
            assert row is None or row.status.lsn <= log.rows[key].status.lsn
            if log.rows[key].state in BUSY:
                log.touch(key.job_name, adopt_job(1))
            self.flying.discard(key)

    def adopt(self, *names: str) -> None:
        """Somebody takes jobs over: whatever is under way for them is fenced."""
        with self.lock:
            for name in names:
                self.bench.log.touch(name, adopt_job(2))

    def submit(self, scheduler: Scheduler) -> None:
        with self.lock:
            idle = [job for job in self.bench.log.rows.values() if job.key not in self.flying]
            assert all(job.state is not JobState.ERROR for job in idle), "nothing is wrong for good"
            groups: dict[tuple[int, int], list[Job]] = {}
            for job in idle:
                alone = 0 if self.mix.random() < 0.7 else 1 + NAMES.index(job.key.job_name)
                if job.watermark < self.bench.world.ts:
                    groups.setdefault((job.watermark, alone), []).append(job)
            made = [self._iteration(from_ts, jobs) for (from_ts, _), jobs in groups.items()]
            self.flying |= {job.key for each in made for job in each.jobs}
        for each in made:
            if not scheduler.submit(each):
                with self.lock:
                    self.flying -= {job.key for job in each.jobs}

    def _iteration(self, from_ts: int, jobs: list[Job]) -> Iteration:
        self.number += 1
        to_ts = self.bench.world.ts
        return Iteration(id=f"i{self.number}", table_id=1, from_ts=from_ts, to_ts=to_ts, jobs=tuple(jobs))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TableWorld]:
    with TableWorld(tmp_path / "world", item_table()) as made:
        yield made


def _churn(world: TableWorld, mix: random.Random) -> None:
    """Some transactions, and now and then a new column."""
    table = world.versions.table
    if mix.random() < 0.08 and len(table.columns) < 6:
        number = len(table.columns)
        (column,) = define_table("items", [(f"extra{number}", "int")]).columns
        added = replace(column, id=100 + number, offset=number, origin_default=number)
        world.alter(replace(table, columns=(*table.columns, added)))
    for _ in range(mix.randint(1, 4)):
        extras = {column.name: mix.randrange(9) for column in world.versions.table.columns[2:]}
        numbers = mix.sample(range(60), mix.choice([1, 3, 30]))
        live = world.versions.live()
        gone = [key for key in mix.sample(live, min(len(live), 2)) if key[0] not in numbers]
        world.commit(*(item("integer", n, f"v{mix.randrange(999)}", **extras) for n in numbers), delete=gone)
    world.resolve()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_target_is_its_source_at_its_watermark(tmp_path: Path, world: TableWorld, seed: int) -> None:
    mix = random.Random(seed)
    weather = Weather(random.Random(seed + 1000))
    copies = {name: Kept() for name in NAMES}
    bench = Bench(world, WorldSource(world, fault=weather.fault(0.03), batch_rows=3), tmp_path)
    bench.log.fault = weather.fault(0.03)
    bench.settings = {
        "workers": 3, "backoff_s": 0.005, "attempts": 2, "consumer_batches": 2, "consumer_patience_s": 0.0,
        "spool_bytes": mix.choice([1500, 1 << 30]), "rows_max": mix.choice([40, 10**6]),
    }  # fmt: skip
    bench.options = {"grace_s": 0.01}
    for name, copy in copies.items():
        harm = weather.fault(0.04, slow=0.3 if name in "ab" else 0.02)

        def step(at: str, copy: Kept = copy, harm: Fault = harm) -> None:
            copy.remember(at)
            harm(at)

        bench.consumers[name] = copy.consumer(step)
    jobs = [job_row(name, name) for name in NAMES]
    bench.log.rows = {job.key: job for job in jobs}
    shepherd = Shepherd(bench, mix)

    for _ in range(mix.randint(1, 3)):
        with bench.scheduler(on_end=shepherd.on_end) as scheduler:
            for _ in range(ROUNDS // 3):
                _churn(world, mix)
                shepherd.submit(scheduler)
                if mix.random() < 0.4:
                    scheduler.cancel(mix.choice(jobs).key)
                if mix.random() < 0.2:
                    shepherd.adopt(mix.choice(NAMES))
                SYSTEM.pause(mix.random() * 0.03)
        assert not shepherd.flying, "nothing is left when it is closed"
        shepherd.adopt(*NAMES)

    weather.bad = False
    with bench.scheduler(on_end=shepherd.on_end) as scheduler:

        def caught_up() -> bool:
            shepherd.submit(scheduler)
            return all(job.watermark == world.ts for job in bench.log.rows.values())

        until(caught_up)
        until(lambda: not shepherd.flying)

    for name, copy in copies.items():
        assert copy.ts == bench.log.row(name).watermark == world.ts
        assert copy.commits == sorted(set(copy.commits)), "a range was carried twice"
        for ts, rows in copy.history.items():
            table = world.versions.table_at(ts)
            assert {key: in_schema(row, table) for key, row in rows.items()} == world.versions.at(ts)
