"""Where the dispatchers of a changefeed begin: at its start, and again after every stop."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from penstock.changefeeds.ddl_barrier import BlockEvent, ReplicatedTables, blocks
from penstock.changefeeds.dispatcher import Dispatcher
from penstock.changefeeds.filters import TableFilter
from penstock.changefeeds.model import DispatcherRecord, PendingFile, ProgressStore
from penstock.changefeeds.sinks.sink import SinkFiles
from penstock.changes.limits import ReadLimit
from penstock.clock import Clock
from penstock.errors import Invalid, StaleRead
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.slices import Position, TableSpan
from penstock.follow.source import SliceSource
from penstock.tables.schema import HandleKind

_SLICE_LIMIT = ReadLimit(nbytes=64 * 1024 * 1024)
_REPAIRS_MAX = 16
_POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class ChangefeedOptions:
    """What a changefeed carries. Tables that are there at `begin` begin with it.

    `split_rows` divides such tables into key ranges of about so many rows, each with its own dispatcher. At
    `target_ts` the changefeed is finished. `slice_limit` is what a dispatcher gives to the sink at once,
    `reads_max` how many read at the same time.
    """

    begin: Position
    tables: TableFilter = field(default_factory=TableFilter)
    target_ts: int | None = None
    split_rows: int = 0
    slice_limit: ReadLimit = _SLICE_LIMIT
    reads_max: int = 16
    tick_s: float = 0.2

    def __post_init__(self) -> None:
        if self.target_ts is not None and self.target_ts < self.begin.ts:
            raise Invalid(
                f"target_ts {self.target_ts} is before the start, {self.begin.ts}; choose a later one"
            )


@dataclass(frozen=True, slots=True)
class ResumedChangefeed:
    """A changefeed as it was left, ready to go on. DDLs up to `ddl_ts` are done."""

    checkpoint_ts: int
    ddl_ts: int
    tables: ReplicatedTables
    dispatchers: tuple[Dispatcher, ...]


@dataclass(frozen=True, slots=True)
class Startup:
    """Reads what was kept and finds out what the remote has."""

    feed_id: str
    source: SliceSource
    progress: ProgressStore
    files: SinkFiles
    options: ChangefeedOptions
    clock: Clock

    async def resume(self) -> ResumedChangefeed:
        """The dispatchers and where each goes on. Raises what the parts raise; can be repeated.

        Tables that are carried and have no dispatcher get one: all at the first start, later those that
        other patterns brought in, which begin where the DDLs are.
        """
        await self._settle()
        checkpoint_ts = await self.progress.checkpoint_ts()
        # A DDL holds the checkpoint until it is done, so those up to the checkpoint are done.
        ddl_ts = max(await self.progress.ddl_ts(), checkpoint_ts)
        await self._ddls_known(ddl_ts)
        there = self.source.tables(ddl_ts)
        before = await self.progress.dispatchers()
        self._check_history(before, there, ddl_ts)
        carried = [each for each in there if self.options.tables.takes(each)]
        tables = ReplicatedTables(carried)
        await self.source.hold(tuple(tables.ids()), checkpoint_ts)
        kept = await self._matched(before, carried, tables, ddl_ts)
        passed = self._passed_ddls(tables, checkpoint_ts, ddl_ts)
        positions = await self._positions(kept, checkpoint_ts)
        dispatchers = tuple(
            Dispatcher(each.spec, each.begin, max(position, passed.get(each.spec.table_id, each.begin)))
            for each, position in zip(kept, positions, strict=True)
        )
        return ResumedChangefeed(checkpoint_ts, ddl_ts, tables, dispatchers)

    async def _settle(self) -> None:
        """See to it that what is kept is true of the place that is written to.

        Another place than before has nothing after the checkpoint, whatever the former one has, so that the
        tables of then have to be known: once dispatchers are forgotten, nobody would miss one. It must be
        unused: a reader could not tell whose files are whose. That is looked at before the place is kept, and
        nothing is written before that, so that a crash never makes own files look like others'.
        """
        kept = await self.progress.location()
        if kept == self.files.location:
            return
        known = kept is not None  # else an earlier release has begun here
        if known:
            from_ts = max(await self.progress.checkpoint_ts(), self.options.begin.ts)
            await self._ddls_known(from_ts)
            begun = [each for each in await self.progress.dispatchers() if each.begin.ts <= from_ts]
            self._check_history(begun, self.source.tables(from_ts), from_ts)
            await asyncio.to_thread(self.files.check_unused)
        await self.progress.begin_at(self.files.location, anew=known)

    async def _ddls_known(self, ts: int) -> None:
        while self.source.ddl_resolved_ts() < ts:
            await self.clock.sleep(_POLL_S)

    def _check_history(
        self, kept: Iterable[DispatcherRecord], there: Iterable[SchemaVersion], ddl_ts: int
    ) -> None:
        """Every table that was carried at `ddl_ts` is known to have been there; else raise StaleRead.

        The cluster keeps only the newest description of a table once its history is collected, and none of
        one that was dropped: changes up to that DDL would be left out, and nobody would know.
        """
        ids = {table_id for schema in there for table_id in schema.table.physical_ids}
        for each in kept:
            if each.spec.table_id not in ids:
                raise StaleRead(
                    f"table {each.spec.table_id}", ddl_ts, oldest_ts=self.source.ddl_resolved_ts()
                )

    async def _matched(
        self,
        kept: Sequence[DispatcherRecord],
        carried: Sequence[SchemaVersion],
        tables: ReplicatedTables,
        ddl_ts: int,
    ) -> list[DispatcherRecord]:
        """The dispatchers of the tables that are carried, made durable if they are others than were kept."""
        served = {each.spec.table_id for each in kept}
        begin = self.options.begin if ddl_ts == self.options.begin.ts else Position(ddl_ts)
        new = [schema for schema in carried if not served.issuperset(schema.table.physical_ids)]
        cut = await self._cuts(new, begin.ts)
        added = [
            DispatcherRecord(spec, begin)
            for table_id in tables.ids()
            if table_id not in served
            for spec in self._specs(table_id, cut.get(table_id, ()))
        ]
        removed = [each.spec.id for each in kept if each.spec.table_id not in tables]
        if added or removed:
            await self.progress.change_dispatchers(added, removed)
        return [each for each in kept if each.spec.table_id in tables] + added

    async def _cuts(self, new: Iterable[SchemaVersion], ts: int) -> dict[int, list[bytes]]:
        """Where to divide tables; not one whose rows can change their handles, and so their dispatchers."""
        if not self.options.split_rows:
            return {}
        fixed = [each for each in new if each.table.is_base_table and not _rows_move(each)]
        table_ids = [table_id for schema in fixed for table_id in schema.table.physical_ids]
        while not await self._readable(table_ids, ts):
            await self.clock.sleep(_POLL_S)
        return {each: await self.source.cuts(each, ts, self.options.split_rows) for each in table_ids}

    async def _readable(self, table_ids: Sequence[int], ts: int) -> bool:
        looks = await self.source.look(table_ids) if table_ids else {}
        return all(each in looks and looks[each].readable_ts >= ts for each in table_ids)

    def _specs(self, table_id: int, cuts: Iterable[bytes]) -> list[TableSpan]:
        bounds = [b"", *cuts, b""]
        return [TableSpan.of(self.feed_id, table_id, low, high) for low, high in pairwise(bounds)]

    def _passed_ddls(self, tables: ReplicatedTables, checkpoint_ts: int, ddl_ts: int) -> dict[int, Position]:
        """Per table the end of what was drained for the last of its DDLs that is done.

        Without it a dispatcher could go on before a DDL that it has passed: the changes that it read last
        may be older.
        """
        passed: dict[int, Position] = {}
        done: Iterable[BlockEvent] = ()
        if checkpoint_ts < ddl_ts:
            done = blocks(self.source.ddls(checkpoint_ts, ddl_ts), self.options.tables)
        for block in done:
            for table_id in tables.blocked_by(block):
                passed[table_id] = Position(block.commit_ts - 1)
        return passed

    async def _positions(self, kept: Sequence[DispatcherRecord], checkpoint_ts: int) -> list[Position]:
        """Where each goes on: after what is on the remote for certain."""
        done = Position(checkpoint_ts)
        pending = [each.pending for each in kept if each.pending is not None and each.pending.end > done]
        repaired = dict(await self._repair(pending))
        return [max(done, each.begin, repaired.get(each.spec.id, done)) for each in kept]

    async def _repair(self, pending: Sequence[PendingFile]) -> list[tuple[str, Position]]:
        room = asyncio.Semaphore(_REPAIRS_MAX)

        async def repair(file: PendingFile) -> tuple[str, Position]:
            async with room:
                self.files.forget(file.dispatcher_id)
                return file.dispatcher_id, await asyncio.to_thread(self.files.repair, file)

        return await asyncio.gather(*map(repair, pending))


def _rows_move(schema: SchemaVersion) -> bool:
    return schema.table.handle_kind is HandleKind.ROWID and bool(schema.table.primary_key)
