"""A capture that is stopped, killed and away for days while tables come, change and go by any DDL.

What the event store says of a name at a moment is what the key-value store said then, or there is an error
for which there is a reason. PENSTOCK_SEED=<n> repeats a run, PENSTOCK_SEEDS=200 makes more of them.
"""

import asyncio
import os
import random  # noqa: TID251 - seeded
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.changes import collect_changes
from penstock.clock import SYSTEM
from penstock.errors import Invalid, PenstockError, StaleRead, Unavailable
from penstock.eventstore import paths
from penstock.eventstore.capture.capture import Capture
from penstock.eventstore.manifest_log import load
from penstock.eventstore.read.find import find_lives, find_table, list_tables
from penstock.eventstore.read.snapshot import read_snapshot
from penstock.kv import Client
from penstock.kv.pd import PdClient
from penstock.object_storage import StorageRef
from penstock.settings import KvSettings, Settings, StoreSettings
from penstock.store.cluster import Cluster
from penstock.tables import Catalog, records
from penstock.tables.define import define_table
from penstock.tables.keys import record_key
from penstock.tables.meta import MetaWriter
from penstock.tables.schema import TableInfo
from penstock.testing.versions import CopiedTable, visible
from support.campaign import seeds

ACTS = int(os.environ.get("PENSTOCK_ACTS", "25"))
SEEDS = seeds(2, 30)
KV = KvSettings(safe_point_refresh_ms=20)  # collection waits for twice that
ROWS = range(1, 7)
DEADLINE_S = 30.0

Rows = dict[int, dict[str, Any]]


class Source:
    """The cluster's tables: shop.t is whole, shop.p has partitions, shop.x changes places with those."""

    def __init__(self, client: Client, mix: random.Random) -> None:
        self.client = client
        self.db = Catalog(client)
        self.mix = mix
        self.database_id = self.db.create_database("shop").id
        self.dropped: dict[str, TableInfo] = {}
        self.columns = 0
        for name in ("t", "p", "x"):
            self.create(name)

    def table(self, name: str) -> TableInfo | None:
        return next((each for each in self.db.tables("shop") if each.name == name), None)

    def describe(self, *tables: TableInfo, gone: Iterable[TableInfo] = ()) -> None:
        """One DDL: tables are as described, others are gone."""
        with self.client.begin() as txn:
            meta = MetaWriter(txn)
            meta.next_schema_version()
            for table in gone:
                meta.delete_table(self.database_id, table)
            for table in tables:
                meta.put_table(self.database_id, table)

    def new_id(self) -> int:
        with self.client.begin() as txn:
            return MetaWriter(txn).next_id()

    def create(self, name: str) -> None:
        columns = [("id", "bigint primary key"), ("name", "varchar(64)")]
        made = replace(define_table(name, columns), id=self.new_id())
        self.describe(self.divided(made, [self.new_id(), self.new_id()]) if name == "p" else made)

    def divided(self, table: TableInfo, ids: Iterable[int]) -> TableInfo:
        definitions = [{"id": each} for each in ids]
        return replace(table, extra={"partition": {"enable": True, "definitions": definitions}})

    def with_new_ids(self, table: TableInfo) -> TableInfo:
        made = replace(table, id=self.new_id())
        if "partition" not in table.extra:
            return made
        return self.divided(made, [self.new_id() for _ in table.physical_ids])

    def write(self, name: str) -> None:
        """A row is in one partition for as long as there are as many."""
        table = self.table(name)
        if table is None:
            return
        with self.client.begin() as txn:
            for number in self.mix.sample(ROWS, self.mix.randint(1, 4)):
                ids = table.physical_ids
                at = record_key(ids[number % len(ids)], number)
                held = [key for each in ids if txn.get(key := record_key(each, number)) is not None]
                if self.mix.random() < 0.4 or any(key != at for key in held):
                    for key in held:
                        txn.delete(key)
                    continue
                row = {"id": number, "name": f"{self.mix.random()}"}
                txn.put(at, records.value_of(table, records.to_record(table, row, start_ts=txn.start_ts)))

    def alter(self, name: str) -> None:
        table = self.table(name)
        if table is None:
            return
        extra = [column.name for column in table.columns if column.name.startswith("extra")]
        if extra and self.mix.random() < 0.5:
            self.db.drop_column(f"shop.{name}", extra[0])
        else:
            self.columns += 1
            self.db.add_column(f"shop.{name}", f"extra{self.columns}", "varchar(20) default 'none'")

    def drop(self, name: str) -> bool:
        """Drop a table, or bring it back: as it was if its rows are there, or as another one."""
        table = self.table(name)
        if table is not None:
            self.dropped[name] = table
            self.describe(gone=[table])
        elif name in self.dropped and self.mix.random() < 0.6:
            self.describe(self.dropped.pop(name))
        else:
            self.create(name)
        return True

    def truncate(self, name: str) -> bool:
        table = self.table(name)
        if table is None:
            return False
        self.describe(self.with_new_ids(table), gone=[table])
        return True

    def repartition(self) -> bool:
        """Returns whether rows may have come or gone."""
        table = self.table("p")
        if table is None:
            return False
        ids, what = list(table.physical_ids), self.mix.choice(["add", "drop", "truncate", "exchange"])
        at = self.mix.randrange(len(ids))
        other = self.table("x")
        if what == "add" or (what == "drop" and len(ids) == 1):
            self.describe(self.divided(table, [*ids, self.new_id()]))
            return False
        if what == "drop":
            del ids[at]
            self.describe(self.divided(table, ids))
        elif what == "exchange" and other is not None and other.columns == table.columns:
            self.exchange(table, ids, at, other)
        else:
            ids[at] = self.new_id()
            self.describe(self.divided(table, ids))
        return True

    def exchange(self, table: TableInfo, ids: list[int], at: int, other: TableInfo) -> None:
        """No row may be in two partitions then."""
        with self.client.begin() as txn:
            for number in ROWS:
                rest = (txn.get(record_key(each, number)) for each in ids if each != ids[at])
                key = record_key(other.id, number)
                if any(rest) and txn.get(key) is not None:
                    txn.delete(key)
        moved, ids[at] = ids[at], other.id
        self.describe(self.divided(table, ids), replace(other, id=moved), gone=[other])

    def rows(self, name: str, ts: int) -> Rows | None:
        """What the key-value store says; None: there is no such table."""
        if self.table(name) is None:
            return None
        batches = self.db.table(f"shop.{name}").scan(at_ts=ts)
        return {row["id"]: row for batch in batches for row in batch.to_pylist()}


class Life:
    """A capture's life beside its source, and what was seen of the source meanwhile."""

    def __init__(self, folder: Path, cluster: Cluster, source: Source, mix: random.Random) -> None:
        self.folder = folder
        self.cluster = cluster
        self.source = source
        self.mix = mix
        self.storage = StorageRef(f"file://{folder}/events")
        self.capture: Capture | None = None
        self.seen: list[tuple[int, dict[str, Rows | None]]] = []
        self.breaks: dict[str, list[tuple[int, int]]] = {name: [] for name in "tpx"}
        self.collected_ts = 0
        self.told: list[str] = []

    async def do(self, work: Callable[..., Any], *given: Any) -> Any:
        return await asyncio.to_thread(work, *given)

    async def act(self) -> None:
        name = self.mix.choice("tpx")
        what = self.mix.choices(
            [
                "write",
                "alter",
                "drop",
                "truncate",
                "repartition",
                "start",
                "stop",
                "kill",
                "leave",
                "collect",
                "look",
            ],
            [30, 5, 8, 4, 10, 10, 3, 6, 3, 5, 12],
        )[0]
        self.told.append(f"{what} {name}")
        if what in {"write", "alter"}:
            await self.do(getattr(self.source, what), name)
        elif what in {"drop", "truncate"}:
            await self.broken(name, lambda: getattr(self.source, what)(name))
        elif what == "repartition":
            await self.broken("px", self.source.repartition)
        elif what == "look":
            await self.look()
        elif what == "collect":
            await self.collect()
        elif what == "start":
            await self.start()
        else:
            await self.end(flush=what == "stop")
            if what == "leave":
                await self.leave()

    async def broken(self, names: Iterable[str], ddl: Callable[[], bool]) -> None:
        before = await self.do(self.source.client.timestamp)
        if await self.do(ddl):
            after = await self.do(self.source.client.timestamp)
            for name in names:
                self.breaks[name].append((before, after))

    async def look(self) -> None:
        ts = await self.do(self.source.client.timestamp)
        rows = {name: await self.do(self.source.rows, name, ts) for name in "tpx"}
        self.seen.append((ts, rows))

    async def start(self) -> None:
        if self.capture is not None:
            return
        given = {
            "id": "a",
            "data": self.folder / "a",
            "storage": self.storage.url,
            "tables": ["shop.*"],
            "flush_interval_s": 0.1,
            "idle_flush_interval_s": 0.2,
            "flight_addr": "127.0.0.1:0",
            "lease_ttl_s": 3,
        }
        settings = Settings(pd_addrs=(self.cluster.pd_addr,), kv=KV, capture=given)
        self.capture = await Capture.start(settings)

    async def end(self, *, flush: bool) -> None:
        if self.capture is not None:
            await self.capture.stop(flush=flush)
            self.capture = None

    async def leave(self) -> None:
        """Stay away for so long that the cluster collects what the capture needs; then do as its log says."""
        for _ in range(self.mix.randint(0, 3)):
            await self.do(self.source.write, self.mix.choice("tpx"))
        if self.mix.random() < 0.5:
            await self.broken("t", lambda: self.source.drop("t"))
        await self.release()
        self.collected_ts = await self.do(self.source.client.timestamp)
        assert await self.do(self.source.client.gc, self.collected_ts) == self.collected_ts
        self.source.dropped.clear()  # too late to recover
        await self.start()
        assert self.capture is not None
        left_out = await self.do(self.ids) - self.capture.tables
        await self.end(flush=True)
        for table_id in left_out:
            shutil.rmtree(self.folder / "events" / paths.table_root(table_id), ignore_errors=True)

    async def collect(self) -> None:
        """The cluster collects what is in objects; a table that was dropped can be recovered before that."""
        ids = await self.do(self.ids)
        if self.capture is None and ids and not self.source.dropped:
            await self.release()
            flushed = [load(self.storage.open(), paths.table_root(each)).flushed_ts for each in ids]
            if min(flushed) > 0:
                await self.do(self.source.client.gc, min(flushed))

    async def release(self) -> None:
        """Let the capture's safe point run out."""
        pd = await PdClient.connect((self.cluster.pd_addr,))
        await pd.update_service_gc_safe_point("penstock-a", 0, 0)
        await pd.close()

    def ids(self) -> set[int]:
        tables = (self.source.table(name) for name in "tpx")
        return {each for table in tables if table is not None for each in table.physical_ids}

    async def settle(self) -> None:
        """Everything of now is in objects, and what is gone is known to be."""
        await self.look()
        ts, rows = self.seen[-1]
        await self.start()
        storage = self.storage.open()
        names = sorted(f"shop.{name}" for name in "tpx" if rows[name] is not None)
        ids = await self.do(self.ids)

        def settled() -> bool:
            assert self.capture is not None
            if self.capture.failed.done():
                self.capture.failed.result()
            flushed = all(load(storage, paths.table_root(each)).flushed_ts >= ts for each in ids)
            ended = all(all(find_lives(self.storage, f"shop.{name}").values()) for name in "tpx")
            return flushed and ended and self.capture.tables == ids and list_tables(self.storage) == names

        deadline = SYSTEM.monotonic() + DEADLINE_S
        while not await self.do(settled):
            assert SYSTEM.monotonic() < deadline, (
                f"not settled: captured {sorted(self.capture.tables if self.capture else ())}"
                f" of {sorted(ids)},"
                f" {list_tables(self.storage)} of {names}"
            )
            await SYSTEM.sleep(0.02)

    def check(self) -> None:
        """Every name at every moment, and from every moment to the next and to the last."""
        for ts, expected in self.seen:
            for name in "tpx":
                self.check_snapshot(name, ts, expected[name])
        last = self.seen[-1]
        for before, after in [*pairwise(self.seen), *((each, last) for each in self.seen[:-1])]:
            for name in "tpx":
                if after[1][name] is not None:
                    self.check_changes(
                        name, (before[0], after[0]), before[1][name] or {}, after[1][name] or {}
                    )

    def check_snapshot(self, name: str, ts: int, expected: Rows | None) -> None:
        try:
            view = find_table(self.storage, f"shop.{name}", at_ts=ts)
            found = {
                row["id"]: visible(row) for batch in read_snapshot(view, ts) for row in batch.to_pylist()
            }
        except StaleRead:
            assert ts < self.collected_ts, f"shop.{name} at {ts} was not collected"
        except (Invalid, Unavailable) as error:
            if expected is not None and ts >= self.collected_ts:
                raise AssertionError(f"shop.{name} was there at {ts}") from error
        else:
            assert found == (expected or {}), f"shop.{name} at {ts} was another"

    def check_changes(self, name: str, ends: tuple[int, int], rows: Rows, expected: Rows) -> None:
        from_ts, to_ts = ends
        broken = any(after > from_ts and before <= to_ts for before, after in self.breaks[name])
        try:
            view = find_table(self.storage, f"shop.{name}", at_ts=to_ts)
            target = CopiedTable({(key,): row for key, row in rows.items()}, from_ts)
            with collect_changes(view, from_ts, to_ts) as handle:
                target.take_all(handle)
        except StaleRead as error:
            if not broken and from_ts >= self.collected_ts:
                raise AssertionError(f"shop.{name} is stale for no reason") from error
        except (Invalid, Unavailable) as error:
            if from_ts >= self.collected_ts:
                raise AssertionError(f"shop.{name} was there at {to_ts}") from error
        else:
            found = {key: row["name"] for (key,), row in target.rows.items()}
            assert found == {key: row["name"] for key, row in expected.items()}, f"shop.{name} in {ends}"


@pytest.mark.parametrize("seed", SEEDS)
async def test_names_have_the_rows_of_the_kv_store_through_any_ddl(tmp_path: Path, seed: int) -> None:
    mix = random.Random(seed)
    settings = StoreSettings(
        data=tmp_path / "kv", pd_addr="127.0.0.1:0", sync=False, resolved_ts_interval_ms=20
    )
    cluster = await Cluster.start(settings)
    client = await asyncio.to_thread(Client.connect, [cluster.pd_addr], settings=KV)
    source = await asyncio.to_thread(Source, client, mix)
    life = Life(tmp_path, cluster, source, mix)
    try:
        await life.start()
        for _ in range(ACTS):
            await life.act()
        await life.settle()
        await asyncio.to_thread(life.check)
    except (AssertionError, PenstockError) as error:
        error.add_note(f"seed {seed}: {', '.join(life.told)}")
        raise
    finally:
        await life.end(flush=False)
        await asyncio.to_thread(client.close)
        await cluster.stop()
