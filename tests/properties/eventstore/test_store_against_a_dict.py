"""The event store against a dict: what is flushed is there exactly once, whatever happens."""

import random  # noqa: TID251 - by numbers and seeds of Hypothesis
import shutil
import tempfile
import threading
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.errors import Unavailable
from penstock.eventstore.capture.store import EventStore
from penstock.object_storage import ObjectStorage, open_storage
from penstock.settings import CaptureSettings
from penstock.tables.decoding.decoder import TidbRowDecoder
from support.campaign import examples
from support.events import FixedSchemas, a_table, change, replay_objects
from support.powerloss import Disk
from support.rawbatches import Change, raw

TABLES = {1: a_table(1), 2: a_table(2)}
START = 1 << 58


class _Flaky(ObjectStorage):
    """Fails the next write, or the next creation before or after it takes effect."""

    fault = ""

    def create(self, path: str, data: bytes) -> bool:
        if self._strikes("before"):
            raise Unavailable("lost request")
        made = super().create(path, data)
        if self._strikes("after"):
            raise Unavailable("lost answer")
        return made

    def write(self, path: str, data: bytes | Path) -> None:
        if self._strikes("write"):
            raise Unavailable("lost object")
        super().write(path, data)

    def _strikes(self, fault: str) -> bool:
        if self.fault != fault:
            return False
        self.fault = ""
        return True


class StoreAgainstADict(RuleBasedStateMachine):
    """The source is modelled too: it delivers again whatever is above the ts a subscription starts from."""

    @initialize(
        memory=st.sampled_from([1, 14_000, 1 << 20]),
        large=st.sampled_from([400, 1 << 20]),
        sort=st.sampled_from([2000, 1 << 20]),
    )
    def begin(self, memory: int, large: int, sort: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-store-"))
        (self.folder / "wal").mkdir()
        self.disk = Disk(self.folder / "wal")
        self.disk.__enter__()
        clean = open_storage("memory:///")
        self.storage = _Flaky(clean.url, clean._store)
        self.settings = CaptureSettings(
            data=self.folder,
            flush_interval_s=3600,
            idle_flush_interval_s=10**9,
            flush_bytes=1 << 30,
            wal_segment_bytes=3000,
            memory_bytes=memory,
            sort_bytes=sort,
            large_txn_bytes=large,
        )
        self.ts = START
        self.history: dict[int, list[Change]] = {1: [], 2: []}  # the source's committed changes
        self.state: dict[int, dict[int, str]] = {1: {}, 2: {}}
        self.snapshots: dict[int, dict[int, dict[int, str]]] = {1: {START: {}}, 2: {START: {}}}
        self.pending: dict[int, list[Change]] = {1: [], 2: []}  # committed, not delivered yet
        self.open()

    def open(self) -> None:
        self.store = EventStore(
            self.settings, self.storage, decoder=TidbRowDecoder(), schemas=FixedSchemas.of(*TABLES.values())
        )
        self.store.start()
        self.rows = {table_id: self.store.open_table(table_id) for table_id in TABLES}
        for table_id, rows in self.rows.items():
            self.pending[table_id] = [each for each in self.history[table_id] if each[0] > rows.resolved_ts]

    @rule(
        table_id=st.sampled_from([1, 1, 1, 2]),
        transactions=st.lists(
            st.tuples(st.sets(st.integers(1, 6), min_size=1), st.booleans()), min_size=1, max_size=3
        ),
        hold_back=st.sampled_from([0, 0, 0, 1, 2]),
        repeat=st.integers(0, 4),
        mix=st.randoms(use_true_random=False),
        faults=st.lists(st.sampled_from(["", "write", "before", "after"]), max_size=2),
    )
    def work(
        self,
        table_id: int,
        transactions: list[tuple[set[int], bool]],
        hold_back: int,
        repeat: int,
        mix: random.Random,
        faults: list[str],
    ) -> None:
        """The source commits, delivers in any order (some not yet, some again), resolves; flushes follow."""
        for numbers, delete in transactions:
            self.commit(table_id, numbers, delete=delete)
        pending = self.pending[table_id]
        mix.shuffle(pending)
        batch, self.pending[table_id] = pending[hold_back:], pending[:hold_back]
        batch = [*batch, *mix.choices(self.history[table_id], k=repeat)]
        for start in range(0, len(batch), 3):
            done = threading.Event()
            if self.rows[table_id].consume_kv_events(raw(batch[start : start + 3]), done.set):
                assert done.wait(10)
        waiting = min((each[0] for each in self.pending[table_id]), default=self.ts + 1)
        self.rows[table_id].advance_resolved_ts(waiting - 1)
        for fault in faults:
            self.storage.fault = fault
            self.store.flush(table_id)
        self.storage.fault = ""

    def commit(self, table_id: int, numbers: set[int], *, delete: bool) -> None:
        self.ts += 2
        table, state = TABLES[table_id], self.state[table_id]
        for number in numbers:
            old = {"id": number, "name": state[number]} if number in state else None
            if delete and old is not None:
                made = change(table, self.ts, None, old)
                del state[number]
            else:
                state[number] = f"{number} at {self.ts}" + "." * 40
                made = change(table, self.ts, {"id": number, "name": state[number]}, old)
            self.history[table_id].append(made)
            self.pending[table_id].append(made)
        self.snapshots[table_id][self.ts] = dict(state)

    @rule()
    def crash(self) -> None:
        self.store.close(flush=False)
        self.open()

    @rule(garbage=st.binary(min_size=1, max_size=200))
    def crash_in_the_middle_of_a_write(self, garbage: bytes) -> None:
        self.store.close(flush=False)
        last = max((self.folder / "wal").glob("*.wal"))
        with last.open("ab") as file:
            file.write(garbage)
        self.open()

    @rule(
        table_id=st.sampled_from([1, 1, 1, 2]),
        numbers=st.sets(st.integers(1, 6), min_size=1),
        syncs=st.integers(0, 3),
        luck=st.none() | st.integers(0, 1 << 32),
    )
    def lose_power_or_the_process_while_rows_arrive(
        self, table_id: int, numbers: set[int], syncs: int, luck: int | None
    ) -> None:
        if luck is None:
            self.disk.kill_at(syncs)
        else:
            self.disk.lose_power_at(syncs, random.Random(luck).random)
        self.commit(table_id, numbers, delete=False)
        for row in self.pending[table_id]:
            done = threading.Event()
            try:
                if not self.rows[table_id].consume_kv_events(raw([row]), done.set):
                    continue
                while not done.wait(0.01) and not self.disk.dead:
                    pass
            except Unavailable:
                assert self.disk.dead
        if not self.disk.dead:
            self.rows[table_id].advance_resolved_ts(self.ts)
        self.store.close(flush=False)
        self.disk.restart()
        self.open()

    @rule(table_id=st.sampled_from([1, 1, 1, 2]))
    def give_up_and_take_back(self, table_id: int) -> None:
        self.store.close_table(table_id)
        rows = self.rows[table_id] = self.store.open_table(table_id)
        self.pending[table_id] = [each for each in self.history[table_id] if each[0] > rows.resolved_ts]

    @invariant()
    def objects_hold_exactly_what_was_committed(self) -> None:
        if not hasattr(self, "store"):
            return
        for table_id in TABLES:
            flushed_ts = self.store.ownership(table_id).state.flushed_ts
            found = {
                row["id"]: row["name"] for row in replay_objects(self.storage, table_id, flushed_ts).values()
            }
            newest = max((ts for ts in self.snapshots[table_id] if ts <= flushed_ts), default=START)
            assert found == self.snapshots[table_id][newest]

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close(flush=False)
            self.disk.__exit__()
            shutil.rmtree(self.folder)


TestStoreAgainstADict = StoreAgainstADict.TestCase
TestStoreAgainstADict.settings = settings(
    max_examples=examples(20, 60), stateful_step_count=25, deadline=None
)
