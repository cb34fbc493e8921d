"""Pending DDLs: which wait for which, which dispatchers wait at each, which tables are left after it. Pure.

A DDL waits for the earlier ones that it overlaps with, and for the dispatchers that it blocks; DDLs of
different tables do not wait for each other. Dispatchers do not wait for DDLs of other tables either: each
reads on up to the next DDL of its own table.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import TypeVar

from penstock.changefeeds.filters import TableFilter
from penstock.changefeeds.model import DoneDdls, LeftOutTable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent, DdlScope
from penstock.follow.slices import Position
from penstock.tables.columns import name_from_json

AHEAD_MAX = 256
"""How far DDLs may be ahead of the first that is not done: so many are stored one by one at most."""

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
    """Holds dispatchers at a DDL until every dispatcher that it involves has drained up to it.

    Any number of DDLs may be open that involve different dispatchers. A dispatcher may report before its DDL
    is opened. The barrier no longer waits for a dispatcher that vanishes.
    """

    def __init__(self) -> None:
        self._reported: dict[int, dict[str, None]] = {}  # by DDL, in the order of the reports
        self._open: dict[int, _OpenDdl] = {}

    def is_open(self, ddl_ts: int) -> bool:
        """Return whether a DDL is being decided or written."""
        return ddl_ts in self._open

    def open(self, ddl_ts: int, involved: Iterable[str], *, trigger_writes: bool = False) -> None:
        """Begin with a DDL. `trigger_writes`: it is a database's, so the table trigger writes it."""
        assert ddl_ts not in self._open, f"the DDL at {ddl_ts} is open already"
        missing = set(involved) - self._reported.setdefault(ddl_ts, {}).keys()
        self._open[ddl_ts] = _OpenDdl(missing, trigger_writes)

    def report(self, dispatcher_id: str, ddl_ts: int) -> None:
        """Record that a dispatcher has drained up to a DDL and waits."""
        self._reported.setdefault(ddl_ts, {})[dispatcher_id] = None
        if ddl_ts in self._open:
            self._open[ddl_ts].missing.discard(dispatcher_id)

    def vanish(self, dispatcher_id: str) -> None:
        """Forget a dispatcher that has ended."""
        for ddl in self._open.values():
            ddl.missing.discard(dispatcher_id)
        for waiting in self._reported.values():
            waiting.pop(dispatcher_id, None)

    def decide(self) -> list[BarrierDecision]:
        """Return who writes each open DDL for which no dispatcher is missing. The last to report writes."""
        return [self._decide(ddl_ts, ddl) for ddl_ts, ddl in self._open.items() if not ddl.missing]

    def _decide(self, ddl_ts: int, ddl: "_OpenDdl") -> BarrierDecision:
        waiting = list(self._reported[ddl_ts])
        if ddl.trigger_writes or not waiting:
            return BarrierDecision(ddl_ts, TABLE_TRIGGER, tuple(waiting))
        return BarrierDecision(ddl_ts, waiting[-1], tuple(waiting[:-1]))

    def finish(self, ddl_ts: int) -> None:
        """Close an open DDL: it is written and stored."""
        del self._open[ddl_ts]
        del self._reported[ddl_ts]


@dataclass(slots=True)
class _OpenDdl:
    missing: set[str]
    trigger_writes: bool


@dataclass(slots=True)
class BlockScope:
    """What DDLs touch: tables by ids and names, before and after; whole databases; databases that their
    tables are in.

    `everything`: a view or a sequence is among them, whose statement may name any table. Consumers that read
    no checkpoint run statements as their files appear.
    """

    table_ids: set[int] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    databases: set[str] = field(default_factory=set)
    inside: set[str] = field(default_factory=set)
    everything: bool = False

    def add(self, other: "BlockScope") -> None:
        """Touch what the other touches, too."""
        self.table_ids |= other.table_ids
        self.names |= other.names
        self.databases |= other.databases
        self.inside |= other.inside
        self.everything |= other.everything

    def overlaps(self, other: "BlockScope") -> bool:
        """Return whether DDLs of both must be done in order."""
        if self.everything or other.everything:
            return not (self.is_empty or other.is_empty)
        return not (
            self.table_ids.isdisjoint(other.table_ids)
            and self.names.isdisjoint(other.names)
            and self.databases.isdisjoint(other.databases)
            and self.databases.isdisjoint(other.inside)
            and self.inside.isdisjoint(other.databases)
        )

    @property
    def is_empty(self) -> bool:
        """Whether it touches nothing."""
        return not (self.names or self.databases)

    def add_table(self, schema: SchemaVersion) -> None:
        """Add a table, and the tables that its foreign keys name: those must exist before it."""
        database, table = schema.database.lower(), schema.table
        self.table_ids.add(table.id)
        self.table_ids.update(table.physical_ids)
        self.names.add(f"{database}.{table.name}".lower())
        self.inside.add(database)
        self.everything |= not table.is_base_table
        for key in table.extra.get("fk_info") or ():
            referred = name_from_json(key.get("ref_schema")) or database
            self.names.add(f"{referred}.{name_from_json(key['ref_table'])}".lower())
            self.inside.add(referred.lower())


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

    @property
    def scope(self) -> BlockScope:
        """What the DDLs touch."""
        scope = BlockScope(databases=set(self.databases))
        for event in self.events:
            for change in event.tables:
                for schema in (change.before, change.after):
                    if schema is not None:
                        scope.add_table(schema)
        return scope

    def begin_position(self, table_id: int) -> Position:
        """Return where the dispatcher of a table begins that is replicated from this DDL on.

        An older table may have changes of its own at `commit_ts`; the history of a new one starts there. One
        that comes back begins with the rows that it has at `commit_ts`.
        """
        if table_id in self.recovered_ids:
            return Position(self.commit_ts, b"")
        return Position(self.commit_ts - 1 if table_id in self.arriving_ids else self.commit_ts)


def _union_ids(schemas: Iterable[SchemaVersion | None]) -> frozenset[int]:
    return frozenset(table_id for schema in schemas for table_id in _physical_ids(schema))


def block_events(events: Iterable[DdlEvent], tables: TableFilter) -> Iterator[BlockEvent]:
    """Group DDLs, which are in order, by commit_ts; leave out what is outside the filter.

    A DDL that goes on after its event changes no physical table, and is left out too.
    """
    first_events = (event for event in events if not event.further)
    for commit_ts, group in groupby(first_events, key=lambda event: event.commit_ts):
        together = tuple(group)
        parts = tuple(part for event in together if (part := tables.filter_ddl(event)) is not None)
        if parts:
            yield BlockEvent(commit_ts, parts, frozenset().union(*map(tables.arriving_ids, together)))


def find_done(blocks: Sequence[BlockEvent], done: DoneDdls) -> list[BlockEvent]:
    """Return the block events that are done, in order.

    A DDL is done after all earlier ones that it overlaps with. So one that a later, finished one overlaps
    with is done as well, also if it was not known as a DDL then: its job was recorded too late.
    """
    found: list[BlockEvent] = []
    later = BlockScope()
    for block in reversed(blocks):
        scope = block.scope
        if block.commit_ts in done or later.overlaps(scope):
            later.add(scope)
            found.append(block)
    return found[::-1]


class PendingDdls:
    """The block events that are not done, the first of them for each table and database, and which are done.

    Two that overlap are done in the order of their commits. Those that do not overlap are done in any order,
    but none is further than AHEAD_MAX from the first that is not done.
    """

    def __init__(self, done: DoneDdls) -> None:
        self.done = done
        self._blocks: OrderedDict[int, BlockEvent] = OrderedDict()
        self._scopes: dict[int, BlockScope] = {}  # of pending ones, and of finished ones until their release
        self._leaving: dict[int, None] = {}  # finished ones that are not released
        self._by_table: dict[int, deque[BlockEvent]] = {}
        self._by_database: dict[str, deque[BlockEvent]] = {}
        self._startable: list[BlockEvent] | None = None  # None: to be found

    def add(self, block: BlockEvent) -> None:
        """Append a block event that is later than all others."""
        last_ts = next(reversed(self._blocks), 0)
        assert last_ts < block.commit_ts, "DDLs come out of order"
        self._startable = None
        self._blocks[block.commit_ts] = block
        self._scopes[block.commit_ts] = block.scope
        for table_id in block.table_ids:
            self._by_table.setdefault(table_id, deque()).append(block)
        for database in block.databases:
            self._by_database.setdefault(database, deque()).append(block)

    @property
    def head(self) -> BlockEvent | None:
        """The first block event that is not done."""
        return next(iter(self._blocks.values()), None)

    def get(self, commit_ts: int) -> BlockEvent:
        """Return a block event that is not done."""
        return self._blocks[commit_ts]

    def startable(self) -> list[BlockEvent]:
        """Return the block events that need not wait for an earlier one, in order."""
        if self._startable is None:
            self._startable = self._find_startable()
        return self._startable

    def _find_startable(self) -> list[BlockEvent]:
        earlier = BlockScope()
        for commit_ts in self._leaving:
            earlier.add(self._scopes[commit_ts])
        found = []
        for block in islice(self._blocks.values(), max(AHEAD_MAX - len(self.done.later), 1)):
            scope = self._scopes[block.commit_ts]
            if not earlier.overlaps(scope):
                found.append(block)
            earlier.add(scope)
        return found

    def find_done(self, block: BlockEvent) -> DoneDdls:
        """Return what is done once a pending block event is."""
        unfinished = islice(self._blocks, 2)  # if it is not the first itself, the first is another
        unfinished_ts = next((commit_ts for commit_ts in unfinished if commit_ts != block.commit_ts), None)
        return self.done.add(block.commit_ts, unfinished_ts)

    def finish(self, block: BlockEvent) -> None:
        """Remove a block event: it is done. Those that overlap with it wait until it is released."""
        self._startable = None
        self.done = self.find_done(block)
        del self._blocks[block.commit_ts]
        self._leaving[block.commit_ts] = None
        for table_id in block.table_ids:
            _drop_first(self._by_table, table_id, block)
        for database in block.databases:
            _drop_first(self._by_database, database, block)

    def release(self, block: BlockEvent) -> None:
        """Let block events start that overlap with a finished one: nothing is left of its dispatchers."""
        self._startable = None
        del self._leaving[block.commit_ts]
        del self._scopes[block.commit_ts]

    def first_of(self, table_id: int, database: str) -> BlockEvent | None:
        """Return the first block event that blocks a physical table of a database."""
        of_table = self._by_table.get(table_id)
        of_database = self._by_database.get(database.lower())
        found = [queue[0] for queue in (of_table, of_database) if queue]
        return min(found, key=lambda block: block.commit_ts, default=None)

    def later_ids(self) -> frozenset[int]:
        """Return the physical tables that exist after one of the pending DDLs."""
        return frozenset().union(*(block.later_ids for block in self._blocks.values()))


def _drop_first(queues: dict[K, deque[BlockEvent]], key: K, block: BlockEvent) -> None:
    first = queues[key].popleft()
    assert first is block, f"the DDL at {block.commit_ts} is done before the one at {first.commit_ts}"
    if not queues[key]:
        del queues[key]


class ReplicatedTables:
    """The physical tables that are replicated after the finished DDLs, each with its logical table."""

    def __init__(self, tables: Iterable[SchemaVersion]) -> None:
        self._schemas = {table_id: schema for schema in tables for table_id in _physical_ids(schema)}

    def __contains__(self, table_id: int) -> bool:
        return table_id in self._schemas

    def ids(self) -> Collection[int]:
        """Return the ids of all physical tables."""
        return self._schemas.keys()

    def schemas(self) -> list[SchemaVersion]:
        """Return the logical tables."""
        return list({schema.table.id: schema for schema in self._schemas.values()}.values())

    def schema(self, table_id: int) -> SchemaVersion:
        """Return the table that a physical table is, or is a partition of."""
        return self._schemas[table_id]

    def blocked_ids(self, block: BlockEvent) -> list[int]:
        """Return the physical tables whose dispatchers stop at a block event that is to be done next."""
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
