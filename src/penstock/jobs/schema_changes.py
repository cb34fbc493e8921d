"""What the target of a job does when its source gets another schema. Pure.

A column that was added is added to the target. A dropped column stays in the target, and is NULL in later
rows. A column that the job selects by name must keep its name. A type may become a wider one of its kind. Any
other change stops the job with a message that names the remedy.
"""

from collections.abc import Collection

import pyarrow as pa

from penstock.jobs.error_codes import SchemaRefused
from penstock.tables.schema import TableInfo

_REMEDY = "rebuild the target with `penstock job repair --rebuild`"


def fits(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Return whether every value of one type is a value of the other, in the same form."""
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
    """Raise SchemaRefused when two versions of a table have different primary keys."""
    if [column.id for column in old.primary_key] != [column.id for column in new.primary_key]:
        raise SchemaRefused(f"table {new.name} has another primary key now; {_REMEDY}")


def check_names(old: TableInfo, new: TableInfo, chosen: Collection[str]) -> None:
    """Raise SchemaRefused when a column that the job selects by name has another name now."""
    wanted = {name.lower() for name in chosen}
    names = {column.id: column.name for column in new.stored_columns}
    current = {name.lower() for name in names.values()}
    for column in old.stored_columns:
        renamed_to = names.get(column.id)
        if renamed_to is not None and column.name.lower() in wanted - current:
            raise SchemaRefused(
                f"column {column.name} of table {new.name} is called {renamed_to} now; select it by that name"
                " with `penstock job update --column`, which fills the target again"
            )
