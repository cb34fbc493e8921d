"""A DDL as a value: what it changed, when, and which dispatchers it blocks. Pure.

A DDL is read from two places. The descriptions of tables before and after a transaction say what changed;
`DdlJobs` finds the job of the cluster that made the change, which has the statement.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Any

from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.columns import ColumnFlag, ColumnInfo, SchemaState
from penstock.tables.ddl_jobs import DdlAction, DdlJob
from penstock.tables.schema import DatabaseInfo, TableInfo


class DdlScope(Enum):
    """Which dispatchers a DDL blocks: those of its own tables, or of every table of the database."""

    TABLES = "tables"
    DATABASE = "database"


@dataclass(frozen=True, slots=True)
class TableChange:
    """One table before and after a DDL; None where it does not exist. The DDL commits at `after.since_ts`.

    A table whose description could not be read before counts as one that did not exist. It may have rows
    since `unread_ts` then.
    """

    before: SchemaVersion | None
    after: SchemaVersion | None
    unread_ts: int = 0

    @property
    def ended_ids(self) -> frozenset[int]:
        """Physical tables that have no changes after the DDL."""
        return _physical_ids(self.before) - _physical_ids(self.after)

    @property
    def begun_ids(self) -> frozenset[int]:
        """Physical tables that have no changes before the DDL."""
        return _physical_ids(self.after) - _physical_ids(self.before)

    @property
    def only_owner(self) -> bool:
        """Whether nothing but the account of the table's database is another one."""
        before, after = self.before, self.after
        return before is not None and after is not None and replace(before, account=after.account) == after


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlEvent:
    """A DDL at `commit_ts`. `type` is TiDB's number of its action.

    `tables` is empty for a new database; for a dropped one it has the tables that were in it, and for one
    that was recovered those that came back. A view is among them without rows. Rows committed at `commit_ts`
    or later have the schema after it.

    `further`: a DDL that had its event before goes on. Only the logical id of a table changes, so that
    readers of physical tables have nothing to do.

    `unknown`: the cluster did not record the statement in time, and the descriptions do not say which it was.
    `query` is empty then.
    """

    commit_ts: int
    type: int
    query: str = field(repr=False)
    database: str
    tables: tuple[TableChange, ...] = ()
    scope: DdlScope = DdlScope.TABLES
    further: bool = False
    unknown: bool = False
    account: str = ""
    """Whose database it is that is created, changed or dropped; empty where that is not followed."""

    @property
    def recovers(self) -> bool:
        """Whether dropped tables come back with their rows, which readers have removed."""
        return self.type in {OtherAction.RECOVER_TABLE, OtherAction.RECOVER_SCHEMA}


def _physical_ids(schema: SchemaVersion | None) -> frozenset[int]:
    """Return the ids that have rows: none for a view."""
    has_rows = schema is not None and schema.table.is_base_table
    return frozenset(schema.table.physical_ids) if has_rows and schema is not None else frozenset()


_PREVENT_NULL_INSERT = 1 << 20  # writers refuse NULL before a column is NOT NULL
_INDEXED = ColumnFlag.PRI_KEY | ColumnFlag.UNIQUE_KEY | ColumnFlag.MULTIPLE_KEY | _PREVENT_NULL_INSERT


class OtherAction(IntEnum):
    """Actions of TiDB that Penstock's own catalog does not have, by TiDB's numbers."""

    ADD_PARTITION = 19
    DROP_PARTITION = 20
    CREATE_VIEW = 21
    TRUNCATE_PARTITION = 23
    DROP_VIEW = 24
    RECOVER_TABLE = 25
    MODIFY_SCHEMA_CHARSET = 26
    ADD_PRIMARY_KEY = 32
    DROP_PRIMARY_KEY = 33
    EXCHANGE_PARTITION = 42
    RENAME_TABLES = 47
    CREATE_TABLES = 60
    RECOVER_SCHEMA = 63
    REORGANIZE_PARTITION = 64
    PARTITION_BY = 71
    REMOVE_PARTITIONING = 72


_TICDC_ACTIONS = frozenset(
    {
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        11,
        12,
        13,
        14,
        15,
        17,
        18,
        19,
        20,
        21,
        22,
        23,
        24,
        25,
        26,
        32,
        33,
        37,
        38,
        41,
        42,
    }
    | {47, 60, 61, 64, 65, 67, 71, 72}
)
"""What TiCDC sends. The others concern TiDB alone (placement, TiFlash, caches, attributes), or things that
TiCDC does not copy either: sequences, and foreign keys and checks that are added later."""


def is_sent(action: int) -> bool:
    """Return whether consumers get to know of an action that changes nothing of rows, as with TiCDC."""
    return action in _TICDC_ACTIONS


def same_to_readers(one: SchemaVersion, other: SchemaVersion) -> bool:
    """Return whether two versions are the same for a reader of rows.

    An online change goes through versions in which only writers see a new column or index.
    """
    return one.database == other.database and _visible_parts(one.table) == _visible_parts(other.table)


def same_indexes(one: SchemaVersion, other: SchemaVersion) -> bool:
    """Return whether two versions have the same indexes for queries."""
    return _public_indexes(one.table) == _public_indexes(other.table)


def same_rows(change: TableChange) -> bool:
    """Return whether a table has the same name, columns and physical tables before and after a change."""
    before, after = change.before, change.after
    if before is None or after is None or before.name != after.name:
        return False
    return _visible_parts(before.table)[1:] == _visible_parts(after.table)[1:]


def _public_indexes(table: TableInfo) -> set[int]:
    return {index.id for index in table.indexes if index.state is SchemaState.PUBLIC}


def _visible_parts(table: TableInfo) -> tuple[Any, ...]:
    key = tuple(column.id for column in table.primary_key)
    columns = [_visible_column(column) for column in table.stored_columns]
    return table.id, table.name, table.physical_ids, table.handle_kind, key, columns


def _visible_column(column: ColumnInfo) -> tuple[Any, ...]:
    kind = replace(column.type, flag=column.type.flag & ~_INDEXED)
    return column.id, column.name, kind, column.default, column.default_is_expr


@dataclass(frozen=True, slots=True)
class DescribedDdl:
    """One DDL as descriptions show it, whose job is not known yet; the job is found by `ids`.

    `info` is the database that it creates.
    """

    ids: frozenset[int]
    action: int
    database: str
    tables: tuple[TableChange, ...]
    scope: DdlScope = DdlScope.TABLES
    account: str = ""
    info: DatabaseInfo | None = None

    @property
    def seen_by_readers(self) -> bool:
        """Whether rows change, and not indexes alone."""
        return self.scope is DdlScope.DATABASE or not all(map(same_rows, self.tables))

    @property
    def gives_other_ids(self) -> bool:
        """Whether a table gets another id, as in the last step of REMOVE PARTITIONING."""
        return any(
            table.before is not None
            and table.after is not None
            and table.before.table.id != table.after.table.id
            for table in self.tables
        )

    @property
    def unread(self) -> bool:
        """Whether a table could not be read before."""
        return any(table.unread_ts for table in self.tables)


def pair_changes(changes: Iterable[TableChange]) -> tuple[TableChange, ...]:
    """Return the changes of one transaction by table id, with a drop and a create of the same name as one
    change.

    Truncating a table, for example, drops one table id and gives its name to another.
    """
    ordered = sorted(changes, key=_order)
    begun = {
        change.after.name.lower(): change for change in ordered if change.before is None and change.after
    }
    found = []
    for change in ordered:
        heir = begun.pop(change.before.name.lower(), None) if change.before and not change.after else None
        if change.before is not None:
            found.append(change if heir is None else TableChange(change.before, heir.after))
    found += begun.values()
    return tuple(sorted(found, key=_order))


def _order(change: TableChange) -> int:
    known = change.before or change.after
    assert known is not None, "a change has a table before or after it"
    return known.table.id


def ids_in_changes(changes: Iterable[TableChange]) -> set[int]:
    """Return the logical tables that the changes name."""
    return {
        schema.table.id
        for change in changes
        for schema in (change.before, change.after)
        if schema is not None
    }


def action_of(changes: Sequence[TableChange]) -> int:
    """Return TiDB's number of an action that makes these changes, for changes without a known job."""
    ended = frozenset().union(*(change.ended_ids for change in changes))
    begun = frozenset().union(*(change.begun_ids for change in changes))
    if len(changes) > 1 and ended and ended == begun:
        return OtherAction.EXCHANGE_PARTITION
    if len(changes) > 1 and all(change.before is None for change in changes):
        return OtherAction.CREATE_TABLES
    return _table_action(changes[0])


def _table_action(change: TableChange) -> int:
    if change.before is None:
        return DdlAction.CREATE_TABLE
    if change.after is None:
        return DdlAction.DROP_TABLE
    old, new = change.before.table, change.after.table
    if old.id != new.id:
        continues = old.physical_ids == new.physical_ids
        return OtherAction.PARTITION_BY if continues else DdlAction.TRUNCATE_TABLE
    if change.before.name != change.after.name:
        return DdlAction.RENAME_TABLE
    if change.ended_ids or change.begun_ids:
        return _partition_action(change)
    return _column_action(old, new)


def _partition_action(change: TableChange) -> int:
    tree = change.after.table.extra.get("partition") if change.after is not None else None
    if tree and tree.get("ddl_action"):
        return int(tree["ddl_action"])
    if change.ended_ids and change.begun_ids:
        return OtherAction.TRUNCATE_PARTITION
    return OtherAction.ADD_PARTITION if change.begun_ids else OtherAction.DROP_PARTITION


def _column_action(old: TableInfo, new: TableInfo) -> int:
    before = {column.id for column in old.stored_columns}
    after = {column.id for column in new.stored_columns}
    if after - before and before - after:
        return DdlAction.MODIFY_COLUMN  # another type: the cells are under a new column id
    if after != before:
        return DdlAction.ADD_COLUMN if after - before else DdlAction.DROP_COLUMN
    if bool(old.primary_key) != bool(new.primary_key):
        return OtherAction.ADD_PRIMARY_KEY if new.primary_key else OtherAction.DROP_PRIMARY_KEY
    indexes = _public_indexes(old), _public_indexes(new)
    if indexes[0] != indexes[1] and _visible_parts(old) == _visible_parts(new):
        return DdlAction.ADD_INDEX if indexes[1] - indexes[0] else DdlAction.DROP_INDEX
    return DdlAction.MODIFY_COLUMN


@dataclass(order=True, frozen=True, slots=True)
class RecordedDdl:
    """A finished job, and the commit-ts of its record."""

    recorded_ts: int
    start_ts: int
    id: int
    job: DdlJob = field(repr=False, compare=False)


class DdlJobs:
    """Finished jobs by the tables that they changed; by the database, where they changed none.

    A job is recorded when it is finished: with the last of its changes, or in a later transaction. Jobs of
    one table run one after the other, so the first that is recorded with a change or after it has made the
    change.
    """

    def __init__(self) -> None:
        self._by_id: dict[int, list[RecordedDdl]] = {}

    def add(self, job: DdlJob, recorded_ts: int) -> None:
        """Add a job that has changed something. Adding it again changes nothing."""
        recorded = RecordedDdl(recorded_ts, job.start_ts, job.id, job)
        for changed_id in ids_in_job(job):
            known = self._by_id.setdefault(changed_id, [])
            if recorded not in known:
                insort(known, recorded)

    def find(self, ids: Iterable[int], commit_ts: int, upto_ts: int) -> RecordedDdl | None:
        """Return the job that changed some tables at `commit_ts`; None when none is recorded up to `upto_ts`.

        Every job that was recorded up to `upto_ts` must have been added.
        """
        found = [
            job
            for changed_id in ids
            for job in self._recorded_from(changed_id, commit_ts)
            if job.start_ts < commit_ts and job.recorded_ts <= upto_ts
        ]
        return min(found, default=None)

    def _recorded_from(self, changed_id: int, ts: int) -> list[RecordedDdl]:
        known = self._by_id.get(changed_id, [])
        return known[bisect_left(known, ts, key=lambda job: job.recorded_ts) :]

    def forget(self, upto_ts: int) -> None:
        """Drop the jobs recorded up to `upto_ts`: no caller asks for such a change any more."""
        left = {changed_id: self._recorded_from(changed_id, upto_ts + 1) for changed_id in self._by_id}
        self._by_id = {changed_id: jobs for changed_id, jobs in left.items() if jobs}


def ids_in_job(job: DdlJob) -> set[int]:
    """Return the logical tables that a job names; its database where it names none."""
    tables = {job.table_id, *(table.id for table in (job.table, *job.tables) if table is not None)}
    return (tables - {0}) or {job.database_id}
