"""A changefeed from what was kept until it ends: reads, ticks, checkpoints. Everything on one event loop."""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterable
from functools import partial

from penstock.changefeeds.ddl_writer import DdlWriting
from penstock.changefeeds.dispatcher import Dispatcher, Dispatchers, Drain, Horizon, Read, State
from penstock.changefeeds.failures import FailureTracker
from penstock.changefeeds.model import ProgressStore
from penstock.changefeeds.resume import ChangefeedOptions, ResumedChangefeed
from penstock.changefeeds.sinks.sink import Sink, SinkFiles
from penstock.clock import Clock, physical_ms
from penstock.errors import PenstockError
from penstock.follow.source import SliceSource
from penstock.metrics import SINK_CHECKPOINT_LAG_SECONDS, SINK_DISPATCHERS, SINK_READING_DISPATCHERS

_KEEP_S = 1.0
_HOLD_S = 10.0

_log = logging.getLogger(__name__)


class ChangefeedRun:
    """Drives dispatchers with one sink. It is used once: after a failure there is another one.

    `checkpoint_ts` never goes back, and what it says is on the remote; `kept_ts` of it is durable. A later
    one is kept only when consumers were told the one before: people never see more than one step that
    consumers do not, and only what consumers can read is progress.
    """

    def __init__(
        self,
        feed_id: str,
        resumed: ResumedChangefeed,
        *,
        source: SliceSource,
        sink: Sink,
        files: SinkFiles,
        progress: ProgressStore,
        options: ChangefeedOptions,
        trouble: FailureTracker,
        clock: Clock,
    ) -> None:
        self.checkpoint_ts = self.kept_ts = resumed.checkpoint_ts
        self._feed_id = feed_id
        self._source = source
        self._sink = sink
        self._files = files
        self._progress = progress
        self._options = options
        self._trouble = trouble
        self._clock = clock
        self._dispatchers = Dispatchers()
        self._dispatchers.add(resumed.dispatchers)
        self._ddls = DdlWriting(
            feed_id,
            source=source,
            sink=sink,
            progress=progress,
            dispatchers=self._dispatchers,
            tables=resumed.tables,
            known_ts=resumed.ddl_ts,
            carried=options.tables,
            trouble=trouble,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ready: deque[tuple[Dispatcher, Read]] = deque()
        self._reading = 0
        self._given_ts = 0  # what the sink was given to tell
        self._told_ts = resumed.checkpoint_ts  # there was progress when consumers were told more
        self._kept_at = self._held_at = clock.monotonic()
        self._held_turns, self._held_ids = 0, frozenset(resumed.tables.ids())

    async def run(self) -> None:
        """Until `target_ts` is reached. Raises what failed; when it is cancelled, what was sent is written.

        In both good cases the checkpoint is kept at the end. A second cancellation waits for nothing.
        """
        serving = asyncio.create_task(self._sink.run())
        try:
            await self._drive(serving)
        except asyncio.CancelledError:
            await self._stop(serving)
            await self._keep_at_pause()
            raise
        except BaseException:
            await self._stop(serving)
            raise
        await self._stop(serving)
        await self._keep_last()
        await self._trouble.through(lambda: self._source.release(self._held_ids))

    async def _drive(self, serving: "asyncio.Task[None]") -> None:
        self._spawn(self._watch(serving))
        self._spawn(self._ddls.run(self._go_on))
        self._go_on(list(self._dispatchers))
        main = asyncio.create_task(self._tick_to_the_end())
        try:
            await asyncio.wait((main, self._failure), return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
            await main
        finally:
            main.cancel()
            await asyncio.gather(main, return_exceptions=True)

    async def _tick_to_the_end(self) -> None:
        if self.kept_ts > self._options.begin.checkpoint_ts:
            await self._keep_checkpoint()  # who was here before may not have come to tell it
        while True:
            await self._tick()
            if self._at_target(self.kept_ts):
                return
            await self._clock.sleep(self._options.tick_s)

    async def _tick(self) -> None:
        """Look at every table once, wake who has something to do, and keep what was reached."""
        self._learn_ddls()
        await self._hold_history()
        looks = await self._trouble.through(lambda: self._source.look(self._dispatchers.table_ids))
        for table_id in self._dispatchers.looked(looks):
            self._go_on(self._dispatchers.wake(table_id, self.checkpoint_ts))
        self._go_on([each for each in self._dispatchers.active.values() if each.state is State.READY])
        self._advance_checkpoint()
        await self._keep()

    def _learn_ddls(self) -> None:
        for block in self._ddls.learn(self._bounded(self._source.ddl_resolved_ts())):
            for table_id in self._ddls.blocked_ids(block):
                self._dispatchers.wake(table_id, self.checkpoint_ts)

    async def _hold_history(self) -> None:
        """Hold that of the tables that are needed, and let that of others go."""
        now, turns = self._clock.monotonic(), self._ddls.turns
        if turns == self._held_turns and now < self._held_at + _HOLD_S:
            return
        needed = self._ddls.needed_ids(self.kept_ts)
        await self._trouble.through(lambda: self._source.hold(needed, self.kept_ts))
        gone = self._held_ids - needed
        if gone:
            await self._trouble.through(lambda: self._source.release(gone))
        self._held_at, self._held_turns, self._held_ids = now, turns, needed

    def _go_on(self, dispatchers: Iterable[Dispatcher]) -> None:
        for each in dispatchers:
            self._step(each)
        self._read_more()

    def _step(self, dispatcher: Dispatcher) -> None:
        """Do what comes next for an active dispatcher, or let it rest."""
        if dispatcher.state is not State.READY:
            return
        table_id = dispatcher.spec.table_id
        look = self._dispatchers.looks.get(table_id)
        ddl = self._ddls.next_of(table_id)
        changed_ts = dispatcher.position.ts if look is None else look.changed_ts
        upto_ts = 0 if look is None else self._bounded(min(look.readable_ts, self._ddls.known_ts))
        step = dispatcher.next(Horizon(upto_ts, changed_ts, None if ddl is None else ddl.commit_ts))
        if isinstance(step, Read):
            self._ready.append((dispatcher, step))
        elif isinstance(step, Drain):
            assert ddl is not None
            self._spawn(self._ddls.drain(dispatcher, ddl.events[0]))
        elif ddl is None and dispatcher.position.handle is None:
            if self._at_target(dispatcher.position.ts):
                self._dispatchers.rest(dispatcher, for_good=True)
            elif dispatcher.caught_up(changed_ts):
                self._dispatchers.rest(dispatcher)

    def _read_more(self) -> None:
        while self._ready and self._reading < self._options.reads_max:
            self._reading += 1
            self._spawn(self._read(*self._ready.popleft()))

    async def _read(self, dispatcher: Dispatcher, asked: Read) -> None:
        limit = self._options.slice_limit
        piece = await self._trouble.through(
            lambda: self._source.next_slice(
                dispatcher.spec, asked.start, asked.upto_ts, limit, begin=dispatcher.begin
            )
        )
        self._reading -= 1
        event = dispatcher.read(asked, piece)
        if event is None:
            self._go_on((dispatcher,))
            return
        self._dispatchers.sent(dispatcher)
        event.add_post_enqueue(partial(self._woken, dispatcher))
        if asked.start.handle is not None:  # inside a snapshot no checkpoint moves for hours
            event.add_post_flush(self._flushed_inside)
        self._sink.add_dml_event(event)
        self._read_more()

    def _flushed_inside(self) -> None:
        if not self._untold:
            self._trouble.over()

    def _woken(self, dispatcher: Dispatcher) -> None:
        dispatcher.woken()
        if not self._failure.done():
            self._go_on((dispatcher,))

    def _at_target(self, ts: int) -> bool:
        return self._options.target_ts is not None and ts >= self._options.target_ts

    def _bounded(self, ts: int) -> int:
        target_ts = self._options.target_ts
        return ts if target_ts is None else min(ts, target_ts)

    def _advance_checkpoint(self) -> None:
        reached = self._bounded(min(self._dispatchers.checkpoint_ts(), self._ddls.bound_ts))
        self.checkpoint_ts = max(reached, self.checkpoint_ts)

    @property
    def _untold(self) -> bool:
        """Whether consumers are still to be told what was kept."""
        return self._sink.told_ts < self._given_ts

    def _hear_told(self) -> None:
        if self._sink.told_ts > self._told_ts:
            self._told_ts = self._sink.told_ts
            self._trouble.over()

    async def _keep(self) -> None:
        now = self._clock.monotonic()
        self._hear_told()
        lag_ms = self._clock.wall_ms() - physical_ms(self.kept_ts)
        SINK_CHECKPOINT_LAG_SECONDS.labels(self._feed_id).set(lag_ms / 1000)
        SINK_DISPATCHERS.labels(self._feed_id).set(len(self._dispatchers))
        SINK_READING_DISPATCHERS.labels(self._feed_id).set(len(self._dispatchers.active))
        due = now >= self._kept_at + _KEEP_S or self._at_target(self.checkpoint_ts)
        if self.checkpoint_ts == self.kept_ts or not due or self._untold:
            return
        await self._keep_checkpoint()
        self._kept_at = now

    async def _keep_checkpoint(self) -> None:
        """First for us, then for consumers: what they were told is never taken back."""
        ts = self.checkpoint_ts
        await self._trouble.through(lambda: self._progress.keep_checkpoint(ts))
        self.kept_ts = self._given_ts = ts
        self._sink.add_checkpoint_ts(ts)
        self._hear_told()

    async def _watch(self, serving: "asyncio.Task[None]") -> None:
        await asyncio.shield(serving)
        raise PenstockError("the sink stopped by itself; it is started again")

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failure.done():
            self._failure.set_exception(error)

    async def _stop(self, serving: "asyncio.Task[None]") -> None:
        """End everything that goes on, the sink last; nobody is woken any more."""
        self._failure.cancel()
        if not self._failure.cancelled():
            self._failure.exception()  # it was raised, or comes after what was
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

    async def _keep_last(self) -> None:
        """Keep it whether it moved or not: who was taken over hears of it, and tells consumers nothing.

        What was kept before is told first, if it is not: when that fails, no later one is kept.
        """
        self._advance_checkpoint()
        for ts in (self.kept_ts, self.checkpoint_ts) if self._untold else (self.checkpoint_ts,):
            await self._progress.keep_checkpoint(ts)
            self.kept_ts = ts
            await asyncio.to_thread(self._files.write_checkpoint, ts)

    async def _keep_at_pause(self) -> None:
        try:
            await self._keep_last()
        except Exception as error:  # noqa: BLE001 - whatever it was, it must not undo the pause
            self._warn("a changefeed was stopped without keeping how far it came at last", error)

    def _warn(self, message: str, error: Exception) -> None:
        facts = {"changefeed": self._feed_id, "error": f"{type(error).__name__}: {error}"}
        _log.warning(message, extra=facts)
