"""Who waits at a DDL, and who writes it when all do. Pure.

DDLs that are known and not done, in order, and the tables that are carried before and after each. Pure.

DDLs are done one after the other, also those of different tables: only so does one timestamp say which were
done, and a table that was created and dropped before a crash does not come to life again after it. What waits
is the DDL; a dispatcher reads on up to its own table's next one.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from penstock.changefeeds.filters import TableFilter
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent, DdlScope
from penstock.follow.slices import Position

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


K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """The DDLs of one commit_ts, as far as they concern carried tables. They are done together."""

    commit_ts: int
    events: tuple[DdlEvent, ...]
    arriving_ids: frozenset[int] = frozenset()  # physical tables that come into the filter

    @property
    def table_ids(self) -> frozenset[int]:
        """The physical tables that are blocked by their id."""
        sides = (change.before for event in self.events for change in event.tables)
        return frozenset(each for side in sides if side is not None for each in side.table.physical_ids)

    @property
    def later_ids(self) -> frozenset[int]:
        """The physical tables that are there after it."""
        sides = (change.after for event in self.events for change in event.tables)
        return frozenset(each for side in sides if side is not None for each in side.table.physical_ids)

    @property
    def databases(self) -> frozenset[str]:
        """The databases that are blocked whole, in lower case."""
        return frozenset(event.database.lower() for event in self.events if event.scope is DdlScope.DATABASE)

    def begin(self, table_id: int) -> Position:
        """Where the dispatcher of a table begins that is carried from this DDL on.

        A table that was there has changes of its own at `commit_ts`; the history of a new one starts there.
        """
        return Position(self.commit_ts - 1 if table_id in self.arriving_ids else self.commit_ts)


def blocks(events: Iterable[DdlEvent], carried: TableFilter) -> Iterator[BlockEvent]:
    """DDLs, which are in order, by commit_ts, without what is outside the filter."""
    for commit_ts, group in groupby(events, key=lambda event: event.commit_ts):
        together = tuple(group)
        parts = tuple(part for event in together if (part := carried.part_of(event)) is not None)
        if parts:
            yield BlockEvent(commit_ts, parts, frozenset().union(*map(carried.arriving_ids, together)))


class PendingDdls:
    """The blocks that are not done, and the first of them for each table and database."""

    def __init__(self) -> None:
        self._blocks: deque[BlockEvent] = deque()
        self._by_table: dict[int, deque[BlockEvent]] = {}
        self._by_database: dict[str, deque[BlockEvent]] = {}

    def add(self, block: BlockEvent) -> None:
        """Append a block that is later than all others."""
        assert not self._blocks or self._blocks[-1].commit_ts < block.commit_ts, "DDLs come out of order"
        self._blocks.append(block)
        for table_id in block.table_ids:
            self._by_table.setdefault(table_id, deque()).append(block)
        for database in block.databases:
            self._by_database.setdefault(database, deque()).append(block)

    @property
    def head(self) -> BlockEvent | None:
        """The one to do next."""
        return self._blocks[0] if self._blocks else None

    def pop(self) -> None:
        """The head is done."""
        block = self._blocks.popleft()
        for table_id in block.table_ids:
            _drop_first(self._by_table, table_id)
        for database in block.databases:
            _drop_first(self._by_database, database)

    def first_of(self, table_id: int, database: str) -> BlockEvent | None:
        """The first that blocks a physical table of a database."""
        of_table = self._by_table.get(table_id)
        of_database = self._by_database.get(database.lower())
        found = [each[0] for each in (of_table, of_database) if each]
        return min(found, key=lambda block: block.commit_ts, default=None)

    def later_ids(self) -> frozenset[int]:
        """The physical tables that will be there after one of them."""
        return frozenset().union(*(block.later_ids for block in self._blocks))


def _drop_first(queues: dict[K, deque[BlockEvent]], key: K) -> None:
    queues[key].popleft()
    if not queues[key]:
        del queues[key]


class ReplicatedTables:
    """The physical tables that are carried after the last DDL that was done, and what they are part of."""

    def __init__(self, tables: Iterable[SchemaVersion]) -> None:
        self._schemas = {each: schema for schema in tables for each in _carried_ids(schema)}

    def __contains__(self, table_id: int) -> bool:
        return table_id in self._schemas

    def ids(self) -> Collection[int]:
        """All of them."""
        return self._schemas.keys()

    def schema(self, table_id: int) -> SchemaVersion:
        """The table that a physical table is, or is a partition of."""
        return self._schemas[table_id]

    def blocked_by(self, block: BlockEvent) -> list[int]:
        """The physical tables whose dispatchers stop at a DDL, which is the next to be done."""
        whole = block.databases
        blocked = [each for each in block.table_ids if each in self._schemas]
        if whole:
            blocked += [
                each
                for each, schema in self._schemas.items()
                if schema.database.lower() in whole and each not in block.table_ids
            ]
        return blocked

    def after(self, block: BlockEvent) -> "ReplicatedTables":
        """Those that are carried when the DDL is done."""
        later = ReplicatedTables(())
        later._schemas = dict(self._schemas)
        for event in block.events:
            later._apply(event)
        return later

    def _apply(self, event: DdlEvent) -> None:
        for change in event.tables:
            for table_id in _carried_ids(change.before):
                self._schemas.pop(table_id, None)
        for change in event.tables:
            if change.after is not None:
                self._schemas.update(dict.fromkeys(_carried_ids(change.after), change.after))


def _carried_ids(schema: SchemaVersion | None) -> Sequence[int]:
    return schema.table.physical_ids if schema is not None and schema.table.is_base_table else ()
