"""The columns that a reader of changes gets: the key's columns first, `_commit_ts` last. Pure.

Beside system columns, a column of the table that has the name of one is escaped (`arrow_name`). Consumers of
jobs get every column of the table by its own name; a system column of that name is escaped instead.
"""

from collections.abc import Collection, Iterable

import pyarrow as pa

from penstock.errors import Invalid
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


def own_columns(table: TableInfo, chosen: Collection[str] | None) -> pa.Schema:
    """Return the columns of `choose_columns` by the names that the table gives them.

    Raises Invalid when the table has no primary key, so that `_handle` identifies its rows, and a column of
    that name.
    """
    columns = choose_columns(table, chosen)
    found = pa.schema([field.with_name(shown_name(field.name)) for field in columns])
    if HANDLE in columns.names and HANDLE in {name.lower() for name in found.names[1:]}:
        raise Invalid(
            f"table {table.name} has no primary key and a column {HANDLE}, by which rows of such tables are"
            " identified; select other columns for the job with --column, or give the table a primary key"
        )
    return found


def own_key_names(table: TableInfo) -> tuple[str, ...]:
    """Return the columns of `key_names` by the names that the table gives them."""
    return tuple(map(shown_name, key_names(table)))


def free_name(name: str, columns: pa.Schema) -> str:
    """Return the name of a system column beside others: with a space after it where one of them has it."""
    return f"{name} " if name in {other.lower() for other in columns.names} else name


def with_commit_ts(columns: pa.Schema) -> pa.Schema:
    """Return columns with `_commit_ts` after them, as changes have them."""
    return columns.append(pa.field(free_name(COMMIT_TS, columns), pa.int64(), nullable=False))


def with_deleted(columns: pa.Schema) -> pa.Schema:
    """Return columns with `_commit_ts` and `_deleted` after them, as net changes have them."""
    marked = with_commit_ts(columns)
    return marked.append(pa.field(free_name(DELETED, columns), pa.bool_(), nullable=False))


def list_read_columns(
    versions: Iterable[SchemaVersion], now: SchemaVersion, columns: Iterable[str]
) -> set[str]:
    """Return the names that columns of the table as it is `now` had in its versions: read them by these."""
    names = list(columns)
    return {name for version in versions for name in Projection(version.table, now.table, names).reads}
