"""The Arrow type of each column type; all of them are types that Spark has."""

import pyarrow as pa

from penstock.errors import Invalid
from penstock.tables.columns import ColumnInfo, FieldType, Tp
from penstock.tables.schema import TableInfo

DECIMAL_PRECISION_MAX = 38  # of decimal128, and of Spark
UNSIGNED_LONG = pa.decimal128(20, 0)

_SIGNED = {
    Tp.TINY: pa.int8(),
    Tp.SHORT: pa.int16(),
    Tp.INT24: pa.int32(),
    Tp.LONG: pa.int32(),
    Tp.LONGLONG: pa.int64(),
}
_UNSIGNED = {
    Tp.TINY: pa.int16(),
    Tp.SHORT: pa.int32(),
    Tp.INT24: pa.int32(),
    Tp.LONG: pa.int64(),
    Tp.LONGLONG: UNSIGNED_LONG,
}
_FIXED = {
    Tp.FLOAT: pa.float32(),
    Tp.DOUBLE: pa.float64(),
    Tp.DATE: pa.date32(),
    Tp.DATETIME: pa.timestamp("us"),
    Tp.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Tp.DURATION: pa.duration("us"),
    Tp.YEAR: pa.int16(),
    Tp.ENUM: pa.string(),
    Tp.SET: pa.string(),
    Tp.JSON: pa.string(),
    Tp.VECTOR_FLOAT32: pa.list_(pa.float32()),
}


def arrow_type(kind: FieldType) -> pa.DataType:
    """Return the Arrow type of a column; raise Invalid for the few MySQL types that TiDB refuses too.

    Unsigned integers become the next wider signed type, because Spark has no unsigned ones.
    """
    if kind.tp in _SIGNED:
        return (_UNSIGNED if kind.unsigned else _SIGNED)[kind.tp]
    if kind.is_string:
        return pa.binary() if kind.is_binary else pa.string()
    if kind.tp is Tp.NEW_DECIMAL:
        wide = kind.precision > DECIMAL_PRECISION_MAX
        return pa.string() if wide else pa.decimal128(kind.precision, kind.scale)
    if kind.tp is Tp.BIT:
        return UNSIGNED_LONG if kind.flen > 63 else pa.int64()
    if kind.tp not in _FIXED:
        raise Invalid(f"columns of type {kind.tp.name} have no Arrow form; leave the table out")
    return _FIXED[kind.tp]


RESERVED_NAMES = frozenset({"_handle", "_commit_ts", "_start_ts", "_update", "_object", "_offset", "_old"})
"""Names of the columns that a scan and the event store add to those of a table."""

# TiDB refuses names that end with a space, so no column of a user has one of these.
_HIDDEN_NAME = "_column_{} "
_ESCAPED_NAME = "{} "


def arrow_name(column: ColumnInfo) -> str:
    """Return the name of a column in Arrow.

    A column that readers do not see is named by its id: TiDB's names for such columns change, and their ids
    do not. A column with a reserved name has a space after it.
    """
    if not column.is_seen:
        return _HIDDEN_NAME.format(column.id)
    return _ESCAPED_NAME.format(column.name) if column.name.lower() in RESERVED_NAMES else column.name


def shown_name(name: str) -> str:
    """Return the name that a table gives to a column, from its name in Arrow."""
    return name.removesuffix(" ")


def arrow_field(column: ColumnInfo) -> pa.Field:
    """Return the Arrow field of a column.

    It is always nullable: readers get null for a date that no calendar has, and the old row of a delete may
    have only its key.
    """
    return pa.field(arrow_name(column), arrow_type(column.type))


def arrow_schema(table: TableInfo) -> pa.Schema:
    """Return the Arrow schema of a table's rows: every stored, visible column in order, by its own name."""
    return pa.schema([arrow_field(column).with_name(column.name) for column in table.stored_columns])


def scan_schema(table: TableInfo) -> pa.Schema:
    """Return the same with the names that columns have beside system columns."""
    return pa.schema([arrow_field(column) for column in table.stored_columns])
