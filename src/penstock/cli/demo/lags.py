"""How long commits take to arrive: from their commit until a stage says that it has everything up to them.

Pure: time is the caller's. A commit counts for each of its tables on its own, since stages follow tables.
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
    """What one transaction wrote: rows by table. Only measured ones count as lags."""

    ts: int
    rows: Mapping[str, int]
    measured: bool = True


def percentile(ordered: Sequence[int], share: float) -> int | None:
    """The least of ordered values that so large a share of them does not exceed; None: there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


@dataclass(slots=True)
class Arrivals:
    """Commits on their way to one stage, and how long those took that arrived. For several threads.

    `tables`: those that the stage follows; None: all.
    """

    name: str
    tables: frozenset[str] | None = None
    rows: int = 0
    """That have arrived."""
    latest_ms: int | None = None
    """Of the commits that arrived last, the longest."""
    lags_ms: list[int] = field(default_factory=list)
    """Of all that arrived, the shortest first."""
    _waiting: dict[str, list[tuple[int, int, bool]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def expect(self, commit: DemoCommit) -> None:
        """A commit is on its way."""
        with self._lock:
            for table, rows in commit.rows.items():
                if self.tables is None or table in self.tables:
                    waiting = self._waiting.setdefault(table, [])
                    heapq.heappush(waiting, (commit.ts, rows, commit.measured))

    def reach(self, upto: Mapping[str, int], at_ms: int) -> None:
        """The stage has everything of these tables up to these timestamps, at a wall time."""
        with self._lock:
            arrived: list[int] = []
            for table, waiting in self._waiting.items():
                reached_ts = upto.get(table, 0)
                while waiting and waiting[0][0] <= reached_ts:
                    ts, rows, measured = heapq.heappop(waiting)
                    self.rows += rows
                    if measured:
                        arrived.append(max(0, at_ms - physical_ms(ts)))
            for each in arrived:
                insort(self.lags_ms, each)
            self.latest_ms = max(arrived, default=self.latest_ms)

    def oldest_ms(self, at_ms: int) -> int:
        """How long the oldest commit has been on its way; 0: none is."""
        with self._lock:
            first = min((waiting[0][0] for waiting in self._waiting.values() if waiting), default=None)
        return 0 if first is None else max(0, at_ms - physical_ms(first))

    def lag_ms(self, share: float) -> int | None:
        """The lag that so large a share of the commits did not exceed; None: none has arrived."""
        with self._lock:
            return percentile(self.lags_ms, share)
