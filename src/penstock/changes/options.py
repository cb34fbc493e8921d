"""The options of a reader of changes, and the columns that follow from them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import pyarrow as pa

from penstock.errors import Invalid
from penstock.eventstore.paths import Side
from penstock.eventstore.read.streams import list_old, narrow_old
from penstock.eventstore.sides import COMMIT_TS, HANDLE, OLD, START_TS, UPDATE, stored_side_schema
from penstock.tables.arrow import scan_schema
from penstock.tables.records import key_follows_handle
from penstock.tables.schema import HandleKind, TableInfo

BATCH_ROWS = 8192
SYSTEM = (HANDLE, START_TS, UPDATE)
"""System columns that a reader may ask for; `_commit_ts` always comes."""


class ChangeOptionsArgs(TypedDict, total=False):
    """The keyword arguments of `collect_changes`, all optional. ChangeOptions has their defaults."""

    columns: Sequence[str] | None
    skip_deletes: bool
    coalesce: bool
    old_rows: bool
    replay: bool
    impossible_dates: bool
    whole_keys: bool
    batch_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions:
    """The options of `collect_changes`, with their defaults. Raises Invalid when a value makes no sense.

    `columns`: the columns to read (None: all). `skip_deletes`: leave out tombstones of rows that come back.
    `coalesce`: merge changes of the same row. `old_rows`: add the row that ended to each tombstone. `replay`:
    the reader may have applied some of the changes before. `impossible_dates`: keep dates that no calendar
    has, for a reader that knows `tables.impossible_dates`; others get null. `whole_keys`: raise StaleRead
    for a change whose key has such a date, because null in a key is the key of several rows; a snapshot has
    all of them. `batch_rows`: half the most rows of a side of a batch.
    """

    columns: Sequence[str] | None = None  # kept as a tuple
    skip_deletes: bool = False
    coalesce: bool = True
    old_rows: bool = False
    replay: bool = False
    impossible_dates: bool = False
    whole_keys: bool = False
    batch_rows: int = BATCH_ROWS

    def __post_init__(self) -> None:
        if self.batch_rows < 1:
            raise Invalid(f"batch_rows is {self.batch_rows}; a batch needs at least one row")
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(self.columns))


@dataclass(frozen=True, slots=True)
class SideColumns:
    """The columns of one side: `shown` are those that a reader gets, `read` those that are read for it."""

    shown: pa.Schema
    read: pa.Schema

    @classmethod
    def of(cls, side: pa.Schema, shown: list[str], needed: list[str]) -> "SideColumns":
        """Choose the columns of these names, and read the needed ones beside them."""
        read = dict.fromkeys([*shown, *needed])
        return cls(
            pa.schema([side.field(name) for name in shown]), pa.schema([side.field(name) for name in read])
        )


@dataclass(frozen=True, slots=True)
class ReadColumns:
    """The columns of both sides in one schema version."""

    data: SideColumns
    tombstone: SideColumns
    keys_move: bool  # a row may get another primary key and keep its handle
    keys_vary: bool  # a row may get another primary key, or another spelling of it, and keep its handle

    @classmethod
    def of(cls, table: TableInfo, options: ChangeOptions) -> "ReadColumns":
        """Choose the columns for some options; columns that the version does not have are left out."""
        data, tombstone = stored_side_schema(table, "data"), stored_side_schema(table, "tombstone")
        keys = tombstone.names[: tombstone.names.index(HANDLE)]
        user = scan_schema(table).names
        asked = [name.lower() for name in options.columns or ()]
        if options.columns is not None:
            found = {name.lower(): name for name in data.names[: data.names.index(HANDLE)]}
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
        """The columns of `_old`; None when `_old` is not read."""
        return list_old(self.tombstone.read)

    def of_side(self, side: Side) -> SideColumns:
        """Return the columns of one side."""
        return self.data if side == "data" else self.tombstone


def check_columns(tables: list[TableInfo], options: ChangeOptions) -> None:
    """Raise Invalid when the options name a column that none of a table's versions has."""
    known = {name.lower() for table in tables for name in stored_side_schema(table, "data").names}
    for name in options.columns or ():
        if name == OLD:
            raise Invalid(f"{OLD} is not a column of the table; ask for it with old_rows")
        if name.lower() not in known:
            has = ", ".join(column.name for column in tables[-1].stored_columns)
            raise Invalid(f"table {tables[-1].name} has no column {name!r}; it has {has}")
