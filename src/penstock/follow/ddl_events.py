"""DDLs as dispatchers see them: what changed, when, and whom it blocks. Pure.

What a transaction of DDL changed, from the descriptions of tables before and after it. Pure.

Which finished job made a change of a schema. Pure.

A job is recorded when it is finished: with the last of its changes, or in a transaction after it. Jobs of one
table run one after the other, so a change is made by the first of them that is recorded with or after it.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Any

from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.columns import ColumnFlag, ColumnInfo
from penstock.tables.ddl_jobs import DdlAction, DdlJob
from penstock.tables.schema import TableInfo


class DdlScope(Enum):
    """Whose dispatchers a DDL blocks: its own tables', or every one of the database."""

    TABLES = "tables"
    DATABASE = "database"


@dataclass(frozen=True, slots=True)
class TableChange:
    """One table before and after a DDL; None: it is not there. `after.since_ts` is the DDL's commit_ts."""

    before: SchemaVersion | None
    after: SchemaVersion | None

    @property
    def ended_ids(self) -> frozenset[int]:
        """Physical tables that have no changes after the DDL."""
        return _ids(self.before) - _ids(self.after)

    @property
    def begun_ids(self) -> frozenset[int]:
        """Physical tables that have no changes before it."""
        return _ids(self.after) - _ids(self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlEvent:
    """A DDL at `commit_ts`. `type` is TiDB's number of its action.

    `tables` is empty for a new database, and for one that was dropped it has the tables that were in it. Rows
    that were committed at `commit_ts` or after have the schema after it.
    """

    commit_ts: int
    type: int
    query: str = field(repr=False)
    database: str
    tables: tuple[TableChange, ...] = ()
    scope: DdlScope = DdlScope.TABLES


def _ids(schema: SchemaVersion | None) -> frozenset[int]:
    return frozenset(schema.table.physical_ids) if schema is not None else frozenset()


_INDEXED = ColumnFlag.UNIQUE_KEY | ColumnFlag.MULTIPLE_KEY


class OtherAction(IntEnum):
    """Actions that only TiDB does, by its numbers."""

    ADD_PARTITION = 19
    DROP_PARTITION = 20
    TRUNCATE_PARTITION = 23
    ADD_PRIMARY_KEY = 32
    DROP_PRIMARY_KEY = 33
    EXCHANGE_PARTITION = 42


def same_to_readers(one: SchemaVersion, other: SchemaVersion) -> bool:
    """Whether two versions differ in nothing that a reader of rows sees.

    An online change goes through versions in which a column or an index is there for writers alone.
    """
    return one.database == other.database and _seen(one.table) == _seen(other.table)


def _seen(table: TableInfo) -> tuple[Any, ...]:
    key = tuple(column.id for column in table.primary_key)
    columns = [_seen_column(column) for column in table.stored_columns]
    return table.id, table.name, table.physical_ids, table.handle_kind, key, columns


def _seen_column(column: ColumnInfo) -> tuple[Any, ...]:
    kind = replace(column.type, flag=column.type.flag & ~_INDEXED)
    return column.id, column.name, kind, column.default, column.default_is_expr


def paired(changes: Iterable[TableChange]) -> tuple[TableChange, ...]:
    """Changes of one transaction, by table id, with those together that give a name to another table id."""
    ordered = sorted(changes, key=_order)
    begun = {each.after.name.lower(): each for each in ordered if each.before is None and each.after}
    found = []
    for each in ordered:
        heir = begun.pop(each.before.name.lower(), None) if each.before and not each.after else None
        if each.before is not None:
            found.append(each if heir is None else TableChange(each.before, heir.after))
    found += begun.values()
    return tuple(sorted(found, key=_order))


def _order(change: TableChange) -> int:
    known = change.before or change.after
    assert known is not None, "a change is of something"
    return known.table.id


def changed_ids(changes: Iterable[TableChange]) -> set[int]:
    """The logical tables that are concerned."""
    return {each.table.id for change in changes for each in (change.before, change.after) if each is not None}


def kind_of(changes: Sequence[TableChange]) -> int:
    """TiDB's number of the action that would make these changes; for those of which no job is known."""
    ended = frozenset().union(*(each.ended_ids for each in changes))
    begun = frozenset().union(*(each.begun_ids for each in changes))
    if len(changes) > 1 and ended and ended == begun:
        return OtherAction.EXCHANGE_PARTITION
    return _kind(changes[0])


def _kind(change: TableChange) -> int:
    if change.before is None:
        return DdlAction.CREATE_TABLE
    if change.after is None:
        return DdlAction.DROP_TABLE
    old, new = change.before.table, change.after.table
    if old.id != new.id:
        return DdlAction.TRUNCATE_TABLE
    if change.before.name != change.after.name:
        return DdlAction.RENAME_TABLE
    if change.ended_ids or change.begun_ids:
        return _partition_kind(change)
    return _column_kind(old, new)


def _partition_kind(change: TableChange) -> int:
    if change.ended_ids and change.begun_ids:
        return OtherAction.TRUNCATE_PARTITION
    return OtherAction.ADD_PARTITION if change.begun_ids else OtherAction.DROP_PARTITION


def _column_kind(old: TableInfo, new: TableInfo) -> int:
    before = {column.id for column in old.stored_columns}
    after = {column.id for column in new.stored_columns}
    if after - before and before - after:
        return DdlAction.MODIFY_COLUMN  # its rows were rewritten under another id
    if after != before:
        return DdlAction.ADD_COLUMN if after - before else DdlAction.DROP_COLUMN
    if bool(old.primary_key) != bool(new.primary_key):
        return OtherAction.ADD_PRIMARY_KEY if new.primary_key else OtherAction.DROP_PRIMARY_KEY
    return DdlAction.MODIFY_COLUMN


@dataclass(order=True, frozen=True, slots=True)
class RecordedDdl:
    """What is needed of a job, and the commit-ts of its record."""

    recorded_ts: int
    start_ts: int
    type: int
    query: str = field(repr=False)


class DdlJobs:
    """Jobs by the tables that they change; by the database, where they change none."""

    def __init__(self) -> None:
        self._by_id: dict[int, list[RecordedDdl]] = {}

    def add(self, job: DdlJob, recorded_ts: int) -> None:
        """Take a job; one that was cancelled made no change. Taking it again changes nothing."""
        if not job.succeeded:
            return
        made = RecordedDdl(recorded_ts, job.start_ts, int(job.type), job.query)
        for each in _changed_ids(job):
            known = self._by_id.setdefault(each, [])
            if made not in known:
                insort(known, made)

    def find(self, ids: Iterable[int], commit_ts: int, upto_ts: int) -> RecordedDdl | None:
        """The job of a change of some tables; None when it was not recorded by `upto_ts`.

        Every job that was recorded up to `upto_ts` must have been taken.
        """
        found = [
            job
            for each in ids
            for job in self._from(each, commit_ts)
            if job.start_ts < commit_ts and job.recorded_ts <= upto_ts
        ]
        return min(found, default=None)

    def _from(self, changed_id: int, ts: int) -> list[RecordedDdl]:
        known = self._by_id.get(changed_id, [])
        return known[bisect_left(known, ts, key=lambda job: job.recorded_ts) :]

    def forget(self, upto_ts: int) -> None:
        """No change up to `upto_ts` will be asked for."""
        left = {each: self._from(each, upto_ts + 1) for each in self._by_id}
        self._by_id = {each: jobs for each, jobs in left.items() if jobs}


def _changed_ids(job: DdlJob) -> set[int]:
    tables = {job.table_id, *(each.id for each in (job.table, *job.tables) if each is not None)}
    return (tables - {0}) or {job.database_id}
