"""Runners that are killed while they fill targets for the first time, or anew: in the end nothing is missing.

And nothing is left of those who failed: no table, and no file but those that somebody may still be reading.
PENSTOCK_SEED draws other moments.
"""

import os
import random  # noqa: TID251 - seeded
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.clock import SYSTEM
from penstock.control.deployment import open_deployment
from penstock.control.verify import repair_target, verify_target
from penstock.jobs.job import Job, JobId, JobState
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
from support.webhooktargets import Merging, Receiver

pytestmark = pytest.mark.timeout(600)

SEED = os.environ.get("PENSTOCK_SEED", "7")
ROWS = 12_000
KILLS = length(2, 5)


def words(world: ShopWorld) -> LanceTarget:
    return LanceTarget(world.folder / "words", {"text_columns": "title,body"})


def register(world: ShopWorld, servers: ExitStack) -> None:
    places = world.folder
    world.register("shop.items/fulltext", words(world))
    vectors = {"text_columns": "title", "dimension": "16"}
    world.register("shop.items/vector", LanceTarget(places / "vectors", vectors))
    world.register("shop.items/delta", DeltaTarget(places / "delta"))
    world.register("shop.items/iceberg", IcebergTarget(places / "iceberg"))
    world.register("shop.items/parquet", ParquetTarget(places / "parquet"))
    world.register("shop.items/postgres", PostgresTarget(world.dsn, "items"))
    world.register("shop.items/kv", KvTarget(world.client, world.db, "copies.items"))
    merging = servers.enter_context(Merging(KEYS["shop.items"], item_of_json, request_bytes="64KiB"))
    world.register("shop.items/webhook", merging)


def kill_within_first_syncs(world: ShopWorld, mix: random.Random) -> list[str]:
    """Kill the runner while targets are filled, or filled anew when all are full; return of which jobs."""
    if not unfilled(world):
        with open_deployment(world.settings) as deployment:
            for name in world.targets:
                repair_target(deployment, JobId.parse(name), rebuild=True)
    left = max(0, len(unfilled(world)) - mix.choice([0, 1, 1, 2, 4]))
    world.runners.start()
    world.until(lambda: len(unfilled(world)) <= left and has_files(world.folder))
    SYSTEM.pause(mix.uniform(0, 1.0))
    world.runners.kill_all()
    return [name for name, job in unfilled(world).items() if job.state is JobState.RUNNING]


def unfilled(world: ShopWorld) -> dict[str, Job]:
    return {name: job for name, job in world.rows().items() if not job.watermark}


def has_files(folder: Path) -> bool:
    return any(path.is_file() for path in folder.rglob("data/**/*"))


def test_targets_are_filled_completely_and_nothing_is_left_of_attempts_that_were_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_SEED", raising=False)  # or all runners would draw the same unique ids
    mix = random.Random(SEED)
    with ExitStack() as servers, shop_world(tmp_path, seed=SEED) as world:
        world.workload.fill_items(ROWS)
        register(world, servers)
        killed: list[str] = []
        for kills in range(4 * KILLS):
            if kills >= KILLS and len(killed) > KILLS:
                break  # on a fast machine a kill may come when most targets are full
            killed += kill_within_first_syncs(world, mix)
            world.check(mix.choice(list(world.targets)))
        assert len(killed) > KILLS, f"seed {SEED}: nearly nothing was killed"
        world.runners.start()
        world.until(world.caught_up)
        world.runners.kill_all()
        assert world.check().keys() == world.targets.keys()
        left = {name: strays for name, target in world.targets.items() if (strays := target.strays())}
        assert not left, f"seed {SEED}: { {name: len(strays) for name, strays in left.items()} }"
        scratch = sorted(path.name for path in (tmp_path / "jobs").iterdir())
        assert len(scratch) == 1, "directories of runners that were killed are left"
        assert "Traceback" not in world.runners.logs(), f"seed {SEED}: a runner met what it does not know"
        world.check_search(words(world))
        with open_deployment(world.settings) as deployment:
            for name, target in world.targets.items():
                if not isinstance(target, Receiver):  # what those have is known to nobody else
                    report = verify_target(deployment, JobId.parse(name))
                    assert report.same, f"seed {SEED}: {name}: {report.counts}"
