"""Storage and a capture's data from different moments, as after a restore of one of them: nothing is missing.

The source keeps all history here, and delivers again whatever is above the ts that a table goes on from.
"""

import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.eventstore.capture.store import EventStore
from penstock.eventstore.log.table_log import TableLog
from penstock.object_storage import open_storage
from penstock.settings import CaptureSettings
from penstock.tables.decoding.decoder import TidbRowDecoder
from support.campaign import examples
from support.events import FixedSchemas, a_table, change, replay_objects
from support.rawbatches import Change, raw

TABLES = {1: a_table(1), 2: a_table(2)}
START = 1 << 58
PARTS = ("data", "events")


@dataclass(frozen=True, slots=True)
class Step:
    """A commit to a table, and what follows on it."""

    table_id: int
    numbers: frozenset[int]
    delete: bool
    then: str


@dataclass(frozen=True, slots=True)
class Period:
    """What happens between two restarts, and how old the copies are that the second one has: 0 is of now."""

    steps: Sequence[Step]
    data_age: int
    events_age: int


STEPS = st.builds(
    Step,
    table_id=st.sampled_from([1, 1, 1, 2]),
    numbers=st.frozensets(st.integers(1, 5), min_size=1, max_size=3),
    delete=st.booleans(),
    then=st.sampled_from(["", "resolve", "flush", "flush", "flush", "merge", "move"]),
)
PERIODS = st.builds(
    Period,
    steps=st.lists(STEPS, min_size=1, max_size=6),
    data_age=st.sampled_from([0, 0, 1, 2]),
    events_age=st.sampled_from([0, 1, 1, 2]),
)


FLUSH = Step(1, frozenset({1, 2}), delete=False, then="flush")
RESOLVE = Step(1, frozenset({1, 3}), delete=False, then="resolve")
CUT_OFF = [Period([FLUSH], 0, 0), Period([FLUSH] * 5 + [RESOLVE], 0, 1)]
NEVER_LOGGED = [Period([FLUSH], 0, 0), Period([FLUSH], 1, 0), Period([RESOLVE], 0, 2)]
INDEX_OF_OTHER_ENTRIES = [Period([FLUSH], 0, 0), Period([FLUSH], 0, 1), Period([], 0, 0)]


class World:
    """A store over a folder of data and one of objects, and the source of its changes."""

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        self.folder = folder
        self.settings = CaptureSettings(
            data=folder / "data",
            flush_interval_s=3600,
            idle_flush_interval_s=10**9,
            flush_bytes=1 << 30,
            wal_segment_bytes=segment_bytes,
        )
        for name in PARTS:
            (folder / name).mkdir()
        self.ts = START
        self.copies = 0
        self.history: dict[int, list[Change]] = {table_id: [] for table_id in TABLES}
        self.versions: dict[int, dict[int, dict[int, str]]] = {table_id: {START: {}} for table_id in TABLES}
        self.copy()
        self.open()

    def open(self) -> None:
        self.storage = open_storage(f"file://{self.folder}/events")
        self.store = EventStore(
            self.settings, self.storage, decoder=TidbRowDecoder(), schemas=FixedSchemas.of(*TABLES.values())
        )
        self.store.start()
        self.rows: dict[int, TableLog] = {}
        for table_id in TABLES:
            self.take(table_id)

    def take(self, table_id: int) -> None:
        self.rows[table_id] = self.store.open_table(table_id)
        self.deliver(table_id, self.rows[table_id].resolved_ts)

    def deliver(self, table_id: int, from_ts: int) -> None:
        batch = [each for each in self.history[table_id] if each[0] > from_ts]
        done = threading.Event()
        if batch and self.rows[table_id].consume_kv_events(raw(batch), done.set):
            assert done.wait(10)

    def run(self, step: Step) -> None:
        before = self.ts
        self.commit(step)
        self.deliver(step.table_id, before)
        if step.then:
            self.rows[step.table_id].advance_resolved_ts(self.ts)
        if step.then in ("flush", "merge"):
            assert self.store.flush(step.table_id)
        if step.then == "merge":
            self.store.merge(step.table_id)
        if step.then == "move":  # another capture has it for a moment
            self.store.close_table(step.table_id)
            self.take(step.table_id)

    def commit(self, step: Step) -> None:
        table, versions = TABLES[step.table_id], self.versions[step.table_id]
        state = dict(versions[max(versions)])
        self.ts += 2
        for number in step.numbers:
            old = {"id": number, "name": state[number]} if number in state else None
            if step.delete and old is not None:
                del state[number]
                made = change(table, self.ts, None, old)
            else:
                state[number] = f"{number} at {self.ts}" + "." * 30
                made = change(table, self.ts, {"id": number, "name": state[number]}, old)
            self.history[step.table_id].append(made)
        versions[self.ts] = state

    def copy(self) -> None:
        for name in PARTS:
            shutil.copytree(self.folder / name, self.folder / f"{name}-{self.copies}")
        self.copies += 1

    def restart(self, data_age: int, events_age: int) -> None:
        self.store.close(flush=False)
        self.copy()
        for name, age in zip(PARTS, (data_age, events_age), strict=True):
            shutil.rmtree(self.folder / name)
            shutil.copytree(self.folder / f"{name}-{max(0, self.copies - 1 - age)}", self.folder / name)
        self.open()

    def check(self) -> None:
        """Every version of every table is what its objects say."""
        for table_id, rows in self.rows.items():
            rows.advance_resolved_ts(self.ts)
            assert self.store.flush(table_id)
            for ts, expected in self.versions[table_id].items():
                found = replay_objects(self.storage, table_id, ts)
                assert {row["id"]: row["name"] for row in found.values()} == expected, f"at {ts - START}"


@settings(max_examples=examples(12), deadline=None)
@example(periods=CUT_OFF, segment=1024)
@example(periods=NEVER_LOGGED, segment=1 << 20)
@example(periods=INDEX_OF_OTHER_ENTRIES, segment=1 << 20)
@given(periods=st.lists(PERIODS, min_size=2, max_size=4), segment=st.sampled_from([1024, 1024, 1 << 20]))
def test_every_change_is_there_whatever_moments_storage_and_log_are_of(
    periods: list[Period], segment: int
) -> None:
    with TemporaryDirectory(prefix="penstock-copies-") as folder:
        world = World(Path(folder), segment)
        try:
            for period in periods:
                for step in period.steps:
                    world.run(step)
                world.restart(period.data_age, period.events_age)
            world.check()
        finally:
            world.store.close(flush=False)
