"""Measures lags: from a commit until a stage has every change up to it.

Pure: the caller gives the time. A commit counts once for each of its tables, because stages follow tables.
"""

import heapq
import threading
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.clock import physical_ms

__all__ = ["Arrivals", "DemoCommit", "percentile"]


@dataclass(frozen=True, slots=True)
class DemoCommit:
    """The rows of one transaction by table. Only a measured one counts in the lags."""

    ts: int
    rows: Mapping[str, int]
    measured: bool = True


def percentile(ordered: Sequence[int], share: float) -> int | None:
    """Return the lowest value that `share` of the ordered values do not exceed; None when there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


@dataclass(slots=True)
class Arrivals:
    """The commits on their way to one stage, and the lags of those that have arrived. Thread-safe.

    `tables` are those that the stage follows; None means all.
    """

    name: str
    tables: frozenset[str] | None = None
    rows: int = 0
    """Rows that have arrived."""
    latest_ms: int | None = None
    """The longest lag among the commits that arrived last."""
    lags_ms: list[int] = field(default_factory=list)
    """The lags of all commits that have arrived, the shortest first."""
    _waiting: dict[str, list[tuple[int, int, bool]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def expect(self, commit: DemoCommit) -> None:
        """Add a commit that is on its way."""
        with self._lock:
            for table, rows in commit.rows.items():
                if self.tables is None or table in self.tables:
                    waiting = self._waiting.setdefault(table, [])
                    heapq.heappush(waiting, (commit.ts, rows, commit.measured))

    def reach(self, upto: Mapping[str, int], at_ms: int) -> None:
        """Record that at a wall time the stage has every change of tables up to these timestamps."""
        with self._lock:
            arrived: list[int] = []
            for table, waiting in self._waiting.items():
                reached_ts = upto.get(table, 0)
                while waiting and waiting[0][0] <= reached_ts:
                    ts, rows, measured = heapq.heappop(waiting)
                    self.rows += rows
                    if measured:
                        arrived.append(max(0, at_ms - physical_ms(ts)))
            for lag_ms in arrived:
                insort(self.lags_ms, lag_ms)
            self.latest_ms = max(arrived, default=self.latest_ms)

    def oldest_ms(self, at_ms: int) -> int:
        """Return how long the oldest commit has been on its way; 0 when there is none."""
        with self._lock:
            first = min((waiting[0][0] for waiting in self._waiting.values() if waiting), default=None)
        return 0 if first is None else max(0, at_ms - physical_ms(first))

    def lag_ms(self, share: float) -> int | None:
        """Return the lag that `share` of the commits did not exceed; None when none has arrived."""
        with self._lock:
            return percentile(self.lags_ms, share)
