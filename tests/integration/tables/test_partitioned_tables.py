"""Tables with partitions: rows in the right one, found by key and by index, and through schema changes."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import Invalid
from penstock.kv import Client
from penstock.tables import Catalog, DuplicateRow, Index, PartitionBy, Table
from penstock.tables.keys import record_range
from support.onlinestates import assert_entries_agree
from support.warmstore import WarmStore

COLUMNS = [("id", "bigint"), ("region", "varchar(4) not null"), ("n", "int")]
WAYS = {
    "range": PartitionBy.range("id", {"a": 10, "b": 20, "c": None}),
    "list": PartitionBy.list(["region"], {"west": ["us", "ca"], "east": ["jp", "cn"]}),
    "hash": PartitionBy.hash("id", 3),
    "key": PartitionBy.key(["region", "id"], 3),
}
KEYS = {"clustered": (["region", "id"], True), "nonclustered": (["region", "id"], False), "none": ([], True)}
REGIONS = ["us", "ca", "jp", "cn"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    data: Path = tmp_path_factory.mktemp("partitions") / "store"
    with WarmStore.start(data, stores=1) as store, Client.connect([store.pd_addr]) as connected:
        yield connected


@pytest.fixture
def db(client: Client) -> Iterator[Catalog]:
    catalog = Catalog(client)
    catalog.create_database("shop")
    yield catalog
    catalog.drop_database("shop")


def create(db: Catalog, way: str, key: str = "clustered") -> Table:
    columns, clustered = KEYS[key]
    db.create_table(
        "shop.t",
        COLUMNS,
        primary_key=columns,
        clustered=clustered,
        indexes=[Index("by_n", ["n"])],
        partition_by=WAYS[way],
    )
    return db.table("shop.t")


def row(number: int, region: str | None = None) -> dict[str, Any]:
    return {"id": number, "region": region or REGIONS[number % 4], "n": number % 5}


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda one: one["id"])


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("way", WAYS)
def test_rows_are_spread_and_found(db: Catalog, client: Client, way: str, key: str) -> None:
    table = create(db, way, key)
    rows = [row(number) for number in range(30)]
    keys = table.insert(rows)
    info = table.info
    assert len(set(info.physical_ids)) == len(info.physical_ids) == len(WAYS[way].parts)
    snapshot = client.snapshot(client.timestamp())
    sizes = [len(list(snapshot.iter(*record_range(number)))) for number in info.physical_ids]
    assert sum(sizes) == 30
    assert min(sizes) > 0
    assert by_id(table.to_arrow().to_pylist()) == rows
    assert [table.get(one) for one in keys] == rows
    assert by_id(table.find("by_n", 3)) == [one for one in rows if one["n"] == 3]
    scanned = [tuple(one.values()) for one in table.to_arrow().to_pylist()]
    assert table.to_arrow(limit=7).num_rows == 7
    if key == "clustered":
        breaks = sum((after[1], after[0]) < (one[1], one[0]) for one, after in pairwise(scanned))
        assert breaks < len(info.physical_ids)  # in order within each partition
        assert {one["region"] for one in table.to_arrow(start="jp", end="us").to_pylist()} == {"jp"}
    assert table.delete(keys[:10]) == 10
    assert table.get(keys[0]) is None
    assert_entries_agree(client, "shop.t")


def test_a_row_moves_when_its_partition_changes(db: Catalog, client: Client) -> None:
    table = create(db, "list", "none")
    (handle,) = table.insert([row(1, "us")])
    before = client.snapshot(client.timestamp())
    west, east = table.info.physical_ids
    assert list(before.iter(*record_range(west)))
    table.update([{"_tidb_rowid": handle, "region": "jp"}])
    after = client.snapshot(client.timestamp())
    assert not list(after.iter(*record_range(west)))
    assert list(after.iter(*record_range(east)))
    assert table.get(handle) == row(1, "jp")
    assert_entries_agree(client, "shop.t")
    with pytest.raises(Invalid, match="no partition of t takes a row"):
        table.insert([row(2, "de")])


@pytest.mark.parametrize("way", WAYS)
def test_random_changes_leave_the_rows_of_a_dict(db: Catalog, client: Client, way: str) -> None:
    table, chance = create(db, way, "nonclustered"), np.random.default_rng(7)
    model: dict[tuple[str, int], dict[str, Any]] = {}
    for _ in range(60):
        given = row(int(chance.integers(25)), str(chance.choice(REGIONS[:2])))
        given["n"] = int(chance.integers(4))
        key = (given["region"], given["id"])
        action = chance.choice(["insert", "upsert", "update", "delete"])
        if action == "insert" and key in model:
            with pytest.raises(DuplicateRow, match="primary key"):
                table.insert([given])
        elif action in {"insert", "upsert"}:
            (table.insert if action == "insert" else table.upsert)([given])
            model[key] = given
        elif action == "update":
            assert table.update([given]) == (key in model)
            model.update({key: given} if key in model else {})
        else:
            assert table.delete([key]) == (model.pop(key, None) is not None)
    found = {(one["region"], one["id"]): one for one in table.to_arrow().to_pylist()}
    assert found == model
    assert_entries_agree(client, "shop.t")


@pytest.mark.parametrize("way", WAYS)
def test_schema_changes_reach_every_partition(db: Catalog, client: Client, way: str) -> None:
    table = create(db, way)
    table.insert([row(number) for number in range(40)])
    db.add_index("shop.t", "all_of_it", ["n", "region", "id"], unique=True)
    assert by_id(table.find("all_of_it", 2)) == [row(n) for n in range(40) if n % 5 == 2]
    assert_entries_agree(client, "shop.t")
    with pytest.raises(Invalid, match="unique index only_n of t must have column"):
        db.add_index("shop.t", "only_n", ["n"], unique=True)
    db.modify_column("shop.t", "n", "varchar(9)")
    assert by_id(table.to_arrow().to_pylist()) == [{**row(n), "n": str(n % 5)} for n in range(40)]
    assert_entries_agree(client, "shop.t", garbage=True)
    with pytest.raises(Invalid, match="is used by the partitions"):
        db.rename_column("shop.t", "region" if way in {"list", "key"} else "id", "other")
    before = set(table.info.physical_ids)
    assert before.isdisjoint(db.truncate_table("shop.t").physical_ids)
    assert table.to_arrow().num_rows == 0
    table.insert([{**row(1), "n": "x"}])
    assert table.get(("ca", 1)) == {**row(1), "n": "x"}


def test_the_statement_of_a_partitioned_table_says_how_it_is_divided(db: Catalog) -> None:
    create(db, "range")
    query = db.history()[-1].query
    assert "PARTITION BY RANGE (`id`)" in query
    assert "PARTITION `c` VALUES LESS THAN (MAXVALUE)" in query
