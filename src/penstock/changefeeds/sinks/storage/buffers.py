"""Which dispatchers have something in the spool, and whose file is to be written next. Pure.

Only dispatchers with something in the spool exist here: the others, however many, cost nothing.

What one dispatcher has in the spool, in order, and how a file is cut off its front. Pure.

How large something becomes, learnt per dispatcher from what it became before. Pure.

A file that is to be written: which chunks, why now, and who is told afterwards. Pure.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from itertools import count

from penstock.changefeeds.engines.engine import Chunk
from penstock.changefeeds.sinks.sink import DmlEvent, DrainMarker
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.slices import TableSpan

Waiting = DmlEvent | DrainMarker


class FlushReason(Enum):
    """Why a file was closed. ERROR is counted for one that could not be written."""

    SIZE = "size"
    INTERVAL = "interval"
    DDL = "ddl"  # a drain, or rows of another schema version came next
    QUOTA = "quota"  # the spool is full of files that are not
    CLOSE = "close"
    ERROR = "error"


@dataclass(slots=True, eq=False)
class FileTask:
    """Chunks of one dispatcher and schema version, in order. `waiting` is told, in order, afterwards."""

    dispatcher: TableSpan
    schema: SchemaVersion
    chunks: tuple[Chunk, ...]
    waiting: list[Waiting]
    reason: FlushReason

    @property
    def nbytes(self) -> int:
        """Bytes of its chunks in the spool."""
        return sum(chunk.nbytes for chunk in self.chunks)

    @property
    def rows(self) -> int:
        """Rows of its chunks."""
        return sum(chunk.rows for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class BufferedChunk:
    """A chunk in its lane. `ends` is the event whose last chunk it is."""

    chunk: Chunk
    schema: SchemaVersion
    arrived_at: float
    ends: DmlEvent | None

    @property
    def version(self) -> tuple[int, int]:
        """Rows of different versions are never in one file."""
        return self.schema.since_ts, self.schema.version


@dataclass(slots=True, eq=False)
class DispatcherBuffer:
    """A dispatcher's pieces, events without rows and markers, first in, first out; one file at a time.

    Invariant: what has no rows always follows a piece; if there is none, it waits for the file under way, and
    without one it is told at once.
    """

    dispatcher: TableSpan
    queue: deque[BufferedChunk | Waiting] = field(default_factory=deque)
    nbytes: int = 0  # of the pieces
    breaks: int = 0  # markers, and pieces of another version than the piece before them
    writing: FileTask | None = None
    forced: FlushReason | None = (
        None  # why what is here now is to be written, if size or a break do not say so
    )
    timed: bool = False  # a deadline of it is watched
    due: bool = False  # in the queue of those to write
    _last_version: tuple[int, int] | None = None  # of the newest piece in the queue

    @property
    def oldest(self) -> BufferedChunk | None:
        """The piece that is written next."""
        first = self.queue[0] if self.queue else None
        assert first is None or isinstance(first, BufferedChunk), "what has no rows follows a piece"
        return first

    def add(self, piece: BufferedChunk) -> None:
        """One more at the end."""
        self.breaks += self._last_version is not None and piece.version != self._last_version
        self._last_version = piece.version
        self.nbytes += piece.chunk.nbytes
        self.queue.append(piece)

    def follow(self, waiting: Waiting) -> bool:
        """Tell somebody after everything that is here; False: nothing is."""
        if self.queue:
            self.queue.append(waiting)
            self.breaks += isinstance(waiting, DrainMarker)
        elif self.writing is not None:
            self.writing.waiting.append(waiting)
        else:
            return False
        return True

    def wants(self, file_size: int, ratio: float) -> bool:
        """Whether a file is to be cut off it as soon as none is under way."""
        if not self.queue:
            return False
        return self.breaks > 0 or self.forced is not None or self.nbytes * ratio >= file_size

    def cut(self, file_size: int, ratio: float) -> FileTask:
        """Take a file off the front: as close to the size as whole pieces come, and never across a break.

        A byte of a piece is expected to become `ratio` bytes of the file.
        """
        first = self.oldest
        assert first is not None, "a file has at least one piece"
        assert self.writing is None, "a dispatcher has one file under way"
        pieces: list[BufferedChunk] = []
        waiting: list[Waiting] = []
        size, reason = 0.0, None
        while self.queue and reason is None:
            head = self.queue[0]
            if isinstance(head, BufferedChunk):
                grown = size + head.chunk.nbytes * ratio
                if head.version != first.version:
                    reason = FlushReason.DDL
                elif pieces and grown - file_size > file_size - size:
                    reason = FlushReason.SIZE
                else:
                    self._take(head, pieces, waiting)
                    size, reason = grown, FlushReason.SIZE if grown >= file_size else None
            elif isinstance(head, DrainMarker):
                reason = FlushReason.DDL
            else:
                waiting.append(head)
                self.queue.popleft()
        self._begin_anew(first, waiting)
        chunks = tuple(piece.chunk for piece in pieces)
        self.writing = FileTask(
            self.dispatcher, first.schema, chunks, waiting, reason or self.forced or FlushReason.INTERVAL
        )
        self.forced = None
        return self.writing

    def _take(self, piece: BufferedChunk, pieces: list[BufferedChunk], waiting: list[Waiting]) -> None:
        self.queue.popleft()
        self.nbytes -= piece.chunk.nbytes
        pieces.append(piece)
        if piece.ends is not None:
            waiting.append(piece.ends)

    def _begin_anew(self, before: BufferedChunk, waiting: list[Waiting]) -> None:
        """Who follows the file without rows of their own is told with it; what comes next begins a file."""
        while self.queue:
            head = self.queue[0]
            if isinstance(head, BufferedChunk):
                self.breaks -= head.version != before.version
                return
            self.breaks -= isinstance(head, DrainMarker)
            waiting.append(head)
            self.queue.popleft()
        self._last_version = None

    def clear(self) -> tuple[list[Chunk], list[Waiting]]:
        """Forget what is not under way: the chunks, and who would have been told."""
        chunks: list[Chunk] = []
        waiting: list[Waiting] = []
        for entry in self.queue:
            if isinstance(entry, BufferedChunk):
                chunks.append(entry.chunk)
                if entry.ends is not None:
                    waiting.append(entry.ends)
            else:
                waiting.append(entry)
        self.queue.clear()
        self.nbytes = self.breaks = 0
        self.forced = self._last_version = None
        return chunks, waiting


_DISPATCHERS_MAX = 10_000  # the least recently used are forgotten first


class SizeEstimator:
    """Bytes out per byte in, per dispatcher: a mean that is weighted by bytes and forgets.

    `window_bytes` of input halve the weight of everything before. A dispatcher that is not known yet goes by
    what all together show, and the first one by `first`.
    """

    def __init__(self, window_bytes: int, *, first: float = 1.0) -> None:
        self._window = window_bytes
        self._first = first
        self._all = _Mean(window_bytes, first)
        self._dispatchers: OrderedDict[str, _Mean] = OrderedDict()

    def of(self, dispatcher_id: str) -> float:
        """Expected bytes out of one byte in."""
        known = self._dispatchers.get(dispatcher_id)
        return (known or self._all).ratio

    def learn(self, dispatcher_id: str, bytes_in: int, bytes_out: int) -> None:
        """One more that is known now; of nothing comes no knowledge."""
        if bytes_in <= 0:
            return
        mean = self._dispatchers.pop(dispatcher_id, None) or _Mean(self._window, self._all.ratio)
        mean.add(bytes_in, bytes_out)
        self._all.add(bytes_in, bytes_out)
        self._dispatchers[dispatcher_id] = mean
        if len(self._dispatchers) > _DISPATCHERS_MAX:
            self._dispatchers.popitem(last=False)

    def forget(self, dispatcher_id: str) -> None:
        """The dispatcher is gone."""
        self._dispatchers.pop(dispatcher_id, None)


class _Mean:
    """Begins at `first` with the weight of a sixteenth of the window, so that a tiny file proves little."""

    __slots__ = ("_in", "_out", "_window")

    def __init__(self, window: int, first: float) -> None:
        self._window = window
        self._in = max(window / 16, 1.0)
        self._out = self._in * first

    @property
    def ratio(self) -> float:
        return self._out / self._in

    def add(self, bytes_in: int, bytes_out: int) -> None:
        kept = 0.5 ** (bytes_in / self._window)
        self._in = self._in * kept + bytes_in
        self._out = self._out * kept + bytes_out


class Buffers:
    """Chunks by dispatcher, and the files that are due.

    A file is due when it has reached its size, when its oldest row has been here for the interval, when a
    marker or another schema version follows, when the spool needs room, or on close. A dispatcher whose file
    is due goes on collecting until the file is taken, so that a slow remote makes files larger, not more.
    Dispatchers that are due take turns; one has at most one file under way.
    """

    def __init__(self, file_size: int, interval_s: float, ratios: SizeEstimator) -> None:
        self._file_size = file_size
        self._interval_s = interval_s
        self._ratios = ratios
        self._lanes: dict[str, DispatcherBuffer] = {}
        self._due: deque[DispatcherBuffer] = deque()
        self._deadlines: list[tuple[float, int, DispatcherBuffer]] = []
        self._serial = count()
        self._closing = False
        self._queued_bytes = 0  # in no file yet
        self._due_bytes = 0  # of these, in lanes that are due

    @property
    def active(self) -> int:
        """Dispatchers with something in the spool."""
        return len(self._lanes)

    @property
    def has_due(self) -> bool:
        """Whether `take` would give something."""
        return bool(self._due)

    @property
    def resting_bytes(self) -> int:
        """What is in the spool and not due."""
        return self._queued_bytes - self._due_bytes

    def add(self, event: DmlEvent, chunks: Sequence[Chunk], arrived_at: float) -> bool:
        """An event was encoded. True: there is nothing of it or before it, so that it is done."""
        if not chunks:
            return not self._follow(event.slice.dispatcher.id, event)
        lane = self._lane(event.slice.dispatcher)
        last = len(chunks) - 1
        for number, chunk in enumerate(chunks):
            ends = event if number == last else None
            lane.add(BufferedChunk(chunk, event.slice.schema, arrived_at, ends))
            self._queued_bytes += chunk.nbytes
            self._due_bytes += chunk.nbytes if lane.due else 0
        self._watch(lane)
        self._judge(lane)
        return False

    def mark(self, marker: Waiting, dispatcher_id: str) -> bool:
        """A marker came through the shard. True: there is nothing before it, so that it is done."""
        if not self._follow(dispatcher_id, marker):
            return True
        self._judge(self._lanes[dispatcher_id])
        return False

    def _follow(self, dispatcher_id: str, waiting: Waiting) -> bool:
        lane = self._lanes.get(dispatcher_id)
        return lane is not None and lane.follow(waiting)

    def _lane(self, dispatcher: TableSpan) -> DispatcherBuffer:
        lane = self._lanes.get(dispatcher.id)
        if lane is None:
            lane = self._lanes[dispatcher.id] = DispatcherBuffer(dispatcher)
        return lane

    def _judge(self, lane: DispatcherBuffer) -> None:
        """Make it due if it wants to be. One with a file under way gets its turn when that has ended."""
        if self._closing and lane.queue:
            lane.forced = lane.forced or FlushReason.CLOSE
        if lane.due or not lane.wants(self._file_size, self._ratios.of(lane.dispatcher.id)):
            return
        lane.due = True
        self._due_bytes += lane.nbytes
        if lane.writing is None:
            self._due.append(lane)

    def _force(self, lane: DispatcherBuffer, reason: FlushReason) -> None:
        lane.forced = lane.forced or reason
        self._judge(lane)

    def _watch(self, lane: DispatcherBuffer) -> None:
        """Have the deadline of its oldest row watched."""
        if lane.oldest is not None and not lane.timed:
            lane.timed = True
            at = lane.oldest.arrived_at + self._interval_s
            heappush(self._deadlines, (at, next(self._serial), lane))

    def next_deadline(self) -> float | None:
        """When `tick` has something to do."""
        return self._deadlines[0][0] if self._deadlines else None

    def tick(self, now: float) -> None:
        """Make those due whose oldest row is as old as the interval."""
        while self._deadlines and self._deadlines[0][0] <= now:
            lane = heappop(self._deadlines)[2]
            lane.timed = False
            if lane.oldest is not None and lane.oldest.arrived_at + self._interval_s <= now:
                self._force(lane, FlushReason.INTERVAL)
            else:
                self._watch(lane)

    def take(self, files_max: int, bytes_max: int) -> list[FileTask]:
        """Files to write now, of different dispatchers: at most so many, and no more after so many bytes."""
        tasks: list[FileTask] = []
        nbytes = 0
        while self._due and len(tasks) < files_max and nbytes < bytes_max:
            lane = self._due.popleft()
            lane.due = False
            self._due_bytes -= lane.nbytes
            task = lane.cut(self._file_size, self._ratios.of(lane.dispatcher.id))
            self._queued_bytes -= task.nbytes
            self._watch(lane)
            self._judge(lane)
            tasks.append(task)
            nbytes += task.nbytes
        return tasks

    def done(self, task: FileTask) -> None:
        """The file is written, or given up: the dispatcher's next one may begin."""
        lane = self._lanes[task.dispatcher.id]
        assert lane.writing is task, "another file of the dispatcher is under way"
        lane.writing = None
        if not lane.queue:
            del self._lanes[task.dispatcher.id]
        elif lane.due:
            self._due.append(lane)

    def flush(self) -> None:
        """Everything is due, now and from now on: the sink closes."""
        self._closing = True
        for lane in self._lanes.values():
            self._judge(lane)

    def relieve(self, keep_bytes: int) -> None:
        """Make the largest files due until no more than `keep_bytes` rest."""
        if self.resting_bytes <= keep_bytes:
            return
        resting = [lane for lane in self._lanes.values() if not lane.due and lane.queue]
        for lane in sorted(resting, key=lambda each: -each.nbytes):
            if self.resting_bytes <= keep_bytes:
                return
            self._force(lane, FlushReason.QUOTA)

    def unpin(self, segments: Collection[int]) -> None:
        """Make those due whose oldest row is in one of these segments."""
        for lane in self._lanes.values():
            if not lane.due and lane.oldest is not None and lane.oldest.chunk.segment in segments:
                self._force(lane, FlushReason.QUOTA)

    def writing(self, dispatcher_id: str) -> bool:
        """Whether a file of the dispatcher is under way."""
        lane = self._lanes.get(dispatcher_id)
        return lane is not None and lane.writing is not None

    def drop(self, dispatcher_id: str) -> tuple[list[Chunk], list[Waiting]]:
        """Forget what a dispatcher has in no file yet: the chunks, and who would have been told."""
        lane = self._lanes.get(dispatcher_id)
        if lane is None:
            return [], []
        self._queued_bytes -= lane.nbytes
        if lane.due:
            lane.due = False
            self._due_bytes -= lane.nbytes
            if lane.writing is None:
                self._due.remove(lane)
        if lane.writing is None:
            del self._lanes[dispatcher_id]
        return lane.clear()
