"""What each dispatcher has in the spool, in order, and whose file is to be written next. Pure.

`Buffers` decides which files are due. Only dispatchers with something in the spool exist here: the others,
however many, cost nothing. A `DispatcherBuffer` cuts the next file, a `FileTask`, off its front. A
`SizeEstimator` learns how large files become.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from itertools import count

from penstock.changefeeds.engines.engine import Chunk
from penstock.changefeeds.sinks.sink import DmlEvent, DrainMarker, QueueItem
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.slices import Position, Slice, TableSpan

_DISPATCHERS_MAX = 10_000  # whose ratios are known; the least recently used are forgotten first


class FlushReason(Enum):
    """Why a file was closed. ERROR is counted for a file that could not be written."""

    SIZE = "size"
    INTERVAL = "interval"
    DDL = "ddl"  # a drain, or rows of another schema version came next
    QUOTA = "quota"  # the spool is full, and this file is not
    CLOSE = "close"
    ERROR = "error"


@dataclass(slots=True, eq=False)
class FileTask:
    """A file to write, of one dispatcher and schema version: chunks of the spool, or slices, in order.

    The items in `waiting` are acknowledged, in order, when the file is on the remote.
    """

    dispatcher: TableSpan
    schema: SchemaVersion
    chunks: tuple[Chunk, ...]
    slices: tuple[Slice, ...]
    nbytes: int  # of its chunks in the spool; of its slices those that are expected
    waiting: list[QueueItem]
    reason: FlushReason
    followed: bool = False  # the dispatcher's next file may be begun before this one is on the remote
    done: bool = False  # it is on the remote, but perhaps not acknowledged yet

    @property
    def rows(self) -> int:
        """Rows of its chunks; how many its slices have is known when they are read."""
        return sum(chunk.rows for chunk in self.chunks)

    @property
    def start(self) -> Position:
        """The position after which its changes begin."""
        return self.slices[0].start if self.slices else self.chunks[0].start

    @property
    def end(self) -> Position:
        """The position of its last change."""
        return self.slices[-1].end if self.slices else self.chunks[-1].end


class Buffers:
    """The chunks of each dispatcher, and the files that are due.

    A file is due when it has reached its size, at the end of the interval in which its oldest row arrived,
    when a marker or another schema version follows, when the spool needs room, or on close. A dispatcher
    whose file is due goes on collecting until it is taken: a slow remote makes files larger, not more.
    Dispatchers that are due take turns. A dispatcher has one file under way, and up to `files_max` while
    slices that fill files wait: these are made at the same time, and acknowledged in order.
    """

    def __init__(
        self, file_size: int, interval_s: float, ratios: "SizeEstimator", *, files_max: int = 1
    ) -> None:
        self._file_size = file_size
        self._files_max = files_max
        self._interval_s = interval_s
        self._ratios = ratios
        self._buffers: dict[str, DispatcherBuffer] = {}
        self._due: deque[DispatcherBuffer] = deque()
        # The serial number keeps the heap from comparing buffers of the same deadline.
        self._deadlines: list[tuple[float, int, DispatcherBuffer]] = []
        self._serial = count()
        self._closing = False
        self._queued_bytes = 0  # in no file yet
        self._due_bytes = 0  # of these, in buffers that are due

    @property
    def active(self) -> int:
        """How many dispatchers have something in the spool."""
        return len(self._buffers)

    @property
    def has_due(self) -> bool:
        """Whether `take` would return a file."""
        return bool(self._due)

    @property
    def resting_bytes(self) -> int:
        """The bytes in the spool that are in no file and not due."""
        return self._queued_bytes - self._due_bytes

    def add(self, event: DmlEvent, chunks: Sequence[Chunk], arrived_at: float) -> bool:
        """Add an encoded event. True: it has no chunks and follows nothing, so it is done."""
        if not chunks:
            return not self._follow(event.slice.dispatcher.id, event)
        buffer = self._buffer_of(event.slice.dispatcher)
        last = len(chunks) - 1
        for number, chunk in enumerate(chunks):
            ends = event if number == last else None
            buffer.add(BufferedChunk(chunk, event.slice.schema, arrived_at, ends))
            self._queued_bytes += chunk.nbytes
            self._due_bytes += chunk.nbytes if buffer.due else 0
        self._watch(buffer)
        self._check_due(buffer)
        return False

    def add_slice(self, event: DmlEvent, nbytes: int, arrived_at: float, *, fills_file: bool = False) -> None:
        """Add an event that goes into a file without the spool; about `nbytes` are expected of it."""
        buffer = self._buffer_of(event.slice.dispatcher)
        buffer.add(BufferedSlice(event, nbytes, arrived_at, fills_file))
        self._queued_bytes += nbytes
        self._due_bytes += nbytes if buffer.due else 0
        self._check_due(buffer)

    def mark(self, marker: QueueItem, dispatcher_id: str) -> bool:
        """Add a marker after everything of its dispatcher. True: nothing is before it, so it is done."""
        if not self._follow(dispatcher_id, marker):
            return True
        self._check_due(self._buffers[dispatcher_id])
        return False

    def _follow(self, dispatcher_id: str, item: QueueItem) -> bool:
        buffer = self._buffers.get(dispatcher_id)
        return buffer is not None and buffer.follow(item)

    def _buffer_of(self, dispatcher: TableSpan) -> "DispatcherBuffer":
        buffer = self._buffers.get(dispatcher.id)
        if buffer is None:
            buffer = self._buffers[dispatcher.id] = DispatcherBuffer(dispatcher)
        return buffer

    def _check_due(self, buffer: "DispatcherBuffer") -> None:
        """Make a buffer due if it wants a file. Its turn comes when the files under way allow another."""
        if self._closing and buffer.queue:
            buffer.forced = buffer.forced or FlushReason.CLOSE
        if buffer.due or not buffer.wants_file(self._file_size, self._ratios.ratio(buffer.dispatcher.id)):
            return
        buffer.due = True
        self._due_bytes += buffer.nbytes
        self._enqueue(buffer)

    def _enqueue(self, buffer: "DispatcherBuffer") -> None:
        if buffer.due and not buffer.queued and buffer.may_begin(self._files_max):
            buffer.queued = True
            self._due.append(buffer)

    def _force(self, buffer: "DispatcherBuffer", reason: FlushReason) -> None:
        buffer.forced = buffer.forced or reason
        self._check_due(buffer)

    def _watch(self, buffer: "DispatcherBuffer") -> None:
        """Watch the deadline of a buffer's oldest row."""
        if buffer.oldest is not None and not buffer.timed:
            buffer.timed = True
            heappush(self._deadlines, (self._deadline(buffer.oldest), next(self._serial), buffer))

    def _deadline(self, rows: "Buffered") -> float:
        """Return when rows have been here for long enough: at the end of the interval in which they arrived.

        Intervals are the same for all dispatchers, so that the files of quiet ones are written together.
        """
        if not self._interval_s:
            return rows.arrived_at
        return (rows.arrived_at // self._interval_s + 1) * self._interval_s

    def next_deadline(self) -> float | None:
        """Return when `tick` has something to do."""
        return self._deadlines[0][0] if self._deadlines else None

    def tick(self, now: float) -> None:
        """Make the buffers due whose oldest row arrived in an interval that is over."""
        while self._deadlines and self._deadlines[0][0] <= now:
            buffer = heappop(self._deadlines)[2]
            buffer.timed = False
            if buffer.oldest is not None and self._deadline(buffer.oldest) <= now:
                self._force(buffer, FlushReason.INTERVAL)
            else:
                self._watch(buffer)

    def take(self, files_max: int, bytes_max: int) -> list[FileTask]:
        """Take files to write now: at most `files_max`, none past `bytes_max`.

        Several of a dispatcher are in order. It gets no more before `finish_begin`.
        """
        tasks: list[FileTask] = []
        nbytes = 0
        while self._due and len(tasks) < files_max and nbytes < bytes_max:
            buffer = self._due.popleft()
            buffer.due = buffer.queued = False
            self._due_bytes -= buffer.nbytes
            while buffer.may_begin(self._files_max) and len(tasks) < files_max and nbytes < bytes_max:
                task = buffer.cut(self._file_size, self._ratios.ratio(buffer.dispatcher.id))
                self._queued_bytes -= task.nbytes
                tasks.append(task)
                nbytes += task.nbytes
            buffer.beginning = True
            self._watch(buffer)
            self._check_due(buffer)
        return tasks

    def finish_begin(self, dispatcher_id: str) -> None:
        """Let a dispatcher have more files: what was taken of it is stored."""
        buffer = self._buffers.get(dispatcher_id)
        if buffer is not None:
            buffer.beginning = False
            self._enqueue(buffer)

    def finish(self, task: FileTask) -> list[FileTask]:
        """End a file that is written or skipped: another one of the dispatcher may begin.

        Returns the files to acknowledge now, in order: this one and those after it that have ended before, or
        none while one before it is under way.
        """
        buffer = self._buffers[task.dispatcher.id]
        assert task in buffer.writing, "a file ends that is not under way"
        task.done = True
        ended = []
        while buffer.writing and buffer.writing[0].done:
            ended.append(buffer.writing.popleft())
        if not buffer.queue and not buffer.writing:
            del self._buffers[task.dispatcher.id]
        else:
            self._enqueue(buffer)
        return ended

    def flush(self) -> None:
        """Make everything due, now and from now on: the sink closes."""
        self._closing = True
        for buffer in self._buffers.values():
            self._check_due(buffer)

    def relieve(self, keep_bytes: int) -> None:
        """Make the largest files due until at most `keep_bytes` are not due."""
        if self.resting_bytes <= keep_bytes:
            return
        resting = [buffer for buffer in self._buffers.values() if not buffer.due and buffer.queue]
        for buffer in sorted(resting, key=lambda buffer: -buffer.nbytes):
            if self.resting_bytes <= keep_bytes:
                return
            self._force(buffer, FlushReason.QUOTA)

    def unpin(self, segments: Collection[int]) -> None:
        """Make the buffers due whose oldest row is in one of these segments."""
        for buffer in self._buffers.values():
            oldest = buffer.oldest
            if not buffer.due and isinstance(oldest, BufferedChunk) and oldest.chunk.segment in segments:
                self._force(buffer, FlushReason.QUOTA)

    def has_chunks(self, dispatcher_id: str) -> bool:
        """Return whether a dispatcher has chunks that are in no file yet."""
        buffer = self._buffers.get(dispatcher_id)
        return buffer is not None and buffer.chunks > 0

    def is_writing(self, dispatcher_id: str) -> bool:
        """Return whether a file of the dispatcher is under way."""
        buffer = self._buffers.get(dispatcher_id)
        return buffer is not None and bool(buffer.writing)

    def drop(self, dispatcher_id: str) -> tuple[list[Chunk], tuple[int, int], list[QueueItem]]:
        """Drop what a dispatcher has in no file yet.

        Returns its chunks, the expected bytes and the number of its slices, and the items that waited.
        """
        buffer = self._buffers.get(dispatcher_id)
        if buffer is None:
            return [], (0, 0), []
        self._queued_bytes -= buffer.nbytes
        if buffer.due:
            buffer.due = False
            self._due_bytes -= buffer.nbytes
        if buffer.queued:
            buffer.queued = False
            self._due.remove(buffer)
        if not buffer.writing:
            del self._buffers[dispatcher_id]
        return buffer.clear()


@dataclass(frozen=True, slots=True)
class BufferedChunk:
    """A chunk in its dispatcher's buffer. `ends` is the event whose last chunk it is."""

    chunk: Chunk
    schema: SchemaVersion
    arrived_at: float
    ends: DmlEvent | None

    @property
    def nbytes(self) -> int:
        """Its bytes in the spool."""
        return self.chunk.nbytes

    @property
    def kind(self) -> "Kind":
        """What a file has in common with it."""
        return "chunk", self.schema.since_ts, self.schema.version


@dataclass(frozen=True, slots=True)
class BufferedSlice:
    """A slice in its dispatcher's buffer that is not in the spool: its file is made of it in one stage."""

    ends: DmlEvent
    nbytes: int  # expected
    arrived_at: float
    fills_file: bool = False

    @property
    def schema(self) -> SchemaVersion:
        """The schema of its rows."""
        return self.ends.slice.schema

    @property
    def kind(self) -> "Kind":
        """What a file has in common with it."""
        return "slice", self.schema.since_ts, self.schema.version


Kind = tuple[str, int, int]
"""Chunks or slices, and the schema version: a file has rows of one version, all from one source."""
Buffered = BufferedChunk | BufferedSlice


@dataclass(slots=True, eq=False)
class DispatcherBuffer:
    """A dispatcher's chunks, slices, events without rows and markers, in order, and its files under way.

    Invariant: an item without rows always follows a chunk or a slice in the queue. If there is none, it waits
    for the last file under way; without such a file, it is acknowledged at once.
    """

    dispatcher: TableSpan
    queue: deque[Buffered | QueueItem] = field(default_factory=deque)
    nbytes: int = 0  # of the chunks and slices
    chunks: int = 0  # how many there are
    slices: int = 0  # likewise; a file of them is always due
    breaks: int = 0  # where a file must end: markers, and items of another kind than the one before
    writing: deque[FileTask] = field(default_factory=deque)  # in order; acknowledged from the front
    beginning: bool = False  # files were taken, and what they hold is not stored yet
    queued: bool = False  # its turn is coming
    forced: FlushReason | None = None  # why the queue is to be written, if neither size nor a break says so
    timed: bool = False  # a deadline of it is watched
    due: bool = False  # it wants a file
    _last_kind: Kind | None = None  # of the newest rows in the queue

    @property
    def oldest(self) -> Buffered | None:
        """The rows that are written next."""
        first = self.queue[0] if self.queue else None
        assert first is None or isinstance(first, Buffered), "an item without rows follows rows"
        return first

    def add(self, buffered: Buffered) -> None:
        """Append a chunk or a slice."""
        self.breaks += self._last_kind is not None and buffered.kind != self._last_kind
        self._last_kind = buffered.kind
        self._count(buffered, 1)
        self.queue.append(buffered)

    def _count(self, buffered: Buffered, sign: int) -> None:
        self.nbytes += sign * buffered.nbytes
        if isinstance(buffered, BufferedSlice):
            self.slices += sign
        else:
            self.chunks += sign

    def follow(self, item: QueueItem) -> bool:
        """Have an item acknowledged after everything that is here; return False when nothing is."""
        if self.queue:
            self.queue.append(item)
            self.breaks += isinstance(item, DrainMarker)
        elif self.writing:
            self.writing[-1].waiting.append(item)
        else:
            return False
        return True

    def wants_file(self, file_size: int, ratio: float) -> bool:
        """Return whether a file is to be cut off as soon as the files under way allow it."""
        if not self.queue:
            return False
        due = self.slices > 0 or self.breaks > 0 or self.forced is not None
        return due or self.nbytes * ratio >= file_size

    def may_begin(self, files_max: int) -> bool:
        """Return whether the next file may be begun beside those that are under way.

        Beside others only slices that fill files: everything else goes on collecting.
        """
        if self.beginning or not self.queue:
            return False
        if not self.writing:
            return True
        oldest = self.oldest
        fills_file = isinstance(oldest, BufferedSlice) and oldest.fills_file
        return fills_file and self.writing[-1].followed and len(self.writing) < files_max

    def cut(self, file_size: int, ratio: float) -> FileTask:
        """Cut a file off the front: whole chunks or slices, close to the size, never across a break.

        A byte of a chunk is expected to become `ratio` bytes of the file.
        """
        first = self.oldest
        assert first is not None, "a file has rows"
        taken: list[Buffered] = []
        waiting: list[QueueItem] = []
        size, reason = 0.0, None
        while self.queue and reason is None:
            head = self.queue[0]
            if isinstance(head, Buffered):
                grown = size + head.nbytes * ratio
                if head.kind != first.kind:
                    reason = FlushReason.DDL if head.kind[1:] != first.kind[1:] else FlushReason.INTERVAL
                elif taken and grown - file_size > file_size - size:
                    reason = FlushReason.SIZE
                else:
                    self._take(head, taken, waiting)
                    size, reason = grown, FlushReason.SIZE if grown >= file_size else None
            elif isinstance(head, DrainMarker):
                reason = FlushReason.DDL
            else:
                waiting.append(head)
                self.queue.popleft()
        self._take_followers(first, waiting)
        task = FileTask(
            self.dispatcher,
            first.schema,
            tuple(rows.chunk for rows in taken if isinstance(rows, BufferedChunk)),
            tuple(rows.ends.slice for rows in taken if isinstance(rows, BufferedSlice)),
            sum(rows.nbytes for rows in taken),
            waiting,
            reason or self.forced or FlushReason.INTERVAL,
            followed=all(isinstance(rows, BufferedSlice) and rows.fills_file for rows in taken),
        )
        self.writing.append(task)
        self.forced = None
        return task

    def _take(self, head: Buffered, taken: list[Buffered], waiting: list[QueueItem]) -> None:
        self.queue.popleft()
        self._count(head, -1)
        taken.append(head)
        if head.ends is not None:
            waiting.append(head.ends)

    def _take_followers(self, before: Buffered, waiting: list[QueueItem]) -> None:
        """Let the items without rows that follow the file wait for it; the next rows begin a file."""
        while self.queue:
            head = self.queue[0]
            if isinstance(head, Buffered):
                self.breaks -= head.kind != before.kind
                return
            self.breaks -= isinstance(head, DrainMarker)
            waiting.append(head)
            self.queue.popleft()
        self._last_kind = None

    def clear(self) -> tuple[list[Chunk], tuple[int, int], list[QueueItem]]:
        """Drop what is not under way; return chunks, bytes and number of slices, and who waited."""
        rows = [entry for entry in self.queue if isinstance(entry, Buffered)]
        chunks = [entry.chunk for entry in rows if isinstance(entry, BufferedChunk)]
        expected = sum(entry.nbytes for entry in rows if isinstance(entry, BufferedSlice)), self.slices
        waiting: list[QueueItem] = []
        for entry in self.queue:
            item = entry.ends if isinstance(entry, Buffered) else entry
            if item is not None:
                waiting.append(item)
        self.queue.clear()
        self.nbytes = self.breaks = self.chunks = self.slices = 0
        self.forced = self._last_kind = None
        return chunks, expected, waiting


class SizeEstimator:
    """Learns bytes out per byte in, for each dispatcher: a mean that is weighted by bytes and forgets.

    `window_bytes` of input halve the weight of everything before. A dispatcher that is not known yet gets the
    ratio of all dispatchers together, and the first one `first`.
    """

    def __init__(self, window_bytes: int, *, first: float = 1.0) -> None:
        self._window = window_bytes
        self._first = first
        self._all = _Mean(window_bytes, first)
        self._dispatchers: OrderedDict[str, _Mean] = OrderedDict()

    def ratio(self, dispatcher_id: str) -> float:
        """Return the expected bytes out of one byte in."""
        known = self._dispatchers.get(dispatcher_id)
        return (known or self._all).ratio

    def knows(self, dispatcher_id: str) -> bool:
        """Return whether enough of the dispatcher was seen: its ratio is its own, and no guess."""
        known = self._dispatchers.get(dispatcher_id)
        return known is not None and known.seen_bytes >= self._window / 8

    def learn(self, dispatcher_id: str, bytes_in: int, bytes_out: int) -> None:
        """Learn from one output; an empty input teaches nothing."""
        if bytes_in <= 0:
            return
        mean = self._dispatchers.pop(dispatcher_id, None) or _Mean(self._window, self._all.ratio)
        mean.add(bytes_in, bytes_out)
        self._all.add(bytes_in, bytes_out)
        self._dispatchers[dispatcher_id] = mean
        if len(self._dispatchers) > _DISPATCHERS_MAX:
            self._dispatchers.popitem(last=False)

    def forget(self, dispatcher_id: str) -> None:
        """Forget a dispatcher that is gone."""
        self._dispatchers.pop(dispatcher_id, None)


class _Mean:
    """Begins at `first` with the weight of a sixteenth of the window, so that a tiny file proves little."""

    __slots__ = ("_in", "_out", "_window", "seen_bytes")

    def __init__(self, window: int, first: float) -> None:
        self._window = window
        self._in = max(window / 16, 1.0)
        self._out = self._in * first
        self.seen_bytes = 0  # of input, since ever

    @property
    def ratio(self) -> float:
        return self._out / self._in

    def add(self, bytes_in: int, bytes_out: int) -> None:
        kept = 0.5 ** (bytes_in / self._window)
        self._in = self._in * kept + bytes_in
        self._out = self._out * kept + bytes_out
        self.seen_bytes += bytes_in
