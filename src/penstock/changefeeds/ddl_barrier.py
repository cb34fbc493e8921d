"""Who waits at a DDL, and who writes it when all do. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

TABLE_TRIGGER = "table-trigger"
"""The dispatcher of the DDLs themselves: it has no rows, and writes what is no single table's."""


@dataclass(frozen=True, slots=True)
class BarrierDecision:
    """All that are involved have drained: `writer` writes the DDL, then the others pass."""

    ddl_ts: int
    writer: str
    passing: tuple[str, ...]

    @property
    def involved_count(self) -> int:
        """How many dispatchers waited."""
        return len(self.passing) + (self.writer != TABLE_TRIGGER)


class DdlBarrier:
    """Holds dispatchers at the next DDL until every one that it involves has drained up to it.

    DDLs are opened one at a time, in order. A dispatcher may report before its DDL is opened. One that
    vanishes is waited for no longer.
    """

    def __init__(self) -> None:
        self._reported: dict[int, dict[str, None]] = {}  # by DDL, in the order of the reports
        self._open_ts: int | None = None
        self._missing: set[str] = set()
        self._trigger_writes = False

    @property
    def open_ts(self) -> int | None:
        """The DDL that is being decided or written."""
        return self._open_ts

    def open(self, ddl_ts: int, involved: Iterable[str], *, trigger_writes: bool = False) -> None:
        """Begin with the next DDL. `trigger_writes`: it is no single table's."""
        assert self._open_ts is None, f"the DDL at {self._open_ts} is not done"
        self._open_ts = ddl_ts
        self._missing = set(involved) - self._reported.setdefault(ddl_ts, {}).keys()
        self._trigger_writes = trigger_writes

    def report(self, dispatcher_id: str, ddl_ts: int) -> None:
        """A dispatcher has drained up to a DDL and waits."""
        self._reported.setdefault(ddl_ts, {})[dispatcher_id] = None
        if ddl_ts == self._open_ts:
            self._missing.discard(dispatcher_id)

    def vanish(self, dispatcher_id: str) -> None:
        """A dispatcher is no more, wherever it was."""
        self._missing.discard(dispatcher_id)
        for waiting in self._reported.values():
            waiting.pop(dispatcher_id, None)

    def verdict(self) -> BarrierDecision | None:
        """Who writes the DDL that is open; None while somebody is missing."""
        if self._open_ts is None or self._missing:
            return None
        waiting = list(self._reported[self._open_ts])
        if self._trigger_writes or not waiting:
            return BarrierDecision(self._open_ts, TABLE_TRIGGER, tuple(waiting))
        return BarrierDecision(self._open_ts, waiting[-1], tuple(waiting[:-1]))

    def done(self) -> None:
        """The open DDL is written and kept."""
        assert self._open_ts is not None, "no DDL is open"
        del self._reported[self._open_ts]
        self._open_ts = None
