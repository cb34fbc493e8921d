"""The columns that a job gets of a table, the key's first. Pure."""

from collections.abc import Collection, Iterable

import pyarrow as pa

from penstock.eventstore.schema_version import Projection, SchemaVersion
from penstock.eventstore.sides import COMMIT_TS, HANDLE, side_schema
from penstock.tables.arrow import arrow_schema
from penstock.tables.schema import TableInfo

DELETED = "_deleted"
"""Of rows that may be deletes: whether it is one, so that only the key's columns count."""


def key_names(table: TableInfo) -> tuple[str, ...]:
    """The columns that identify a row: those of the primary key in its order, or `_handle`."""
    stored = arrow_schema(table).names
    return tuple(column.name for column in table.primary_key if column.name in stored) or (HANDLE,)


def choose_columns(table: TableInfo, chosen: Collection[str] | None) -> pa.Schema:
    """The key's columns, then those chosen in the table's order, whatever their case; None: all.

    One that the table does not have (any more) is left out.
    """
    keys = key_names(table)
    wanted = None if chosen is None else {name.lower() for name in chosen}
    others = [
        name
        for name in arrow_schema(table).names
        if name not in keys and (wanted is None or name.lower() in wanted)
    ]
    fields = side_schema(table, "data")
    return pa.schema([fields.field(name) for name in (*keys, *others)])


def with_commit_ts(columns: pa.Schema) -> pa.Schema:
    """Columns as changes have them: with `_commit_ts`."""
    return columns.append(pa.field(COMMIT_TS, pa.int64(), nullable=False))


def list_read_columns(
    versions: Iterable[SchemaVersion], now: SchemaVersion, columns: Iterable[str]
) -> set[str]:
    """What columns of a table now were called in its versions: the names to read them by."""
    wanted = list(columns)
    return {name for version in versions for name in Projection(version.table, now.table, wanted).reads}
