"""Changes and snapshots against a plain dict of versions, whatever happens to the table in between.

Tables are read by their names. The name's rows are those of the model, or there is an error for which the
model has a reason: history was collected, a DDL took rows away, or something has not arrived yet. A failure
prints the steps that lead to it. The same run again: `pytest <this file> --hypothesis-seed=<n>`, with the
seed that pytest shows; ids and time are the same in every run. PENSTOCK_EXAMPLES=2000 looks longer.
"""

import random  # noqa: TID251 - seeded, by Hypothesis or here
import shutil
import tempfile
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from penstock.clock import compose_ts
from penstock.eventstore.history_holds import HistoryHolds
from penstock.eventstore.read.find import list_tables
from penstock.settings import UpkeepSettings
from penstock.tables.alter import add_column, drop_column
from support.agreement import MODES, NamedReads
from support.campaign import examples
from support.chosenmerge import WrittenMerge, begin_merge, current_objects
from support.itemtables import TABLES, item, item_table
from support.tableworld import NAME, START, ModelTable, TableWorld

EXAMPLES = examples(12, 25)
LONG = compose_ts(2000)  # a step in time, after which removed objects may go
WORLDS = count()

OTHER_NAMES = ["shop.renamed", "shop.more"]

numbers = st.sets(st.integers(1, 8), min_size=1, max_size=5)
mixes = st.randoms(use_true_random=False)
arrivals = st.sampled_from(["nothing", "share", "share", "flush", "crash"])  # what follows a DDL


class ChangesAgainstVersions(RuleBasedStateMachine):
    """One table, whole or in partitions, with everything that may happen to it, and one to exchange with."""

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
        self.columns = count(1)
        self.other: ModelTable | None = None
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
        at = into % len(world.ids)
        rows = [self.row(number, world.ids[at]) for number in sorted(chosen)]
        gone = [key for key in map(world.key, rows) if delete and world.versions.last(key) is not None]
        kept = [row for row in rows if world.key(row) not in gone]
        world.commit(*kept, delete=gone, into=at, **times)

    def row(self, number: int, physical_id: int) -> dict[str, Any]:
        world, rowid = self.world, number
        more = {name: f"e{number}" for name in self.extras() if number % 2}
        name = f"{number} at {world.ts}" + "." * 30
        if self.kind == "not clustered":  # a row that is put again may be another one with the same key
            is_new = number % 3 == 0 or world.versions.last((number,)) is None
            kept = None if is_new else world.place((number,))
            if kept is None or world.table.held.get((physical_id, kept[1]), (number,)) != (number,):
                rowid = next(self.rowids)
            else:
                rowid = kept[1]
        return item(self.kind, number, name, rowid=rowid, **more)

    def extras(self) -> list[str]:
        """The columns that were added."""
        names = (column.name for column in self.world.versions.table.stored_columns)
        return [name for name in names if name.startswith("extra")]

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
        physical_id = data.draw(st.sampled_from(self.captured() or [0]))
        if not physical_id:
            return
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
        if merge.plan.table_id not in self.world.store.tables():
            return
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
            for each in self.captured()
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
        for each in self.captured():
            before_ts = self.world.manifest(each).oldest_ts
            self.world.store.merge(each) if what == "merge" else self.world.store.collect(each)
            if self.held_ts is not None:
                oldest_ts = self.world.manifest(each).oldest_ts
                assert oldest_ts <= max(before_ts, self.held_ts), "history went that somebody holds"

    def captured(self) -> list[int]:
        """The physical tables of the table that the store has taken."""
        return [each for each in self.world.ids if each in self.world.store.tables()]

    @rule(data=st.data(), hold=st.booleans())
    def watermark(self, data: st.DataObject, hold: bool) -> None:
        """Somebody needs history from some moment on, or no longer."""
        oldest_ts = max(self.world.manifest(each).oldest_ts for each in self.world.ids)
        kept = [ts for ts in self.moments() if ts >= max(oldest_ts, self.held_ts or 0)]
        self.hold(data.draw(st.sampled_from(kept)) if hold and kept else None)

    def hold(self, ts: int | None) -> None:
        self.held_ts = ts
        watermarks = HistoryHolds(self.world.storage.open(), self.world.clock)
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

    @rule(then=arrivals)
    def change_columns(self, then: str) -> None:
        """One is added, or when there are two the older is dropped."""
        table, extras = self.world.versions.table, self.extras()
        if len(extras) < 2:
            name = f"extra{next(self.columns)}"
            self.world.alter(add_column(table, name, "varchar(20) default 'none'"))
        else:
            self.world.alter(drop_column(table, extras[0]))
        self.arrive(then)

    @rule(then=arrivals)
    def truncate(self, then: str) -> None:
        self.world.truncate(self.world.table)
        self.arrive(then)

    @rule(
        meanwhile=st.lists(st.sampled_from(["share", "flush", "crash", "collect", "read"]), max_size=4),
        recover=st.booleans(),
        then=arrivals,
        mix=mixes,
    )
    def drop(self, meanwhile: list[str], recover: bool, then: str, mix: random.Random) -> None:
        """The table is dropped, and recovered after a while; or another one has its name then."""
        world, name = self.world, self.world.table.name
        world.drop(world.table)
        for each in meanwhile:
            world.tick()
            if each == "collect":
                world.collect_source()
            elif each == "read":
                world.resolve()
                NamedReads(world).of_snapshot(name, mix.choice(self.moments()))
            else:
                self.arrive(each)
        if recover:
            world.recover(world.table)
        else:
            partitions = (1, 2) if "partition" in world.versions.table.extra else ()
            world.table = world.create(name, item_table(self.kind, partitions=partitions))
        self.arrive(then)

    @precondition(lambda self: "partition" in self.world.versions.table.extra)
    @rule(
        what=st.sampled_from(["add", "drop", "truncate", "exchange", "reorganize"]),
        at=st.integers(0, 5),
        then=arrivals,
    )
    def change_partitions(self, what: str, at: int, then: str) -> None:
        world, table = self.world, self.world.table
        physical_id = table.ids[at % len(table.ids)]
        if what == "add" and len(table.ids) < 4:
            world.add_partition(table)
        elif what == "drop" and len(table.ids) > 1:
            world.drop_partition(table, physical_id)
        elif what == "truncate":
            world.truncate_partition(table, physical_id)
        elif what == "exchange":
            self.exchange(physical_id)
        elif what == "reorganize":
            world.reorganize_partition(table, physical_id)
        self.arrive(then)

    def exchange(self, physical_id: int) -> None:
        """Whoever comes has rows of its own, some with the handles of others."""
        world, other = self.world, self.other
        if other is None or other.versions.table.columns != world.versions.table.columns:
            if other is not None:
                world.drop(other)
            whole = {name: more for name, more in world.versions.table.extra.items() if name != "partition"}
            other = self.other = world.create("shop.other", replace(world.versions.table, extra=whole))
        else:
            taken = [key for key in other.places if key in world.table.places]
            world.commit(delete=taken, table=other)
        free = [
            number
            for number in (9, 10, 11)
            if self.world.key(item(self.kind, number, "")) not in {*world.table.places, *other.places}
        ]
        world.commit(*(item(self.kind, number, "other", rowid=number) for number in free), table=other)
        self.other = world.exchange_partition(world.table, physical_id, other)

    @rule(then=arrivals)
    def rename(self, then: str) -> None:
        """The table takes another name, or its own again."""
        world = self.world
        taken = [each.name for each in world.tables]
        free = [name for name in (NAME, *OTHER_NAMES) if name not in taken]
        world.rename((world.table, free[0]))
        self.arrive(then)

    @precondition(lambda self: self.other is not None)
    @rule(then=arrivals)
    def change_names(self, then: str) -> None:
        """The table and the other one take each other's names in one moment."""
        world, other = self.world, self.other
        assert other is not None
        world.rename((world.table, other.name), (other, world.table.name))
        self.arrive(then)

    def arrive(self, how: str) -> None:
        """What a DDL made is taken by the store, or not yet."""
        world = self.world
        if how == "crash":
            world.crash()
        elif how != "nothing":
            world.share()
            world.deliver()
        if how == "flush":
            world.flush()
            world.share()
        if self.held_ts is not None:
            self.hold(self.held_ts)

    @rule()
    def share(self) -> None:
        self.arrive("share")

    @rule()
    def collect_source(self) -> None:
        """The cluster forgets old descriptions of tables, and the next start begins without them."""
        self.world.collect_source()

    @rule(late=st.booleans())
    def descriptions_come_late(self, late: bool) -> None:
        self.world.schemas_late = late

    @rule(data=st.data())
    def read_a_snapshot(self, data: st.DataObject) -> None:
        name, ts = data.draw(st.sampled_from(self.names())), data.draw(st.sampled_from(self.moments()))
        NamedReads(self.world).of_snapshot(name, ts)

    @rule(data=st.data(), mode=st.sampled_from(sorted(MODES)), mix=mixes)
    def collect(self, data: st.DataObject, mode: str, mix: random.Random) -> None:
        ends = st.lists(st.sampled_from(self.moments()), min_size=2, max_size=2, unique=True)
        from_ts, to_ts = sorted(data.draw(ends))
        NamedReads(self.world).of_changes(data.draw(st.sampled_from(self.names())), from_ts, to_ts, mode, mix)

    def names(self) -> list[str]:
        """Every name that a table has or had, the table's own first."""
        found = {self.world.table.name: None, NAME: None}
        return list(found | {name: None for table in self.world.tables for _, name in table.names if name})

    def moments(self) -> list[int]:
        """What there is to be read, with the moments just before and after each commit and each DDL."""
        times = [*self.world.moments(), *self.world.ddl_times()]
        found = {START, START + 1, *(ts + by for ts in times for by in (-1, 0, 1))}
        return sorted(ts for ts in found if START <= ts <= self.world.ts)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            if self.world.table.name:  # else a rule has failed
                self.end()
        finally:
            self.world.close()
            shutil.rmtree(self.folder)

    def end(self) -> None:
        """When everything has arrived, every name has its rows, before a flush and after it."""
        world, mix = self.world, random.Random(self.world.ts)
        world.schemas_late = False
        world.tick()
        for flushed in (False, True):
            self.arrive("flush" if flushed else "share")
            world.tick()
            world.resolve()
            self.arrive("share")  # tables that were not complete when they ended are now
            to_ts = world.resolve()
            reads = NamedReads(world)
            from_ts = max(
                [START, *(world.manifest(each).oldest_ts for each in world.ids), *world.table.breaks]
            )
            for mode in ("all", mix.choice(sorted(MODES))):
                reads.of_changes(world.table.name, from_ts, to_ts, mode, mix)
            assert reads.of_snapshot(world.table.name, to_ts)
            for name in self.names():
                reads.of_snapshot(name, mix.choice(self.moments()))
                reads.of_changes(name, *sorted(mix.sample(self.moments(), 2)), mix.choice(sorted(MODES)), mix)
        assert list_tables(world.storage) == sorted(each.name for each in world.tables if each.name)


TestChangesAgainstVersions = ChangesAgainstVersions.TestCase
TestChangesAgainstVersions.settings = settings(max_examples=EXAMPLES, stateful_step_count=25, deadline=None)
