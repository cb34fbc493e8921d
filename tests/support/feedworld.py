"""A database of many tables and DDLs, as a changefeed reads it, beside the plain dicts that it must lead to.

Rows go through a real event store in this process, DDLs through the history that sources have. Nothing
happens by itself: commits, DDLs, what is resolved and what is flushed are the caller's to decide.
"""

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Self

import pyarrow as pa

from penstock.clock import compose_ts
from penstock.eventstore.capture.reader import Reader
from penstock.eventstore.capture.store import EventStore
from penstock.eventstore.read.find import NameMarks, find_table
from penstock.eventstore.read.partition import CaptureProgress, ReadRange, Refusal, SchemaRange, TableView
from penstock.eventstore.schema_version import SchemaVersion, versions_in_force
from penstock.follow.ddl_events import OtherAction
from penstock.follow.ddl_history import DdlHistory
from penstock.object_storage import StorageRef
from penstock.settings import CaptureSettings
from penstock.tables import alter, keys, records
from penstock.tables.ddl_jobs import DdlAction
from penstock.tables.decoding.decoder import TidbRowDecoder
from penstock.tables.records import origin_cell
from penstock.tables.schema import HandleKind, TableInfo
from penstock.tables.values import from_cell
from penstock.testing.versions import Row
from support.itemtables import item_table
from support.metaevents import (
    finish_job,
    put_database,
    put_table,
    remove_database,
    remove_table,
)
from support.rawbatches import Change, raw
from support.tableworld import CountingClock

__all__ = ["FeedWorld", "Held", "Place", "WorldTable"]

_WAIT_S = 30.0

Place = tuple[int, keys.Handle]
"""A physical table, and a handle there."""
Tables = dict[str, list[Row]]


@dataclass(frozen=True, slots=True)
class Held:
    """A row and its bytes."""

    row: Row
    value: bytes


@dataclass(slots=True)
class WorldTable:
    """A table as it is now."""

    database: str
    info: TableInfo
    rows: dict[Place, Held] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """With its database."""
        return f"{self.database}.{self.info.name}"

    def place(self, row: Row, rowid: int) -> Place:
        """Return where a row belongs: by its key, or by a number when its key is not a handle."""
        ids = self.info.physical_ids
        handle: keys.Handle = rowid
        if self.info.handle_kind is not HandleKind.ROWID:
            handle = records.handle_of(self.info, records.to_record(self.info, row, start_ts=1))
        return ids[row["id"] % len(ids)], handle


class FeedWorld:
    """The database and its event store. `now_ms` says the time of new timestamps; a context."""

    def __init__(self, folder: Path, now_ms: Callable[[], int], *, url: str = "") -> None:
        self._now_ms = now_ms
        self.ts = compose_ts(now_ms())
        self.storage = StorageRef(url or f"memory://{folder}")
        self.history = DdlHistory()
        self._marks = NameMarks(self.storage.open())
        self.databases: dict[str, int] = {}
        self.tables: dict[str, WorldTable] = {}
        self.uncaptured: set[int] = set()  # physical tables that nobody captures yet
        self.repartitioned: set[tuple[str, int]] = set()  # names, and when their partitions came or went
        self._ids = count(100)
        self._rowids = count(1)
        self._versions: dict[int, list[SchemaVersion]] = {}
        self._gone: dict[int, int] = {}
        self._moments: list[tuple[int, Tables, dict[str, list[str]]]] = []
        settings = CaptureSettings(
            data=folder,
            storage=self.storage.url,
            flush_interval_s=10**9,
            idle_flush_interval_s=10**9,
            flush_bytes=1 << 40,
        )
        decoder = TidbRowDecoder()
        self.store = EventStore(
            settings, self.storage.open(), decoder=decoder, schemas=self, clock=CountingClock()
        )
        self.store.start()
        self.reader = Reader(self.store, self.storage.open(), decoder)
        self._note()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close(flush=False)

    def tick(self) -> int:
        """Return a later timestamp."""
        self.ts = max(self.ts + 2, compose_ts(self._now_ms()))
        return self.ts

    def resolved_ts(self) -> int:
        """Return up to when all schemas are known."""
        return self.history.resolved_ts()

    def flashback(self, _table_id: int, _from_ts: int) -> int:
        return 0

    def rewrites(self, _table_id: int, _from_ts: int, _to_ts: int) -> list[int]:
        """Return no rewrite: no column changes."""
        return []

    def storable_ts(self, _table_id: int) -> int:
        """Return up to when schemas may be stored."""
        return self.resolved_ts()

    def ends(self, table_id: int, from_ts: int, to_ts: int) -> list[int]:
        """Return the times in a range at which a table ended."""
        ended_ts = self.ended_ts(table_id)
        return [ended_ts] if from_ts < ended_ts <= to_ts else []

    def versions(self, table_id: int, from_ts: int, to_ts: int) -> list[SchemaVersion]:
        """Return the schema versions of a table in a range."""
        return versions_in_force(self._versions[table_id], from_ts, to_ts)

    def ended_ts(self, table_id: int) -> int:
        """Return when a table was dropped; 0 when it was not."""
        ended_ts = self._gone.get(table_id, 0)
        return ended_ts if ended_ts <= self.resolved_ts() else 0

    def known_ids(self) -> set[int]:
        """Return the physical tables that are known, dropped ones among them."""
        known_ts = self.resolved_ts()
        return {number for number, versions in self._versions.items() if versions[0].since_ts <= known_ts}

    def last_ddl_ts(self) -> int:
        """Return when a table changed last, as far as is known."""
        begun = [version.since_ts for versions in self._versions.values() for version in versions]
        return max((ts for ts in [*begun, *self._gone.values()] if ts <= self.resolved_ts()), default=0)

    @property
    def physical_ids(self) -> set[int]:
        """The physical tables that are there now."""
        return {number for table in self.tables.values() for number in table.info.physical_ids}

    def is_done(self, physical_id: int) -> bool:
        """Return whether a physical table is gone, and all that it had is resolved."""
        known_ts = min(self.store.rows(physical_id).resolved_ts, self.history.resolved_ts())
        return physical_id in self._gone and known_ts >= self._gone[physical_id]

    def rows_at(self, ts: int) -> Tables:
        """Return every table's rows as of a timestamp, in any order."""
        return self._moment(ts)[1]

    def columns_at(self, ts: int) -> dict[str, list[str]]:
        """Return every table's columns."""
        return self._moment(ts)[2]

    def _moment(self, ts: int) -> tuple[int, Tables, dict[str, list[str]]]:
        return self._moments[bisect_right(self._moments, ts, key=lambda each: each[0]) - 1]

    def _note(self) -> None:
        rows = {name: [row.row for row in table.rows.values()] for name, table in self.tables.items()}
        columns = {name: _names(table.info) for name, table in self.tables.items()}
        self._moments.append((self.ts, rows, columns))

    def commit(self, *changes: tuple[WorldTable, Iterable[Place], Iterable[Row]]) -> int:
        """Commit one transaction that, in each table, deletes rows and then puts others by their keys.

        A row with the place `_at` is put there, whatever its key.
        """
        ts = self.tick()
        made: dict[Place, Change] = {}
        for table, leaving, coming in changes:
            before = dict(table.rows)
            for place in leaving:
                del table.rows[place]
            for row in coming:
                at = row.pop("_at", None) or table.place(row, next(self._rowids))
                value = records.value_of(table.info, records.to_record(table.info, row, start_ts=ts - 1))
                table.rows[at] = Held(row, value)
            for at in dict.fromkeys([*before, *table.rows]):
                if before.get(at) is not table.rows.get(at):
                    made[at] = _change(ts, at, table.rows.get(at), before.get(at))
        self._deliver(made)
        self._note()
        return ts

    def _deliver(self, made: Mapping[Place, Change]) -> None:
        by_table: dict[int, list[Change]] = {}
        for (physical_id, _), change in made.items():
            by_table.setdefault(physical_id, []).append(change)
        for physical_id, changes in by_table.items():
            self.capture(physical_id)
            done = threading.Event()
            if self.store.open_table(physical_id).consume_kv_events(raw(changes), done.set):
                assert done.wait(_WAIT_S), "the log does not answer"

    def capture(self, physical_id: int) -> None:
        """Begin to capture a physical table, at the latest with its first rows."""
        self.uncaptured.discard(physical_id)
        self.store.open_table(physical_id)

    def give_up(self, physical_id: int) -> None:
        """Capture a physical table no more, that is gone: what it had is in objects."""
        self.store.close_table(physical_id)

    def resolve(self, physical_ids: Iterable[int] | None = None) -> int:
        """Resolve everything so far, of some captured physical tables or of all."""
        ts = self.tick()
        for physical_id in self.store.tables() if physical_ids is None else physical_ids:
            self.store.open_table(physical_id).advance_resolved_ts(ts)
        return ts

    def resolve_ddls(self) -> int:
        """Resolve every DDL so far."""
        ts = self.tick()
        self.history.advance_resolved_ts(ts)
        return ts

    def flush(self, physical_id: int) -> None:
        """Move what is resolved of a physical table into objects."""
        assert self.store.flush(physical_id), "the flush failed"

    def create_database(self, name: str) -> None:
        """CREATE DATABASE."""
        ts = self.tick()
        made = self.databases[name] = next(self._ids)
        query = f"CREATE DATABASE `{name}`"
        self._ddl([put_database(ts, made, name), self._job(ts, DdlAction.CREATE_SCHEMA, 0, query, made)])

    def drop_database(self, name: str) -> None:
        """DROP DATABASE, with its tables."""
        ts = self.tick()
        known = self.databases.pop(name)
        inside = [table for table in self.tables.values() if table.database == name]
        changes = [remove_table(ts, inner.info.id, known) for inner in inside]
        for inner in inside:
            del self.tables[inner.name]
        query = f"DROP DATABASE `{name}`"
        job = self._job(ts, DdlAction.DROP_SCHEMA, 0, query, known)
        self._ddl([*changes, remove_database(ts, known), job])

    def create_table(self, name: str, kind: str, partitions: int = 0) -> WorldTable:
        """CREATE TABLE, of a kind of itemtables."""
        ts = self.tick()
        database_name, _, own = name.partition(".")
        parts = tuple(next(self._ids) for _ in range(partitions))
        info = replace(item_table(kind, table_id=next(self._ids), partitions=parts), name=own)
        made = self.tables[name] = WorldTable(database_name, info)
        self._describe(ts, made, DdlAction.CREATE_TABLE, f"CREATE TABLE {_quote(name)} (...)")
        return made

    def create_like(self, name: str, table: WorldTable) -> WorldTable:
        """CREATE TABLE with the columns of another, and without partitions."""
        ts = self.tick()
        database_name, _, own = name.partition(".")
        extra = {key: value for key, value in table.info.extra.items() if key != "partition"}
        info = replace(table.info, id=next(self._ids), name=own, extra=extra)
        made = self.tables[name] = WorldTable(database_name, info)
        self._describe(ts, made, DdlAction.CREATE_TABLE, f"CREATE TABLE {_quote(name)} (...)")
        return made

    def drop_table(self, table: WorldTable) -> None:
        """DROP TABLE."""
        ts = self.tick()
        del self.tables[table.name]
        known = self.databases[table.database]
        query = f"DROP TABLE {_quote(table.name)}"
        job = self._job(ts, DdlAction.DROP_TABLE, table.info.id, query, known)
        self._ddl([remove_table(ts, table.info.id, known), job])

    def truncate_table(self, table: WorldTable) -> None:
        """TRUNCATE TABLE: other ids, no rows."""
        ts = self.tick()
        old_id = table.info.id
        parts = () if table.info.physical_ids == (old_id,) else table.info.physical_ids
        table.info = with_partitions(table.info, [next(self._ids) for _ in parts])
        table.info = replace(table.info, id=next(self._ids))
        table.rows.clear()
        left = remove_table(ts, old_id, self.databases[table.database])
        query = f"TRUNCATE TABLE {_quote(table.name)}"
        self._describe(ts, table, DdlAction.TRUNCATE_TABLE, query, left, job_of=old_id)

    def add_partition(self, table: WorldTable) -> int:
        """ALTER TABLE ... ADD PARTITION; returns when."""
        ids = (*table.info.physical_ids, next(self._ids))
        return self._repartition(table, ids, OtherAction.ADD_PARTITION, "ADD PARTITION (...)")

    def drop_partition(self, table: WorldTable, at: int) -> int:
        """ALTER TABLE ... DROP PARTITION, with its rows; returns when."""
        ids = tuple(
            partition_id for number, partition_id in enumerate(table.info.physical_ids) if number != at
        )
        return self._repartition(table, ids, OtherAction.DROP_PARTITION, f"DROP PARTITION p{at}")

    def truncate_partitions(self, table: WorldTable, *at: int) -> int:
        """ALTER TABLE ... TRUNCATE PARTITION: other ids, no rows; returns when."""
        ids = tuple(
            next(self._ids) if number in at else partition_id
            for number, partition_id in enumerate(table.info.physical_ids)
        )
        names = ", ".join(f"p{number}" for number in at)
        return self._repartition(table, ids, OtherAction.TRUNCATE_PARTITION, f"TRUNCATE PARTITION {names}")

    def exchange_partition(self, table: WorldTable, at: int, other: WorldTable) -> int:
        """ALTER TABLE ... EXCHANGE PARTITION: each has the other's id and rows; returns when."""
        ts = self.tick()
        mine, theirs = table.info.physical_ids[at], other.info.id
        ids = tuple(theirs if number == mine else number for number in table.info.physical_ids)
        leaving = {place: held for place, held in table.rows.items() if place[0] == mine}
        table.rows = {place: held for place, held in table.rows.items() if place[0] != mine} | other.rows
        table.info, other.info = with_partitions(table.info, ids), replace(other.info, id=mine)
        other.rows = leaving
        known = self.databases[other.database]
        left, came = remove_table(ts, theirs, known), put_table(ts, other.info, known)
        self._version(ts, other)
        self.repartitioned |= {(table.name, ts), (other.name, ts)}
        query = f"ALTER TABLE {_quote(table.name)} EXCHANGE PARTITION p{at} WITH TABLE {_quote(other.name)}"
        self._describe(ts, table, OtherAction.EXCHANGE_PARTITION, query, left, came)
        return ts

    def _repartition(self, table: WorldTable, ids: tuple[int, ...], action: int, what: str) -> int:
        ts = self.tick()
        table.info = with_partitions(table.info, ids)
        table.rows = {place: held for place, held in table.rows.items() if place[0] in ids}
        self.repartitioned.add((table.name, ts))
        self._describe(ts, table, action, f"ALTER TABLE {_quote(table.name)} {what}")
        return ts

    def find(self, name: str, at_ts: int | None = None) -> TableView:
        """Return the table of a name for readers, with the rows of the store; see `find_table`."""
        return find_table(self.storage, name, at_ts=at_ts, rows=self.reader)

    def rename_table(self, table: WorldTable, name: str) -> None:
        """RENAME TABLE, maybe into another database."""
        ts = self.tick()
        query = f"RENAME TABLE {_quote(table.name)} TO {_quote(name)}"
        left = remove_table(ts, table.info.id, self.databases[table.database])
        moves = table.database != name.partition(".")[0]
        del self.tables[table.name]
        table.database, _, own = name.partition(".")
        table.info = replace(table.info, name=own)
        self.tables[name] = table
        self._describe(ts, table, DdlAction.RENAME_TABLE, query, *([left] if moves else []))

    def add_column(self, table: WorldTable, column: str, definition: str) -> None:
        """ALTER TABLE ... ADD COLUMN."""
        info = alter.add_column(table.info, column, definition)
        self._alter(table, info, DdlAction.ADD_COLUMN, f"ADD COLUMN `{column}` {definition}")

    def drop_column(self, table: WorldTable, column: str) -> None:
        """ALTER TABLE ... DROP COLUMN."""
        info = alter.drop_column(table.info, column)
        self._alter(table, info, DdlAction.DROP_COLUMN, f"DROP COLUMN `{column}`")

    def modify_column(self, table: WorldTable, column: str, definition: str) -> None:
        """ALTER TABLE ... MODIFY COLUMN, to a type that every row fits."""
        info = alter.modify_column(table.info, column, definition)
        self._alter(table, info, DdlAction.MODIFY_COLUMN, f"MODIFY COLUMN `{column}` {definition}")

    def _alter(self, table: WorldTable, info: TableInfo, action: DdlAction, what: str) -> None:
        ts = self.tick()
        table.info = info
        table.rows = {at: replace(held, row=_reshape(held.row, info)) for at, held in table.rows.items()}
        self._describe(ts, table, action, f"ALTER TABLE {_quote(table.name)} {what}")

    def _describe(
        self, ts: int, table: WorldTable, action: int, query: str, *others: Change, job_of: int = 0
    ) -> None:
        known = self.databases[table.database]
        self._version(ts, table)
        job = self._job(ts, action, job_of or table.info.id, query, known)
        self._ddl([*others, put_table(ts, table.info, known), job])

    def _version(self, ts: int, table: WorldTable) -> None:
        version = SchemaVersion(ts, ts, table.info, table.database)
        for number in table.info.physical_ids:
            if number not in self._versions:
                self.uncaptured.add(number)
            self._versions.setdefault(number, []).append(version)
            self._marks.mark([(table.database, table.info.name)], number)

    def _job(self, ts: int, action: int, table_id: int, query: str, database_id: int) -> Change:
        return finish_job(ts, next(self._ids), int(action), table_id, query, database_id=database_id)

    def _ddl(self, changes: list[Change]) -> None:
        there = self.physical_ids
        self._gone.update(
            {version: self.ts for version in self._versions if version not in there | self._gone.keys()}
        )
        self.history.consume_kv_events(raw(changes), lambda: None)
        self._note()

    def connect(self, _addr: str) -> "FeedWorld._Capture":
        """Return the capture of all tables, for a source."""
        return FeedWorld._Capture(self)

    class _Capture:
        """Implements CaptureReader."""

        def __init__(self, world: "FeedWorld") -> None:
            self._world = world

        def progress(self, table_id: int) -> CaptureProgress:
            return self._world.reader.progress(table_id)

        def parts(self, wanted: ReadRange) -> list[SchemaRange]:
            return self._world.reader.parts(wanted)

        def read(self, wanted: ReadRange) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
            return self._world.reader.read(wanted)

        def tables(self) -> list[CaptureProgress]:
            return [self._world.reader.progress(table_id) for table_id in sorted(self._world.store.tables())]

        def refusals(self) -> list[Refusal]:
            return []

        def close(self) -> None:
            pass


def with_partitions(info: TableInfo, ids: Sequence[int]) -> TableInfo:
    """Return a table with other partitions; none: it is not partitioned."""
    extra = dict(info.extra)
    if ids:
        extra["partition"] = {"enable": True, "definitions": [{"id": number} for number in ids]}
    return replace(info, extra=extra)


def _change(ts: int, at: Place, new: Held | None, old: Held | None) -> Change:
    key = keys.record_key(*at)
    return (ts, ts - 1, key, new.value if new else None, old.value if old else None)


def _reshape(row: Row, info: TableInfo) -> Row:
    """Return a row after a change of columns; new columns have the default for existing rows."""
    return {
        column.name: row[column.name] if column.name in row else from_cell(column.type, origin_cell(column))
        for column in info.stored_columns
    }


def _names(info: TableInfo) -> list[str]:
    return [column.name for column in info.stored_columns]


def _quote(name: str) -> str:
    return ".".join(f"`{part}`" for part in name.split("."))
