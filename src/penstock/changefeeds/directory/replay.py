"""Replays the deliveries of a directory into a database: rows by primary key, DDLs by their effect."""

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from penstock import clock as clocks
from penstock.changefeeds.codecs.decoded_changes import OP_DELETE, DecodedChanges, row_dicts
from penstock.changefeeds.directory.reader import Ddl, Delivery, TableChanges
from penstock.clock import Clock
from penstock.errors import Invalid
from penstock.follow.ddl_events import OtherAction
from penstock.kv import Transaction
from penstock.kv.transact import transact
from penstock.tables import Catalog, Table
from penstock.tables.columns import ColumnInfo, Tp
from penstock.tables.ddl_jobs import DdlAction
from penstock.tables.schema import TableInfo
from penstock.tables.statements import column_text, type_text
from penstock.tables.values import zero_value

_log = logging.getLogger(__name__)

_DROP = re.compile(r"\bDROP\b", re.IGNORECASE)
_TRANSACTION_CHANGES = 2_048

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class AlterStep:
    """One change of one column."""

    what: Literal["drop", "add", "modify"]
    column: str
    definition: str = ""
    after: str | None = None


def alter_steps(existing: TableInfo, wanted: TableInfo, query: str, *, renames: bool) -> Iterator[AlterStep]:
    """Yield the column changes from one table to the other; none when they have the same columns.

    Columns that only `existing` has stay, unless the DDL drops some. `renames`: the DDL may rename a column.
    Raises Invalid when it does: the directory does not say which, and a new column would have no values.
    """
    old = {column.name.lower(): column for column in existing.stored_columns}
    new = {column.name.lower(): column for column in wanted.stored_columns}
    gone = [name for name in old if name not in new]
    if renames and gone and any(name not in old for name in new):
        raise Invalid(
            f"column {old[gone[0]].name} of {existing.name} got another name, which cannot be replayed;"
            " replay into a new table with a state from after the change"
        )
    for name in gone if _DROP.search(query) else ():
        yield AlterStep("drop", old[name].name)
    before: str | None = None
    for name, column in new.items():
        if name not in old:
            yield AlterStep("add", column.name, column_definition(column), after=before)
        elif _differs(old[name], column):
            yield AlterStep("modify", column.name, column_definition(_complete_column(old[name], column)))
        before = column.name


def column_definition(column: ColumnInfo) -> str:
    """Return the SQL definition of a column of a schema file."""
    if column.type.tp is Tp.BIT and isinstance(column.default, str):  # a schema file has the number's bytes
        number = int.from_bytes(column.default.encode("utf-8", "surrogateescape"), "big")
        return column_text(replace(column, default=str(number)))
    return column_text(column)


def _differs(old: ColumnInfo, new: ColumnInfo) -> bool:
    return (
        type_text(old.type) != type_text(new.type)
        or old.type.not_null != new.type.not_null
        or _default(old) != _default(new)
    )


def _default(column: ColumnInfo) -> str | None:
    return None if column.default is None or column.type.tp is Tp.BIT else str(column.default)


def _complete_column(old: ColumnInfo, new: ColumnInfo) -> ColumnInfo:
    """Return the new column with the old charset, collation and comment, which schema files do not have."""
    text = new.type.is_string and old.type.is_string and new.type.is_binary == old.type.is_binary
    kind = replace(new.type, charset=old.type.charset, collate=old.type.collate) if text else new.type
    return replace(new, type=kind, comment=old.comment)


class Replayer:
    """Brings the tables of a database to the state of a directory's tables.

    Repeating a delivery changes nothing. Changes become visible some thousand at a time, not by the
    transactions that they came from. Secondary indexes are not in the directory, so they are not made.
    Raises Invalid when a table is missing or does not fit, Conflict or Unavailable when the database does.
    """

    def __init__(self, catalog: Catalog, *, clock: Clock = clocks.SYSTEM) -> None:
        self._catalog = catalog
        self._clock = clock

    def take(self, delivery: Delivery) -> None:
        """Replay a delivery; it is durable on return."""
        if isinstance(delivery, TableChanges):
            self._replay_changes(delivery)
        elif delivery.table is None:
            self._replay_database(delivery)
        elif not delivery.of_view:
            self._replay_table(delivery, delivery.table)

    def _replay_database(self, ddl: Ddl) -> None:
        exists = self._has_database(ddl.database)
        if ddl.type in {DdlAction.CREATE_SCHEMA, OtherAction.RECOVER_SCHEMA} and not exists:
            self._catalog.create_database(ddl.database)
        elif ddl.type == DdlAction.DROP_SCHEMA and exists:
            self._catalog.drop_database(ddl.database)

    def _replay_table(self, ddl: Ddl, table: TableInfo) -> None:
        existing = self._find(ddl.name)
        if ddl.type == DdlAction.DROP_TABLE:
            if existing is not None:
                self._catalog.drop_table(ddl.name)
        elif ddl.renamed_from is not None:
            self._rename(ddl, ".".join(ddl.renamed_from), done=existing is not None)
        elif existing is None:
            self._create(ddl, table)
        elif ddl.type == DdlAction.TRUNCATE_TABLE:
            self._catalog.truncate_table(ddl.name)
        elif ddl.query and ddl.type != DdlAction.CREATE_TABLE:  # an existing table is the user's: leave it
            self._alter(ddl, existing, table)

    def _create(self, ddl: Ddl, table: TableInfo) -> None:
        if not self._has_database(ddl.database):
            self._catalog.create_database(ddl.database)
        columns = [(column.name, column_definition(column)) for column in table.stored_columns]
        keys = [column.name for column in table.primary_key]
        self._catalog.create_table(ddl.name, columns, primary_key=keys)
        _log.info("a table was made as its schema file has it", extra={"table": ddl.name})

    def _rename(self, ddl: Ddl, old_name: str, *, done: bool) -> None:
        if self._find(old_name) is not None:
            self._catalog.rename_table(old_name, ddl.name)
        elif not done:
            raise Invalid(f"{old_name}, which becomes {ddl.name}, is not there; replay from the beginning")

    def _alter(self, ddl: Ddl, existing: TableInfo, wanted: TableInfo) -> None:
        for step in alter_steps(existing, wanted, ddl.query, renames=ddl.type == DdlAction.MODIFY_COLUMN):
            match step.what:
                case "drop":
                    self._catalog.drop_column(ddl.name, step.column)
                case "add":
                    self._catalog.add_column(ddl.name, step.column, step.definition, after=step.after)
                case "modify":
                    self._catalog.modify_column(ddl.name, step.column, step.definition)

    def _replay_changes(self, delivery: TableChanges) -> None:
        existing = self._find(delivery.name)
        if existing is None:
            raise Invalid(f"table {delivery.name} does not exist; create it, or replay from the beginning")
        _check_columns(delivery, existing)
        table = self._catalog.table(delivery.name)
        for rows, gone in _net_changes(delivery.changes, existing):
            transact(self._catalog.begin, partial(_write, table, rows, gone), clock=self._clock)

    def _find(self, name: str) -> TableInfo | None:
        schema = self._catalog.schema()
        database, _, table = name.partition(".")
        found = schema.databases.get(database.lower())
        return schema.tables[found.id].get(table.lower()) if found else None

    def _has_database(self, name: str) -> bool:
        return name.lower() in self._catalog.schema().databases


def _write(table: Table, rows: list[dict[str, Any]], gone: list[Any], txn: Transaction) -> None:
    table.delete(gone, txn=txn)
    table.upsert(rows, txn=txn)


def _check_columns(delivery: TableChanges, existing: TableInfo) -> None:
    """Raise Invalid when changes cannot be replayed into a table of these columns."""
    if not existing.primary_key:
        raise Invalid(f"table {delivery.name} has no primary key to tell its rows apart by; leave it out")
    sent = {column.name.lower() for column in delivery.table.stored_columns}
    known = {column.name.lower() for column in existing.stored_columns}
    keys = {column.name.lower() for column in existing.primary_key}
    if sent - known:
        raise Invalid(
            f"table {delivery.name} has no column {min(sent - known)}, which the directory has; add it, or"
            " replay from the beginning"
        )
    if keys - sent:
        raise Invalid(
            f"the directory has no column {min(keys - sent)} of the primary key of {delivery.name}; use a"
            " table with the directory's key"
        )


def _net_changes(
    changes: DecodedChanges, existing: TableInfo
) -> Iterator[tuple[list[dict[str, Any]], list[Any]]]:
    """Yield rows to put and keys to delete, some at a time: only the last change of a key counts."""
    key_of = _key_reader(changes, existing)
    fill_zeros = _zero_filler(changes, existing)
    for start in range(0, len(changes), _TRANSACTION_CHANGES):
        part = changes.slice(start, min(_TRANSACTION_CHANGES, len(changes) - start))
        last: dict[Key, dict[str, Any] | None] = {}
        for op, row, old in zip(part.ops.to_pylist(), row_dicts(part.rows), row_dicts(part.old), strict=True):
            assert row is not None, "every change has a row"
            if old is not None and key_of(old) != key_of(row):
                last[key_of(old)] = None
            last[key_of(row)] = None if op == OP_DELETE else fill_zeros(row)
        rows = [row for row in last.values() if row is not None]
        gone = [key if len(key) > 1 else key[0] for key, row in last.items() if row is None]
        yield rows, gone


def _key_reader(changes: DecodedChanges, existing: TableInfo) -> Callable[[dict[str, Any]], Key]:
    names = {name.lower(): name for name in changes.rows.schema.names}
    keys = [names[column.name.lower()] for column in existing.primary_key]
    return lambda row: tuple(row[name] for name in keys)


def _zero_filler(changes: DecodedChanges, existing: TableInfo) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that fills in zero dates: a null in a NOT NULL column was one."""
    names = {name.lower(): name for name in changes.rows.schema.names}
    zeros = {
        names[column.name.lower()]: zero_value(column.type)
        for column in existing.stored_columns
        if column.type.not_null and column.name.lower() in names
    }
    if not any(changes.rows.column(name).null_count for name in zeros):
        return lambda row: row
    return lambda row: {name: zeros.get(name) if value is None else value for name, value in row.items()}
