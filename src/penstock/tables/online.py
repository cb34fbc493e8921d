"""What a write of a row must do while the schema changes online, as TiDB's own writers do it. Pure.

An element of the schema goes through states, one at a time: delete-only, write-only, write-reorganization
(older rows are filled in), public; and back when it is dropped. In each state a writer must

| state | index | column |
|---|---|---|
| delete-only, delete-reorganization | delete entries | leave it out of rows |
| write-only, write-reorganization | write and delete entries | write its origin default or converted value |
| public | write and delete entries | write the value |

A hidden column that replaces another (MODIFY COLUMN with new bytes) has the other's value, converted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from penstock.errors import Invalid, Unavailable
from penstock.tables import temp_index
from penstock.tables.codec.datums import Datum, DatumKind
from penstock.tables.columns import ColumnFlag, ColumnInfo, SchemaState
from penstock.tables.conversion import can_convert, convert
from penstock.tables.indexes import check_condition, written_indexes
from penstock.tables.partitions import Partitions
from penstock.tables.records import Record, origin_cell
from penstock.tables.schema import IndexInfo, TableInfo
from penstock.tables.values import datum_of_cell

_WRITTEN = frozenset({SchemaState.WRITE_ONLY, SchemaState.WRITE_REORG, SchemaState.PUBLIC})
_CHANGED_PARTITIONS = ("adding_definitions", "dropping_definitions", "ddl_state", "ddl_action")


@dataclass(frozen=True)
class WriteForm:
    """The columns and indexes that a row of a table is written with, in the present state of its schema."""

    table: TableInfo

    @cached_property
    def columns(self) -> tuple[ColumnInfo, ...]:
        """The columns that a row's value has: those that readers see, and hidden ones that come or go."""
        return (*self.table.stored_columns, *self._hidden)

    @cached_property
    def read(self) -> tuple[ColumnInfo, ...]:
        """The columns of a stored row that its change needs."""
        return (*self.table.stored_columns, *(c for c in self._hidden if c.changes_from is None))

    @cached_property
    def added(self) -> tuple[IndexInfo, ...]:
        """The indexes that a new row gets entries in."""
        return tuple(index for index in self.removed if index.state in _WRITTEN)

    @cached_property
    def removed(self) -> tuple[IndexInfo, ...]:
        """The indexes that a row which goes may have entries in."""
        return tuple(written_indexes(self.table))

    @property
    def is_plain(self) -> bool:
        """Whether a row is its record alone, of one physical table: no index entries, no hidden columns."""
        one_table = self.table.physical_ids == (self.table.id,)
        refusing = any(c.type.flag & ColumnFlag.PREVENT_NULL_INSERT for c in self.table.columns)
        return one_table and not (self.removed or self._hidden or self._changing or refusing)

    @cached_property
    def _hidden(self) -> tuple[ColumnInfo, ...]:
        return tuple(
            column
            for column in self.table.columns
            if column.state in {SchemaState.WRITE_ONLY, SchemaState.WRITE_REORG} and not column.is_virtual
        )

    @cached_property
    def _changing(self) -> tuple[tuple[ColumnInfo, ColumnInfo], ...]:
        """Hidden columns with the columns that they will replace."""
        return tuple(
            (column, self.table.columns[column.changes_from])
            for column in self.table.columns
            if column.changes_from is not None
        )

    def complete(self, record: Record, before: Record | None = None) -> Record:
        """Return a row to write with the values of hidden columns; `before` is the row that it replaces.

        Raise Invalid when a value does not fit a column that the schema is about to have.
        """
        for column in self.table.stored_columns:
            flag = column.type.flag & ColumnFlag.PREVENT_NULL_INSERT
            if flag and record[column.id].kind is DatumKind.NULL:
                raise Invalid(f"column {column.name} is becoming NOT NULL and has no value; pass one")
        whole = dict(record)
        for column in self._hidden:
            source = column.changes_from
            if source is not None:
                whole[column.id] = self._convert_value(column, self.table.columns[source], record)
            elif before is not None:
                whole[column.id] = before[column.id]
            else:
                whole[column.id] = datum_of_cell(column.type, origin_cell(column))
        return whole

    def recall(self, record: Record) -> Record:
        """Return a stored row with the values of hidden columns that index entries of it may have."""
        whole = dict(record)
        for hidden, source in self._changing:
            try:
                whole[hidden.id] = convert(source.type, hidden.type, record[source.id])
            except Invalid:
                continue  # a value that cannot be converted has no entry either
        return whole

    def covers(self, index: IndexInfo, record: Record) -> bool:
        """Return whether a row has a value for every column of an index."""
        return all(self.table.columns[part.offset].id in record for part in index.columns)

    def _convert_value(self, hidden: ColumnInfo, source: ColumnInfo, record: Record) -> Datum:
        try:
            datum = convert(source.type, hidden.type, record[source.id])
        except Invalid as error:
            raise Invalid(f"column {source.name} is being changed: {error}") from error
        if datum.kind is DatumKind.NULL and hidden.type.not_null:
            raise Invalid(f"column {source.name} is becoming NOT NULL and has no value; pass one")
        return datum


def check_writable(name: str, table: TableInfo) -> None:
    """Refuse tables whose rows Penstock would write incompletely.

    Raise Invalid for a table that it never writes, Unavailable while TiDB makes a change that needs more than
    index entries and hidden columns.
    """
    if table.physical_ids != (table.id,):
        partitions_of(name, table)
    if any(column.generated_expr and (column.generated_stored or column.hidden) for column in table.columns):
        raise Invalid(
            f"{name} has generated columns that are stored or indexed; Penstock does not compute them"
        )
    virtual = {column.offset for column in table.columns if column.is_virtual}
    if any(part.offset in virtual for index in table.indexes for part in index.columns):
        raise Invalid(f"{name} has an index on a generated column; Penstock does not compute it")
    for index in written_indexes(table):
        check_condition(table, index)
    if _is_out_of_reach(table):
        raise Unavailable(f"the schema of {name} is being changed; wait until the change is finished")


def partitions_of(name: str, table: TableInfo) -> Partitions:
    """Return what finds the partitions of a table's rows; raise Invalid when Penstock cannot know them."""
    try:
        return Partitions(table)
    except (Invalid, KeyError, ValueError) as error:
        raise Invalid(f"{name} is partitioned in a way that Penstock does not follow: {error}") from error


def _is_out_of_reach(table: TableInfo) -> bool:
    """Return whether a running change needs writes of a kind that Penstock does not make."""
    states = {SchemaState.NONE, SchemaState.REPLICA_ONLY, SchemaState.GLOBAL_TXN_ONLY}
    changing = [(column, column.changes_from) for column in table.columns if column.changes_from is not None]
    return (
        table.state is not SchemaState.PUBLIC
        or not all(map(temp_index.is_known, table.indexes))
        or bool(
            states & ({column.state for column in table.columns} | {index.state for index in table.indexes})
        )
        or bool(table.extra.get("exchange_partition_info"))
        or any((table.extra.get("partition") or {}).get(member) for member in _CHANGED_PARTITIONS)
        or any(not can_convert(table.columns[source].type, hidden.type) for hidden, source in changing)
    )


def is_same_form(old: TableInfo, new: TableInfo) -> bool:
    """Return whether a row that was written under one schema is whole and right under a later one.

    It is when every column and index of the first is as it was, and nothing but plain columns came: a row
    without them reads as their origin default. Names, comments, defaults and places of columns do not matter.
    """
    return _shape(old) == _shape(new, {column.id for column in old.columns})


def _shape(table: TableInfo, known: set[int] | None = None) -> Sequence[Any]:
    columns = {
        column.id: (
            replace(column.type, extra={}),
            column.state,
            column.origin_default,
            column.changes_from is not None and table.columns[column.changes_from].id,
            column.generated_expr,
        )
        for column in table.columns
        if known is None or column.id in known or column.generated_expr or column.changes_from is not None
    }
    indexes = {
        index.id: (
            index.state,
            index.unique,
            index.primary,
            index.is_global,
            index.condition,
            index.extra.get("backfill_state"),
            [(table.columns[part.offset].id, part.length) for part in index.columns],
        )
        for index in table.indexes
    }
    return (
        table.state,
        table.handle_kind,
        table.common_handle_version,
        columns,
        indexes,
        table.physical_ids,
        table.extra.get("partition") or None,
        table.extra.get("exchange_partition_info"),
    )
