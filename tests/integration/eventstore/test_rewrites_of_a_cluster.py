"""MODIFY COLUMN that rewrites rows, in a cluster that does not send the rewritten rows, as TiKV does not."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from integration.eventstore.test_capture import Bench, bench, until
from penstock.changes import collect_changes
from penstock.errors import StaleRead
from penstock.eventstore.capture import capture as capture_module
from penstock.eventstore.read.find import find_table
from penstock.eventstore.read.snapshot import read_snapshot
from penstock.object_storage import StorageRef
from penstock.store.cdc.subscription import EventRowWriter

COLUMNS = [("id", "bigint primary key"), ("n", "int"), ("name", "varchar(64)")]


def stored(b: Bench, ts: int) -> list[dict[str, Any]]:
    """Return the rows that objects have at a timestamp."""
    view = find_table(StorageRef(f"file://{b.folder}/events"), "shop.items", at_ts=ts)
    columns = ["id", "n", "name"]
    found = [row for batch in read_snapshot(view, ts, columns=columns) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: row["id"])


async def test_rows_have_rewritten_values_that_the_cluster_does_not_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    add = EventRowWriter.add

    def watch(self: EventRowWriter, kind: Any, op: Any, key: bytes, *rest: Any) -> None:
        sent.append(key)
        add(self, kind, op, key, *rest)

    async with bench(tmp_path) as b:
        table = await b.do(b.db.create_table, "shop.items", COLUMNS)
        await b.insert("shop.items", [{"id": n, "n": n, "name": f"item {n}"} for n in range(1, 301)])
        await b.capture()
        before_ts = await b.flushed(table.id)
        monkeypatch.setattr(EventRowWriter, "add", watch)
        await b.do(lambda: b.db.modify_column("shop.items", "n", "varchar(20)"))
        prefix = b"t" + (table.id ^ (1 << 63)).to_bytes(8, "big")
        assert not [key for key in sent if key.startswith(prefix)]
        await b.insert("shop.items", [{"id": 1000, "n": "x", "name": "later"}])
        ts = await b.flushed(table.id)
        rows = await b.do(stored, b, ts)
        assert [row["n"] for row in rows] == [*map(str, range(1, 301)), "x"]
        assert [row["n"] for row in await b.do(stored, b, before_ts)] == list(range(1, 301))
        view = find_table(StorageRef(f"file://{b.folder}/events"), "shop.items", at_ts=ts)
        with pytest.raises(StaleRead) as raised:
            collect_changes(view, before_ts, ts)
        with collect_changes(view, raised.value.oldest_ts, ts) as handle:
            assert [row["id"] for batch in handle for row in batch.data.to_pylist()] == [1000]


async def test_a_capture_that_ends_while_it_reads_a_table_again_reads_it_at_its_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = asyncio.Event()

    async def hang(*_: Any) -> int:
        reached.set()
        await asyncio.Event().wait()
        return 0

    async with bench(tmp_path) as b:
        table = await b.do(b.db.create_table, "shop.items", COLUMNS)
        await b.insert("shop.items", [{"id": n, "n": n, "name": f"item {n}"} for n in range(1, 21)])
        first = await b.capture()
        await b.flushed(table.id)
        with monkeypatch.context() as patch:
            patch.setattr(capture_module, "store_rows_at", hang)
            await b.do(lambda: b.db.modify_column("shop.items", "n", "varchar(20)"))
            await b.insert("shop.items", [{"id": 100, "n": "later", "name": "later"}])
            async with asyncio.timeout(30):
                await reached.wait()
            ts = await b.do(b.client.timestamp)
            await until(lambda: first.store.rows(table.id).resolved_ts > ts)
            assert first.store.readable_ts(table.id) < ts
            await first.stop(flush=False)
        second = await b.capture()
        await until(lambda: second.store.readable_ts(table.id) > ts)
        ts = await b.flushed(table.id)
        assert [row["n"] for row in await b.do(stored, b, ts)] == [*map(str, range(1, 21)), "later"]


LIGHTNING = 1 << 16
"""The source of rows that TiDB Lightning imported: TiKV does not send them either."""


async def test_a_table_that_is_captured_late_has_the_rows_that_the_cluster_does_not_send(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as b:
        table = await b.do(b.db.create_table, "shop.items", COLUMNS)
        await b.insert("shop.items", [{"id": n, "n": n, "name": f"item {n}"} for n in range(1, 301)])
        await b.do(lambda: b.db.modify_column("shop.items", "n", "varchar(20)"))

        def write_more() -> None:
            items = b.db.table("shop.items")
            items.upsert([{"id": 7, "n": "seven", "name": "later"}])
            items.delete([8])
            with b.client.begin(txn_source=LIGHTNING) as txn:
                items.insert([{"id": n, "n": "i", "name": "imported"} for n in range(400, 410)], txn=txn)
            assert b.client.gc(now := b.client.timestamp()) >= now

        await b.do(write_more)
        await b.capture()
        begun_ts = await b.flushed(table.id)
        wanted = (
            {n: str(n) for n in range(1, 301) if n != 8} | {7: "seven"} | dict.fromkeys(range(400, 410), "i")
        )
        assert {row["id"]: row["n"] for row in await b.do(stored, b, begun_ts)} == wanted
        await b.do(lambda: b.db.table("shop.items").upsert([{"id": 9, "n": "nine", "name": "later"}]))
        await b.do(lambda: b.db.table("shop.items").delete([400]))
        ts = await b.flushed(table.id)
        del wanted[400]
        assert {row["id"]: row["n"] for row in await b.do(stored, b, ts)} == wanted | {9: "nine"}
        view = find_table(StorageRef(f"file://{b.folder}/events"), "shop.items", at_ts=ts)
        with collect_changes(view, begun_ts, ts) as handle:
            found = list(handle)
        assert [row["id"] for batch in found for row in batch.data.to_pylist()] == [9]
        assert sorted(row["id"] for batch in found for row in batch.tombstones.to_pylist()) == [9, 400]
