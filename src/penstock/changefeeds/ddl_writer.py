"""Brings DDLs to the remote: learn, wait for overlapping ones and for dispatchers, write, store, let pass."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial

from penstock.changefeeds.ddl_barrier import (
    BarrierDecision,
    BlockEvent,
    DdlBarrier,
    PendingDdls,
    ReplicatedTables,
    block_events,
    existing_left_out,
)
from penstock.changefeeds.dispatcher import Dispatcher, Dispatchers
from penstock.changefeeds.failures import FailureTracker
from penstock.changefeeds.filters import TableFilter
from penstock.changefeeds.model import DispatcherRecord, DoneDdls, LeftOutTable, ProgressStore
from penstock.changefeeds.sinks.sink import Sink
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.slices import TableSpan
from penstock.follow.source import SliceSource
from penstock.metrics import SINK_DDL_AFFECTED_DISPATCHERS

_WRITES_MAX = 16  # DDLs whose files are written at once
_UNKNOWN_MAX = 16  # DDLs without statements that are kept for the warning

_log = logging.getLogger(__name__)


class DdlWriter:
    """Writes each DDL once the dispatchers that it blocks have drained and earlier ones that it overlaps with
    are done.

    The files are written first, those of different tables at once. Then the dispatchers after the DDL are
    stored together with its timestamp, one DDL at a time, and only then the dispatchers go on. A crash in
    between leads to the same files again.
    """

    def __init__(
        self,
        changefeed_id: str,
        *,
        source: SliceSource,
        sink: Sink,
        progress: ProgressStore,
        dispatchers: Dispatchers,
        tables: ReplicatedTables,
        left_out: Iterable[LeftOutTable],
        done: DoneDdls,
        table_filter: TableFilter,
        failures: FailureTracker,
    ) -> None:
        self.tables = tables
        self.known_ts = done.ts  # DDLs up to it are pending or done
        self.revision = 0  # how often `needed_ids` may have changed
        self.left_out = {table.table_id: table for table in left_out}
        self.left_out_revision = 0  # how often `left_out` has changed
        self.unknown: deque[DdlEvent] = deque(maxlen=_UNKNOWN_MAX)
        """The last DDLs of which nobody knows the statement: consumers cannot run them."""
        self._changefeed_id = changefeed_id
        self._source = source
        self._sink = sink
        self._progress = progress
        self._dispatchers = dispatchers
        self._table_filter = table_filter
        self._failures = failures
        self._pending = PendingDdls(done)
        self._ended: dict[int, int] = {}  # tables, and the DDL that ended each
        self._barrier = DdlBarrier()
        self._writing: set[int] = set()
        self._storing = asyncio.Lock()
        self._moved = asyncio.Event()
        self._affected = SINK_DDL_AFFECTED_DISPATCHERS.labels(changefeed_id)

    @property
    def bound_ts(self) -> int:
        """An upper bound of the checkpoint: what follows is a DDL that is not done, or unknown."""
        head = self._pending.head
        return self.known_ts if head is None else min(self.known_ts, head.commit_ts - 1)

    @property
    def written_ts(self) -> int:
        """The newest DDL that is on the remote."""
        return self._pending.done.last_ts

    def learn(self, upto_ts: int) -> list[BlockEvent]:
        """Take in the DDLs up to a timestamp; return the new ones that concern replicated tables.

        A table whose description could not be read before is left out: its older rows are not in the
        files, and the checkpoint has said that they are.
        """
        if upto_ts <= self.known_ts:
            return []
        events = self._source.ddls(self.known_ts, upto_ts)
        late = [change for event in events for change in event.tables if change.unread_ts]
        self.exclude(
            LeftOutTable(
                table_id=change.after.table.id,
                name=change.after.name,
                reason="its description could not be read before",
                since_ts=change.unread_ts,
                sent=False,
            )
            for change in late
            if change.after is not None and self._table_filter.matches(change.after)
        )
        blocks = block_events(events, self._table_filter)
        new = [block for block in blocks if block.commit_ts not in self._pending.done]
        self.known_ts = upto_ts
        for block in new:
            self._pending.add(block)
            self.unknown += [event for event in block.events if event.unknown]
        if new:
            self.revision += 1
            self._moved.set()
        return new

    def followed_ids(self) -> frozenset[int]:
        """Return the physical tables that are replicated, or will be after a pending DDL."""
        return self._pending.later_ids().union(self.tables.ids())

    def exclude(self, tables: Iterable[LeftOutTable]) -> None:
        """Leave out tables that were never sent, with their DDLs. Those left out already stay as they are."""
        new = {table.table_id: table for table in tables if table.table_id not in self.left_out}
        if new:
            self.left_out.update(new)
            self._table_filter = self._table_filter.excluding(new)
            self.left_out_revision += 1

    def leave_out(self, tables: Iterable[LeftOutTable]) -> list[str]:
        """End the dispatchers of physical tables and return them; their DDLs go on without them."""
        new = {table.table_id: table for table in tables}
        for table_id in new:
            self._dispatchers.wake(table_id, 0)
        removed = self._dispatchers.remove_tables(new)
        for dispatcher in removed:
            dispatcher.end()
            self._barrier.vanish(dispatcher.span.id)
        self.left_out.update(new)
        self.left_out_revision += 1
        self.revision += 1
        self._moved.set()
        return [dispatcher.span.id for dispatcher in removed]

    def forget_left_out(self, existing: Iterable[SchemaVersion]) -> None:
        """Forget tables that are left out and are gone: not replicated any more, or not among `existing`."""
        left = existing_left_out(self.left_out.values(), self.tables, existing)
        if len(left) < len(self.left_out):
            self.left_out = {table.table_id: table for table in left}
            self.left_out_revision += 1

    def blocked_ids(self, block: BlockEvent) -> list[int]:
        """Return the replicated tables whose dispatchers stop at a DDL."""
        return self.tables.blocked_ids(block)

    def needed_ids(self, done_ts: int) -> frozenset[int]:
        """Return the tables whose history after `done_ts`, the checkpoint, is needed.

        They are replicated now or after a pending DDL, or have ended since the checkpoint: the changefeed may
        be moved to another location, which has nothing of them.
        """
        self._ended = {table_id: ts for table_id, ts in self._ended.items() if ts > done_ts}
        return self.followed_ids().union(self._ended).difference(self.left_out)

    def next_of(self, table_id: int) -> BlockEvent | None:
        """Return the next DDL for the dispatchers of a replicated table."""
        return self._pending.first_of(table_id, self.tables.schema(table_id).database)

    async def drain(self, dispatcher: Dispatcher, event: DdlEvent) -> None:
        """Have everything written that a dispatcher sent before a DDL, then let it wait."""
        await self._sink.pass_block_event(dispatcher.span, event)
        dispatcher.finish_drain()
        self._barrier.report(dispatcher.span.id, event.commit_ts)
        self._moved.set()

    async def run(
        self,
        go_on: Callable[[Iterable[Dispatcher]], None],
        spawn: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        """Write DDLs for ever; call `go_on` with the dispatchers that go on after each, new ones included.

        `spawn` runs the write of a DDL beside the others, and ends the run if it fails.
        """
        while True:
            await self._moved.wait()
            self._moved.clear()
            for decision in self._decide():
                if len(self._writing) < _WRITES_MAX and decision.ddl_ts not in self._writing:
                    self._writing.add(decision.ddl_ts)
                    spawn(self._write_ddl(decision, go_on))

    def _decide(self) -> list[BarrierDecision]:
        for block in self._pending.startable():
            if not self._barrier.is_open(block.commit_ts):
                involved = [
                    dispatcher.span.id
                    for table_id in self.tables.blocked_ids(block)
                    for dispatcher in self._dispatchers.of_table(table_id)
                ]
                self._barrier.open(block.commit_ts, involved, trigger_writes=bool(block.databases))
        return self._barrier.decide()

    async def _write_ddl(
        self, decision: BarrierDecision, go_on: Callable[[Iterable[Dispatcher]], None]
    ) -> None:
        block = self._pending.get(decision.ddl_ts)
        for event in block.events:
            await self._failures.retry(partial(self._sink.write_block_event, event))
        async with self._storing:
            changes = self._dispatcher_changes(block)
            removed = [
                dispatcher.span.id
                for table_id in changes.ended_ids
                for dispatcher in self._dispatchers.of_table(table_id)
            ]
            done = self._pending.find_done(block)
            await self._failures.retry(
                lambda: self._progress.change_dispatchers(changes.added, removed, done=done)
            )
            going_on = self._pass(block, changes)
        self._affected.observe(decision.involved_count)
        facts = {"changefeed": self._changefeed_id, "commit_ts": block.commit_ts, "writer": decision.writer}
        _log.info("wrote a DDL", extra=facts)
        go_on(going_on)
        for dispatcher_id in removed:
            await self._sink.remove_dispatcher(dispatcher_id)
        # A table that comes back has a dispatcher of the same id, so DDLs that overlap wait until here.
        self._pending.release(block)
        self._writing.discard(block.commit_ts)
        self._moved.set()

    def _pass(self, block: BlockEvent, changes: "_DispatcherChanges") -> list[Dispatcher]:
        """Finish a DDL; return the dispatchers that go on.

        There is no await in it: no checkpoint is taken while the DDL is neither pending nor done.
        """
        blocked = self.tables.blocked_ids(block)
        self._pending.finish(block)
        self._barrier.finish(block.commit_ts)
        self.tables = changes.tables
        self.revision += 1
        self._ended.update(dict.fromkeys(changes.ended_ids, block.commit_ts))
        for dispatcher in self._dispatchers.remove_tables(changes.ended_ids):
            dispatcher.end()
            self._barrier.vanish(dispatcher.span.id)
        remaining = [
            dispatcher for table_id in blocked for dispatcher in self._dispatchers.of_table(table_id)
        ]
        for dispatcher in remaining:
            dispatcher.pass_ddl()
        added = [Dispatcher(record.span, record.begin) for record in changes.added]
        self._dispatchers.add(added)
        return remaining + added

    def _dispatcher_changes(self, block: BlockEvent) -> "_DispatcherChanges":
        later = self.tables.after(block)
        ended = frozenset(self.tables.ids()) - frozenset(later.ids())
        added = tuple(
            DispatcherRecord(TableSpan.of(self._changefeed_id, table_id), block.begin_position(table_id))
            for table_id in later.ids()
            if table_id not in self.tables and table_id not in self.left_out
        )
        return _DispatcherChanges(later, ended, added)


@dataclass(frozen=True, slots=True)
class _DispatcherChanges:
    """What a DDL does to the dispatchers."""

    tables: ReplicatedTables
    ended_ids: frozenset[int]
    added: tuple[DispatcherRecord, ...]
