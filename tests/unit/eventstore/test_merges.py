"""Merges, one case at a time: what is written, what is transferred, what a lost answer leaves."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from penstock.errors import Fenced, Invalid, Unavailable
from penstock.eventstore.manifest import ObjectInfo
from penstock.eventstore.manifest_log import Ownership
from penstock.eventstore.sides import HANDLE, MERGED_TOMBSTONES, OBJECT, OFFSET
from penstock.eventstore.upkeep import merge_policy
from penstock.eventstore.upkeep.merge import MergeOutput, MergePlan, plan_merge, write_merge
from penstock.eventstore.upkeep.merge_policy import MergePolicy
from penstock.testing.versions import CopiedTable
from support.events import read_object
from support.itemtables import item, item_table
from support.tableworld import START, TableWorld

NTH = count()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TableWorld]:
    """A table whose objects are merged as soon as there are two."""
    monkeypatch.setattr(merge_policy, "_FANOUT", 2)
    monkeypatch.setattr(merge_policy, "_HEAVILY_DEAD", 2.0)
    with TableWorld(tmp_path, item_table(), url=f"memory:///merge-cases-{next(NTH)}") as made:
        yield made


def put(world: TableWorld, *numbers: int) -> int:
    return world.commit(*(item("integer", each, f"{each} at {world.ts}") for each in numbers))


def written(world: TableWorld) -> tuple[MergePlan, MergeOutput]:
    state = world.store.ownership(1).state
    plan = plan_merge(1, state, MergePolicy(), now_ms=world.clock.wall_ms())
    assert plan is not None
    return plan, write_merge(plan, world.storage.open(), world.settings.data / "elsewhere")


def current(world: TableWorld, side: str) -> list[ObjectInfo]:
    return [each for each in world.manifest().objects.values() if each.side == side and not each.delete_ts]


def check(world: TableWorld) -> None:
    """Every snapshot, and all changes, are what they were."""
    for ts in (START, *world.moments(), world.ts):
        assert world.snapshot(ts) == world.versions.at(ts)
    target = CopiedTable({}, START - 1, in_order=True, coalesced=False)
    target.take_all(world.changes(START - 1, world.ts, coalesce=False))
    assert sorted(target.seen, key=lambda step: step[:3]) == world.versions.steps(0, world.ts)


def test_merged_data_is_ordered_by_handle_and_has_live_rows_only(world: TableWorld) -> None:
    put(world, 5, 3, 1)
    world.flush()
    put(world, 4, 3)
    world.flush()
    world.commit(delete=[(1,)])
    flushed_ts = world.flush()
    assert world.store.merge(1) == 1
    (merged,) = current(world, "data")
    rows = read_object(world.storage.open(), 1, merged)
    assert rows["id"].to_pylist() == [3, 4, 5]
    assert (merged.kind, merged.create_ts, merged.rows) == ("merged", flushed_ts, 3)
    assert current(world, "tombstone") == []
    check(world)


def test_a_delete_that_is_flushed_before_the_merge_commits_is_transferred(world: TableWorld) -> None:
    put(world, 1, 2, 3)
    world.flush()
    put(world, 4, 5)
    world.flush()
    plan, output = written(world)
    deleted_ts = world.commit(item("integer", 2, "newer"), delete=[(4,)])
    world.flush()
    assert world.store.commit_merge(1, plan, output)
    moved = [each for each in current(world, "tombstone") if each.kind == "merged"]
    assert [(each.create_ts, each.min_ts, each.rows) for each in moved] == [(plan.ts, deleted_ts, 2)]
    rows = read_object(world.storage.open(), 1, moved[0])
    assert rows.schema.remove_metadata() == MERGED_TOMBSTONES
    data = read_object(world.storage.open(), 1, output.data[0])
    assert rows[OBJECT].to_pylist() == [output.data[0].id] * 2
    assert rows[HANDLE].to_pylist() == data[HANDLE].take(rows[OFFSET]).to_pylist()
    check(world)


def test_deletes_of_several_flushes_and_of_another_merge_are_transferred(world: TableWorld) -> None:
    put(world, *range(1, 9))
    world.flush()
    put(world, *range(8, 17))  # the row that this ends is dead before the merge; its handle is not
    world.flush()
    plan, output = written(world)
    for number in (1, 10, 2):
        world.commit(item("integer", number, "new"), delete=[(number + 2,)])
        world.flush()
    taken = {each.id for each in plan.data}
    newer = world.store.ownership(1).state
    others = MergePlan(
        table_id=1, base_seq=newer.seq, ts=newer.flushed_ts, made_ms=plan.made_ms, target_bytes=1 << 20,
        schema=plan.schema, data=(), tables=(), deleting=(),
        tombstones=tuple(current(world, "tombstone")), kept=frozenset(taken), gone=(),
    )  # fmt: skip
    rewritten = write_merge(others, world.storage.open(), world.settings.data / "elsewhere")
    assert world.store.commit_merge(1, others, rewritten)
    check(world)
    assert world.store.commit_merge(1, plan, output)
    check(world)


def test_a_commit_at_the_timestamp_of_the_merge_is_in_it_once(world: TableWorld) -> None:
    put(world, 1, 2)
    world.flush()
    same = world.commit(item("integer", 1, "newer"), delete=[(2,)])
    world.commit(item("integer", 7, "at the same time"), at=same, start=same - 2)
    assert world.flush() == same
    plan, output = written(world)
    assert plan.ts == same
    world.commit(item("integer", 7, "later"))
    world.flush()
    assert world.store.commit_merge(1, plan, output)
    check(world)


def test_an_output_that_lacks_rows_or_is_for_another_time_is_refused(world: TableWorld) -> None:
    put(world, 1, 2, 3)
    world.flush()
    world.commit(item("integer", 4, "new"), delete=[(2,)])
    world.flush()
    plan, output = written(world)
    early = tuple(replace(each, create_ts=each.create_ts - 1) for each in output.data)
    for wrong in (MergeOutput((), output.tombstones), MergeOutput(early, output.tombstones)):
        with pytest.raises(Invalid, match="does not have the rows of its inputs"):
            world.store.commit_merge(1, plan, wrong)
    check(world)
    assert world.store.commit_merge(1, plan, output)
    check(world)


def test_a_merge_is_not_committed_once_another_has_taken_an_input(world: TableWorld) -> None:
    put(world, 1)
    world.flush()
    put(world, 2)
    world.flush()
    late = written(world)
    assert world.store.merge(1) == 1
    assert not world.store.commit_merge(1, *late)
    check(world)


def test_a_merge_is_not_committed_once_one_of_its_inputs_is_gone(world: TableWorld) -> None:
    put(world, 1)
    world.flush()
    put(world, 2)
    world.flush()
    late, output = written(world)
    first = replace(late, data=late.data[:1], tables=late.tables[:1])
    rewritten = write_merge(first, world.storage.open(), world.settings.data / "elsewhere")
    assert world.store.commit_merge(1, first, rewritten)
    assert not world.store.commit_merge(1, late, output)
    check(world)


def test_rows_that_are_all_dead_leave_no_object(world: TableWorld) -> None:
    for number in (1, 2):
        put(world, number)
        world.flush()
        world.commit(delete=[(number,)])
        world.flush()
    assert world.store.merge(1) == 1
    assert current(world, "data") == current(world, "tombstone") == []
    check(world)


def test_what_took_as_long_as_orphans_live_is_not_committed(world: TableWorld) -> None:
    put(world, 1)
    world.flush()
    put(world, 2)
    world.flush()
    plan, output = written(world)
    world.clock.advance(world.settings.upkeep.orphan_age_s / 2)
    assert not world.store.commit_merge(1, plan, output)


def test_outputs_are_cut_at_the_target_size(world: TableWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.eventstore.objects.object_file.ROW_GROUP_ROWS", 4)
    monkeypatch.setattr("penstock.columnar.sorted_spill.SLICE_ROWS", 4)
    put(world, *range(10, 0, -1))
    world.flush()
    put(world, *range(11, 20))
    world.flush()
    plan = replace(written(world)[0], target_bytes=1)
    output = write_merge(plan, world.storage.open(), world.settings.data / "x", sort_bytes=300)
    assert [each.rows for each in output.data] == [4, 4, 4, 4, 3]
    assert all(low.key_max < high.key_min for low, high in zip(output.data, output.data[1:], strict=False))
    world.commit(delete=[(each,) for each in (1, 4, 5, 9, 13, 19)])
    world.flush()
    assert world.store.commit_merge(1, plan, output)
    check(world)


@pytest.mark.parametrize("happened", [False, True])
def test_an_answer_that_is_lost_is_found_out(
    world: TableWorld, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    put(world, 1)
    world.flush()
    put(world, 2)
    world.flush()
    plan, output = written(world)
    storage, create = world.storage.open(), world.storage.open().create

    def lost(path: str, data: bytes) -> bool:
        if happened:
            create(path, data)
        raise Unavailable("lost")

    with monkeypatch.context() as patched:
        patched.setattr(storage, "create", lost)
        with pytest.raises(Unavailable):
            world.store.commit_merge(1, plan, output)
    check(world)
    assert world.store.commit_merge(1, plan, output)
    assert [each.kind for each in current(world, "data")] == ["merged"]
    world.commit(delete=[(1,)])
    world.flush()
    check(world)


def test_an_owner_that_was_replaced_learns_it(world: TableWorld) -> None:
    put(world, 1)
    world.flush()
    put(world, 2)
    world.flush()
    plan, output = written(world)
    Ownership(world.storage.open(), 1, writer="another", clock=world.clock)
    with pytest.raises(Fenced, match="another"):
        world.store.commit_merge(1, plan, output)
    assert all(each.kind == "appendable" for each in current(world, "data"))
