"""The DDLs of a cluster by their commit timestamps, fed by a subscription of its meta keys.

A finished job is one DDL. The versions of a table's description say when it changed, exactly as they do for
its rows: the DDL happens with the first of them in which readers see other rows, or queries other indexes.
The action and the statement are in the job, which is recorded with the change or later: a transaction that
stays open holds back the last steps of a job. `DdlHistory` waits for the job for a while of the cluster's
time; after that it derives the statement from what has changed. Where that does not say which statement it
was, it waits as long as the table shows that the job still runs. A job that changes nothing of the kind, such
as a comment's, happens when it is recorded. `VisibleTables` keeps the versions of tables that readers see.
"""

import logging
import threading
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa

from penstock.clock import physical_ms
from penstock.errors import StaleRead, Unavailable
from penstock.eventstore.schema_history import (
    DatabaseDescription,
    DatabaseNames,
    TableDescription,
    carry_names,
    read_description,
    read_job,
)
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import (
    DdlEvent,
    DdlJobs,
    DdlScope,
    DescribedDdl,
    OtherAction,
    RecordedDdl,
    TableChange,
    action_of,
    ids_in_changes,
    ids_in_job,
    is_sent,
    pair_changes,
    same_indexes,
    same_to_readers,
)
from penstock.follow.ddl_statements import ddl_statement, derive_statement
from penstock.tables.accounts import SYSTEM_ACCOUNT, Account, OwnerRecord, read_account_record
from penstock.tables.ddl_jobs import DdlAction, DdlJob
from penstock.tables.schema import DatabaseInfo, TableInfo
from penstock.tables.system_tables import TIDB_DATABASES

_log = logging.getLogger(__name__)


class _VisibleVersion(NamedTuple):
    """A table from `since_ts` on; None when it does not exist from then on."""

    since_ts: int
    schema: SchemaVersion | None


class _UnreadSpan(NamedTuple):
    """A description that cannot be read, in force from `schema.version` until `until_ts` (0: still)."""

    schema: SchemaVersion
    until_ts: int = 0


class DatabaseOwners:
    """Which account a database belonged to when, by the records that Penstock's catalog keeps beside it."""

    def __init__(self) -> None:
        self._accounts = {SYSTEM_ACCOUNT.id: SYSTEM_ACCOUNT.name}  # an id is never used again
        self._known: dict[int, list[tuple[int, int]]] = {}  # database -> (since, account), by time

    def add(self, commit_ts: int, record: Account | OwnerRecord) -> None:
        """Record an account, or that a database belongs to one, in any order of commits."""
        if isinstance(record, Account):
            self._accounts[record.id] = record.name
        else:
            owner = SYSTEM_ACCOUNT.id if record.account_id is None else record.account_id
            known = self._known.setdefault(record.database_id, [])
            if (commit_ts, owner) not in known:
                insort(known, (commit_ts, owner))

    def at(self, database_id: int, ts: int) -> str:
        """Return the account of a database at `ts`; empty for an account that nobody knows."""
        known = self._known.get(database_id, [])
        place = bisect_right(known, ts, key=lambda entry: entry[0])
        return self._accounts.get(known[place - 1][1] if place else SYSTEM_ACCOUNT.id, "")


class VisibleTables:
    """The versions of every table that has rows, as readers see them, fed in the order of their commits.
    Pure.

    A version of an online change that only writers see is left out.
    """

    def __init__(self) -> None:
        self._seen: dict[int, list[_VisibleVersion]] = {}
        self._newest: dict[int, TableInfo] = {}  # also versions that are the same to readers
        self._logical: dict[int, set[int]] = {}  # physical table -> the tables that it was part of
        self._unread: dict[int, list[_UnreadSpan]] = {}

    def changes(
        self,
        commit_ts: int,
        described: Iterable[TableDescription],
        databases: DatabaseNames,
        owners: DatabaseOwners,
    ) -> Iterator[TableChange]:
        """Yield what a transaction changes for readers; it comes after all that was entered.

        Views and sequences have no rows and do not count. A version that cannot be read does not count
        either: the table stays what it was until it can be read again, or is dropped.
        """
        for database_id, table_id, table in described:
            if table is not None and table.unreadable:
                continue
            seen = self._seen.get(table_id)
            before = seen[-1].schema if seen else None
            after = None
            if table is not None and table.is_base_table:
                database, account = databases.at(database_id, commit_ts), owners.at(database_id, commit_ts)
                after = SchemaVersion(commit_ts, commit_ts, table, database, account)
            same = before is not None and after is not None and same_to_readers(before, after)
            if same and before is not None and after is not None and same_indexes(before, after):
                continue
            if before is not None or after is not None:
                unread = self._last_unread(table_id) if before is None else None
                yield TableChange(before, after, unread.since_ts if unread is not None else 0)

    @property
    def newest(self) -> Mapping[int, TableInfo]:
        """The newest descriptions of tables by id, whatever readers see of them."""
        return self._newest

    def existed(self, table_id: int) -> bool:
        """Return whether the table existed before, as far as versions are kept."""
        return table_id in self._seen

    def note(self, described: Iterable[TableDescription]) -> None:
        """Record the descriptions of a transaction, whatever readers see of them."""
        for _, table_id, table in described:
            if table is None:
                self._newest.pop(table_id, None)
            else:
                self._newest[table_id] = table

    def describe_again(self, commit_ts: int, table_id: int) -> TableChange | None:
        """Return a change to a table's newest description, which is the same to readers; None without one."""
        seen, newest = self._seen.get(table_id), self._newest.get(table_id)
        before = seen[-1].schema if seen else None
        if before is None or newest is None or newest.unreadable:
            return None
        after = replace(before, since_ts=commit_ts, version=commit_ts, table=newest)
        return TableChange(before, after)

    def hand_over(self, database: str, account: str) -> list[TableChange]:
        """Return the changes by which the tables of a database come to belong to another account.

        The versions stay: nothing of the rows is another, so readers of any account go on where they are.
        """
        newest = (seen[-1].schema for _, seen in sorted(self._seen.items()))
        return [
            TableChange(schema, replace(schema, account=account))
            for schema in newest
            if schema is not None and schema.database == database and schema.account != account
        ]

    def enter(self, commit_ts: int, changes: Iterable[TableChange]) -> None:
        """Apply what `changes` returned."""
        for before, after in ((change.before, change.after) for change in changes):
            if before is not None and (after is None or after.table.id != before.table.id):
                self._seen[before.table.id].append(_VisibleVersion(commit_ts, None))
            if after is not None:
                self._seen.setdefault(after.table.id, []).append(_VisibleVersion(commit_ts, after))
                for physical_id in after.table.physical_ids:
                    self._logical.setdefault(physical_id, set()).add(after.table.id)

    def note_unreadable(
        self,
        commit_ts: int,
        described: Iterable[TableDescription],
        databases: DatabaseNames,
        owners: DatabaseOwners,
    ) -> None:
        """Record which tables of a transaction cannot be read any more, or can be read again."""
        for database_id, table_id, table in described:
            known, seen = self._last_unread(table_id), self._seen.get(table_id)
            if known is not None:
                self._unread[table_id][-1] = _UnreadSpan(known, commit_ts)
            if table is not None and table.unreadable and table.is_base_table:
                before = known or (seen[-1].schema if seen else None)
                if not table.name and before is not None:
                    table = carry_names(table, before.table)  # noqa: PLW2901 - it has no names of its own
                since_ts = commit_ts if known is None else known.since_ts
                database, account = databases.at(database_id, commit_ts), owners.at(database_id, commit_ts)
                schema = SchemaVersion(since_ts, commit_ts, table, database, account)
                self._unread.setdefault(table_id, []).append(_UnreadSpan(schema))

    def _last_unread(self, table_id: int) -> SchemaVersion | None:
        """Return the table if its newest description cannot be read; None when it can, or there is none."""
        spans = self._unread.get(table_id)
        return spans[-1].schema if spans and not spans[-1].until_ts else None

    def unreadable_at(self, ts: int) -> dict[int, SchemaVersion]:
        """Return the tables whose descriptions cannot be read at `ts`, by id, each since it is so."""
        return {
            table_id: span.schema
            for table_id, spans in self._unread.items()
            for span in spans
            if span.schema.version <= ts and (not span.until_ts or ts < span.until_ts)
        }

    def __len__(self) -> int:
        """Return how many versions are kept."""
        return sum(map(len, self._seen.values()))

    def forget(self, upto_ts: int) -> None:
        """Drop versions that were replaced before `upto_ts`: no caller asks for them any more."""
        left = {table_id: _from(seen, upto_ts) for table_id, seen in self._seen.items()}
        self._unread = {
            table_id: [span for span in spans if not 0 < span.until_ts <= upto_ts]
            for table_id, spans in self._unread.items()
        }
        gone = {table_id for table_id, seen in left.items() if not seen}
        self._seen = {table_id: seen for table_id, seen in left.items() if seen}
        if gone:
            logical = {physical_id: tables - gone for physical_id, tables in self._logical.items()}
            self._logical = {physical_id: tables for physical_id, tables in logical.items() if tables}

    def at(self, ts: int) -> list[SchemaVersion]:
        """Return the tables that exist at `ts`, by id."""
        versions = (_at(seen, ts) for _, seen in sorted(self._seen.items()))
        return [schema for schema in versions if schema is not None]

    def of_physical(self, physical_id: int, ts: int) -> SchemaVersion | None:
        """Return the table that a physical table belongs to at `ts`, else the first it ever belongs to."""
        known = [self._seen[table_id] for table_id in self._logical.get(physical_id, ())]
        now = [_at(seen, ts) for seen in known]
        ever = sorted((version for seen in known for version in seen), key=lambda version: version.since_ts)
        for schema in (*now, *(version.schema for version in ever)):
            if schema is not None and physical_id in schema.table.physical_ids:
                return schema
        return None


def _at(seen: list[_VisibleVersion], ts: int) -> SchemaVersion | None:
    end = bisect_right(seen, ts, key=lambda version: version.since_ts)
    return seen[end - 1].schema if end else None


def _from(seen: list[_VisibleVersion], ts: int) -> list[_VisibleVersion]:
    """Return the version in force at `ts`, unless the table is dropped then, and those after it."""
    end = bisect_right(seen, ts, key=lambda version: version.since_ts)
    return seen[end if end and seen[end - 1].schema is None else max(end - 1, 0) :]


JOB_WAIT_MS = 60_000
"""How much of the cluster's time passes before the statement of a DDL without a job is derived."""


@dataclass(slots=True)
class _Described:
    """What one transaction wrote: descriptions of tables and databases, owners, and finished jobs."""

    tables: dict[int, TableDescription] = field(default_factory=dict)
    databases: dict[int, DatabaseInfo | None] = field(default_factory=dict)
    owned: set[int] = field(default_factory=set)  # databases whose owner it wrote
    jobs: list[DdlJob] = field(default_factory=list)

    def add(self, described: TableDescription | DatabaseDescription) -> None:
        if isinstance(described, DatabaseDescription):
            self.databases[described.database_id] = described.database
        elif described.table is not None or described.table_id not in self.tables:
            # A move to another database removes the description in one and writes it in the other, in one
            # transaction: the description wins, whichever comes first.
            self.tables[described.table_id] = described


@dataclass(slots=True)
class _EarlyDdl:
    """A DDL that was given out before its job was known: which tables it changed, and when last."""

    ids: set[int]
    commit_ts: int


class DdlHistory:
    """Every DDL, complete up to `resolved_ts`. Thread-safe; implements MetaHistory.

    Feeding it the same change again changes nothing. DDLs that are older than the cluster's own history may
    be missing, or come as the creation of a table that existed before.
    """

    def __init__(self, *, job_wait_ms: int = JOB_WAIT_MS) -> None:
        self._job_wait_ms = job_wait_ms
        self._lock = threading.Lock()
        self._forgotten_ts = 0  # versions that were replaced before it are not known any more
        self._fed_ts = 0  # every change up to it was taken
        self._settled_ts = 0  # every DDL up to it is among the events
        self._unsettled: dict[int, _Described] = {}
        self._jobs = DdlJobs()
        self._tables = VisibleTables()
        self._databases: set[int] = set()
        self._names = DatabaseNames()
        self._owners = DatabaseOwners()
        self._events: list[DdlEvent] = []
        self._returned_early: set[int] = (
            set()
        )  # jobs whose DDLs are among the events before they are recorded
        self._early: dict[int, _EarlyDdl] = {}  # by table, or database; the next job recorded of it made them
        self._waited_ts = 0  # of the DDL that a line in the log says to wait for its job

    def consume_kv_events(self, raw: pa.RecordBatch, finish: Callable[[], None]) -> bool:
        """Take changes of meta keys. Returns False: they are done at once, and a restart reads them again."""
        del finish
        columns = (raw.column(name).to_pylist() for name in ("key", "commit_ts", "value"))
        with self._lock:
            for key, commit_ts, value in zip(*columns, strict=True):
                if commit_ts > self._fed_ts:
                    self._take(key, commit_ts, value)
        return False

    def _take(self, key: bytes, commit_ts: int, value: bytes | None) -> None:
        described = read_description(key, value)
        if described is None:
            job = read_job(key, value)
            if job is not None and job.succeeded:
                self._jobs.add(job, commit_ts)
                recorded = self._unsettled.setdefault(commit_ts, _Described()).jobs
                recorded += [job] if job not in recorded else []
            owned = read_account_record(key, value)
            if owned is not None:
                self._owners.add(commit_ts, owned)
            if isinstance(owned, OwnerRecord):
                self._unsettled.setdefault(commit_ts, _Described()).owned.add(owned.database_id)
            return
        self._unsettled.setdefault(commit_ts, _Described()).add(described)
        if isinstance(described, DatabaseDescription):
            self._names.add(commit_ts, described)

    def advance_resolved_ts(self, ts: int) -> None:
        """Note that every change up to `ts` has been taken."""
        with self._lock:
            if ts > self._fed_ts:
                self._fed_ts = ts
                self._settle()

    def resolved_ts(self) -> int:
        """Return the timestamp up to which DDLs are known, with their statements."""
        return self._settled_ts

    def ddls(self, from_ts: int, to_ts: int) -> list[DdlEvent]:
        """Return the DDLs in (from_ts, to_ts], in order; raise Unavailable when some are not known yet."""
        with self._lock:
            self._check_kept(from_ts)
            self._check(to_ts)
            first, end = (bisect_right(self._events, ts, key=_commit_ts) for ts in (from_ts, to_ts))
            return self._events[first:end]

    def tables(self, at_ts: int) -> list[SchemaVersion]:
        """Return the tables that exist at `at_ts`, by id; neither views nor sequences.

        Raises Unavailable when that is not known yet.
        """
        with self._lock:
            self._check_kept(at_ts)
            self._check(at_ts)
            return self._tables.at(at_ts)

    def unreadable(self, at_ts: int | None = None) -> dict[int, SchemaVersion]:
        """Return the tables whose descriptions cannot be read, by id, each since it is so.

        `at_ts` is a timestamp up to which DDLs are known, by default the last one.
        """
        with self._lock:
            return self._tables.unreadable_at(self._settled_ts if at_ts is None else at_ts)

    def schema_of(self, physical_id: int, ts: int) -> SchemaVersion:
        """Return the table that a physical table is part of at `ts`; else the first that it is ever part of.

        Raises Unavailable when that is not known yet, or there is none.
        """
        with self._lock:
            self._check(ts)
            found = self._tables.of_physical(physical_id, ts)
        if found is None:
            raise Unavailable(f"table {physical_id} has no schema up to {ts}; wait for it")
        return found

    def forget(self, upto_ts: int) -> None:
        """Drop DDLs up to `upto_ts`, and versions of tables that were replaced before it."""
        with self._lock:
            upto_ts = min(upto_ts, self._settled_ts)
            if upto_ts > self._forgotten_ts:
                self._forgotten_ts = upto_ts
                del self._events[: bisect_right(self._events, upto_ts, key=_commit_ts)]
                self._tables.forget(upto_ts)

    @property
    def kept_count(self) -> int:
        """How many DDLs and versions of tables are kept. For tests: it shows that the history is bounded."""
        return len(self._events) + len(self._tables)

    def _check_kept(self, ts: int) -> None:
        if ts < self._forgotten_ts:
            raise StaleRead("schemas", ts, oldest_ts=self._forgotten_ts)

    def gone_ts(self, physical_id: int) -> int | None:
        """Return a timestamp at which a dropped physical table is gone; None if it exists or never did."""
        with self._lock:
            known = self._tables.of_physical(physical_id, self._settled_ts)
            schemas = self._tables.at(self._settled_ts)
            exists = any(physical_id in schema.table.physical_ids for schema in schemas)
            return None if known is None or exists else self._settled_ts

    def _check(self, ts: int) -> None:
        if ts > self._settled_ts:
            raise Unavailable(f"DDLs are known up to {self._settled_ts}, not {ts}; wait")

    def _settle(self) -> None:
        """Enter changes in order, up to the first whose job is not recorded yet."""
        for commit_ts in sorted(ts for ts in self._unsettled if ts <= self._fed_ts):
            described = self._unsettled[commit_ts]
            changes = list(self._changes(commit_ts, described))
            jobs = [self._find_job(commit_ts, change) for change in changes]
            pairs = list(zip(changes, jobs, strict=True))
            if any(job is None and self._waits(commit_ts, change) for change, job in pairs):
                self._settled_ts = max(self._settled_ts, commit_ts - 1)
                return
            self._enter(commit_ts, changes)
            events: list[DdlEvent | None] = [self._event(commit_ts, *pair) for pair in pairs]
            self._tables.note(described.tables.values())
            self._tables.note_unreadable(commit_ts, described.tables.values(), self._names, self._owners)
            del self._unsettled[commit_ts]
            events += [self._hand_over(commit_ts, database_id) for database_id in sorted(described.owned)]
            events += [self._event_of_record(commit_ts, job) for job in described.jobs]
            self._events += [event for event in events if event is not None]
        self._settled_ts = self._fed_ts
        self._jobs.forget(self._settled_ts)

    def _find_job(self, commit_ts: int, change: DescribedDdl) -> RecordedDdl | None:
        """Return the job of a change. A table that could not be read before is new, whatever its job says."""
        return None if change.unread else self._jobs.find(change.ids, commit_ts, self._fed_ts)

    def _waits(self, commit_ts: int, change: DescribedDdl) -> bool:
        """Return whether a change waits for its job. TiDB makes its own tables without jobs at first."""
        if change.unread or _is_of_tidb(change):
            return False
        if not self._is_overdue(commit_ts):
            return True
        if not _is_ddl_of_its_own(change) or derive_statement(change, self._tables.newest):
            return False
        newest_ts, running = self._newest_state(commit_ts, change)
        waits = running or not self._is_overdue(newest_ts)
        if waits and self._waited_ts < commit_ts:
            self._waited_ts = commit_ts
            facts = {"table": _subject(change), "commit_ts": commit_ts}
            _log.warning(
                "DDLs of all tables wait for a job that has changed a table and still runs", extra=facts
            )
        return waits

    def _is_overdue(self, commit_ts: int) -> bool:
        return physical_ms(self._fed_ts) - physical_ms(commit_ts) >= self._job_wait_ms

    def _newest_state(self, commit_ts: int, change: DescribedDdl) -> tuple[int, bool]:
        """Return when the newest description of the tables of a change was written, and whether it shows that
        a job still runs.
        """
        later = [
            (ts, table_id, table.table)
            for ts, described in sorted(self._unsettled.items())
            for table_id, table in described.tables.items()
            if commit_ts <= ts <= self._fed_ts and table_id in change.ids
        ]
        newest = {table_id: table for _, table_id, table in later}
        running = any(table is not None and table.is_changing for table in newest.values())
        return max((ts for ts, _, _ in later), default=commit_ts), running

    def _enter(self, commit_ts: int, changes: list[DescribedDdl]) -> None:
        for change in changes:
            self._tables.enter(commit_ts, change.tables)
            if change.scope is DdlScope.DATABASE:
                self._databases ^= change.ids

    def _changes(self, commit_ts: int, described: _Described) -> Iterator[DescribedDdl]:
        tables = described.tables.values()
        left = pair_changes(self._tables.changes(commit_ts, tables, self._names, self._owners))
        for database_id, info in sorted(described.databases.items()):
            if (info is not None) == (database_id in self._databases):
                continue  # only its charset changed, or it is half dropped: nothing that a reader sees
            name = self._names.at(database_id, commit_ts)
            if not name:
                continue  # its description is damaged; it is created once it can be read
            side = "before" if info is None else "after"  # what goes with the database, or comes back with it
            inside = tuple(change for change in left if _has_only(change, side) and _database(change) == name)
            left = tuple(change for change in left if change not in inside)
            created = OtherAction.RECOVER_SCHEMA if inside else DdlAction.CREATE_SCHEMA
            action = int(DdlAction.DROP_SCHEMA if info is None else created)
            # The transaction that drops a database removes its owner too, so the owner just before it counts.
            account = self._owners.at(database_id, commit_ts - (info is None))
            yield DescribedDdl(
                frozenset({database_id}), action, name, inside, DdlScope.DATABASE, account, info
            )
        if left:
            ids, action = frozenset(ids_in_changes(left)), action_of(left)
            if action == DdlAction.CREATE_TABLE and any(map(self._tables.existed, ids)):
                action = OtherAction.RECOVER_TABLE
            yield DescribedDdl(ids, action, _database(left[0]), left)

    def _hand_over(self, commit_ts: int, database_id: int) -> DdlEvent | None:
        """Record the new account of a database; return a DDL of its tables, or None if it has none.

        Changefeeds of the old account lose the tables and those of the new one get them, as by a rename.
        """
        name, account = self._names.at(database_id, commit_ts), self._owners.at(database_id, commit_ts)
        changes = tuple(self._tables.hand_over(name, account)) if database_id in self._databases else ()
        if not changes:
            return None
        self._tables.enter(commit_ts, changes)
        change = DescribedDdl(frozenset(), DdlAction.RENAME_TABLE, name, changes)
        return _as_event(commit_ts, change, DdlAction.RENAME_TABLE, "")

    def _event(self, commit_ts: int, change: DescribedDdl, recorded: RecordedDdl | None) -> DdlEvent:
        """Return the DDL of a change, with the statement of its job where that is known."""
        if recorded is None or self._is_early(recorded.job, change.ids):
            return self._early_event(commit_ts, change)
        job = recorded.job
        if recorded.id in self._returned_early:
            further = not change.seen_by_readers
            return _as_event(commit_ts, change, job.type, "", further=further)
        self._returned_early.add(recorded.id)
        return _as_event(commit_ts, change, job.type, ddl_statement(job, change.tables))

    def _early_event(self, commit_ts: int, change: DescribedDdl) -> DdlEvent:
        """Return a DDL whose job came too late, or of which only a part was given out without it."""
        group = _EarlyDdl(set(change.ids), commit_ts)
        for changed_id in change.ids:
            group.ids |= self._early[changed_id].ids if changed_id in self._early else set()
        self._early.update(dict.fromkeys(group.ids, group))
        if not _is_ddl_of_its_own(change):
            return _as_event(commit_ts, change, int(change.action), "", further=True)
        if change.unread or _is_of_tidb(change):
            return _as_event(commit_ts, change, int(change.action), "")
        query = derive_statement(change, self._tables.newest)
        event = _as_event(commit_ts, change, int(change.action), query)
        if query:
            return event
        facts = {"table": _subject(change), "commit_ts": commit_ts}
        _log.error("a DDL has no statement: its job was not recorded in time", extra=facts)
        return replace(event, unknown=True)

    def _is_early(self, job: DdlJob, ids: Iterable[int]) -> bool:
        """Return whether a part of what a job did was given out before the job was known.

        Jobs of one table run one after the other, so it is the first of them that is recorded since.
        """
        return any(
            changed_id in self._early and self._early[changed_id].commit_ts > job.start_ts
            for changed_id in ids
        )

    def _event_of_record(self, commit_ts: int, job: DdlJob) -> DdlEvent | None:
        """Return the DDL of a job that changed no rows and indexes; None when it was returned before."""
        if job.id in self._returned_early:
            self._returned_early.discard(job.id)
            return None
        ids = ids_in_job(job)
        early = self._is_early(job, ids)
        groups = [self._early[changed_id].ids for changed_id in ids if changed_id in self._early]
        for changed_id in set().union(*groups):
            self._early.pop(changed_id, None)
        if early or not is_sent(job.type) or job.type in _ALWAYS_SEEN or not job.schema_version:
            return None  # without a version of the schema TiDB had nothing to do
        if job.type == OtherAction.MODIFY_SCHEMA_CHARSET:
            name = self._names.at(job.database_id, commit_ts, job.database_name)
            account = self._owners.at(job.database_id, commit_ts)
            change = DescribedDdl(frozenset(), job.type, name, (), DdlScope.DATABASE, account)
            return _as_event(commit_ts, change, job.type, ddl_statement(job, ()))
        changed = self._view_change(commit_ts, job) if job.type in _VIEWS else None
        if job.type not in _VIEWS:
            changed = self._tables.describe_again(commit_ts, job.table_id)
            if changed is not None:
                self._tables.enter(commit_ts, (changed,))
        if changed is None:
            return None
        change = DescribedDdl(frozenset(), job.type, _database(changed), (changed,))
        return _as_event(commit_ts, change, job.type, ddl_statement(job, change.tables))

    def _view_change(self, commit_ts: int, job: DdlJob) -> TableChange | None:
        database = self._names.at(job.database_id, commit_ts, job.database_name)
        if job.table is None or job.table.unreadable:
            return None
        account = self._owners.at(job.database_id, commit_ts)
        view = SchemaVersion(commit_ts, commit_ts, job.table, database, account)
        return TableChange(view, None) if job.type == OtherAction.DROP_VIEW else TableChange(None, view)


_VIEWS = frozenset({int(OtherAction.CREATE_VIEW), int(OtherAction.DROP_VIEW)})
_ALWAYS_SEEN = frozenset(
    {int(action) for action in (DdlAction.CREATE_SCHEMA, DdlAction.DROP_SCHEMA, DdlAction.CREATE_TABLE)}
    | {int(action) for action in (DdlAction.DROP_TABLE, DdlAction.TRUNCATE_TABLE, DdlAction.RENAME_TABLE)}
    | {int(OtherAction.RECOVER_TABLE), int(OtherAction.EXCHANGE_PARTITION), int(OtherAction.RENAME_TABLES)}
    | {int(OtherAction.CREATE_TABLES)}
)
"""Actions that readers see in descriptions. A job of which they saw nothing is of a sequence, or of a table
that cannot be read."""


def _is_of_tidb(change: DescribedDdl) -> bool:
    return change.database.lower() in TIDB_DATABASES


def _is_ddl_of_its_own(change: DescribedDdl) -> bool:
    """Return whether readers or queries see more than another id of a table."""
    return change.seen_by_readers or not change.gives_other_ids


def _subject(change: DescribedDdl) -> str:
    """Return what a DDL changes, for people."""
    known = change.tables[0].after or change.tables[0].before if change.tables else None
    return change.database if known is None else known.name


def _as_event(
    commit_ts: int, change: DescribedDdl, action: int, query: str, *, further: bool = False
) -> DdlEvent:
    return DdlEvent(
        commit_ts=commit_ts,
        type=int(action),
        query=query,
        database=change.database,
        tables=change.tables,
        scope=change.scope,
        further=further,
        account=change.account,
    )


def _has_only(change: TableChange, side: str) -> bool:
    """Return whether a table exists only before a change, or only after it."""
    return (change.after is None) if side == "before" else (change.before is None)


def _database(change: TableChange) -> str:
    known = change.after or change.before
    assert known is not None, "a change has a table before or after it"
    return known.database


def _commit_ts(event: DdlEvent) -> int:
    return event.commit_ts
