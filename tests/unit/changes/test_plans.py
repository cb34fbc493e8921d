"""A range in parts: they cover it, travel, and are together what a handle gives."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.changes import ChangeBatch, ChangesPartition, Hint, collect_changes, plan_changes
from penstock.errors import Invalid, StaleRead, Unavailable
from penstock.eventstore.objects import object_file
from penstock.eventstore.read.partition import PartitionState
from penstock.tables.alter import add_column
from penstock.tables.define import define_table
from support.itemtables import item, item_table
from support.tableworld import START, TableWorld
from support.travel import send_copy

MakeWorld = Callable[..., TableWorld]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeWorld]:
    """Worlds whose objects have row groups of ten rows."""
    monkeypatch.setattr(object_file, "ROW_GROUP_ROWS", 10)
    monkeypatch.setattr(object_file, "TOMBSTONE_GROUP_ROWS", 10)
    with ExitStack() as stack:

        def made(kind: str = "integer", partitions: tuple[int, ...] = (), **settings: Any) -> TableWorld:
            table = item_table(kind, partitions=partitions)
            return stack.enter_context(TableWorld(tmp_path, table, partitions=partitions, **settings))

        yield made


def rows_of(batches: list[ChangeBatch]) -> list[list[str]]:
    """Every row of each side, in order."""
    return [
        sorted(repr(row) for batch in batches for row in side(batch).to_pylist())
        for side in (lambda batch: batch.data, lambda batch: batch.tombstones)
    ]


def read(world: TableWorld, parts: list[ChangesPartition]) -> list[ChangeBatch]:
    """Every part as if it were elsewhere."""
    arrived = [send_copy(part, stays=world.reader) for part in parts]
    return [batch for part in arrived for batch in part.collect()]


def check_cover(parts: list[ChangesPartition], from_ts: int, to_ts: int) -> None:
    bounds = list(dict.fromkeys((part.from_ts, part.to_ts) for part in parts))
    assert (bounds[0][0], bounds[-1][1]) == (from_ts, to_ts)
    assert all(one[1] == other[0] for one, other in pairwise(bounds))


def test_handles_that_are_too_long_for_statistics_are_planned(tmp_path: Path) -> None:
    columns = [("id", "bigint"), ("name", "varchar(9000)")]
    table = replace(define_table("items", columns, primary_key=["name"]), id=1)
    with TableWorld(tmp_path, table, large_txn_bytes=20_000) as world:
        for number in range(4):
            world.commit(item("integer", number, f"{number}" * 5000))
        world.commit(*(item("integer", number, f"{number}" * 5000) for number in range(4, 8)))
        world.flush()
        parts = plan_changes(world.view(), START, world.ts, partition_rows=2)
        check_cover(parts, START, world.ts)
        assert sum(batch.data.num_rows for batch in read(world, parts)) == 8


@pytest.mark.parametrize("partition_rows", [1, 7, 30, 10**6])
@pytest.mark.parametrize(
    "options", [{"coalesce": False, "old_rows": True}, {"coalesce": False, "columns": []}]
)
def test_the_parts_are_together_what_a_handle_gives(
    make: MakeWorld, partition_rows: int, options: dict[str, Any]
) -> None:
    world = make(large_txn_bytes=3000)
    for ts in range(40):
        world.commit(*(item("integer", number, f"at {ts}") for number in range(ts % 7, 9)))
    world.commit(*(item("integer", number, "large") for number in range(100, 160)))
    world.flush()
    world.alter(add_column(world.versions.table, "more", "int"))
    world.commit(item("integer", 1, "later", more=5), delete=[(2,), (150,)])
    world.resolve()
    to_ts = world.ts
    for from_ts in (START, START + 31):
        parts = plan_changes(world.view(), from_ts, to_ts, partition_rows=partition_rows, **options)
        check_cover(parts, from_ts, to_ts)
        whole = list(collect_changes(world.view(), from_ts, to_ts, **options))
        assert rows_of(read(world, parts)) == rows_of(whole)
        assert partition_rows > 100 or len(parts) > 3


def test_parts_are_of_about_the_same_size(make: MakeWorld) -> None:
    world = make()
    for _ in range(20):
        for _ in range(10):
            world.commit(*(item("integer", number, "x") for number in range(5)))
        world.flush()
    parts = plan_changes(world.view(), START, world.ts, partition_rows=200)
    assert sum(part.rows for part in parts) == pytest.approx(1995, abs=len(parts))
    counted = [
        sum(each.data.num_rows + each.tombstones.num_rows for each in part.collect())
        for part in plan_changes(world.view(), START, world.ts, partition_rows=200, coalesce=False)
    ]
    assert sum(counted) == 1995
    assert all(100 <= rows <= 300 for rows in counted[:-1])
    assert 8 <= len(parts) <= 16


def test_an_object_larger_than_a_part_is_cut_at_its_row_groups(make: MakeWorld) -> None:
    world = make()
    for number in range(100):
        world.commit(item("integer", number, "x"))
    world.tick(10**6)  # so that rows are not spread evenly over time
    for number in range(100, 120):
        world.commit(item("integer", number, "x"))
    world.flush()
    parts = plan_changes(world.view(), START, world.ts, partition_rows=20, coalesce=False)
    counted = [sum(each.data.num_rows for each in part.collect()) for part in parts]
    assert sum(counted) == 120
    assert all(rows <= 30 for rows in counted)


def test_a_single_large_commit_is_cut_by_handles(make: MakeWorld) -> None:
    world = make(large_txn_bytes=3000)
    world.commit(item("integer", 1, "before"))
    ts = world.commit(*(item("integer", number, "x" * 20) for number in range(300)))
    after = world.commit(item("integer", 1, "after"))
    world.flush()
    parts = plan_changes(world.view(), START, world.ts, partition_rows=50, coalesce=False)
    check_cover(parts, START, world.ts)
    cut = [part for part in parts if part.handle_from or part.handle_to]
    assert len(cut) >= 5
    assert all(part.from_ts < ts <= part.to_ts < after for part in cut)
    assert [part.handle_from for part in cut[1:]] == [part.handle_to for part in cut[:-1]]
    assert (cut[0].handle_from, cut[-1].handle_to) == (b"", b"")
    counted = [sum(each.data.num_rows for each in part.collect()) for part in cut]
    assert sum(counted) == 300
    assert all(30 <= rows <= 70 for rows in counted[:-1])
    whole = list(collect_changes(world.view(), START, world.ts, coalesce=False))
    assert rows_of(read(world, parts)) == rows_of(whole)


def test_a_large_delete_is_cut_by_handles_too(make: MakeWorld) -> None:
    world = make(large_txn_bytes=3000)
    world.commit(*(item("integer", number, "x" * 20) for number in range(300)))
    from_ts = world.flush()
    to_ts = world.commit(delete=[(number,) for number in range(300)])
    world.flush()
    parts = plan_changes(world.view(), from_ts, to_ts, partition_rows=100)
    assert len(parts) > 1
    assert sum(each.tombstones.num_rows for part in parts for each in part.collect()) == 300


def test_rows_whose_keys_move_stay_in_one_part(make: MakeWorld) -> None:
    world = make("not clustered", large_txn_bytes=3000)
    world.commit(*(item("not clustered", number, "x" * 20) for number in range(1, 300)))
    world.flush()
    (part,) = plan_changes(world.view(), START, world.ts, partition_rows=50)
    assert not part.handle_to


def test_what_is_not_flushed_is_in_parts_of_its_own(make: MakeWorld) -> None:
    world = make(partitions=(11, 12))
    world.commit(item("integer", 1, "a"), into=0)
    flushed_ts = world.flush()
    world.commit(item("integer", 2, "b"), into=1)
    world.resolve()
    parts = plan_changes(world.view(), START, world.ts)
    assert [(part.from_ts, part.to_ts, part.rows) for part in parts] == [
        (START, flushed_ts, 1),
        (flushed_ts, world.ts, 0),
    ]
    assert [sum(each.data.num_rows for each in part.collect()) for part in parts] == [1, 1]


def test_a_part_from_before_a_column_was_added_comes_without_it(make: MakeWorld) -> None:
    world = make()
    world.commit(item("integer", 1, "a"))
    world.flush()
    world.alter(add_column(world.versions.table, "size", "int"))
    world.commit(item("integer", 2, "b", size=5))
    world.resolve()
    parts = plan_changes(world.view(), START, world.ts, columns=["id", "size"])
    assert [batch.data.schema.names for batch in read(world, parts)] == [
        ["id", "_commit_ts"],
        ["id", "size", "_commit_ts"],
    ]


def test_every_part_ends_with_what_is_done_and_complete(make: MakeWorld) -> None:
    world = make(large_txn_bytes=3000)
    for number in range(30):
        world.commit(item("integer", number, "x"))
    world.commit(*(item("integer", number, "x" * 20) for number in range(300)))
    world.flush()
    for part in plan_changes(world.view(), START, world.ts, partition_rows=10, batch_rows=4):
        *_, last = part.collect()
        assert (last.hint, last.complete_ts) == (Hint.TAIL_DONE, part.to_ts)


def test_a_snapshot_is_planned_in_parts(make: MakeWorld) -> None:
    world = make()
    for first in range(0, 200, 50):
        world.commit(*(item("integer", number, "x") for number in range(first, first + 50)))
        world.flush()
    world.commit(item("integer", 1, "y"), delete=[(2,)])
    world.resolve()
    options = {"columns": ["id", "name", "_handle"]}
    parts = plan_changes(world.view(), 0, world.ts, partition_rows=50, **options)
    assert len(parts) > 2
    whole = list(collect_changes(world.view(), 0, world.ts, **options))
    found = read(world, parts)
    assert rows_of(found) == rows_of(whole)
    assert len(rows_of(found)[0]) == 199
    assert {batch.hint for batch in found} == {Hint.SNAPSHOT}


def test_a_plan_is_refused_as_a_handle_is(make: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make()
    world.commit(item("integer", 1, "x"))
    to_ts = world.flush()
    for wrong in ({"partition_rows": 0}, {"columns": ["nom"]}, {"batch_rows": 0}):
        with pytest.raises(Invalid):
            plan_changes(world.view(), START, to_ts, **wrong)  # type: ignore[arg-type] # one is wrong
    with pytest.raises(Unavailable):
        plan_changes(world.view(), START, to_ts + 1)
    (part,) = plan_changes(world.view(), START, to_ts)
    monkeypatch.setattr(PartitionState, "oldest_ts", property(lambda _: START + 1))
    with pytest.raises(StaleRead):
        plan_changes(world.view(), START, to_ts)
    with pytest.raises(StaleRead):  # history went after the plan was made
        part.collect()


def test_parts_are_bounded_by_bytes_as_well_as_rows(make: MakeWorld) -> None:
    world = make()
    for number in range(60):
        world.commit(item("integer", number, f"{number:03}" * 60))
    world.flush()
    for from_ts in (START, 0):
        whole = plan_changes(world.view(), from_ts, world.ts, partition_rows=1000, partition_bytes=1 << 30)
        parts = plan_changes(world.view(), from_ts, world.ts, partition_rows=1000, partition_bytes=1000)
        few = plan_changes(world.view(), from_ts, world.ts, partition_rows=1000, partition_bytes=1)
        assert len(whole) == 1
        assert 1 < len(parts) <= len(few)
        assert rows_of(read(world, parts)) == rows_of(read(world, whole))
