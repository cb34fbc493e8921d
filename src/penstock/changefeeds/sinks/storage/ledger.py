"""What the sink was given and how far each of it has come: queue, spool, files. No I/O, no task."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.changefeeds.engines.engine import Chunk
from penstock.changefeeds.sinks.drain import DrainMarker
from penstock.changefeeds.sinks.storage.buffers import Buffers
from penstock.changefeeds.sinks.storage.filetasks import FileTask, Waiting
from penstock.changefeeds.sinks.storage.metrics import SinkMetrics
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.ratios import SizeEstimator
from penstock.changefeeds.sinks.storage.shards import ShardBatch, Shards
from penstock.changefeeds.sinks.storage.spool import Spool
from penstock.changefeeds.sinks.work import DmlEvent
from penstock.clock import Clock

_ENCODE_JOB_BYTES = 256 * 1024 * 1024

_FIRST_CHUNK_RATIO = {"canal-json": 10.0, "debezium": 10.0, "csv": 5.0, "parquet": 1.0}
"""Until it is known: objects, which slices are estimated by, are compressed columns."""


@dataclass(frozen=True, slots=True)
class EncodeJob:
    """Heads of several shards, to be encoded together."""

    batches: tuple[ShardBatch, ...]
    expected_bytes: int

    @property
    def events(self) -> list[DmlEvent]:
        """What is to be encoded, in the order of `Ledger.encoded`."""
        return [event for batch in self.batches for event in batch.events]


class Ledger:
    """The one place where an event, a marker or a chunk goes from one stage to the next, and who is told.

    `on_free` is told of segments that nobody needs any more.
    """

    def __init__(
        self, options: SinkOptions, metrics: SinkMetrics, on_free: Callable[[int], None], clock: Clock
    ) -> None:
        self.shards = Shards(options.worker_count)
        self.spool = Spool(options.spool_disk_quota)
        self._file_ratios = SizeEstimator(options.file_size)  # bytes of a file to bytes of its chunks
        # bytes of chunks to those that their slice estimates
        self._chunk_ratios = SizeEstimator(options.file_size, first=_FIRST_CHUNK_RATIO[options.protocol])
        self.buffers = Buffers(options.file_size, options.flush_interval_s, self._file_ratios)
        self._job_bytes = min(_ENCODE_JOB_BYTES, max(options.spool_disk_quota // 4, 1))
        self._metrics = metrics
        self._on_free = on_free
        self._clock = clock
        self._arrivals: OrderedDict[DmlEvent, float] = OrderedDict()  # not on the remote, the oldest first
        self._markers: dict[DrainMarker, None] = {}

    def arrive(self, item: Waiting) -> None:
        """The end of its dispatcher's queue."""
        if isinstance(item, DmlEvent):
            self._arrivals[item] = self._clock.monotonic()
        else:
            self._markers[item] = None
        self.shards.put(item)

    @property
    def oldest_age_s(self) -> float:
        """How long the oldest event has been here that is not on the remote."""
        oldest = next(iter(self._arrivals.values()), None)
        return 0.0 if oldest is None else self._clock.monotonic() - oldest

    def next_job(self) -> EncodeJob | None:
        """What to encode next, as far as the spool has room for it."""
        room = self.spool.room
        batches = self.shards.take(self._weigh, room=room, limit=self._job_bytes, alone=self.spool.empty)
        if not batches:
            self._make_room(room)
            return None
        job = EncodeJob(tuple(batches), sum(self._weigh(e) for batch in batches for e in batch.events))
        self.spool.expect(job.expected_bytes)
        return job

    def _weigh(self, event: DmlEvent) -> int:
        ratio = self._chunk_ratios.of(event.slice.dispatcher.id)
        return max(int(event.slice.nbytes * ratio), 1)

    def _make_room(self, room: int) -> None:
        """If an event waits for room: write what holds the oldest segments, up to half of the quota."""
        waiting = self.shards.first_waiting()
        need = self._weigh(waiting) if waiting is not None else 0
        if need > room:
            quota = self.spool.quota_bytes
            keep = max(min(quota // 2, quota - need), 0)
            self.buffers.unpin(set(self.spool.oldest_segments(keep)))

    def encoded(self, job: EncodeJob, chunks: Sequence[Sequence[Chunk]]) -> None:
        """The job has ended: its events are in the spool, and its markers follow them."""
        self.spool.settle(job.expected_bytes)
        for chunk_list in chunks:
            self.spool.add(chunk_list)
        in_order = iter(chunks)
        for batch in job.batches:
            for item in batch.items:
                if isinstance(item, DmlEvent):
                    self._enqueue(item, next(in_order))
                else:
                    self._mark(item)
            self.shards.done(batch)
        self._relieve()

    def _enqueue(self, event: DmlEvent, chunks: Sequence[Chunk]) -> None:
        nbytes = sum(chunk.nbytes for chunk in chunks)
        self._chunk_ratios.learn(event.slice.dispatcher.id, event.slice.nbytes, nbytes)
        done = self.buffers.add(event, chunks, self._arrivals[event])
        if self.spool.admit(event):
            self._wake(event)
        else:
            self._metrics.suppressed.inc()
        if done:
            self._tell(event)

    def _mark(self, marker: DrainMarker) -> None:
        marker.encoded(self._clock.monotonic())
        if self.buffers.mark(marker, marker.dispatcher.id):
            self._tell(marker)

    def written(self, task: FileTask, nbytes: int) -> None:
        """A file of so many bytes is on the remote: those who waited for it are told."""
        self._file_ratios.learn(task.dispatcher.id, task.nbytes, nbytes)
        self.left_out(task)

    def left_out(self, task: FileTask) -> None:
        """As if it were on the remote: nobody wants it there."""
        self.buffers.done(task)
        for waiting in task.waiting:
            self._tell(waiting)
        self._free(task.chunks)

    def _wake(self, event: DmlEvent) -> None:
        self._metrics.wakes.inc()
        event.post_enqueue()

    def _tell(self, waiting: Waiting) -> None:
        if isinstance(waiting, DmlEvent):
            del self._arrivals[waiting]
            waiting.post_flush()
        else:
            del self._markers[waiting]
            remote_s = self._clock.monotonic() - waiting.encoded_at
            self._metrics.drained(waiting.encoded_at - waiting.begun_at, remote_s)
            waiting.acknowledge()

    def _free(self, chunks: Sequence[Chunk]) -> None:
        for segment in self.spool.remove(chunks):
            self._on_free(segment)
        for event in self.spool.resumed():
            self._wake(event)
        self._relieve()

    def _relieve(self) -> None:
        """What is not on its way to the remote does not keep dispatchers waiting: only what is does."""
        if self.spool.paused:
            self.buffers.relieve(self.spool.low_bytes)

    def drop_queued(self, dispatcher_id: str, why: BaseException) -> None:
        """Forget what a dispatcher has in the queue. Its markers fail, its events are not acknowledged."""
        self._forget(self.shards.drop(dispatcher_id), why)

    def drop_buffered(self, dispatcher_id: str, why: BaseException) -> None:
        """Forget what it has in the spool and in no file yet."""
        chunks, waiting = self.buffers.drop(dispatcher_id)
        self._forget(waiting, why)
        self._free(chunks)

    def forget(self, dispatcher_id: str) -> None:
        """Give back what was learnt of a dispatcher of which nothing is here any more."""
        self._file_ratios.forget(dispatcher_id)
        self._chunk_ratios.forget(dispatcher_id)

    def _forget(self, dropped: Sequence[Waiting], why: BaseException) -> None:
        for item in dropped:
            if isinstance(item, DmlEvent):
                del self._arrivals[item]
            else:
                del self._markers[item]
                item.fail(why)

    def fail_markers(self, why: BaseException) -> None:
        """Nothing goes on any more: whoever waits for a drain is told why."""
        for marker in self._markers:
            marker.fail(why)
        self._markers.clear()
