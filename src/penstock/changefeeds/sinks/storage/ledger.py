"""What the storage sink has accepted and how far each item has come: queue, spool, file. No I/O, no tasks.

`Ledger` moves items from one stage to the next. `Shards` are the queues before encoding.
"""

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from zlib import crc32

from penstock.changefeeds.engines.engine import Chunk
from penstock.changefeeds.sinks.sink import DmlEvent, DrainMarker, QueueItem
from penstock.changefeeds.sinks.storage.buffers import Buffers, FileTask, SizeEstimator
from penstock.changefeeds.sinks.storage.metrics import SinkMetrics
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.spool import ITEMS_MAX, Spool, SpoolAllowance
from penstock.clock import Clock

_ENCODE_JOB_BYTES = 256 * 1024 * 1024
_DIRECT_MIN = 0.75  # of the file size: a slice of so much fills a file
_DIRECT_MAX = 1.5
_FILES_PER_CORE = 4  # of a dispatcher under way: half of them wait while a job makes the others
_DISPATCHER_FILES_MAX = 64  # they are all in one row of the store
_FIRST_SLICE = 0.25  # of the file size, while it is not known how large slices become

_FIRST_CHUNK_RATIO = {"canal-json": 10.0, "debezium": 10.0, "csv": 5.0, "parquet": 1.0}
"""Bytes of chunks per estimated byte of a slice, until they are known. Slices are estimated by the size of
their objects, which are compressed columns."""


@dataclass(frozen=True, slots=True)
class ShardBatch:
    """The head of a shard's queue, under way; the shard gives nothing else before `Shards.finish`."""

    shard: int
    items: tuple[QueueItem, ...]

    @property
    def events(self) -> list[DmlEvent]:
        """The items that are events, without the markers."""
        return [item for item in self.items if isinstance(item, DmlEvent)]


class Shards:
    """A fixed number of queues. Every item of a dispatcher goes through one shard, in order.

    A shard has at most one batch under way, so that a later one cannot overtake it. Shards are independent
    of each other, and those with work take turns.
    """

    def __init__(self, count: int) -> None:
        self._queues: list[deque[QueueItem]] = [deque() for _ in range(count)]
        self._underway: dict[int, ShardBatch] = {}
        self._ready: deque[int] = deque()
        self._queued = 0

    def __len__(self) -> int:
        """Return how many items wait."""
        return self._queued

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not self._queued and not self._underway

    def route(self, dispatcher_id: str) -> int:
        """Return the dispatcher's shard, which is always the same."""
        return crc32(dispatcher_id.encode()) % len(self._queues)

    def put(self, item: QueueItem) -> None:
        """Append an item to its dispatcher's shard."""
        shard = self.route(_dispatcher_id(item))
        queue = self._queues[shard]
        if not queue and shard not in self._underway:
            self._ready.append(shard)
        queue.append(item)
        self._queued += 1

    def take(
        self, weigh: Callable[[DmlEvent], int], *, room: int, limit: int, alone: bool = False
    ) -> list[ShardBatch]:
        """Take a batch of each ready shard: about `limit` bytes together, and no more than `room`.

        `weigh` estimates an event's bytes. The first event may exceed the limit, and with `alone` also the
        room. A shard whose first event does not fit keeps its turn, and the shards after it wait, so that a
        large event does not starve.
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
        self, queue: deque[QueueItem], weigh: Callable[[DmlEvent], int], first: float, left: int, share: int
    ) -> tuple[list[QueueItem], int]:
        """Take the first items of a queue: markers, and events of about `share` bytes that fit."""
        items: list[QueueItem] = []
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
        """Return the event whose turn it is, which `take` left because it did not fit."""
        for shard in self._ready:
            first = self._queues[shard][0]
            return first if isinstance(first, DmlEvent) else None
        return None

    def finish(self, batch: ShardBatch) -> None:
        """End a batch; its shard may give the next."""
        del self._underway[batch.shard]
        if self._queues[batch.shard]:
            self._ready.append(batch.shard)

    def is_underway(self, dispatcher_id: str) -> bool:
        """Return whether an item of a dispatcher is in a batch under way."""
        batch = self._underway.get(self.route(dispatcher_id))
        return batch is not None and any(_dispatcher_id(item) == dispatcher_id for item in batch.items)

    def drop(self, dispatcher_id: str) -> list[QueueItem]:
        """Remove and return the waiting items of a dispatcher."""
        shard = self.route(dispatcher_id)
        queue = self._queues[shard]
        dropped = [item for item in queue if _dispatcher_id(item) == dispatcher_id]
        if dropped:
            self._queues[shard] = deque(item for item in queue if _dispatcher_id(item) != dispatcher_id)
            self._queued -= len(dropped)
            if not self._queues[shard] and shard not in self._underway:
                self._ready.remove(shard)
        return dropped


def _dispatcher_id(item: QueueItem) -> str:
    return item.dispatcher.id if isinstance(item, DrainMarker) else item.slice.dispatcher.id


@dataclass(frozen=True, slots=True)
class EncodeJob:
    """Batches of several shards, to be encoded together.

    `direct` are the events among them that go into files without the spool, with their expected bytes. Those
    of `filling` fill a file each, so that several are made at the same time.
    """

    batches: tuple[ShardBatch, ...]
    direct: dict[DmlEvent, int]
    expected_bytes: int  # of the others
    filling: frozenset[DmlEvent] = frozenset()

    @property
    def events(self) -> list[DmlEvent]:
        """The events to encode, in the order that `Ledger.finish_encode` expects."""
        return [event for batch in self.batches for event in batch.events if event not in self.direct]


class Ledger:
    """The one place where an event, a marker or a chunk moves from one stage to the next.

    It acknowledges events and markers, and calls `on_free` with segments that are no longer needed. `cores`
    is how many files the engine can make at once, each on one core.
    """

    def __init__(
        self,
        options: SinkOptions,
        metrics: SinkMetrics,
        on_free: Callable[[int], None],
        clock: Clock,
        *,
        cores: int = 1,
        items_max: int = ITEMS_MAX,
        allowance: SpoolAllowance | None = None,
    ) -> None:
        self.shards = Shards(options.worker_count)
        self.spool = Spool(options.spool_disk_quota, allowance=allowance, items_max=items_max)
        self._file_size = options.file_size
        self._file_ratios = SizeEstimator(options.file_size)  # bytes of a file per byte of its chunks
        # bytes of chunks per estimated byte of their slice
        first = _FIRST_CHUNK_RATIO[options.protocol]
        self._chunk_ratios = SizeEstimator(max(int(options.file_size / first), 1), first=first)
        # A filter may leave no row of a slice, and so no file: numbers cannot be given out ahead then.
        files_max = 1 if cores == 1 or options.row_filters else _FILES_PER_CORE * cores
        self._files_max = min(files_max, _DISPATCHER_FILES_MAX)
        self.buffers = Buffers(
            options.file_size, options.flush_interval_s, self._file_ratios, files_max=self._files_max
        )
        self._job_bytes = min(_ENCODE_JOB_BYTES, max(options.spool_disk_quota // 4, 1))
        self._metrics = metrics
        self._on_free = on_free
        self._clock = clock
        self._cores = cores
        self._unflushed: Counter[str] = Counter()  # events in `_arrivals`, by dispatcher
        self._arrivals: OrderedDict[DmlEvent, float] = OrderedDict()  # not on the remote, the oldest first
        self._markers: dict[DrainMarker, None] = {}

    def add(self, item: QueueItem) -> None:
        """Append an item to its dispatcher's queue."""
        if isinstance(item, DmlEvent):
            self._arrivals[item] = self._clock.monotonic()
            self._unflushed[item.slice.dispatcher.id] += 1
        else:
            self._markers[item] = None
        self.shards.put(item)

    @property
    def oldest_age_s(self) -> float:
        """How long the oldest event that is not on the remote has been in the sink."""
        oldest = next(iter(self._arrivals.values()), None)
        return 0.0 if oldest is None else self._clock.monotonic() - oldest

    def next_job(self) -> EncodeJob | None:
        """Return what to encode next, as far as the spool has room; None when there is nothing."""
        room = self.spool.room
        batches = self.shards.take(self._weigh, room=room, limit=self._job_bytes, alone=self.spool.empty)
        if not batches:
            self._make_room(room)
            return None
        direct: dict[DmlEvent, int] = {}
        filling: set[DmlEvent] = set()
        expected_bytes = 0
        spooled: set[str] = set()  # dispatchers with an event before that goes to the spool
        for event in (event for batch in batches for event in batch.events):
            weight = self._weigh(event)
            if self._fills_file(event, weight):
                direct[event] = weight
                filling.add(event)
            elif self._is_direct(event, weight, follows_spooled=event.slice.dispatcher.id in spooled):
                direct[event] = weight
            else:
                spooled.add(event.slice.dispatcher.id)
                expected_bytes += weight
        self.spool.expect(expected_bytes)
        return EncodeJob(tuple(batches), direct, expected_bytes, frozenset(filling))

    def _fills_file(self, event: DmlEvent, nbytes: int) -> bool:
        """Return whether a slice fills a file, which is then made without the spool.

        A slice that is too large for one file is cut in the spool. So is every slice of a dispatcher before
        it is known how large they become, and of fewer dispatchers than cores, if each may have one file
        under way only: many tasks encode a slice into the spool.
        """
        dispatcher_id = event.slice.dispatcher.id
        share = nbytes * self._file_ratios.ratio(dispatcher_id) / self._file_size
        known = self._chunk_ratios.knows(dispatcher_id)
        return _DIRECT_MIN <= share <= _DIRECT_MAX and known and self._uses_all_cores(dispatcher_id)

    def _is_direct(self, event: DmlEvent, nbytes: int, *, follows_spooled: bool) -> bool:
        """Return whether a slice goes into a file without the spool because its file is due anyway.

        One that is due joins the rows that its dispatcher has in the spool.
        """
        dispatcher_id = event.slice.dispatcher.id
        if nbytes * self._file_ratios.ratio(dispatcher_id) > _DIRECT_MAX * self._file_size:
            return False
        return event.flush and not follows_spooled and not self.buffers.has_chunks(dispatcher_id)

    def _uses_all_cores(self, dispatcher_id: str) -> bool:
        """Return whether files of the busy dispatchers, with this one, use every core."""
        busy = len(self._unflushed) + (dispatcher_id not in self._unflushed)
        return self._files_max > 1 or busy >= self._cores

    def slice_bytes(self, dispatcher_id: str) -> int | None:
        """Return how many estimated bytes a slice of a dispatcher should have to fill one file.

        Until it is known how large slices become, it is less. None: slices may be larger, because they are
        cut into files in the spool.
        """
        ratio = self._chunk_ratios.ratio(dispatcher_id) * self._file_ratios.ratio(dispatcher_id)
        known = self._chunk_ratios.knows(dispatcher_id)
        if known and not self._uses_all_cores(dispatcher_id):
            return None
        return max(int(self._file_size * (1.0 if known else _FIRST_SLICE) / ratio), 1)

    def _weigh(self, event: DmlEvent) -> int:
        ratio = self._chunk_ratios.ratio(event.slice.dispatcher.id)
        return max(int(event.slice.nbytes * ratio), 1)

    def _make_room(self, room: int) -> None:
        """If an event waits for room, make files of the oldest segments due, up to half of the quota."""
        waiting = self.shards.first_waiting()
        need = self._weigh(waiting) if waiting is not None else 0
        if need > room:
            quota = self.spool.quota_bytes
            keep = max(min(quota // 2, quota - need), 0)
            self.buffers.unpin(set(self.spool.oldest_segments(keep)))

    def finish_encode(self, job: EncodeJob, chunks: Sequence[Sequence[Chunk]]) -> None:
        """Move the events of a job into the spool, with the chunks of each; the markers follow them."""
        self.spool.settle(job.expected_bytes)
        for chunk_list in chunks:
            self.spool.add(chunk_list)
        in_order = iter(chunks)
        for batch in job.batches:
            for item in batch.items:
                if not isinstance(item, DmlEvent):
                    self._mark(item)
                elif item in job.direct:
                    self._enqueue_direct(item, job.direct[item], several=item in job.filling)
                else:
                    self._enqueue(item, next(in_order))
            self.shards.finish(batch)
        self._relieve()

    def _enqueue_direct(self, event: DmlEvent, nbytes: int, *, several: bool) -> None:
        """Count an event as if it were in the spool: it can be read from the event store at any time."""
        several = several and self._files_max > 1
        self.buffers.add_slice(event, nbytes, self._arrivals[event], fills_file=several)
        self.spool.add_direct(nbytes)
        self._admit(event)

    def _enqueue(self, event: DmlEvent, chunks: Sequence[Chunk]) -> None:
        nbytes = sum(chunk.nbytes for chunk in chunks)
        self._chunk_ratios.learn(event.slice.dispatcher.id, event.slice.nbytes, nbytes)
        done = self.buffers.add(event, chunks, self._arrivals[event])
        self._admit(event)
        if done:
            self._acknowledge(event)

    def _admit(self, event: DmlEvent) -> None:
        if self.spool.admit(event):
            self._wake(event)
        else:
            self._metrics.suppressed.inc()

    def _mark(self, marker: DrainMarker) -> None:
        marker.mark_encoded(self._clock.monotonic())
        if self.buffers.mark(marker, marker.dispatcher.id):
            self._acknowledge(marker)

    def finish_file(self, task: FileTask, nbytes: int) -> None:
        """Acknowledge what waited for a file of so many bytes: it is on the remote."""
        self._file_ratios.learn(task.dispatcher.id, task.nbytes, nbytes)
        self.skip_file(task)

    def finish_direct(self, task: FileTask, encoded_bytes: int, nbytes: int) -> None:
        """Acknowledge what waited for a file that was made of slices, with so many bytes of chunks."""
        estimated = sum(slice_.nbytes for slice_ in task.slices)
        self._chunk_ratios.learn(task.dispatcher.id, estimated, encoded_bytes)
        self._file_ratios.learn(task.dispatcher.id, encoded_bytes, nbytes)
        self.skip_file(task)

    def skip_file(self, task: FileTask) -> None:
        """Acknowledge what waited for a file that is not to be written, as if it were on the remote.

        While a file of the dispatcher before it is under way, this one waits with it.
        """
        for ended in self.buffers.finish(task):
            for item in ended.waiting:
                self._acknowledge(item)
            if ended.slices:
                self.spool.remove_direct(ended.nbytes, len(ended.slices))
            self._free(ended.chunks)

    def _wake(self, event: DmlEvent) -> None:
        self._metrics.wakes.inc()
        event.post_enqueue()

    def _acknowledge(self, item: QueueItem) -> None:
        if isinstance(item, DmlEvent):
            self._leave(item)
            item.post_flush()
        else:
            del self._markers[item]
            remote_s = self._clock.monotonic() - item.encoded_at
            self._metrics.observe_drain(item.encoded_at - item.begun_at, remote_s)
            item.acknowledge()

    def _free(self, chunks: Sequence[Chunk]) -> None:
        for segment in self.spool.remove(chunks):
            self._on_free(segment)
        self.release_held()

    def release_held(self) -> None:
        """Let dispatchers go on that waited for the spool, if it has room; else make its files due."""
        for event in self.spool.release_held():
            self._wake(event)
        self._relieve()

    def _relieve(self) -> None:
        """Make files due while dispatchers wait for the spool: only files under way may keep them waiting."""
        if self.spool.paused:
            self.buffers.relieve(self.spool.keep_bytes)

    def drop_queued(self, dispatcher_id: str, why: BaseException) -> None:
        """Drop what a dispatcher has in the queue. Its markers fail, its events are not acknowledged."""
        self._forget(self.shards.drop(dispatcher_id), why)

    def drop_buffered(self, dispatcher_id: str, why: BaseException) -> None:
        """Drop what a dispatcher has in the spool and in no file yet."""
        chunks, direct, waiting = self.buffers.drop(dispatcher_id)
        self._forget(waiting, why)
        self.spool.remove_direct(*direct)
        self._free(chunks)

    def forget(self, dispatcher_id: str) -> None:
        """Forget the ratios of a dispatcher that has nothing in the sink."""
        self._file_ratios.forget(dispatcher_id)
        self._chunk_ratios.forget(dispatcher_id)

    def _forget(self, dropped: Sequence[QueueItem], why: BaseException) -> None:
        for item in dropped:
            if isinstance(item, DmlEvent):
                self._leave(item)
            else:
                del self._markers[item]
                item.fail(why)

    def _leave(self, event: DmlEvent) -> None:
        del self._arrivals[event]
        dispatcher_id = event.slice.dispatcher.id
        self._unflushed[dispatcher_id] -= 1
        if not self._unflushed[dispatcher_id]:
            del self._unflushed[dispatcher_id]

    def fail_markers(self, why: BaseException) -> None:
        """Fail every marker with the reason why the sink has ended."""
        for marker in self._markers:
            marker.fail(why)
        self._markers.clear()
