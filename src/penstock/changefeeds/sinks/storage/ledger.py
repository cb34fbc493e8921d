"""What the storage sink has accepted and how far each item has come: queue, spool, file. No I/O, no tasks.

`Ledger` moves items from one stage to the next. `Shards` are the queues before encoding.
"""

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

from penstock.changefeeds.engines.engine import Chunk
from penstock.changefeeds.sinks.sink import DmlEvent, DrainMarker, QueueItem
from penstock.changefeeds.sinks.storage.buffers import Buffers, FileTask, SizeEstimator
from penstock.changefeeds.sinks.storage.metrics import SinkMetrics
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.spool import ItemShare, Spool, SpoolAllowance
from penstock.clock import Clock
from penstock.follow.slices import ANY_SIZE, FILLED_MAX, FILLED_MIN, SliceSize

_TAKE_BYTES = 256 * 1024 * 1024
_FILES_PER_CORE = 4  # of a dispatcher under way: half of them wait while a job makes the others
_DISPATCHER_FILES_MAX = 64  # they are all in one row of the store
_RATIO_MIN = 1e-6  # a filter may have left nothing lately
_FIRST_SLICE = 0.25  # of the file size, while it is not known how large slices become

_FIRST_CHUNK_RATIO = {"canal-json": 10.0, "debezium": 10.0, "csv": 5.0, "parquet": 1.0}
"""Bytes of chunks per estimated byte of a slice, until they are known. Slices are estimated by the size of
their objects, which are compressed columns."""


@dataclass(frozen=True, slots=True)
class ShardBatch:
    """The head of a dispatcher's queue, under way; it gives nothing else before `Shards.finish`."""

    dispatcher_id: str
    items: tuple[QueueItem, ...]

    @property
    def events(self) -> list[DmlEvent]:
        """The items that are events, without the markers."""
        return [item for item in self.items if isinstance(item, DmlEvent)]


class Shards:
    """A fixed number of shards, each with the queues of its dispatchers.

    A dispatcher has at most one batch under way, so that a later one cannot overtake it. The others of its
    shard do not wait for that. Shards with work take turns, and so do the dispatchers of a shard.
    """

    def __init__(self, count: int) -> None:
        # What waits, by dispatcher: the one whose turn it is comes first. None of them is under way.
        self._shards: list[OrderedDict[str, deque[QueueItem]]] = [OrderedDict() for _ in range(count)]
        self._ready: deque[int] = deque()  # shards where something waits
        self._underway: dict[str, deque[QueueItem]] = {}  # what waits behind the batch of a dispatcher
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
        return crc32(dispatcher_id.encode()) % len(self._shards)

    def put(self, item: QueueItem) -> None:
        """Append an item to its dispatcher's queue."""
        dispatcher_id = _dispatcher_id(item)
        self._queued += 1
        if dispatcher_id in self._underway:
            self._underway[dispatcher_id].append(item)
        else:
            self._wait(dispatcher_id, [item])

    def _wait(self, dispatcher_id: str, items: Iterable[QueueItem]) -> None:
        number = self.route(dispatcher_id)
        if not self._shards[number]:
            self._ready.append(number)
        self._shards[number].setdefault(dispatcher_id, deque()).extend(items)

    def take(
        self, weigh: Callable[[DmlEvent], int], *, room: int, limit: int, alone: bool = False
    ) -> list[ShardBatch]:
        """Take batches of the ready shards in turn: about `limit` bytes together, and no more than `room`.

        `weigh` estimates an event's bytes. The first event may exceed the limit, and with `alone` also the
        room. A shard whose first event does not fit keeps its turn, and the shards after it wait, so that a
        large event does not starve.
        """
        batches: list[ShardBatch] = []
        share = limit // max(len(self._ready), 1)
        first: float = math.inf if alone else room
        left = min(room, limit)
        while self._ready:
            waiting = self._shards[self._ready[0]]
            dispatcher_id, queue = next(iter(waiting.items()))
            items, taken = self._head(queue, weigh, first, left, share)
            if not items:
                break
            del waiting[dispatcher_id]
            self._underway[dispatcher_id] = queue
            batches.append(ShardBatch(dispatcher_id, tuple(items)))
            shard = self._ready.popleft()
            if waiting:
                self._ready.append(shard)
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
        for number in self._ready:
            first = next(iter(self._shards[number].values()))[0]
            return first if isinstance(first, DmlEvent) else None
        return None

    def finish(self, batch: ShardBatch) -> None:
        """End a batch; its dispatcher may give the next."""
        behind = self._underway.pop(batch.dispatcher_id)
        if behind:
            self._wait(batch.dispatcher_id, behind)

    def is_underway(self, dispatcher_id: str) -> bool:
        """Return whether a batch of a dispatcher is under way."""
        return dispatcher_id in self._underway

    def drop(self, dispatcher_id: str) -> list[QueueItem]:
        """Remove and return the waiting items of a dispatcher."""
        if dispatcher_id in self._underway:
            dropped, self._underway[dispatcher_id] = self._underway[dispatcher_id], deque()
        else:
            number = self.route(dispatcher_id)
            dropped = self._shards[number].pop(dispatcher_id, deque())
            if dropped and not self._shards[number]:
                self._ready.remove(number)
        self._queued -= len(dropped)
        return list(dropped)


def _dispatcher_id(item: QueueItem) -> str:
    return item.dispatcher.id if isinstance(item, DrainMarker) else item.slice.dispatcher.id


@dataclass(frozen=True, slots=True)
class EncodeBatch:
    """A batch of a dispatcher with something to encode.

    `direct` are the events in it that go into files without the spool, with their expected bytes. Those
    of `filling` fill a file each, so that several are made at the same time.
    """

    batch: ShardBatch
    direct: dict[DmlEvent, int]
    filling: frozenset[DmlEvent]
    expected_bytes: int  # of the others

    @property
    def dispatcher_id(self) -> str:
        """Whose events these are."""
        return self.batch.dispatcher_id

    @property
    def events(self) -> list[DmlEvent]:
        """The events to encode, in the order that `Ledger.finish_encode` expects."""
        return [event for event in self.batch.events if event not in self.direct]


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
        items: ItemShare | None = None,
        allowance: SpoolAllowance | None = None,
    ) -> None:
        self.shards = Shards(options.worker_count)
        self.spool = Spool(options.spool_disk_quota, allowance=allowance, items=items)
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
        # What is taken or encoded at once: a segment of the spool is released as a whole.
        self.take_bytes = min(_TAKE_BYTES, max(options.spool_disk_quota // 4, 1))
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

    def collect(self) -> list[EncodeBatch]:
        """Take what waits, as far as the spool has room; return what is to be encoded.

        Events that go into files without the spool, and markers, go on at once if nothing of their dispatcher
        before them is to be encoded.
        """
        collected = []
        while batches := self.shards.take(
            self._weigh, room=self.spool.room, limit=self.take_bytes, alone=self.spool.empty
        ):
            for batch in batches:
                encoding = self._divide(batch)
                if encoding.events:
                    self.spool.expect(encoding.expected_bytes)
                    collected.append(encoding)
                else:
                    self.finish_encode(encoding, ())
        self._make_room()
        return collected

    def _divide(self, batch: ShardBatch) -> EncodeBatch:
        """Decide which events of a batch are encoded into the spool."""
        direct: dict[DmlEvent, int] = {}
        filling: set[DmlEvent] = set()
        expected_bytes = 0
        for event in batch.events:
            weight = self._weigh(event)
            if self._fills_file(event, weight):
                direct[event] = weight
                filling.add(event)
            elif self._is_direct(event, weight, follows_spooled=expected_bytes > 0):
                direct[event] = weight
            else:
                expected_bytes += weight
        return EncodeBatch(batch, direct, frozenset(filling), expected_bytes)

    def _fills_file(self, event: DmlEvent, nbytes: int) -> bool:
        """Return whether a slice fills a file, which is then made without the spool.

        A slice that is too large for one file is cut in the spool. So is every slice of a dispatcher before
        it is known how large they become, and of fewer dispatchers than cores, if each may have one file
        under way only: many tasks encode a slice into the spool.
        """
        dispatcher_id = event.slice.dispatcher.id
        share = nbytes * self._file_ratios.ratio(dispatcher_id) / self._file_size
        known = self._chunk_ratios.knows(dispatcher_id)
        return FILLED_MIN <= share <= FILLED_MAX and known and self._uses_all_cores(dispatcher_id)

    def _is_direct(self, event: DmlEvent, nbytes: int, *, follows_spooled: bool) -> bool:
        """Return whether a slice goes into a file without the spool because its file is due anyway.

        One that is due joins the rows that its dispatcher has in the spool.
        """
        dispatcher_id = event.slice.dispatcher.id
        if nbytes * self._file_ratios.ratio(dispatcher_id) > FILLED_MAX * self._file_size:
            return False
        return event.flush and not follows_spooled and not self.buffers.has_chunks(dispatcher_id)

    def _uses_all_cores(self, dispatcher_id: str) -> bool:
        """Return whether files of the busy dispatchers, with this one, use every core."""
        busy = len(self._unflushed) + (dispatcher_id not in self._unflushed)
        return self._files_max > 1 or busy >= self._cores

    def slice_size(self, dispatcher_id: str) -> SliceSize:
        """Return how many estimated bytes a slice of a dispatcher should have to fill one file.

        Until it is known how large slices become, it is less. Where slices are cut into files in the spool,
        they may have any size, and many tasks encode each.
        """
        ratio = self._chunk_ratios.ratio(dispatcher_id) * self._file_ratios.ratio(dispatcher_id)
        known = self._chunk_ratios.knows(dispatcher_id)
        if known and not self._uses_all_cores(dispatcher_id):
            return replace(ANY_SIZE, tasks=self._cores)
        nbytes = self._file_size * (1.0 if known else _FIRST_SLICE) / max(ratio, _RATIO_MIN)
        return SliceSize(max(int(nbytes), 1), self._cores)

    def _weigh(self, event: DmlEvent) -> int:
        ratio = self._chunk_ratios.ratio(event.slice.dispatcher.id)
        return max(int(event.slice.nbytes * ratio), 1)

    def _make_room(self) -> None:
        """If an event waits for room, make files of the oldest segments due, up to half of the quota.

        There will be room without that if running jobs add less than is expected, and while files are made.
        """
        waiting = self.shards.first_waiting()
        need = self._weigh(waiting) if waiting is not None else 0
        quota = self.spool.quota_bytes
        moving = self.spool.nbytes > self.buffers.resting_bytes
        if need > quota - self.spool.retained_bytes and not moving:
            keep = max(min(quota // 2, quota - need), 0)
            self.buffers.unpin(set(self.spool.oldest_segments(keep)))

    def finish_encode(self, encoding: EncodeBatch, chunks: Sequence[Sequence[Chunk]]) -> None:
        """Move the events of a batch into the spool, with the chunks of each; its markers follow them."""
        self.spool.settle(encoding.expected_bytes)
        for chunk_list in chunks:
            self.spool.add(chunk_list)
        in_order = iter(chunks)
        for item in encoding.batch.items:
            if not isinstance(item, DmlEvent):
                self._mark(item)
            elif item in encoding.direct:
                self._enqueue_direct(item, encoding.direct[item], several=item in encoding.filling)
            else:
                self._enqueue(item, next(in_order))
        self.shards.finish(encoding.batch)
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
