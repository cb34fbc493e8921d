"""A store, a capture and runners of jobs as processes, targets of every kind, and kill -9 of the runners.

Rows change all the time. Sometimes the runner that works is killed, sometimes all are; sometimes it stands
still until another has taken over, and then goes on as if nothing had happened. Whenever nobody runs, and in
the end, every target is what its source was at the target's watermark. PENSTOCK_SEED draws other moments.
"""

import os
import random  # noqa: TID251 - seeded
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from penstock import eventloop
from penstock.app import targetcalls
from penstock.app.jobcalls import register
from penstock.clock import SYSTEM
from penstock.jobs.api import Jobs
from penstock.jobs.job import JobState
from penstock.jobs.jobid import JobId
from penstock.jobs.spec import JobSpec
from penstock.kv import AsyncClient, Client
from penstock.settings import Settings
from penstock.tables import Catalog
from penstock.testing.capture import CaptureProcess
from penstock.testing.jobrunners import JobRunners
from penstock.testing.jobtargets import (
    DeltaTarget,
    IcebergTarget,
    KvTarget,
    LanceTarget,
    ParquetTarget,
    PostgresTarget,
    Row,
    Target,
    differences,
)
from penstock.testing.postgres import PostgresServer
from penstock.testing.shopworkload import KEYS, ShopWorkload, item_of_json
from penstock.testing.store import StoreProcess
from penstock.testing.webhooktargets import Merging, Staging

pytestmark = pytest.mark.timeout(600)

SEED = os.environ.get("PENSTOCK_SEED", "7")
DISASTERS = ["kill"] * 11 + ["kill all"] * 4 + ["zombie"] * 5
DEADLINE_S = 180.0
DEFAULT: dict[str, Any] = {"job_type": "default"}
ALONE: dict[str, Any] = {"job_type": "default", "schedule": {"share": False}}
GREEDY: dict[str, Any] = {"job_type": "greedy"}
OFTEN: dict[str, Any] = {"job_type": "periodic", "schedule": {"interval": "700ms", "share": True}}


class Shop:
    """The tables, and a target of every kind for each job."""

    def __init__(self, folder: Path, client: Client, dsn: str, loaded: Settings) -> None:
        self.db = Catalog(client)
        self.db.create_database("copies")
        self.jobs = Jobs(client)
        self.loaded = loaded
        places = folder / "targets"
        self.targets: dict[str, tuple[Target, dict[str, Any]]] = {
            "shop.items/fulltext": (LanceTarget(places / "words", {"text_columns": "title,body"}), DEFAULT),
            "shop.items/vector": (
                LanceTarget(places / "vectors", {"text_columns": "title", "dimension": "16"}),
                DEFAULT,
            ),
            "shop.items/delta": (DeltaTarget(places / "delta"), DEFAULT),
            "shop.items/iceberg": (IcebergTarget(places / "iceberg"), DEFAULT),
            "shop.items/parquet": (ParquetTarget(places / "parquet"), GREEDY),
            "shop.items/postgres": (PostgresTarget(dsn, "items"), OFTEN),
            "shop.items/kv": (KvTarget(client, self.db, "copies.items"), DEFAULT),
            "shop.items/webhook": (Merging(KEYS["shop.items"], item_of_json), GREEDY),
            "shop.tags/webhook": (Staging(KEYS["shop.tags"], dict), DEFAULT),
            "shop.tags/delta": (DeltaTarget(places / "tags"), GREEDY),
            "shop.tags/postgres": (PostgresTarget(dsn, "tags"), DEFAULT),
            "shop.tags/kv": (KvTarget(client, self.db, "copies.tags"), OFTEN),
            "shop.visits/parquet": (ParquetTarget(places / "visits"), DEFAULT),
            "shop.visits/postgres": (PostgresTarget(dsn, "visits"), ALONE),
        }
        places.mkdir()
        self._servers = [
            target for target, _ in self.targets.values() if isinstance(target, Merging | Staging)
        ]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for server in self._servers:
                stack.enter_context(server)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def register(self) -> None:
        for name, (target, trigger) in self.targets.items():
            consumer = name.partition("/")[2]
            tree = {
                "trigger": trigger,
                "detail": {"consumer": {"consumer": consumer, "options": target.options}},
            }
            register(self.jobs, self.loaded, JobId.parse(name), JobSpec.parse(tree))

    def check(self) -> dict[str, int]:
        """Every target is what its source was at the target's watermark. Nobody writes meanwhile.

        Returns the watermarks of those that were filled.
        """
        wrong: dict[str, Any] = {}
        reached: dict[str, int] = {}
        for name, (target, _) in self.targets.items():
            table = name.partition("/")[0]
            found = target.read()
            if found is None:
                continue
            reached[name] = found.ts
            source = self.db.table(table).to_arrow(at_ts=found.ts)
            expected = source.to_pylist()
            if name == "shop.items/vector":
                expected = [row for row in expected if row["title"] is not None]
            there = [_of_source(row, source.column_names) for row in found.rows]
            if differ := differences(expected, there, KEYS[table]):
                wrong[name] = differ
        assert not wrong, f"seed {SEED}: {wrong}"
        return reached

    def caught_up(self, last_ts: dict[str, int]) -> bool:
        rows = {str(job.id): job for job in self.jobs.get_jobs()}
        return all(rows[name].watermark >= last_ts[name.partition("/")[0]] for name in self.targets)

    def written(self) -> int:
        """Grows with whatever a runner writes about jobs."""
        return sum(job.status.lsn for job in self.jobs.get_jobs())

    def shown(self) -> list[tuple[Any, ...]]:
        return [
            (str(job.id), job.state.name, job.watermark, job.status.error_code, job.status.error_msg)
            for job in self.jobs.get_jobs()
        ]


def _of_source(row: Row, columns: Collection[str]) -> Row:
    """A row without what targets may have beside it: handles, and columns that come before their rows."""
    return {name: value for name, value in row.items() if name in columns}


def until(holds: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = SYSTEM.monotonic() + DEADLINE_S
    while not holds():
        assert SYSTEM.monotonic() < deadline, f"seed {SEED}: {what()}"
        SYSTEM.pause(0.05)


def settings(folder: Path, pd_addr: str) -> dict[str, Any]:
    return {
        "pd_addrs": [pd_addr],
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
    }


@contextmanager
def connected(pd_addr: str) -> Iterator[AsyncClient]:
    client = eventloop.run(AsyncClient.connect([pd_addr]))
    try:
        yield client
    finally:
        eventloop.run(client.close())


class Disasters:
    """What happens to runners. One of them works, and most of the time another one stands by."""

    def __init__(self, runners: JobRunners, shop: Shop, mix: random.Random) -> None:
        self._runners = runners
        self._shop = shop
        self._mix = mix

    def happen(self, kind: str) -> None:
        active = self._runners.active()
        epoch = self._runners.lease().epoch
        self._work()
        match kind:
            case "kill":
                self._runners.kill(active)
                self._runners.start()
                self._runners.active(after=epoch)
            case "kill all":
                self._runners.kill_all()
                self._shop.check()
                self._runners.start()
                self._runners.active(after=epoch)
                self._runners.start()
            case "zombie":
                zombie = self._runners.stop(active)
                self._runners.start()
                newer = self._runners.active(after=epoch)
                self._work()
                self._runners.go_on(zombie)
                SYSTEM.pause(self._mix.uniform(0, 0.5))
                self._runners.kill(newer if self._mix.random() < 0.5 else active)

    def _work(self) -> None:
        """Wait until some more was done, however long a process takes to start with it, and some moments."""
        wanted = self._shop.written() + self._mix.choice([0, 15, 30, 45])
        until(lambda: self._shop.written() >= wanted, lambda: "nothing is done")
        SYSTEM.pause(self._mix.uniform(0, 0.2))


def test_every_target_is_its_source_whoever_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_SEED", raising=False)  # or all runners would draw the same unique ids
    mix = random.Random(SEED)
    kinds = mix.sample(DISASTERS, len(DISASTERS))
    store_config = tmp_path / "store.yaml"
    store_config.write_text("store: {sync: false, resolved_ts_interval_ms: 100}\n")
    with (
        StoreProcess.start(tmp_path / "store", stores=1, config=store_config) as store,
        PostgresServer() as server,
        connected(store.pd_addr) as async_client,
    ):
        client = Client(async_client)
        tree = settings(tmp_path, store.pd_addr)
        workload = ShopWorkload(Catalog(client), random.Random(f"{SEED} rows"))
        workload.create()
        workload.fill(400)
        shop = Shop(tmp_path, client, server.new_database(), Settings.model_validate(tree))
        with (
            CaptureProcess(tmp_path, tree),
            shop,
            JobRunners(tmp_path, tmp_path / "penstock.yaml", async_client) as runners,
        ):
            runners.start()
            runners.start()
            shop.register()
            disasters = Disasters(runners, shop, mix)
            with workload.running(pause_s=0.1):
                for number, kind in enumerate(kinds):
                    if number == len(kinds) // 2:
                        workload.add_column()
                    disasters.happen(kind)
            until(lambda: shop.caught_up(workload.last_ts), shop.shown)
            runners.kill_all()
            reached = shop.check()
            assert reached.keys() == shop.targets.keys(), f"seed {SEED}: some targets were never filled"
            assert all(job.state is not JobState.ERROR for job in shop.jobs.get_jobs()), shop.shown()
            for name in shop.targets:
                if name.endswith("/webhook"):
                    continue  # nobody but the server knows what it has
                report = targetcalls.verify(shop.loaded, JobId.parse(name))
                assert report.same, f"seed {SEED}: {name}: {report.counts}"
