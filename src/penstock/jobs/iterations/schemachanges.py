"""What becomes of a target when its source gets another schema. Pure.

Columns that were added flow into the target; those that were dropped stay there, and are NULL in rows from
then on. A type may become a wider one of its kind. Whatever else changes stops the job, with what to do.
"""

import pyarrow as pa

from penstock.jobs.errorcodes import SchemaRefused
from penstock.tables.schema import TableInfo

_REMEDY = "fill the target anew with `penstock job repair --rebuild`"


def fits(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether every value of a type is one of the other, in the same form."""
    if narrow == wide:
        return True
    if pa.types.is_integer(narrow) and pa.types.is_integer(wide):
        return bool(narrow.bit_width <= wide.bit_width)
    if pa.types.is_floating(narrow) and pa.types.is_floating(wide):
        return bool(narrow.bit_width <= wide.bit_width)
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        whole = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return bool(whole and wide.scale >= narrow.scale)
    return False


def check_keys(old: TableInfo, new: TableInfo) -> None:
    """Raise SchemaRefused when rows of one version of a table cannot be told by the key of another."""
    if [column.id for column in old.primary_key] != [column.id for column in new.primary_key]:
        raise SchemaRefused(f"table {new.name} has another primary key now; {_REMEDY}")
