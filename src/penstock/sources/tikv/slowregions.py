"""Which parts of a span hold it back, for the log. No I/O, no clock."""

from collections.abc import Iterator
from typing import NamedTuple

from penstock.clock import physical_ms
from penstock.errors import show_key
from penstock.sources.tikv.range_lock import RangeLock

__all__ = ["LAG_MAX_S", "SCAN_MAX_S", "SlowPart", "slow_parts"]

LAG_MAX_S = 60
SCAN_MAX_S = 600


class SlowPart(NamedTuple):
    """A part that is behind: its region (0: nobody follows it), by how much, and its first key."""

    region_id: int
    state: str
    lag_s: float
    start: str


def slow_parts(parts: RangeLock, now_ms: int) -> Iterator[SlowPart]:
    """Return the parts behind by more than a minute, ten while their history is read, and every hole."""
    for part in parts.locked_ranges():
        lag_s = (now_ms - physical_ms(part.resolved_ts)) / 1000
        if lag_s > (LAG_MAX_S if part.initialized else SCAN_MAX_S):
            state = "initialized" if part.initialized else "in its scan"
            yield SlowPart(part.region_id, state, lag_s, show_key(part.start))
    for start, _, ts in parts.holes():
        yield SlowPart(0, "not followed", (now_ms - physical_ms(ts)) / 1000, show_key(start))
