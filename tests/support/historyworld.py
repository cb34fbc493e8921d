"""A cluster that gets a recorded history of TiDB, a capture of it, and comparisons at every point.

world = HistoryWorld(tmp_path)
world.start_capture()
world.replay()
assert world.compare(world.read_event_store) == []
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from penstock import eventloop
from penstock.changefeeds.codecs.decoded_changes import row_dicts
from penstock.clock import SYSTEM
from penstock.errors import PenstockError
from penstock.eventstore.capture.capture import Capture
from penstock.eventstore.read.find import find_table
from penstock.eventstore.read.flight_client import FlightReader
from penstock.eventstore.read.snapshot import read_snapshot, snapshot_schema
from penstock.kv import Client
from penstock.object_storage import StorageRef
from penstock.settings import Settings
from penstock.tables import Catalog
from penstock.tables.arrow import shown_name
from penstock.tables.decoding.decoder import decode_rows
from penstock.tables.keys import record_range
from support.campaign import length
from support.tidb_history import (
    Part,
    Point,
    PointTable,
    Replay,
    TidbRecord,
    is_golden,
    load_record,
    part_behind,
    replaying,
)
from support.tidb_text import compare_rows

__all__ = ["DEADLINE_S", "HistoryWorld", "compares_every_point", "until"]

DEADLINE_S = 120.0

ReadTable = Callable[[PointTable, int], pa.Table]
"""Reads a table of a point as of a timestamp, with the stored columns in TiDB's order."""


def compares_every_point() -> bool:
    """Return whether everything is compared at every point: in `make soak`, and of any other record."""
    return bool(length(0, 1)) or not is_golden()


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for a condition; fail with `what` when that takes minutes."""
    deadline = SYSTEM.monotonic() + DEADLINE_S
    while not holds():
        assert SYSTEM.monotonic() < deadline, what
        SYSTEM.pause(0.05)


class HistoryWorld:
    """An embedded store for a record, and one capture at a time. A context, for tests on their own thread."""

    def __init__(self, folder: Path, record: TidbRecord | None = None, **settings: Any) -> None:
        self.folder = folder
        self.record = record or load_record()
        self._closing = ExitStack()
        started = replaying(folder / "kv", self.record)
        pd_addr, self._replay = eventloop.run(started.__aenter__())
        self._closing.callback(lambda: eventloop.run(started.__aexit__(None, None, None)))
        self.client = Client(self._replay.client)
        self.db = Catalog(self.client)
        self._given: dict[str, Any] = {"pd_addrs": (pd_addr,), **settings}
        self.settings = self._settings("capture")
        self.capture: Capture | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_capture(flush=False)
        self._closing.close()

    @property
    def replay_state(self) -> Replay:
        """The replay, with the timestamps of the points that it reached."""
        return self._replay

    def _settings(self, name: str, **capture: Any) -> Settings:
        given = {
            "id": name,
            "data": self.folder / name,
            "storage": f"file://{self.folder}/{name}-events",
            "tables": self.record.patterns,
            "flight_addr": "127.0.0.1:0",
            "flush_interval_s": 1,
            "lease_ttl_s": 3,
            "upkeep": {"merge": False},
            **capture,
        }
        return Settings(**self._given, capture=given)

    def start_capture(self, name: str = "capture", **capture: Any) -> Capture:
        """Start a capture; one of the same name goes on with the data and the storage that it had."""
        self.settings = self._settings(name, **capture)
        self.capture = eventloop.run(Capture.start(self.settings))
        self._newest_rows = FlightReader(self.capture.flight_addr)
        return self.capture

    def stop_capture(self, *, flush: bool) -> None:
        """Stop the capture in an orderly way, or as a crash would."""
        if self.capture is not None:
            self._newest_rows.close()
            eventloop.run(self.capture.stop(flush=flush))
            self.capture = None

    def replay(self, upto: Point | None = None) -> int:
        """Replay up to a point, or everything; return the timestamp of the last point."""
        return eventloop.run(self._replay.until(upto or self.record.points[-1]))

    @property
    def points(self) -> list[tuple[Point, int]]:
        """The points that were reached, with their timestamps."""
        times = self._replay.times
        return [(point, times[point.ts]) for point in self.record.points if point.ts in times]

    def catch_up(self) -> None:
        """Wait until the capture can answer at every point that was reached."""
        capture, last_ts = self.capture, self.points[-1][1]
        assert capture is not None, "nothing captures"

        def is_behind(table_id: int) -> bool:
            return capture.store.readable_ts(table_id) < last_ts

        def holds() -> bool:
            assert not capture.failed.done(), capture.failed.exception()
            return capture.schemas.resolved_ts() >= last_ts and not any(map(is_behind, capture.tables))

        until(holds, "the capture does not catch up")

    def comparable(self, point: Point) -> list[PointTable]:
        """Return the tables of a point whose rows are in the cluster."""
        return [table for table in point.tables.values() if not table.is_temporary]

    def compare(self, read: ReadTable, points: Iterable[tuple[Point, int]] | None = None) -> list[str]:
        """Return how the tables of all points, or of some, differ from what TiDB answered there."""
        found = []
        for point, ts in self.points if points is None else points:
            for table in self.comparable(point):
                found += [f"at {point.name}: {said}" for said in _differences(table, read, ts)]
        return found

    def choose_part(self, golden: tuple[int, int], share: float) -> Part:
        """Return the points to compare for what begins after a share of them.

        In `make test` they are those of the golden record that `golden` names, behind where it begins.
        """
        if not compares_every_point():
            return Part(golden[0], *golden)
        return part_behind(len(self.record.points), share)

    @property
    def checked_again(self) -> list[tuple[Point, int]]:
        """What a repeated comparison looks at: all, or in `make test` what differs from point to point.

        The points have those of their tables then that are not what they were at the point before.
        """
        if compares_every_point():
            return self.points
        found, before = [], dict[str, PointTable]()
        for point, ts in self.points:
            tables = {name: table for name, table in point.tables.items() if table.differs(before.get(name))}
            found.append((replace(point, tables=tables), ts))
            before = dict(point.tables)
        return found

    def read_cluster(self, table: PointTable, ts: int) -> pa.Table:
        """Read a table from the key-value store."""
        return self.db.table(table.name, at_ts=ts).to_arrow(at_ts=ts)

    def read_rows(self, name: str, ts: int) -> list[dict[str, Any]]:
        """Read a table from the key-value store as dicts; dates that no calendar has are texts."""
        info = self.db.table_info(name, at_ts=ts)
        view = self.client.snapshot(ts)
        pairs = [pair for number in info.physical_ids for pair in view.iter(*record_range(number))]
        keys, values = (pa.array([pair[side] for pair in pairs], pa.binary()) for side in (0, 1))
        decoded = decode_rows(info, keys, values)
        rows = row_dicts(decoded.rename_columns([column.name for column in info.stored_columns]))
        return [row for row in rows if row is not None]

    def read_event_store(self, table: PointTable, ts: int) -> pa.Table:
        """Read a table from the event store: objects, and unflushed rows of the capture."""
        storage = StorageRef(self.settings.capture.storage)
        view = find_table(storage, table.name, at_ts=ts, rows=self._newest_rows)
        batches = list(read_snapshot(view, ts))
        found = pa.Table.from_batches(batches, None if batches else snapshot_schema(view, ts))
        found = found.select(range(found.num_columns - 1))  # the last one is the commit timestamp
        return found.rename_columns([shown_name(name) for name in found.column_names])


def _differences(table: PointTable, read: ReadTable, ts: int) -> list[str]:
    try:
        return compare_rows(table, read(table, ts))
    except PenstockError as error:
        return [f"{table.name}: {type(error).__name__}: {error}"]
