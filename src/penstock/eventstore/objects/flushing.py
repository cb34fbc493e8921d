"""When which table is flushed. A pure decision: no clock, no thread."""

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.eventstore.log.table_log import TableBacklog

_PRESSURE = 0.75  # of a bound: from here on tables are flushed before they are due
_RELIEF = 0.5  # of a bound: down to here


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPolicy:
    """Flush by size, by age, and under pressure of memory or disk: largest, or oldest, first.

    A table without resolved rows is left alone until the manifest has fallen far behind.
    """

    flush_bytes: int
    flush_interval_s: float
    idle_flush_interval_s: float
    memory_bytes: int
    wal_bytes: int

    def choose(self, tables: Iterable[TableBacklog], *, now: float, wal_bytes: int) -> list[int]:
        """The tables to flush now, most urgent first."""
        loads = list(tables)
        ready = [load for load in loads if load.flushable]
        chosen: dict[int, None] = {}
        chosen |= dict.fromkeys(self._for_disk(ready, wal_bytes))
        chosen |= dict.fromkeys(self._for_memory(ready, sum(load.memory_bytes for load in loads)))
        chosen |= dict.fromkeys(load.table_id for load in ready if self._due(load, now))
        chosen |= dict.fromkeys(
            load.table_id
            for load in loads
            if not load.flushable and load.behind_s >= self.idle_flush_interval_s
        )
        return list(chosen)

    def must_wait(self, tables: Iterable[TableBacklog], *, wal_bytes: int) -> bool:
        """Whether new rows wait for flushes: the disk is full, and flushing can free some of it.

        Where nothing can be flushed, waiting would hold back the very resolved-ts that is waited for.
        """
        return wal_bytes > self.wal_bytes and any(load.flushable for load in tables)

    def _due(self, load: TableBacklog, now: float) -> bool:
        return load.held_bytes >= self.flush_bytes or now - load.oldest_at >= self.flush_interval_s

    def _for_memory(self, ready: list[TableBacklog], used: int) -> list[int]:
        if used < self.memory_bytes * _PRESSURE:
            return []
        largest = sorted(ready, key=lambda load: -load.memory_bytes)
        return _until(largest, [load.memory_bytes for load in largest], used - self.memory_bytes * _RELIEF)

    def _for_disk(self, ready: list[TableBacklog], used: int) -> list[int]:
        if used < self.wal_bytes * _PRESSURE:
            return []
        oldest = sorted(ready, key=lambda load: load.oldest_at)
        return _until(oldest, [load.held_bytes for load in oldest], used - self.wal_bytes * _RELIEF)


def _until(loads: list[TableBacklog], sizes: list[int], wanted: float) -> list[int]:
    """As many tables from the front as free what is wanted."""
    chosen: list[int] = []
    for load, size in zip(loads, sizes, strict=True):
        if wanted <= 0:
            break
        chosen.append(load.table_id)
        wanted -= size
    return chosen
