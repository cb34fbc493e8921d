"""A source beside a capture and an embedded cluster in this process: DDLs of every kind, and their rows."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.changes.limits import ReadLimit
from penstock.clock import SYSTEM
from penstock.errors import Unavailable
from penstock.eventstore.capture.capture import Capture
from penstock.follow.ddl_events import DdlEvent, DdlScope
from penstock.follow.follower import SliceFollower
from penstock.follow.slices import Position, TableSpan
from penstock.kv import Client
from penstock.kv.cluster_ref import ClusterRef
from penstock.settings import Settings, StoreSettings
from penstock.store.cluster import Cluster
from penstock.tables import Catalog
from penstock.tables.ddl_jobs import DdlAction

COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)")]


class Bench:
    """A cluster, its catalog, and one source."""

    def __init__(self, settings: Settings, client: Client, source: SliceFollower) -> None:
        self.settings = settings
        self.client = client
        self.db = Catalog(client)
        self.source = source

    async def do(self, work: Callable[..., Any], *given: Any) -> Any:
        """Run blocking work beside the loop."""
        return await asyncio.to_thread(work, *given)

    async def insert(self, name: str, *ids: int, **more: Any) -> None:
        rows = [{"id": each, "name": "x", **more} for each in ids]
        await self.do(lambda: self.db.table(name).insert(rows))

    async def known(self) -> int:
        """Wait until every DDL of now is known; return the timestamp."""
        ts = await self.source.now_ts()
        await until(lambda: self.source.ddl_resolved_ts() >= ts)
        return ts

    async def readable(self, table_id: int, ts: int) -> None:
        for _ in range(600):
            look = (await self.source.read_progress([table_id])).get(table_id)
            if look is not None and look.readable_ts >= ts:
                return
            await SYSTEM.sleep(0.05)
        raise AssertionError("it could not be read within 30 seconds")

    async def ids(self, table_id: int, from_ts: int, upto_ts: int) -> list[int]:
        """The rows that were put in a range."""
        spec = TableSpan.of("feed", table_id)
        piece = await self.source.next_slice(spec, Position(from_ts), upto_ts, ReadLimit())
        found: list[int] = []
        for part in piece.parts if piece else ():
            with part.collect() as handle:
                found += [each for batch in handle for each in batch.data.column("id").to_pylist()]
        return found


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(600):
        if holds():
            return
        await SYSTEM.sleep(0.05)
    raise AssertionError("it did not come to pass within 30 seconds")


@asynccontextmanager
async def bench(folder: Path, **capture: Any) -> AsyncIterator[Bench]:
    store = StoreSettings(data=folder / "kv", pd_addr="127.0.0.1:0", sync=False, resolved_ts_interval_ms=50)
    cluster = await Cluster.start(store)
    settings = Settings(
        pd_addrs=(cluster.pd_addr,),
        capture={
            "id": "a",
            "data": folder / "a",
            "storage": f"file://{folder}/events",
            "flush_interval_s": 0.3,
            "flight_addr": "127.0.0.1:0",
            "lease_ttl_s": 3,
            **capture,
        },
    )
    source = await SliceFollower.connect(settings, "feed")
    try:
        client = await asyncio.to_thread(ClusterRef.of(settings).client)
        made = Bench(settings, client, source)
        await made.do(made.db.create_database, "shop")
        yield made
    finally:
        await source.close()
        await asyncio.to_thread(ClusterRef.of(settings).close)
        await cluster.stop()


@asynccontextmanager
async def capturing(b: Bench) -> AsyncIterator[Capture]:
    capture = await Capture.start(b.settings)
    try:
        yield capture
    finally:
        await capture.stop(flush=False)


def shown(event: DdlEvent) -> tuple[int, list[str | None], list[str | None]]:
    before = [each.before and each.before.name for each in event.tables]
    after = [each.after and each.after.name for each in event.tables]
    return event.type, before, after


async def test_every_kind_of_ddl_comes_with_its_statement_at_its_time(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        begin = await b.known()
        first = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        await b.do(lambda: b.db.add_column("shop.t", "more", "int"))
        await b.do(lambda: b.db.modify_column("shop.t", "more", "bigint"))
        await b.do(b.db.drop_column, "shop.t", "more")
        await b.do(b.db.rename_table, "shop.t", "shop.u")
        second = (await b.do(b.db.truncate_table, "shop.u")).id
        await b.do(b.db.create_database, "other")
        await b.do(b.db.rename_table, "shop.u", "other.v")
        await b.do(b.db.create_table, "other.w", COLUMNS)
        await b.do(b.db.drop_table, "other.w")
        before_drop = await b.known()
        await b.do(b.db.drop_database, "other")
        end = await b.known()
        events = b.source.ddls(begin, end)
        jobs = await b.do(b.db.history)
        assert [(each.type, each.query) for each in events] == [(job.type, job.query) for job in jobs[1:]]
        assert [shown(each) for each in events] == [
            (DdlAction.CREATE_TABLE, [None], ["shop.t"]),
            (DdlAction.ADD_COLUMN, ["shop.t"], ["shop.t"]),
            (DdlAction.MODIFY_COLUMN, ["shop.t"], ["shop.t"]),
            (DdlAction.DROP_COLUMN, ["shop.t"], ["shop.t"]),
            (DdlAction.RENAME_TABLE, ["shop.t"], ["shop.u"]),
            (DdlAction.TRUNCATE_TABLE, ["shop.u"], ["shop.u"]),
            (DdlAction.CREATE_SCHEMA, [], []),
            (DdlAction.RENAME_TABLE, ["shop.u"], ["other.v"]),
            (DdlAction.CREATE_TABLE, [None], ["other.w"]),
            (DdlAction.DROP_TABLE, ["other.w"], [None]),
            (DdlAction.DROP_SCHEMA, ["other.v"], [None]),
        ]
        assert [each.scope for each in events].count(DdlScope.DATABASE) == 2
        assert [each.database for each in events][-3:] == ["other"] * 3
        assert (events[5].tables[0].ended_ids, events[5].tables[0].begun_ids) == ({first}, {second})
        assert all(each.tables[0].after.since_ts == each.commit_ts for each in events[:6])
        assert [each.name for each in b.source.tables(before_drop)] == ["other.v"]
        assert b.source.tables(end) == b.source.tables(begin) == []


async def test_rows_before_and_after_a_ddl_are_read_with_their_schemas(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        begin = await b.known()
        table_id = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        await b.insert("shop.t", 1, 2)
        async with capturing(b):
            await b.do(lambda: b.db.add_column("shop.t", "more", "int default 5"))
            await b.insert("shop.t", 3, more=7)
            truncated = (await b.do(b.db.truncate_table, "shop.t")).id
            await b.insert("shop.t", 4)
            end = await b.known()
            create, add, truncate = b.source.ddls(begin, end)
            await b.readable(table_id, end)
            await b.readable(truncated, end)
            assert await b.ids(table_id, create.commit_ts - 1, add.commit_ts - 1) == [1, 2]
            assert await b.ids(table_id, add.commit_ts - 1, truncate.commit_ts - 1) == [3]
            assert await b.ids(table_id, truncate.commit_ts - 1, end) == []
            assert await b.ids(truncated, truncate.commit_ts - 1, end) == [4]
            spec = TableSpan.of("feed", table_id)
            piece = await b.source.next_slice(spec, Position(add.commit_ts - 1), end, ReadLimit())
            assert piece is not None
            assert piece.schema == add.tables[0].after


async def test_ddls_are_known_while_the_capture_is_away_and_rows_when_it_comes(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        table_id = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        await b.insert("shop.t", 1)
        await b.do(lambda: b.db.add_column("shop.t", "more", "int"))
        await b.insert("shop.t", 2)
        end = await b.known()
        create, add = b.source.ddls(0, end)[-2:]
        assert await b.source.read_progress([table_id]) == {}
        with pytest.raises(Unavailable, match=r"shop\.t is not captured"):
            await b.ids(table_id, create.commit_ts, end)
        async with capturing(b):
            await b.readable(table_id, end)
            assert await b.ids(table_id, create.commit_ts, add.commit_ts - 1) == [1]
            assert await b.ids(table_id, add.commit_ts - 1, end) == [2]
        later = await b.source.now_ts()
        with pytest.raises(Unavailable):
            await b.ids(table_id, create.commit_ts, later)
        assert (await b.source.read_progress([table_id]))[table_id].readable_ts < later


async def test_a_source_that_starts_later_knows_the_same_ddls(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.do(b.db.create_table, "shop.t", COLUMNS)
        await b.do(b.db.rename_table, "shop.t", "shop.u")
        end = await b.known()
        other = await SliceFollower.connect(b.settings, "other")
        try:
            await until(lambda: other.ddl_resolved_ts() >= end)
            assert other.ddls(0, end) == b.source.ddls(0, end)
            assert other.tables(end) == b.source.tables(end)
        finally:
            await other.close()
