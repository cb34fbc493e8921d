"""Writers, splitting regions, moving leaders, a capture that is killed: the event store equals the KV store.

Replaying a table's objects up to a timestamp gives exactly the rows that a snapshot of the key-value store
at that timestamp has, for many timestamps.
"""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import eventloop
from penstock.clock import SYSTEM
from penstock.errors import Conflict, PenstockError, Unavailable
from penstock.eventstore import paths
from penstock.eventstore.manifest_log import load
from penstock.kv import Client
from penstock.object_storage import ObjectStorage, open_storage
from penstock.tables import Catalog
from penstock.tables.keys import record_key
from penstock.testing.store import Admin
from support.capture import CaptureProcess
from support.events import replay_objects
from support.warmstore import WarmStore

KEYS = 60
COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)")]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[WarmStore]:
    with WarmStore.start(tmp_path / "kv", stores=2) as process:
        yield process


def capture_settings(cluster: WarmStore, folder: Path, name: str) -> dict[str, Any]:
    return {
        "pd_addrs": [cluster.pd_addr],
        "secrets_dir": str(folder / "secrets"),
        "capture": {
            "id": name,
            "data": str(folder / name),
            "storage": f"file://{folder}/events",
            "tables": ["shop.*"],
            "flush_interval_s": 0.3,
            "idle_flush_interval_s": 0.5,
            "flush_bytes": 20_000,
            "wal_segment_bytes": 100_000,
            "flight_addr": "127.0.0.1:0",
            "lease_ttl_s": 2,
        },
    }


class Writers:
    """Threads that change rows at random until they are stopped, and note timestamps to check later."""

    def __init__(self, client: Client, names: list[str]) -> None:
        self._client = client
        self._db = Catalog(client)
        self._stop = threading.Event()
        self.moments: list[int] = []
        self._threads = [threading.Thread(target=self._run, args=(name,)) for name in names]
        for thread in self._threads:
            thread.start()

    def _run(self, name: str) -> None:
        table = self._db.table(name)
        while not self._stop.is_set():
            keys = {int(SYSTEM.random() * KEYS) for _ in range(1 + int(SYSTEM.random() * 6))}
            try:
                if SYSTEM.random() < 0.3:
                    table.delete(sorted(keys))
                else:
                    table.upsert([{"id": key, "name": f"{SYSTEM.random()}"} for key in sorted(keys)])
                if SYSTEM.random() < 0.2:
                    self.moments.append(self._client.timestamp())
            except (Conflict, Unavailable):
                continue

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


async def disturb(pd_addr: str, table_ids: list[int], stopped: asyncio.Event) -> int:
    """Split regions of the tables and move their leaders; return how often."""
    admin, done = Admin(pd_addr), 0
    try:
        while not stopped.is_set():
            table_id = table_ids[int(SYSTEM.random() * len(table_ids))]
            try:
                regions = await admin.split([record_key(table_id, int(SYSTEM.random() * KEYS))])
                for region in regions:
                    await admin.transfer_leader(region.id, 1 + int(SYSTEM.random() * 2))
                    if SYSTEM.random() < 0.6:
                        await admin.merge(region.id)
                done += 1
            except PenstockError:
                pass
            await SYSTEM.sleep(0.15)
    finally:
        await admin.close()
    return done


def rows_at(db: Catalog, name: str, ts: int) -> dict[int, str]:
    batches = db.table(name).scan(at_ts=ts)
    return {row["id"]: row["name"] for batch in batches for row in batch.to_pylist()}


def wait_flushed(storage: ObjectStorage, table_id: int, ts: int) -> None:
    never = threading.Event()
    for _ in range(600):
        if load(storage, paths.table_root(table_id)).flushed_ts >= ts:
            return
        never.wait(0.1)
    raise AssertionError(f"table {table_id} was not flushed up to {ts} within a minute")


def wait_owners(storage: ObjectStorage, table_ids: Iterable[int], expected: set[str]) -> None:
    """Wait until these captures have the tables: a lease that is late lets another take them meanwhile."""
    never = threading.Event()
    for _ in range(300):
        owners = {load(storage, paths.table_root(table_id)).writer.split("/")[0] for table_id in table_ids}
        if owners == expected:
            return
        never.wait(0.1)
    raise AssertionError(f"the tables belong to {owners} and not to {expected} after half a minute")


def test_the_event_store_equals_the_snapshots_of_the_kv_store(cluster: WarmStore, tmp_path: Path) -> None:
    names = ["shop.one", "shop.two"]
    client = Client.connect([cluster.pd_addr])
    db = Catalog(client)
    db.create_database("shop")
    table_ids = [db.create_table(name, COLUMNS).id for name in names]
    db.table("shop.one").insert([{"id": key, "name": "from before"} for key in range(0, KEYS, 2)])
    storage = open_storage(f"file://{tmp_path}/events")
    stopped = asyncio.Event()
    loop = eventloop.shared_loop()
    disturbing = asyncio.run_coroutine_threadsafe(disturb(cluster.pd_addr, table_ids, stopped), loop)
    writers = Writers(client, names)
    with CaptureProcess(tmp_path, capture_settings(cluster, tmp_path, "a")) as capture:
        assert set(capture.tables) == set(table_ids)
        for _ in range(3):
            threading.Event().wait(0.5 + SYSTEM.random())
            capture.kill()
            capture.start()
        threading.Event().wait(1)
        writers.stop()
        loop.call_soon_threadsafe(stopped.set)
        assert disturbing.result(30) > 3
        end = client.timestamp()
        for table_id in table_ids:
            wait_flushed(storage, table_id, end)
        assert capture.terminate() == 0, capture.log
    assert len(writers.moments) > 10
    for ts in [*writers.moments[:: max(1, len(writers.moments) // 15)], end]:
        for name, table_id in zip(names, table_ids, strict=True):
            found = replay_objects(storage, table_id, ts)
            assert {row["id"]: row["name"] for row in found.values()} == rows_at(db, name, ts)
    client.close()


def test_captures_share_the_tables_and_take_over_from_a_lost_one(cluster: WarmStore, tmp_path: Path) -> None:
    client = Client.connect([cluster.pd_addr])
    db = Catalog(client)
    db.create_database("shop")
    names = [f"shop.t{number}" for number in range(8)]
    ids = {db.create_table(name, COLUMNS).id: name for name in names}
    storage = open_storage(f"file://{tmp_path}/events")
    first = CaptureProcess(tmp_path / "a", capture_settings(cluster, tmp_path, "a"))
    second = CaptureProcess(tmp_path / "b", capture_settings(cluster, tmp_path, "b"))
    with first, second:
        assert 0 < len(second.tables) < len(ids)
        for name in names:
            db.table(name).insert([{"id": key, "name": "x"} for key in range(5)])
        ts = client.timestamp()
        for table_id in ids:
            wait_flushed(storage, table_id, ts)
        wait_owners(storage, ids, {"a", "b"})
        first.kill()
        db.create_table("shop.late", COLUMNS)
        for name in names:
            db.table(name).delete([3])
        ts = client.timestamp()
        for table_id in ids:
            wait_flushed(storage, table_id, ts)
            assert len(replay_objects(storage, table_id, ts)) == 4
        wait_owners(storage, ids, {"b"})
        assert second.terminate() == 0, second.log
    client.close()
