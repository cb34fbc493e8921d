"""Which row groups of an object cannot have a row that a reader wants, by statistics in its footer. No I/O.

A reader names ranges of values of some columns; it gets every row within them, and maybe others. A row group
is left out only where the footer proves that no row of it is within a range. Statistics say nothing of NaN,
so a range of floating-point numbers has no bounds.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.eventstore.paths import Side
from penstock.eventstore.sides import OLD, RESERVED
from penstock.tables.arrow import arrow_name, arrow_type
from penstock.tables.columns import ColumnInfo
from penstock.tables.schema import TableInfo

__all__ = ["ColumnRange", "WantedRows", "groups_with"]


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """Values of a column from `low` to `high`, both included (None: no bound); null is not among them.

    With `points`, which are in order, only these values. Dates and times are numbers, as Parquet keeps them.
    """

    type: pa.DataType
    low: Any = None
    high: Any = None
    points: tuple[Any, ...] | None = None

    def meets(self, low: Any, high: Any) -> bool:
        """Return whether a value from `low` to `high` may be in the range."""
        if self.points is not None:
            at = bisect_left(self.points, low)
            return at < len(self.points) and bool(self.points[at] <= high)
        return (self.low is None or bool(high >= self.low)) and (self.high is None or bool(low <= self.high))

    def both(self, other: "ColumnRange") -> "ColumnRange":
        """Return the values that are in this range and in another one of the same column."""
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        low, high = max(lows, default=None), min(highs, default=None)
        points = self.points if other.points is None else other.points
        if self.points is not None and other.points is not None:
            points = tuple(point for point in self.points if point in set(other.points))
        if points is not None:
            points = tuple(
                point for point in points if (low is None or point >= low) and (high is None or point <= high)
            )
        return replace(self, low=low, high=high, points=points)

    @property
    def is_empty(self) -> bool:
        """Whether no value is in the range."""
        crossed = self.low is not None and self.high is not None and self.low > self.high
        return crossed or (self.points is not None and not self.points)

    @property
    def ends(self) -> tuple[Any, Any]:
        """The lowest and the highest value, None where there is no bound. The range must not be empty."""
        return (self.low, self.high) if self.points is None else (self.points[0], self.points[-1])


@dataclass(frozen=True, slots=True)
class WantedRows:
    """Rows whose values are within every one of some ranges. `ranges` has columns of `table` by Arrow name,
    and system columns.
    """

    table: TableInfo
    ranges: Mapping[str, ColumnRange]

    def in_version(self, version: TableInfo, side: Side) -> dict[str, ColumnRange]:
        """Return the ranges by the path that a column has in objects of another version of the table.

        Columns that this version does not have, or keeps in another form, are left out. So is the key in
        tombstones, because the rest of the row that ended may be unknown and its key be elsewhere.
        """
        before = {column.id: column for column in version.kept_columns}
        after = {arrow_name(column): column for column in self.table.kept_columns}
        keys = {column.id for column in version.primary_key}
        found: dict[str, ColumnRange] = {}
        for name, wanted in self.ranges.items():
            if name in RESERVED:
                found[name] = wanted
                continue
            column = before.get(after[name].id)
            if column is None or not _same_form(column, after[name]):
                continue
            if side == "data":
                found[arrow_name(column)] = wanted
            elif column.id not in keys:
                found[f"{OLD}.{arrow_name(column)}"] = wanted
        return found


def _same_form(one: ColumnInfo, other: ColumnInfo) -> bool:
    return one.type.scale == other.type.scale and arrow_type(one.type) == arrow_type(other.type)


def groups_with(footer: pq.FileMetaData, ranges: Mapping[str, ColumnRange]) -> set[int]:
    """Return the row groups that may have rows whose columns, by path, are within every range."""
    possible = set(range(footer.num_row_groups))
    if not ranges:
        return possible
    paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
    types = dict(_leaf_types(footer.schema.to_arrow_schema()))
    for path, wanted in ranges.items():
        if paths.count(path) != 1 or types.get(path) != wanted.type:
            continue
        at = paths.index(path)
        kind = footer.schema.column(at).physical_type
        possible = {
            group for group in possible if _may_have(footer.row_group(group).column(at), kind, wanted)
        }
    return possible


def _leaf_types(schema: pa.Schema) -> Iterable[tuple[str, pa.DataType]]:
    for field in schema:
        if pa.types.is_struct(field.type):
            for child in field.type:
                yield f"{field.name}.{child.name}", child.type
        else:
            yield field.name, field.type


def _may_have(chunk: pq.ColumnChunkMetaData, kind: str, wanted: ColumnRange) -> bool:
    if chunk.physical_type != kind:  # asked for statistics, pyarrow would abort
        return True
    found = chunk.statistics
    if found is None:
        return True
    if found.has_null_count and found.null_count == chunk.num_values:
        return False
    if not found.has_min_max:  # Parquet keeps no bounds of very long values
        return True
    if pa.types.is_temporal(wanted.type):  # as numbers: dates that no calendar has are beyond Python's
        return wanted.meets(found.min_raw, found.max_raw)
    return wanted.meets(found.min, found.max)
