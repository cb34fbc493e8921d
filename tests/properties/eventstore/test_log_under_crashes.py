"""The log against a list: what was acknowledged survives damage to what was not; nothing is invented."""

import random  # noqa: TID251 - by seeds of Hypothesis: threads take numbers in any order
import shutil
import tempfile
import threading
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.errors import Invalid, Unavailable
from penstock.eventstore import paths
from penstock.eventstore.log import frames
from penstock.eventstore.log.frames import Frame, FrameKind
from penstock.eventstore.log.segments import LogLocation
from penstock.eventstore.log.wal import Wal
from support.campaign import examples
from support.powerloss import Disk
from support.rawbatches import changes, put, raw

TABLES = st.integers(1, 3)
LUCK = st.none() | st.integers(0, 1 << 32)  # None: the process alone is killed


class LogUnderCrashes(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="penstock-wal-"))
        self.folder = self.root / "data" / "wal"
        self.disk = Disk(self.root)
        self.disk.__enter__()
        self.acknowledged: list[tuple[int, int]] = []
        self.resolved: dict[int, int] = {}
        self.flushed: dict[int, int] = {}
        self.ts = 0
        self.open()

    def open(self) -> None:
        self.wal = Wal(self.folder, segment_bytes=1500, queue_bytes=1 << 20, on_failure=self.failed)
        self.found: set[tuple[int, int]] = set()
        self.replayed: list[tuple[int, int]] = []
        self.wal.start(self.replay)
        for table, ts in self.flushed.items():
            self.wal.mark_flushed(table, ts)

    def failed(self, error: Exception) -> None:
        assert self.disk.dead, error

    def replay(self, frame: Frame, place: LogLocation) -> None:
        assert frame.kind is FrameKind.ROWS
        newest = 0
        for change in changes(frames.decode_rows(frame)):
            newest = change[0]
            self.found.add((frame.table_id, newest))
            if newest > self.flushed.get(frame.table_id, 0):
                self.replayed.append((frame.table_id, newest))
        self.wal.keep(place, frame.table_id, newest)

    @rule(tables=st.lists(TABLES, min_size=1, max_size=5), size=st.integers(0, 600), together=st.booleans())
    def write(self, tables: list[int], size: int, together: bool) -> None:
        sent = self.send(tables, size, together=together)
        assert self.acknowledged[-len(sent) :] == sent

    def send(self, tables: list[int], size: int, *, together: bool) -> list[tuple[int, int]]:
        """Write rows, in one group or each in its own, until the machine is down; return them."""
        sent = [(table, self.ts + number) for number, table in enumerate(tables, 1)]
        self.ts += len(sent)
        for rows in [sent] if together else [[row] for row in sent]:
            done = threading.Event()
            try:
                with self.wal._lock:  # so that the log's thread finds all of them
                    for row in rows:
                        self.append(row, size, done if row == rows[-1] else threading.Event())
            except Unavailable:
                assert self.disk.dead
                return sent
            while rows and not done.wait(0.01):
                if not self.wal._thread.is_alive():
                    assert self.disk.dead
                    return sent
        return sent

    def append(self, row: tuple[int, int], size: int, done: threading.Event) -> None:
        def stored(_: LogLocation) -> None:
            self.acknowledged.append(row)
            done.set()

        self.wal.append(row[0], raw([put(row[1], "k", b"v" * size)]), row[1], stored)

    @rule(table=TABLES)
    def resolve(self, table: int) -> None:
        self.wal.mark_resolved(table, self.ts)
        self.resolved[table] = self.ts

    @rule(
        syncs=st.integers(0, 6),
        tables=st.lists(TABLES, max_size=5),
        size=st.integers(0, 600),
        together=st.booleans(),
        flushed=st.booleans(),
        luck=LUCK,
    )
    def lose_power_or_the_process_at_any_sync(
        self, syncs: int, tables: list[int], size: int, together: bool, flushed: bool, luck: int | None
    ) -> None:
        """Of the rows on their way any beginning is there. What is there once is there for good."""
        if luck is None:
            self.disk.kill_at(syncs)
        else:
            self.disk.lose_power_at(syncs, random.Random(luck).random)
        sent = self.send(tables, size, together=together)
        for table in (1, 2, 3):
            if flushed and self.acknowledged and not self.disk.dead:  # segments go, and may come back
                self.flush(table, self.ts - self.acknowledged[-1][1])
        self.wal.close()
        self.open_at_last(sent)

    @rule(kills=st.lists(st.integers(0, 4), max_size=3), luck=LUCK)
    def start_again_and_again(self, kills: list[int], luck: int | None) -> None:
        """A start that is interrupted leaves a log that can be started."""
        self.wal.close()
        for syncs in kills:
            if luck is None:
                self.disk.kill_at(syncs)
            else:
                self.disk.lose_power_at(syncs, random.Random(luck).random)
            try:
                self.open()
            except Invalid:
                assert self.disk.dead
            self.wal.close()
            self.disk.restart()
        self.open_at_last([])

    def open_at_last(self, sent: list[tuple[int, int]]) -> None:
        """The machine is up again, and the log is opened: what it has from now on counts as acknowledged."""
        self.disk.restart()
        self.open()
        uncertain = [row for row in sent if row not in self.acknowledged]
        self.acknowledged += uncertain[: max(0, len(self.replayed) - len(self.needed()))]
        assert self.replayed == self.needed()
        found = self.wal.resolved_by_table()
        assert all(ts <= self.resolved.get(table, 0) for table, ts in found.items())
        self.resolved = found
        for table, ts in self.acknowledged:
            cover = self.wal.cover(table)
            assert not cover.cut_ts < ts <= cover.resolved_ts or (table, ts) in self.found

    @rule(table=TABLES, back=st.integers(0, 5))
    def flush(self, table: int, back: int) -> None:
        self.flushed[table] = max(self.flushed.get(table, 0), self.ts - back)
        self.wal.mark_flushed(table, self.flushed[table])

    @rule(tail=st.binary(max_size=400), torn_frame=st.booleans())
    def crash_with_garbage_after_the_last_group(self, tail: bytes, torn_frame: bool) -> None:
        self.wal.close()
        last = paths.wal_segments(self.folder)[-1][1]
        with last.open("ab") as file:
            if torn_frame:
                payload = frames.encode_rows(raw([put(self.ts + 1, "never acknowledged")])).to_pybytes()
                file.write(
                    frames.encode_header(FrameKind.ROWS, 1, len(payload), 0, group=1 << 20, first=True)
                )
                file.write(payload)
            file.write(tail)
        self.open()
        assert self.replayed == self.needed()
        assert self.wal.resolved_by_table() == self.resolved

    @rule(cut=st.integers(1, 60))
    def crash_with_a_group_half_written(self, cut: int) -> None:
        self.wal.close()
        before = {path: path.stat().st_size for _, path in paths.wal_segments(self.folder)}
        self.open()
        self.write_unacknowledged()
        self.wal.close()
        _, last = paths.wal_segments(self.folder)[-1]
        assert last not in before
        size = last.stat().st_size
        shutil.copy(last, last.with_suffix(".copy"))
        with last.with_suffix(".copy").open("rb+") as file:
            file.truncate(size - cut)
        last.with_suffix(".copy").replace(last)
        self.open()
        assert self.replayed == self.needed()

    def write_unacknowledged(self) -> None:
        done = threading.Event()
        self.wal.append(1, raw([put(self.ts + 1, "k", b"v" * 60)]), self.ts + 1, lambda _: done.set())
        assert done.wait(10)

    def needed(self) -> list[tuple[int, int]]:
        return [(table, ts) for table, ts in self.acknowledged if ts > self.flushed.get(table, 0)]

    @invariant()
    def only_needed_segments_are_kept(self) -> None:
        if hasattr(self, "wal"):
            bound = 3 + len(self.needed())
            assert len(paths.wal_segments(self.folder)) <= bound

    def teardown(self) -> None:
        if hasattr(self, "wal"):
            self.wal.close()
            self.disk.__exit__()
            shutil.rmtree(self.root)


TestLogUnderCrashes = LogUnderCrashes.TestCase
TestLogUnderCrashes.settings = settings(max_examples=examples(40), stateful_step_count=25, deadline=None)
