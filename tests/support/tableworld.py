"""Tables in an event store, beside the plain dicts of versions that every read of them must agree with.

The source is modelled too: what a crash or a lost disk takes is delivered again, from where the store says.
Descriptions of tables come from a subscription that begins anew at every start, without what the cluster has
collected. A name leads to a table as it does for every reader, by what the event store says.
Nothing happens by itself, ids are drawn in order and time stands still, so a run can be repeated exactly.
"""

import hashlib
import shutil
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow as pa

from penstock.changes import ChangeBatch, collect_changes
from penstock.clock import compose_ts
from penstock.eventstore import manifest_log, paths
from penstock.eventstore.capture.reader import Reader
from penstock.eventstore.capture.store import EventStore
from penstock.eventstore.capture.tables import TableNames
from penstock.eventstore.log.table_log import TableLog
from penstock.eventstore.manifest import BEGUN, ManifestState
from penstock.eventstore.read.find import find_table
from penstock.eventstore.read.partition import Partition, RangeReader, TableView
from penstock.eventstore.read.snapshot import read_snapshot
from penstock.eventstore.schema_history import CapturedTable, SchemaHistory
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import HANDLE
from penstock.object_storage import StorageRef
from penstock.settings import CaptureSettings
from penstock.tables import keys, records
from penstock.tables.arrow import arrow_schema
from penstock.tables.decoding.decoder import TidbRowDecoder
from penstock.tables.schema import ROWID_COLUMN, HandleKind, TableInfo
from penstock.testing.clock import ManualClock
from penstock.testing.versions import Key, Row, Snapshot, Versions, key_names, key_of, visible
from support.metaevents import put_database, put_table, remove_table
from support.rawbatches import Change, raw

START = compose_ts(1_700_000_000_000)
NAME = "shop.items"
_DATABASE, _, _TABLE = NAME.partition(".")
_CREATED_TS = 1
_FIRST_NEW_ID = 100
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


@dataclass(eq=False)
class ModelTable:
    """One table for all of its life: what it was when, under which names, and where its rows are now.

    Its life is that of its id: TRUNCATE TABLE ends one and begins another of the same name. `breaks` are
    the times of DDLs that took physical tables away from it, or brought some.
    """

    versions: Versions
    names: list[tuple[int, str]]  # since when it is called what; "": it is not there
    schemas: list[SchemaVersion] = field(default_factory=list)
    breaks: list[int] = field(default_factory=list)
    recoveries: list[int] = field(default_factory=list)
    places: dict[Key, _Place] = field(default_factory=dict)
    held: dict[tuple[int, keys.Handle], Key] = field(default_factory=dict)  # by place

    def name_at(self, ts: int) -> str:
        """Return what it is called at a timestamp; empty when it is not there."""
        return next((name for since, name in reversed(self.names) if since <= ts), "")

    @property
    def name(self) -> str:
        """What it is called now; empty when it is not there."""
        return self.names[-1][1]

    @property
    def ids(self) -> tuple[int, ...]:
        """Its physical tables now."""
        return self.versions.table.physical_ids

    def rows_in(self, physical_id: int) -> dict[Key, Row]:
        """Return the rows that are in one of its physical tables now."""
        found = {key: self.versions.last(key) for key, at in self.places.items() if at[0] == physical_id}
        return {key: row for key, row in found.items() if row is not None}

    def columns(self, ts: int) -> list[str]:
        """Return the columns to read in a snapshot, so that rows can be told apart."""
        table = self.versions.table_at(ts)
        return list(dict.fromkeys([*arrow_schema(table).names, *key_names(table)]))


@dataclass
class ModelCluster:
    """What the cluster still has: descriptions of tables, changes of rows."""

    meta: list[Change] = field(default_factory=list)
    rows: dict[int, list[Change]] = field(default_factory=dict)
    safe_ts: int = 0

    def collect(self, upto_ts: int) -> None:
        """Forget what nobody reading at `upto_ts` or later can see, of descriptions."""
        self.safe_ts = max(self.safe_ts, upto_ts)
        last = {change[2]: change for change in self.meta if change[0] <= self.safe_ts}
        self.meta = [
            change
            for change in self.meta
            if change[0] > self.safe_ts or (last[change[2]] is change and change[3] is not None)
        ]

    def ended_ts(self, _table_id: int) -> int:
        """Return when a table was dropped: never, hence 0."""
        return 0


class TableWorld:
    """A table with its store, and `versions`, which knows what is right. A context.

    `partitions` are the ids of the physical tables. A row is put into the first of them unless told
    otherwise; one without a clustered primary key needs `_tidb_rowid`. Other tables can be made beside it;
    `tables` has every one that ever was.
    """

    holds_rewrites = False

    def __init__(
        self,
        folder: Path,
        table: TableInfo,
        *,
        partitions: Iterable[int] = (),
        url: str = "",
        **settings: Any,
    ) -> None:
        self.clock = CountingClock()
        self.storage = StorageRef(url or f"file://{folder}/events")
        self.settings = CaptureSettings(
            **{"data": folder / "capture", "storage": self.storage.url, **_QUIET, **settings}
        )
        self.ts = START
        self.new_ids = count(_FIRST_NEW_ID)
        self.cluster = ModelCluster([put_database(_CREATED_TS, 1, _DATABASE)])
        self.schemas = SchemaHistory()
        self.schemas_late = False  # the subscription of descriptions does not come on
        self.shared_ts = 0  # what DDLs up to then made was taken or let go
        self._changed: dict[bytes, int] = {}  # when a record key changed last
        self._pending: dict[int, list[Change]] = {}  # of tables that are captured
        self._pending_meta: list[Change] = []
        self._ended: dict[int, int] = {}  # tables that were let go since the last start, and when they ended
        ids = tuple(partitions)
        made = replace(table, name=_TABLE, id=table.id or 1)
        if ids and made.physical_ids != ids:
            made = _with_partitions(made, ids)
        self.table = ModelTable(Versions(made), [(_CREATED_TS, NAME)])
        self.tables = [self.table]
        self._describe(_CREATED_TS, self.table, made)
        self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def versions(self) -> Versions:
        """What the table was when."""
        return self.table.versions

    @property
    def ids(self) -> tuple[int, ...]:
        """The physical tables of the table."""
        return self.table.ids

    def close(self) -> None:
        """Stop without a flush."""
        self.store.close(flush=False)

    def _open(self) -> None:
        storage = self.storage.open()
        decoder = TidbRowDecoder()
        self.schemas, self.schemas_late = SchemaHistory(), False
        self._pending_meta = list(self.cluster.meta)
        self._follow_schemas()
        self.store = EventStore(
            self.settings,
            storage,
            decoder=decoder,
            schemas=self.schemas,
            clock=self.clock,
            holds_rewrites=self.holds_rewrites,
        )
        self.store.start()
        self.reader = Reader(self.store, storage, decoder)
        self._names = TableNames(storage, self.store, self.schemas)
        self._names.start()
        self._ended, self._pending = {}, {}
        self.share()

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

    def share(self) -> None:
        """Take the tables that came, let go of those that went, as a capture does every now and then."""
        self._follow_schemas()
        known = {known_table.physical_id: known_table for known_table in self.schemas.tables_ever()}
        for table_id in self.store.recovered_tables().difference(known):
            self.store.close_table(table_id, flush=False)
        for table_id in self.store.ended_tables():
            self.store.flush(table_id)
        for table_id, table in known.items():
            rows = self.store.tables().get(table_id)
            if rows is None and not (table.dropped_ts and self._ended.get(table_id) == table.dropped_ts):
                rows = self._take(table)
            if rows is not None and table.dropped_ts and rows.flushed_ts >= table.dropped_ts:
                self._names.end(table)
                self._ended[table_id] = table.dropped_ts
                del self._pending[table_id]
                self.store.close_table(table_id)
        self._names.mark(self.store.tables())
        self.shared_ts = self.schemas.resolved_ts()

    def _take(self, table: CapturedTable) -> TableLog:
        rows = self.store.open_table(table.physical_id)
        self._pending[table.physical_id] = [
            change for change in self.cluster.rows.get(table.physical_id, ()) if change[0] > rows.resolved_ts
        ]
        self._names.mark([table.physical_id])
        first = self.schemas.versions(table.physical_id, 0, self.schemas.resolved_ts())[0].since_ts
        if not rows.resolved_ts and first <= self.cluster.safe_ts:
            self.store.record_fact(table.physical_id, {"kind": BEGUN, "ts": self.cluster.safe_ts})
        return rows

    def collect_source(self) -> None:
        """Let the cluster collect what this store does not need."""
        needed = [max(1, rows.flushed_ts) for rows in self.store.tables().values()]
        self.cluster.collect(min(needed, default=self.ts))

    def tick(self, ticks: int = 2) -> int:
        """Return a later timestamp."""
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
        table: ModelTable | None = None,
    ) -> int:
        """Commit one transaction that puts rows into partition `into` and deletes keys; return its commit-ts.

        `at` and `start` give its timestamps, by default new ones. Nothing is resolved yet.
        """
        ts = at or self.tick()
        times = (ts, start or ts - 1)
        target = table or self.table
        for key in delete:
            self._delete(times, target, key)
        for row in rows:
            self._put(times, target, row, target.ids[into])
        if deliver:
            self.deliver()
        return ts

    def key(self, row: Row) -> Key:
        """Return what identifies a row that is to be put."""
        return key_of(self.versions.table, {**row, HANDLE: keys.encode_handle(_handle(self.table, row))})

    def place(self, key: Key) -> tuple[int, keys.Handle]:
        """Return where the row of a key is: its physical table, and its handle there."""
        return self.table.places[key][:2]

    def _put(self, times: tuple[int, int], table: ModelTable, row: Row, physical_id: int) -> None:
        info = table.versions.table
        handle = _handle(table, row)
        key = key_of(info, {**row, HANDLE: keys.encode_handle(handle)})
        value = self.encode(info, row, times[1])
        place = _Place(physical_id, handle, value)
        before = table.places.get(key)
        if before is not None and before[:2] != place[:2]:
            self._forget_row(times, table, key)
            before = None
        renamed = table.held.get(place[:2])
        if renamed is not None and renamed != key:  # its primary key changes, its handle does not
            before = table.places.pop(renamed)
            table.versions.write(times[0], renamed, None)
        self._happen(times, place, value, before.value if before is not None else None)
        table.places[key], table.held[place[:2]] = place, key
        shown = {name: cell for name, cell in row.items() if name != ROWID_COLUMN}
        table.versions.write(times[0], key, shown)

    def encode(self, info: TableInfo, row: Row, start_ts: int) -> bytes:
        """Return the bytes that a writer stores for a row."""
        return records.value_of(info, records.to_record(info, row, start_ts=start_ts))

    def _forget_row(self, times: tuple[int, int], table: ModelTable, key: Key) -> None:
        before = table.places.pop(key)
        del table.held[before[:2]]
        self._happen(times, before, None, before.value)

    def _delete(self, times: tuple[int, int], table: ModelTable, key: Key) -> None:
        self._forget_row(times, table, key)
        table.versions.write(times[0], key, None)

    def _happen(self, times: tuple[int, int], place: _Place, value: bytes | None, old: bytes | None) -> None:
        made = (*times, keys.record_key(place.physical_id, place.handle), value, old)
        last = self._changed.get(made[2], 0)
        assert last < times[0], "a key changes at most once at a time"
        self._changed[made[2]] = times[0]
        self.cluster.rows.setdefault(place.physical_id, []).append(made)
        if place.physical_id in self._pending:
            self._pending[place.physical_id].append(made)

    def alter(self, table: TableInfo) -> int:
        """Give the table another schema; returns when it came into force."""
        return self._alter(self.table, table)

    def create(self, name: str, info: TableInfo) -> ModelTable:
        """Make a table, with new ids; its rows are in as many partitions as `info` has."""
        return self._begin(self.tick(), name, self._with_new_ids(replace(info, name=name.partition(".")[2])))

    def drop(self, table: ModelTable) -> int:
        """Take a table away with its rows."""
        ts = self.tick()
        self._end(ts, table)
        self._tell(remove_table(ts, table.versions.table.id))
        return ts

    def _begin(self, ts: int, name: str, info: TableInfo, replaced: ModelTable | None = None) -> ModelTable:
        """There is a table; it is the world's own if that is what it replaces."""
        table = ModelTable(Versions(info), [(ts, name)])
        self.tables.append(table)
        self._describe(ts, table, info)
        if replaced is self.table:
            self.table = table
        return table

    def _end(self, ts: int, table: ModelTable) -> None:
        """It is gone with its rows; where those were stays known, for its recovery."""
        table.names.append((ts, ""))
        for key in table.places:
            table.versions.write(ts, key, None, silent=True)

    def recover(self, table: ModelTable) -> int:
        """Bring a dropped table back, with its id and its rows."""
        ts = self.tick()
        dropped_ts, _ = table.names[-1]
        _, name = table.names[-2]
        table.names.append((ts, name))
        table.recoveries.append(ts)
        for key, row in table.versions.at(dropped_ts - 1).items():
            table.versions.write(ts, key, row, silent=True)
        self._describe(ts, table, table.versions.table)
        return ts

    def truncate(self, table: ModelTable) -> ModelTable:
        """Empty a table: another one, with new ids, has its name at once."""
        ts = self.tick()
        self._end(ts, table)
        self._tell(remove_table(ts, table.versions.table.id))
        return self._begin(ts, table.name_at(ts - 1), self._with_new_ids(table.versions.table), table)

    def rename(self, *renamed: tuple[ModelTable, str]) -> int:
        """Give tables other names in one moment."""
        ts = self.tick()
        for table, name in renamed:
            table.names.append((ts, name))
            info = replace(table.versions.table, name=name.partition(".")[2])
            table.versions.alter(ts, info)
            self._describe(ts, table, info)
        return ts

    def add_partition(self, table: ModelTable) -> int:
        """Give a table another partition, empty."""
        return self._alter(table, _with_partitions(table.versions.table, (*table.ids, next(self.new_ids))))

    def drop_partition(self, table: ModelTable, physical_id: int) -> int:
        """Take a partition away with its rows."""
        rest = tuple(number for number in table.ids if number != physical_id)
        return self._replace(table, _with_partitions(table.versions.table, rest), [physical_id])

    def truncate_partition(self, table: ModelTable, physical_id: int) -> int:
        """Empty a partition: it goes on under a new id."""
        return self._replace(table, _swap_partition(table, physical_id, next(self.new_ids)), [physical_id])

    def reorganize_partition(self, table: ModelTable, physical_id: int) -> int:
        """Copy a partition's rows under a new id, which takes its place."""
        copied_ts, new_id = self.tick(), next(self.new_ids)
        moved = {key: at for key, at in table.places.items() if at.physical_id == physical_id}
        for key, at in moved.items():
            place = at._replace(physical_id=new_id)
            self._happen((copied_ts, copied_ts - 1), place, at.value, None)
            table.places[key], table.held[place[:2]] = place, table.held.pop(at[:2])
        return self._replace(table, _swap_partition(table, physical_id, new_id), ())

    def exchange_partition(self, table: ModelTable, physical_id: int, other: ModelTable) -> ModelTable:
        """Have a partition and a whole table change places; no key may be in both tables.

        Returns the table that the partition has become: it has the other's name.
        """
        ts, name, (other_id,) = self.tick(), other.name, other.ids
        come, go = other.rows_in(other_id), table.rows_in(physical_id)
        self._end(ts, other)
        self._tell(remove_table(ts, other_id))
        made = self._begin(ts, name, replace(other.versions.table, id=physical_id), other)
        for key, row in come.items():
            self._hand_over(ts, key, row, other, table)
        for key, row in go.items():
            table.versions.write(ts, key, None, silent=True)
            self._hand_over(ts, key, row, table, made)
        table.breaks.append(ts)
        changed = _swap_partition(table, physical_id, other_id)
        table.versions.alter(ts, changed)
        self._describe(ts, table, changed)
        return made

    def _hand_over(self, ts: int, key: Key, row: Row, giver: ModelTable, taker: ModelTable) -> None:
        """A row belongs to another table, where it was."""
        place = giver.places.pop(key)
        taker.places[key], taker.held[place[:2]] = place, giver.held.pop(place[:2])
        taker.versions.write(ts, key, row, silent=True)

    def _alter(self, table: ModelTable, info: TableInfo) -> int:
        ts = self.tick()
        table.versions.alter(ts, info)
        self._describe(ts, table, info)
        return ts

    def _replace(self, table: ModelTable, info: TableInfo, emptied: Iterable[int]) -> int:
        """Partitions go with their rows, and others may come."""
        ts, left = self.tick(), frozenset(emptied)
        for key in [key for key, at in table.places.items() if at.physical_id in left]:
            del table.held[table.places.pop(key)[:2]]
            table.versions.write(ts, key, None, silent=True)
        table.breaks.append(ts)
        table.versions.alter(ts, info)
        self._describe(ts, table, info)
        return ts

    def _with_new_ids(self, info: TableInfo) -> TableInfo:
        made = replace(info, id=next(self.new_ids))
        if "partition" not in info.extra:
            return made
        return _with_partitions(made, [next(self.new_ids) for _ in info.physical_ids])

    def _describe(self, ts: int, table: ModelTable, info: TableInfo) -> None:
        table.schemas.append(SchemaVersion(ts, ts, info, _DATABASE))
        self._tell(put_table(ts, info))

    def _tell(self, change: Change) -> None:
        self.cluster.meta.append(change)
        self._pending_meta.append(change)
        self._follow_schemas()

    def deliver(self) -> None:
        """Hand over what was committed and not delivered yet; returns once it is durable."""
        self._follow_schemas()
        for physical_id, changes in self._pending.items():
            done = threading.Event()
            rows = self.store.open_table(physical_id)
            if changes and rows.consume_kv_events(raw(changes), done.set):
                assert done.wait(_WAIT_S), "the log does not answer"
            changes.clear()

    def _follow_schemas(self) -> None:
        if self.schemas_late:
            return
        self.schemas.consume_kv_events(raw(self._pending_meta), lambda: None)
        self.schemas.advance_resolved_ts(self.ts)
        self._pending_meta = []

    def resolve(self) -> int:
        """Resolve everything committed so far."""
        assert not any(self._pending.values()), "deliver first"
        self._follow_schemas()
        for rows in self.store.tables().values():
            rows.advance_resolved_ts(self.ts)
        return self.ts

    def flush(self) -> int:
        """Resolve, and move everything into objects."""
        ts = self.resolve()
        for table in self.store.tables():
            assert self.store.flush(table), "the flush failed"
        return ts

    def manifest(self, physical_id: int = 0) -> ManifestState:
        """Return what storage says of a physical table."""
        return manifest_log.load(self.storage.open(), paths.table_root(physical_id or self.ids[0]))

    def view(self, rows: RangeReader | None = None, *, objects_only: bool = False) -> TableView:
        """Return the table for readers: with the rows of the store, of another reader, or objects alone."""
        source = None if objects_only else rows or self.reader
        return TableView(NAME, tuple(Partition(self.storage, number, source) for number in self.ids))

    def find(self, name: str, at_ts: int | None = None) -> TableView:
        """Return the table of a name at a time, for readers; raises as `find_table` does."""
        held = self.store.tables()
        return find_table(
            self.storage, name, at_ts=at_ts, rows=lambda each: self.reader if each in held else None
        )

    def is_settled(self, ts: int) -> bool:
        """Return whether the store has applied all DDLs up to `ts`."""
        return not any(self.shared_ts < done_ts <= ts for done_ts in self.ddl_times())

    def is_flushed(self, name: str) -> bool:
        """Return whether storage has objects of every physical table that has or had the name."""
        named = (model for model in self.tables if any(called == name for _, called in model.names))
        ids = {number for table in named for schema in table.schemas for number in schema.table.physical_ids}
        return all(self.manifest(number).flushed_ts for number in ids)

    def readable_ts(self, table: ModelTable, ts: int) -> int:
        """Return how far the physical tables of a table at `ts` can be read; 0 until all are captured."""
        held = self.store.tables()
        found = []
        for number in table.versions.table_at(ts).physical_ids:
            flushed_ts = self.manifest(number).flushed_ts
            found.append(self.store.readable_ts(number) if number in held else flushed_ts)
        return min(found)

    def changes(self, from_ts: int, to_ts: int, **options: Any) -> list[ChangeBatch]:
        """Return everything that a handle over the range gives."""
        with collect_changes(self.view(), from_ts, to_ts, **options) as handle:
            return list(handle)

    def snapshot(self, ts: int) -> Snapshot:
        """Return the table as of `ts`, as it is read."""
        return gather_rows(
            read_snapshot(self.view(), ts, columns=self.columns(ts)), self.versions.table_at(ts)
        )

    def columns(self, ts: int) -> list[str]:
        """Return the columns to read, so that rows can be told apart."""
        return self.table.columns(ts)

    def moments(self) -> Iterator[int]:
        """Yield every commit-ts of rows so far, in order."""
        yield from sorted({change[0] for changes in self.cluster.rows.values() for change in changes})

    def ddl_times(self) -> list[int]:
        """Return when tables changed, came or went."""
        return sorted(
            {schema.since_ts for table in self.tables for schema in table.schemas}
            | {since for table in self.tables for since, _ in table.names}
        )


def _handle(table: ModelTable, row: Row) -> keys.Handle:
    info = table.versions.table
    if info.handle_kind is HandleKind.ROWID:
        return int(row[ROWID_COLUMN])
    return records.handle_of(info, records.to_record(info, row, start_ts=START))


def _with_partitions(info: TableInfo, ids: Iterable[int]) -> TableInfo:
    partition = {"enable": True, "definitions": [{"id": number} for number in ids]}
    return replace(info, extra={**info.extra, "partition": partition})


def _swap_partition(table: ModelTable, physical_id: int, new_id: int) -> TableInfo:
    ids = (new_id if number == physical_id else number for number in table.ids)
    return _with_partitions(table.versions.table, ids)


def gather_rows(batches: Iterable[pa.RecordBatch], table: TableInfo) -> Snapshot:
    """Return the rows of a snapshot by key; fails when one is there twice."""
    found: Snapshot = {}
    for batch in batches:
        for row in batch.to_pylist():
            key = key_of(table, row)
            assert key not in found, "a row is there twice"
            found[key] = visible(row)
    return found
