"""Which segments of the log may go. A pure decision: no files."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Retention:
    """What each segment is still needed for.

    A segment is free when it is sealed and every table in it has been flushed up to its newest change
    there. Segments free in any order.
    """

    _newest: dict[int, dict[int, int]] = field(default_factory=dict)  # segment -> table -> newest commit-ts
    _active: int = 0

    def begin(self, segment: int) -> list[int]:
        """Start a segment, sealing the one before; return the segments that are free now."""
        self._newest[segment] = {}
        self._active = segment
        return self._collect()

    def add(self, segment: int, table_id: int, max_ts: int) -> None:
        """A segment has changes of a table up to `max_ts`."""
        tables = self._newest.setdefault(segment, {})
        tables[table_id] = max(max_ts, tables.get(table_id, 0))

    def flushed(self, table_id: int, flushed_ts: int) -> list[int]:
        """A table's changes up to `flushed_ts` are in objects; return the segments that are free now."""
        for tables in self._newest.values():
            if table_id in tables and tables[table_id] <= flushed_ts:
                del tables[table_id]
        return self._collect()

    def forget(self, table_id: int) -> list[int]:
        """Nothing of a table is needed any more; return the segments that are free now."""
        for tables in self._newest.values():
            tables.pop(table_id, None)
        return self._collect()

    def _collect(self) -> list[int]:
        free = [number for number, tables in self._newest.items() if not tables and number != self._active]
        for number in free:
            del self._newest[number]
        return sorted(free)
