"""Changes and snapshots against a plain dict of versions, whatever happens to the table in between.

A failure prints the steps that lead to it. The same run again: `pytest <this file> --hypothesis-seed=<n>`,
with the seed that pytest shows; ids and time are the same in every run. PENSTOCK_EXAMPLES=2000 looks longer.
"""

import os
import random  # noqa: TID251 - seeded, by Hypothesis or here
import shutil
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from penstock.changes import collect_changes
from penstock.clock import compose_ts
from penstock.errors import StaleRead
from penstock.eventstore.snapshot import read_snapshot
from penstock.eventstore.watermarks import Watermarks
from penstock.settings import UpkeepSettings
from penstock.tables.alter import add_column
from penstock.testing.agreement import MODES, Agreement
from penstock.testing.chosenmerge import WrittenMerge, begin_merge, current_objects
from penstock.testing.itemtables import TABLES, item, item_table
from penstock.testing.tableworld import START, TableWorld

EXAMPLES = int(os.environ.get("PENSTOCK_EXAMPLES", "25"))
LONG = compose_ts(2000)  # a step in time, after which removed objects may go
WORLDS = count()

numbers = st.sets(st.integers(1, 8), min_size=1, max_size=5)
mixes = st.randoms(use_true_random=False)


class ChangesAgainstVersions(RuleBasedStateMachine):
    """One table, of one or two partitions, with everything that may happen to it."""

    @initialize(
        kind=st.sampled_from(sorted(TABLES)),
        partitions=st.sampled_from([(), (), (11, 12)]),
        memory=st.sampled_from([1, 1 << 20]),
        large=st.sampled_from([700, 1 << 20]),
        sort=st.sampled_from([2000, 1 << 20]),
        ttl_s=st.sampled_from([0, 0, 1]),
        hold=st.booleans(),
    )
    def begin(
        self,
        kind: str,
        partitions: tuple[int, ...],
        memory: int,
        large: int,
        sort: int,
        ttl_s: int,
        hold: bool,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-changes-"))
        self.kind = kind
        self.rowids = count(1000)
        self.merges: list[WrittenMerge] = []
        self.world = TableWorld(
            self.folder,
            item_table(kind, partitions=partitions),
            partitions=partitions,
            url=f"memory:///world-{next(WORLDS)}",
            memory_bytes=memory,
            large_txn_bytes=large,
            sort_bytes=sort,
            upkeep=UpkeepSettings(history_ttl_s=ttl_s, merge=False),
        )
        self.world.tick()
        self.world.resolve()
        self.hold(START if hold else None)

    @rule(
        transactions=st.lists(st.tuples(numbers, st.booleans()), min_size=1, max_size=3),
        together=st.booleans(),
        later=st.sampled_from([2, 2, 2, LONG]),
        into=st.integers(0, 1),
        then=st.sampled_from(["resolve", "resolve", "flush", "nothing"]),
    )
    def work(
        self, transactions: list[tuple[set[int], bool]], together: bool, later: int, into: int, then: str
    ) -> None:
        """Some transactions, perhaps with one commit-ts (then each row is in one of them only)."""
        world, done = self.world, set[int]()
        world.tick(later)
        ts = world.tick(len(transactions) + 1)
        for index, (chosen, delete) in enumerate(transactions):
            mine = chosen - done if together else chosen
            done |= chosen
            ts = ts if together or index == 0 else world.tick()
            self.commit(mine, delete, into, at=ts, start=ts - 1 - index)
        self.then(then)

    @rule(into=st.integers(0, 1), delete=st.booleans(), then=st.sampled_from(["resolve", "flush"]))
    def work_in_a_large_transaction(self, into: int, delete: bool, then: str) -> None:
        self.commit(set(range(1, 25)), delete, into)
        self.then(then)

    def commit(self, chosen: set[int], delete: bool, into: int, **times: int) -> None:
        """Rows that are there go, if that is wished; those that are not come, the others change."""
        world = self.world
        rows = [self.row(number) for number in sorted(chosen)]
        gone = [key for key in map(world.key, rows) if delete and world.versions.last(key) is not None]
        kept = [row for row in rows if world.key(row) not in gone]
        world.commit(*kept, delete=gone, into=into % len(world.ids), **times)

    def row(self, number: int) -> dict[str, Any]:
        more = {"extra": f"e{number}"} if len(self.world.schemas.all) > 1 and number % 2 else {}
        name = f"{number} at {self.world.ts}" + "." * 30
        rowid = number
        if self.kind == "not clustered":  # a row that is put again may be another one with the same key
            is_new = number % 3 == 0 or self.world.versions.last((number,)) is None
            rowid = next(self.rowids) if is_new else self.world.place((number,))[1]
        return item(self.kind, number, name, rowid=rowid, **more)

    def then(self, what: str) -> None:
        if what == "resolve":
            self.world.resolve()
        elif what == "flush":
            self.world.flush()

    @precondition(lambda self: self.kind == "not clustered")
    @rule(number=st.integers(1, 8), other=st.integers(1, 8), then=st.sampled_from(["resolve", "flush"]))
    def change_a_primary_key(self, number: int, other: int, then: str) -> None:
        """A row keeps its handle and takes another key; whatever had that key goes."""
        if self.world.versions.last((number,)) is None or number == other:
            return
        physical_id, handle = self.world.place((number,))
        row = item(self.kind, other, f"{number} became {other}", rowid=handle)
        self.world.commit(row, into=self.world.ids.index(physical_id))
        self.then(then)

    @rule(data=st.data())
    def begin_a_merge(self, data: st.DataObject) -> None:
        """Of any objects, whether or not that is worth it; it is committed later, or never."""
        physical_id = data.draw(st.sampled_from(self.world.ids))
        current = [each.id for each in current_objects(self.world.manifest(physical_id))]
        if current:
            taken = data.draw(st.sets(st.sampled_from(current), min_size=1))
            scratch = self.folder / "elsewhere"
            self.merges.append(begin_merge(self.world, scratch, taken, physical_id=physical_id))

    @precondition(lambda self: self.merges)
    @rule(data=st.data(), then=st.sampled_from(["go on", "crash"]))
    def end_a_merge(self, data: st.DataObject, then: str) -> None:
        """It counts unless another merge took one of its objects first."""
        merge = self.merges.pop(data.draw(st.integers(0, len(self.merges) - 1)))
        possible = merge.is_possible(self.world)
        assert merge.commit(self.world) is possible
        if then == "crash":
            self.world.crash()

    @rule(chosen=numbers, then=st.sampled_from(["flush", "flush", "resolve"]), collect=st.booleans())
    def delete_while_all_is_merged(self, chosen: set[int], then: str, collect: bool) -> None:
        """Rows end after a merge was written and before it is committed."""
        scratch = self.folder / "elsewhere"
        merges = [
            begin_merge(self.world, scratch, physical_id=each)
            for each in self.world.ids
            if current_objects(self.world.manifest(each))
        ]
        self.commit(chosen, True, 0)
        self.then(then)
        assert all(merge.commit(self.world) for merge in merges)
        if collect:
            self.upkeep_by("collect")

    @rule(what=st.sampled_from(["merge", "collect"]))
    def upkeep(self, what: str) -> None:
        self.upkeep_by(what)

    def upkeep_by(self, what: str) -> None:
        for each in self.world.ids:
            self.world.store.merge(each) if what == "merge" else self.world.store.collect(each)
        if self.held_ts is not None:
            assert self.oldest_ts <= self.held_ts, "history went that somebody holds"

    @rule(data=st.data(), hold=st.booleans())
    def watermark(self, data: st.DataObject, hold: bool) -> None:
        """Somebody needs history from some moment on, or no longer."""
        kept = [ts for ts in self.moments() if ts >= max(self.oldest_ts, self.held_ts or 0)]
        self.hold(data.draw(st.sampled_from(kept)) if hold and kept else None)

    def hold(self, ts: int | None) -> None:
        self.held_ts = ts
        watermarks = Watermarks(self.world.storage.open(), self.world.clock)
        for each in self.world.ids:
            if self.held_ts is not None:
                watermarks.hold(each, "job", self.held_ts)
            else:
                watermarks.release(each, "job")

    @rule(what=st.sampled_from(["nothing", "nothing", "disk", "new index"]))
    def crash(self, what: str) -> None:
        """Memory is lost, or with it the disk, or what the index learnt since an earlier crash."""
        self.world.store.close(flush=False)
        index, kept = self.world.settings.data / "index", self.folder / "index"
        if what == "disk":
            shutil.rmtree(self.world.settings.data)
        elif what == "new index" and kept.exists():
            shutil.rmtree(index)
            shutil.copytree(kept, index)
        elif not kept.exists():
            shutil.copytree(index, kept)
        self.world.crash()
        if what == "disk":
            self.world.resolve()

    @precondition(lambda self: len(self.world.schemas.all) < 3)
    @rule()
    def add_a_column(self) -> None:
        table, nth = self.world.versions.table, len(self.world.schemas.all)
        self.world.alter(add_column(table, "extra" if nth == 1 else "more", "varchar(20) default 'none'"))

    @rule(data=st.data())
    def read_a_snapshot(self, data: st.DataObject) -> None:
        ts = data.draw(st.sampled_from(self.moments()))
        if ts < self.oldest_ts:
            with pytest.raises(StaleRead):
                list(read_snapshot(self.world.view(), ts))
        else:
            Agreement(self.world).of_snapshot(ts)

    @rule(data=st.data(), mode=st.sampled_from(sorted(MODES)), mix=mixes)
    def collect(self, data: st.DataObject, mode: str, mix: random.Random) -> None:
        ends = st.lists(st.sampled_from(self.moments()), min_size=2, max_size=2, unique=True)
        from_ts, to_ts = sorted(data.draw(ends))
        if from_ts < self.oldest_ts:
            with pytest.raises(StaleRead):
                collect_changes(self.world.view(), from_ts, to_ts).next()
        else:
            Agreement(self.world).of_changes(from_ts, to_ts, mode, mix)

    @property
    def oldest_ts(self) -> int:
        return max(self.world.manifest(each).oldest_ts for each in self.world.ids)

    def moments(self) -> list[int]:
        """What can be read, with the moments just before and after each commit."""
        readable = min(self.world.store.readable_ts(each) for each in self.world.ids)
        found = {START, START + 1, *(ts + by for ts in self.world.moments() for by in (-1, 0, 1))}
        return sorted(ts for ts in found if ts <= readable)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.world.tick()
            to_ts, mix = self.world.resolve(), random.Random(self.world.ts)
            for mode in ("all", mix.choice(sorted(MODES))):
                Agreement(self.world).of_changes(max(START, self.oldest_ts), to_ts, mode, mix)
            Agreement(self.world).of_snapshot(to_ts)
        finally:
            self.world.close()
            shutil.rmtree(self.folder)


TestChangesAgainstVersions = ChangesAgainstVersions.TestCase
TestChangesAgainstVersions.settings = settings(max_examples=EXAMPLES, stateful_step_count=25, deadline=None)
