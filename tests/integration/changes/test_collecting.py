"""What a handle gives over each kind of object, and how it is cut into batches."""

from collections.abc import Callable, Iterable

import pytest

from penstock.changes import ChangeBatch, Hint, collect_changes, plan_changes
from penstock.errors import Invalid, Unavailable
from penstock.eventstore import paths
from penstock.tables.alter import add_column, drop_column
from penstock.testing.versions import CopiedTable, in_schema
from support.agreement import MODES
from support.itemtables import item
from support.tableworld import START, TableWorld

MakeWorld = Callable[..., TableWorld]
ROWS_MAX = 16 * 1024 + 8 * 1024  # of a side of a batch


def rows(numbers: Iterable[int], name: str = "x") -> list[dict[str, object]]:
    return [item("integer", number, name) for number in numbers]


def counts(batches: Iterable[ChangeBatch]) -> tuple[int, int]:
    """How many rows of each side."""
    batches = list(batches)
    return sum(each.data.num_rows for each in batches), sum(each.tombstones.num_rows for each in batches)


def check(world: TableWorld, from_ts: int, to_ts: int, **options: object) -> list[ChangeBatch]:
    """Changes that lead from the beginning of a range to its end."""
    batches = world.changes(from_ts, to_ts, **options)
    coalesced = bool(options.get("coalesce", True))
    target = CopiedTable(world.versions.at(from_ts), from_ts, in_order=not coalesced, coalesced=coalesced)
    target.take_all(batches)
    table = world.versions.table_at(to_ts)
    assert {key: in_schema(row, table) for key, row in target.rows.items()} == world.versions.at(to_ts)
    return batches


@pytest.mark.parametrize("stage", ["in memory", "flushed", "merged"])
def test_a_row_that_came_and_went_within_the_range_is_not_told(world: TableWorld, stage: str) -> None:
    world.commit(*rows(range(10)))
    to_ts = world.commit(delete=[(3,)])
    world.resolve()
    if stage != "in memory":
        world.flush()
    if stage == "merged":
        world.commit(item("integer", 99, "later"), delete=[(number,) for number in range(4, 10)])
        world.flush()
        assert world.store.merge(1)  # for much of the first object is deleted
        assert {each.kind for each in world.manifest().visible_objects("data", world.ts)} == {
            "appendable",
            "merged",
        }
    (batch,) = check(world, START, to_ts)
    assert (batch.data.num_rows, batch.tombstones.num_rows) == (9, 0)
    assert (batch.hint, batch.complete_ts) == (Hint.TAIL_DONE, to_ts)
    snapshot = world.changes(0, to_ts)
    assert counts(snapshot) == (9, 0)
    assert {each.hint for each in snapshot} == {Hint.SNAPSHOT}
    assert snapshot[-1].complete_ts == to_ts


def test_all_versions_come_when_changes_are_not_coalesced(world: TableWorld) -> None:
    for first in range(0, 4000, 1000):
        world.commit(*rows(range(first, first + 1000)))
        world.commit(delete=[(first + 7,)])
        world.flush()
    to_ts = world.ts
    assert len(world.snapshot(to_ts)) == 4000 - 4
    batches = check(world, START, to_ts, coalesce=False)
    assert counts(batches) == (4000, 4)
    assert counts(check(world, START, to_ts)) == (4000 - 4, 0)
    for batch in batches:
        assert batch.tombstones.schema.names == ["id", "_commit_ts"]
        assert batch.data.schema.names == ["id", "name", "_commit_ts"]
        assert batch.data.num_rows <= ROWS_MAX


def test_a_batch_has_thousands_of_rows_by_itself(world: TableWorld) -> None:
    for first in range(0, 18_000, 100):
        world.commit(*rows(range(first, first + 100)), deliver=False)
    world.deliver()
    to_ts = world.flush()
    sizes = [each.data.num_rows for each in check(world, START, to_ts)]
    assert sum(sizes) == 18_000
    assert all(8192 <= size <= ROWS_MAX for size in sizes[:-1])


def test_a_large_transaction_comes_in_bounded_batches_and_is_done_with_the_last(
    make_world: MakeWorld,
) -> None:
    world = make_world(large_txn_bytes=1 << 17)
    to_ts = world.commit(*rows(range(5000), "n" * 40))
    world.flush()
    assert {each.kind for each in world.manifest().objects.values()} == {"direct"}
    batches = check(world, START, to_ts, batch_rows=500)
    assert [each.hint for each in batches] == [Hint.TAIL_WIP] * (len(batches) - 1) + [Hint.TAIL_DONE]
    assert counts(batches) == (5000, 0)
    assert all(500 <= each.data.num_rows <= 1500 for each in batches[:-1])


def test_ends_of_a_large_transaction_come_before_its_beginnings(make_world: MakeWorld) -> None:
    world = make_world(large_txn_bytes=1 << 17)
    from_ts = world.commit(*rows(range(4000), "n" * 40))
    to_ts = world.commit(*rows(range(4000), "m" * 40))
    world.flush()
    batches = check(world, from_ts, to_ts, batch_rows=500)
    assert counts(batches) == (4000, 4000)
    sides = [(each.tombstones.num_rows > 0, each.data.num_rows > 0) for each in batches]
    last_end = max(index for index, side in enumerate(sides) if side[0])
    first_beginning = min(index for index, side in enumerate(sides) if side[1])
    assert 0 < last_end <= first_beginning < len(sides) - 1
    assert counts(check(world, from_ts, to_ts, batch_rows=500, coalesce=False)) == (4000, 4000)
    skipped = world.changes(from_ts, to_ts, batch_rows=500, skip_deletes=True)
    assert counts(skipped) == (4000, 0)


def test_objects_of_all_kinds_and_rows_in_memory_are_told_in_order(make_world: MakeWorld) -> None:
    world = make_world(large_txn_bytes=1 << 16)
    world.commit(*rows(range(800)))
    world.flush()
    world.commit(*rows(range(800, 1200)))
    world.commit(*rows(range(1200, 3000), "n" * 40))  # between two transactions of one object
    world.commit(*rows(range(3000, 3400)))
    world.commit(*rows(range(0, 3000, 100), "changed"))
    world.flush()
    world.commit(*rows(range(3400, 4000)))
    to_ts = world.resolve()
    kinds = [each.kind for each in world.manifest().objects.values() if each.side == "data"]
    assert sorted(set(kinds)) == ["appendable", "direct"]
    for _ in ("in memory", "flushed"):
        batches = check(world, START, to_ts, coalesce=False, batch_rows=300)
        assert counts(batches) == (4030, 30)
        told = [ts for each in batches for ts in each.data.column("_commit_ts").to_pylist()]
        assert told == sorted(told)
        assert counts(check(world, START, to_ts)) == (4000, 0)
        world.flush()


def test_rows_without_a_key_are_told_apart_by_their_handles(make_world: MakeWorld) -> None:
    world = make_world("no key")
    world.commit(*(item("no key", 5, "same", rowid=number) for number in range(1, 501)))
    middle = world.flush()
    world.commit(*(item("no key", 5, "same", rowid=number) for number in range(501, 1001)))
    to_ts = world.resolve()
    batches = check(world, START, to_ts)
    assert counts(batches) == (1000, 0)
    assert batches[0].data.schema.names == ["id", "name", "_handle", "_commit_ts"]
    assert batches[0].tombstones.schema.names == ["_handle", "_commit_ts"]
    assert counts(check(world, middle, to_ts)) == (500, 0)


def test_equal_rows_without_a_key_that_replace_each_other_are_all_told(make_world: MakeWorld) -> None:
    world = make_world("no key")
    from_ts = world.commit(*(item("no key", 1, "same", rowid=number) for number in (1, 2, 3)))
    gone = list(world.versions.live())
    to_ts = world.commit(*(item("no key", 1, "same", rowid=number) for number in (4, 5, 6)), delete=gone)
    world.resolve()
    assert counts(check(world, from_ts, to_ts)) == (3, 3)


@pytest.mark.parametrize("flushed", [False, True])
def test_one_row_over_several_ranges_is_coalesced_by_its_first_and_last_change(
    world: TableWorld, flushed: bool
) -> None:
    world.commit(item("integer", 1, "a"))
    ts1 = world.commit(delete=[(1,)])
    ts2 = world.commit(item("integer", 1, "b"))
    ts3 = world.commit(item("integer", 1, "c"))
    ts4 = world.commit(delete=[(1,)])
    world.resolve()
    if flushed:
        world.flush()
    assert counts(check(world, START, ts1)) == (0, 0)
    assert counts(check(world, START, ts3)) == (1, 0)
    assert counts(check(world, ts2, ts3)) == (1, 1)
    assert counts(world.changes(ts2, ts3, skip_deletes=True)) == (1, 0)
    (kept,) = check(world, ts2, ts4)
    assert (kept.data.num_rows, kept.tombstones.to_pylist()) == (0, [{"id": 1, "_commit_ts": ts4}])
    (again,) = world.changes(START, ts1, replay=True)
    assert again.tombstones.to_pylist() == [{"id": 1, "_commit_ts": ts1}]
    assert check(world, START, ts1)[-1].complete_ts == ts1


def test_a_composite_key_is_told_with_all_its_columns(make_world: MakeWorld) -> None:
    world = make_world("composite")
    from_ts = world.commit(*(item("composite", number, "x") for number in range(6)))
    to_ts = world.commit(delete=world.versions.live()[:2])
    world.flush()
    (batch,) = check(world, from_ts, to_ts)
    assert batch.tombstones.schema.names == ["part", "id", "_commit_ts"]
    assert {(row["part"], row["id"]) for row in batch.tombstones.to_pylist()} == {("p0", 0), ("p1", 1)}


def test_a_change_of_schema_ends_a_batch(world: TableWorld) -> None:
    world.commit(*rows(range(3)))
    world.alter(add_column(world.versions.table, "extra", "varchar(20) default 'none'"))
    world.commit(item("integer", 9, "new", extra="given"), item("integer", 0, "new"))
    world.flush()
    world.alter(drop_column(world.versions.table, "name"))
    to_ts = world.commit({"id": 10, "extra": "only"})
    world.resolve()
    batches = check(world, START, to_ts, coalesce=False)
    assert [each.data.schema.names[:-1] for each in batches] == [
        ["id", "name"],
        ["id", "name", "extra"],
        ["id", "extra"],
    ]
    assert [len(each.schema.table.stored_columns) for each in batches] == [2, 3, 2]
    assert [each.hint for each in batches] == [Hint.TAIL_DONE] * 3


def test_a_column_that_came_later_is_left_out_of_what_was_before(world: TableWorld) -> None:
    world.commit(*rows(range(3)))
    world.alter(add_column(world.versions.table, "extra", "varchar(20) default 'none'"))
    to_ts = world.commit(item("integer", 9, "new", extra="given"))
    world.flush()
    before, after = world.changes(START, to_ts, columns=["extra", "id"])
    assert before.data.schema.names == ["id", "_commit_ts"]
    assert after.data.schema.names == ["extra", "id", "_commit_ts"]
    with pytest.raises(Invalid, match="colour"):
        world.changes(START, to_ts, columns=["colour"])


def test_system_columns_come_only_when_they_are_asked_for(world: TableWorld) -> None:
    world.commit(*rows(range(3)))
    from_ts = world.flush()
    to_ts = world.commit(item("integer", 1, "y"), delete=[(2,)])
    world.flush()
    (plain,) = world.changes(from_ts, to_ts)
    assert not {"_object", "_offset", "_handle", "_old"} & {
        *plain.data.schema.names,
        *plain.tombstones.schema.names,
    }
    (asked,) = world.changes(from_ts, to_ts, columns=["name", "_update", "_start_ts"], old_rows=True)
    assert asked.data.select(["name", "_update", "_start_ts"]).to_pylist() == [
        {"name": "y", "_update": True, "_start_ts": to_ts - 1}
    ]
    told = {row["id"]: (row["_update"], row["_old"]) for row in asked.tombstones.to_pylist()}
    assert told == {1: (True, {"name": "x"}), 2: (False, {"name": "x"})}
    (whole,) = world.changes(from_ts, to_ts, old_rows=True)
    assert whole.tombstones.column("_old").to_pylist() == [{"id": 1, "name": "x"}, {"id": 2, "name": "x"}]
    (least,) = world.changes(from_ts, to_ts, columns=["_update"], old_rows=True)
    assert least.tombstones.column("_old").to_pylist() == [{"id": 1}, {"id": 2}]


def test_an_object_that_is_missing_is_an_error_and_never_a_gap(world: TableWorld) -> None:
    world.commit(*rows(range(3)))
    world.flush()
    world.commit(*rows(range(3, 6)))
    to_ts = world.flush()
    newest = max(world.manifest().objects.values(), key=lambda each: each.min_ts)
    path = paths.object_path(paths.table_root(1), newest.side, newest.id)
    handle = collect_changes(world.view(), START, to_ts)
    world.storage.open().delete(path)
    with handle, pytest.raises(Unavailable):
        handle.next()


def test_what_is_not_complete_yet_cannot_be_collected(world: TableWorld) -> None:
    world.commit(*rows(range(3)))
    world.resolve()
    to_ts = world.commit(*rows(range(3, 6)))
    with pytest.raises(Unavailable, match=str(to_ts)):
        world.changes(START, to_ts)
    with pytest.raises(Invalid):
        world.changes(to_ts, to_ts)
    with pytest.raises(Unavailable):
        collect_changes(world.view(objects_only=True), START, START + 1).next()


@pytest.mark.parametrize("mode", sorted(MODES))
def test_a_range_without_changes_says_that_it_is_complete(world: TableWorld, mode: str) -> None:
    world.commit(*rows(range(3)))
    from_ts = world.flush()
    world.tick(1000)
    to_ts = world.resolve()
    batches = world.changes(from_ts, to_ts, **MODES[mode])
    assert counts(batches) == (0, 0)
    assert all(each.complete_ts == to_ts for each in batches)
    parts = plan_changes(world.view(), from_ts, to_ts, **MODES[mode])
    assert counts(batch for part in parts for batch in part.collect()) == (0, 0)


@pytest.mark.parametrize("flushed", [False, True])
def test_a_row_whose_key_changed_ends_under_the_key_that_a_reader_has(
    make_world: MakeWorld, flushed: bool
) -> None:
    world = make_world("not clustered")
    from_ts = world.commit(item("not clustered", 1, "x"))
    world.commit(item("not clustered", 2, "y", rowid=1))
    renamed = world.commit(item("not clustered", 3, "z", rowid=1))
    world.commit(item("not clustered", 1, "another", rowid=9))
    gone = world.commit(delete=[(3,)])
    world.resolve()
    if flushed:
        world.flush()
    assert counts(check(world, from_ts, renamed)) == (1, 1)
    (batch,) = check(world, from_ts, gone)
    assert (batch.data.column("id").to_pylist(), batch.tombstones.column("id").to_pylist()) == ([1], [1])
    skipped = world.changes(from_ts, renamed, skip_deletes=True)
    assert counts(skipped) == (1, 1), "nothing would replace the row under its old key"


def test_a_range_without_changes_is_told_beside_more_unflushed_rows_than_are_sorted_in_memory(
    make_world: MakeWorld,
) -> None:
    world = make_world(sort_bytes=1 << 20)
    world.commit(*(item("integer", number, "n" * 200) for number in range(6000)), deliver=False)
    from_ts, to_ts = world.tick(), world.tick()
    world.commit(item("integer", 1, "later"))  # they arrive together
    world.resolve()
    assert counts(check(world, from_ts, to_ts)) == (0, 0)
