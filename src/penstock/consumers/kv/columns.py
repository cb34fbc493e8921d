"""The columns of a target in the key-value store: those of the source, NULL allowed but in the key. Pure."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from penstock.consumers.schema_evolution import HANDLE_ID, TargetColumn
from penstock.errors import Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import HANDLE
from penstock.tables import alter
from penstock.tables.columns import ColumnInfo
from penstock.tables.define import define_table, with_origin_default
from penstock.tables.fieldtypes import ColumnFlag
from penstock.tables.schema import TableInfo
from penstock.tables.statements import column_text

TARGET_HANDLE = "source_handle"
"""What `_handle` is called in a target: a column of that name could not be captured."""

_EXACT = "utf8mb4_0900_bin"
_HANDLE_TYPE = "varbinary(3072)"
_DROPPED = ColumnFlag.NOT_NULL | ColumnFlag.AUTO_INCREMENT | ColumnFlag.ON_UPDATE_NOW


def target_columns(schema: SchemaVersion, columns: pa.Schema, keys: Sequence[str]) -> list[TargetColumn]:
    """The columns that a target has of a table."""
    if HANDLE in keys and TARGET_HANDLE in {column.name.lower() for column in schema.table.columns}:
        raise Invalid(f"{schema.name} has no key and a column {TARGET_HANDLE}; leave that column out")
    return [
        TargetColumn(HANDLE_ID, TARGET_HANDLE, _HANDLE_TYPE, key=True)
        if name == HANDLE
        else _target_column(schema.table.column(name), key=name in keys)
        for name in columns.names
    ]


def _target_column(column: ColumnInfo, *, key: bool) -> TargetColumn:
    """A key has the order of its bytes: whatever differs at the source differs then."""
    plain = _plain(column)
    if key and plain.type.is_string and not plain.type.is_binary:
        plain = replace(plain, type=replace(plain.type, charset="utf8mb4", collate=_EXACT))
    return TargetColumn(column.id, column.name, column_text(plain), key=key)


def _plain(column: ColumnInfo) -> ColumnInfo:
    kind = replace(column.type, flag=column.type.flag & ~_DROPPED)
    return replace(column, type=kind, default=None, comment="")


def added_text(column: ColumnInfo) -> str:
    """The definition of a column that joins a target: rows from before read as those of the source do."""
    origin = column.origin_default
    if origin is None and column.type.not_null:
        origin = with_origin_default(replace(column, default=None)).origin_default
    return column_text(replace(_plain(column), default=origin))


def definition(name: str, columns: Sequence[TargetColumn]) -> TableInfo:
    """A target that is not there yet; raise Invalid for what cannot be written."""
    keys = [column.name for column in columns if column.key]
    return define_table(name, [(column.name, column.type) for column in columns], primary_key=keys)


def is_wider(old: str, new: str) -> bool:
    """Whether every value of a type is one of the other type, and stays the same."""
    table = define_table("probe", [("id", "bigint primary key"), ("value", old)])
    try:
        alter.modify_column(table, "value", new)
    except Invalid:
        return False
    return True


def to_target(rows: pa.Table | pa.RecordBatch) -> pa.Table | pa.RecordBatch:
    """Rows with the names of the target."""
    return rows.rename_columns([TARGET_HANDLE if name == HANDLE else name for name in rows.schema.names])


def to_source(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with the names of the source."""
    return rows.rename_columns([HANDLE if name == TARGET_HANDLE else name for name in rows.schema.names])
