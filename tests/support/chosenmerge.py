"""Merges of objects that a test names, whether or not they are worth it."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from penstock.eventstore.manifest import ManifestState, ObjectInfo
from penstock.eventstore.upkeep.merge import MergeOutput, MergePlan, plan_merge, write_merge
from penstock.eventstore.upkeep.merge_policy import MergeChoice, MergePolicy
from support.tableworld import TableWorld
from support.travel import send_copy


@dataclass(frozen=True, slots=True)
class ChosenMerge(MergePolicy):
    """Merges the objects in `taken` (by id), and the tombstones that then delete nothing."""

    taken: frozenset[str] = frozenset()

    def choose(self, state: ManifestState) -> MergeChoice:
        """Choose the objects that the test names."""
        current = current_objects(state)
        data = tuple(info for info in current if info.side == "data" and info.id in self.taken)
        kept = {info.id for info in current if info.side == "data"}.difference(info.id for info in data)
        tombstones = [info for info in current if info.side == "tombstone"]
        gone = tuple(
            tombstone
            for tombstone in tombstones
            if not kept & {target for target, _ in tombstone.targets or ()}
        )
        rewritten = tuple(
            tombstone for tombstone in tombstones if tombstone.id in self.taken and tombstone not in gone
        )
        return MergeChoice(data, rewritten, gone)


@dataclass(frozen=True, slots=True)
class WrittenMerge:
    """A merge that was written by another process, and is not committed."""

    plan: MergePlan
    output: MergeOutput

    def commit(self, world: TableWorld) -> bool:
        """Let the owner commit it; False when another merge took one of its objects first."""
        return world.store.commit_merge(self.plan.table_id, self.plan, self.output)

    def is_possible(self, world: TableWorld) -> bool:
        """Return whether the table still has all that the merge rewrites, and something to remove."""
        there = {info.id for info in current_objects(world.manifest(self.plan.table_id))}
        rewritten = {info.id for info in (*self.plan.data, *self.plan.tombstones)}
        return rewritten <= there and not there.isdisjoint(rewritten | {info.id for info in self.plan.gone})


def current_objects(state: ManifestState) -> list[ObjectInfo]:
    """Return the objects that no merge has taken, by id."""
    found = [info for info in state.objects.values() if not info.delete_ts]
    return sorted(found, key=lambda each: each.id)


def begin_merge(
    world: TableWorld, scratch: Path, taken: Collection[str] | None = None, *, physical_id: int = 0
) -> WrittenMerge:
    """Write a merge of some objects, or of all; every slice of rows becomes an object of its own."""
    table_id = physical_id or world.ids[0]
    state = world.store.ownership(table_id).state
    chosen = [info.id for info in current_objects(state)] if taken is None else taken
    policy = ChosenMerge(target_bytes=1, taken=frozenset(chosen))
    plan = plan_merge(table_id, state, policy, now_ms=world.clock.wall_ms())
    assert plan is not None
    output = write_merge(send_copy(plan), world.storage.open(), scratch, clock=world.clock)
    return WrittenMerge(plan, send_copy(output))
