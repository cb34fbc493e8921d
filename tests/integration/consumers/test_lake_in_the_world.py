"""Jobs into lakes as people run them: a captured table, the runner, and copies in three formats at once."""

from pathlib import Path

import pyarrow as pa

from penstock.consumers.lake.consumer import LakeConsumer
from penstock.testing.consumers import job_context, rows_by_key
from penstock.verify.target import Verifier
from support.jobworld import JobWorld, job_world
from support.lakeworld import FORMATS, LakeWorld

COLUMNS = [("id", "int primary key"), ("name", "varchar(64)"), ("took", "time"), ("total", "bigint unsigned")]
KEY = ("id",)


async def _settled(world: JobWorld, ts: int) -> None:
    for name in FORMATS:
        await world.caught_up(f"shop.items/{name}", ts)


async def test_copies_follow_their_source_and_are_verified_and_repaired(tmp_path: Path) -> None:
    lakes = {name: LakeWorld(name, tmp_path / name) for name in FORMATS}
    async with job_world(tmp_path) as world:
        await world.create("shop.items", COLUMNS)
        rows = ({"id": number, "name": "a", "total": (1 << 64) - 1 - number} for number in range(50))
        await world.insert("shop.items", *rows)
        for name, lake in lakes.items():
            await world.register(f"shop.items/{name}", consumer=name, options=lake.options)
        async with world.running():
            await world.upsert("shop.items", {"id": 3, "name": "b"}, {"id": 99, "name": "c"})
            await _settled(world, await world.delete("shop.items", 7))
            added = "varchar(9) not null default 'old'"
            await world.do(world.db.add_column, "shop.items", "stock", added)
            await world.upsert("shop.items", {"id": 4, "name": "d", "stock": "new"})
            await _settled(world, await world.delete("shop.items", 8))
            wanted = rows_by_key(await world.rows("shop.items"), KEY)
            for name, lake in lakes.items():
                assert await world.do(lake.rows, KEY) == wanted
                await _repaired(world, tmp_path, name, lake)
                assert await world.do(lake.rows, KEY) == wanted
                lake.close()


async def _repaired(world: JobWorld, folder: Path, name: str, lake: LakeWorld) -> None:
    """Verify a copy, spoil it, and repair it."""
    job = await world.job(f"shop.items/{name}")
    context = job_context(
        folder,
        name,
        lake.options,
        settings=world.settings,
        job=name,
        job_id=job.key.job_id,
        table_id=job.key.table_id,
    )
    consumer: LakeConsumer = FORMATS[name](context)
    verifier = Verifier(
        job,
        consumer,
        world.source,
        folder / f"{name}.cmp",
        log_ts=lambda: job.watermark,
        same_ts=lambda ts: ts,
    )
    report = await world.do(verifier.verify)
    assert (report.counts.total, report.source_rows, report.target_rows) == (0, 49, 49)
    at_ts = consumer.committed_ts()
    gone = pa.table({"id": pa.array([5, 6], pa.int32())})
    wrong = pa.table({"id": pa.array([1, 1000], pa.int32()), "name": ["wrong", "extra"]})
    await world.do(consumer.repair, wrong, gone, at_ts)
    report = await world.do(verifier.repair)
    counts = report.counts
    assert (counts.missing, counts.different, counts.extra, counts.duplicates) == (2, 1, 1, 0)
    assert (await world.do(verifier.verify)).same
    consumer.close()
