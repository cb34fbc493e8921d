"""The log against a list: what was acknowledged survives damage to what was not; nothing is invented."""

import shutil
import tempfile
import threading
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.eventstore import frames, paths
from penstock.eventstore.frames import Frame, FrameKind
from penstock.eventstore.wal import Location, Wal
from penstock.testing.rawbatches import changes, put, raw

TABLES = st.integers(1, 3)


class LogUnderCrashes(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-wal-"))
        self.acknowledged: list[tuple[int, int]] = []
        self.resolved: dict[int, int] = {}
        self.flushed: dict[int, int] = {}
        self.ts = 0
        self.open()

    def open(self) -> None:
        self.wal = Wal(self.folder, segment_bytes=1500, queue_bytes=1 << 20, failed=self.failed)
        self.replayed: list[tuple[int, int]] = []
        self.wal.start(self.replay)

    def failed(self, error: Exception) -> None:
        raise AssertionError(error)

    def replay(self, frame: Frame, place: Location) -> None:
        assert frame.kind is FrameKind.ROWS
        newest = 0
        for change in changes(frames.decode_rows(frame)):
            newest = change[0]
            if newest > self.flushed.get(frame.table_id, 0):
                self.replayed.append((frame.table_id, newest))
        if newest > self.flushed.get(frame.table_id, 0):
            self.wal.keep(place, frame.table_id, newest)

    @rule(tables=st.lists(TABLES, min_size=1, max_size=5), size=st.integers(0, 600))
    def write(self, tables: list[int], size: int) -> None:
        done = threading.Semaphore(0)
        for table in tables:
            self.ts += 1
            self.wal.append(table, raw([put(self.ts, "k", b"v" * size)]), self.ts, lambda _: done.release())
            self.acknowledged.append((table, self.ts))
        for _ in tables:
            assert done.acquire(timeout=10)

    @rule(table=TABLES)
    def resolve(self, table: int) -> None:
        self.wal.mark_resolved(table, self.ts)
        self.resolved[table] = self.ts

    @rule(table=TABLES, back=st.integers(0, 5))
    def flush(self, table: int, back: int) -> None:
        self.flushed[table] = max(self.flushed.get(table, 0), self.ts - back)
        self.wal.flushed(table, self.flushed[table])

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
        assert self.wal.resolved() == self.resolved

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
            shutil.rmtree(self.folder)


TestLogUnderCrashes = LogUnderCrashes.TestCase
TestLogUnderCrashes.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
