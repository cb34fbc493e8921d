"""DDLs on their way to the remote: learned, waited for by their dispatchers, written, kept, passed."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from penstock.changefeeds.ddl_barrier import (
    BarrierDecision,
    BlockEvent,
    DdlBarrier,
    PendingDdls,
    ReplicatedTables,
    blocks,
)
from penstock.changefeeds.dispatcher import Dispatcher, Dispatchers
from penstock.changefeeds.failures import FailureTracker
from penstock.changefeeds.filters import TableFilter
from penstock.changefeeds.model import DispatcherRecord, ProgressStore
from penstock.changefeeds.sinks.sink import Sink
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.slices import TableSpan
from penstock.follow.source import SliceSource
from penstock.metrics import SINK_DDL_AFFECTED_DISPATCHERS

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a DDL does to the dispatchers."""

    tables: ReplicatedTables
    ended_ids: frozenset[int]
    added: tuple[DispatcherRecord, ...]


class DdlWriting:
    """Does DDLs in order: each when the dispatchers that it blocks have drained.

    The files are written first, then the dispatchers after the DDL are kept together with its timestamp, and
    only then anybody goes on. A crash in between leads to the same files again.
    """

    def __init__(
        self,
        feed_id: str,
        *,
        source: SliceSource,
        sink: Sink,
        progress: ProgressStore,
        dispatchers: Dispatchers,
        tables: ReplicatedTables,
        known_ts: int,
        carried: TableFilter,
        trouble: FailureTracker,
    ) -> None:
        self.tables = tables
        self.known_ts = known_ts  # DDLs up to it are pending or done
        self.turns = 0  # how often `needed_ids` may have changed
        self._feed_id = feed_id
        self._source = source
        self._sink = sink
        self._progress = progress
        self._dispatchers = dispatchers
        self._carried = carried
        self._trouble = trouble
        self._pending = PendingDdls()
        self._ended: dict[int, int] = {}  # tables, and the DDL that ended each
        self._barrier = DdlBarrier()
        self._moved = asyncio.Event()
        self._affected = SINK_DDL_AFFECTED_DISPATCHERS.labels(feed_id)

    @property
    def bound_ts(self) -> int:
        """The checkpoint goes no further: what comes after is a DDL that is not done, or unknown."""
        head = self._pending.head
        return self.known_ts if head is None else min(self.known_ts, head.commit_ts - 1)

    def learn(self, upto_ts: int) -> list[BlockEvent]:
        """Take in the DDLs up to a timestamp; those that are new and concern carried tables."""
        if upto_ts <= self.known_ts:
            return []
        new = list(blocks(self._source.ddls(self.known_ts, upto_ts), self._carried))
        self.known_ts = upto_ts
        for block in new:
            self._pending.add(block)
        if new:
            self.turns += 1
            self._moved.set()
        return new

    def blocked_ids(self, block: BlockEvent) -> list[int]:
        """The tables that are carried now whose dispatchers have to come to a DDL."""
        return self.tables.blocked_by(block)

    def needed_ids(self, done_ts: int) -> frozenset[int]:
        """The tables whose history after `done_ts`, the checkpoint, is needed.

        They are carried now or after a pending DDL, or have ended since: the changefeed may be given another
        place, which has nothing of them.
        """
        self._ended = {table_id: ts for table_id, ts in self._ended.items() if ts > done_ts}
        return self._pending.later_ids().union(self.tables.ids(), self._ended)

    def next_of(self, table_id: int) -> BlockEvent | None:
        """The DDL that the dispatchers of a carried table come to next."""
        return self._pending.first_of(table_id, self.tables.schema(table_id).database)

    async def drain(self, dispatcher: Dispatcher, event: DdlEvent) -> None:
        """Have everything written that a dispatcher sent before a DDL, then let it wait."""
        await self._sink.pass_block_event(dispatcher.spec, event)
        dispatcher.drained()
        self._barrier.report(dispatcher.spec.id, event.commit_ts)
        self._moved.set()

    async def run(self, go_on: Callable[[Iterable[Dispatcher]], None]) -> None:
        """Write DDLs for ever, and tell each time which dispatchers go on after it, new ones among them."""
        while True:
            await self._moved.wait()
            self._moved.clear()
            while (verdict := self._verdict()) is not None:
                await self._do(verdict, go_on)

    def _verdict(self) -> BarrierDecision | None:
        head = self._pending.head
        if head is not None and self._barrier.open_ts is None:
            blocked = self.tables.blocked_by(head)
            involved = [each.spec.id for table in blocked for each in self._dispatchers.of_table(table)]
            self._barrier.open(head.commit_ts, involved, trigger_writes=bool(head.databases))
        return self._barrier.verdict()

    async def _do(self, verdict: BarrierDecision, go_on: Callable[[Iterable[Dispatcher]], None]) -> None:
        block = self._pending.head
        assert block is not None
        assert block.commit_ts == verdict.ddl_ts, "the barrier decided on another DDL"
        for event in block.events:
            await self._trouble.through(partial(self._sink.write_block_event, event))
        turn = self._turn(block)
        gone = [each.spec.id for table_id in turn.ended_ids for each in self._dispatchers.of_table(table_id)]
        await self._trouble.through(
            lambda: self._progress.change_dispatchers(turn.added, gone, ddl_ts=block.commit_ts)
        )
        self._affected.observe(verdict.involved_count)
        facts = {"changefeed": self._feed_id, "commit_ts": block.commit_ts, "writer": verdict.writer}
        _log.info("wrote a DDL", extra=facts)
        go_on(self._pass(block, turn))
        for dispatcher_id in gone:
            await self._sink.remove_dispatcher(dispatcher_id)

    def _pass(self, block: BlockEvent, turn: _Turn) -> list[Dispatcher]:
        """Leave a DDL behind, in one step: no checkpoint is taken while it is neither pending nor done."""
        blocked = self.tables.blocked_by(block)
        self._pending.pop()
        self._barrier.done()
        self.tables = turn.tables
        self.turns += 1
        self._ended.update(dict.fromkeys(turn.ended_ids, block.commit_ts))
        for each in self._dispatchers.remove_tables(turn.ended_ids):
            each.end()
            self._barrier.vanish(each.spec.id)
        stayed = [each for table_id in blocked for each in self._dispatchers.of_table(table_id)]
        for each in stayed:
            each.passed()
        begun = [Dispatcher(each.spec, each.begin) for each in turn.added]
        self._dispatchers.add(begun)
        return stayed + begun

    def _turn(self, block: BlockEvent) -> _Turn:
        later = self.tables.after(block)
        ended = frozenset(self.tables.ids()) - frozenset(later.ids())
        begun = [table_id for table_id in later.ids() if table_id not in self.tables]
        added = tuple(
            DispatcherRecord(TableSpan.of(self._feed_id, each), block.begin(each)) for each in begun
        )
        return _Turn(later, ended, added)
