"""The event store's table against the cluster's own: the same, and not the same."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock import eventloop
from penstock.clock import SYSTEM
from penstock.errors import Invalid, Unavailable
from penstock.eventstore import paths
from penstock.eventstore.capture.capture import Capture
from penstock.eventstore.manifest import Removal
from penstock.eventstore.manifest_log import ManifestLog, load
from penstock.eventstore.schema_version import schemas_in
from penstock.eventstore.upkeep.load import RangeTask, write_objects
from penstock.kv.cluster_ref import ClusterRef
from penstock.object_storage import StorageRef
from penstock.settings import Settings
from penstock.spark.bulk import load_table
from penstock.tables import Catalog
from penstock.tables.keys import encode_handle, record_key
from penstock.testing.store import Admin
from penstock.verify.event_store import Difference, verify
from support.warmstore import WarmStore

COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)"), ("price", "decimal(10,2)")]
ABSENT = 250


def run(pieces: Sequence[Any]) -> list[Any]:
    return [piece.run() for piece in pieces]


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    with WarmStore.start(tmp_path / "store", stores=1) as store:
        made = Settings(
            pd_addrs=(store.pd_addr,),
            capture={
                "data": tmp_path / "capture",
                "storage": f"file://{tmp_path}/events",
                "flight_addr": "127.0.0.1:0",
                "flush_interval_s": 3600,
                "idle_flush_interval_s": 3600,
            },
        )
        yield made
        ClusterRef.of(made).close()


def filled(settings: Settings) -> Catalog:
    db = Catalog(ClusterRef.of(settings).client())
    db.create_database("shop")
    table_id = db.create_table("shop.orders", COLUMNS).id
    db.table("shop.orders").insert(
        [{"id": n, "name": f"n{n}", "price": n} for n in range(500) if n != ABSENT]
    )

    async def cut() -> None:
        admin = Admin(settings.pd_addrs[0])
        await admin.split([record_key(table_id, n) for n in (100, 300)])
        await admin.close()

    eventloop.run(cut())
    return db


def load_now(tasks: Sequence[RangeTask]) -> None:
    run(tasks)


def test_a_captured_table_is_the_same_with_rows_that_are_not_flushed(settings: Settings) -> None:
    db = filled(settings)
    loaded = load_table(settings, "shop.orders", load_now)
    orders = db.table("shop.orders")
    orders.update([{"id": n, "name": "changed"} for n in range(90, 110)])
    orders.delete([7, 450])
    capture = eventloop.run(Capture.start(settings))
    try:
        orders.insert([{"id": 1000, "name": "new"}])
        now = ClusterRef.of(settings).client().timestamp()
        table_id = db.table_info("shop.orders").id
        deadline = SYSTEM.monotonic() + 30
        while table_id not in capture.tables or capture.store.readable_ts(table_id) < now:
            assert SYSTEM.monotonic() < deadline
            SYSTEM.pause(0.05)
        report = verify(settings, "shop.orders", run)
        assert report.ts >= now
        assert (report.same, report.ranges, report.rows, report.store_rows) == (True, 3, 498, 498)
        earlier = verify(settings, "shop.orders", run, ts=loaded.ts)
        assert (earlier.same, earlier.rows) == (True, 499)
    finally:
        eventloop.run(capture.stop(flush=False))


def test_differences_are_found_and_named(settings: Settings) -> None:
    db = filled(settings)
    loaded = load_table(settings, "shop.orders", load_now)
    table_id = db.table_info("shop.orders").id
    plant(settings, table_id, loaded.ts)
    report = verify(settings, "shop.orders", run)
    assert (report.same, report.ranges, report.ranges_differing) == (False, 3, 1)
    assert (report.rows, report.store_rows, report.differing) == (499, 499, 3)
    named = {(each.difference, each.table_id, each.handle) for each in report.mismatches}
    assert named == {
        (Difference.UNEQUAL, table_id, encode_handle(150).hex()),
        (Difference.MISSING, table_id, encode_handle(151).hex()),
        (Difference.EXTRA, table_id, encode_handle(ABSENT).hex()),
    }
    assert "mismatches" not in repr(report), "keys are for who asks, not for logs"


def plant(settings: Settings, table_id: int, ts: int) -> None:
    """Put another object in the place of the middle range: one row changed, one lost, one made up."""
    ref = StorageRef(settings.capture.storage)
    storage, root = ref.open(), paths.table_root(table_id)
    log = ManifestLog.open(storage, root, writer="vandal")
    (victim,) = [each for each in log.state.objects.values() if each.key_min == encode_handle(100)]
    path = paths.object_path(root, "data", victim.id)
    with storage.open(path) as file:
        rows = pa.parquet.read_table(file).to_pylist()
    rows[50]["name"] = "n15O"
    rows[51] |= {"id": ABSENT, "_handle": encode_handle(ABSENT)}
    schema = schemas_in(log.state.facts)[-1]
    names = [*(column.name for column in schema.table.stored_columns), "_handle"]
    table = pa.Table.from_pylist(sorted(rows, key=lambda row: row["_handle"])).select(names)
    shown = pa.schema([(name, read_schema(storage, path).field(name).type) for name in names])
    (batch,) = table.cast(shown).combine_chunks().to_batches()
    scratch = settings.capture.data / "scratch"
    (made,) = write_objects([batch], schema, table_id, ts, storage=storage, scratch=scratch)
    log.commit(add=[made], remove=[Removal(id=victim.id, delete_ts=ts)])
    assert load(storage, root).flushed_ts == ts


def read_schema(storage: Any, path: str) -> pa.Schema:
    with storage.open(path) as file:
        return pa.parquet.read_schema(file)


def test_what_cannot_be_verified_is_said(settings: Settings) -> None:
    db = filled(settings)
    with pytest.raises(Invalid, match=r"no table 'shop\.nothing'; there are orders"):
        verify(settings, "shop.nothing", run)
    with pytest.raises(Invalid, match=r"there is no table shop\.orders on file://"):
        verify(settings, "shop.orders", run)
    loaded = load_table(settings, "shop.orders", load_now)
    with pytest.raises(Unavailable, match="can be read up to"):
        verify(settings, "shop.orders", run, ts=ClusterRef.of(settings).client().timestamp())
    with pytest.raises(Invalid, match="is in the future"):
        verify(settings, "shop.orders", run, ts=loaded.ts + (3600_000 << 18))
    assert db.table_info("shop.orders").name == "orders"
