"""What becomes of a target when its source gets another schema. Pure.

Columns that were added flow into the target; those that were dropped stay there, and are NULL in rows from
then on. A type may become a wider one of its kind. Whatever else changes stops the job, with what to do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.jobs.errorcodes import SchemaRefused
from penstock.tables.schema import TableInfo

_REMEDY = "fill the target anew with `penstock job repair --rebuild`"


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """What a target has to change to take a source's rows."""

    added: tuple[pa.Field, ...] = ()
    """Columns that the target lacks."""
    widened: tuple[pa.Field, ...] = ()
    """Columns that become of a wider type."""
    dropped: tuple[str, ...] = ()
    """Columns that the source has no more: NULL from now on."""

    def __bool__(self) -> bool:
        return bool(self.added or self.widened)


def compare(target: pa.Schema, wanted: pa.Schema, keys: Sequence[str] = ()) -> SchemaChange:
    """What to change in a target with some columns, so that it takes rows with those wanted.

    Names are the same whatever their case. Raises SchemaRefused when a column's new type is not a wider one,
    or the target has no column of the key's.
    """
    present = {each.name.lower(): each for each in target}
    for key in keys:
        if key.lower() not in present:
            raise SchemaRefused(f"the target has no column {key}, which is part of the key now; {_REMEDY}")
    added, widened = [], []
    for field in wanted:
        before = present.pop(field.name.lower(), None)
        if before is None:
            added.append(field)
        elif before.type != field.type and not fits(field.type, before.type):
            if not fits(before.type, field.type):
                raise SchemaRefused(
                    f"column {field.name} became {field.type}, which the target's {before.type} cannot;"
                    f" {_REMEDY}"
                )
            widened.append(field)
    return SchemaChange(tuple(added), tuple(widened), tuple(each.name for each in present.values()))


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
