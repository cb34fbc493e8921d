"""The target of consumer `kv`: its columns, its mark, and its table, which is changed only with its mark.

The columns are those of the source; all but the key's may be NULL. The mark says which job owns a target and
how far it is: one key for each target, written together with the target's rows.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Protocol

import pyarrow as pa

from penstock.consumers.schema_evolution import (
    HANDLE_ID,
    REBUILD,
    ColumnChange,
    SchemaEvolution,
    TargetColumn,
    from_json,
    plan_evolution,
    to_json,
)
from penstock.errors import Conflict, Corrupt, Fenced, Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import HANDLE
from penstock.jobs.consumer import JobContext
from penstock.kv import Client, Transaction
from penstock.kv.transact import transact
from penstock.tables import Catalog, alter, statements
from penstock.tables.columns import ColumnFlag, ColumnInfo
from penstock.tables.ddl import SchemaChange
from penstock.tables.ddl_jobs import DdlAction
from penstock.tables.define import define_table, with_origin_default
from penstock.tables.schema import TableInfo
from penstock.tables.schema_snapshot import SchemaSnapshot, TablePlace, split_name
from penstock.tables.statements import column_text, quote

TARGET_HANDLE = "source_handle"
"""The name of `_handle` in a target: TiDB takes `_handle` for a name like any other."""

_EXACT = "utf8mb4_0900_bin"  # compares bytes
_HANDLE_TYPE = "varbinary(3072)"
_DROPPED = ColumnFlag.NOT_NULL | ColumnFlag.AUTO_INCREMENT | ColumnFlag.ON_UPDATE_NOW


def target_columns(schema: SchemaVersion, columns: pa.Schema, keys: Sequence[str]) -> list[TargetColumn]:
    """Return the columns of a target for a table; raise Invalid when they cannot be."""
    taken = TARGET_HANDLE in {column.name.lower() for column in schema.table.columns}
    if taken and HANDLE in keys and not schema.table.primary_key:
        raise Invalid(
            f"{schema.name} has no primary key and a column {TARGET_HANDLE}; do not select that column"
        )
    return [
        TargetColumn(HANDLE_ID, TARGET_HANDLE, _HANDLE_TYPE, key=True)
        if name == HANDLE and not schema.table.primary_key
        else _target_column(schema.table.column(name), key=name in keys)
        for name in columns.names
    ]


def _target_column(column: ColumnInfo, *, key: bool) -> TargetColumn:
    """Return a column of a target. A key compares bytes, so that all keys of the source stay different."""
    plain = _plain(column)
    if key and plain.type.is_string and not plain.type.is_binary:
        plain = replace(plain, type=replace(plain.type, charset="utf8mb4", collate=_EXACT))
    return TargetColumn(column.id, column.name, column_text(plain), key=key)


def _plain(column: ColumnInfo) -> ColumnInfo:
    kind = replace(column.type, flag=column.type.flag & ~_DROPPED)
    return replace(column, type=kind, default=None, comment="")


def addition_text(column: ColumnInfo) -> str:
    """Return the definition of a column that is added: older rows read as those of the source do."""
    origin = column.origin_default
    if origin is None and column.type.not_null:
        origin = with_origin_default(replace(column, default=None)).origin_default
    return column_text(replace(_plain(column), default=origin))


def definition(name: str, columns: Sequence[TargetColumn]) -> TableInfo:
    """Return a target that does not exist yet; raise Invalid for what cannot be written."""
    keys = [column.name for column in columns if column.key]
    return define_table(name, [(column.name, column.type) for column in columns], primary_key=keys)


def is_wider(old: str, new: str) -> bool:
    """Return whether every value of one type is an equal value of the other."""
    table = define_table("probe", [("id", "bigint primary key"), ("value", old)])
    try:
        alter.modify_column(table, "value", new)
    except Invalid:
        return False
    return True


def to_target(rows: pa.Table | pa.RecordBatch, columns: Sequence[TargetColumn]) -> pa.Table | pa.RecordBatch:
    """Return rows with the names of a target that has these columns."""
    if all(column.id != HANDLE_ID for column in columns):
        return rows
    return rows.rename_columns([TARGET_HANDLE if name == HANDLE else name for name in rows.schema.names])


def to_source(rows: pa.RecordBatch, columns: Sequence[TargetColumn]) -> pa.RecordBatch:
    """Return rows with the names of the source of a target that has these columns."""
    if all(column.id != HANDLE_ID for column in columns):
        return rows
    return rows.rename_columns([HANDLE if name == TARGET_HANDLE else name for name in rows.schema.names])


_PREFIX = b"penstock/jobs/target/"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvWatermark:
    """The mark of a target: which job owns it, and how far it is.

    `job` is the job's name: a job that is registered again under the same name may take over the target.
    `table_id` is 0 while there is no table, `ts` is 0 until the first sync is complete. `attempt` counts the
    first syncs that were begun: only the newest may write. `seen_id` is the greatest of the source's column
    ids at `ts`.
    """

    owner: str
    job: str
    table_id: int = 0
    ts: int = 0
    attempt: int = 0
    columns: tuple[TargetColumn, ...] = ()
    seen_id: int = 0


class MarkReader(Protocol):
    """Anything that a key can be read from."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key."""


class KvWatermarks:
    """The mark of one target, for one job.

    `check_account` raises Invalid when the target's database is not of the job's account at a timestamp: it
    is asked in every transaction that writes.
    """

    def __init__(self, target: str, *, owner: str, job: str, check_account: Callable[[int], None]) -> None:
        self._check_account = check_account
        self._target = target
        self._key = _PREFIX + target.lower().encode()
        self.fresh = KvWatermark(owner=owner, job=job)

    def read(self, view: MarkReader) -> KvWatermark | None:
        """Return the mark, of whichever job; raise Corrupt when it is damaged."""
        return self._parse(view.get(self._key))

    def lock(self, txn: Transaction) -> KvWatermark | None:
        """Return the mark, and let the transaction fail when another one changes it."""
        return self._parse(txn.get_for_update(self._key))

    def check_at(self, txn: Transaction, ts: int) -> KvWatermark:
        """Lock and return this job's mark; raise Fenced when the target is not at `ts`."""
        self._check_account(txn.start_ts)
        mark = self.lock(txn)
        if mark is None or mark.owner != self.fresh.owner or not mark.ts or mark.ts != ts:
            raise Fenced(f"table {self._target} is not at {ts} any more")
        return mark

    def check_claim(self, txn: Transaction, attempt: int) -> KvWatermark:
        """Lock and return this job's mark; raise Fenced when a newer first sync was begun."""
        self._check_account(txn.start_ts)
        mark = self.lock(txn)
        if mark is None or (mark.owner, mark.attempt) != (self.fresh.owner, attempt):
            raise Fenced(f"a newer first sync of {self._target} was begun")
        return mark

    def put(self, txn: Transaction, mark: KvWatermark) -> None:
        """Write the mark."""
        tree = {**asdict(mark), "columns": to_json(mark.columns)}
        txn.put(self._key, json.dumps(tree).encode())

    def _parse(self, value: bytes | None) -> KvWatermark | None:
        if value is None:
            return None
        try:
            tree = json.loads(value)
            mark = KvWatermark(**{**tree, "columns": ()})
        except (TypeError, ValueError):
            raise Corrupt(
                f"the mark of {self._target} is damaged; keep it, and choose another table"
            ) from None
        return replace(mark, columns=tuple(from_json(tree["columns"])))


_CLAIMS_MAX = 4


class TargetSchema:
    """The schema of one job's target; with `create` the job creates and changes it."""

    def __init__(
        self,
        job: JobContext,
        name: str,
        marks: KvWatermarks,
        client: Client,
        catalog: Catalog,
        *,
        create: bool,
    ) -> None:
        self._job = job
        self._name = name
        self._database, self._table = split_name(name)
        self._marks = marks
        self._client = client
        self._catalog = catalog
        self._create = create

    def read_mark(self) -> tuple[KvWatermark | None, int]:
        """Return the mark if it is this job's and the target exists, and the timestamp of that.

        Raises Invalid when the target's database went to another account.
        """
        ts = self._client.timestamp()
        mark = self._marks.read(self._client.snapshot(ts))
        place = _find(self._catalog.schema(ts), self._name)
        if mark is None or place is None or (mark.owner, mark.table_id) != (self._job.owner, place.table.id):
            return None, ts
        self.check_account(ts)
        return mark, ts

    def check_account(self, at_ts: int) -> None:
        """Raise Invalid when the target's database belongs to another account than the job at a timestamp."""
        account = self._catalog.account_of(self._database, at_ts)
        if account.id != self._job.key.account_id:
            raise Invalid(
                f"database {self._database} belongs to account {account.name}, and the job to another; choose"
                " a table of the job's account"
            )

    def claim(self, wanted: Sequence[TargetColumn], seen_ts: int | None) -> KvWatermark:
        """Begin a first sync: earlier ones cannot write any more. Create the target if there is none.

        Raises Invalid when the target belongs to something else, or to a newer job. `seen_ts` is where the
        iteration saw the target, None if it did not look: raises Fenced when the target is not there any
        more.
        """
        for _ in range(_CLAIMS_MAX):
            mark = transact(
                self._client.begin, partial(self._try_claim, wanted, seen_ts), clock=self._job.clock
            )
            seen_ts = None
            if mark.table_id:
                return mark
        raise Conflict(f"table {self._name} is being changed all the time; the first sync begins again")

    def _try_claim(
        self, wanted: Sequence[TargetColumn], seen_ts: int | None, txn: Transaction
    ) -> KvWatermark:
        """Take one step: create the target, claim it, or drop it because it has to be created again."""
        change = SchemaChange(txn)
        place = _find(change.schema, self._name)
        held = self._marks.lock(txn) or self._marks.fresh
        self._check_place(place, held, txn.start_ts)
        ours = place is not None and (held.owner, held.table_id) == (self._job.owner, place.table.id)
        if seen_ts not in {None, held.ts if ours else 0}:
            raise Fenced(f"table {self._name} is not at {seen_ts} any more")
        mark = replace(self._marks.fresh, attempt=held.attempt + 1)
        if place is None:
            made = change.create_table(self._database, definition(self._table, wanted))
            mark = replace(mark, table_id=made.id, columns=tuple(wanted), seen_id=held.seen_id)
        elif not self._create:
            _check_target(self._name, place.table, wanted)
            mark = replace(mark, table_id=place.table.id, columns=tuple(wanted))
        elif _plan_if_possible(held, wanted) is None:
            change.drop_table(self._name)
        else:
            mark = replace(mark, table_id=held.table_id, columns=held.columns, seen_id=held.seen_id)
        self._marks.put(txn, mark)
        return mark

    def _check_place(self, place: TablePlace | None, held: KvWatermark, at_ts: int) -> None:
        self.check_account(at_ts)
        taken = place is not None and held.table_id == place.table.id
        if taken or held.job == self._marks.fresh.job:  # a first sync of it may have just dropped the table
            self._job.check_takeover(held.owner, held.job, f"table {self._name}")
        if place is None:
            if not self._create:
                raise Invalid(f"there is no table {self._name}; create it, or leave option create out")
            return
        if place.table.id == self._job.key.table_id:
            raise Invalid(f"table {self._name} is the source itself; choose another with option table")
        if self._create and not taken:
            raise Invalid(
                f"table {self._name} was not made by this job; drop it, choose another with option table,"
                " or give create=false if all of its rows may be deleted"
            )

    def evolve(
        self,
        mark: KvWatermark,
        wanted: Sequence[TargetColumn],
        schema: SchemaVersion,
        lock_mark: Callable[[Transaction], KvWatermark],
    ) -> Sequence[TargetColumn]:
        """Change the target's columns one by one, each together with its mark; return the columns afterwards.

        `mark` is as it was just seen; `lock_mark` returns it as a transaction sees it, or raises Fenced.
        """
        while True:
            evolution = plan_evolution(mark.columns, mark.seen_id, wanted, is_wider)
            if not evolution.alterations:
                return evolution.columns
            mark = self._apply_first(evolution, schema, lock_mark)

    def _apply_first(
        self,
        evolution: SchemaEvolution,
        schema: SchemaVersion,
        lock_mark: Callable[[Transaction], KvWatermark],
    ) -> KvWatermark:
        """Make the first change of the target in a transaction; return the mark afterwards."""
        first = evolution.alterations[0]
        if not self._create or first.act is ColumnChange.RENAME:
            raise Invalid(f"column {first.column.name} of {self._name} cannot follow by itself; {REBUILD}")
        with self._client.begin() as txn:
            mark = lock_mark(txn)
            change = SchemaChange(txn)
            _alter(change, change.schema.place(self._name), first.act, first.column, schema)
            known = [column for column in mark.columns if column.id != first.column.id]
            known += [] if first.act is ColumnChange.DROP else [first.column]
            mark = replace(mark, columns=tuple(known))
            self._marks.put(txn, mark)
        return mark


def _find(schema: SchemaSnapshot, name: str) -> TablePlace | None:
    database_name, table_name = split_name(name)
    database = schema.databases.get(database_name.lower())
    table = None if database is None else schema.tables[database.id].get(table_name.lower())
    return None if database is None or table is None else TablePlace(database, table)


def _plan_if_possible(mark: KvWatermark, wanted: Sequence[TargetColumn]) -> SchemaEvolution | None:
    """Plan how the target gets its columns; return None if it has to be created again with all rows."""
    try:
        evolution = plan_evolution(mark.columns, mark.seen_id, wanted, is_wider)
    except Invalid:
        return None
    return None if any(change.act is ColumnChange.RENAME for change in evolution.alterations) else evolution


def _check_target(name: str, table: TableInfo, wanted: Sequence[TargetColumn]) -> None:
    keys = [column.name.lower() for column in wanted if column.key]
    if [column.name.lower() for column in table.primary_key] != keys:
        raise Invalid(f"table {name} has another primary key than its source; make it ({', '.join(keys)})")
    names = {column.name.lower() for column in table.stored_columns}
    missing = [column.name for column in wanted if column.name.lower() not in names]
    if missing:
        raise Invalid(f"table {name} has no column {missing[0]}; add it, or select other columns")


def _alter(
    change: SchemaChange, place: TablePlace, act: ColumnChange, column: TargetColumn, schema: SchemaVersion
) -> None:
    table, name = place.table, column.name
    if act is ColumnChange.DROP:
        changed = alter.drop_column(table, name)
        query = f"ALTER TABLE {quote(table.name)} DROP COLUMN {quote(name)}"
        change.alter_table(DdlAction.DROP_COLUMN, place, changed, query)
    elif act is ColumnChange.ADD:
        changed = alter.add_column(table, name, addition_text(schema.table.column(name)))
        query = statements.alter_column("ADD", changed, changed.column(name))
        change.alter_table(DdlAction.ADD_COLUMN, place, changed, query)
    else:
        changed = alter.modify_column(table, name, column.type)
        query = statements.alter_column("MODIFY", changed, changed.column(name))
        change.alter_table(DdlAction.MODIFY_COLUMN, place, changed, query)
