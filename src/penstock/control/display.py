"""Moments as people read them.

Cells of rows as JSON has them. Pure.
"""

import math
from datetime import UTC, date, datetime, timedelta
from typing import Any

from penstock.clock import physical_ms

__all__ = ["plain", "shown_ms", "shown_ts"]


def shown_ms(at: int) -> str:
    """A moment, given in milliseconds since the epoch."""
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")


def shown_ts(ts: int) -> str | None:
    """When a timestamp was; None for none."""
    return shown_ms(physical_ms(ts)) if ts else None


def plain(cell: Any) -> Any:
    """A cell as JSON has it: bytes in hex, times in ISO 8601, durations in seconds, decimals as texts.

    Numbers that JSON does not have are the texts NaN, Infinity and -Infinity.
    """
    match cell:
        case float():
            return cell if math.isfinite(cell) else _unbounded(cell)
        case None | bool() | int() | str():
            return cell
        case bytes():
            return cell.hex()
        case datetime() | date():
            return cell.isoformat()
        case timedelta():
            return cell.total_seconds()
        case list():
            return [plain(each) for each in cell]
        case dict():
            return {str(name): plain(each) for name, each in cell.items()}
        case _:
            return str(cell)


def _unbounded(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"
