"""A shop's database, a capture of it and runners of jobs as processes, and targets to hold against it.

with shop_world(tmp_path, seed="7") as world:
    world.workload.fill(100)
    world.register("shop.items/delta", DeltaTarget(world.folder / "delta"))
    world.runners.start()
    world.until(lambda: world.caught_up())
    world.runners.kill_all()
    assert world.check().keys() == {"shop.items/delta"}
"""

import random  # noqa: TID251 - the caller's seed decides the numbers
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import eventloop
from penstock.clock import SYSTEM, Clock
from penstock.jobs.api import Jobs
from penstock.jobs.job import Job, JobId
from penstock.jobs.spec import JobSpec
from penstock.kv import AsyncClient, Client
from penstock.secret_keys import Keyring
from penstock.settings import Settings, with_tokens
from penstock.tables import Catalog
from support.capture import CaptureProcess
from support.jobrunners import JobRunners
from support.jobtargets import LanceTarget, Row, Target, differences
from support.postgres import PostgresServer
from support.shopworkload import ADDED, ADDED_DEFAULT, KEYS, WORDS, ShopWorkload
from support.spark import QUICK_SPARK
from support.warmstore import WarmStore
from support.webhooktargets import Receiver

__all__ = ["ShopWorld", "shop_world"]

_WAIT_S = 180.0
_LOOK_S = 0.1
_QUICK_STORE = "store: {sync: false, resolved_ts_interval_ms: 100}\n"


@dataclass
class ShopWorld:
    """A database, a capture and the API for a test; all calls block."""

    seed: str
    folder: Path
    """Where targets may be."""
    settings: Settings
    client: Client
    db: Catalog
    jobs: Jobs
    workload: ShopWorkload
    runners: JobRunners
    dsn: str
    """An empty database of PostgreSQL."""
    clock: Clock = SYSTEM
    targets: dict[str, Target] = field(default_factory=dict)

    def register(self, job: str, target: Target, trigger: Mapping[str, Any] | None = None) -> None:
        """Register a job whose name is its consumer's."""
        info = {"consumer": job.partition("/")[2], "options": target.options}
        spec = JobSpec.parse({"trigger": trigger or {}, "detail": {"consumer": info}})
        with self.client.begin() as txn:
            assert self.jobs.register_job(txn, JobId.parse(job), spec), f"{job} is there already"
        self.targets[job] = target

    def rows(self) -> dict[str, Job]:
        """Return the jobs as they are in the log."""
        return {str(job.id): job for job in self.jobs.get_jobs()}

    def count_log_writes(self) -> int:
        """Grows with whatever runners write about jobs."""
        return sum(job.status.lsn for job in self.rows().values())

    def caught_up(self) -> bool:
        """Return whether all jobs have what was committed last."""
        last_ts = self.workload.last_ts
        return all(job.watermark >= last_ts[name.partition("/")[0]] for name, job in self.rows().items())

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a condition; fail after some minutes, and tell how the jobs are then."""
        deadline = self.clock.monotonic() + _WAIT_S
        while not holds():
            assert self.clock.monotonic() < deadline, f"seed {self.seed}: {self.describe_jobs()}"
            self.clock.pause(_LOOK_S)

    def describe_jobs(self) -> str:
        """Return the states of all jobs as text."""
        return "; ".join(
            f"{name}: {job.state.name} at {job.watermark} {job.status.error_code} {job.status.error_msg}"
            for name, job in self.rows().items()
        )

    def check(self, *names: str) -> dict[str, int]:
        """Check that targets equal their sources at the targets' watermarks.

        Nobody may be writing. Returns the watermarks of the targets that were filled.
        """
        asked = {name: self.targets[name] for name in names or self.targets}
        found = {name: reading for name, target in asked.items() if (reading := target.read())}
        wrong: dict[str, Any] = {}
        for name, reading in found.items():
            table = name.partition("/")[0]
            source = self.db.table(table).to_arrow(at_ts=reading.ts)
            there = [_of_source(row, source.column_names) for row in reading.rows]
            if isinstance(self.targets[name], Receiver) and ADDED in source.column_names:
                there = [{ADDED: ADDED_DEFAULT, **row} for row in there]  # only rows that change have it
            differ = differences(_indexed_rows(name, source.to_pylist()), there, KEYS[table])
            if differ:
                wrong[name] = differ
        assert not wrong, f"seed {self.seed}: {wrong}"
        return {name: reading.ts for name, reading in found.items()}

    def check_search(self, target: LanceTarget) -> None:
        """A full-text index of items finds the rows that have a word, and no others."""
        reading = target.read()
        assert reading is not None, "the index was never filled"
        rows = self.db.table("shop.items").to_arrow(at_ts=reading.ts).to_pylist()
        texts = {row["id"]: {*(row["title"] or "").split(), *row["body"].split()} for row in rows}
        for word in WORDS:
            having = sorted(number for number, words in texts.items() if word in words)
            found = target.search(word, "id")
            assert len(found) == len(having), f"seed {self.seed}: a search finds {len(found)} rows"
            assert found == having, f"seed {self.seed}: a search finds other rows"


def _of_source(row: Row, columns: Collection[str]) -> Row:
    """Return a row without what targets may add: handles, and columns that are added before their rows."""
    return {name: value for name, value in row.items() if name in columns}


def _indexed_rows(job: str, rows: list[Row]) -> list[Row]:
    """Return the rows that a target must have: a vector index has no row for a null text."""
    return [row for row in rows if row["title"] is not None] if job.endswith("/vector") else rows


@contextmanager
def shop_world(folder: Path, *, seed: str) -> Iterator[ShopWorld]:
    """Return a world in `folder` in which time passes quickly. No runner runs. The seed decides the rows."""
    config = folder / "store.yaml"
    config.write_text(_QUICK_STORE)
    with ExitStack() as stack:
        store = stack.enter_context(WarmStore.start(folder / "store", stores=1, config=config))
        server = stack.enter_context(PostgresServer())
        async_client = stack.enter_context(_connect(store.pd_addr))
        client = Client(async_client)
        db = Catalog(client)
        db.create_database("copies")
        workload = ShopWorkload(db, random.Random(seed))  # noqa: S311 - rows of a test
        workload.create()
        tree = _settings(folder, store.pd_addr)
        stack.enter_context(CaptureProcess(folder, tree))
        runners = stack.enter_context(JobRunners(folder, folder / "penstock.yaml", async_client))
        places = folder / "targets"
        places.mkdir()
        yield ShopWorld(
            seed=seed,
            folder=places,
            settings=with_tokens(Settings.model_validate(tree)),
            client=client,
            db=db,
            jobs=Jobs(client, keys=Keyring(folder / "secrets")),
            workload=workload,
            runners=runners,
            dsn=server.new_database(),
        )


def _settings(folder: Path, pd_addr: str) -> dict[str, Any]:
    return {
        "pd_addrs": [pd_addr],
        "secrets_dir": str(folder / "secrets"),
        "capture": {
            "tables": ["shop.*"],
            "data": str(folder / "capture"),
            "storage": f"file://{folder}/events",
            "flight_addr": "127.0.0.1:0",
            "flush_interval_s": 2,
        },
        "jobs": {
            "data": str(folder / "jobs"),
            "interval_s": 0.5,
            "greedy_interval_s": 0.1,
            "backoff_s": 0.1,
            "lease_ttl_s": 1.5,
            "watermark_interval_s": 1,
        },
        "spark": QUICK_SPARK,
    }


@contextmanager
def _connect(pd_addr: str) -> Iterator[AsyncClient]:
    client = eventloop.run(AsyncClient.connect([pd_addr]))
    try:
        yield client
    finally:
        eventloop.run(client.close())
