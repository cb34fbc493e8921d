"""Net changes: for each key its last change, whatever batches it came in."""

import random  # noqa: TID251 - seeded by the test
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from penstock.changes.columns import choose_columns, key_names, with_commit_ts
from penstock.changes.net_change import last_changes
from penstock.columnar.spill_queue import SpillTable
from penstock.errors import Unavailable
from penstock.jobs.consumer import iter_batches, read_net_changes
from penstock.tables.define import define_table
from penstock.testing.consumers import SourceModel
from support.itemtables import item_table


def net_of(model, from_ts, scratch, **options):
    return read_net_changes(model.retriever(from_ts, model.ts, **options), scratch)


def test_the_last_change_of_a_key_wins_across_batches(tmp_path):
    model = SourceModel(item_table())
    start = model.commit({"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": "c"})
    model.commit({"id": 1, "name": "d"})
    model.commit(delete=[(2,), (3,)])
    model.commit({"id": 3, "name": "e"}, delete=[(1,)])
    net = net_of(model, start, tmp_path, batch_rows=1)
    assert net.upserts.select(["id", "name"]).to_pylist() == [{"id": 3, "name": "e"}]
    assert net.deletes.column("id").to_pylist() == [2, 1]
    assert sorted(net.changed_keys.column("id").to_pylist()) == [1, 2, 3]
    assert not net.empty


def test_a_delete_makes_room_for_a_row_of_the_same_commit(tmp_path):
    model = SourceModel(item_table())
    start = model.commit({"id": 1, "name": "a"})
    model.commit({"id": 1, "name": "b"})
    net = net_of(model, start, tmp_path, ends_of_updates=True, batch_rows=1)
    assert net.upserts.column("name").to_pylist() == ["b"]
    assert not net.deletes.num_rows


def test_batches_may_come_in_any_order_of_time():
    schema = with_commit_ts(pa.schema([("id", pa.int64())]))
    upserts = pa.table({"id": [1, 2, 1], "_commit_ts": [9, 5, 3]}, schema=schema)
    deletes = pa.table({"id": [1, 2], "_commit_ts": [7, 6]}, schema=schema)
    kept_deletes, kept_upserts = last_changes((deletes, upserts), ["id"])
    assert kept_deletes.tolist() == [False, True]
    assert kept_upserts.tolist() == [True, False, False]


def test_a_snapshot_is_collected_as_it_is(tmp_path):
    model = SourceModel(item_table("no key"))
    model.churn(random.Random(3))
    net = net_of(model, 0, tmp_path)
    assert set(net.upserts.column("_handle").to_pylist()) == {key[0] for key in model.at(model.ts)}
    assert not net.deletes.num_rows
    assert net.deletes.schema.names == ["_handle", "_commit_ts"]


def test_an_iteration_without_changes_is_empty(tmp_path):
    model = SourceModel(item_table("composite"))
    net = net_of(model, model.ts - 1, tmp_path)
    assert net.empty
    assert net.upserts.schema.names == ["part", "id", "name", "_commit_ts"]


def test_many_rows_go_to_a_file_that_nobody_has_to_remove(tmp_path):
    model = SourceModel(item_table("composite"))
    start = model.churn(random.Random(1))
    model.churn(random.Random(2), commits=50)
    data = model.retriever(start, model.ts, batch_rows=7)
    mapped = read_net_changes(data.again(), tmp_path / "new", memory_bytes=64)
    plain = read_net_changes(data, tmp_path)
    assert mapped.upserts.equals(plain.upserts)
    assert mapped.deletes.equals(plain.deletes)
    assert not list((tmp_path / "new").iterdir())


def test_a_failure_leaves_no_file_behind(tmp_path):
    model = SourceModel(item_table())
    model.churn(random.Random(1), commits=30)
    data = model.retriever(0, model.ts, batch_rows=5)

    def fault(_name):
        if data.given == 3:
            raise Unavailable("the source is away")

    data.fault = fault
    with pytest.raises(Unavailable):
        read_net_changes(data, tmp_path, memory_bytes=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "cells"),
    [
        ("decimal(20,4)", [Decimal("1.5"), Decimal("-1.5")]),
        ("decimal(60,10)", ["1.5000000000", "2.5000000000"]),
        ("varbinary(8)", [b"", b"\x00"]),
        ("varchar(8)", ["", "ü"]),
        ("bigint unsigned", [Decimal((1 << 64) - 1), Decimal(0)]),
        ("datetime(6)", [0, 1]),
        ("date", [0, 1]),
        ("time", [-1, 1]),
        ("double", [0.5, -0.5]),
        ("tinyint", [-1, 1]),
    ],
)
@pytest.mark.parametrize("memory_bytes", [1, 1 << 30])
def test_keys_of_every_type_are_told_apart(kind, cells, memory_bytes):
    table = define_table("items", [("key", f"{kind} not null"), ("name", "text")], primary_key=["key"])
    schema = with_commit_ts(choose_columns(table, []))
    kinds = pa.array(cells, schema.field("key").type)
    changes = pa.table([kinds.take([0, 1, 0, 1]), pa.array([1, 1, 2, 3])], schema=schema)
    _, kept = last_changes((changes.slice(0, 0), changes), key_names(table), memory_bytes=memory_bytes)
    assert kept.tolist() == [False, False, True, True]


def test_keys_are_equal_only_when_all_of_their_columns_are():
    schema = with_commit_ts(pa.schema([("a", pa.string()), ("b", pa.int64()), ("c", pa.string())]))
    rows = [("x", 1, "yz"), ("x", 1, "y"), ("xy", 1, "z"), ("x", 2, "y"), ("x", 1, "y")]
    table = pa.table([*zip(*rows, strict=True), range(5)], schema=schema)
    kept = last_changes((table.slice(0, 0), table), ["a", "b", "c"])[1]
    assert kept.tolist() == [True, False, True, True, True]


def test_the_parts_of_keys_that_are_compared_together_are_all_keys():
    mix = np.random.default_rng(5)
    schema = with_commit_ts(pa.schema([("id", pa.int64())]))
    upserts = pa.table([mix.integers(0, 300, 1000), np.arange(1000)], schema=schema)
    deletes = pa.table([mix.integers(0, 300, 500), np.arange(0, 1000, 2)], schema=schema)
    whole = last_changes((deletes, upserts), ["id"])
    parts = last_changes((deletes, upserts), ["id"], memory_bytes=1000)
    assert all(np.array_equal(one, other) for one, other in zip(whole, parts, strict=True))
    assert sum(mask.sum() for mask in whole) == len(
        set(upserts["id"].to_pylist()) | set(deletes["id"].to_pylist())
    )


def test_every_ends_with_the_batch_that_says_so():
    model = SourceModel(item_table())
    model.churn(random.Random(1))
    data = model.retriever(0, model.ts, batch_rows=4)
    batches = list(iter_batches(data))
    assert [batch.no_more_data for batch in batches] == [False] * (len(data.batches) - 1) + [True]


def test_a_spool_gives_its_rows_in_order_from_memory_and_from_disk(tmp_path):
    schema = pa.schema([("n", pa.int64())])
    for memory_bytes, spilled in ((10**6, False), (100, True)):
        spool = SpillTable(schema, tmp_path / "rows.arrow", memory_bytes=memory_bytes)
        for start in range(0, 100, 10):
            spool.add(pa.record_batch([pa.array(range(start, start + 10))], schema=schema))
        assert spool.spilled is spilled
        assert spool.finish().column("n").to_pylist() == list(range(100))
        spool.discard()
        assert not list(tmp_path.iterdir())
