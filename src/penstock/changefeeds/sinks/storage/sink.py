"""The storage sink: it takes the events of dispatchers and writes files to object storage."""

import asyncio
from collections.abc import Mapping, Sequence

from penstock.changefeeds.engines.engine import SinkEngine
from penstock.changefeeds.model import PendingFile, ProgressStore
from penstock.changefeeds.sinks.sink import DmlEvent, DrainMarker, FailingDispatcher
from penstock.changefeeds.sinks.storage.ledger import Ledger
from penstock.changefeeds.sinks.storage.metrics import SinkMetrics
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.remote_files import RemoteFiles
from penstock.changefeeds.sinks.storage.spool import ItemBudget, ItemShare, SpoolAllowance
from penstock.changefeeds.sinks.storage.workers import EncodeLoop, PendingRecords, WriteLoop, write_again
from penstock.clock import SYSTEM, Clock
from penstock.errors import Unavailable
from penstock.eventloop import Notifier, Place, TaskScope, ThreadRunner, WakeUp
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.slices import Slice, SliceSize, TableSpan

_CHECKPOINT_INTERVAL_S = 1.0
_THREADS = 64  # requests of the driver to the remote that overlap
_AGE_INTERVAL_S = 1.0
_SWEEP_INTERVAL_S = 60.0
_IDLE_S = 600.0  # after which the state of a dispatcher's files is forgotten


class StorageSink:
    """Brings the events of dispatchers into files, each dispatcher's in order.

    An event is acknowledged twice: `post_enqueue` when it is in the spool and the spool is not too full,
    `post_flush` when its data and index are on the remote. A file that cannot be written now is tried again,
    and only its dispatcher waits. After any other failure, which `run` raises, nothing is acknowledged any
    more, events are ignored and the calls for DDLs raise. For one event loop.
    """

    def __init__(
        self,
        engine: SinkEngine,
        files: RemoteFiles,
        progress: ProgressStore,
        options: SinkOptions,
        *,
        changefeed: str,
        allowance: SpoolAllowance | None = None,
        items: ItemShare | None = None,
        place: Place | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Make a sink; until it is closed, its spool is one of those that share the `allowance`, and has its
        share of `items`.

        Each call of the remote holds a `place`.
        """
        self._allowance = allowance
        if allowance is not None:
            allowance.open += 1
        self._items = items or ItemBudget().open()
        self._engine = engine
        self._files = files
        self._options = options
        self._clock = clock
        self._metrics = SinkMetrics(changefeed)
        self._tasks = TaskScope()
        self._records = PendingRecords(progress, self._tasks)
        self._threads = ThreadRunner(_THREADS, "penstock-sink", place=place)
        self._ledger = Ledger(
            options,
            self._metrics,
            self._release,
            clock,
            cores=engine.cores,
            items=self._items,
            allowance=allowance,
        )
        self._set_marks()
        self._writing = WriteLoop(
            engine,
            files,
            self._records,
            self._ledger,
            options,
            self._metrics,
            self._tasks,
            self._threads,
            on_progress=self._notify,
            clock=clock,
        )
        self._encoding = EncodeLoop(
            engine,
            self._ledger,
            options,
            self._metrics,
            self._tasks,
            on_progress=self._notify,
            on_due=self._notify_writing,
            clock=clock,
        )
        self._checkpoints = CheckpointWriter(files, self._threads, self._metrics, clock)
        self._notifier = Notifier()
        self._running = False
        self._closing = False
        self._stopped = False

    def slice_size(self, dispatcher: TableSpan) -> SliceSize:
        """Return how many estimated bytes a slice should have to fill a file, and who encodes others."""
        return self._ledger.slice_size(dispatcher.id)

    def add_dml_event(self, event: DmlEvent) -> None:
        """Append a slice to its dispatcher's queue. It never blocks; after a failure the slice is ignored."""
        if not self._closing and not self._ended:
            self._ledger.add(event)
            self._encoding.changed.notify()

    async def pass_block_event(self, dispatcher: TableSpan, event: DdlEvent) -> None:
        """Return when everything that the dispatcher has sent before is on the remote.

        Raises the failure that ends the sink before that.
        """
        self._check()
        marker = DrainMarker(dispatcher, event.commit_ts, at=self._clock.monotonic())
        self._ledger.add(marker)
        self._encoding.changed.notify()
        await marker.wait()

    async def write_block_event(self, event: DdlEvent) -> None:
        """Write the schema files of a DDL. Repeating it changes nothing."""
        self._check()
        with self._metrics.stage("ddl"):
            await self._threads.call(self._files.write_ddl, event)

    @property
    def published_ts(self) -> int:
        """The newest checkpoint that this sink has published to consumers; 0 before the first."""
        return self._checkpoints.written_ts

    def add_checkpoint_ts(self, ts: int) -> None:
        """Publish a checkpoint to consumers soon; it is skipped if a later one comes first."""
        self._checkpoints.add(ts)

    async def write_again(self, files: Sequence[tuple[PendingFile, Sequence[Slice]]]) -> None:
        """Write files of one dispatcher that a process before this one began and that are not there.

        Before the dispatcher sends anything. Raises Unavailable when a file cannot be written now.
        """
        self._check()
        with self._metrics.stage("write"):
            at_ms = self._clock.wall_ms()
            await write_again(files, self._engine, self._records, self._options, encoded_at_ms=at_ms)

    @property
    def failing(self) -> Mapping[str, FailingDispatcher]:
        """The dispatchers whose changes cannot be encoded or written now and are tried again."""
        return {**self._encoding.retries.failing, **self._writing.retries.failing}

    async def remove_dispatcher(self, dispatcher_id: str) -> None:
        """Forget a dispatcher. Nothing of it is written after the return.

        One that has drained loses nothing. The events of another that are in no file yet are dropped without
        an acknowledgement.
        """
        why = Unavailable(f"dispatcher {dispatcher_id} was removed before it had drained")
        self._ledger.drop_queued(dispatcher_id, why)
        await self._notifier.wait_for(
            lambda: self._ended or not self._ledger.shards.is_underway(dispatcher_id)
        )
        self._ledger.drop_buffered(dispatcher_id, why)
        await self._notifier.wait_for(
            lambda: self._ended or not self._ledger.buffers.is_writing(dispatcher_id)
        )
        self._ledger.forget(dispatcher_id)
        await self._threads.call(self._files.forget, dispatcher_id)
        self._notify()

    async def run(self) -> None:
        """Work until `close` or the first failure, which is raised."""
        assert not self._running, "a sink runs once"
        self._running = True
        for loop in (self._encoding, self._writing, self._checkpoints):
            self._tasks.start(loop.run())
        self._tasks.start(self._housekeep())
        try:
            await self._tasks.wait()
        finally:
            await self._stop()
        if self._tasks.failure is not None:
            raise self._tasks.failure

    async def _stop(self) -> None:
        """End all work; those who wait for a drain get the reason."""
        try:
            await self._tasks.stop()
        finally:
            self._stopped = True
            self._ledger.fail_markers(self._end)
            self._notifier.notify_all()

    async def close(self) -> None:
        """Write the events that were accepted, unless the sink has failed; then release everything.

        What cannot be written now is left out, and `run` raises why.

        When cancelled, it stops writing and still releases everything.
        """
        self._closing = True
        try:
            if self._running and not self._ended:
                self._encoding.retries.close()
                self._writing.retries.close()
                await self._notifier.wait_for(
                    lambda: self._ended or self._ledger.shards.idle or bool(self.failing)
                )
                self._ledger.buffers.flush()
                self._writing.changed.notify()
                await self._notifier.wait_for(
                    lambda: self._ended or self._ledger.buffers.active <= len(self._writing.retries.failing)
                )
                await self._checkpoints.write()
                for failing in self.failing.values():
                    self._tasks.end(failing.error)
        finally:
            self._tasks.end()
            await self._release_all()

    async def _release_all(self) -> None:
        if self._running:
            await self._notifier.wait_for(lambda: self._stopped)
        self._ledger.fail_markers(self._end)
        self._threads.close()
        self._metrics.forget()
        if self._allowance is not None:
            self._allowance.open -= 1
            self._allowance = None
        self._items.close()
        await self._engine.close()

    async def _housekeep(self) -> None:
        """Measure the age of the oldest event, and forget the state of idle dispatchers' files."""
        swept_at = self._clock.monotonic()
        while True:
            self._metrics.set_oldest_age(self._ledger.oldest_age_s)
            self._set_marks()
            self._ledger.release_held()  # other spools of the account may have left room
            await self._clock.sleep(_AGE_INTERVAL_S)
            if self._clock.monotonic() - swept_at >= _SWEEP_INTERVAL_S:
                swept_at = self._clock.monotonic()
                with self._metrics.stage("sweep"):
                    await self._threads.call(self._files.sweep, _IDLE_S)

    def _set_marks(self) -> None:
        spool = self._ledger.spool
        self._metrics.set_marks(quota=spool.quota_bytes, high=spool.high_bytes, low=spool.low_bytes)

    def _release(self, segment: int) -> None:
        self._tasks.start(self._release_segment(segment))

    async def _release_segment(self, segment: int) -> None:
        with self._metrics.stage("release"):
            await self._engine.release(segment)

    def _notify(self) -> None:
        """Wake every loop: something has moved from one stage to the next."""
        self._encoding.changed.notify()
        self._notify_writing()

    def _notify_writing(self) -> None:
        """Wake the loop that writes, and whoever waits for what has moved."""
        spool = self._ledger.spool
        self._metrics.set_levels(
            queued=len(self._ledger.shards),
            nbytes=spool.nbytes,
            items=spool.items,
            retained_bytes=spool.retained_bytes,
            active=self._ledger.buffers.active,
        )
        self._writing.changed.notify()
        self._notifier.notify_all()

    @property
    def _ended(self) -> bool:
        return self._stopped or self._tasks.failure is not None

    @property
    def _end(self) -> BaseException:
        return self._tasks.failure or Unavailable(
            "the sink has ended; open a new one and go on from the checkpoint"
        )

    def _check(self) -> None:
        if self._closing or self._ended:
            raise self._end


class CheckpointWriter:
    """Writes the newest checkpoint, at most one per `_CHECKPOINT_INTERVAL_S`; older ones are skipped."""

    def __init__(self, files: RemoteFiles, threads: ThreadRunner, metrics: SinkMetrics, clock: Clock) -> None:
        self._files = files
        self._threads = threads
        self._metrics = metrics
        self._clock = clock
        self._newest_ts = 0
        self.written_ts = 0
        self._changed = WakeUp(clock)
        self._one_at_a_time = asyncio.Lock()

    def add(self, ts: int) -> None:
        """Have a checkpoint written if it is the newest."""
        if ts > self._newest_ts:
            self._newest_ts = ts
            self._changed.notify()

    async def run(self) -> None:
        """Write checkpoints for ever."""
        while True:
            await self._changed.wait()
            await self.write()
            await self._clock.sleep(_CHECKPOINT_INTERVAL_S)

    async def write(self) -> None:
        """Write the newest checkpoint now, unless it is written."""
        async with self._one_at_a_time:
            newest_ts = self._newest_ts
            if newest_ts > self.written_ts:
                with self._metrics.stage("checkpoint"):
                    await self._threads.call(self._files.write_checkpoint, newest_ts)
                self.written_ts = newest_ts
