"""The DDLs of a cluster by their commit timestamps, fed by a subscription of its meta keys.

The versions of a table's description say when it changed, exactly as they do for its rows. What the change is
called, and its statement, are in the job, which is recorded with it or later: the history waits for that for
a while of the cluster's time, and then goes by what has changed.

Tables as readers see them, version by version: online changes show when they show to readers. Pure.
"""

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from penstock.clock import physical_ms
from penstock.errors import StaleRead, Unavailable
from penstock.eventstore.schema_history import DatabaseDescribed, TableDescribed, read_description, read_job
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import (
    DdlEvent,
    DdlJobs,
    DdlScope,
    TableChange,
    changed_ids,
    kind_of,
    paired,
    same_to_readers,
)
from penstock.tables.ddl_jobs import DdlAction
from penstock.tables.schema import DatabaseInfo


class _Seen(NamedTuple):
    """A table from `since_ts` on; None: it is not there."""

    since_ts: int
    schema: SchemaVersion | None


class SeenTables:
    """The versions of every table that has rows, fed in the order of their commits."""

    def __init__(self) -> None:
        self._seen: dict[int, list[_Seen]] = {}
        self._logical: dict[int, set[int]] = {}  # physical table -> the tables that it was part of

    def changes(
        self, commit_ts: int, said: Iterable[TableDescribed], databases: Mapping[int, str]
    ) -> Iterator[TableChange]:
        """What a transaction after all that was entered changes for readers; views and sequences do not."""
        for database_id, table_id, table in said:
            seen = self._seen.get(table_id)
            before = seen[-1].schema if seen else None
            after = None
            if table is not None and table.is_base_table:
                after = SchemaVersion(commit_ts, commit_ts, table, databases.get(database_id, ""))
            if before is not None and after is not None and same_to_readers(before, after):
                continue
            if before is not None or after is not None:
                yield TableChange(before, after)

    def enter(self, commit_ts: int, changes: Iterable[TableChange]) -> None:
        """Changes that `changes` gave have happened."""
        for before, after in ((each.before, each.after) for each in changes):
            if before is not None and (after is None or after.table.id != before.table.id):
                self._seen[before.table.id].append(_Seen(commit_ts, None))
            if after is not None:
                self._seen.setdefault(after.table.id, []).append(_Seen(commit_ts, after))
                for each in after.table.physical_ids:
                    self._logical.setdefault(each, set()).add(after.table.id)

    def __len__(self) -> int:
        """Versions that are kept."""
        return sum(map(len, self._seen.values()))

    def forget(self, upto_ts: int) -> None:
        """Nobody asks any more for what was there before `upto_ts`."""
        left = {table_id: _from(seen, upto_ts) for table_id, seen in self._seen.items()}
        gone = {table_id for table_id, seen in left.items() if not seen}
        self._seen = {table_id: seen for table_id, seen in left.items() if seen}
        if gone:
            logical = {each: tables - gone for each, tables in self._logical.items()}
            self._logical = {each: tables for each, tables in logical.items() if tables}

    def at(self, ts: int) -> list[SchemaVersion]:
        """The tables that are there, by id."""
        found = (_at(seen, ts) for _, seen in sorted(self._seen.items()))
        return [each for each in found if each is not None]

    def of_physical(self, physical_id: int, ts: int) -> SchemaVersion | None:
        """The table whose part a physical table is; before the first that is known, that one."""
        known = [self._seen[each] for each in self._logical.get(physical_id, ())]
        now = [_at(seen, ts) for seen in known]
        ever = sorted((each for seen in known for each in seen), key=lambda each: each.since_ts)
        for schema in (*now, *(each.schema for each in ever)):
            if schema is not None and physical_id in schema.table.physical_ids:
                return schema
        return None


def _at(seen: list[_Seen], ts: int) -> SchemaVersion | None:
    end = bisect_right(seen, ts, key=lambda each: each.since_ts)
    return seen[end - 1].schema if end else None


def _from(seen: list[_Seen], ts: int) -> list[_Seen]:
    """The version that is in force at `ts`, and those after it; none of a table that is not there then."""
    end = bisect_right(seen, ts, key=lambda each: each.since_ts)
    return seen[end if end and seen[end - 1].schema is None else max(end - 1, 0) :]


JOB_WAIT_MS = 60_000


@dataclass(slots=True)
class _Described:
    """What one transaction says of tables and databases."""

    tables: dict[int, TableDescribed] = field(default_factory=dict)
    databases: dict[int, DatabaseInfo | None] = field(default_factory=dict)

    def add(self, said: TableDescribed | DatabaseDescribed) -> None:
        if isinstance(said, DatabaseDescribed):
            self.databases[said.database_id] = said.database
        elif said.table is not None or said.table_id not in self.tables:
            # A move to another database removes the description there and writes it here, at once.
            self.tables[said.table_id] = said


@dataclass(frozen=True, slots=True)
class _Change:
    """One DDL before its job is known; `ids` lead to that."""

    ids: frozenset[int]
    action: int
    database: str
    tables: tuple[TableChange, ...]
    scope: DdlScope = DdlScope.TABLES


class DdlHistory:
    """Every DDL, complete up to `resolved_ts`. Thread-safe; implements MetaHistory.

    Feeding it the same change again changes nothing. What is older than the cluster's own history may be
    missing, or come as the creation of what was there.
    """

    def __init__(self, *, job_wait_ms: int = JOB_WAIT_MS) -> None:
        self._job_wait_ms = job_wait_ms
        self._lock = threading.Lock()
        self._forgotten_ts = 0  # what was in force before it is not known any more
        self._fed_ts = 0  # every change up to it was taken
        self._settled_ts = 0  # every DDL up to it is among the events
        self._unsettled: dict[int, _Described] = {}
        self._jobs = DdlJobs()
        self._tables = SeenTables()
        self._databases: set[int] = set()
        self._names: dict[int, str] = {}
        self._events: list[DdlEvent] = []

    def consume_kv_events(self, raw: pa.RecordBatch, finish: Callable[[], None]) -> bool:
        """Take changes of meta keys. Always False: they are read again from the store at a restart."""
        del finish
        columns = (raw.column(name).to_pylist() for name in ("key", "commit_ts", "value"))
        with self._lock:
            for key, commit_ts, value in zip(*columns, strict=True):
                if commit_ts > self._fed_ts:
                    self._take(key, commit_ts, value)
        return False

    def _take(self, key: bytes, commit_ts: int, value: bytes | None) -> None:
        said = read_description(key, value)
        if said is None:
            job = read_job(key, value)
            if job is not None:
                self._jobs.add(job, commit_ts)
            return
        self._unsettled.setdefault(commit_ts, _Described()).add(said)
        if isinstance(said, DatabaseDescribed) and said.database is not None:
            self._names[said.database_id] = said.database.name

    def advance_resolved_ts(self, ts: int) -> None:
        """Every change up to `ts` has been taken."""
        with self._lock:
            if ts > self._fed_ts:
                self._fed_ts = ts
                self._settle()

    def resolved_ts(self) -> int:
        """DDLs up to it are known, with their statements."""
        return self._settled_ts

    def ddls(self, from_ts: int, to_ts: int) -> list[DdlEvent]:
        """The DDLs in (from_ts, to_ts], in order; raise Unavailable when they are not all known yet."""
        with self._lock:
            self._check_kept(from_ts)
            self._check(to_ts)
            first, end = (bisect_right(self._events, ts, key=_commit_ts) for ts in (from_ts, to_ts))
            return self._events[first:end]

    def tables(self, at_ts: int) -> list[SchemaVersion]:
        """The tables that are there at a timestamp, by id; neither views nor sequences.

        Raises Unavailable when that is not known yet.
        """
        with self._lock:
            self._check_kept(at_ts)
            self._check(at_ts)
            return self._tables.at(at_ts)

    def schema_of(self, physical_id: int, ts: int) -> SchemaVersion:
        """The table whose part a physical table is at `ts`; before the first that is known, that one.

        Raises Unavailable when that is not known yet, or there is none.
        """
        with self._lock:
            self._check(ts)
            found = self._tables.of_physical(physical_id, ts)
        if found is None:
            raise Unavailable(f"table {physical_id} has no schema up to {ts}; wait for it")
        return found

    def forget(self, upto_ts: int) -> None:
        """Give back what only those need who ask for what was before `upto_ts`."""
        with self._lock:
            upto_ts = min(upto_ts, self._settled_ts)
            if upto_ts > self._forgotten_ts:
                self._forgotten_ts = upto_ts
                del self._events[: bisect_right(self._events, upto_ts, key=_commit_ts)]
                self._tables.forget(upto_ts)

    @property
    def kept_count(self) -> int:
        """DDLs and versions of tables that are kept."""
        return len(self._events) + len(self._tables)

    def _check_kept(self, ts: int) -> None:
        if ts < self._forgotten_ts:
            raise StaleRead("schemas", ts, oldest_ts=self._forgotten_ts)

    def gone_ts(self, physical_id: int) -> int | None:
        """Up to when it is known that a physical table is not there any more; None: it is, or never was."""
        with self._lock:
            known = self._tables.of_physical(physical_id, self._settled_ts)
            there = self._tables.at(self._settled_ts)
            is_there = any(physical_id in each.table.physical_ids for each in there)
            return None if known is None or is_there else self._settled_ts

    def _check(self, ts: int) -> None:
        if ts > self._settled_ts:
            raise Unavailable(f"DDLs are known up to {self._settled_ts}, not {ts}; wait")

    def _settle(self) -> None:
        """Enter what is complete, in order, up to the first change whose job is still to come."""
        for commit_ts in sorted(ts for ts in self._unsettled if ts <= self._fed_ts):
            changes = list(self._changes(commit_ts, self._unsettled[commit_ts]))
            events = [self._event(commit_ts, change) for change in changes]
            if None in events and not self._is_overdue(commit_ts):
                self._settled_ts = max(self._settled_ts, commit_ts - 1)
                return
            self._enter(commit_ts, changes)
            del self._unsettled[commit_ts]
            self._events += [event or _without_job(commit_ts, change)
                             for event, change in zip(events, changes, strict=True)]  # fmt: skip
        self._settled_ts = self._fed_ts
        self._jobs.forget(self._settled_ts)

    def _is_overdue(self, commit_ts: int) -> bool:
        return physical_ms(self._fed_ts) - physical_ms(commit_ts) >= self._job_wait_ms

    def _enter(self, commit_ts: int, changes: list[_Change]) -> None:
        for change in changes:
            self._tables.enter(commit_ts, change.tables)
            if change.scope is DdlScope.DATABASE:
                self._databases ^= change.ids

    def _changes(self, commit_ts: int, described: _Described) -> Iterator[_Change]:
        left = paired(self._tables.changes(commit_ts, described.tables.values(), self._names))
        for database_id, info in sorted(described.databases.items()):
            if (info is not None) == (database_id in self._databases):
                continue  # its charset may have changed, or it is on its way out
            name = self._names.get(database_id, "")
            inside: tuple[TableChange, ...] = ()
            if info is None:
                inside = tuple(each for each in left if each.after is None and _database(each) == name)
                left = tuple(each for each in left if each not in inside)
            action = DdlAction.DROP_SCHEMA if info is None else DdlAction.CREATE_SCHEMA
            yield _Change(frozenset({database_id}), action, name, inside, DdlScope.DATABASE)
        if left:
            yield _Change(frozenset(changed_ids(left)), kind_of(left), _database(left[0]), left)

    def _event(self, commit_ts: int, change: _Change) -> DdlEvent | None:
        """The DDL with its job; None when that is not known."""
        job = self._jobs.find(change.ids, commit_ts, self._fed_ts)
        return None if job is None else _as_event(commit_ts, change, job.type, job.query)


def _without_job(commit_ts: int, change: _Change) -> DdlEvent:
    return _as_event(commit_ts, change, int(change.action), "")


def _as_event(commit_ts: int, change: _Change, action: int, query: str) -> DdlEvent:
    return DdlEvent(
        commit_ts=commit_ts,
        type=action,
        query=query,
        database=change.database,
        tables=change.tables,
        scope=change.scope,
    )


def _database(change: TableChange) -> str:
    known = change.after or change.before
    assert known is not None, "a change is of something"
    return known.database


def _commit_ts(event: DdlEvent) -> int:
    return event.commit_ts
