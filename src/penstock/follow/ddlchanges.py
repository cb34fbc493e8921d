"""What a transaction of DDL changed, from the descriptions of tables before and after it. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any

from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import TableChange
from penstock.tables.columns import ColumnInfo
from penstock.tables.ddl_jobs import DdlAction
from penstock.tables.fieldtypes import ColumnFlag
from penstock.tables.schema import TableInfo

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
