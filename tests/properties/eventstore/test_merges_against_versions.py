"""Merges of any objects, beside anything that may happen meanwhile: nothing that is read changes.

Every flush ends at a commit, so every merge has the timestamp of a user's transaction.
"""

import pickle
import tempfile
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.eventstore.manifest import ManifestState
from penstock.eventstore.objects import object_file
from penstock.eventstore.upkeep import merge_policy
from penstock.eventstore.upkeep.merge import MergeOutput, MergePlan, plan_merge, write_merge
from penstock.eventstore.upkeep.merge_policy import MergeChoice, MergePolicy
from penstock.tables.alter import add_column
from penstock.testing.versions import CopiedTable
from support.campaign import examples
from support.itemtables import TABLES, item, item_table
from support.tableworld import START, TableWorld

WORLDS = count()
NUMBERS = range(1, 13)


@dataclass(frozen=True, slots=True)
class AnyChoice(MergePolicy):
    """Takes objects by the bits of a number; what is gone follows from that."""

    bits: int = 0

    def choose(self, state: ManifestState) -> MergeChoice | None:
        current = sorted(
            (each for each in state.objects.values() if not each.delete_ts), key=lambda each: each.id
        )
        chosen = {each.id for at, each in enumerate(current) if self.bits >> (at % 12) & 1}
        data = tuple(each for each in current if each.side == "data" and each.id in chosen)
        kept = [each for each in current if each.side == "data" and each.id not in chosen]
        tombstones = merge_policy._dead_tombstones(
            kept, [each for each in current if each.side == "tombstone"]
        )
        gone = tuple(each.info for each in tombstones if each.dead_share == 1)
        rewritten = tuple(each.info for each in tombstones if each.dead_share < 1 and each.info.id in chosen)
        return MergeChoice(data, rewritten, gone) if data or rewritten or gone else None


numbers = st.frozensets(st.sampled_from(NUMBERS), min_size=1, max_size=6)
works = st.tuples(st.just("work"), st.tuples(numbers, numbers, st.booleans()))
bits = st.one_of(st.just((1 << 12) - 1), st.integers(1, (1 << 12) - 1))
alters = st.tuples(st.just("alter"), st.none())
crashes = st.tuples(st.just("crash"), st.none())
collects = st.tuples(st.just("collect"), st.none())
plans = st.tuples(st.just("plan"), bits)
commits = st.tuples(st.just("commit"), st.integers(0, 2))
meanwhile = st.lists(st.one_of(works, works, works, plans, commits, crashes), max_size=4)
merges = st.tuples(st.just("merge"), st.tuples(bits, meanwhile))
steps = st.one_of(works, works, merges, merges, plans, alters, collects)


class Merging:
    """A table, and merges of it that were written and not committed yet."""

    def __init__(self, world: TableWorld, kind: str, target_bytes: int) -> None:
        self.world = world
        self.kind = kind
        self.target_bytes = target_bytes
        self.written: list[tuple[MergePlan, MergeOutput]] = []

    def step(self, what: str, given: Any) -> None:
        world = self.world
        if what == "work":
            self.work(*given)
        elif what == "merge":
            self.plan(given[0])
            for step in given[1]:
                self.step(*step)
            self.step("commit", -1)
        elif what == "plan":
            self.plan(given)
        elif what == "commit" and self.written:
            self.commit(*self.written.pop(given % len(self.written)))
        elif what == "alter" and len(world.table.schemas) < 3:
            nth = len(world.table.schemas)
            world.alter(add_column(world.versions.table, f"extra{nth}", "varchar(20) default 'none'"))
        elif what == "crash":
            world.crash()
        elif what == "collect":
            world.store.collect(1)

    def work(self, put: frozenset[int], delete: frozenset[int], flush: bool) -> None:
        """A transaction; often one row is put by it and the row before it deleted."""
        keys = [self.world.key(item(self.kind, number, "")) for number in delete - put]
        gone = [key for key in keys if self.world.versions.last(key) is not None]
        self.world.commit(*(self.row(number) for number in put), delete=gone)
        if flush:
            self.world.flush()

    def row(self, number: int) -> dict[str, Any]:
        more = {"extra1": "yes"} if len(self.world.table.schemas) > 1 and number % 2 else {}
        return item(self.kind, number, f"{number} at {self.world.ts}" + "." * 20, **more)

    def plan(self, bits: int) -> None:
        state = self.world.store.ownership(1).state
        plan = plan_merge(1, state, AnyChoice(self.target_bytes, bits), now_ms=self.world.clock.wall_ms())
        if plan is not None:
            travelled = pickle.loads(pickle.dumps(plan))
            assert travelled == plan
            scratch = self.world.settings.data / "elsewhere"
            output = write_merge(travelled, self.world.storage.open(), scratch, sort_bytes=1000)
            self.written.append((plan, pickle.loads(pickle.dumps(output))))

    def commit(self, plan: MergePlan, output: MergeOutput) -> None:
        before = self.world.manifest()
        inputs = {each.id for each in (*plan.data, *plan.tombstones)}
        current = {each.id for each in before.objects.values() if not each.delete_ts}
        committed = self.world.store.commit_merge(1, plan, output)
        if inputs:
            assert committed == (inputs <= current)
        if committed:
            assert self.world.store.commit_merge(1, plan, output) == bool(output.objects), "asked again"
            self.check_sorted()

    def check_sorted(self) -> None:
        state = self.world.manifest()
        for each in state.objects.values():
            if each.kind == "merged":
                assert each.create_ts <= state.flushed_ts

    def check(self) -> None:
        world = self.world
        world.flush()
        versions, oldest_ts = world.versions, world.manifest().oldest_ts
        moments = [ts for ts in (START, *world.moments(), world.ts) if ts >= oldest_ts]
        for ts in moments:
            assert world.snapshot(ts) == versions.at(ts)
        for from_ts in moments[:: max(1, len(moments) // 4)]:
            if from_ts < world.ts:
                target = CopiedTable(versions.at(from_ts), from_ts, in_order=True, coalesced=False)
                target.take_all(world.changes(from_ts, world.ts, coalesce=False))
                assert sorted(target.seen, key=lambda step: step[:3]) == versions.steps(from_ts, world.ts)


@settings(max_examples=examples(20, 60), deadline=None)
@given(
    history=st.lists(steps, min_size=5, max_size=16),
    kind=st.sampled_from(sorted(TABLES)),
    large=st.sampled_from([600, 1 << 20]),
    target=st.sampled_from([1, 1 << 20]),
    targets=st.sampled_from([0, 2, 256]),
)
def test_nothing_that_is_read_changes(
    history: list[tuple[str, Any]], kind: str, large: int, target: int, targets: int
) -> None:
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as folder:
        patched.setattr(object_file, "ROW_GROUP_ROWS", 3)
        patched.setattr(object_file, "TOMBSTONE_GROUP_ROWS", 2)
        patched.setattr(object_file, "TARGETS_MAX", targets)
        url = f"memory:///merges-{next(WORLDS)}"
        upkeep = {"history_ttl_s": 0, "merge_target_bytes": 1024}
        with TableWorld(
            Path(folder), item_table(kind), url=url, large_txn_bytes=large, upkeep=upkeep
        ) as world:
            merging_table = Merging(world, kind, target)
            for what, value in history:
                merging_table.step(what, value)
            merging_table.check()
            for plan, output in merging_table.written:
                merging_table.commit(plan, output)
            merging_table.check()
