"""What a column reads as in rows that were written before it existed."""

from penstock.tables.columns import ColumnInfo
from penstock.tables.values import to_cell, zero_value


def origin_cell(column: ColumnInfo) -> bytes | None:
    """The cell that stands for a column a row was written without; None is NULL.

    A NOT NULL column without a default reads as its type's zero.
    """
    if column.origin_default is not None:
        return to_cell(column.type, column.origin_default)
    return to_cell(column.type, zero_value(column.type)) if column.type.not_null else None
