"""What a reader of changes asks for, and the columns that follow from it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import pyarrow as pa

from penstock.errors import Invalid
from penstock.eventstore.paths import Side
from penstock.eventstore.read.streams import narrow_old
from penstock.eventstore.sides import COMMIT_TS, HANDLE, OLD, START_TS, UPDATE, side_schema
from penstock.tables.records import key_follows_handle
from penstock.tables.schema import HandleKind, TableInfo

BATCH_ROWS = 8192
SYSTEM = (HANDLE, START_TS, UPDATE)
"""The columns beside those of the table that may be asked for; `_commit_ts` always comes."""


class ChangeOptionsArgs(TypedDict, total=False):
    """What may be asked for; see ChangeOptions for what holds otherwise."""

    columns: Sequence[str] | None
    skip_deletes: bool
    coalesce: bool
    old_rows: bool
    replay: bool
    batch_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions:
    """See `collect_changes`, whose arguments these are. Raises Invalid for what makes no sense."""

    columns: Sequence[str] | None = None  # kept as a tuple
    skip_deletes: bool = False
    coalesce: bool = True
    old_rows: bool = False
    replay: bool = False
    batch_rows: int = BATCH_ROWS

    def __post_init__(self) -> None:
        if self.batch_rows < 1:
            raise Invalid(f"batch_rows is {self.batch_rows}; a batch needs at least one row")
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(self.columns))


@dataclass(frozen=True, slots=True)
class SideColumns:
    """The columns of one side: those that a reader gets, and those that are read for it."""

    shown: pa.Schema
    read: pa.Schema

    @classmethod
    def of(cls, side: pa.Schema, shown: list[str], needed: list[str]) -> "SideColumns":
        """Choose some of a side's columns."""
        read = dict.fromkeys([*shown, *needed])
        return cls(
            pa.schema([side.field(name) for name in shown]), pa.schema([side.field(name) for name in read])
        )


@dataclass(frozen=True, slots=True)
class ReadColumns:
    """The columns of both sides in one schema version."""

    data: SideColumns
    tombstone: SideColumns
    keys_move: bool  # a row may get another primary key, since that is not what its handle says
    keys_vary: bool  # so it may, or at least one that its handle takes for the same

    @classmethod
    def of(cls, table: TableInfo, options: ChangeOptions) -> "ReadColumns":
        """Choose them; those asked for that the version lacks are left out."""
        data, tombstone = side_schema(table, "data"), side_schema(table, "tombstone")
        keys = tombstone.names[: tombstone.names.index(HANDLE)]
        user = data.names[: data.names.index(HANDLE)]
        asked = [name.lower() for name in options.columns or ()]
        if options.columns is not None:
            found = {name.lower(): name for name in user}
            user = [found[name] for name in dict.fromkeys(asked) if name in found]
            tombstone = narrow_old(tombstone, user)
        system = [name for name in SYSTEM if name in asked or (name == HANDLE and not keys)]
        needed = [HANDLE] if options.coalesce else []
        old = [OLD] if options.old_rows else []
        flag = [UPDATE] if options.skip_deletes else []
        keys_move = bool(keys) and table.handle_kind is HandleKind.ROWID
        return cls(
            data=SideColumns.of(data, [*user, *system, COMMIT_TS], needed),
            tombstone=SideColumns.of(tombstone, [*keys, *system, COMMIT_TS, *old], [*needed, *flag]),
            keys_move=keys_move,
            keys_vary=not key_follows_handle(table),
        )

    @property
    def old(self) -> list[str] | None:
        """The columns of `_old`; None when it is not read."""
        if OLD not in self.tombstone.read.names:
            return None
        return [field.name for field in self.tombstone.read.field(OLD).type]

    def of_side(self, side: Side) -> SideColumns:
        """Those of one side."""
        return self.data if side == "data" else self.tombstone


def check_columns(tables: list[TableInfo], options: ChangeOptions) -> None:
    """Raise Invalid when a column is asked for that none of a table's versions has."""
    known = {name.lower() for table in tables for name in side_schema(table, "data").names}
    for name in options.columns or ():
        if name == OLD:
            raise Invalid(f"{OLD} is no column of the data; ask for it with old_rows")
        if name.lower() not in known:
            has = ", ".join(column.name for column in tables[-1].stored_columns)
            raise Invalid(f"table {tables[-1].name} has no column {name!r}; it has {has}")
