"""A store, a capture and runners of jobs as processes, targets of every kind, and kill -9 of the runners.

Rows change all the time. Sometimes the runner that works is killed, sometimes all are; sometimes it stands
still until another has taken over, and then goes on as if nothing had happened. Whenever nobody runs, and in
the end, every target is what its source was at the target's watermark. PENSTOCK_SEED draws other moments.
"""

import os
import random  # noqa: TID251 - seeded
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import SYSTEM
from penstock.control.deployment import open_deployment
from penstock.control.verify import verify_target
from penstock.jobs.job import JobId, JobState
from support.campaign import length
from support.jobtargets import (
    DeltaTarget,
    IcebergTarget,
    KvTarget,
    LanceTarget,
    ParquetTarget,
    PostgresTarget,
)
from support.shopworkload import KEYS, item_of_json
from support.shopworld import ShopWorld, shop_world
from support.webhooktargets import Merging, Receiver, Staging

pytestmark = pytest.mark.timeout(600)

SEED = os.environ.get("PENSTOCK_SEED", "7")
DISASTERS = ["kill"] * length(2, 11) + ["kill all"] * length(1, 4) + ["zombie"] * length(1, 5)
ALONE: dict[str, Any] = {"job_type": "default", "schedule": {"share": False}}
GREEDY: dict[str, Any] = {"job_type": "greedy"}
OFTEN: dict[str, Any] = {"job_type": "periodic", "schedule": {"interval": "700ms", "share": True}}


def words(world: ShopWorld) -> LanceTarget:
    return LanceTarget(world.folder / "words", {"text_columns": "title,body"})


def register(world: ShopWorld, servers: ExitStack) -> None:
    """A job of every kind, and of every trigger."""
    places, dsn = world.folder, world.dsn
    world.register("shop.items/fulltext", words(world))
    vectors = {"text_columns": "title", "dimension": "16"}
    world.register("shop.items/vector", LanceTarget(places / "vectors", vectors))
    world.register("shop.items/delta", DeltaTarget(places / "delta"))
    world.register("shop.items/iceberg", IcebergTarget(places / "iceberg"))
    world.register("shop.items/parquet", ParquetTarget(places / "parquet"), GREEDY)
    world.register("shop.items/postgres", PostgresTarget(dsn, "items"), OFTEN)
    world.register("shop.items/kv", KvTarget(world.client, world.db, "copies.items"))
    merging = servers.enter_context(Merging(KEYS["shop.items"], item_of_json))
    world.register("shop.items/webhook", merging, GREEDY)
    world.register("shop.tags/webhook", servers.enter_context(Staging(KEYS["shop.tags"], dict)))
    world.register("shop.tags/delta", DeltaTarget(places / "tags"), GREEDY)
    world.register("shop.tags/postgres", PostgresTarget(dsn, "tags"))
    world.register("shop.tags/kv", KvTarget(world.client, world.db, "copies.tags"), OFTEN)
    world.register("shop.visits/parquet", ParquetTarget(places / "visits"))
    world.register("shop.visits/postgres", PostgresTarget(dsn, "visits"), ALONE)


class Disasters:
    """What happens to runners. One of them works, and sometimes another one stands by."""

    def __init__(self, world: ShopWorld, mix: random.Random) -> None:
        self._world = world
        self._runners = world.runners
        self._mix = mix

    def happen(self, kind: str) -> None:
        held = self._runners.active()
        active, epoch = held.owner, held.epoch
        self._work()
        match kind:
            case "kill":
                self._runners.kill(active)
                self._runners.start()
                self._runners.active(after=epoch)
            case "kill all":
                self._runners.kill_all()
                self._world.check()
                self._runners.start()
                self._runners.active(after=epoch)
            case "zombie":
                zombie = self._runners.stop(active)
                if not self._runners.expected:
                    self._runners.start()
                newer = self._runners.active(after=epoch).owner
                self._work()
                self._runners.go_on(zombie)
                SYSTEM.pause(self._mix.uniform(0, 0.5))
                self._runners.kill(newer if self._mix.random() < 0.5 else active)

    def _work(self) -> None:
        """Wait until some more was done, however long a process takes to start with it, and some moments."""
        wanted = self._world.count_log_writes() + self._mix.choice([0, 10, 20, 40])
        self._world.until(lambda: self._world.count_log_writes() >= wanted)
        SYSTEM.pause(self._mix.uniform(0, 0.2))


def test_every_target_is_its_source_whoever_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_SEED", raising=False)  # or all runners would draw the same unique ids
    mix = random.Random(SEED)
    with ExitStack() as servers, shop_world(tmp_path, seed=SEED) as world:
        world.workload.fill(400)
        world.runners.start()
        world.runners.start()
        register(world, servers)
        disasters = Disasters(world, mix)
        with world.workload.running(pause_s=0.15):
            for number, kind in enumerate(mix.sample(DISASTERS, len(DISASTERS))):
                if number == len(DISASTERS) // 2:
                    world.workload.add_column()
                disasters.happen(kind)
        world.until(world.caught_up)
        world.runners.kill_all()
        reached = world.check()
        assert reached.keys() == world.targets.keys(), f"seed {SEED}: some targets were never filled"
        assert all(job.state is not JobState.ERROR for job in world.rows().values()), world.describe_jobs()
        assert "Traceback" not in world.runners.logs(), f"seed {SEED}: a runner met what it does not know"
        world.check_search(words(world))
        with open_deployment(world.settings) as deployment:
            for name, target in world.targets.items():
                if not isinstance(target, Receiver):  # what those have is known to nobody else
                    report = verify_target(deployment, JobId.parse(name))
                    assert report.same, f"seed {SEED}: {name}: {report.counts}"
