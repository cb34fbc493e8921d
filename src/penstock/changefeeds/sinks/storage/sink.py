"""The storage sink: changes in, files on object storage out.

Tells consumers how far the files go, not too often.
"""

import asyncio

from penstock.changefeeds.engines.engine import SinkEngine
from penstock.changefeeds.model import ProgressStore
from penstock.changefeeds.sinks.sink import DmlEvent, DrainMarker
from penstock.changefeeds.sinks.storage.ledger import Ledger
from penstock.changefeeds.sinks.storage.metrics import SinkMetrics
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.remote_files import RemoteFiles
from penstock.changefeeds.sinks.storage.workers import EncodeLoop, WriteLoop
from penstock.clock import SYSTEM, Clock
from penstock.errors import Unavailable
from penstock.eventloop import Notifier, TaskScope, ThreadRunner, WakeUp
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.slices import TableSpan

_INTERVAL_S = 2.0


class Checkpoints:
    """Writes the newest checkpoint, at most one in `_INTERVAL_S`; older ones are skipped."""

    def __init__(self, files: RemoteFiles, threads: ThreadRunner, metrics: SinkMetrics, clock: Clock) -> None:
        self._files = files
        self._threads = threads
        self._metrics = metrics
        self._clock = clock
        self._newest = 0
        self.written = 0
        self._changed = WakeUp(clock)
        self._one_at_a_time = asyncio.Lock()

    def add(self, ts: int) -> None:
        """A checkpoint, to be written if it is the newest."""
        if ts > self._newest:
            self._newest = ts
            self._changed.tell()

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._changed.wait()
            await self.write()
            await self._clock.sleep(_INTERVAL_S)

    async def write(self) -> None:
        """Write the newest now, unless it is there."""
        async with self._one_at_a_time:
            newest = self._newest
            if newest > self.written:
                with self._metrics.stage("checkpoint"):
                    await self._threads.call(self._files.write_checkpoint, newest)
                self.written = newest


_THREADS = 64  # requests of the driver to the remote that overlap
_LOOK_S = 1.0
_SWEEP_S = 60.0
_IDLE_S = 600.0  # after it, what is known of a dispatcher's files is given back


class StorageSink:
    """Carries the events of dispatchers to files, each dispatcher's in order.

    An event is acknowledged twice: `post_enqueue` when it is in the spool and the spool is not too full,
    `post_flush` when its data and index are on the remote. After the first failure, which `run` raises,
    nothing is acknowledged any more, events are ignored and the calls for DDLs raise. For one event loop.
    """

    def __init__(
        self,
        engine: SinkEngine,
        files: RemoteFiles,
        progress: ProgressStore,
        options: SinkOptions,
        *,
        changefeed: str,
        clock: Clock = SYSTEM,
    ) -> None:
        self._engine = engine
        self._files = files
        self._clock = clock
        self._metrics = SinkMetrics(changefeed)
        self._underway = TaskScope()
        self._threads = ThreadRunner(_THREADS, "penstock-sink")
        self._ledger = Ledger(options, self._metrics, self._release, clock)
        spool = self._ledger.spool
        self._metrics.marks(quota=spool.quota_bytes, high=spool.high_bytes, low=spool.low_bytes)
        self._writing = WriteLoop(
            engine,
            files,
            progress,
            self._ledger,
            options,
            self._metrics,
            self._underway,
            self._threads,
            on_progress=self._progressed,
            clock=clock,
        )
        self._encoding = EncodeLoop(
            engine,
            self._ledger,
            options,
            self._metrics,
            self._underway,
            on_progress=self._progressed,
            on_due=self._writing.changed.tell,
            clock=clock,
        )
        self._checkpoints = Checkpoints(files, self._threads, self._metrics, clock)
        self._pulse = Notifier()
        self._running = False
        self._closing = False
        self._stopped = False

    def add_dml_event(self, event: DmlEvent) -> None:
        """Take a slice: the end of its dispatcher's queue. Never blocks, no I/O; ignored after a failure."""
        if not self._closing and not self._ended:
            self._ledger.arrive(event)
            self._encoding.changed.tell()

    async def pass_block_event(self, dispatcher: TableSpan, event: DdlEvent) -> None:
        """Return when everything that the dispatcher has sent before is on the remote.

        Raises what keeps it from getting there.
        """
        self._check()
        marker = DrainMarker(dispatcher, event.commit_ts, at=self._clock.monotonic())
        self._ledger.arrive(marker)
        self._encoding.changed.tell()
        await marker.wait()

    async def write_block_event(self, event: DdlEvent) -> None:
        """Write the schema files of a DDL. Doing it again changes nothing."""
        self._check()
        with self._metrics.stage("ddl"):
            await self._threads.call(self._files.write_ddl, event)

    @property
    def told_ts(self) -> int:
        """The newest checkpoint that consumers can read by this sink's doing; 0 before the first."""
        return self._checkpoints.written

    def add_checkpoint_ts(self, ts: int) -> None:
        """Tell consumers that everything up to it is there, in a moment; older ones are skipped."""
        self._checkpoints.add(ts)

    async def remove_dispatcher(self, dispatcher_id: str) -> None:
        """Forget a dispatcher. Nothing of it is written after the return.

        One that has drained loses nothing; of any other what is in no file yet is dropped, unacknowledged.
        """
        why = Unavailable(f"dispatcher {dispatcher_id} was removed before it had drained")
        self._ledger.drop_queued(dispatcher_id, why)
        await self._pulse.until(lambda: self._ended or not self._ledger.shards.underway(dispatcher_id))
        self._ledger.drop_buffered(dispatcher_id, why)
        await self._pulse.until(lambda: self._ended or not self._ledger.buffers.writing(dispatcher_id))
        self._ledger.forget(dispatcher_id)
        await self._threads.call(self._files.forget, dispatcher_id)
        self._progressed()

    async def run(self) -> None:
        """Work until `close` or the first failure, which is raised."""
        assert not self._running, "a sink runs once"
        self._running = True
        for loop in (self._encoding, self._writing, self._checkpoints):
            self._underway.start(loop.run())
        self._underway.start(self._keep_house())
        try:
            await self._underway.ended()
        finally:
            await self._stop()
        if self._underway.failure is not None:
            raise self._underway.failure

    async def _stop(self) -> None:
        """End all work; whoever waits for a drain hears why it will not come."""
        try:
            await self._underway.stop()
        finally:
            self._stopped = True
            self._ledger.fail_markers(self._end)
            self._pulse.beat()

    async def close(self) -> None:
        """Write what was given before, unless the sink has failed; then release everything.

        Cancelled, it gives up writing and releases everything nevertheless.
        """
        self._closing = True
        try:
            if self._running and not self._ended:
                await self._pulse.until(lambda: self._ended or self._ledger.shards.idle)
                self._ledger.buffers.flush()
                self._writing.changed.tell()
                await self._pulse.until(lambda: self._ended or not self._ledger.buffers.active)
                await self._checkpoints.write()
        finally:
            self._underway.end()
            await self._release_all()

    async def _release_all(self) -> None:
        if self._running:
            await self._pulse.until(lambda: self._stopped)
        self._ledger.fail_markers(self._end)
        self._threads.close()
        self._metrics.forget()
        await self._engine.close()

    async def _keep_house(self) -> None:
        """Look how old the oldest event is, and give back what is known of idle dispatchers' files."""
        swept_at = self._clock.monotonic()
        while True:
            self._metrics.oldest(self._ledger.oldest_age_s)
            await self._clock.sleep(_LOOK_S)
            if self._clock.monotonic() - swept_at >= _SWEEP_S:
                swept_at = self._clock.monotonic()
                with self._metrics.stage("sweep"):
                    await self._threads.call(self._files.sweep, _IDLE_S)

    def _release(self, segment: int) -> None:
        self._underway.start(self._release_segment(segment))

    async def _release_segment(self, segment: int) -> None:
        with self._metrics.stage("release"):
            await self._engine.release(segment)

    def _progressed(self) -> None:
        """Something has gone from one stage to the next: whoever may go on now looks."""
        spool = self._ledger.spool
        self._metrics.levels(
            queued=len(self._ledger.shards),
            nbytes=spool.nbytes,
            items=spool.items,
            retained_bytes=spool.retained_bytes,
            active=self._ledger.buffers.active,
        )
        self._encoding.changed.tell()
        self._writing.changed.tell()
        self._pulse.beat()

    @property
    def _ended(self) -> bool:
        return self._stopped or self._underway.failure is not None

    @property
    def _end(self) -> BaseException:
        return self._underway.failure or Unavailable(
            "the sink has ended; open a new one and go on from the checkpoint"
        )

    def _check(self) -> None:
        if self._closing or self._ended:
            raise self._end
