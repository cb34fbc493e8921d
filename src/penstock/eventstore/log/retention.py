"""Which segments of the log may go, and what goes with them. A pure decision: no files."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Retention:
    """What each segment is still needed for.

    A segment is free when it is sealed and every table in it has been flushed up to its newest change
    there. Segments free in any order. `cut` says, of every table with changes in a segment that came
    free, the newest of them: up to there the log may lack changes, however far they are flushed.
    """

    cut: dict[int, int] = field(default_factory=dict)  # table -> commit-ts
    _newest: dict[int, dict[int, int]] = field(default_factory=dict)  # segment -> table -> newest commit-ts
    _needed: dict[int, set[int]] = field(default_factory=dict)  # segment -> tables not flushed up to there
    _active: int = 0

    def begin(self, segment: int) -> list[int]:
        """Start a segment, sealing the one before; return the segments that are free now."""
        self._newest[segment], self._needed[segment] = {}, set()
        self._active = segment
        return self._collect()

    def add(self, segment: int, table_id: int, max_ts: int) -> None:
        """A segment has changes of a table up to `max_ts`."""
        tables = self._newest[segment]
        tables[table_id] = max(max_ts, tables.get(table_id, 0))
        self._needed[segment].add(table_id)

    def flushed(self, table_id: int, flushed_ts: int) -> list[int]:
        """A table's changes up to `flushed_ts` are in objects; return the segments that are free now."""
        for segment, needed in self._needed.items():
            if table_id in needed and self._newest[segment][table_id] <= flushed_ts:
                needed.discard(table_id)
        return self._collect()

    def forget(self, table_id: int) -> list[int]:
        """Nothing of a table counts any more; return the segments that are free now."""
        self.cut.pop(table_id, None)
        for segment, needed in self._needed.items():
            needed.discard(table_id)
            self._newest[segment].pop(table_id, None)
        return self._collect()

    def _collect(self) -> list[int]:
        free = [number for number, needed in self._needed.items() if not needed and number != self._active]
        for number in free:
            del self._needed[number]
            for table_id, newest_ts in self._newest.pop(number).items():
                self.cut[table_id] = max(newest_ts, self.cut.get(table_id, 0))
        return sorted(free)
