"""Tables read by region ranges, against the rows that a plain scan gives."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import eventloop
from penstock.errors import Invalid, Unavailable
from penstock.eventstore.sides import HANDLE
from penstock.kv import Client
from penstock.kv.cluster_ref import ClusterRef
from penstock.settings import KvSettings
from penstock.tables import Catalog
from penstock.tables.keys import encode_handle, record_key
from penstock.tables.kv_scan import HANDLE_COLUMN, KvScan, KvScanPartition, plan_scan, ranges_of
from penstock.tables.meta import MetaWriter
from penstock.tables.records import to_record, value_of
from penstock.testing.store import Admin
from support.warmstore import WarmStore

ORDERS = [("id", "bigint primary key"), ("customer", "varchar(64) not null"), ("total", "decimal(12,2)")]
ROWS = [{"id": n, "customer": f"c{n}", "total": Decimal(n) / 4} for n in range(1000)]


def plan_kv_scan(
    cluster: ClusterRef, name: str, *, handle_from: bytes = b"", handle_to: bytes = b"", **wanted: Any
) -> tuple[KvScan, list[KvScanPartition]]:
    scan = plan_scan(cluster, name, **wanted)
    return scan, ranges_of(cluster.client(), scan, handle_from=handle_from, handle_to=handle_to)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmStore]:
    with WarmStore.start(tmp_path_factory.mktemp("kvscan") / "store", stores=2) as running:
        yield running


@pytest.fixture
def cluster(store: WarmStore) -> Iterator[ClusterRef]:
    ref = ClusterRef((store.pd_addr,))
    yield ref
    ref.close()


@pytest.fixture
def db(cluster: ClusterRef) -> Iterator[Catalog]:
    catalog = Catalog(cluster.client())
    catalog.create_database("shop")
    yield catalog
    catalog.drop_database("shop")


def split(store: WarmStore, keys: list[bytes]) -> None:
    async def cut() -> None:
        admin = Admin(store.pd_addr)
        await admin.split(keys)
        await admin.close()

    eventloop.run(cut())


def rows_of(parts: list[KvScanPartition]) -> list[dict[str, Any]]:
    shipped = pickle.loads(pickle.dumps(parts))
    return [row for part in shipped for batch in part.read() for row in batch.to_pylist()]


def test_ranges_by_region_give_what_a_scan_gives(store: WarmStore, cluster: ClusterRef, db: Catalog) -> None:
    table_id = db.create_table("shop.orders", ORDERS).id
    db.table("shop.orders").insert(ROWS)
    split(store, [record_key(table_id, n) for n in (100, 500, 501)])
    scan, parts = plan_kv_scan(cluster, "shop.orders")
    assert [part.handles for part in parts] == [
        (b"", encode_handle(100)),
        (encode_handle(100), encode_handle(500)),
        (encode_handle(500), encode_handle(501)),
        (encode_handle(501), b""),
    ]
    assert rows_of(parts) == ROWS
    assert [sum(batch.num_rows for batch in part.read()) for part in parts] == [100, 400, 1, 499]
    batches = [batch for part in parts for batch in part.read()]
    assert pa.Table.from_batches(batches, scan.schema) == db.table("shop.orders").to_arrow(at_ts=scan.ts)


def test_regions_that_split_and_merge_after_planning_change_nothing(
    store: WarmStore, cluster: ClusterRef, db: Catalog
) -> None:
    table_id = db.create_table("shop.orders", ORDERS).id
    db.table("shop.orders").insert(ROWS)
    split(store, [record_key(table_id, 600)])
    cluster = replace(cluster, kv=KvSettings(scan_page_rows=64))
    _, parts = plan_kv_scan(cluster, "shop.orders")
    db.table("shop.orders").insert([{"id": 5000, "customer": "late"}])
    reading = parts[0].read()
    found = next(reading).to_pylist()
    split(store, [record_key(table_id, n) for n in (300, 599)])
    found += [row for batch in reading for row in batch.to_pylist()]
    assert found == ROWS[:600]
    assert rows_of(parts) == ROWS
    cluster.close()


def test_columns_and_handles_are_pushed_down(
    store: WarmStore, cluster: ClusterRef, db: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_id = db.create_table("shop.orders", ORDERS).id
    db.table("shop.orders").insert(ROWS)
    split(store, [record_key(table_id, n) for n in (100, 500, 900)])
    bounds = {"handle_from": encode_handle(150), "handle_to": encode_handle(450)}
    scan, parts = plan_kv_scan(cluster, "shop.orders", columns=["TOTAL", "id"], **bounds)
    assert [part.handles for part in parts] == [(encode_handle(150), encode_handle(450))]
    assert scan.schema.names == ["total", "id"]
    assert rows_of(parts) == [{"total": row["total"], "id": row["id"]} for row in ROWS[150:450]]
    scan, parts = plan_kv_scan(cluster, "shop.orders", columns=["id", HANDLE_COLUMN])
    assert scan.key_only
    travelled: list[bytes] = []
    decode = type(scan).decode

    def watched(self: Any, page: Any) -> pa.RecordBatch:
        travelled.extend(value for _, value in page)
        return decode(self, page)

    monkeypatch.setattr(type(scan), "decode", watched)
    assert rows_of(parts) == [{"id": n, HANDLE_COLUMN: encode_handle(n)} for n in range(1000)]
    assert set(travelled) == {b""}
    assert HANDLE_COLUMN == HANDLE


def test_common_handles_and_row_ids_are_read_too(cluster: ClusterRef, db: Catalog) -> None:
    columns = [("region", "varbinary(8)"), ("n", "int unsigned"), ("note", "varchar(20)")]
    db.create_table("shop.pairs", columns, primary_key=["region", "n"])
    db.table("shop.pairs").insert([{"region": b"eu", "n": n, "note": f"x{n}"} for n in range(3)])
    scan, parts = plan_kv_scan(cluster, "shop.pairs", columns=["n", "region"])
    assert scan.key_only
    assert rows_of(parts) == [{"n": n, "region": b"eu"} for n in range(3)]
    db.create_table("shop.log", [("line", "varchar(20)")])
    db.table("shop.log").insert([{"line": f"l{n}"} for n in range(3)])
    scan, parts = plan_kv_scan(cluster, "shop.log", columns=["line"])
    assert not scan.key_only
    assert rows_of(parts) == [{"line": f"l{n}"} for n in range(3)]


def test_every_partition_of_a_table_is_read(cluster: ClusterRef, db: Catalog) -> None:
    client = cluster.client()
    table = db.create_table("shop.events", [("id", "bigint primary key"), ("name", "varchar(9)")])
    place = db.schema().place("shop.events")
    ids = [table.id + 1_000_000, table.id + 1_000_001]
    partition = {"enable": True, "definitions": [{"id": each} for each in ids]}
    parted = replace(table, extra={**table.extra, "partition": partition})
    with client.begin() as txn:
        writer = MetaWriter(txn)
        writer.put_table(place.database.id, parted)
        writer.next_schema_version()
        for nth, physical in enumerate(ids):
            row = to_record(parted, {"id": nth, "name": f"n{nth}"}, start_ts=1)
            txn.put(record_key(physical, nth), value_of(parted, row))
    _, parts = plan_kv_scan(cluster, "shop.events")
    assert [part.physical_id for part in parts] == ids
    assert rows_of(parts) == [{"id": 0, "name": "n0"}, {"id": 1, "name": "n1"}]


def test_the_schema_of_the_timestamp_is_used(cluster: ClusterRef, db: Catalog) -> None:
    db.create_table("shop.orders", ORDERS)
    db.table("shop.orders").insert(ROWS[:2])
    before = cluster.client().timestamp()
    db.drop_column("shop.orders", "customer")
    assert plan_kv_scan(cluster, "shop.orders", ts=before)[0].schema.names == ["id", "customer", "total"]
    assert plan_kv_scan(cluster, "shop.orders")[0].schema.names == ["id", "total"]


def test_what_people_get_wrong_is_said_in_one_line(cluster: ClusterRef, db: Catalog) -> None:
    db.create_table("shop.orders", ORDERS)
    now = cluster.client().timestamp()
    with pytest.raises(Invalid, match=r"no table 'shop\.order'; there are orders"):
        plan_kv_scan(cluster, "shop.order")
    with pytest.raises(Invalid, match="no column 'tottal'; it has id, customer, total"):
        plan_kv_scan(cluster, "shop.orders", columns=["tottal"])
    with pytest.raises(Invalid, match="is in the future"):
        plan_kv_scan(cluster, "shop.orders", ts=now + (3600_000 << 18))
    with pytest.raises(Unavailable, match=r"no placement driver answers.*check pd_addrs"):
        plan_kv_scan(ClusterRef(("127.0.0.1:1",), kv=KvSettings(pd_timeout_ms=500)), "shop.orders")


def test_a_timestamp_that_was_collected_is_refused(tmp_path: Path) -> None:
    with WarmStore.start(tmp_path / "store", stores=1) as store:
        cluster = ClusterRef((store.pd_addr,), kv=KvSettings(safe_point_refresh_ms=1))
        catalog = Catalog(cluster.client())
        catalog.create_database("shop")
        catalog.create_table("shop.orders", ORDERS)
        old = cluster.client().timestamp()
        with Client.connect([store.pd_addr], settings=KvSettings(safe_point_refresh_ms=1)) as collector:
            collector.gc(collector.timestamp())
        with pytest.raises(Invalid, match="older than the safe point of garbage collection"):
            plan_kv_scan(cluster, "shop.orders", ts=old)
        cluster.close()
