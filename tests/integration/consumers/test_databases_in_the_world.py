"""Jobs into databases as people run them: a captured table, the runner, and three targets at once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg

from penstock.consumers.kv import KvTable
from penstock.consumers.postgres import Postgres
from penstock.jobs.job import ErrorCode
from penstock.kv.cluster_ref import ClusterRef
from penstock.testing.consumers import job_context
from penstock.verify.compare import Counts
from penstock.verify.target import Verifier
from support.jobworld import JobWorld, job_world
from support.postgres import shared_server
from support.webhookreceiver import WebhookReceiver


def _postgres_rows(dsn: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT id, name FROM items ORDER BY id").fetchall()


async def _settled(world: JobWorld, ts: int) -> None:
    for name in ("pg", "copy", "hook"):
        await world.caught_up(f"shop.items/{name}", ts)


async def test_targets_follow_their_source_and_are_verified(tmp_path: Path) -> None:
    dsn = shared_server().new_database()
    async with job_world(tmp_path) as world:
        with WebhookReceiver() as server:
            await world.create("shop.items", [("id", "int primary key"), ("name", "varchar(64)")])
            await world.create("copies.other", [("id", "bigint primary key")])
            await world.insert("shop.items", *({"id": number, "name": "a"} for number in range(50)))
            hook = {"url": server.url, "watermark_url": server.url}
            await world.register("shop.items/pg", consumer="postgres", options={"dsn": dsn})
            await world.register("shop.items/copy", consumer="kv", options={"table": "copies.items"})
            await world.register("shop.items/hook", consumer="webhook", options=hook)
            async with world.running():
                await world.upsert("shop.items", {"id": 3, "name": "b"}, {"id": 99, "name": "c"})
                await _settled(world, await world.delete("shop.items", 7))
                await world.do(
                    world.db.add_column, "shop.items", "stock", "varchar(9) not null default 'old'"
                )
                await world.upsert("shop.items", {"id": 4, "name": "d", "stock": "new"})
                await _settled(world, await world.delete("shop.items", 8))
                rows = (await world.rows("shop.items")).to_pylist()
                wanted = [(row["id"], row["name"]) for row in rows]
                assert await world.do(_postgres_rows, dsn) == wanted
                assert (await world.rows("copies.items")).to_pylist() == rows
                assert sorted((row["id"], row["name"]) for row in server.rows.values()) == wanted
                await _verified(world, tmp_path, "pg", Postgres, {"dsn": dsn})
                await _verified(world, tmp_path, "copy", KvTable, {"table": "copies.items"})
                sent, server.to_ts = len(server.seen), 1 << 62
                await world.upsert("shop.items", {"id": 5, "name": "e", "stock": "new"})
                hook_job = await world.wait_until_stopped("shop.items/hook")
                assert hook_job.status.error_code == ErrorCode.TARGET_DIFFERS
                assert "in the future" in hook_job.status.error_msg
                assert len(server.seen) == sent
            await world.do(ClusterRef.of(world.settings).close)


async def test_what_postgresql_cannot_have_is_no_difference_and_can_be_repaired(tmp_path: Path) -> None:
    """Zeros below zero in documents, and with nul=replace the character U+0000, also in keys."""
    dsn = shared_server().new_database()
    options = {"dsn": dsn, "nul": "replace"}
    numbers = ["-0.0", "-0", "0.0", "-0e5", "1e308", '{"a": [-0.0, 1.50, -12]}']
    async with job_world(tmp_path) as world:
        await world.create("shop.items", [("id", "varchar(20) primary key"), ("doc", "json")])
        await world.insert(
            "shop.items", *({"id": f"\0{number}", "doc": text} for number, text in enumerate(numbers))
        )
        await world.register("shop.items/pg", consumer="postgres", options=options)
        async with world.running():
            ts = await world.upsert("shop.items", {"id": "\0a", "doc": '"\\u0000"'}, {"id": "b", "doc": "1"})
            await world.caught_up("shop.items/pg", ts)
            await world.caught_up("shop.items/pg", await world.delete("shop.items", "\0002"))
        async with _verifier(world, tmp_path, "pg", Postgres, options) as verifier:
            assert (await world.do(verifier.verify)).counts == Counts()
            with psycopg.connect(dsn) as target:
                target.execute("DELETE FROM items WHERE id = '\ufffd1'")
                target.execute("UPDATE items SET doc = '2' WHERE id IN ('\ufffd3', 'b')")
                target.execute("INSERT INTO items VALUES ('\ufffdmore', '{}')")
            assert (await world.do(verifier.repair)).counts == Counts(missing=1, different=2, extra=1)
            assert (await world.do(verifier.verify)).counts == Counts()
        await world.do(ClusterRef.of(world.settings).close)


@asynccontextmanager
async def _verifier(
    world: JobWorld, folder: Path, name: str, kind: Any, options: dict[str, str]
) -> AsyncIterator[Verifier]:
    job = await world.job(f"shop.items/{name}")
    context = job_context(
        folder,
        job.spec.consumer,
        options,
        settings=world.settings,
        job=name,
        job_id=job.key.job_id,
        table_id=job.key.table_id,
    )
    consumer = kind(context)
    try:
        yield Verifier(
            job, consumer, world.source, folder / name, log_ts=lambda: job.watermark, same_ts=lambda ts: ts
        )
    finally:
        consumer.close()


async def _verified(world: JobWorld, folder: Path, name: str, kind: Any, options: dict[str, str]) -> None:
    async with _verifier(world, folder, name, kind, options) as verifier:
        report = await world.do(verifier.verify)
    assert (report.counts.total, report.source_rows, report.target_rows) == (0, 49, 49)
