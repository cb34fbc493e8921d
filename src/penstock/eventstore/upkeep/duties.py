"""Which table is looked after next, and how. A pure decision: no clock, no thread."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

_RETRY_FIRST_S = 1.0
_RETRY_MAX_S = 300.0


class UpkeepTask(StrEnum):
    """What a table needs from time to time."""

    MERGE = "merge"
    COLLECT = "collect"
    SWEEP = "sweep"


@dataclass(slots=True)
class TableUpkeep:
    """When a table was looked after, in seconds of the monotonic clock.

    `merged_seq` is a state of its manifest in which nothing was left to merge.
    """

    merged_at: float
    collected_at: float
    swept_at: float
    merged_seq: int = 0
    retry_at: dict[UpkeepTask, float] = field(default_factory=dict)
    failures: Counter[UpkeepTask] = field(default_factory=Counter)

    def failed(self, duty: UpkeepTask, now: float) -> float:
        """Leave a duty alone for a while, and not the others; return for how long."""
        pause = min(_RETRY_MAX_S, _RETRY_FIRST_S * 2.0 ** min(self.failures[duty], 20))
        self.failures[duty] += 1
        self.retry_at[duty] = now + pause
        return pause

    def succeeded(self, duty: UpkeepTask) -> None:
        """The next failure is the first one again."""
        del self.failures[duty]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepPolicy:
    """What has been due the longest comes first, so that every table has its turn."""

    merge: bool
    merge_interval_s: float
    collect_interval_s: float
    sweep_interval_s: float

    def begin(self, now: float) -> TableUpkeep:
        """Of a table that is new here: what a crash left of it is swept after the first collection."""
        return TableUpkeep(now, now, now - self.sweep_interval_s + self.collect_interval_s)

    def choose(
        self, tables: Mapping[int, tuple[TableUpkeep, int]], now: float
    ) -> tuple[int, UpkeepTask] | None:
        """The next duty, of tables with the number of their last manifest entry; None: nothing is due."""
        due = [
            (at, table_id, duty)
            for table_id, (care, seq) in tables.items()
            for at, duty in self._times(care, seq)
            if max(at, care.retry_at.get(duty, at)) <= now
        ]
        return min(due)[1:] if due else None

    def _times(self, care: TableUpkeep, seq: int) -> Iterator[tuple[float, UpkeepTask]]:
        if self.merge and seq != care.merged_seq:
            yield care.merged_at + self.merge_interval_s, UpkeepTask.MERGE
        yield care.collected_at + self.collect_interval_s, UpkeepTask.COLLECT
        yield care.swept_at + self.sweep_interval_s, UpkeepTask.SWEEP
