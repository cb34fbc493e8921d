"""The columns that a reader of changes gets: the key's columns first, `_commit_ts` last. Pure."""

from collections.abc import Collection, Iterable

import pyarrow as pa

from penstock.eventstore.schema_version import Projection, SchemaVersion
from penstock.eventstore.sides import COMMIT_TS, HANDLE, side_schema
from penstock.tables.arrow import arrow_name, scan_schema, shown_name
from penstock.tables.schema import TableInfo

DELETED = "_deleted"
"""The column that marks a row as a delete, of which only the key's columns count."""


def key_names(table: TableInfo) -> tuple[str, ...]:
    """Return the columns that identify a row: those of the primary key in its order, or `_handle`."""
    stored = scan_schema(table).names
    return tuple(name for name in map(arrow_name, table.primary_key) if name in stored) or (HANDLE,)


def choose_columns(table: TableInfo, chosen: Collection[str] | None) -> pa.Schema:
    """Return the key's columns, then the chosen ones in the table's order (None: all), whatever their case.

    A chosen column that the table does not have, or no longer has, is left out.
    """
    keys = key_names(table)
    wanted = None if chosen is None else {name.lower() for name in chosen}
    others = [
        name
        for name in scan_schema(table).names
        if name not in keys
        and (wanted is None or name.lower() in wanted or shown_name(name).lower() in wanted)
    ]
    fields = side_schema(table, "data")
    return pa.schema([fields.field(name) for name in (*keys, *others)])


def with_commit_ts(columns: pa.Schema) -> pa.Schema:
    """Return columns with `_commit_ts` after them, as changes have them."""
    return columns.append(pa.field(COMMIT_TS, pa.int64(), nullable=False))


def list_read_columns(
    versions: Iterable[SchemaVersion], now: SchemaVersion, columns: Iterable[str]
) -> set[str]:
    """Return the names that columns of the table as it is `now` had in its versions: read them by these."""
    names = list(columns)
    return {name for version in versions for name in Projection(version.table, now.table, names).reads}
