"""Which region to subscribe first. No I/O, no clock."""

from enum import IntEnum

__all__ = ["FORCED_MAX", "Urgency", "priority"]

FORCED_MAX = 3600  # tasks up to this value pass the flow control


class Urgency(IntEnum):
    """Seconds that a task stands back behind others."""

    HIGH = 0  # the region was being followed, and its span waits for it
    LOW = 86_400  # a new region, or one whose store asked for patience


def priority(urgency: Urgency, *, waited_s: float, lag_s: float) -> float:
    """Return a number that is smaller for what should go first: long waiting, and little to catch up."""
    return max(0.0, urgency - waited_s + lag_s)
