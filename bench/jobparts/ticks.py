"""One look of the runner at all its tables, of which few change, against a look at these few."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

from changes import show
from jobparts.watching import WAIT_S, counted, until
from penstock import metrics
from penstock.follow.follower import ScanFollower
from penstock.jobs.api import Jobs
from penstock.jobs.consumer import Consumer, DataRetriever, iter_batches
from penstock.jobs.job import Job, JobId
from penstock.jobs.spec import JobSpec
from penstock.kv import AsyncClient, Client
from penstock.secret_keys import Keyring
from penstock.settings import Settings
from penstock.tables import Catalog
from support.jobworld import JobWorld


class Counting(Consumer):
    """Counts the rows that come, by job: what it costs is the job itself."""

    rows: ClassVar[Counter[str]] = Counter()

    def consume(self, data: DataRetriever) -> None:
        self.rows[str(self.job.id)] += sum(each.inserts.num_rows for each in iter_batches(data))


@dataclass(frozen=True)
class Tick:
    """One look at all tables, as the runner's own metrics tell of it."""

    seconds: float
    begun: int
    """Iterations."""


@dataclass(frozen=True)
class Looks:
    """What looks take (s)."""

    idle: float
    changing: float
    iteration: float
    scans: float
    """Iterations for each change of a table."""


@dataclass
class Shop:
    """Tables with jobs, of which the first some change."""

    world: JobWorld
    jobs_each: int
    changing: int
    tables: int = 0
    rounds: int = 0

    async def grow(self, tables: int) -> None:
        """Have more tables, of one row each, with jobs that have copied it."""
        await self.world.do(self._create, range(self.tables, tables))
        self.tables = tables
        ids = [str(job) for number in range(tables) for job in self._ids(number)]
        await until(lambda: all(Counting.rows[each] for each in ids), "jobs do not begin")
        await until(lambda: not counted(metrics.JOBS_RUNNING_ITERATIONS, ""), "iterations do not end")

    def _create(self, numbers: Sequence[int]) -> None:
        db, client = self.world.db, self.world.client
        for number in numbers:
            db.create_table(f"shop.t{number}", [("id", "bigint primary key"), ("note", "varchar(64)")])
        spec = JobSpec.parse({"detail": {"consumer": {"consumer": "counting"}}})
        for number in numbers:
            db.table(f"shop.t{number}").insert([{"id": 0, "note": "first"}])
            with client.begin() as txn:
                assert all(self.world.jobs.register_job(txn, each, spec) for each in self._ids(number))

    def _ids(self, number: int) -> list[JobId]:
        return [JobId("shop", f"t{number}", f"j{each}") for each in range(self.jobs_each)]

    async def observe(self, rounds: int) -> Looks:
        """Watch looks without changes and looks that find some."""
        idle = await ticks(lambda seen: len(seen) >= rounds)
        assert not any(each.begun for each in idle), "iterations of tables that have not changed"
        before, began = await self._idle_rows(), _iterations()
        found = [each for _ in range(rounds) for each in await self._round()]
        count, seconds = (now - then for now, then in zip(_iterations(), began, strict=True))
        assert count >= rounds * self.changing, "a table has changed and was not read"
        assert await self._idle_rows() == before, "jobs of idle tables were written"
        whole = [each.seconds for each in found if each.begun == self.changing]
        assert whole, "changes of one transaction were never found by one look"
        return Looks(
            idle=median(each.seconds for each in idle),
            changing=median(whole),
            iteration=seconds / count,
            scans=count / (rounds * self.changing),
        )

    async def _round(self) -> list[Tick]:
        """Change some tables in one transaction; the looks until all their jobs have it, and rest."""
        self.rounds += 1
        await self.world.do(self._commit)
        jobs = [str(job) for number in range(self.changing) for job in self._ids(number)]
        rests = (metrics.JOBS_QUEUED_ITERATIONS, metrics.JOBS_RUNNING_ITERATIONS)

        def done(_: list[Tick]) -> bool:
            took = all(Counting.rows[job] >= 1 + self.rounds for job in jobs)
            return took and not any(counted(each, "") for each in rests)

        found = await ticks(done)
        assert all(Counting.rows[job] == 1 + self.rounds for job in jobs), "a row came twice"
        return found

    def _commit(self) -> None:
        with self.world.db.begin() as txn:
            for number in range(self.changing):
                row = {"id": self.rounds, "note": "next"}
                self.world.db.table(f"shop.t{number}").insert([row], txn=txn)

    async def _idle_rows(self) -> list[Job]:
        busy = {f"shop.t{number}" for number in range(self.changing)}
        _, rows = await self.world.do(self.world.jobs.log.read_all)
        return [job for job in rows if job.id.table_name not in busy]


def _iterations() -> tuple[float, float]:
    seconds = metrics.JOBS_ITERATION_SECONDS
    return counted(seconds, "_count"), counted(seconds, "_sum")


async def ticks(enough: Callable[[list[Tick]], bool]) -> list[Tick]:
    """The looks from now on, until that is enough."""

    def seen() -> tuple[float, float, float]:
        full = {"scope": "full"}
        count, total = (counted(metrics.JOBS_TICK_SECONDS, part, **full) for part in ("_count", "_sum"))
        return count, total, counted(metrics.JOBS_SUBMITTED_TOTAL, "_total")

    found: list[Tick] = []
    before = seen()
    deadline = time.monotonic() + WAIT_S
    while not enough(found):
        assert time.monotonic() < deadline, "the runner does not do it"
        await asyncio.sleep(0.01)
        now = seen()
        looks, seconds, begun = (new - old for new, old in zip(now, before, strict=True))
        if looks:
            found.append(Tick(seconds / looks, int(begun)))
            before = now
    return found


async def measure_ticks(settings: Settings, tables: int, jobs: int, changing: int, rounds: int) -> None:
    async with (
        await AsyncClient.connect(settings.pd_addrs, settings=settings.kv) as client,
        await ScanFollower.connect(settings, client) as source,
    ):
        face = Client(client)
        own = Jobs(face, keys=Keyring(settings.secrets_dir))
        world = JobWorld(settings, client, face, Catalog(face), source, own, capture=None)
        await world.do(world.db.create_database, "shop")
        async with world.running(find={"counting": Counting}.__getitem__):
            shop = Shop(world, jobs // tables, changing)
            await shop.grow(changing)
            few = await shop.observe(rounds)
            await shop.grow(tables)
            many = await shop.observe(rounds)
    print(
        f"ticks: {jobs:,} jobs on {tables} tables, {jobs // tables} share each iteration;"
        f" {many.scans:.2f} iterations for each change of a table, none for tables that are idle"
    )
    which = f"{tables} tables / {changing}"
    for name, now, then in (
        (f"a look, {changing} tables have changed, {which}", many.changing, few.changing),
        (f"a look, no table has changed, {which}", many.idle, few.idle),
    ):
        show(name, now / then, "", f"{now * 1000:.1f} ms against {then * 1000:.1f} ms")
    idle = many.idle / tables  # at most: a look costs something without any table
    detail = (
        f"{many.iteration * 1000:,.0f} ms of an iteration against {idle * 1e6:,.0f} us of a look;"
        f" a look every 10 s takes {many.idle / 10:.2%} of the time"
    )
    show("a table that changes / one that is idle", many.iteration / idle, ">= 100", detail)
