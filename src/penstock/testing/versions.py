"""A table as a dict of versions, a target that applies changes to it, and random rows of any table.

Tests compare what readers return with these.
"""

import random  # noqa: TID251 - only the type; the caller decides the numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.changes import ChangeBatch, Hint
from penstock.eventstore.sides import COMMIT_TS, HANDLE
from penstock.tables.arrow import arrow_type
from penstock.tables.columns import ColumnInfo, Tp
from penstock.tables.schema import TableInfo

__all__ = ["Key", "Row", "Snapshot", "Step", "Versions", "in_schema", "random_row"]


Key = tuple[Any, ...]
"""The values of the primary key; in a table without one, the handle."""
Row = dict[str, Any]
Snapshot = dict[Key, Row]


class Step(NamedTuple):
    """One side of a change, in the order in which it takes effect."""

    ts: int
    order: int  # 0: a row ends, 1: a row begins
    key: Key
    row: Row | None


class _RowVersion(NamedTuple):
    ts: int
    row: Row | None
    silent: bool = False  # a DDL brought or removed the row, without a change of it


class Versions:
    """All versions of each row of a table, with their timestamps. Nothing is ever forgotten."""

    def __init__(self, table: TableInfo) -> None:
        self._tables = [(0, table)]
        self._rows: dict[Key, list[_RowVersion]] = {}

    @property
    def table(self) -> TableInfo:
        """The newest schema."""
        return self._tables[-1][1]

    def alter(self, ts: int, table: TableInfo) -> None:
        """Give the table another schema from `ts` on."""
        self._tables.append((ts, table))

    def table_at(self, ts: int) -> TableInfo:
        """Return the schema in force at a timestamp."""
        return next(table for since, table in reversed(self._tables) if since <= ts)

    def write(self, ts: int, key: Key, row: Row | None, *, silent: bool = False) -> None:
        """Write a row, or None for its end. Timestamps of a key must rise. `silent`: without a change."""
        self._rows.setdefault(key, []).append(_RowVersion(ts, row, silent))

    def last(self, key: Key) -> Row | None:
        """Return the newest row of a key."""
        versions = self._rows.get(key)
        return versions[-1].row if versions else None

    def live(self) -> list[Key]:
        """Return the keys that have a row now, the oldest first."""
        return [key for key, versions in self._rows.items() if versions[-1].row is not None]

    def at(self, ts: int) -> Snapshot:
        """Return the rows at a timestamp, in the schema of that time."""
        table = self.table_at(ts)
        rows = {key: _row_at(versions, ts) for key, versions in self._rows.items()}
        return {key: in_schema(row, table) for key, row in rows.items() if row is not None}

    def steps(self, from_ts: int, to_ts: int) -> list[Step]:
        """Return every change in (from_ts, to_ts] without silent versions.

        They are ordered by time, at the same time ends before beginnings, then by key.
        """
        steps: list[Step] = []
        for key, versions in self._rows.items():
            before = None
            for version in versions:
                if from_ts < version.ts <= to_ts and not version.silent:
                    steps += [Step(version.ts, 0, key, None)] if before is not None else []
                    if version.row is not None:
                        row = in_schema(version.row, self.table_at(version.ts))
                        steps.append(Step(version.ts, 1, key, row))
                before = version.row
        return sorted(steps, key=lambda step: (*step[:2], [(cell is not None, cell) for cell in step.key]))


def _row_at(versions: Iterable[_RowVersion], ts: int) -> Row | None:
    row = None
    for version in versions:
        if version.ts > ts:
            break
        row = version.row
    return row


def key_names(table: TableInfo) -> list[str]:
    """Return the columns that identify a row for readers."""
    return [column.name for column in table.primary_key] or [HANDLE]


def key_of(table: TableInfo, row: Mapping[str, Any]) -> Key:
    """Return the key of a row that was read."""
    return tuple(row[name] for name in key_names(table))


def in_schema(row: Mapping[str, Any], table: TableInfo) -> Row:
    """Return a row with the columns of a schema; missing ones have the default they were added with."""
    return {column.name: row.get(column.name, column.origin_default) for column in table.stored_columns}


class NotApplicable(AssertionError):
    """A change does not fit the rows before it."""


@dataclass
class CopiedTable:
    """A copy of a table that applies changes like a sink: at each TAIL_DONE first ends, then beginnings.

    `in_order` applies by time instead, as changes need that are not coalesced; coalesced changes
    (`coalesced`) must allow both. `upserts` lets a row replace another. `again` allows what happens when some
    of the changes were applied before. It fails when changes do not fit the rows, are out of order, or are at
    or before a timestamp that a TAIL_DONE has closed.
    """

    rows: Snapshot
    at_ts: int
    in_order: bool = False
    coalesced: bool = True
    upserts: bool = False
    again: bool = False
    seen: list[Step] = field(default_factory=list)
    _open: list[Step] = field(default_factory=list)

    def take(self, batch: ChangeBatch) -> None:
        """Take one batch of a handle; add its changes to `seen`."""
        if batch.hint is Hint.SNAPSHOT:
            _expect(not batch.tombstones.num_rows, "a snapshot has no tombstones")
            self.rows.update({step.key: step.row for step in _steps(batch) if step.row is not None})
            return
        steps = _steps(batch)
        for side in (0, 1):
            times = [step.ts for step in steps if step.order == side]
            _expect(times == sorted(times), "a side is out of order")
        _expect(all(step.ts > self.at_ts for step in steps), "a change is not above what is complete")
        self._open += steps
        if batch.hint is Hint.TAIL_DONE:
            self._close(batch.complete_ts)

    def take_all(self, batches: Iterable[ChangeBatch]) -> None:
        """Take all batches of a handle; fail unless the last one closes the range."""
        for batch in batches:
            self.take(batch)
        _expect(not self._open, "the last batch is no TAIL_DONE")

    def _close(self, complete_ts: int) -> None:
        steps, self._open = self._open, []
        _expect(complete_ts >= self.at_ts, "complete_ts goes back")
        _expect(all(step.ts <= complete_ts for step in steps), "a change is above complete_ts")
        self.at_ts = complete_ts
        self.seen += steps
        sides = {step[1:3] for step in steps}
        _expect(not self.coalesced or len(sides) == len(steps), "a key is coalesced to more than one change")
        for step in sorted(steps, key=lambda step: step[:2] if self.in_order else step[1:2]):
            self._apply(step)

    def _apply(self, step: Step) -> None:
        there = step.key in self.rows
        if step.row is None:
            _expect(there or self.again, "a row ends that is not there")
            self.rows.pop(step.key, None)
        else:
            _expect(not there or self.upserts or self.again, "a row begins where one is")
            self.rows[step.key] = step.row


def _steps(batch: ChangeBatch) -> list[Step]:
    table = batch.schema.table
    ends = [Step(row[COMMIT_TS], 0, key_of(table, row), None) for row in batch.tombstones.to_pylist()]
    begins = [Step(row[COMMIT_TS], 1, key_of(table, row), visible(row)) for row in batch.data.to_pylist()]
    return ends + begins


def visible(row: Mapping[str, Any]) -> Row:
    """Return a row that was read, without the columns that Penstock adds."""
    return {name: value for name, value in row.items() if not name.startswith("_")}


def _expect(condition: bool, broken: str) -> None:  # noqa: FBT001 - what must hold, as in an assertion
    if not condition:
        raise NotApplicable(broken)


_WORDS = ("river", "dam", "turbine", "valve", "gate", "water", "penstock", "ünïcode", "", "a 'quoted' one")
_DAY = datetime(2026, 1, 1)
_VECTOR_LENGTH = 4


def random_row(table: TableInfo, number: int, mix: random.Random) -> Row:
    """Return a row whose key depends on `number`; the other cells are random, sometimes null."""
    keys = {column.name for column in table.primary_key}
    row: Row = {}
    for column in table.stored_columns:
        is_key = column.name in keys
        may_be_null = not is_key and not column.type.not_null
        cell = _key_cell(column, number) if is_key else _cell(column, mix)
        row[column.name] = None if may_be_null and mix.random() < 0.1 else cell
    return row


def _key_cell(column: ColumnInfo, number: int) -> Any:
    kind = arrow_type(column.type)
    if pa.types.is_integer(kind):
        return number
    if pa.types.is_string(kind) and column.type.is_string:
        return f"k{number}"
    if pa.types.is_binary(kind):
        return number.to_bytes(2)
    if pa.types.is_decimal(kind):
        return Decimal(number).scaleb(-kind.scale)
    if pa.types.is_timestamp(kind):
        at = _DAY + timedelta(days=number)
        return at if kind.tz is None else at.replace(tzinfo=UTC)
    raise AssertionError(f"no {kind} as a key")


def _cell(column: ColumnInfo, mix: random.Random) -> Any:
    kind = arrow_type(column.type)
    if column.type.tp is Tp.JSON:
        return f'{{"n": {mix.randrange(100)}}}'
    if column.type.elems:
        return mix.choice(column.type.elems)
    if pa.types.is_string(kind):
        text = " ".join(mix.choices(_WORDS, k=mix.randrange(1, 4)))
        wide = column.type.tp is Tp.NEW_DECIMAL
        return (
            f"{mix.randrange(1000)}.{'0' * column.type.scale}"
            if wide
            else text[: column.type.flen if column.type.flen > 0 else None]
        )
    if pa.types.is_binary(kind):
        return mix.randbytes(min(column.type.flen, 6) if column.type.flen > 0 else 6)
    return _number(kind, column, mix)


def _number(kind: pa.DataType, column: ColumnInfo, mix: random.Random) -> Any:
    if pa.types.is_integer(kind):
        return 2000 + mix.randrange(100) if column.type.tp is Tp.YEAR else mix.randrange(100)
    if pa.types.is_decimal(kind):
        return Decimal(mix.randrange(1000)).scaleb(-kind.scale)
    if pa.types.is_floating(kind):
        return mix.randrange(1000) / 8
    if pa.types.is_date(kind):
        return date(2026, 1, 1 + mix.randrange(28))
    if pa.types.is_timestamp(kind):
        at = _DAY + timedelta(seconds=mix.randrange(10**6))
        return at if kind.tz is None else at.replace(tzinfo=UTC)
    if pa.types.is_duration(kind):
        return timedelta(seconds=mix.randrange(-3600, 3600))
    if pa.types.is_list(kind):
        return [mix.randrange(64) / 64 for _ in range(max(column.type.flen, 0) or _VECTOR_LENGTH)]
    raise AssertionError(f"no random {kind}")
