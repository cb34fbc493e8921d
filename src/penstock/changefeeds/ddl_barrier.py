"""Pending DDLs in order: which dispatchers wait at each, who writes it, which tables are left after it. Pure.

DDLs are done one after the other, also those of different tables. Only so can one timestamp say which are
done, and a table that was created and dropped before a crash does not come back after it. The DDL waits, not
the dispatchers: each reads on up to the next DDL of its own table.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from penstock.changefeeds.filters import TableFilter
from penstock.changefeeds.model import LeftOutTable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent, DdlScope
from penstock.follow.slices import Position

TABLE_TRIGGER = "table-trigger"
"""The dispatcher of the DDLs themselves: it has no rows, and writes the DDLs of databases."""


@dataclass(frozen=True, slots=True)
class BarrierDecision:
    """Every dispatcher that a DDL involves has drained: `writer` writes the DDL, then the others pass."""

    ddl_ts: int
    writer: str
    passing: tuple[str, ...]

    @property
    def involved_count(self) -> int:
        """How many dispatchers waited for the DDL."""
        return len(self.passing) + (self.writer != TABLE_TRIGGER)


class DdlBarrier:
    """Holds dispatchers at the next DDL until every dispatcher that it involves has drained up to it.

    DDLs are opened one at a time, in order. A dispatcher may report before its DDL is opened. The barrier no
    longer waits for a dispatcher that vanishes.
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
        """Begin with the next DDL. `trigger_writes`: it is a database's, so the table trigger writes it."""
        assert self._open_ts is None, f"the DDL at {self._open_ts} is not done"
        self._open_ts = ddl_ts
        self._missing = set(involved) - self._reported.setdefault(ddl_ts, {}).keys()
        self._trigger_writes = trigger_writes

    def report(self, dispatcher_id: str, ddl_ts: int) -> None:
        """Record that a dispatcher has drained up to a DDL and waits."""
        self._reported.setdefault(ddl_ts, {})[dispatcher_id] = None
        if ddl_ts == self._open_ts:
            self._missing.discard(dispatcher_id)

    def vanish(self, dispatcher_id: str) -> None:
        """Forget a dispatcher that has ended."""
        self._missing.discard(dispatcher_id)
        for waiting in self._reported.values():
            waiting.pop(dispatcher_id, None)

    def decide(self) -> BarrierDecision | None:
        """Return who writes the open DDL; None while a dispatcher is missing. The last to report writes."""
        if self._open_ts is None or self._missing:
            return None
        waiting = list(self._reported[self._open_ts])
        if self._trigger_writes or not waiting:
            return BarrierDecision(self._open_ts, TABLE_TRIGGER, tuple(waiting))
        return BarrierDecision(self._open_ts, waiting[-1], tuple(waiting[:-1]))

    def finish(self) -> None:
        """Close the open DDL: it is written and stored."""
        assert self._open_ts is not None, "no DDL is open"
        del self._reported[self._open_ts]
        self._open_ts = None


K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """The DDLs of one commit_ts, as far as they concern replicated tables. They are done together."""

    commit_ts: int
    events: tuple[DdlEvent, ...]
    arriving_ids: frozenset[int] = frozenset()  # physical tables that are renamed into the filter

    @property
    def recovered_ids(self) -> frozenset[int]:
        """The physical tables that come back with rows which consumers have removed."""
        changes = (change for event in self.events if event.recovers for change in event.tables)
        return frozenset().union(*(change.begun_ids for change in changes))

    @property
    def table_ids(self) -> frozenset[int]:
        """The physical tables that the DDLs block by id."""
        schemas = (change.before for event in self.events for change in event.tables)
        return _union_ids(schemas)

    @property
    def later_ids(self) -> frozenset[int]:
        """The physical tables that exist after the DDLs."""
        schemas = (change.after for event in self.events for change in event.tables)
        return _union_ids(schemas)

    @property
    def databases(self) -> frozenset[str]:
        """The databases that the DDLs block as a whole, in lower case."""
        return frozenset(event.database.lower() for event in self.events if event.scope is DdlScope.DATABASE)

    def begin_position(self, table_id: int) -> Position:
        """Return where the dispatcher of a table begins that is replicated from this DDL on.

        An older table may have changes of its own at `commit_ts`; the history of a new one starts there. One
        that comes back begins with its rows of then.
        """
        if table_id in self.recovered_ids:
            return Position(self.commit_ts, b"")
        return Position(self.commit_ts - 1 if table_id in self.arriving_ids else self.commit_ts)


def _union_ids(schemas: Iterable[SchemaVersion | None]) -> frozenset[int]:
    return frozenset(table_id for schema in schemas for table_id in _physical_ids(schema))


def block_events(events: Iterable[DdlEvent], tables: TableFilter) -> Iterator[BlockEvent]:
    """Group DDLs, which are in order, by commit_ts; leave out what is outside the filter.

    A DDL that goes on after it was told changes no physical table, and is left out too.
    """
    told_once = (event for event in events if not event.further)
    for commit_ts, group in groupby(told_once, key=lambda event: event.commit_ts):
        together = tuple(group)
        parts = tuple(part for event in together if (part := tables.filter_ddl(event)) is not None)
        if parts:
            yield BlockEvent(commit_ts, parts, frozenset().union(*map(tables.arriving_ids, together)))


class PendingDdls:
    """The block events that are not done, and the first of them for each table and database."""

    def __init__(self) -> None:
        self._blocks: deque[BlockEvent] = deque()
        self._by_table: dict[int, deque[BlockEvent]] = {}
        self._by_database: dict[str, deque[BlockEvent]] = {}

    def add(self, block: BlockEvent) -> None:
        """Append a block event that is later than all others."""
        assert not self._blocks or self._blocks[-1].commit_ts < block.commit_ts, "DDLs come out of order"
        self._blocks.append(block)
        for table_id in block.table_ids:
            self._by_table.setdefault(table_id, deque()).append(block)
        for database in block.databases:
            self._by_database.setdefault(database, deque()).append(block)

    @property
    def head(self) -> BlockEvent | None:
        """The block event to do next."""
        return self._blocks[0] if self._blocks else None

    def pop(self) -> None:
        """Remove the head: it is done."""
        block = self._blocks.popleft()
        for table_id in block.table_ids:
            _drop_first(self._by_table, table_id)
        for database in block.databases:
            _drop_first(self._by_database, database)

    def first_of(self, table_id: int, database: str) -> BlockEvent | None:
        """Return the first block event that blocks a physical table of a database."""
        of_table = self._by_table.get(table_id)
        of_database = self._by_database.get(database.lower())
        found = [queue[0] for queue in (of_table, of_database) if queue]
        return min(found, key=lambda block: block.commit_ts, default=None)

    def later_ids(self) -> frozenset[int]:
        """Return the physical tables that exist after one of the pending DDLs."""
        return frozenset().union(*(block.later_ids for block in self._blocks))


def _drop_first(queues: dict[K, deque[BlockEvent]], key: K) -> None:
    queues[key].popleft()
    if not queues[key]:
        del queues[key]


class ReplicatedTables:
    """The physical tables that are replicated after the last finished DDL, each with its logical table."""

    def __init__(self, tables: Iterable[SchemaVersion]) -> None:
        self._schemas = {table_id: schema for schema in tables for table_id in _physical_ids(schema)}

    def __contains__(self, table_id: int) -> bool:
        return table_id in self._schemas

    def ids(self) -> Collection[int]:
        """Return the ids of all physical tables."""
        return self._schemas.keys()

    def schema(self, table_id: int) -> SchemaVersion:
        """Return the table that a physical table is, or is a partition of."""
        return self._schemas[table_id]

    def blocked_ids(self, block: BlockEvent) -> list[int]:
        """Return the physical tables whose dispatchers stop at the next block event."""
        databases = block.databases
        blocked = [table_id for table_id in block.table_ids if table_id in self._schemas]
        if databases:
            blocked += [
                table_id
                for table_id, schema in self._schemas.items()
                if schema.database.lower() in databases and table_id not in block.table_ids
            ]
        return blocked

    def after(self, block: BlockEvent) -> "ReplicatedTables":
        """Return the tables that are replicated once the block event is done."""
        later = ReplicatedTables(())
        later._schemas = dict(self._schemas)
        for event in block.events:
            later._apply(event)
        return later

    def _apply(self, event: DdlEvent) -> None:
        for change in event.tables:
            for table_id in _physical_ids(change.before):
                self._schemas.pop(table_id, None)
        for change in event.tables:
            if change.after is not None:
                self._schemas.update(dict.fromkeys(_physical_ids(change.after), change.after))


def _physical_ids(schema: SchemaVersion | None) -> Sequence[int]:
    """Return the ids that have rows: none for a view or a sequence."""
    return schema.table.physical_ids if schema is not None and schema.table.is_base_table else ()


def existing_left_out(
    left_out: Iterable[LeftOutTable], replicated: ReplicatedTables, existing: Iterable[SchemaVersion]
) -> list[LeftOutTable]:
    """Return the tables that are left out and still there.

    `existing` are the tables that patterns name, unreadable ones among them; `replicated` are those that the
    changefeed follows.
    """
    logical_ids = {schema.table.id for schema in existing}
    return [table for table in left_out if table.table_id in (replicated if table.sent else logical_ids)]
