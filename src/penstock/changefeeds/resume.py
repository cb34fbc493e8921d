"""Where the dispatchers of a changefeed begin: at its start, and again after every stop."""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise

from penstock.changefeeds.ddl_barrier import (
    BlockEvent,
    ReplicatedTables,
    block_events,
    existing_left_out,
    find_done,
)
from penstock.changefeeds.dispatcher import Dispatcher
from penstock.changefeeds.filters import TableFilter
from penstock.changefeeds.model import (
    DispatcherRecord,
    DoneDdls,
    LeftOutTable,
    PendingFile,
    ProgressStore,
)
from penstock.changefeeds.sinks.sink import Sink, SinkFiles
from penstock.changes.limits import ReadLimit
from penstock.clock import Clock
from penstock.errors import Invalid, StaleRead, Unavailable
from penstock.eventloop import call_in_thread
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.slices import Position, Slice, TableSpan
from penstock.follow.source import SliceSource

_SLICE_LIMIT = ReadLimit(nbytes=64 * 1024 * 1024)
_REPAIRS_MAX = 512  # dispatchers whose files are finished at the same time
_LOOKS_MAX = 64  # requests at the same time
_POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class ChangefeedOptions:
    """What a changefeed replicates. Tables that exist at `begin` begin there.

    `split_rows` divides such tables into key ranges of about that many rows, each with its own dispatcher.
    The changefeed is finished at `target_ts`. A dispatcher gives the sink at most `slice_limit` at once, and
    at most `reads_max` dispatchers read at the same time. Dispatchers that have everything read again after
    `flush_interval_s`, all together; 0: as soon as something has changed. With `ignore_ineligible_table` it
    goes on without tables that cannot be captured; else it fails.
    """

    begin: Position
    tables: TableFilter = field(default_factory=TableFilter)
    target_ts: int | None = None
    split_rows: int = 0
    ignore_ineligible_table: bool = True
    slice_limit: ReadLimit = _SLICE_LIMIT
    reads_max: int = 16
    flush_interval_s: float = 0.0
    tick_s: float = 0.2

    def __post_init__(self) -> None:
        if self.target_ts is not None and self.target_ts < self.begin.ts:
            raise Invalid(
                f"target_ts {self.target_ts} is before the start, {self.begin.ts}; choose a later one"
            )


@dataclass(frozen=True, slots=True)
class RestoredProgress:
    """A changefeed that is ready to go on from its stored progress.

    `unfinished` are those of the dispatchers with files that may be missing, and these files: such a
    dispatcher goes on when `FileRepair` is done with it.
    """

    checkpoint_ts: int
    done: DoneDdls
    tables: ReplicatedTables
    dispatchers: tuple[Dispatcher, ...]
    unfinished: tuple[DispatcherRecord, ...] = ()
    left_out: tuple[LeftOutTable, ...] = ()


async def restore_progress(
    changefeed_id: str,
    options: ChangefeedOptions,
    *,
    source: SliceSource,
    progress: ProgressStore,
    files: SinkFiles,
    clock: Clock,
) -> RestoredProgress:
    """Read the stored progress, and return the dispatchers with their positions.

    Replicated tables without a dispatcher get one: all tables at the first start; later those that other
    patterns have brought in, which begin at the last DDL that is done. Raises StaleRead when
    the history of a table is gone, Unavailable when the source, the store or the remote does not answer.
    Repeating it is safe.
    """
    return await _Resumption(changefeed_id, options, source, progress, files, clock).run()


@dataclass(frozen=True, slots=True)
class _Resumption:
    changefeed_id: str
    options: ChangefeedOptions
    source: SliceSource
    progress: ProgressStore
    files: SinkFiles
    clock: Clock

    async def run(self) -> RestoredProgress:
        await self._settle_location()
        checkpoint_ts = await self.progress.checkpoint_ts()
        # A DDL holds the checkpoint until it is done, so those up to the checkpoint are done.
        done = (await self.progress.done_ddls()).merge(DoneDdls(checkpoint_ts))
        await self._wait_for_ddls(done.last_ts)
        existing = self.source.tables(done.ts)
        events = self.source.ddls(done.ts, done.last_ts) if done.later else []
        stored = await self.progress.dispatchers()
        self._check_history(stored, existing, done.ts, [event for event in events if event.commit_ts in done])
        known = await self.progress.left_out()
        table_filter = without_unsent(self.options.tables, known)
        tables = ReplicatedTables(schema for schema in existing if table_filter.matches(schema))
        later = find_done(list(block_events(events, table_filter)), done)
        done = replace(done, later=done.later.union(block.commit_ts for block in later))
        for block in later:
            tables = tables.after(block)
        named = [*existing, *self.source.unreadable(done.ts)]
        left_out = existing_left_out(known, tables, filter(self.options.tables.matches, named))
        out = {table.table_id for table in left_out}
        await self.source.hold(
            tuple(table_id for table_id in tables.ids() if table_id not in out), checkpoint_ts
        )
        begun = {
            table_id: block.begin_position(table_id)
            for block in later
            for table_id in block.later_ids - block.table_ids
        }
        records = await self._match_records(stored, tables, done.ts, begun, out)
        if len(left_out) < len(known):
            await self.progress.change_dispatchers((), (), left_out=left_out)
        passed = self._passed_ddls(tables, table_filter, checkpoint_ts, done.ts, later)
        unfinished = {record.span.id: record for record in _unfinished(records, Position(checkpoint_ts))}
        dispatchers = []
        for record in records:
            repaired = unfinished.get(record.span.id)
            certain = record.begin if repaired is None else repaired.pending[0].start
            at = max(
                Position(checkpoint_ts), record.begin, certain, passed.get(record.span.table_id, certain)
            )
            dispatchers.append(Dispatcher(record.span, record.begin, at, repairing=repaired is not None))
        return RestoredProgress(
            checkpoint_ts, done, tables, tuple(dispatchers), tuple(unfinished.values()), tuple(left_out)
        )

    async def _settle_location(self) -> None:
        """Make the stored progress describe the location that is written to.

        A new location has nothing after the checkpoint, whatever the former one has. So the tables at the
        checkpoint must be known before the dispatchers are forgotten: a missing one would not be noticed
        afterwards. The location must be unused, because a reader could not tell the files of two changefeeds
        apart. That is checked before the location is stored, and nothing is written before it is stored: a
        crash never makes our own files look like those of another changefeed.
        """
        stored = await self.progress.location()
        if stored == self.files.location:
            return
        is_known = stored is not None  # otherwise an earlier release has begun here
        if is_known:
            from_ts = max(await self.progress.checkpoint_ts(), self.options.begin.ts)
            await self._wait_for_ddls(from_ts)
            begun = [record for record in await self.progress.dispatchers() if record.begin.ts <= from_ts]
            self._check_history(begun, self.source.tables(from_ts), from_ts)
            await call_in_thread(self.files.check_unused)
        await self.progress.begin_at(self.files.location, is_new=is_known)

    async def _wait_for_ddls(self, ts: int) -> None:
        while self.source.ddl_resolved_ts() < ts:
            await self.clock.sleep(_POLL_S)

    def _check_history(
        self,
        records: Iterable[DispatcherRecord],
        existing: Iterable[SchemaVersion],
        ddl_ts: int,
        later: Iterable[DdlEvent] = (),
    ) -> None:
        """Raise StaleRead unless every table with a dispatcher existed at `ddl_ts`, or a later DDL made it.

        Once its history is collected, the cluster keeps only the newest description of a table, and none of
        a dropped one. The changes of such a table up to that DDL would be missing without notice.
        """
        made = (change.after for event in later for change in event.tables if change.after is not None)
        ids = {table_id for schema in chain(existing, made) for table_id in schema.table.physical_ids}
        for record in records:
            if record.span.table_id not in ids:
                raise StaleRead(
                    f"table {record.span.table_id}", ddl_ts, oldest_ts=self.source.ddl_resolved_ts()
                )

    async def _match_records(
        self,
        stored: Sequence[DispatcherRecord],
        tables: ReplicatedTables,
        ddl_ts: int,
        begun: Mapping[int, Position],
        left_out: Collection[int],
    ) -> list[DispatcherRecord]:
        """Return the dispatchers of the replicated tables; store them if they differ from the stored ones.

        Tables that are left out get none. New dispatchers begin at `ddl_ts`, those of tables that a later DDL
        brought where `begun` says.
        """
        served = {record.span.table_id for record in stored}.union(left_out)
        begin = self.options.begin if ddl_ts == self.options.begin.ts else Position(ddl_ts)
        new = [schema for schema in tables.schemas() if not served.issuperset(schema.table.physical_ids)]
        split_points = await self._split_points(new, begin.ts)
        added = [
            DispatcherRecord(span, begun.get(table_id, begin))
            for table_id in tables.ids()
            if table_id not in served
            for span in self._spans(table_id, split_points.get(table_id, ()))
        ]
        removed = [record.span.id for record in stored if record.span.table_id not in tables]
        if added or removed:
            await self.progress.change_dispatchers(added, removed)
        return [record for record in stored if record.span.table_id in tables] + added

    async def _split_points(self, new: Iterable[SchemaVersion], ts: int) -> dict[int, list[bytes]]:
        """Return where to divide each table. Tables with unique keys beside their handle stay whole.

        A value of such a key could go from a row of one dispatcher to a row of another, whose files have no
        order between them.
        """
        if not self.options.split_rows:
            return {}
        fixed = [schema for schema in new if schema.table.is_base_table and not schema.table.unique_keys]
        table_ids = [table_id for schema in fixed for table_id in schema.table.physical_ids]
        while (readable := await _readable_ids(self.source, table_ids, ts)) is None:
            await self.clock.sleep(_POLL_S)
        rows = self.options.split_rows
        return {table_id: await self.source.split_points(table_id, ts, rows) for table_id in readable}

    def _spans(self, table_id: int, split_points: Iterable[bytes]) -> list[TableSpan]:
        bounds = [b"", *split_points, b""]
        return [TableSpan.of(self.changefeed_id, table_id, low, high) for low, high in pairwise(bounds)]

    def _passed_ddls(
        self,
        tables: ReplicatedTables,
        table_filter: TableFilter,
        checkpoint_ts: int,
        ddl_ts: int,
        later: Iterable[BlockEvent],
    ) -> dict[int, Position]:
        """Return for each table the end of what was drained for the last of its DDLs that is done.

        The newest changes that a dispatcher read may be older than a DDL that it has passed. Without these
        positions it could go on before that DDL.
        """
        passed: dict[int, Position] = {}
        done: Iterable[BlockEvent] = ()
        if checkpoint_ts < ddl_ts:
            done = block_events(self.source.ddls(checkpoint_ts, ddl_ts), table_filter)
        for block in chain(done, later):
            for table_id in tables.blocked_ids(block):
                passed[table_id] = Position(block.commit_ts - 1)
        return passed


def _unfinished(records: Iterable[DispatcherRecord], done: Position) -> Iterator[DispatcherRecord]:
    """Yield the dispatchers with files after `done` that may be missing, with these files."""
    for record in records:
        pending = tuple(file for file in record.pending if file.end > done)
        if pending:
            yield replace(record, pending=pending)


async def _readable_ids(source: SliceSource, table_ids: Sequence[int], ts: int) -> list[int] | None:
    """Return the tables that can be read at `ts`; None while others than refused ones cannot.

    Raises Unavailable when no capture has one of them.
    """
    ranges = await source.read_progress(table_ids) if table_ids else {}
    readable = [
        table_id for table_id in table_ids if table_id in ranges and ranges[table_id].readable_ts >= ts
    ]
    waiting = set(table_ids).difference(
        readable, (table_id for table_id, found in ranges.items() if found.refusal is not None)
    )
    lost = sorted(table_id for table_id in waiting if table_id in ranges and ranges[table_id].uncaptured)
    if lost:
        raise Unavailable(f"no capture has table {lost[0]}; start a capture whose capture.tables name it")
    return None if waiting else readable


class FileRepair:
    """Finishes the files that a process before this one has begun, of each dispatcher by itself."""

    def __init__(
        self, source: SliceSource, files: SinkFiles, sink: Sink, options: ChangefeedOptions, clock: Clock
    ) -> None:
        self._source = source
        self._files = files
        self._sink = sink
        self._options = options
        self._clock = clock
        self._looks = asyncio.Semaphore(_LOOKS_MAX)
        self._room = asyncio.Semaphore(_REPAIRS_MAX)

    async def repair(self, record: DispatcherRecord) -> Position:
        """Return where a dispatcher goes on, once all of its files are on the remote.

        Raises Unavailable while storage or the table does not answer; repeating it is safe.
        """
        async with self._room:
            at = record.begin
            for number, file in enumerate(record.pending):
                self._files.forget(file.dispatcher_id)
                async with self._looks:
                    reached = await call_in_thread(self._files.repair, file)
                if reached is None:
                    await self._write_again(record, record.pending[number:])
                    return record.pending[-1].end
                at = reached
            return at

    async def _write_again(self, record: DispatcherRecord, missing: Sequence[PendingFile]) -> None:
        """Write files, of which the first is missing, in order: each with the same changes.

        Whoever was to write such a file may still do so, and nothing can stop it. As both have the same
        changes, it does not matter whose file it is.
        """
        await self._sink.write_again([(file, await self._read_again(record, file)) for file in missing])

    async def _read_again(self, record: DispatcherRecord, file: PendingFile) -> list[Slice]:
        """Return slices that together are the changes of a file."""
        table_id = record.span.table_id
        if await _readable_ids(self._source, [table_id], file.end.ts) != [table_id]:
            raise Unavailable(
                f"table {table_id} cannot be read up to {file.end.ts}, so {file.data_path} cannot be"
                " written again; see `penstock status` for what captures it"
            )
        slices: list[Slice] = []
        at = file.start
        while at < file.end:
            slice_ = await self._source.next_slice(
                record.span, at, file.end.ts, self._options.slice_limit, begin=record.begin
            )
            if slice_ is None:
                break
            slices.append(replace(slice_, end=min(slice_.end, file.end)))
            at = slices[-1].end
        return slices


def without_unsent(tables: TableFilter, left_out: Iterable[LeftOutTable]) -> TableFilter:
    """Return the filter without the tables that are left out and were never sent, whose DDLs nobody needs."""
    return tables.excluding(table.table_id for table in left_out if not table.sent)
