"""Times as texts, and cells of rows as JSON values. Pure."""

import math
from datetime import UTC, date, datetime, timedelta
from typing import Any

from penstock.clock import physical_ms

__all__ = ["format_ms", "format_ts", "json_value"]


def format_ms(at_ms: int) -> str:
    """Return milliseconds since the epoch as an ISO 8601 time in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def format_ts(ts: int) -> str | None:
    """Return the wall time of a database timestamp as ISO 8601; None for 0."""
    return format_ms(physical_ms(ts)) if ts else None


def json_value(cell: Any) -> Any:
    """Return a cell as a JSON value: bytes in hex, times in ISO 8601, durations in seconds, decimals as text.

    Floats that JSON cannot express become the texts NaN, Infinity and -Infinity.
    """
    match cell:
        case float():
            return cell if math.isfinite(cell) else _non_finite_name(cell)
        case None | bool() | int() | str():
            return cell
        case bytes():
            return cell.hex()
        case datetime() | date():
            return cell.isoformat()
        case timedelta():
            return cell.total_seconds()
        case list():
            return [json_value(item) for item in cell]
        case dict():
            return {str(name): json_value(item) for name, item in cell.items()}
        case _:
            return str(cell)


def _non_finite_name(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"
