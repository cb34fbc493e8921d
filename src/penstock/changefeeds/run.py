"""One run of a changefeed on one sink: it reads, ticks and moves the checkpoint, all on one event loop."""

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Coroutine, Iterable, Sequence
from contextlib import nullcontext
from functools import partial

from penstock.changefeeds.ddl_writer import DdlWriter
from penstock.changefeeds.dispatcher import (
    Dispatcher,
    Dispatchers,
    DispatcherState,
    Drain,
    Horizon,
    Read,
    ReadPace,
)
from penstock.changefeeds.failures import RETRY_BACKOFF, STALL_S, FailureTracker
from penstock.changefeeds.model import (
    DispatcherRecord,
    LeftOutTable,
    ProgressStore,
    describe_left_out,
)
from penstock.changefeeds.resume import ChangefeedOptions, FileRepair, RestoredProgress, without_unsent
from penstock.changefeeds.sinks.sink import FailingDispatcher, Sink, SinkFiles
from penstock.clock import Clock, physical_ms
from penstock.errors import Denied, Invalid, PenstockError, Unavailable
from penstock.eventloop import Place, call_in_thread
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.slices import Slice
from penstock.follow.source import SliceSource
from penstock.metrics import SINK_CHECKPOINT_LAG_SECONDS, SINK_DISPATCHERS, SINK_READING_DISPATCHERS

_KEEP_S = 1.0
_KEEP_IDLE_S = 10.0
_HOLD_S = 10.0

_log = logging.getLogger(__name__)


class ChangefeedRun:
    """Drives the dispatchers with one sink. It is used once: after a failure there is a new run.

    `checkpoint_ts` never goes back, and everything up to it is on the remote; `kept_ts` is the part of it
    that is stored. A later checkpoint is stored only when consumers can read the one before: what people see
    is at most one step ahead of what consumers see, and only what consumers can read counts as progress.
    """

    def __init__(
        self,
        changefeed_id: str,
        resumed: RestoredProgress,
        *,
        source: SliceSource,
        sink: Sink,
        files: SinkFiles,
        progress: ProgressStore,
        options: ChangefeedOptions,
        failures: FailureTracker,
        reading: Place = nullcontext,
        clock: Clock,
    ) -> None:
        """Run with one sink. Each read of the source holds a place of `reading`."""
        self._reading_place = reading
        self.checkpoint_ts = self.kept_ts = resumed.checkpoint_ts
        self._changefeed_id = changefeed_id
        self._source = source
        self._sink = sink
        self._files = files
        self._progress = progress
        self._options = options
        self._failures = failures
        self._clock = clock
        self._dispatchers = Dispatchers()
        self._dispatchers.add(resumed.dispatchers)
        self._ddls = DdlWriter(
            changefeed_id,
            source=source,
            sink=sink,
            progress=progress,
            dispatchers=self._dispatchers,
            tables=resumed.tables,
            left_out=resumed.left_out,
            done=resumed.done,
            table_filter=without_unsent(options.tables, resumed.left_out),
            failures=failures,
        )
        self._unfinished = resumed.unfinished
        self._repairs = FileRepair(source, files, sink, options, clock)
        self._repairing: dict[str, FailingDispatcher] = {}  # whose repair has failed and is tried again
        self._moved_at = clock.monotonic()  # something came to the remote
        self._answered_at = self._moved_at  # it took something, or there was nothing to take
        self._written_ts = 0  # the newest commit of which something came to the remote
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ready: deque[tuple[Dispatcher, Read]] = deque()
        self._reading = 0
        self._given_ts = 0  # the checkpoint that the sink was given to publish
        self._published_ts = (
            resumed.checkpoint_ts
        )  # there is progress whenever the sink publishes a later one
        self._kept_at = self._held_at = clock.monotonic()
        self._held_revision, self._held_ids = 0, frozenset(resumed.tables.ids())
        self._stored_revision, self._looked_at = 0, clock.monotonic()  # of the tables that are left out
        self.warning = ""
        """Why tables or statements are missing here, and the remedy; empty when none is."""

    async def run(self) -> None:
        """Return when `target_ts` is reached; raise what failed. When cancelled, write what was sent.

        The checkpoint is stored at the end, unless it failed. A second cancellation waits for nothing.
        """
        serving = asyncio.create_task(self._sink.run())
        try:
            await self._drive(serving)
        except asyncio.CancelledError:
            await self._stop(serving)
            await self._keep_checkpoint_at_pause()
            raise
        except BaseException:
            await self._stop(serving)
            raise
        await self._stop(serving)
        await self._keep_last_checkpoint()
        await self._failures.retry(lambda: self._source.release(self._held_ids))

    async def _drive(self, serving: "asyncio.Task[None]") -> None:
        self._spawn(self._watch(serving))
        self._spawn(self._ddls.run(self._go_on, self._spawn))
        self._go_on(list(self._dispatchers))
        for record in self._unfinished:
            self._spawn(self._repair(record))
        main = asyncio.create_task(self._tick_to_the_end())
        try:
            await asyncio.wait((main, self._failure), return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
            await main
        finally:
            main.cancel()
            await asyncio.gather(main, return_exceptions=True)

    async def _repair(self, record: DispatcherRecord) -> None:
        """Finish the files that the process before has begun, then let their dispatcher go on."""
        tries = 0
        while True:
            try:
                position = await self._repairs.repair(record)
                break
            except (Unavailable, Denied) as error:
                tries += 1
                # This try may have written a file after all, with other bytes than those that were recorded.
                record = record.with_unknown_sizes()
                known = self._repairing.get(record.span.id)
                since = self._clock.monotonic() if known is None else known.since
                self._repairing[record.span.id] = FailingDispatcher(error, since)
                await self._clock.sleep(RETRY_BACKOFF.delay_s(tries, self._clock.random()))
        self._repairing.pop(record.span.id, None)
        self._note_written(position.ts)
        dispatcher = self._dispatchers.active[record.span.id]
        dispatcher.finish_repair(position)
        self._go_on((dispatcher,))

    async def _tick_to_the_end(self) -> None:
        if self.kept_ts > self._options.begin.checkpoint_ts:
            await self._keep_checkpoint()  # the last run may have ended before it published this one
        while True:
            await self._tick()
            if self._is_at_target(self.kept_ts):
                return
            await self._clock.sleep(self._options.tick_s)

    async def _tick(self) -> None:
        """Read every table's progress once, wake the dispatchers with new changes, move the checkpoint."""
        self._learn_ddls()
        self._exclude_unreadable()
        await self._hold_history()
        ranges = await self._failures.retry(lambda: self._source.read_progress(self._dispatchers.table_ids))
        for table_id in self._dispatchers.update_ranges(ranges):
            self._go_on(self._dispatchers.wake(table_id, self.checkpoint_ts, self._pace))
        active = self._dispatchers.active.values()
        self._go_on([dispatcher for dispatcher in active if dispatcher.state is DispatcherState.READY])
        await self._leave_out_refused()
        self._advance_checkpoint()
        await self._keep_checkpoint_if_due()

    def _learn_ddls(self) -> None:
        for block in self._ddls.learn(self._cap_at_target(self._source.ddl_resolved_ts())):
            for table_id in self._ddls.blocked_ids(block):
                self._dispatchers.wake(table_id, self.checkpoint_ts)

    def _exclude_unreadable(self) -> None:
        """Leave out tables whose descriptions cannot be read and never could; those that are gone, forget."""
        unreadable = [
            schema
            for schema in self._source.unreadable(self._ddls.known_ts)
            if self._options.tables.matches(schema)
        ]
        followed = self._ddls.followed_ids() if unreadable else frozenset()
        self._ddls.exclude(
            LeftOutTable(
                table_id=schema.table.id,
                name=schema.name,
                reason=schema.table.unreadable,
                since_ts=schema.since_ts,
                sent=False,
            )
            for schema in unreadable
            if followed.isdisjoint(schema.table.physical_ids)
        )
        now = self._clock.monotonic()
        if self._ddls.left_out and now >= self._looked_at + _HOLD_S:
            self._looked_at = now
            existing = filter(self._options.tables.matches, self._source.tables(self._ddls.known_ts))
            self._ddls.forget_left_out([*existing, *unreadable])

    async def _leave_out_refused(self) -> None:
        """End the dispatchers of tables that cannot be captured any more, and store that.

        Nothing is left out before all that was captured of it is on the remote. The checkpoint does not move
        before it is stored. Raises Invalid instead when the changefeed is to go on with all tables or none.
        """
        stuck = self._dispatchers.stuck_tables()
        refused = [
            LeftOutTable(
                table_id=table_id,
                name=self._ddls.tables.schema(table_id).name,
                reason=found.refusal.reason,
                since_ts=found.refusal.since_ts,
            )
            for table_id, found in stuck.items()
            if found.refusal is not None and table_id in self._ddls.tables
        ]
        if not self._options.ignore_ineligible_table and (refused or self._ddls.left_out):
            raise Invalid(_describe_ineligible([*refused, *self._ddls.left_out.values()]))
        removed = self._ddls.leave_out(refused) if refused else []
        for table in refused:
            self._log_left_out(table)
        if self._stored_revision != self._ddls.left_out_revision:
            revision, left_out = self._ddls.left_out_revision, tuple(self._ddls.left_out.values())
            await self._failures.retry(
                lambda: self._progress.change_dispatchers((), removed, left_out=left_out)
            )
            self._stored_revision = revision
        for dispatcher_id in removed:
            await self._sink.remove_dispatcher(dispatcher_id)
        missed = [
            self._ddls.tables.schema(table_id).name
            for table_id, found in stuck.items()
            if found.uncaptured and table_id in self._ddls.tables
        ]
        left_out = tuple(self._ddls.left_out.values())
        unknown = _describe_unknown(self._ddls.unknown)
        trouble = self._check_failing() or self._describe_stall()
        warnings = trouble, _describe_missed(missed), unknown, describe_left_out(left_out)
        self.warning = "; ".join(filter(None, warnings))

    def _check_failing(self) -> str:
        """Return which dispatchers cannot write; raise why when nothing has been written for too long."""
        failing = [*self._sink.failing.values(), *self._repairing.values()]
        if not failing:
            return ""
        first = min(failing, key=lambda dispatcher: dispatcher.since)
        self._failures.give_up_after(max(first.since, self._moved_at), first.error)
        return _describe_failing(len(failing), self._failures.describe(first.error))

    def _describe_stall(self) -> str:
        """Return that nothing comes to the remote and nothing fails either; empty when that is not so."""
        now = self._clock.monotonic()
        if not (self._is_publishing or self._dispatchers.are_writing):
            self._answered_at = now
        silent_s = now - self._answered_at
        if silent_s < max(STALL_S, 4 * self._options.flush_interval_s):
            return ""
        return (
            f"nothing was written for {silent_s:.0f} s although something waits: its target does not answer,"
            " or other changefeeds of its account hold all calls; look at the target"
        )

    def _log_left_out(self, table: LeftOutTable) -> None:
        facts = {"changefeed": self._changefeed_id, "table": table.name, "reason": table.reason}
        _log.error("a changefeed goes on without a table that cannot be captured", extra=facts)

    async def _hold_history(self) -> None:
        """Hold the history of the tables that are needed, and release that of the others."""
        now, revision = self._clock.monotonic(), self._ddls.revision
        if revision == self._held_revision and now < self._held_at + _HOLD_S:
            return
        needed = self._ddls.needed_ids(self.kept_ts)
        await self._failures.retry(lambda: self._source.hold(needed, self.kept_ts))
        gone = self._held_ids - needed
        if gone:
            await self._failures.retry(lambda: self._source.release(gone))
        self._held_at, self._held_revision, self._held_ids = now, revision, needed

    def _go_on(self, dispatchers: Iterable[Dispatcher]) -> None:
        for dispatcher in dispatchers:
            self._step(dispatcher)
        self._start_reads()

    def _step(self, dispatcher: Dispatcher) -> None:
        """Do what comes next for an active dispatcher, or make it idle."""
        if dispatcher.state is not DispatcherState.READY:
            return
        table_id = dispatcher.span.table_id
        found = self._dispatchers.ranges.get(table_id)
        ddl = self._ddls.next_of(table_id)
        changed_ts = dispatcher.position.ts if found is None else found.changed_ts
        upto_ts = 0 if found is None else self._cap_at_target(min(found.readable_ts, self._ddls.known_ts))
        horizon = Horizon(upto_ts, changed_ts, None if ddl is None else ddl.commit_ts)
        step = dispatcher.next_step(horizon, None if self._is_at_target(upto_ts) else self._pace)
        if isinstance(step, Read):
            self._ready.append((dispatcher, step))
        elif isinstance(step, Drain):
            assert ddl is not None
            self._spawn(self._ddls.drain(dispatcher, ddl.events[0]))
        elif ddl is None and dispatcher.position.handle is None:
            if self._is_at_target(dispatcher.position.ts):
                self._dispatchers.rest(dispatcher, for_good=True)
            elif dispatcher.caught_up(changed_ts):
                self._dispatchers.rest(dispatcher)

    @property
    def _pace(self) -> ReadPace | None:
        flush_s = self._options.flush_interval_s
        return ReadPace.at(self._clock.monotonic(), flush_s) if flush_s else None

    def _start_reads(self) -> None:
        while self._ready and self._reading < self._options.reads_max:
            self._reading += 1
            self._spawn(self._read(*self._ready.popleft()))

    async def _read(self, dispatcher: Dispatcher, asked: Read) -> None:
        size = self._sink.slice_size(dispatcher.span)
        limit = self._options.slice_limit.up_to(size.file_bytes)
        pace = self._pace

        async def read() -> Slice | None:
            async with self._reading_place():
                return await self._source.next_slice(
                    dispatcher.span, asked.start, asked.upto_ts, limit, begin=dispatcher.begin, size=size
                )

        slice_ = await self._failures.retry(read)
        self._reading -= 1
        event = dispatcher.finish_read(asked, slice_, pace=pace)
        if event is None:
            self._go_on((dispatcher,))
            return
        self._dispatchers.add_unflushed(dispatcher)
        event.add_post_enqueue(partial(self._wake, dispatcher))
        event.add_post_flush(partial(self._note_written, event.slice.end.ts))
        if asked.start.handle is not None:  # inside a snapshot the checkpoint may not move for hours
            event.add_post_flush(self._note_progress_inside)
        self._sink.add_dml_event(event)
        self._start_reads()

    def _note_written(self, ts: int) -> None:
        self._moved_at = self._answered_at = self._clock.monotonic()
        self._written_ts = max(self._written_ts, ts)

    def _note_progress_inside(self) -> None:
        """Count a flushed slice as progress, unless consumers are still to get a checkpoint."""
        if not self._is_publishing:
            self._failures.clear()

    def _wake(self, dispatcher: Dispatcher) -> None:
        dispatcher.wake()
        if not self._failure.done():
            self._go_on((dispatcher,))

    def _is_at_target(self, ts: int) -> bool:
        return self._options.target_ts is not None and ts >= self._options.target_ts

    def _cap_at_target(self, ts: int) -> int:
        target_ts = self._options.target_ts
        return ts if target_ts is None else min(ts, target_ts)

    def _advance_checkpoint(self) -> None:
        if self._stored_revision != self._ddls.left_out_revision:
            return  # a run that begins again would not know which tables are left out
        reached = self._cap_at_target(min(self._dispatchers.checkpoint_ts(), self._ddls.bound_ts))
        self.checkpoint_ts = max(reached, self.checkpoint_ts)

    @property
    def _is_publishing(self) -> bool:
        """Whether consumers cannot read the stored checkpoint yet."""
        return self._sink.published_ts < self._given_ts

    def _note_published(self) -> None:
        if self._sink.published_ts > self._published_ts:
            self._published_ts = self._sink.published_ts
            self._answered_at = self._clock.monotonic()
            self._failures.clear()

    async def _keep_checkpoint_if_due(self) -> None:
        now = self._clock.monotonic()
        self._note_published()
        lag_ms = self._clock.wall_ms() - physical_ms(self.kept_ts)
        SINK_CHECKPOINT_LAG_SECONDS.labels(self._changefeed_id).set(lag_ms / 1000)
        SINK_DISPATCHERS.labels(self._changefeed_id).set(len(self._dispatchers))
        SINK_READING_DISPATCHERS.labels(self._changefeed_id).set(len(self._dispatchers.active))
        due = now >= self._kept_at + self._keep_interval_s or self._is_at_target(self.checkpoint_ts)
        if self.checkpoint_ts == self.kept_ts or not due or self._is_publishing:
            return
        await self._keep_checkpoint()
        self._kept_at = now

    @property
    def _keep_interval_s(self) -> float:
        """How often the checkpoint is stored and published.

        At once while files or DDLs are on the remote that it does not tell of. Otherwise it only follows the
        clock: the longer nothing was written, the longer a step of it may take.
        """
        if self.kept_ts < max(self._written_ts, self._ddls.written_ts):
            return _KEEP_S
        quiet_s = self._clock.monotonic() - self._moved_at
        return min(max(quiet_s, _KEEP_S), _KEEP_IDLE_S)

    async def _keep_checkpoint(self) -> None:
        """Store the checkpoint, then have it published: what consumers have read is never taken back."""
        ts = self.checkpoint_ts
        await self._failures.retry(lambda: self._progress.keep_checkpoint(ts))
        self.kept_ts = self._given_ts = ts
        self._sink.add_checkpoint_ts(ts)
        self._note_published()

    async def _watch(self, serving: "asyncio.Task[None]") -> None:
        await asyncio.shield(serving)
        raise PenstockError("the sink stopped by itself; it is started again")

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish_task)

    def _finish_task(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failure.done():
            self._failure.set_exception(error)

    async def _stop(self, serving: "asyncio.Task[None]") -> None:
        """End every task, the sink last; no dispatcher is woken any more."""
        self._failure.cancel()
        if not self._failure.cancelled():
            self._failure.exception()  # mark it as retrieved: it was raised, or came after the one that was
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await self._close(serving)

    async def _close(self, serving: "asyncio.Task[None]") -> None:
        try:
            await self._sink.close()
        except Exception as error:  # noqa: BLE001 - what it did not write is read again
            self._warn("a sink did not close cleanly", error)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    async def _keep_last_checkpoint(self) -> None:
        """Store and publish the checkpoint, even if it did not move.

        So a process whose changefeed was taken over is fenced here, and publishes nothing. A stored
        checkpoint that is not published yet is published first: if that fails, no later one is stored.
        """
        self._advance_checkpoint()
        for ts in (self.kept_ts, self.checkpoint_ts) if self._is_publishing else (self.checkpoint_ts,):
            await self._progress.keep_checkpoint(ts)
            self.kept_ts = ts
            await call_in_thread(self._files.write_checkpoint, ts)

    async def _keep_checkpoint_at_pause(self) -> None:
        try:
            await self._keep_last_checkpoint()
        except Exception as error:  # noqa: BLE001 - whatever it was, it must not undo the pause
            self._warn("a changefeed was stopped, but its last checkpoint could not be stored", error)

    def _warn(self, message: str, error: Exception) -> None:
        facts = {"changefeed": self._changefeed_id, "error": f"{type(error).__name__}: {error}"}
        _log.warning(message, extra=facts)


def _describe_ineligible(tables: Sequence[LeftOutTable]) -> str:
    first = min(tables, key=lambda table: (table.since_ts, table.name))
    return (
        f"table {first.name} cannot be captured: {first.reason}; fix that, or exclude it with !{first.name}"
        " in the tables of the changefeed, or go on without it by ignore_ineligible_table; then resume"
    )


def _describe_unknown(ddls: Sequence[DdlEvent]) -> str:
    """Return which DDLs consumers got without a statement, and what to do; empty when there is none."""
    if not ddls:
        return ""
    ddl = ddls[-1]
    names = {side.name for change in ddl.tables for side in (change.after, change.before) if side is not None}
    others = f" and {len(ddls) - 1} before it" if len(ddls) > 1 else ""
    return (
        f"the DDL of {', '.join(sorted(names)) or ddl.database} at {ddl.commit_ts}{others} has no statement:"
        " the cluster did not record it in time. Change the target as the schema file of that version says"
    )


def _describe_failing(count: int, error: str) -> str:
    who = "1 dispatcher" if count == 1 else f"{count} dispatchers"
    return f"files of {who} cannot be written now and are tried again, the others go on: {error}"


def _describe_missed(names: Collection[str]) -> str:
    if not names:
        return ""
    first = min(names)
    others = f" and {len(set(names)) - 1} more tables" if len(set(names)) > 1 else ""
    return f"it waits for table {first}{others}: no capture has it; start one whose capture.tables name it"
