"""Catalog and rows on the embedded store, in a process of its own."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from penstock.clock import physical_ms
from penstock.errors import Conflict, Invalid, KeyExists, Unavailable
from penstock.kv import Client
from penstock.tables import Catalog, DuplicateRow, Index
from penstock.tables.codec import rows
from penstock.tables.codec.ordered import encode_int
from penstock.tables.columns import SchemaState
from penstock.tables.ddl_jobs import DdlAction, SchemaDiff
from penstock.tables.keys import index_prefix, meta_hash_key, prefix_end, record_key, record_range
from penstock.tables.meta import MetaReader, MetaWriter
from support.warmstore import WarmStore


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    data: Path = tmp_path_factory.mktemp("tables") / "store"
    with WarmStore.start(data, stores=1) as store, Client.connect([store.pd_addr]) as connected:
        yield connected


@pytest.fixture
def db(client: Client, request: pytest.FixtureRequest) -> Iterator[Catalog]:
    catalog = Catalog(client)
    catalog.create_database("shop")
    yield catalog
    for database in catalog.databases():
        catalog.drop_database(database.name)
    for account in catalog.accounts():
        if account.id:
            catalog.drop_account(account.name)


ORDERS = [("id", "bigint primary key"), ("customer", "varchar(64) not null"), ("total", "decimal(12,2)")]


def keys_of(client: Client, lower: bytes, upper: bytes) -> list[bytes]:
    return [key for key, _ in client.snapshot(client.timestamp()).iter(lower, upper)]


@pytest.mark.parametrize(
    ("definition", "digits"), [("datetime", 0), ("timestamp(3) null", 3), ("datetime(6)", 6)]
)
def test_rows_of_before_read_a_default_of_now_as_the_time_of_the_change(
    client: Client, db: Catalog, definition: str, digits: int
) -> None:
    db.create_table("shop.t", [("id", "bigint primary key")])
    db.table("shop.t").insert([{"id": 1}])
    begun = physical_ms(client.timestamp()) // 1000
    now = f"current_timestamp({digits})" if digits else "current_timestamp"
    db.add_column("shop.t", "at", f"{definition} default {now}")
    db.table("shop.t").insert([{"id": 2}])
    old, new = (db.table("shop.t").get(number)["at"].replace(tzinfo=None) for number in (1, 2))
    assert begun <= old.replace(tzinfo=UTC).timestamp() <= new.replace(tzinfo=UTC).timestamp()
    assert new.replace(tzinfo=UTC).timestamp() * 1000 <= physical_ms(client.timestamp())
    (scanned,) = db.table("shop.t").scan(columns=["at"])
    assert scanned.column("at").to_pylist()[0].replace(tzinfo=None) == old


def test_rows_go_in_and_come_back(db: Catalog) -> None:
    db.create_table("shop.orders", ORDERS)
    orders = db.table("shop.orders")
    rows = [{"id": n, "customer": f"c{n}", "total": Decimal(n) / 4} for n in range(10)]
    assert orders.insert(rows) == list(range(10))
    assert orders.get(3) == {"id": 3, "customer": "c3", "total": Decimal("0.75")}
    assert orders.get(99) is None
    assert orders.update([{"id": 3, "total": None}, {"id": 99, "total": Decimal(1)}]) == 1
    assert orders.delete([4, 99]) == 1
    found = pa.Table.from_batches(list(orders.scan(batch_rows=3))).to_pylist()
    expected = [{**row, "total": None} if row["id"] == 3 else row for row in rows if row["id"] != 4]
    assert found == expected
    assert orders.to_arrow(columns=["id"], start=2, end=7, limit=3)["id"].to_pylist() == [2, 3, 5]


def test_a_taken_primary_key_is_refused_by_name(db: Catalog) -> None:
    db.create_table("shop.orders", ORDERS)
    orders = db.table("shop.orders")
    orders.insert([{"id": 1, "customer": "a"}])
    with pytest.raises(DuplicateRow, match=r"shop\.orders has a row with the same primary key"):
        orders.insert([{"id": 1, "customer": "b"}])
    orders.upsert([{"id": 1, "customer": "b"}, {"id": 2, "customer": "c"}, {"id": 2, "customer": "d"}])
    assert [row["customer"] for row in orders.to_arrow().to_pylist()] == ["b", "d"]


@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("key", [["region", "code"], ["code"]])
def test_indexes_follow_every_change(db: Catalog, client: Client, key: list[str], clustered: bool) -> None:
    columns = [("region", "varchar(8)"), ("code", "int"), ("email", "varchar(40)"), ("age", "int")]
    indexes = [Index("by_email", ["email"], unique=True), Index("by_age", ["age", "email(2)"])]
    info = db.create_table("shop.people", columns, primary_key=key, indexes=indexes, clustered=clustered)
    people = db.table("shop.people")
    ada = {"region": "eu", "code": 1, "email": "ada@x", "age": 36}
    bob = {"region": "us ", "code": 2, "email": "bob@x ", "age": 36}
    ann = {"region": "eu", "code": 3, "email": None, "age": None}
    zoe = {"region": "as", "code": 4, "email": None, "age": None}
    keys = people.insert([ada, bob, ann, zoe])
    assert [people.get(one) for one in keys] == [ada, bob, ann, zoe]
    assert people.find("by_email", "ada@x") == [ada]
    assert people.find("by_email", "bob@x") == [bob]
    assert people.find("by_age", 36) == [ada, bob]
    assert people.find("by_age", 36, "bob@x") == [bob]
    assert people.find("by_age", 36, "bo") == []
    with pytest.raises(DuplicateRow, match="unique index by_email"):
        people.insert([{**zoe, "code": 5, "email": "ada@x  "}])

    swapped = [{**ada, "email": "bob@x"}, {**bob, "email": "ada@x"}]
    assert people.update(swapped) == 2
    assert people.find("by_email", "ada@x")[0]["code"] == 2
    with pytest.raises(DuplicateRow):
        people.update([{**ann, "email": "ada@x"}])
    assert people.delete(keys) == 4
    prefix = index_prefix(info.id, 0)[:11]
    assert keys_of(client, prefix, prefix_end(prefix)) == []
    assert keys_of(client, *record_range(info.id)) == []


def test_rows_with_short_decimal_keys_are_those_that_tidb_writes(db: Catalog, client: Client) -> None:
    info = db.create_table(
        "shop.t", [("k", "decimal(5,2)"), ("v", "int")], primary_key=["k"], indexes=[Index("by_v", ["v"])]
    )
    with client.begin() as txn:  # TiDB's row: its common handles have nine bytes at least
        handle = bytes.fromhex("060502800c22000000")
        txn.put(record_key(info.id, handle), rows.encode({2: rows.int_cell(1)}))
        txn.put(index_prefix(info.id, info.indexes[1].id) + b"\x03" + encode_int(1) + handle, b"\0\x7d\x01")
    table = db.table("shop.t")
    assert table.get(Decimal("12.34")) == {"k": Decimal("12.34"), "v": 1}
    assert table.find("by_v", 1) == [{"k": Decimal("12.34"), "v": 1}]
    with pytest.raises(DuplicateRow):
        table.insert([{"k": Decimal("12.34"), "v": 2}])
    table.insert([{"k": Decimal("-0.01"), "v": 2}])
    assert table.update([{"k": Decimal("12.34"), "v": 3}, {"k": Decimal("-0.01"), "v": 4}]) == 2
    assert table.to_arrow()["v"].to_pylist() == [4, 3]
    assert table.to_arrow(start=Decimal("12.34"))["v"].to_pylist() == [3]
    assert table.to_arrow(end=Decimal("12.34"))["v"].to_pylist() == [4]
    assert table.delete([Decimal("12.34"), Decimal("-0.01")]) == 2
    assert keys_of(client, *record_range(info.id)) == []
    prefix = index_prefix(info.id, info.indexes[1].id)
    assert keys_of(client, prefix, prefix_end(prefix)) == []


def test_a_transaction_of_the_callers_holds_several_tables_together(db: Catalog, client: Client) -> None:
    db.create_table("shop.orders", ORDERS)
    db.create_table("shop.stock", [("item", "varchar(20) primary key"), ("left", "int")])
    orders, stock = db.table("shop.orders"), db.table("shop.stock")
    stock.insert([{"item": "pen", "left": 5}])
    before = client.timestamp()
    with db.begin() as txn:
        orders.insert([{"id": 1, "customer": "a"}], txn=txn)
        row = stock.get("pen", txn=txn)
        assert row is not None
        stock.update([{"item": "pen", "left": row["left"] - 1}], txn=txn)
        assert orders.get(1, txn=txn) is not None
        assert orders.get(1) is None
    assert stock.get("pen") == {"item": "pen", "left": 4}
    assert stock.get("pen", at_ts=before) == {"item": "pen", "left": 5}
    assert orders.to_arrow(at_ts=before).num_rows == 0

    given_up = client.begin()
    orders.delete([1], txn=given_up)
    assert orders.get(1, txn=given_up) is None
    given_up.rollback()
    assert orders.get(1) is not None

    with pytest.raises(KeyExists), client.begin() as txn:
        orders.insert([{"id": 1, "customer": "again"}], txn=txn)


def test_a_write_that_fails_leaves_nothing_in_the_callers_transaction(db: Catalog) -> None:
    db.create_table("shop.orders", ORDERS)
    orders = db.table("shop.orders")
    with db.begin() as txn:
        with pytest.raises(Invalid, match="customer"):
            orders.insert([{"id": 1, "customer": "a"}, {"id": 2, "customer": None}], txn=txn)
        orders.insert([{"id": 3, "customer": "c"}], txn=txn)
    assert orders.to_arrow()["id"].to_pylist() == [3]


def test_numbers_are_given_to_rows_that_bring_none(db: Catalog) -> None:
    db.create_table("shop.log", [("id", "bigint primary key auto_increment"), ("line", "text")])
    log = db.table("shop.log")
    first, second = log.insert([{"line": "a"}, {"line": "b"}])
    assert second == first + 1
    assert log.insert([{"id": 50_000, "line": "c"}]) == [50_000]
    assert log.insert([{"line": "d"}])[0] > 50_000
    other = Catalog(db._client).table("shop.log")
    assert other.insert([{"line": "e"}])[0] > 50_000
    assert log.to_arrow().num_rows == 5


@pytest.mark.parametrize("clustered", [True, False])
def test_a_table_with_auto_id_cache_1_counts_where_tidb_counts(
    db: Catalog, client: Client, clustered: bool
) -> None:
    info = db.create_table(
        "shop.t", [("id", "bigint auto_increment"), ("v", "int")], primary_key=["id"], clustered=clustered
    )
    database = db.schema().database("shop")
    hash_name = f"DB:{database.id}".encode()
    counters = {name: meta_hash_key(hash_name, f"{name}:{info.id}".encode()) for name in ("TID", "IID")}
    with client.begin() as txn:
        cached = replace(info, version=5, extra={**info.extra, "auto_id_cache": 1})
        MetaWriter(txn).put_table(database.id, cached)
        MetaWriter(txn).next_schema_version()
        txn.put(counters["IID"], b"4000")  # what TiDB has given out
    table = Catalog(client).table("shop.t")
    assert table.insert([{"v": 1}, {"id": 9000, "v": 2}, {"v": 3}]) == [9001, 9000, 9002]
    assert table.insert([{"v": 4}]) == [9003]
    snapshot = client.snapshot(client.timestamp())
    assert int(snapshot.get(counters["IID"]) or 0) >= 9003
    assert (snapshot.get(counters["TID"]) is None) == clustered
    db.drop_table("shop.t")
    after = client.snapshot(client.timestamp())
    assert [after.get(key) for key in counters.values()] == [None, None]


def test_rows_without_a_primary_key_are_named_by_their_row_id(db: Catalog) -> None:
    db.create_table("shop.events", [("what", "text")], indexes=[Index("by_what", ["what(3)"])])
    events = db.table("shop.events")
    one, two = events.insert([{"what": "rain"}, {"what": "rainbow"}])
    assert events.get(one) == {"what": "rain"}
    assert events.find("by_what", "rainbow") == [{"what": "rainbow"}]
    assert events.update([{"_tidb_rowid": two, "what": "snow"}]) == 1
    scanned = events.to_arrow(row_ids=True).to_pylist()
    assert scanned == [{"what": "rain", "_tidb_rowid": one}, {"what": "snow", "_tidb_rowid": two}]
    assert events.delete([one]) == 1


ALL_TYPES = {
    "i": ("tinyint", -7),
    "u": ("bigint unsigned", (1 << 64) - 1),
    "f": ("float", 0.5),
    "d": ("double", -1e300),
    "n": ("decimal(30,10)", Decimal("-12345678901234567890.0123456789")),
    "c": ("char(5)", "ab"),
    "v": ("varchar(20)", "naïve ☃"),
    "b": ("varbinary(9)", b"\x00\xff"),
    "bits": ("bit(12)", 0xABC),
    "day": ("date", date(2024, 2, 29)),
    "dt": ("datetime(3)", datetime(1999, 12, 31, 23, 59, 59, 123_000)),
    "ts": ("timestamp(6)", datetime(2038, 1, 19, 3, 14, 8, 1, tzinfo=UTC)),
    "t": ("time(6)", -timedelta(hours=800, microseconds=1)),
    "y": ("year", 2024),
    "e": ("enum('small','large')", "large"),
    "s": ("set('x','y')", "x,y"),
    "j": ("json", '{"a": [1, 2.5, null]}'),
    "vec": ("vector(2)", [1.5, -2.0]),
}


def test_every_type_and_null_goes_round(db: Catalog) -> None:
    columns = [("id", "int primary key"), *((name, text) for name, (text, _) in ALL_TYPES.items())]
    db.create_table("shop.all", columns)
    rows: list[dict[str, Any]] = [
        {"id": 1, **{name: value for name, (_, value) in ALL_TYPES.items()}},
        {"id": 2, **dict.fromkeys(ALL_TYPES)},
    ]
    table = db.table("shop.all")
    table.insert(rows)
    assert [table.get(1), table.get(2)] == rows
    assert table.to_arrow().to_pylist() == rows


def test_arrow_tables_are_inserted_in_bulk(db: Catalog) -> None:
    db.create_table("shop.orders", ORDERS)
    orders = db.table("shop.orders")
    count = 3_000
    table = pa.table(
        {
            "id": pa.array(range(count), pa.int32()),
            "customer": pa.array([f"c{n}" for n in range(count)]),
            "total": pa.array([None if n % 3 else Decimal(n) for n in range(count)], pa.decimal128(6, 0)),
        }
    )
    assert orders.insert(table) == list(range(count))
    assert orders.to_arrow().to_pylist() == table.to_pylist()


def test_rows_are_written_while_another_thread_imports_pandas(
    db: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.create_table("shop.orders", ORDERS)
    monkeypatch.setitem(sys.modules, "pandas", ModuleType("pandas"))  # as it is in the middle of its import
    assert db.table("shop.orders").insert([{"id": 1, "customer": "a"}]) == [1]


@pytest.mark.parametrize("shape", ["table", "batch", "frame"])
def test_every_write_takes_columns(db: Catalog, shape: str) -> None:
    def columns(rows: list[dict[str, Any]]) -> Any:
        table = pa.Table.from_pylist(rows)
        return {"table": lambda: table, "batch": lambda: table.to_batches()[0], "frame": table.to_pandas}[
            shape
        ]()

    db.create_table("shop.orders", ORDERS, indexes=[Index("by_customer", ["customer"], unique=True)])
    orders = db.table("shop.orders")
    rows = [{"id": n, "customer": f"c{n}", "total": Decimal(n)} for n in range(5)]
    assert orders.insert(columns(rows)) == [0, 1, 2, 3, 4]
    assert orders.upsert(
        columns([{**rows[4], "customer": "new"}, {**rows[0], "id": 5, "customer": "c5"}])
    ) == [4, 5]
    assert orders.update(columns([{"id": 1, "customer": "one"}, {"id": 9, "customer": "none"}])) == 1
    assert orders.delete(columns([{"id": 2}, {"id": 9}])) == 1
    assert [row["customer"] for row in orders.to_arrow().to_pylist()] == ["c0", "one", "c3", "new", "c5"]
    assert [orders.find("by_customer", name)[0]["id"] for name in ("one", "new", "c5")] == [1, 4, 5]
    assert not orders.find("by_customer", "c2")
    with pytest.raises(DuplicateRow, match="values in unique index by_customer") as refused:
        orders.insert(columns([{"id": 8, "customer": "secret"}, {"id": 9, "customer": "secret"}]))
    assert "secret" not in str(refused.value)


def test_a_pessimistic_transaction_locks_a_batch_by_one_call(db: Catalog) -> None:
    db.create_table("shop.orders", ORDERS)
    orders = db.table("shop.orders")
    orders.insert([{"id": 1, "customer": "a"}])
    with db.begin(pessimistic=True) as txn:
        orders.insert([{"id": n, "customer": "b"} for n in (2, 3)], txn=txn)
        assert orders.delete([1], txn=txn) == 1
        orders.insert([{"id": 1, "customer": "c"}], txn=txn)
        with pytest.raises(KeyExists):
            orders.insert([{"id": n, "customer": "d"} for n in (4, 3)], txn=txn)
    assert [row["customer"] for row in orders.to_arrow().to_pylist()] == ["c", "b", "b"]


def test_schema_changes_leave_rows_readable(db: Catalog) -> None:
    db.create_table("shop.orders", ORDERS)
    orders = db.table("shop.orders")
    orders.insert([{"id": 1, "customer": "a", "total": Decimal("1.50")}])
    db.add_column("shop.orders", "state", "enum('new','paid') not null default 'new'", after="id")
    db.add_column("shop.orders", "note", "varchar(10)")
    db.modify_column("shop.orders", "total", "decimal(20,4)")
    db.modify_column("shop.orders", "note", "varchar(100) default 'none'")
    assert orders.get(1) == {
        "id": 1,
        "state": "new",
        "customer": "a",
        "total": Decimal("1.5000"),
        "note": None,
    }
    orders.insert([{"id": 2, "customer": "b", "note": "x" * 50}])
    db.drop_column("shop.orders", "customer")
    assert orders.to_arrow().to_pylist() == [
        {"id": 1, "state": "new", "total": Decimal("1.5000"), "note": None},
        {"id": 2, "state": "new", "total": None, "note": "x" * 50},
    ]


def test_a_schema_is_read_as_of_a_timestamp(db: Catalog, client: Client) -> None:
    db.create_table("shop.orders", ORDERS)
    db.table("shop.orders").insert([{"id": 1, "customer": "a"}])
    then = client.timestamp()
    db.drop_column("shop.orders", "total")
    db.rename_table("shop.orders", "shop.sales")
    assert [column.name for column in db.table_info("shop.orders", then).columns] == [
        "id",
        "customer",
        "total",
    ]
    assert db.table_info("shop.sales").columns[-1].name == "customer"
    with pytest.raises(Invalid, match=r"no table 'shop\.orders'; there are sales"):
        db.table("shop.orders")
    assert db.table("shop.sales").get(1) == {"id": 1, "customer": "a"}
    with pytest.raises(Invalid, match=r"shop\.sales"):
        db.table("shop.sales").get(1, at_ts=then)


def test_a_truncated_table_is_empty_under_a_new_id(db: Catalog) -> None:
    info = db.create_table("shop.orders", ORDERS)
    orders = db.table("shop.orders")
    orders.insert([{"id": 1, "customer": "a"}])
    assert db.truncate_table("shop.orders").id > info.id
    assert orders.to_arrow().num_rows == 0


def test_rows_are_not_committed_into_a_table_that_is_gone(db: Catalog) -> None:
    db.create_table("shop.orders", ORDERS)
    orders = db.table("shop.orders")
    late = db.begin()
    orders.insert([{"id": 1, "customer": "a"}], txn=late)
    db.truncate_table("shop.orders")
    with pytest.raises(Conflict, match="schema changed"):
        late.commit()
    assert orders.to_arrow().num_rows == 0
    with db.begin() as txn:
        orders.insert([{"id": 1, "customer": "a"}], txn=txn)
        db.add_column("shop.orders", "later", "int")
    assert orders.get(1) == {"id": 1, "customer": "a", "total": None, "later": None}


def test_a_renamed_table_keeps_counting(db: Catalog) -> None:
    db.create_database("archive")
    db.create_table("shop.log", [("id", "bigint primary key auto_increment"), ("line", "text")])
    (first,) = db.table("shop.log").insert([{"line": "a"}])
    db.rename_table("shop.log", "archive.log")
    (second,) = Catalog(db._client).table("archive.log").insert([{"line": "b"}])
    assert second > first


def test_every_change_is_a_finished_job(db: Catalog, client: Client) -> None:
    seen = len(db.history())
    version = db.schema().version
    table = db.create_table("shop.orders", ORDERS)
    db.add_column("shop.orders", "note", "varchar(10)")
    new = db.truncate_table("shop.orders")
    db.rename_table("shop.orders", "shop.sales")
    db.drop_table("shop.sales")
    jobs = db.history()[seen:]
    assert [job.type for job in jobs] == [
        DdlAction.CREATE_TABLE,
        DdlAction.ADD_COLUMN,
        DdlAction.TRUNCATE_TABLE,
        DdlAction.RENAME_TABLE,
        DdlAction.DROP_TABLE,
    ]
    assert [job.table_id for job in jobs] == [table.id, table.id, table.id, new.id, new.id]
    assert jobs[1].query == "ALTER TABLE `orders` ADD COLUMN `note` varchar(10)"
    assert jobs[1].table is not None
    assert jobs[1].table.columns[-1].name == "note"
    assert [job.schema_version for job in jobs] == list(range(version + 1, version + 6))
    assert all(job.succeeded and job.finished_ts for job in jobs)
    diff = MetaReader(client.snapshot(client.timestamp())).diff(version + 3)
    assert diff is not None
    assert (diff.type, diff.table_id, diff.old_table_id) == (DdlAction.TRUNCATE_TABLE, new.id, table.id)


def test_accounts_own_databases(db: Catalog) -> None:
    assert [account.name for account in db.accounts()] == ["sys"]
    acme = db.create_account("acme")
    assert [account.name for account in db.accounts()] == ["acme", "sys"]
    db.create_database("theirs", account="acme")
    assert db.account_of("theirs") == acme
    assert db.account_of("shop").name == "sys"
    with pytest.raises(Invalid, match="owns database theirs"):
        db.drop_account("acme")
    db.drop_database("theirs")
    db.drop_account("acme")
    with pytest.raises(Invalid, match="no account 'acme'"):
        db.create_database("theirs", account="acme")


def test_tables_that_cannot_be_written_whole_are_refused(db: Catalog, client: Client) -> None:
    info = db.create_table("shop.orders", ORDERS, indexes=[Index("by_customer", ["customer"])])
    database = db.schema().database("shop")
    generated = replace(info.columns[2], generated_expr="`id` + 1", generated_stored=True)
    changing = replace(info.indexes[0], state=SchemaState.WRITE_ONLY, extra={"backfill_state": 4})
    refused = {
        "generated": (Invalid, replace(info, columns=(*info.columns[:2], generated))),
        "being changed": (Unavailable, replace(info, indexes=(changing,))),
        "partitioned": (Invalid, replace(info, extra={"partition": {"enable": True, "definitions": []}})),
    }
    for message, (kind, table) in refused.items():
        with client.begin() as txn:
            MetaWriter(txn).put_table(database.id, table)
            MetaWriter(txn).next_schema_version()
        with pytest.raises(kind, match=message):
            db.table("shop.orders").insert([{"id": 1, "customer": "a"}])


def test_mistakes_are_answered_with_what_to_do(db: Catalog) -> None:
    db.create_table("shop.orders", ORDERS)
    db.create_table("shop.people", [("name", "varchar(9) primary key")])
    orders = db.table("shop.orders")
    mistakes = {
        "already exists": lambda: db.create_table("shop.orders", ORDERS),
        "no database 'nope'": lambda: db.create_table("nope.orders", ORDERS),
        "must be written database.table": lambda: db.table("orders"),
        "has no column 'nope'": lambda: orders.insert([{"id": 1, "nope": 2}]),
        "NOT NULL": lambda: orders.insert([{"id": 1}]),
        "has no id, part of its primary key": lambda: orders.update([{"customer": "x"}]),
        "does not fit": lambda: orders.insert([{"id": 1, "customer": "x" * 65}]),
        "takes an int": lambda: orders.get("x"),
        "has no index": lambda: orders.find("nope", 1),
        "part of the primary key": lambda: db.drop_column("shop.orders", "id"),
        "cannot be converted": lambda: db.modify_column("shop.orders", "customer", "vector(3)"),
        "is a key": lambda: db.modify_column("shop.orders", "id", "int"),
        "is the primary key": lambda: db.drop_index("shop.people", "primary"),
        "txn or at_ts": lambda: orders.get(1, txn=db.begin(), at_ts=1),
    }
    for message, mistake in mistakes.items():
        with pytest.raises(Invalid, match=message):
            mistake()


def test_concurrent_changes_of_the_schema_all_happen(db: Catalog, client: Client) -> None:
    catalogs = [Catalog(client) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda n: catalogs[n % 4].create_table(f"shop.t{n}", ORDERS), range(8)))
    assert len({table.id for table in made}) == 8
    assert len(db.tables("shop")) == 8


def test_a_version_that_tidb_took_ahead_of_its_change_does_not_hide_the_change(
    db: Catalog, client: Client
) -> None:
    info = db.create_table("shop.orders", ORDERS)
    database = db.schema().database("shop")
    with client.begin() as txn:
        version = MetaWriter(txn).next_schema_version()
    assert db.table_info("shop.orders").comment == ""
    with client.begin() as txn:
        MetaWriter(txn).put_table(database.id, replace(info, comment="changed"))
        MetaWriter(txn).put_diff(SchemaDiff(version, DdlAction.MODIFY_COLUMN, database.id, info.id))
    assert db.table_info("shop.orders").comment == "changed"
