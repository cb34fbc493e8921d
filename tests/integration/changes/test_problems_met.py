"""What goes wrong in naive designs: deletes beside flushes and merges, transfers, history that is let go."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.changes import ChangeBatch, collect_changes, plan_changes
from penstock.clock import compose_ts
from penstock.errors import StaleRead
from penstock.eventstore.history_holds import HistoryHolds
from penstock.eventstore.read.snapshot import read_snapshot
from penstock.settings import UpkeepSettings
from penstock.tables.alter import add_column
from penstock.testing.versions import CopiedTable
from support.chosenmerge import begin_merge
from support.itemtables import item
from support.tableworld import START, TableWorld

MakeWorld = Callable[..., TableWorld]


def rows(numbers: Any, name: str = "x") -> list[dict[str, Any]]:
    return [item("integer", number, name) for number in numbers]


def told(batches: list[ChangeBatch]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(number, commit-ts) of both sides."""
    return (
        [(row["id"], row["_commit_ts"]) for each in batches for row in each.data.to_pylist()],
        [(row["id"], row["_commit_ts"]) for each in batches for row in each.tombstones.to_pylist()],
    )


def check_all(world: TableWorld) -> None:
    """Every snapshot, and all changes between each two commits, are what they must be."""
    moments = [START, *world.moments()]
    for to_ts in moments[1:]:
        assert world.snapshot(to_ts) == world.versions.at(to_ts)
        for from_ts in (ts for ts in moments if ts < to_ts):
            target = CopiedTable(world.versions.at(from_ts), from_ts)
            target.take_all(world.changes(from_ts, to_ts))
            assert target.rows == world.versions.at(to_ts)
            every = CopiedTable(world.versions.at(from_ts), from_ts, in_order=True, coalesced=False)
            every.take_all(world.changes(from_ts, to_ts, coalesce=False))
            assert sorted(every.seen, key=lambda step: step[:3]) == world.versions.steps(from_ts, to_ts)


@pytest.mark.parametrize("flushed", [False, True])
def test_tombstones_that_a_merge_transfers_are_not_told_again(
    world: TableWorld, tmp_path: Path, flushed: bool
) -> None:
    world.commit(*rows(range(10)))
    from_ts = world.flush()
    merge = begin_merge(world, tmp_path)
    updated = world.commit(item("integer", 1, "changed"))
    deleted = world.commit(delete=[(2,)])
    to_ts = world.flush() if flushed else world.resolve()
    assert merge.commit(world)
    world.flush()
    transferred = [each for each in world.manifest().objects.values() if each.side == "tombstone"]
    assert sum(each.rows for each in transferred if each.kind == "merged") == (2 if flushed else 0)
    data, ends = told(world.changes(from_ts, to_ts, coalesce=False))
    assert data == [(1, updated)]
    assert ends == [(1, updated), (2, deleted)]
    check_all(world)
    world.store.merge(1)
    check_all(world)


@pytest.mark.parametrize("flushed", [False, True])
def test_a_commit_at_the_very_time_of_a_merge_is_told(
    world: TableWorld, tmp_path: Path, flushed: bool
) -> None:
    world.commit(*rows(range(4)))
    world.flush()
    at = world.commit(item("integer", 1, "changed"), delete=[(2,)])
    world.flush()
    merge = begin_merge(world, tmp_path)
    assert merge.plan.ts == at
    world.commit(delete=[(1,)])
    if flushed:
        world.flush()
    assert merge.commit(world)
    world.resolve()
    removed = {each.delete_ts for each in world.manifest().objects.values() if each.delete_ts}
    assert removed == {at}
    assert told(world.changes(at - 1, at)) == ([(1, at)], [(1, at), (2, at)])
    check_all(world)


def test_a_large_delete_beside_a_merge_is_told_once(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world(large_txn_bytes=2000)
    world.commit(*rows(range(60)), deliver=False)
    world.deliver()
    world.flush()
    world.commit(*rows(range(60, 90)))
    world.flush()
    first = min(world.manifest().visible_objects("data", world.ts), key=lambda each: each.min_ts)
    merge = begin_merge(world, tmp_path, [first.id])
    from_ts = world.ts
    to_ts = world.commit(delete=[(number,) for number in range(0, 90, 2)])  # of both objects
    world.flush()
    kinds = {each.kind for each in world.manifest().objects.values() if each.side == "tombstone"}
    assert kinds == {"direct"}
    assert merge.commit(world)
    copies = [each for each in world.manifest().objects.values() if each.side == "tombstone"]
    assert sum(each.rows for each in copies) == 45 + 30
    data, ends = told(world.changes(from_ts, to_ts, coalesce=False))
    assert (data, len(ends), len(set(ends))) == ([], 45, 45)
    check_all(world)


def during_next_write(
    world: TableWorld, monkeypatch: pytest.MonkeyPatch, happen: Callable[[], object]
) -> None:
    """Let something happen while the next object is written."""
    storage = world.storage.open()
    write = storage.write

    def writing(path: str, data: bytes | Path) -> None:
        monkeypatch.setattr(storage, "write", write)
        happen()
        write(path, data)

    monkeypatch.setattr(storage, "write", writing)


@pytest.mark.parametrize("merged", [False, True])
def test_a_delete_that_commits_during_a_flush_is_told_once(
    world: TableWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merged: bool
) -> None:
    world.commit(*rows(range(10)))

    def delete() -> None:
        world.commit(delete=[(3,)])
        world.resolve()

    during_next_write(world, monkeypatch, delete)
    flushed_ts = world.flush()
    assert world.ts > flushed_ts == world.manifest().flushed_ts
    (batch,) = world.changes(START, world.ts)
    assert (batch.data.num_rows, batch.tombstones.num_rows) == (9, 0)
    check_all(world)
    world.flush()
    if merged:
        assert begin_merge(world, tmp_path).commit(world)
    (batch,) = world.changes(START, world.ts)
    assert (batch.data.num_rows, batch.tombstones.num_rows) == (9, 0)
    check_all(world)


@pytest.mark.parametrize("flushed", [False, True])
def test_a_delete_that_commits_while_a_merge_is_committed_reaches_the_merged_rows(
    world: TableWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushed: bool
) -> None:
    world.commit(*rows(range(10)))
    world.flush()
    merge = begin_merge(world, tmp_path)
    if flushed:
        world.commit(delete=[(5,)])
        world.flush()  # so that there is something to transfer

    def delete() -> None:
        world.commit(delete=[(3,)])
        world.resolve()

    during_next_write(world, monkeypatch, delete)
    assert merge.commit(world)
    if not flushed:  # nothing was written
        monkeypatch.undo()
        delete()
    check_all(world)
    world.flush()
    check_all(world)
    world.commit(item("integer", 3, "back"))
    world.flush()
    check_all(world)


def test_a_merge_that_moves_rows_changes_nothing(world: TableWorld, tmp_path: Path) -> None:
    world.commit(*rows(range(10)))
    from_ts = world.flush()
    world.tick(1000)
    world.flush()
    assert begin_merge(world, tmp_path).commit(world)
    assert begin_merge(world, tmp_path).commit(world), "merged objects are merged again"
    world.tick(1000)
    to_ts = world.flush()
    batches = world.changes(from_ts, to_ts)
    assert told(batches) == ([], [])
    assert told(world.changes(from_ts - 1, to_ts))[0] == [(number, from_ts) for number in range(10)]
    check_all(world)


@pytest.mark.parametrize("lose", ["crash", "lose_disk"])
def test_a_merge_that_is_not_committed_leaves_everything_as_it_was(
    world: TableWorld, tmp_path: Path, lose: str
) -> None:
    world.commit(*rows(range(10)))
    world.flush()
    world.commit(delete=[(1,)])
    world.flush()
    merge = begin_merge(world, tmp_path)
    before = world.manifest().objects
    getattr(world, lose)()
    assert world.manifest().objects == before
    check_all(world)
    world.commit(delete=[(2,)])
    world.flush()
    assert merge.commit(world), "another process may finish it"
    check_all(world)
    after = world.manifest().objects
    assert merge.commit(world), "it is committed: asked again, that is the answer"
    assert world.manifest().objects == after


def test_rows_of_an_older_schema_read_as_of_then_after_a_merge(world: TableWorld, tmp_path: Path) -> None:
    world.commit(*rows(range(4)))
    before = world.flush()
    world.alter(add_column(world.versions.table, "extra", "varchar(20) default 'none'"))
    world.commit(item("integer", 9, "new", extra="given"), item("integer", 0, "changed"))
    after = world.flush()
    assert begin_merge(world, tmp_path).commit(world)
    assert world.snapshot(before) == world.versions.at(before)
    assert world.snapshot(after) == world.versions.at(after)
    assert world.snapshot(after)[1,] == {"id": 1, "name": "x", "extra": "none"}
    old, new = world.changes(START, after, coalesce=False)
    assert (old.data.schema.names, old.data.num_rows) == (["id", "name", "_commit_ts"], 4)
    assert (new.data.schema.names, new.data.num_rows) == (["id", "name", "extra", "_commit_ts"], 2)


@pytest.fixture
def aged(make_world: MakeWorld, tmp_path: Path) -> TableWorld:
    """A table whose first objects were merged long ago; job "slow" still needs its history."""
    world = make_world(upkeep=UpkeepSettings(history_ttl_s=0, merge=False))
    HistoryHolds(world.storage.open(), world.clock).hold(1, "slow", START)
    world.commit(*rows(range(10)))
    world.flush()
    world.commit(item("integer", 1, "changed"), delete=[(2,)])
    world.flush()
    assert begin_merge(world, tmp_path).commit(world)
    world.tick(compose_ts(10_000))
    world.commit(item("integer", 50, "late"))
    world.flush()
    return world


def test_history_that_the_state_let_go_of_is_told_from_its_archive(aged: TableWorld) -> None:
    expected = told(aged.changes(START, aged.ts, coalesce=False))
    removed = [each.id for each in aged.manifest().objects.values() if each.delete_ts]
    aged.store.collect(1)
    state = aged.manifest()
    assert removed
    assert not set(removed) & set(state.objects)
    assert len(state.archives) == 1
    assert told(aged.changes(START, aged.ts, coalesce=False)) == expected
    check_all(aged)
    aged.crash()
    check_all(aged)


def test_an_object_is_told_once_though_archives_and_state_overlap(aged: TableWorld, tmp_path: Path) -> None:
    aged.store.collect(1)
    aged.commit(delete=[(1,)])
    aged.flush()
    assert begin_merge(aged, tmp_path).commit(aged)
    aged.tick(compose_ts(10_000))
    aged.commit(item("integer", 51, "later"))
    aged.flush()
    aged.store.collect(1)
    assert len(aged.manifest().archives) == 2
    check_all(aged)


def test_history_goes_when_nobody_holds_it_and_the_oldest_that_is_left_can_be_told(
    aged: TableWorld,
) -> None:
    aged.store.collect(1)
    HistoryHolds(aged.storage.open(), aged.clock).release(1, "slow")
    assert aged.store.collect(1)
    oldest = aged.manifest().oldest_ts
    assert START < oldest < aged.ts
    target = CopiedTable(aged.versions.at(oldest), oldest)
    target.take_all(aged.changes(oldest, aged.ts))
    assert target.rows == aged.versions.at(aged.ts)
    assert aged.snapshot(oldest) == aged.versions.at(oldest)
    for ask in (
        lambda: aged.changes(oldest - 1, aged.ts),
        lambda: plan_changes(aged.view(), oldest - 1, aged.ts),
        lambda: aged.changes(0, oldest - 1),
        lambda: list(read_snapshot(aged.view(), oldest - 1)),
    ):
        with pytest.raises(StaleRead) as stale:
            ask()
        assert stale.value.oldest_ts == oldest
    rows_now = sum(batch.data.num_rows for batch in aged.changes(0, aged.ts))
    assert rows_now == len(aged.versions.at(aged.ts))


def test_history_that_goes_while_it_is_read_is_stale_and_never_a_gap(aged: TableWorld) -> None:
    with collect_changes(aged.view(), START, aged.ts, batch_rows=1) as handle:
        aged.store.collect(1)
        HistoryHolds(aged.storage.open(), aged.clock).release(1, "slow")
        aged.store.collect(1)
        with pytest.raises(StaleRead) as stale:
            list(handle)
        assert stale.value.oldest_ts == aged.manifest().oldest_ts
        with pytest.raises(StaleRead):
            handle.next()


def test_a_plan_made_before_merge_and_collection_is_still_right_or_stale(
    aged: TableWorld, tmp_path: Path
) -> None:
    oldest = aged.manifest().flushed_ts
    aged.commit(item("integer", 60, "new"), delete=[(1,)])
    to_ts = aged.resolve()
    parts = plan_changes(aged.view(), oldest, to_ts, coalesce=False)
    aged.flush()
    assert begin_merge(aged, tmp_path).commit(aged)
    aged.store.collect(1)
    batches = [batch for part in parts for batch in part.collect()]
    assert told(batches) == ([(60, to_ts)], [(1, to_ts)])
