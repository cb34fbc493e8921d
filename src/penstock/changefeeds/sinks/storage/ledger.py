"""What the sink was given and how far each of it has come: queue, spool, files. No I/O, no task.

Queues before encoding: a fixed number of them, first in, first out, by dispatcher. Pure.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from zlib import crc32

from penstock.changefeeds.engines.engine import Chunk
from penstock.changefeeds.sinks.sink import DmlEvent, DrainMarker
from penstock.changefeeds.sinks.storage.buffers import Buffers, FileTask, SizeEstimator, Waiting
from penstock.changefeeds.sinks.storage.metrics import SinkMetrics
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.spool import Spool
from penstock.clock import Clock

Item = DmlEvent | DrainMarker


@dataclass(frozen=True, slots=True)
class ShardBatch:
    """The head of a shard's queue, on its way; nothing else of the shard is before `Shards.done`."""

    shard: int
    items: tuple[Item, ...]

    @property
    def events(self) -> list[DmlEvent]:
        """Without the markers."""
        return [item for item in self.items if isinstance(item, DmlEvent)]


class Shards:
    """Everything of a dispatcher goes through one shard, in order. Shards are independent of each other.

    A shard has at most one batch on its way, so that a later one cannot overtake it. Shards with work take
    turns.
    """

    def __init__(self, count: int) -> None:
        self._queues: list[deque[Item]] = [deque() for _ in range(count)]
        self._underway: dict[int, ShardBatch] = {}
        self._ready: deque[int] = deque()
        self._queued = 0

    def __len__(self) -> int:
        """Items that wait."""
        return self._queued

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is on its way."""
        return not self._queued and not self._underway

    def route(self, dispatcher_id: str) -> int:
        """The dispatcher's shard: always the same."""
        return crc32(dispatcher_id.encode()) % len(self._queues)

    def put(self, item: Item) -> None:
        """Add to the end of its dispatcher's shard."""
        shard = self.route(_dispatcher_id(item))
        queue = self._queues[shard]
        if not queue and shard not in self._underway:
            self._ready.append(shard)
        queue.append(item)
        self._queued += 1

    def take(
        self, weigh: Callable[[DmlEvent], int], *, room: int, limit: int, alone: bool = False
    ) -> list[ShardBatch]:
        """A batch of each shard that is ready, of about `limit` bytes together, of no more than `room`.

        `weigh` estimates an event's bytes. The first event may be beyond the limit, and with `alone` beyond
        the room too. A shard whose first event does not fit keeps its turn and those after it wait, so that a
        large event is not starved.
        """
        batches: list[ShardBatch] = []
        share = limit // max(len(self._ready), 1)
        first: float = math.inf if alone else room
        left = min(room, limit)
        while self._ready:
            queue = self._queues[self._ready[0]]
            items, taken = self._head(queue, weigh, first, left, share)
            if not items:
                break
            shard = self._ready.popleft()
            batch = self._underway[shard] = ShardBatch(shard, tuple(items))
            batches.append(batch)
            left -= taken
            if taken:
                first = left
        return batches

    def _head(
        self, queue: deque[Item], weigh: Callable[[DmlEvent], int], first: float, left: int, share: int
    ) -> tuple[list[Item], int]:
        """Take what comes first: markers, and events of about `share` bytes as long as they fit."""
        items: list[Item] = []
        taken = 0
        while queue:
            item = queue[0]
            if isinstance(item, DmlEvent):
                weight = weigh(item)
                if (taken + weight > min(left, share)) if taken else (weight > first):
                    break
                taken += weight
            items.append(queue.popleft())
            self._queued -= 1
        return items, taken

    def first_waiting(self) -> DmlEvent | None:
        """The event whose turn it is and that was not taken, because it did not fit."""
        for shard in self._ready:
            first = self._queues[shard][0]
            return first if isinstance(first, DmlEvent) else None
        return None

    def done(self, batch: ShardBatch) -> None:
        """The batch has left; its shard may go on."""
        del self._underway[batch.shard]
        if self._queues[batch.shard]:
            self._ready.append(batch.shard)

    def underway(self, dispatcher_id: str) -> bool:
        """Whether something of a dispatcher is on its way."""
        batch = self._underway.get(self.route(dispatcher_id))
        return batch is not None and any(_dispatcher_id(item) == dispatcher_id for item in batch.items)

    def drop(self, dispatcher_id: str) -> list[Item]:
        """Forget and return what waits of a dispatcher."""
        shard = self.route(dispatcher_id)
        queue = self._queues[shard]
        dropped = [item for item in queue if _dispatcher_id(item) == dispatcher_id]
        if dropped:
            self._queues[shard] = deque(item for item in queue if _dispatcher_id(item) != dispatcher_id)
            self._queued -= len(dropped)
            if not self._queues[shard] and shard not in self._underway:
                self._ready.remove(shard)
        return dropped


def _dispatcher_id(item: Item) -> str:
    return item.dispatcher.id if isinstance(item, DrainMarker) else item.slice.dispatcher.id


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
