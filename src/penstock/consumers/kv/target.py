"""The target as a table: made, taken over, refused or changed, always together with its mark."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from penstock.consumers.kv.columns import added_text, definition, is_wider
from penstock.consumers.kv.marks import KvWatermark, KvWatermarks
from penstock.consumers.schema_evolution import REBUILD, ColumnChange, SchemaEvolution, TargetColumn, evolved
from penstock.errors import Conflict, Fenced, Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.consumer import JobContext
from penstock.kv import Client, Transaction
from penstock.kv.transact import retried
from penstock.tables import Catalog, alter, statements
from penstock.tables.ddl import SchemaChange
from penstock.tables.ddl_jobs import DdlAction
from penstock.tables.schema import TableInfo
from penstock.tables.schema_snapshot import SchemaSnapshot, TablePlace, split_name
from penstock.tables.statements import quote

_STEPS_MAX = 4


class TargetSchema:
    """The schema of one job's target; with `create` it is the job's to make and to change."""

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

    def seen(self) -> tuple[KvWatermark | None, int]:
        """The mark if it is this job's and the target is there, and the timestamp at which that is so."""
        ts = self._client.timestamp()
        mark = self._marks.read(self._client.snapshot(ts))
        place = _find(self._catalog.schema(ts), self._name)
        if mark is None or place is None or (mark.owner, mark.table_id) != (self._job.owner, place.table.id):
            return None, ts
        return mark, ts

    def claim(self, wanted: Sequence[TargetColumn], seen_ts: int | None) -> KvWatermark:
        """Begin a first sync: whatever was begun before cannot write any more. Make the target if need be.

        Raises Invalid when the target is not ours, or a newer job's; Fenced when it is not at `seen_ts` any
        more, where its iteration has seen it; None: it has not looked.
        """
        for _ in range(_STEPS_MAX):
            mark = retried(partial(self._claimed, wanted, seen_ts), clock=self._job.clock)
            seen_ts = None
            if mark.table_id:
                return mark
        raise Conflict(f"others keep changing table {self._name}; begin the first sync again")

    def _claimed(self, wanted: Sequence[TargetColumn], seen_ts: int | None) -> KvWatermark:
        """One step: the target is made, taken, or dropped because it has to be made anew."""
        with self._client.begin() as txn:
            change = SchemaChange(txn)
            place = _find(change.schema, self._name)
            held = self._marks.held(txn) or self._marks.fresh
            self._check_place(place, held)
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
            elif _possible(held, wanted) is None:
                change.drop_table(self._name)
            else:
                mark = replace(mark, table_id=held.table_id, columns=held.columns, seen_id=held.seen_id)
            self._marks.put(txn, mark)
        return mark

    def _check_place(self, place: TablePlace | None, held: KvWatermark) -> None:
        account = self._catalog.account_of(self._database)
        if account.id != self._job.key.account_id:
            raise Invalid(f"database {self._database} belongs to account {account.name}, the job does not")
        taken = place is not None and held.table_id == place.table.id
        if taken or held.job == self._marks.fresh.job:  # its first sync may have dropped the table just now
            self._job.check_takeover(held.owner, held.job, f"table {self._name}")
        if place is None:
            if not self._create:
                raise Invalid(f"there is no table {self._name}; make it, or leave option create out")
            return
        if place.table.id == self._job.key.table_id:
            raise Invalid(f"table {self._name} is the source itself; choose another with option table")
        if self._create and not taken:
            raise Invalid(
                f"table {self._name} was not made by this job; drop it, choose another with option table,"
                " or give create=false if all of its rows may go"
            )

    def evolve(
        self,
        mark: KvWatermark,
        wanted: Sequence[TargetColumn],
        schema: SchemaVersion,
        held: Callable[[Transaction], KvWatermark],
    ) -> Sequence[TargetColumn]:
        """Change the target's columns one by one, each together with its mark; return those it has then.

        `mark` is as it was just seen, and `held` gives it again as a transaction sees it, or raises Fenced.
        """
        while True:
            evolution = evolved(mark.columns, mark.seen_id, wanted, is_wider)
            if not evolution.alterations:
                return evolution.columns
            mark = self._step(evolution, schema, held)

    def _step(
        self, evolution: SchemaEvolution, schema: SchemaVersion, held: Callable[[Transaction], KvWatermark]
    ) -> KvWatermark:
        first = evolution.alterations[0]
        if not self._create or first.act is ColumnChange.RENAME:
            raise Invalid(f"column {first.column.name} of {self._name} cannot follow by itself; {REBUILD}")
        with self._client.begin() as txn:
            mark = held(txn)
            change = SchemaChange(txn)
            _alter(change, change.schema.place(self._name), first.act, first.column, schema)
            known = [each for each in mark.columns if each.id != first.column.id]
            known += [] if first.act is ColumnChange.DROP else [first.column]
            mark = replace(mark, columns=tuple(known))
            self._marks.put(txn, mark)
        return mark


def _find(schema: SchemaSnapshot, name: str) -> TablePlace | None:
    database_name, table_name = split_name(name)
    database = schema.databases.get(database_name.lower())
    table = None if database is None else schema.tables[database.id].get(table_name.lower())
    return None if database is None or table is None else TablePlace(database, table)


def _possible(mark: KvWatermark, wanted: Sequence[TargetColumn]) -> SchemaEvolution | None:
    """How the target can get its columns; None where it has to be made anew: all of its rows come again."""
    try:
        evolution = evolved(mark.columns, mark.seen_id, wanted, is_wider)
    except Invalid:
        return None
    return None if any(each.act is ColumnChange.RENAME for each in evolution.alterations) else evolution


def _check_target(name: str, table: TableInfo, wanted: Sequence[TargetColumn]) -> None:
    keys = [column.name.lower() for column in wanted if column.key]
    if [column.name.lower() for column in table.primary_key] != keys:
        raise Invalid(f"table {name} has another primary key than its source: it must be ({', '.join(keys)})")
    there = {column.name.lower() for column in table.stored_columns}
    missing = [column.name for column in wanted if column.name.lower() not in there]
    if missing:
        raise Invalid(f"table {name} has no column {missing[0]}; add it, or choose other columns")


def _alter(
    change: SchemaChange, place: TablePlace, act: ColumnChange, column: TargetColumn, schema: SchemaVersion
) -> None:
    table, name = place.table, column.name
    if act is ColumnChange.DROP:
        changed = alter.drop_column(table, name)
        query = f"ALTER TABLE {quote(table.name)} DROP COLUMN {quote(name)}"
        change.alter_table(DdlAction.DROP_COLUMN, place, changed, query)
    elif act is ColumnChange.ADD:
        changed = alter.add_column(table, name, added_text(schema.table.column(name)))
        query = statements.alter_column("ADD", changed, changed.column(name))
        change.alter_table(DdlAction.ADD_COLUMN, place, changed, query)
    else:
        changed = alter.modify_column(table, name, column.type)
        query = statements.alter_column("MODIFY", changed, changed.column(name))
        change.alter_table(DdlAction.MODIFY_COLUMN, place, changed, query)
