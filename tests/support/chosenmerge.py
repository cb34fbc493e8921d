"""Merges of objects that a test names, whether or not they are worth it."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from penstock.eventstore.manifest import ManifestState, ObjectInfo
from penstock.eventstore.upkeep.merge import MergeOutput, MergePlan, plan_merge, write_merge
from penstock.eventstore.upkeep.merge_policy import MergeChoice, MergePolicy
from support.tableworld import TableWorld
from support.travel import sent


@dataclass(frozen=True, slots=True)
class ChosenMerge(MergePolicy):
    """Takes what it is told to (`taken`, by id), and whatever tombstones delete nothing then."""

    taken: frozenset[str] = frozenset()

    def choose(self, state: ManifestState) -> MergeChoice:
        """See MergePolicy."""
        current = current_objects(state)
        data = tuple(each for each in current if each.side == "data" and each.id in self.taken)
        kept = {each.id for each in current if each.side == "data"}.difference(each.id for each in data)
        tombstones = [each for each in current if each.side == "tombstone"]
        gone = tuple(each for each in tombstones if not kept & {target for target, _ in each.targets or ()})
        rewritten = tuple(each for each in tombstones if each.id in self.taken and each not in gone)
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
        """Whether all that it rewrites is still part of the table, and something is there to be removed."""
        there = {each.id for each in current_objects(world.manifest(self.plan.table_id))}
        rewritten = {each.id for each in (*self.plan.data, *self.plan.tombstones)}
        return rewritten <= there and not there.isdisjoint(rewritten | {each.id for each in self.plan.gone})


def current_objects(state: ManifestState) -> list[ObjectInfo]:
    """The objects that no merge has taken, by id."""
    found = [each for each in state.objects.values() if not each.delete_ts]
    return sorted(found, key=lambda each: each.id)


def begin_merge(
    world: TableWorld, scratch: Path, taken: Collection[str] | None = None, *, physical_id: int = 0
) -> WrittenMerge:
    """Write a merge of some objects, or of all; every slice of rows becomes an object of its own."""
    table_id = physical_id or world.ids[0]
    state = world.store.ownership(table_id).state
    chosen = [each.id for each in current_objects(state)] if taken is None else taken
    policy = ChosenMerge(target_bytes=1, taken=frozenset(chosen))
    plan = plan_merge(table_id, state, policy, now_ms=world.clock.wall_ms())
    assert plan is not None
    output = write_merge(sent(plan), world.storage.open(), scratch, clock=world.clock)
    return WrittenMerge(plan, sent(output))
