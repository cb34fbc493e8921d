"""Merges that are written away from the capture that plans and commits them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock import eventloop
from penstock.clock import SYSTEM
from penstock.errors import Invalid, Unavailable
from penstock.eventstore import manifest_log, paths
from penstock.eventstore.capture.capture import Capture
from penstock.eventstore.read.flight_client import FlightReader
from penstock.eventstore.upkeep.merge import MergeOutput, plan_merges, plan_tree, read_plan
from penstock.eventstore.upkeep.merge_policy import MergePolicy
from penstock.kv.cluster_ref import ClusterRef
from penstock.object_storage import StorageRef
from penstock.settings import Settings
from penstock.spark.bulk import MergeTask, load_table, merge_objects
from penstock.tables import Catalog
from penstock.tables.keys import record_key
from penstock.testing.store import Admin
from penstock.verify.event_store import verify
from support.warmstore import WarmStore

COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)")]


def run(pieces: Sequence[Any]) -> list[Any]:
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda piece: piece.run(), pieces))


def load_now(pieces: Sequence[Any]) -> None:
    run(pieces)


def test_a_table_is_merged_in_parallel_while_it_changes(tmp_path: Path) -> None:
    with WarmStore.start(tmp_path / "store", stores=1) as store:
        settings = Settings(
            pd_addrs=(store.pd_addr,),
            capture={
                "data": tmp_path / "capture",
                "storage": f"file://{tmp_path}/events",
                "flight_addr": "127.0.0.1:0",
                "upkeep": {"merge": False},
            },
        )
        cluster = ClusterRef.of(settings)
        db = Catalog(cluster.client())
        db.create_database("shop")
        table_id = db.create_table("shop.orders", COLUMNS).id
        orders = db.table("shop.orders")
        orders.insert([{"id": n, "name": f"n{n}"} for n in range(400)])
        split(store, [record_key(table_id, n) for n in range(10, 400, 10)])
        load_table(settings, "shop.orders", load_now)
        with pytest.raises(Unavailable, match=r"no capture that answers owns shop\.orders"):
            merge_objects(settings, "shop.orders", run)
        with pytest.raises(Invalid, match=r"there is no table shop\.order "):
            merge_objects(settings, "shop.order", run)
        capture = eventloop.run(Capture.start(settings))
        try:
            check_merging(settings, capture, orders, table_id)
        finally:
            eventloop.run(capture.stop(flush=False))
            cluster.close()


def check_merging(settings: Settings, capture: Capture, orders: Any, table_id: int) -> None:
    client = ClusterRef.of(settings).client()

    def change(nth: int) -> None:
        """Change rows that are being merged, and have the changes flushed."""
        orders.update([{"id": 20 + nth, "name": f"changed {nth}"}])
        orders.delete([200 + nth])
        now = client.timestamp()
        deadline = SYSTEM.monotonic() + 30
        while table_id not in capture.tables or capture.store.readable_ts(table_id) < now:
            assert SYSTEM.monotonic() < deadline
            SYSTEM.pause(0.05)
        assert capture.store.flush(table_id)

    storage = StorageRef(settings.capture.storage).open()
    for nth in range(9):
        change(nth)
    before = manifest_log.load(storage, paths.table_root(table_id))
    parallel: list[int] = []

    def write(tasks: Sequence[MergeTask]) -> list[MergeOutput]:
        parallel.append(len(tasks))
        outputs = run(tasks)
        change(10 + len(parallel))
        return list(outputs)

    report = merge_objects(settings, "shop.orders", write)
    after = manifest_log.load(storage, paths.table_root(table_id))
    assert parallel[0] >= 3, "several merges are written at once"
    assert report.merges >= 3
    assert report.overtaken == 0
    assert (
        len(after.visible_objects("data", after.flushed_ts))
        < len(before.visible_objects("data", before.flushed_ts)) / 2
    )
    now = verify(settings, "shop.orders", run)
    assert (now.same, now.rows, now.ts >= after.flushed_ts) == (True, 400 - 9 - len(parallel), True)
    reader = FlightReader(capture.flight_addr)
    forgotten = reader.run_action("commit_merge", b'{"plan_id": "x", "data": [], "tombstones": []}')
    assert forgotten == b'{"committed": false}'
    with pytest.raises(Invalid, match="needs plan_id"):
        reader.run_action("commit_merge", b"{}")
    with pytest.raises(
        Invalid, match="there are resolved_ts, progress, refusals, catalog, plan_merge, commit_merge"
    ):
        reader.run_action("nothing", b"")
    reader.close()
    plans = plan_merges(table_id, before, MergePolicy(), now_ms=1, plans_max=8)
    assert [read_plan(plan_tree(plan)) for plan in plans] == plans
    taken = [each.id for plan in plans for each in plan.data]
    assert len(taken) == len(set(taken))
    assert all(plan.tombstones == plan.gone == () for plan in plans[1:])


def split(store: WarmStore, keys: Sequence[bytes]) -> None:
    async def cut() -> None:
        admin = Admin(store.pd_addr)
        await admin.split(keys)
        await admin.close()

    eventloop.run(cut())
