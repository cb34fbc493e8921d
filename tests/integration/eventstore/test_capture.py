"""A capture against an embedded cluster in this process: tables that come, change and go."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from penstock.changes import collect_changes
from penstock.clock import SYSTEM, TS_MAX
from penstock.errors import Invalid, StaleRead, Unavailable
from penstock.eventstore import paths
from penstock.eventstore.capture.capture import Capture
from penstock.eventstore.capture.lease import PREFIX
from penstock.eventstore.manifest import dropped_ts
from penstock.eventstore.manifest_log import ManifestLog, Ownership, load
from penstock.eventstore.objects.flush import FlushPolicy
from penstock.eventstore.read.find import find_lives, find_table, list_tables
from penstock.eventstore.read.flight_client import FlightReader, write_ticket
from penstock.eventstore.read.partition import ReadRange
from penstock.eventstore.read.snapshot import read_snapshot
from penstock.eventstore.schema_history import CapturedTable
from penstock.kv import Client
from penstock.kv.pd import PdClient
from penstock.object_storage import StorageRef, open_storage
from penstock.settings import KvSettings, Settings, StoreSettings
from penstock.sources import KeySpan, SubscriptionClient
from penstock.store.cdc.scan import IncrementalScan
from penstock.store.cluster import Cluster
from penstock.tables import Catalog
from penstock.tables.columns import Tp
from penstock.tables.keys import record_range
from penstock.tables.meta import table_key
from support.capture import CaptureProcess
from support.events import replay_objects
from support.metaevents import flashback_diff, flashback_job
from support.oddtables import add_description, put_description, tidb_like, with_type

COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)")]
KV = KvSettings(safe_point_refresh_ms=50)  # collection waits for twice that


class Bench:
    """A cluster, its catalog, and the captures that a test starts."""

    def __init__(self, folder: Path, cluster: Cluster, client: Client) -> None:
        self.folder = folder
        self.cluster = cluster
        self.client = client
        self.db = Catalog(client)
        self.storage = open_storage(f"file://{folder}/events")
        self._captures: list[Capture] = []

    async def do(self, work: Callable[..., Any], *given: Any) -> Any:
        """Run blocking work beside the loop."""
        return await asyncio.to_thread(work, *given)

    async def insert(self, name: str, rows: list[dict[str, Any]]) -> None:
        await self.do(lambda: self.db.table(name).insert(rows))

    async def capture(self, name: str = "a", *, data: str = "", **settings: Any) -> Capture:
        given: dict[str, Any] = {
            "id": name,
            "data": self.folder / (data or name),
            "storage": f"file://{self.folder}/events",
            "flush_interval_s": 0.2,
            "idle_flush_interval_s": 0.4,
            "flight_addr": "127.0.0.1:0",
            "lease_ttl_s": 3,
        }
        made = await Capture.start(
            Settings(pd_addrs=(self.cluster.pd_addr,), kv=KV, capture=given | settings)
        )
        self._captures.append(made)
        return made

    async def flushed(self, table_id: int) -> int:
        """Wait until everything of now is in objects; return the timestamp."""
        ts: int = await self.do(self.client.timestamp)
        await until(lambda: load(self.storage, paths.table_root(table_id)).flushed_ts >= ts)
        return ts

    async def close(self) -> None:
        for capture in self._captures:
            await capture.stop(flush=False)


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(600):
        if holds():
            return
        await SYSTEM.sleep(0.05)
    raise AssertionError("it did not come to pass within 30 seconds")


@asynccontextmanager
async def bench(folder: Path) -> AsyncIterator[Bench]:
    settings = StoreSettings(
        data=folder / "kv", pd_addr="127.0.0.1:0", sync=False, resolved_ts_interval_ms=50
    )
    cluster = await Cluster.start(settings)
    client = await asyncio.to_thread(Client.connect, [cluster.pd_addr], settings=KV)
    made = Bench(folder, cluster, client)
    try:
        await made.do(made.db.create_database, "shop")
        yield made
    finally:
        await made.close()
        await asyncio.to_thread(client.close)
        await cluster.stop()


async def test_tables_come_change_and_go(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        first = (await b.do(b.db.create_table, "shop.first", COLUMNS)).id
        await b.insert("shop.first", [{"id": 1, "name": "before the capture"}])
        capture = await b.capture()
        assert capture.tables == {first}
        second = (await b.do(b.db.create_table, "shop.second", COLUMNS)).id
        await b.insert("shop.second", [{"id": 1, "name": "x"}])
        await b.do(lambda: b.db.add_column("shop.first", "more", "int"))
        await b.insert("shop.first", [{"id": 2, "name": "y", "more": 7}])
        await until(lambda: capture.tables == {first, second})
        ts = await b.flushed(first)
        assert sorted(row["id"] for row in replay_objects(b.storage, first, ts).values()) == [1, 2]
        facts = load(b.storage, paths.table_root(first)).facts
        assert [len(fact["table"]["cols"]) for fact in facts] == [2, 3]
        assert {fact["database"] for fact in facts} == {"shop"}
        await b.insert("shop.second", [{"id": 2, "name": "the last"}])
        end = await b.do(b.client.timestamp)
        await b.do(b.db.drop_table, "shop.second")
        await until(lambda: capture.tables == {first})
        assert len(replay_objects(b.storage, second, end)) == 2
        truncated = (await b.do(b.db.truncate_table, "shop.first")).id
        await until(lambda: capture.tables == {truncated})
        assert not capture.failed.done()


async def test_tables_are_found_by_their_names_until_they_are_dropped(tmp_path: Path) -> None:
    ref = StorageRef(f"file://{tmp_path}/events")

    def found(name: str, **rest: Any) -> list[int]:
        try:
            return [each.table_id for each in find_table(ref, name, **rest).partitions]
        except (Invalid, Unavailable):
            return []

    async with bench(tmp_path) as b:
        table_id = (await b.do(b.db.create_table, "shop.old", COLUMNS)).id
        capture = await b.capture()
        created = await b.flushed(table_id)
        assert found("shop.old") == [table_id]
        await b.do(b.db.rename_table, "shop.old", "shop.new")
        await until(lambda: found("shop.new") == [table_id])
        assert found("shop.old") == []
        assert found("shop.old", at_ts=created) == [table_id]
        await b.do(b.db.drop_table, "shop.new")
        await until(lambda: capture.tables == set())
        assert found("shop.new") == []
        assert list_tables(ref) == []
        again = (await b.do(b.db.create_table, "shop.new", COLUMNS)).id
        await until(lambda: found("shop.new") == [again])
        assert found("shop.old", at_ts=created) == [table_id]
        (fact,) = [each for each in load(b.storage, f"tables/{table_id}").facts if each["kind"] == "dropped"]
        assert created < fact["ts"] <= load(b.storage, f"tables/{table_id}").flushed_ts


async def test_a_table_dropped_while_nobody_captured_ends_when_somebody_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "penstock.eventstore.capture.capture._DROPPED_KEPT_MS", -(10**9)
    )  # every drop is long ago
    async with bench(tmp_path) as b:
        table_id = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        first = await b.capture()
        await b.flushed(table_id)
        await first.stop()
        await b.insert("shop.t", [{"id": 1, "name": "nobody looks"}])
        await b.do(b.db.drop_table, "shop.t")
        second = await b.capture("b")
        await until(lambda: dropped_ts(load(b.storage, paths.table_root(table_id)).facts, TS_MAX) > 0)
        await until(lambda: second.tables == set())
        assert len(replay_objects(b.storage, table_id, load(b.storage, f"tables/{table_id}").flushed_ts)) == 1
        assert not second.failed.done()


async def test_a_lease_says_the_address_that_others_reach(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        capture = await b.capture(flight_advertise_addr="capture.example:0")
        port = capture.flight_addr.rpartition(":")[2]
        assert capture.advertised_addr == f"capture.example:{port}"
        other = await b.capture("b", flight_advertise_addr="capture.example:99")
        leases = {key: json.loads(value) for key, value in await b.do(lambda: list(_leases(b.client)))}
        assert {each["flight_addr"] for each in leases.values()} == {
            capture.advertised_addr,
            "capture.example:99",
        }
        assert not other.failed.done()


def _leases(client: Client) -> list[tuple[bytes, bytes]]:
    with client.begin() as txn:
        return list(txn.scan(PREFIX, PREFIX + b"\xff"))


async def test_rows_are_served_over_flight_before_they_are_flushed(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        table_id = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        capture = await b.capture(flush_interval_s=3600, idle_flush_interval_s=3600)
        await until(lambda: capture.store.tables()[table_id].flushed_ts > 0)
        before = await b.do(b.client.timestamp)
        await b.insert("shop.t", [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
        ts = await b.do(b.client.timestamp)
        await until(lambda: capture.store.readable_ts(table_id) >= ts)

        def fetch() -> list[str]:
            with flight.connect(f"grpc://{capture.flight_addr}") as client:
                (listed,) = client.list_flights()
                assert json.loads(listed.descriptor.command)["flushed_ts"] < before
                ticket = write_ticket(ReadRange(table_id=table_id, from_ts=0, to_ts=ts, columns=("name",)))
                found: list[str] = client.do_get(flight.Ticket(ticket)).read_all()["name"].to_pylist()
                return found

        assert await b.do(fetch) == ["a", "b"]
        await capture.stop()
        assert len(replay_objects(b.storage, table_id, ts)) == 2


async def test_a_table_taken_by_another_owner_is_given_up_and_taken_back(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        table_id = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        capture = await b.capture()
        await b.flushed(table_id)
        await b.do(lambda: ManifestLog.open(b.storage, paths.table_root(table_id), writer="rival"))
        await b.insert("shop.t", [{"id": 1, "name": "a"}])
        ts = await b.flushed(table_id)
        assert len(replay_objects(b.storage, table_id, ts)) == 1
        assert load(b.storage, paths.table_root(table_id)).writer.startswith("a/")
        assert capture.tables == {table_id}


async def test_a_table_lost_while_it_was_being_subscribed_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    history_lost = Capture._check_history

    async def slowly(capture: Capture, table: CapturedTable, resolved_ts: int) -> bool:
        if not taken:
            taken.append(table.physical_id)
            rows = capture.store.rows(table.physical_id)
            await b.do(
                lambda: ManifestLog.open(b.storage, paths.table_root(table.physical_id), writer="rival")
            )
            rows.advance_resolved_ts(await b.do(b.client.timestamp))
            rows.finish_first_scan()
            await b.do(capture.store.flush, table.physical_id)
            assert rows.disowned
        return await history_lost(capture, table, resolved_ts)

    monkeypatch.setattr(Capture, "_check_history", slowly)
    async with bench(tmp_path) as b:
        table_id = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        await b.capture()
        await b.insert("shop.t", [{"id": 1, "name": "a"}])
        ts = await b.flushed(table_id)
        assert taken == [table_id]
        assert len(replay_objects(b.storage, table_id, ts)) == 1


async def test_two_captures_of_one_name_are_refused(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.capture("a")
        with pytest.raises(Invalid, match=r"its own capture\.id"):
            await b.capture("a", data="elsewhere")


async def add_geometry(b: Bench) -> None:
    """Give a table a column whose type has no Arrow form."""
    await b.do(b.db.add_column, "shop.t", "place", "int")
    await b.do(put_description, b.client, "shop.t", lambda tree: with_type(tree, "place", Tp.GEOMETRY))


async def test_only_wanted_tables_are_captured_and_columns_with_reserved_names_are(tmp_path: Path) -> None:
    names = ("_handle", "_Commit_ts", "_start_ts", "_update", "_object", "_offset", "_old")
    async with bench(tmp_path) as b:
        wanted = (await b.do(b.db.create_table, "shop.orders", COLUMNS)).id
        await b.do(b.db.create_table, "shop.other", COLUMNS)
        columns = [("_offset", "bigint primary key"), *((name, "int") for name in names if name != "_offset")]
        odd = (await b.do(b.db.create_table, "shop.odd", columns)).id
        await b.insert("shop.odd", [dict.fromkeys(names, 1)])
        capture = await b.capture(tables=("shop.o[rd]*",))
        assert capture.tables == {wanted, odd}
        from_ts = await b.flushed(odd)
        changed = {**dict.fromkeys(names, 1), "_old": 2, "_handle": None}
        await b.do(lambda: b.db.table("shop.odd").upsert([changed]))
        ts = await b.flushed(odd)
        view = await b.do(find_table, StorageRef(f"file://{tmp_path}/events"), "shop.odd")
        (row,) = [row for batch in read_snapshot(view, ts) for row in batch.to_pylist()]
        assert {name: row[f"{name} "] for name in names} == changed
        with collect_changes(view, from_ts, ts, old_rows=True) as handle:
            (batch,) = handle
        (ended,) = batch.tombstones.to_pylist()
        assert ended["_offset "] == 1
        assert ended["_old"] == {f"{name} ": 1 for name in names}
        assert batch.data.to_pylist()[0]["_old "] == 2


@pytest.mark.parametrize("restart", [False, True])
async def test_a_column_that_cannot_be_kept_costs_its_table_alone_until_it_is_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, restart: bool
) -> None:
    async with bench(tmp_path) as b:
        table_id = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        other = (await b.do(b.db.create_table, "shop.u", COLUMNS)).id
        capture = await b.capture(flush_interval_s=1)
        await b.insert("shop.t", [{"id": 1, "name": "before"}])
        before = await b.do(b.client.timestamp)
        await until(lambda: capture.store.readable_ts(table_id) >= before)
        if restart:
            await capture.stop(flush=False)
        await add_geometry(b)
        await b.insert("shop.t", [{"id": 2, "name": "meanwhile"}])
        meanwhile = await b.do(b.client.timestamp)
        if restart:
            capture = await b.capture()
        await until(lambda: capture.tables == {other})
        await b.insert("shop.u", [{"id": 1, "name": "goes on"}])
        await b.flushed(other)
        assert before <= load(b.storage, paths.table_root(table_id)).flushed_ts < meanwhile
        assert told(caplog).count("table left out") == 1
        assert not capture.failed.done()
        await b.do(b.db.drop_column, "shop.t", "place")
        await until(lambda: capture.tables == {table_id, other})
        await b.insert("shop.t", [{"id": 3, "name": "after"}])
        ts = await b.flushed(table_id)
        view = await b.do(find_table, StorageRef(f"file://{tmp_path}/events"), "shop.t")
        for at_ts, names in ((before, ["before"]), (meanwhile, ["before", "meanwhile"])):
            rows = [row for batch in read_snapshot(view, at_ts) for row in batch.to_pylist()]
            assert sorted(row["name"] for row in rows) == names
        assert sorted(row["id"] for row in replay_objects(b.storage, table_id, ts).values()) == [1, 2, 3]


@pytest.mark.parametrize("damaged", [False, True], ids=["unknown type", "damaged"])
async def test_views_and_unreadable_tables_cost_no_other_table(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damaged: bool
) -> None:
    async with bench(tmp_path) as b:
        good = (await b.do(b.db.create_table, "shop.good", COLUMNS)).id
        odd = (await b.do(b.db.create_table, "shop.odd", COLUMNS)).id
        described = (await b.do(b.db.table_info, "shop.odd")).to_json()
        await b.do(add_description, b.client, "shop.view", tidb_like("view"))
        capture = await b.capture(tables=("shop.*",))
        assert capture.tables == {good, odd}
        await b.insert("shop.odd", [{"id": 1, "name": "before"}])
        await b.flushed(odd)
        for kind in ("view", "sequence", "temporary table"):
            await b.do(add_description, b.client, f"shop.{kind[:4]}2", tidb_like(kind))
        await b.do(
            put_description, b.client, "shop.odd", lambda tree: b"{" if damaged else with_type(tree, "name")
        )
        never = await b.do(
            add_description, b.client, "shop.never",
            lambda table_id, name: with_type({**described, "id": table_id, "name": name}, "name"),
        )  # fmt: skip
        await until(lambda: capture.tables == {good} and {odd, never} <= capture._left_out.keys())
        await b.insert("shop.good", [{"id": 1, "name": "goes on"}])
        await b.flushed(good)
        assert told(caplog).count("table left out") == 2
        assert not capture.failed.done()
        with FlightReader(capture.flight_addr) as reader:
            refusals = {each.table_id: each for each in await b.do(reader.refusals)}
        assert refusals.keys() == {odd, never}
        assert "type 200 is unknown; upgrade Penstock" in refusals[never].reason
        assert load(b.storage, paths.table_root(odd)).flushed_ts == refusals[odd].since_ts - 1
        listed = {each.name: bool(each.unreadable) for each in await b.do(b.db.tables, "shop")}
        assert listed == {
            "good": False, f"#{odd}" if damaged else "odd": True, "never": True,
            "view": False, "view2": False, "sequ2": False, "temp2": False,
        }  # fmt: skip
        restarted = await b.capture("b")
        assert odd not in restarted.tables | capture.tables
        name = f"shop.#{odd}" if damaged else "shop.odd"
        await b.do(put_description, b.client, name, lambda _: described)
        await until(lambda: restarted.tables | capture.tables == {good, odd})
        await b.insert("shop.odd", [{"id": 2, "name": "after"}])
        ts = await b.flushed(odd)
        assert sorted(row["id"] for row in replay_objects(b.storage, odd, ts).values()) == [1, 2]


async def test_a_table_dropped_with_a_column_that_cannot_be_kept_ends(tmp_path: Path) -> None:
    ref = StorageRef(f"file://{tmp_path}/events")
    async with bench(tmp_path) as b:
        table_id = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        capture = await b.capture()
        ts = await b.flushed(table_id)
        await add_geometry(b)
        await until(lambda: capture.tables == set())
        assert await b.do(list_tables, ref) == ["shop.t"]
        await b.do(b.db.drop_table, "shop.t")
        await until(lambda: list_tables(ref) == [])
        assert await b.do(lambda: find_table(ref, "shop.t", at_ts=ts).name) == "shop.t"


@pytest.mark.parametrize("restart", [False, True])
async def test_a_table_that_is_recovered_after_its_drop_is_captured_again(
    tmp_path: Path, restart: bool
) -> None:
    ref = StorageRef(f"file://{tmp_path}/events")
    async with bench(tmp_path) as b:
        table_id = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        await b.insert("shop.t", [{"id": 1, "name": "x"}])
        capture = await b.capture()
        before = await b.flushed(table_id)
        await b.do(b.db.drop_table, "shop.t")
        await until(lambda: capture.tables == set())
        if restart:
            await capture.stop()
            capture = await b.capture()
        await until(lambda: table_id in capture._left_out)  # its end is told, and it is looked at no more
        assert await b.do(list_tables, ref) == []
        await b.do(recover_table, b, "shop", table_id, before)
        await until(lambda: capture.tables == {table_id})
        await b.insert("shop.t", [{"id": 2, "name": "after the recovery"}])
        ts = await b.flushed(table_id)
        assert sorted(row["id"] for row in replay_objects(b.storage, table_id, ts).values()) == [1, 2]
        assert await b.do(list_tables, ref) == ["shop.t"]


def recover_table(b: Bench, database: str, table_id: int, ts: int) -> None:
    """Bring back a table as it was at `ts`, with its id, as RECOVER TABLE and FLASHBACK TABLE do."""
    (database_id,) = [each.id for each in b.db.databases() if each.name == database]
    key = table_key(database_id, table_id)
    description = b.client.snapshot(ts).get(key)
    with b.client.begin() as txn:
        txn.put(key, description)
    b.db = Catalog(b.client)  # the schema version stays, by which a catalog knows its tables


async def test_a_damaged_manifest_costs_its_table_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path) as b:
        damaged = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        other = (await b.do(b.db.create_table, "shop.u", COLUMNS)).id
        capture = await b.capture()
        await b.flushed(damaged)
        await capture.stop()
        for name in b.storage.names(paths.manifest_folder(paths.table_root(damaged))):
            b.storage.write(name, b"no JSON")
        capture = await b.capture()
        assert capture.tables == {other}
        await b.flushed(other)
        assert told(caplog).count("table left out") == 1


async def test_gc_is_held_back_at_what_is_not_flushed(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        table_id = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        capture = await b.capture()
        await b.flushed(table_id)
        flushed_ts = capture.store.tables()[table_id].flushed_ts
        await capture._hold_back_gc()
        held = await capture._clients.pd.update_service_gc_safe_point("gc_worker", (1 << 63) - 1, 1 << 62)
        assert flushed_ts <= held <= capture.store.tables()[table_id].flushed_ts


async def test_gc_is_held_back_for_a_table_that_was_never_flushed(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        before = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        collected = await b.do(b.client.timestamp)
        assert await b.do(b.client.gc, collected) == collected
        after = (await b.do(b.db.create_table, "shop.u", COLUMNS)).id
        capture = await b.capture(flush_interval_s=3600, idle_flush_interval_s=1e10)
        assert {rows.flushed_ts for rows in capture.store.tables().values()} == {0}
        oldest = {each: capture.store.ownership(each).state.oldest_ts for each in capture.store.tables()}
        assert oldest == {before: collected, after: 0}  # of the first one, rows from before may be missing
        now = await b.do(b.client.timestamp)
        assert await b.do(b.client.gc, now) == collected


async def test_a_table_is_subscribed_only_where_its_history_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe = SubscriptionClient.subscribe
    begun: list[tuple[int, int]] = []

    async def beside_collection(
        puller: SubscriptionClient, span: KeySpan, start_ts: int, *given: Any, **rest: Any
    ) -> int:
        if span.table_id:
            now = await b.do(b.client.timestamp)
            begun.append((start_ts, await begin_collection(b, now)))
        return await subscribe(puller, span, start_ts, *given, **rest)

    monkeypatch.setattr(SubscriptionClient, "subscribe", beside_collection)
    async with bench(tmp_path) as b:
        table_id = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        capture = await b.capture()
        await b.flushed(table_id)
        await capture.stop()
        await capture_gone(b, "a")
        await b.capture()
    assert len(begun) == 2
    assert all(collected_ts <= start_ts for start_ts, collected_ts in begun)


@pytest.mark.parametrize("known", [True, False])
async def test_a_table_whose_safe_point_ran_out_before_its_scan_has_no_gap(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    scan, queued, done = IncrementalScan.run, asyncio.Event(), asyncio.Event()

    async def queues(scanning: IncrementalScan) -> None:
        if scanning._subscription.bounds.start == record_range(table_id)[0]:
            await queued.wait()
            await scan(scanning)
            done.set()
        else:
            await scan(scanning)

    def hold_for(seconds: int) -> None:
        for module in ("capture", "safe_point"):
            monkeypatch.setattr(f"penstock.eventstore.capture.{module}.HOLD_TTL_S", seconds)

    async with bench(tmp_path) as b:
        table_id = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        await b.insert("shop.t", [{"id": 1, "name": "x"}])
        if known:
            capture = await b.capture()
            await b.flushed(table_id)
            await capture.stop()
        lost_from = await b.do(b.client.timestamp)
        await b.do(lambda: b.db.table("shop.t").delete([1]))
        monkeypatch.setattr(IncrementalScan, "run", queues)
        hold_for(1)
        monkeypatch.setattr("penstock.eventstore.capture.capture._SAFE_POINT_EVERY_S", 3600)
        capture = await b.capture()
        assert capture.tables == {table_id}
        now = await b.do(b.client.timestamp)
        while await b.do(b.client.gc, now) < now:  # the capture sleeps; its second is over soon
            await SYSTEM.sleep(0.05)
        queued.set()
        await done.wait()
        hold_for(3600)
        fresh = (await b.do(b.db.create_table, "shop.fresh", COLUMNS)).id
        await b.flushed(fresh)
        if known:
            assert capture.tables == {fresh}
            assert load(b.storage, paths.table_root(table_id)).flushed_ts < lost_from
        else:  # it begins anew, where history does
            await b.flushed(table_id)
            assert load(b.storage, paths.table_root(table_id)).oldest_ts >= now
        assert told(caplog).count("table left out: its history is lost") == known


@pytest.mark.parametrize("published", [True, False])
async def test_a_table_whose_next_changes_are_collected_is_not_captured_with_a_gap(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, published: bool
) -> None:
    async with bench(tmp_path) as b:
        kept = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        await b.insert("shop.t", [{"id": 1, "name": "x"}])
        capture = await b.capture()
        await b.flushed(kept)
        await capture.stop()
        lost_from = await b.do(b.client.timestamp)
        await b.do(lambda: b.db.table("shop.t").delete([1]))
        fresh = (await b.do(b.db.create_table, "shop.fresh", COLUMNS)).id
        await capture_gone(b, "a")
        now = await b.do(b.client.timestamp)
        assert await begin_collection(b, now) == now
        if published:
            assert await b.do(b.client.gc, now) == now
        capture = await b.capture()
        assert capture.tables == {fresh}
        await b.flushed(fresh)
        assert load(b.storage, paths.table_root(fresh)).oldest_ts == now  # before that, rows may be missing
        assert load(b.storage, paths.table_root(kept)).flushed_ts < lost_from
        assert told(caplog).count("table left out: its history is lost") == 1


async def begin_collection(b: Bench, ts: int) -> int:
    """Do what collection does long before it publishes its safe point; return how far it may go."""
    pd = await PdClient.connect((b.cluster.pd_addr,))
    allowed_ts = await pd.update_service_gc_safe_point("gc_worker", (1 << 63) - 1, ts)
    await pd.close()
    return min(ts, allowed_ts)


@pytest.mark.parametrize("collected", ["up to the log's end", "between"])
async def test_rows_of_the_log_whose_schema_is_collected_are_not_read_with_a_later_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, collected: str
) -> None:
    async with bench(tmp_path) as b:
        table_id = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        capture = await b.capture(flush_interval_s=3600, idle_flush_interval_s=3600)
        await until(lambda: capture.store.tables()[table_id].flushed_ts > 0)
        flushed_ts = load(b.storage, paths.table_root(table_id)).flushed_ts
        await b.insert("shop.t", [{"id": 1, "name": "of the first schema"}])
        await b.do(b.db.drop_column, "shop.t", "name")
        ts = await b.do(b.client.timestamp)
        await b.insert("shop.t", [{"id": 2}])
        end = await b.do(b.client.timestamp)
        await until(lambda: capture.store.readable_ts(table_id) >= end)
        await capture.stop(flush=False)
        await capture_gone(b, "a")
        if collected == "up to the log's end":
            ts = await b.do(b.client.timestamp)
        assert await b.do(b.client.gc, ts) == ts
        capture = await b.capture()
        assert capture.tables == set()
        assert load(b.storage, paths.table_root(table_id)).flushed_ts == flushed_ts
        assert told(caplog).count("table left out: its history is lost") == 1


async def test_a_table_dropped_so_long_ago_that_the_cluster_forgot_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.eventstore.capture.capture._LOOK_EVERY_S", 0.2)
    ref = StorageRef(f"file://{tmp_path}/events")
    async with bench(tmp_path) as b:
        table_id = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        await b.insert("shop.t", [{"id": 1, "name": "x"}])
        capture = await b.capture()
        await b.flushed(table_id)
        await capture.stop()
        await b.do(b.db.drop_table, "shop.t")
        await capture_gone(b, "a")
        now = await b.do(b.client.timestamp)
        assert await b.do(b.client.gc, now) == now
        await b.capture()
        await until(lambda: list_tables(ref) == [])
        with pytest.raises(Invalid, match="there is no table"):
            await b.do(find_table, ref, "shop.t")
        ts = load(b.storage, paths.table_root(table_id)).flushed_ts
        view = await b.do(lambda: find_table(ref, "shop.t", at_ts=ts))
        assert [row["id"] for batch in read_snapshot(view, ts) for row in batch.to_pylist()] == [1]


@pytest.mark.parametrize("flush_s", [0.1, 3600.0], ids=["flushed", "never flushed"])
async def test_a_name_is_not_read_before_its_table_when_the_end_of_the_former_one_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush_s: float
) -> None:
    """The former table had rows at that moment; the later one, which has the name now, is empty there."""
    monkeypatch.setattr("penstock.eventstore.capture.capture._LOOK_EVERY_S", 0.2)
    ref = StorageRef(f"file://{tmp_path}/events")
    async with bench(tmp_path) as b:
        table_id = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        capture = await b.capture(flush_interval_s=flush_s, idle_flush_interval_s=2 * flush_s)
        if flush_s < 1:
            await b.flushed(table_id)
        await capture.stop(flush=False)
        await b.insert("shop.t", [{"id": 1, "name": "x"}])
        lost_ts = await b.do(b.client.timestamp)
        await b.do(b.db.drop_table, "shop.t")
        await capture_gone(b, "a")
        now = await b.do(b.client.timestamp)
        assert await b.do(b.client.gc, now) == now
        capture = await b.capture()
        await until(lambda: list_tables(ref) == [] and all(find_lives(ref, "shop.t").values()))
        await capture.stop()  # what it knows of the former table must be on storage
        later_id = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        await b.capture()
        ts = await b.flushed(later_id)
        view = await b.do(lambda: find_table(ref, "shop.t", at_ts=ts))
        assert list(read_snapshot(view, ts)) == []
        with pytest.raises(StaleRead):
            list(read_snapshot(await b.do(lambda: find_table(ref, "shop.t", at_ts=lost_ts)), lost_ts))
        with pytest.raises(StaleRead), collect_changes(view, lost_ts, ts) as handle:
            list(handle)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records]


async def filled(b: Bench, table_id: int, *batches: range) -> int:
    """Insert rows, each batch with a flush after it; return the timestamp that is flushed."""
    ts = 0
    for numbers in batches:
        await b.insert("shop.t", [{"id": number, "name": "x" * 60} for number in numbers])
        ts = await b.flushed(table_id)
    return ts


async def older_storage(b: Bench) -> int:
    """Leave storage of an earlier moment beside the log of a later one, which has been cut; return the table.

    Rows 0 to 9 were there at that moment. Of the later ones row 0 is deleted and rows 10 to 49 are added.
    """
    table_id: int = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
    capture = await b.capture(wal_segment_bytes=1024)
    await filled(b, table_id, range(10))
    await capture.stop()
    shutil.copytree(b.folder / "events", b.folder / "backup")
    capture = await b.capture(wal_segment_bytes=1024)
    await b.do(lambda: b.db.table("shop.t").delete([0]))
    await filled(b, table_id, range(10, 20), range(20, 30), range(30, 40), range(40, 50))
    await capture.stop()
    shutil.rmtree(b.folder / "events")
    shutil.copytree(b.folder / "backup", b.folder / "events")
    return table_id


async def test_changes_that_an_older_copy_of_storage_lacks_are_pulled_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path) as b:
        table_id = await older_storage(b)
        capture = await b.capture(wal_segment_bytes=1024)
        assert capture.tables == {table_id}
        ts = await filled(b, table_id, range(50, 60))
        found = replay_objects(b.storage, table_id, ts)
        assert sorted(row["id"] for row in found.values()) == list(range(1, 60))
        assert told(caplog).count("storage is older than the log; changes are pulled again") == 1
        assert "table left out: its history is lost" not in told(caplog)


async def put_meta(b: Bench, key: bytes, value: bytes) -> None:
    def write() -> None:
        with b.client.begin() as txn:
            txn.put(key, value)

    await b.do(write)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_table_is_not_captured_past_a_flashback_of_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    monkeypatch.setattr("penstock.eventstore.capture.capture._LOOK_EVERY_S", 0.2)
    async with bench(tmp_path) as b:
        table_id = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        await b.insert("shop.t", [{"id": 1, "name": "x"}])
        capture = await b.capture()
        before_ts = await b.flushed(table_id)
        await put_meta(b, *flashback_diff(1000))
        await b.do(lambda: b.db.table("shop.t").delete([1]))  # stands for what TiKV may send of it
        after_ts = await b.do(b.client.timestamp)
        await until(lambda: bool(capture.refusals()))  # told once the rows from before are flushed
        (refusal,) = capture.refusals()
        assert capture.tables == set()
        assert "FLASHBACK CLUSTER takes rows back" in refusal.reason
        assert "rebuild targets" in refusal.reason
        assert "remove its folder" in refusal.reason
        assert (
            before_ts <= load(b.storage, paths.table_root(table_id)).flushed_ts < refusal.since_ts < after_ts
        )
        fresh = (await b.do(b.db.create_table, "shop.fresh", COLUMNS)).id
        await until(lambda: capture.tables == {fresh})
        if cancelled:
            await put_meta(b, *flashback_job(1001, before_ts, state=5))
        else:
            await capture.stop()
            capture = await b.capture()
            assert capture.tables == {fresh}
            assert [each.table_id for each in capture.refusals()] == [table_id]
            shutil.rmtree(tmp_path / "events" / "tables" / str(table_id))  # as the error says
        await until(lambda: capture.tables == {fresh, table_id})
        ts = await b.flushed(table_id)
        assert replay_objects(b.storage, table_id, ts) == {}


@pytest.mark.parametrize("restart", [True, False])
async def test_a_table_whose_storage_is_older_than_what_is_left_of_history_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    monkeypatch.setattr("penstock.eventstore.capture.capture._LOOK_EVERY_S", 0.2)
    async with bench(tmp_path) as b:
        table_id = await older_storage(b)
        restored = load(b.storage, paths.table_root(table_id)).flushed_ts
        await capture_gone(b, "a")
        now = await b.do(b.client.timestamp)
        assert await b.do(b.client.gc, now) == now
        capture = await b.capture(wal_segment_bytes=1024)
        assert capture.tables == set()
        assert told(caplog).count("table left out: its history is lost") == 1
        (left_out,) = [each for each in caplog.records if each.getMessage().startswith("table left out")]
        gap = f"the cluster has collected changes from {restored} to {now}; remove"
        assert gap in vars(left_out)["reason"]
        assert load(b.storage, paths.table_root(table_id)).flushed_ts == restored
        if restart:
            await capture.stop()
        shutil.rmtree(tmp_path / "events" / "tables" / str(table_id))  # as the error says
        if restart:
            capture = await b.capture(wal_segment_bytes=1024)
        await until(lambda: capture.tables == {table_id})
        ts = await filled(b, table_id, range(50, 60))
        found = replay_objects(b.storage, table_id, ts)
        assert sorted(row["id"] for row in found.values()) == list(range(1, 60))


async def test_an_older_copy_of_the_log_takes_nothing_from_storage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path) as b:
        table_id = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        capture = await b.capture(wal_segment_bytes=1024)
        await filled(b, table_id, range(10))
        await b.insert("shop.t", [{"id": 10, "name": "in the log"}])
        await capture.stop(flush=False)
        shutil.copytree(tmp_path / "a", tmp_path / "backup")
        capture = await b.capture(wal_segment_bytes=1024)
        await b.do(lambda: b.db.table("shop.t").delete([0, 10]))
        await filled(b, table_id, range(11, 20), range(20, 30))
        await capture.stop(flush=False)
        shutil.rmtree(tmp_path / "a")
        shutil.copytree(tmp_path / "backup", tmp_path / "a")
        capture = await b.capture(wal_segment_bytes=1024)
        ts = await filled(b, table_id, range(30, 40))
        found = replay_objects(b.storage, table_id, ts)
        assert sorted(row["id"] for row in found.values()) == [*range(1, 10), *range(11, 40)]
        assert "storage is older than the log; changes are pulled again" not in told(caplog)


async def test_a_table_that_moved_away_before_it_was_subscribed_holds_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        first = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        capture = await b.capture()
        gone = first + 1000
        await b.do(capture.store.open_table, gone)  # and the cluster did not answer the subscription
        await until(lambda: set(capture.store.tables()) == {first})


async def test_a_capture_stops_while_a_full_disk_waits_for_storage_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise Unavailable("storage is away")

    async with bench(tmp_path) as b:
        table_id = (await b.do(b.db.create_table, "shop.t", COLUMNS)).id
        capture = await b.capture()
        await b.flushed(table_id)
        monkeypatch.setattr(Ownership, "commit", fail)
        monkeypatch.setattr(FlushPolicy, "must_wait", lambda *_, **__: True)
        await until(lambda: capture.store._crowded)
        await b.insert("shop.t", [{"id": 1, "name": "held back"}])
        waits = capture.store._relief._waiters  # type: ignore[attr-defined]  # nothing else tells that it waits
        await until(lambda: bool(waits))
        await asyncio.wait_for(capture.stop(), timeout=20)


async def test_of_a_table_made_after_collection_nothing_is_missing(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        first = (await b.do(b.db.create_table, "shop.first", COLUMNS)).id
        capture = await b.capture()
        ts = await b.flushed(first)
        await capture.stop()
        await capture_gone(b, "a")
        assert await b.do(b.client.gc, ts) == ts
        await b.capture()
        second = (await b.do(b.db.create_table, "shop.second", COLUMNS)).id
        await b.flushed(second)
        assert load(b.storage, paths.table_root(second)).oldest_ts == 0


async def capture_gone(b: Bench, name: str) -> None:
    """Let a capture's safe point run out."""
    pd = await PdClient.connect((b.cluster.pd_addr,))
    await pd.update_service_gc_safe_point(f"penstock-{name}", 0, 0)
    await pd.close()


def test_the_command_refuses_what_cannot_work_in_one_line(tmp_path: Path) -> None:
    process = CaptureProcess(
        tmp_path, {"capture": {"storage": "ftp://somewhere", "data": str(tmp_path / "a")}}
    )
    with pytest.raises(Invalid, match=r"penstock: storage URL 'ftp://somewhere' has an unknown scheme"):
        process.start()
    assert process.log.count("\n") == 1
