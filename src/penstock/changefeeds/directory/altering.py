"""What makes a table's columns those of a schema file: the changes, one column at a time. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from penstock.errors import Invalid
from penstock.tables.columns import ColumnInfo
from penstock.tables.fieldtypes import Tp
from penstock.tables.schema import TableInfo
from penstock.tables.statements import column_text, type_text

_DROP = re.compile(r"\bDROP\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class AlterStep:
    """One change of one column."""

    what: Literal["drop", "add", "modify"]
    column: str
    definition: str = ""
    after: str | None = None


def steps(there: TableInfo, wanted: TableInfo, query: str, *, renames: bool) -> Iterator[AlterStep]:
    """Changes that lead from one table to the other; nothing when they have the same columns.

    Columns that only `there` has stay, unless the DDL drops some. `renames`: it may give a column another
    name. Raises Invalid when it does: the directory does not say which, and a new column has no values.
    """
    old = {column.name.lower(): column for column in there.stored_columns}
    new = {column.name.lower(): column for column in wanted.stored_columns}
    gone = [name for name in old if name not in new]
    if renames and gone and any(name not in old for name in new):
        raise Invalid(
            f"column {old[gone[0]].name} of {there.name} got another name, which cannot be replayed; replay"
            " into a new table with a state from after the change"
        )
    for name in gone if _DROP.search(query) else ():
        yield AlterStep("drop", old[name].name)
    before: str | None = None
    for name, column in new.items():
        if name not in old:
            yield AlterStep("add", column.name, definition(column), after=before)
        elif _differs(old[name], column):
            yield AlterStep("modify", column.name, definition(_like(old[name], column)))
        before = column.name


def definition(column: ColumnInfo) -> str:
    """A column of a schema file as SQL defines it."""
    if column.type.tp is Tp.BIT and isinstance(column.default, str):  # the bytes of the number
        number = int.from_bytes(column.default.encode("utf-8", "surrogateescape"), "big")
        return column_text(replace(column, default=str(number)))
    return column_text(column)


def _differs(old: ColumnInfo, new: ColumnInfo) -> bool:
    return (
        type_text(old.type) != type_text(new.type)
        or old.type.not_null != new.type.not_null
        or _default(old) != _default(new)
    )


def _default(column: ColumnInfo) -> str | None:
    return None if column.default is None or column.type.tp is Tp.BIT else str(column.default)


def _like(old: ColumnInfo, new: ColumnInfo) -> ColumnInfo:
    """The new column with what a schema file does not say of it, as it was."""
    text = new.type.is_string and old.type.is_string and new.type.is_binary == old.type.is_binary
    kind = replace(new.type, charset=old.type.charset, collate=old.type.collate) if text else new.type
    return replace(new, type=kind, comment=old.comment)
