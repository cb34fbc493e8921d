"""Snapshots: what they read, what they leave unread, how they are divided, and how they fail."""

import pickle
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.clock import SYSTEM
from penstock.errors import Corrupt, Invalid, StaleRead, Unavailable
from penstock.eventstore import paths
from penstock.eventstore.read.partition import TableView
from penstock.eventstore.read.snapshot import plan_snapshot, read_snapshot, snapshot_schema
from penstock.object_storage import StorageRef
from penstock.tables.alter import add_column
from penstock.tables.define import define_table
from penstock.tables.keys import encode_handle
from support.handmade import TABLE_ID, HandMade, Row

ITEMS = replace(define_table("items", [("id", "bigint primary key"), ("name", "varchar(64)")]), id=1)


def a_row(number: int, name: str = "x") -> Row:
    return {"id": number, "name": name}


def some(numbers: Iterable[int], name: str = "x") -> dict[int, Row]:
    return {number: a_row(number, name) for number in numbers}


@pytest.fixture
def made() -> HandMade:
    return HandMade(StorageRef(f"memory:///{SYSTEM.unique_id()}"), ITEMS)


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    return sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: row["id"])


def names_at(view: TableView, ts: int, **wanted: Any) -> dict[int, str]:
    return {row["id"]: row["name"] for row in rows_of(read_snapshot(view, ts, **wanted))}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[str]]]:
    """The row groups that are read from now on, each with its columns."""
    seen: list[tuple[int, list[str]]] = []
    one, more = pq.ParquetFile.read_row_group, pq.ParquetFile.read_row_groups
    some_rows = pq.ParquetFile.iter_batches

    def read_row_group(self: pq.ParquetFile, number: int, columns: list[str]) -> pa.Table:
        seen.append((number, columns))
        return one(self, number, columns=columns)

    def read_row_groups(self: pq.ParquetFile, numbers: list[int], columns: list[str]) -> pa.Table:
        seen.extend((number, columns) for number in numbers)
        return more(self, numbers, columns=columns)

    def iter_batches(self: pq.ParquetFile, size: int, row_groups: list[int], columns: list[str]) -> Any:
        seen.append((row_groups[0], columns))
        return some_rows(self, size, row_groups=row_groups, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", read_row_group)
    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", read_row_groups)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
    return seen


def test_up_to_the_flushed_ts_the_capture_is_not_asked(made: HandMade) -> None:
    made.commit(some([1, 2]))
    made.flush()
    made.commit(some([3]))
    assert len(names_at(made.view(), made.ts - 2)) == 2
    assert len(plan_snapshot(made.view(), made.ts - 2)) == 1
    assert made.rows.asked == 0
    assert len(names_at(made.view(), made.ts)) == 3
    assert made.rows.asked > 0


def test_rows_that_are_not_flushed_are_put_on_top(made: HandMade) -> None:
    made.commit(some(range(1, 6), "old"))
    made.flush()
    made.commit(some([2, 6], "new"), deletes=[3])
    made.commit(some([4, 7], "newer"), deletes=[6])
    made.commit(some([3], "again"), deletes=[7])
    assert names_at(made.view(), made.ts) == {1: "old", 2: "new", 3: "again", 4: "newer", 5: "old"}


def test_a_column_may_be_asked_for_twice(made: HandMade) -> None:
    made.commit(some(range(2)))
    made.flush()
    made.commit(some([2]))
    batches = list(read_snapshot(made.view(), made.ts, columns=["name", "id", "name"]))
    assert sorted(number for batch in batches for number in batch.column(1).to_pylist()) == [0, 1, 2]
    assert {name for batch in batches for name in batch.column(2).to_pylist()} == {"x"}


def test_a_schema_change_above_the_flushed_ts_shows_in_all_rows(made: HandMade) -> None:
    made.commit(some([1, 2]))
    made.flush()
    made.commit(some([3]))
    made.alter(add_column(ITEMS, "more", "int not null default 7"))
    made.commit({2: {"id": 2, "name": "x", "more": 1}})
    found = rows_of(read_snapshot(made.view(), made.ts, columns=["id", "more"]))
    assert found == [{"id": 1, "more": 7}, {"id": 2, "more": 1}, {"id": 3, "more": 7}]
    assert snapshot_schema(made.view(), made.ts).names == ["id", "name", "more", "_commit_ts"]
    assert snapshot_schema(made.view(), made.ts - 4).names == ["id", "name", "_commit_ts"]


def test_columns_that_decide_nothing_are_not_read(made: HandMade, reads: list[tuple[int, list[str]]]) -> None:
    made.commit(some(range(1, 7)))
    second = made.commit(some(range(7, 10)))
    made.flush()
    made.commit({}, deletes=[2])
    made.flush()
    view = made.view()
    list(read_snapshot(view, made.ts, columns=["name"]))
    tombstones = (0, ["_object", "_offset"])
    assert reads == [tombstones, *((number, ["name"]) for number in range(3))]
    reads.clear()
    list(read_snapshot(view, second - 1, columns=["name"]))
    assert reads == [(number, ["name"]) for number in range(2)]  # the third is above it
    reads.clear()
    list(
        read_snapshot(
            view, second, columns=["name"], handle_from=encode_handle(2), handle_to=encode_handle(7)
        )
    )
    assert reads == [(0, ["name", "_handle"]), (1, ["name"])]
    reads.clear()
    made.commit(some([8], "touched"))
    list(read_snapshot(made.view(), made.ts, columns=["name"]))
    assert [columns for _, columns in reads] == [
        ["_object", "_offset"],
        ["_handle"],
        ["name"],
        ["name"],
        ["name"],
    ]


def test_a_row_group_without_live_rows_is_not_read(
    made: HandMade, reads: list[tuple[int, list[str]]]
) -> None:
    made.commit(some(range(1, 7)))
    made.flush()
    made.commit({}, deletes=[1, 2, 3])
    made.flush()
    assert len(names_at(made.view(), made.ts, columns=["id", "name"])) == 3
    assert (0, ["id", "name"]) not in reads
    assert (1, ["id", "name"]) in reads


def test_batches_are_bounded_and_columns_come_as_asked(made: HandMade) -> None:
    made.commit(some(range(1, 8)))
    made.flush()
    made.commit(some(range(8, 12)))
    batches = list(read_snapshot(made.view(), made.ts, columns=["NAME", "_handle", "id"], batch_rows=2))
    assert all(batch.num_rows <= 2 for batch in batches)
    assert all(
        batch.schema == snapshot_schema(made.view(), made.ts, ["name", "_handle", "id"]) for batch in batches
    )
    assert sum(batch.num_rows for batch in batches) == 11
    assert sum(batch.num_rows for batch in read_snapshot(made.view(), made.ts, columns=[])) == 11


def test_a_partitioned_table_is_the_union_of_its_partitions(made: HandMade) -> None:
    other = HandMade(StorageRef(f"memory:///{SYSTEM.unique_id()}"), ITEMS)
    made.commit(some([1, 2]))
    other.commit(some([3]))
    made.flush()
    view = TableView("shop.items", made.view().partitions + other.view().partitions)
    assert sorted(names_at(view, made.ts)) == [1, 2, 3]
    parts = plan_snapshot(view, made.ts)
    assert [rows_of(part.read())[0]["id"] for part in parts] == [1, 3]


def test_objects_of_about_the_wanted_size_are_not_cut(made: HandMade) -> None:
    for number in range(4):
        made.commit(some(range(100 * number, 100 * number + 12 + number % 2)))
        made.flush()
    parts = plan_snapshot(made.view(), made.ts, partitions=4)
    assert sorted(part.rows for part in parts) == [12, 12, 13, 13]


def test_a_plan_cuts_large_objects_and_packs_small_ones(made: HandMade) -> None:
    made.commit(some(range(100, 130)))
    made.flush()
    for number in range(5):
        made.commit(some([number]))
        made.flush()
    made.commit({}, deletes=[101, 3])
    made.flush()
    sizes = sorted(info.size_bytes for info in made.state.visible_objects("data", made.ts))
    parts = plan_snapshot(made.view(), made.ts, partition_bytes=sizes[-1] // 3)
    assert len(parts) > 4
    assert sum(part.rows for part in parts) == 35
    assert max(part.rows for part in parts) <= 12
    assert all(len(each.targets or ()) == 1 for part in parts for each in part.tombstones)
    one_by_one = [row for part in parts for row in rows_of(part.read())]
    whole = rows_of(read_snapshot(made.view(), made.ts))
    assert sorted(row["id"] for row in one_by_one) == [row["id"] for row in whole]
    assert len(plan_snapshot(made.view(), made.ts, partitions=3)) in {3, 4}
    assert len(plan_snapshot(made.view(), made.ts, partitions=1)) == 1
    assert plan_snapshot(made.view(), made.ts, handle_from=encode_handle(1000)) == []


def test_a_plan_gives_the_same_rows_after_flushes_and_merges(made: HandMade) -> None:
    made.commit(some(range(1, 8), "old"))
    made.flush()
    made.commit(some([2], "new"), deletes=[3])
    planned_ts = made.ts
    plan = pickle.dumps(plan_snapshot(made.view(), planned_ts, partition_bytes=1))
    before = rows_of(read_snapshot(made.view(), planned_ts))
    made.commit(some([1, 9], "later"), deletes=[2])
    made.flush()
    made.finish_merge(made.begin_merge(lambda _: True))
    made.forget(collect=False)
    parts = pickle.loads(plan)
    for part in parts:
        part.partition.rows.changes = made.history  # what the capture reads from objects by now
    assert rows_of(batch for part in parts for batch in part.read()) == before


def test_a_plan_whose_objects_are_collected_says_what_to_do(made: HandMade) -> None:
    made.commit(some(range(1, 4)))
    made.flush()
    flushed = plan_snapshot(made.view(), made.ts)
    made.commit(some([1]))
    unflushed = plan_snapshot(made.view(), made.ts)
    made.flush()
    made.finish_merge(made.begin_merge(lambda _: True))
    made.forget(collect=True)
    assert made.state.oldest_ts == made.ts
    with pytest.raises(StaleRead, match=f"the oldest that can be read is {made.ts}"):
        list(flushed[0].read())
    with pytest.raises(Unavailable, match="plan the read again"):
        list(unflushed[0].read())
    assert len(names_at(made.view(), made.ts)) == 3


def test_history_that_left_the_state_is_read_from_archives_until_it_is_collected(made: HandMade) -> None:
    first = made.commit(some([1, 2], "old"))
    made.flush()
    made.commit(some([1], "new"))
    made.flush()
    made.finish_merge(made.begin_merge(lambda _: True))
    made.forget(collect=False)
    assert names_at(made.view(), first) == {1: "old", 2: "old"}
    made.commit(some([2], "newer"))
    made.flush()
    made.finish_merge(made.begin_merge(lambda _: True))
    made.forget(collect=True)
    with pytest.raises(StaleRead):
        read_snapshot(made.view(), made.ts - 1)
    assert names_at(made.view(), made.ts) == {1: "new", 2: "newer"}


def test_what_cannot_be_read_is_refused_before_anything_is_read(made: HandMade) -> None:
    made.commit(some([1]))
    made.flush()
    made.commit(some([2]))
    view = made.view()
    with pytest.raises(Unavailable, match="wait"):
        read_snapshot(view, made.ts + 1)
    with pytest.raises(Unavailable, match="wait"):
        plan_snapshot(made.view(objects_only=True), made.ts)
    with pytest.raises(Invalid, match="no range"):
        read_snapshot(view, 0)
    with pytest.raises(Invalid, match="has no column 'nmae'"):
        read_snapshot(view, made.ts, columns=["nmae"])
    with pytest.raises(Invalid, match="at least 1"):
        plan_snapshot(view, made.ts, partitions=0)


def test_a_damaged_object_is_corrupt(made: HandMade) -> None:
    made.commit(some([1]))
    made.flush()
    (info,) = made.state.visible_objects("data", made.ts)
    path = paths.object_path(paths.table_root(TABLE_ID), "data", info.id)
    made.storage.open().write(path, b"no Parquet")
    with pytest.raises(Corrupt, match=info.id):
        list(read_snapshot(made.view(), made.ts))


def test_a_read_that_is_given_up_closes_its_files(made: HandMade, monkeypatch: pytest.MonkeyPatch) -> None:
    made.commit(some(range(1, 20)))
    made.flush()
    closed: list[bool] = []
    real = pq.ParquetFile.close

    def noted(self: pq.ParquetFile, **options: Any) -> None:
        closed.append(True)
        real(self, **options)

    monkeypatch.setattr(pq.ParquetFile, "close", noted)
    batches = read_snapshot(made.view(), made.ts)
    next(batches)
    assert not closed
    batches.close()
    assert closed
