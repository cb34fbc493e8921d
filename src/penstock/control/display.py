"""Moments as people read them."""

from datetime import UTC, datetime

from penstock.clock import physical_ms

__all__ = ["shown_ms", "shown_ts"]


def shown_ms(at: int) -> str:
    """A moment, given in milliseconds since the epoch."""
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")


def shown_ts(ts: int) -> str | None:
    """When a timestamp was; None for none."""
    return shown_ms(physical_ms(ts)) if ts else None
