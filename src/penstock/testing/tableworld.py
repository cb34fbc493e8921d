"""One table in an event store, beside the plain dict of versions that every read of it must agree with.

The source is modelled too: what a crash or a lost disk takes is delivered again, from where the store says.
Nothing happens by itself, ids are drawn in order and time stands still, so a run can be repeated exactly.
"""

import hashlib
import shutil
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow as pa

from penstock.changes import ChangeBatch, collect_changes
from penstock.clock import compose_ts
from penstock.eventstore import manifestlog, paths
from penstock.eventstore.manifest import ManifestState
from penstock.eventstore.partition import Partition, StorageRef, TableView
from penstock.eventstore.ranges import RangeReader
from penstock.eventstore.reading import Reader
from penstock.eventstore.schemaversion import SchemaVersion, in_force
from penstock.eventstore.sides import HANDLE
from penstock.eventstore.snapshot import read_snapshot
from penstock.eventstore.store import EventStore
from penstock.settings import CaptureSettings
from penstock.tables import keys, records
from penstock.tables.arrow import arrow_schema
from penstock.tables.decoding.decoder import TidbRowDecoder
from penstock.tables.schema import ROWID_COLUMN, HandleKind, TableInfo
from penstock.testing.manual_clock import ManualClock
from penstock.testing.rawbatches import Change, raw
from penstock.testing.versions import Key, Row, Snapshot, Versions, key_names, key_of, visible

START = compose_ts(1_700_000_000_000)
NAME = "shop.items"
_WAIT_S = 20.0

_QUIET: dict[str, Any] = {
    "flush_interval_s": 10**9,
    "idle_flush_interval_s": 10**9,
    "flush_bytes": 1 << 40,
    "wal_segment_bytes": 4096,
}


class _Place(NamedTuple):
    """Where a row is: its physical table, its handle, and the bytes it has there."""

    physical_id: int
    handle: keys.Handle
    value: bytes


class CountingClock(ManualClock):
    """Stands still; the ids it gives are spread as random ones are, and the same in every run."""

    def __init__(self) -> None:
        super().__init__(wall_ms=START >> 18)
        self._given = 0
        self._lock = threading.Lock()

    def unique_id(self) -> str:
        with self._lock:
            self._given += 1
            return hashlib.sha256(str(self._given).encode()).hexdigest()[:32]


class GrowingSchemas:
    """The schema history of one table, complete for all time; implements Schemas."""

    def __init__(self, table: TableInfo) -> None:
        self.all = [SchemaVersion(0, 1, table, NAME.split(".", maxsplit=1)[0])]

    def resolved_ts(self) -> int:
        """See Schemas."""
        return (1 << 63) - 1

    def storable_ts(self, _table_id: int) -> int:
        """See Schemas."""
        return self.resolved_ts()

    def versions(self, _table_id: int, from_ts: int, to_ts: int) -> list[SchemaVersion]:
        """See Schemas."""
        return in_force(self.all, from_ts, to_ts)

    def ended_ts(self, _table_id: int) -> int:
        """See Schemas."""
        return 0


class TableWorld:
    """A table with its store, and `versions`, which knows what is right. A context.

    `partitions` are the ids of the physical tables. A row is put into the first of them unless told
    otherwise; one without a clustered primary key needs `_tidb_rowid`.
    """

    def __init__(
        self,
        folder: Path,
        table: TableInfo,
        *,
        partitions: Iterable[int] = (),
        url: str = "",
        **settings: Any,
    ) -> None:
        self.ids = tuple(partitions) or (table.id,)
        self.versions = Versions(table)
        self.schemas = GrowingSchemas(table)
        self.clock = CountingClock()
        self.storage = StorageRef(url or f"file://{folder}/events")
        self.settings = CaptureSettings(
            **{"data": folder / "capture", "storage": self.storage.url, **_QUIET, **settings}
        )
        self.ts = START
        self._places: dict[Key, _Place] = {}
        self._keys: dict[tuple[int, keys.Handle], Key] = {}
        self._changed: dict[bytes, int] = {}  # when a record key changed last
        self._history: dict[int, list[Change]] = {each: [] for each in self.ids}
        self._pending: dict[int, list[Change]] = {each: [] for each in self.ids}
        self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop without a flush."""
        self.store.close(flush=False)

    def _open(self) -> None:
        storage = self.storage.open()
        decoder = TidbRowDecoder()
        self.store = EventStore(
            self.settings, storage, decoder=decoder, schemas=self.schemas, clock=self.clock
        )
        self.store.start()
        self.reader = Reader(self.store, storage, decoder)
        for each in self.ids:
            resolved_ts = self.store.open_table(each).resolved_ts
            self._pending[each] = [change for change in self._history[each] if change[0] > resolved_ts]

    def crash(self) -> None:
        """Lose everything that is not on a disk, and come back."""
        self.store.close(flush=False)
        self._open()
        self.deliver()

    def lose_disk(self) -> None:
        """Lose the machine: storage is what is left, and the source delivers the rest again."""
        self.store.close(flush=False)
        shutil.rmtree(self.settings.data)
        self._open()
        self.deliver()

    def tick(self, ticks: int = 2) -> int:
        """A later timestamp."""
        self.ts += ticks
        return self.ts

    def commit(
        self,
        *rows: Row,
        delete: Iterable[Key] = (),
        into: int = 0,
        at: int = 0,
        start: int = 0,
        deliver: bool = True,
    ) -> int:
        """One transaction: rows are put, in partition `into`; keys lose theirs. Returns its commit-ts.

        `at` and `start` give its timestamps, by default new ones. Nothing is resolved yet.
        """
        ts = at or self.tick()
        times = (ts, start or ts - 1)
        for key in delete:
            self._delete(times, key)
        for row in rows:
            self._put(times, row, self.ids[into])
        if deliver:
            self.deliver()
        return ts

    def key(self, row: Row) -> Key:
        """What identifies a row that is to be put."""
        return key_of(self.versions.table, {**row, HANDLE: keys.encode_handle(self._handle(row))})

    def place(self, key: Key) -> tuple[int, keys.Handle]:
        """Where the row of a key is: its physical table, and its handle there."""
        return self._places[key][:2]

    def _handle(self, row: Row) -> keys.Handle:
        table = self.versions.table
        if table.handle_kind is HandleKind.ROWID:
            return int(row[ROWID_COLUMN])
        return records.handle_of(table, records.to_record(table, row, start_ts=START))

    def _put(self, times: tuple[int, int], row: Row, physical_id: int) -> None:
        table, key = self.versions.table, self.key(row)
        value = records.value_of(table, records.to_record(table, row, start_ts=times[1]))
        place = _Place(physical_id, self._handle(row), value)
        before = self._places.get(key)
        if before is not None and before[:2] != place[:2]:
            self._gone(times, key)
            before = None
        renamed = self._keys.get(place[:2])
        if renamed not in {None, key}:  # its primary key changes, its handle does not
            before = self._places.pop(renamed)
            self.versions.write(times[0], renamed, None)
        self._happen(times, place, value, before.value if before is not None else None)
        self._places[key], self._keys[place[:2]] = place, key
        self.versions.write(times[0], key, {name: cell for name, cell in row.items() if name != ROWID_COLUMN})

    def _gone(self, times: tuple[int, int], key: Key) -> None:
        before = self._places.pop(key)
        del self._keys[before[:2]]
        self._happen(times, before, None, before.value)

    def _delete(self, times: tuple[int, int], key: Key) -> None:
        self._gone(times, key)
        self.versions.write(times[0], key, None)

    def _happen(self, times: tuple[int, int], place: _Place, value: bytes | None, old: bytes | None) -> None:
        made = (*times, keys.record_key(place.physical_id, place.handle), value, old)
        last = self._changed.get(made[2], 0)
        assert last < times[0], "a key changes at most once at a time"
        self._changed[made[2]] = times[0]
        self._history[place.physical_id].append(made)
        self._pending[place.physical_id].append(made)

    def alter(self, table: TableInfo) -> int:
        """Give the table another schema; returns when it came into force."""
        ts = self.tick()
        self.versions.alter(ts, table)
        self.schemas.all.append(replace(self.schemas.all[-1], since_ts=ts, version=ts, table=table))
        return ts

    def deliver(self) -> None:
        """Hand over what was committed and not delivered yet; returns once it is durable."""
        for physical_id, changes in self._pending.items():
            done = threading.Event()
            rows = self.store.open_table(physical_id)
            if changes and rows.consume_kv_events(raw(changes), done.set):
                assert done.wait(_WAIT_S), "the log does not answer"
            changes.clear()

    def resolve(self) -> int:
        """Everything committed so far was delivered."""
        assert not any(self._pending.values()), "deliver first"
        for each in self.ids:
            self.store.open_table(each).advance_resolved_ts(self.ts)
        return self.ts

    def flush(self) -> int:
        """Resolve, and move everything into objects."""
        ts = self.resolve()
        for each in self.ids:
            assert self.store.flush(each), "the flush failed"
        return ts

    def manifest(self, physical_id: int = 0) -> ManifestState:
        """What storage says of a physical table."""
        return manifestlog.load(self.storage.open(), paths.table_root(physical_id or self.ids[0]))

    def view(self, rows: RangeReader | None = None, *, objects_only: bool = False) -> TableView:
        """The table for readers: with the rows of the store, of another reader, or objects alone."""
        source = None if objects_only else rows or self.reader
        return TableView(NAME, tuple(Partition(self.storage, each, source) for each in self.ids))

    def changes(self, from_ts: int, to_ts: int, **options: Any) -> list[ChangeBatch]:
        """Everything that a handle over the range gives."""
        with collect_changes(self.view(), from_ts, to_ts, **options) as handle:
            return list(handle)

    def snapshot(self, ts: int) -> Snapshot:
        """The table as of `ts`, as it is read."""
        return gathered(read_snapshot(self.view(), ts, columns=self.columns(ts)), self.versions.table_at(ts))

    def columns(self, ts: int) -> list[str]:
        """What to ask for, so that rows can be told apart."""
        table = self.versions.table_at(ts)
        return list(dict.fromkeys([*arrow_schema(table).names, *key_names(table)]))

    def moments(self) -> Iterator[int]:
        """Every commit-ts so far, in order."""
        yield from sorted({change[0] for changes in self._history.values() for change in changes})


def gathered(batches: Iterable[pa.RecordBatch], table: TableInfo) -> Snapshot:
    """The rows of a snapshot by key; fails when one is there twice."""
    found: Snapshot = {}
    for batch in batches:
        for row in batch.to_pylist():
            key = key_of(table, row)
            assert key not in found, "a row is there twice"
            found[key] = visible(row)
    return found
