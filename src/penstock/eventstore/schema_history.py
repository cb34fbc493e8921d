"""Which schema a table had when: a history, fed by a subscription of the cluster's meta keys.

Each change of a table rewrites its description under one meta key, in the transaction of the change. So the
versions of that key, by their commit timestamps, are the table's versions; nothing has to be inferred from
jobs. The subscription starts from the beginning at every start: the meta keys are few, and the versions that
garbage collection has removed are older than any row that will still come.

`read_description` and `read_job` decode a change of a meta key. The module has no I/O.
"""

import logging
import re
import threading
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa

from penstock.errors import Corrupt, Unavailable
from penstock.eventstore.schema_version import SchemaVersion, rewritten_columns
from penstock.eventstore.sides import refusal
from penstock.tables.ddl_jobs import FLASHBACK_CLUSTER, DdlJob
from penstock.tables.keys import META_HASH, META_PREFIX, decode_meta_key, meta_hash_prefix, prefix_end
from penstock.tables.meta import (
    DATABASES,
    JOB_HISTORY,
    SCHEMA_DIFFS,
    database_field,
    parse_json,
    read_diff,
    read_job_record,
    read_table,
)
from penstock.tables.schema import DatabaseInfo, TableInfo

__all__ = [
    "META_RANGE",
    "CapturedTable",
    "DatabaseDescription",
    "DatabaseNames",
    "SchemaHistory",
    "TableDescription",
    "carry_names",
    "read_description",
    "read_job",
]


_log = logging.getLogger(__name__)

META_RANGE = (META_PREFIX, prefix_end(META_PREFIX))
"""The key range to subscribe to."""

_DATABASE_HASHES = META_PREFIX + b"DB:"  # a memcomparable name begins with its own bytes
_DATABASE_LIST = meta_hash_prefix(DATABASES)
_JOB_LIST = meta_hash_prefix(JOB_HISTORY)
_DATABASE_FIELD = database_field(0)[:-1]
_TABLE_FIELD = b"Table:"
_DIFFS = META_PREFIX + SCHEMA_DIFFS
_FLASHBACK = re.compile(rb'"type":\s*%d\b' % FLASHBACK_CLUSTER)


class TableDescription(NamedTuple):
    """A table of a database; None: it was dropped, or has moved to another database.

    The table may be unreadable, and have no name then.
    """

    database_id: int
    table_id: int
    table: TableInfo | None


class DatabaseDescription(NamedTuple):
    """A database; None: it was dropped. Its name is empty when its description is damaged."""

    database_id: int
    database: DatabaseInfo | None


def read_description(key: bytes, value: bytes | None) -> TableDescription | DatabaseDescription | None:
    """Decode what a key's new value says of a table or a database; None when it is about something else."""
    if key.startswith(_DATABASE_HASHES):
        name, kind, field, _ = decode_meta_key(key)
        if kind != META_HASH or field is None or not field.startswith(_TABLE_FIELD):
            return None
        table_id = _number(field, _TABLE_FIELD)
        table = None if value is None else read_table(table_id, value)
        return TableDescription(_number(name, _DATABASE_FIELD), table_id, table)
    if key.startswith(_DATABASE_LIST):
        field = decode_meta_key(key).field
        assert field is not None, "a field of a hash has a name"
        database_id = _number(field, _DATABASE_FIELD)
        return DatabaseDescription(database_id, None if value is None else _database(database_id, value))
    return None


def read_job(key: bytes, value: bytes | None) -> DdlJob | None:
    """Decode the finished DDL job in a key's new value; None when it has none that can be read."""
    if value is None or not key.startswith(_JOB_LIST):
        return None
    return read_job_record(value)


def _database(database_id: int, value: bytes) -> DatabaseInfo:
    """Decode a database; one whose description is damaged has no name."""
    try:
        return DatabaseInfo.from_json(parse_json(value))
    except Corrupt as error:
        _log.error("a database cannot be read", extra={"database_id": database_id, "reason": str(error)})
        return DatabaseInfo(database_id, "")


def _number(name: bytes, prefix: bytes) -> int:
    return int(name.removeprefix(prefix))


class DatabaseNames:
    """What each database was called when: TiDB can bring a dropped one back with its id and another name."""

    def __init__(self, known: Mapping[int, list[tuple[int, str]]] | None = None) -> None:
        self._known = {database_id: list(names) for database_id, names in (known or {}).items()}

    def add(self, commit_ts: int, description: DatabaseDescription) -> None:
        """Record a description, in any order of commits. One that is damaged or removed says no name."""
        if description.database and description.database.name:
            names = self._known.setdefault(description.database_id, [])
            entry = (commit_ts, description.database.name)
            if entry not in names:
                insort(names, entry)

    def at(self, database_id: int, ts: int, default: str = "") -> str:
        """Return a database's last name at `ts`, or the first that is known; `default` when there is none."""
        names = self._known.get(database_id)
        if not names:
            return default
        return names[max(0, bisect_right(names, ts, key=lambda entry: entry[0]) - 1)][1]

    def copy(self) -> "DatabaseNames":
        """Return the names that are known now."""
        return DatabaseNames(self._known)


class CapturedTable(NamedTuple):
    """A table that had rows at some time: where its keys are, and its last name."""

    physical_id: int
    database: str
    table: TableInfo
    dropped_ts: int  # 0: it exists
    refused: str = ""  # why its rows cannot be kept with its present schema


@dataclass(order=True, frozen=True, slots=True)
class _TableSince:
    """A table from `since_ts` on."""

    since_ts: int
    database_id: int = field(compare=False)
    table: TableInfo | None = field(compare=False)  # None: dropped
    refused: str = field(default="", compare=False)  # why rows of this version cannot be kept

    def has(self, physical_id: int) -> bool:
        """Return whether the table's rows are under an id."""
        return self.table is not None and physical_id in self.table.physical_ids


class SchemaHistory:
    """Versions of every table, complete up to `resolved_ts`. Thread-safe; implements Schemas.

    Feeding it the same change again changes nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._resolved_ts = 0
        self._versions: dict[int, list[_TableSince]] = {}
        self._logical: dict[int, set[int]] = {}  # physical id -> the tables it was, or was a partition of
        self._refused: set[int] = set()  # physical ids that had a version whose rows cannot be kept
        self._databases = DatabaseNames()
        self._ddl_times: list[int] = []  # of all tables, sorted
        self._parted: set[int] = set()  # physical ids that a table does not have in all of its versions
        self._rewriting: set[int] = set()  # physical ids that had a version in which a column is rewritten
        self._flashbacks: list[int] = []  # when FLASHBACK CLUSTER began, or ended; sorted
        self._cancelled: list[tuple[int, int]] = []  # when such a job began and was recorded that did nothing

    def consume_kv_events(self, raw: pa.RecordBatch, finish: Callable[[], None]) -> bool:
        """Take changes of meta keys. Always return False: they are read again from the store at a restart."""
        del finish
        columns = (raw.column(name).to_pylist() for name in ("key", "commit_ts", "value"))
        with self._lock:
            for key, commit_ts, value in zip(*columns, strict=True):
                description = read_description(key, value)
                if isinstance(description, TableDescription):
                    self._add_version(commit_ts, description)
                elif description is not None:
                    self._databases.add(commit_ts, description)
                elif value is not None and _FLASHBACK.search(value):
                    self._add_flashback(commit_ts, key, value)
        return False

    def _add_flashback(self, commit_ts: int, key: bytes, value: bytes) -> None:
        """Record a step of FLASHBACK CLUSTER.

        TiDB writes a schema diff before it locks the cluster, and so before any row goes back.
        """
        job = read_job(key, value)
        diff = read_diff(value) if key.startswith(_DIFFS) else None
        if diff is not None and diff.type == FLASHBACK_CLUSTER and commit_ts not in self._flashbacks:
            insort(self._flashbacks, commit_ts)
        if job is not None and job.type == FLASHBACK_CLUSTER and not job.succeeded:
            self._cancelled.append((job.start_ts, commit_ts))

    def advance_resolved_ts(self, ts: int) -> None:
        """Record that every change up to `ts` has been taken."""
        with self._lock:
            if ts > self._resolved_ts:
                self._resolved_ts = ts
                self._lock.notify_all()

    def resolved_ts(self) -> int:
        """Return the timestamp up to which the history is complete."""
        return self._resolved_ts

    def storable_ts(self, table_id: int) -> int:
        """Return how far a table's changes can be kept.

        That is `resolved_ts`, or just before the first of the latest versions whose rows cannot be kept.
        """
        with self._lock:
            upto = self._resolved_ts
            if table_id in self._refused:
                for version in reversed(
                    [version for version in self._versions_of(table_id) if version.since_ts <= upto]
                ):
                    if not version.refused:
                        break
                    upto = version.since_ts - 1
            return upto

    def versions(self, table_id: int, from_ts: int, to_ts: int) -> list[SchemaVersion]:
        """Return the versions in force in (from_ts, to_ts], by time, from the one at its start on.

        Changes before the oldest known version are read with that version. A version whose rows cannot be
        kept has the columns of the next one whose rows can. Raises Unavailable when the history is not
        complete up to `to_ts`, or the table has no schema up to then.
        """
        with self._lock:
            if to_ts > self._resolved_ts:
                raise Unavailable(f"schemas are known up to {self._resolved_ts}, not {to_ts}; wait")
            known = [
                version for version in self._versions_of(table_id) if version.since_ts <= self._resolved_ts
            ]
            found = [version for version in known if version.since_ts <= to_ts]
            if not found:
                raise Unavailable(f"table {table_id} has no schema up to {to_ts}; wait for it")
            first = max(0, bisect_right(found, from_ts + 1, key=lambda version: version.since_ts) - 1)
            return self._to_schema_versions(known[first:])[: len(found) - first]

    def rewrites(self, table_id: int, from_ts: int, to_ts: int) -> list[int]:
        """Return each time in (from_ts, to_ts] at which a rewritten column took the place of another."""
        if table_id not in self._rewriting:
            return []
        with self._lock:
            upto = min(to_ts, self._resolved_ts)
            return [
                after.since_ts
                for before, after in pairwise(self._versions_of(table_id))
                if from_ts < after.since_ts <= upto
                and before.table is not None
                and after.table is not None
                and before.table.is_rewriting
                and rewritten_columns(before.table, after.table)
            ]

    def flashback(self, table_id: int, from_ts: int) -> int:
        """Return the first FLASHBACK CLUSTER after `from_ts` that took back rows of a table; 0 without one.

        One that runs counts. One that was cancelled does not, as soon as that is known.
        """
        if not self._flashbacks:
            return 0
        with self._lock:
            created_ts = min((version.since_ts for version in self._versions_of(table_id)), default=0)
            found = (
                ts
                for ts in self._flashbacks
                if max(from_ts, created_ts) < ts <= self._resolved_ts
                and not any(start_ts < ts <= end_ts for start_ts, end_ts in self._cancelled)
            )
            return next(found, 0)

    def ended_ts(self, table_id: int) -> int:
        """Return when the physical table was dropped, truncated or replaced; 0 while it exists.

        A partition that went from one table to another exists while either has it.
        """
        ends = self.ends(table_id, 0, self._resolved_ts)
        with self._lock:
            known = [self._versions[logical_id] for logical_id in self._logical.get(table_id, ())]
            there = any(_has_at(versions, self._resolved_ts, table_id) for versions in known)
        return 0 if there or not ends else ends[-1]

    def ends(self, table_id: int, from_ts: int, to_ts: int) -> list[int]:
        """Return each time in (from_ts, to_ts] at which the physical table ceased to be part of any table.

        An id that one table hands to another at once does not end.
        """
        if table_id not in self._parted:
            return []
        with self._lock:
            upto = min(to_ts, self._resolved_ts)
            known = [self._versions[logical_id] for logical_id in self._logical.get(table_id, ())]
            left = {
                after.since_ts
                for versions in known
                for before, after in pairwise(versions)
                if before.has(table_id) and not after.has(table_id)
            }
            return sorted(
                ts
                for ts in left
                if from_ts < ts <= upto and not any(_has_at(versions, ts, table_id) for versions in known)
            )

    def known_ids(self) -> set[int]:
        """Return every physical table that is known up to `resolved_ts`, dropped ones among them."""
        return {table.physical_id for table in self.tables_ever()}

    def last_ddl_ts(self) -> int:
        """Return when a table was last created, altered or dropped, up to `resolved_ts`; 0 if never."""
        with self._lock:
            known = bisect_right(self._ddl_times, self._resolved_ts)
            return self._ddl_times[known - 1] if known else 0

    def names(self, physical_id: int) -> set[tuple[str, str]]:
        """Return every (database, table) that an id is known to be, or to have been, a part of."""
        with self._lock:
            found = [
                (self._databases.at(version.database_id, version.since_ts), version.table)
                for version in self._versions_of(physical_id)
            ]
        return {(database, table.name) for database, table in found if database and table is not None}

    def tables_ever(self) -> Iterable[CapturedTable]:
        """Return every known table and partition once, dropped ones among them.

        Views and sequences hold no rows and are left out. A partition that went from one table to another
        exists while either has it.
        """
        with self._lock:
            known = [list(versions) for versions in self._versions.values()]
            names = self._databases.copy()
            upto = self._resolved_ts
        found: dict[int, CapturedTable] = {}
        for versions in known:
            for table in _latest(versions, names, upto):
                other = found.get(table.physical_id)
                if other is None or (other.dropped_ts and not 0 < table.dropped_ts < other.dropped_ts):
                    found[table.physical_id] = table
        return found.values()

    def _versions_of(self, physical_id: int) -> list[_TableSince]:
        """Return the versions that had the id, by time: of one table, or of those that exchanged it."""
        return sorted(
            version
            for table_id in self._logical.get(physical_id, ())
            for version in self._versions[table_id]
            if version.table is not None and physical_id in version.table.physical_ids
        )

    def _to_schema_versions(self, versions: list[_TableSince]) -> list[SchemaVersion]:
        """Return the versions under which rows are kept: where one cannot be kept, a later one's columns."""
        shown: list[SchemaVersion] = []
        stored: TableInfo | None = None
        for version in reversed(versions):
            table = version.table
            assert table is not None
            if not version.refused:
                stored = table
            elif stored is not None and not table.unreadable:
                table = replace(table, columns=stored.columns, indexes=stored.indexes)
            elif stored is not None:
                parts = {"partition": table.extra.get("partition")}
                table = replace(stored, name=table.name, extra={**stored.extra, **parts})
            database = self._databases.at(version.database_id, version.since_ts)
            shown.append(SchemaVersion(version.since_ts, version.since_ts, table, database))
        return shown[::-1]

    def _add_version(self, commit_ts: int, description: TableDescription) -> None:
        database_id, table_id, table = description
        insort(self._ddl_times, commit_ts)
        versions = self._versions.setdefault(table_id, [])
        if table is not None and not table.name:
            before = [version.table for version in versions if version.since_ts < commit_ts and version.table]
            table = carry_names(table, before[-1] if before else None)
        refused = refusal(table) if table is not None and table.is_base_table else ""
        for physical_id in table.physical_ids if table else ():
            self._logical.setdefault(physical_id, set()).add(table_id)
            if refused:
                self._refused.add(physical_id)
            if table is not None and table.is_rewriting:
                self._rewriting.add(physical_id)
        had = {
            physical_id for version in versions if version.table for physical_id in version.table.physical_ids
        }
        self._parted |= had.symmetric_difference(table.physical_ids if table else ())
        same = next((version for version in versions if version.since_ts == commit_ts), None)
        if same is None:
            insort(versions, _TableSince(commit_ts, database_id, table, refused))
        elif table is not None:
            # A move to another database removes the description there and writes it here, at once.
            versions[versions.index(same)] = _TableSince(commit_ts, database_id, table, refused)


def carry_names(table: TableInfo, before: TableInfo | None) -> TableInfo:
    """Return a table that is so damaged that it has no name as the table that it was, but unreadable."""
    return table if before is None else replace(before, unreadable=table.unreadable)


def _has_at(versions: list[_TableSince], ts: int, physical_id: int) -> bool:
    """Return whether a table's rows are under an id at a timestamp."""
    begun = [version for version in versions if version.since_ts <= ts]
    return bool(begun) and begun[-1].has(physical_id)


def _latest(versions: list[_TableSince], names: DatabaseNames, upto: int) -> Iterator[CapturedTable]:
    """Yield each id that a table's keys ever had, with the last version that had it, and when that ended."""
    seen: set[int] = set()
    ended_ts = 0
    for version in reversed([version for version in versions if version.since_ts <= upto]):
        if version.table is not None and version.table.is_base_table:
            fresh = [physical_id for physical_id in version.table.physical_ids if physical_id not in seen]
            name = names.at(version.database_id, version.since_ts)
            for physical_id in fresh:
                yield CapturedTable(physical_id, name, version.table, ended_ts, version.refused)
            seen.update(fresh)
        ended_ts = version.since_ts
