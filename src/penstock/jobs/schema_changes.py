"""What becomes of a target when its source gets another schema. Pure.

Columns that were added flow into the target; those that were dropped stay there, and are NULL in rows from
then on. One that the job has chosen by its name must keep that. A type may become a wider one of its kind.
Whatever else changes stops the job, with what to do.
"""

from collections.abc import Collection

import pyarrow as pa

from penstock.jobs.error_codes import SchemaRefused
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


def check_names(old: TableInfo, new: TableInfo, chosen: Collection[str]) -> None:
    """Raise SchemaRefused when a column that was chosen by its name has another one now."""
    wanted = {name.lower() for name in chosen}
    names = {column.id: column.name for column in new.stored_columns}
    there = {name.lower() for name in names.values()}
    for column in old.stored_columns:
        now = names.get(column.id)
        if now is not None and column.name.lower() in wanted - there:
            raise SchemaRefused(
                f"column {column.name} of table {new.name} is called {now} now; choose it by that name with"
                " `penstock job update --column`, which fills the target anew"
            )
