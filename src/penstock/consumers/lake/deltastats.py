"""What a Delta log says of a file, out of its footer: readers skip files by it. Pure."""

import json
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq

__all__ = ["stats_of"]

_COLUMNS = 32
"""As many columns as Delta keeps bounds of, unless it is told otherwise."""
_TEXT_CHARS = 64
"""A bound that is longer is left out: cutting it off would need care with the upper one."""


def stats_of(footer: pq.FileMetaData) -> str:
    """The number of rows; of columns that have them, the bounds and the number of NULLs."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for place in range(min(footer.num_columns, _COLUMNS)):
        column = footer.schema.column(place)
        groups = [footer.row_group(each).column(place).statistics for each in range(footer.num_row_groups)]
        inside = column.path != column.name  # of a list
        if inside or any(each is None for each in groups):
            continue
        nulls[column.name] = sum(each.null_count for each in groups)
        bounds = _bounds(groups)
        if bounds is not None:
            least[column.name], most[column.name] = bounds
    found = {"numRecords": footer.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    return json.dumps(found, ensure_ascii=False)


def _bounds(groups: Sequence[Any]) -> tuple[Any, Any] | None:
    """The bounds over row groups, unless one that has values does not say."""
    known = [each for each in groups if each.has_min_max]
    if not known or any(each.num_values for each in groups if not each.has_min_max):
        return None
    lowest, highest = _value(min(each.min for each in known)), _value(max(each.max for each in known))
    return None if lowest is None or highest is None else (lowest, highest)


def _value(value: Any) -> Any:
    """A bound as JSON has it; None for one that it cannot have."""
    match value:
        case str():
            return value if len(value) <= _TEXT_CHARS else None
        case datetime():
            return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Decimal():
            return int(value) if value.as_tuple().exponent == 0 else None
        case int() | float():
            return value
    return None
