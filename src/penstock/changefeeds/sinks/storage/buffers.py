"""Which dispatchers have something in the spool, and whose file is to be written next. Pure.

Only dispatchers with something in the spool exist here: the others, however many, cost nothing.
"""

from collections import deque
from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from itertools import count

from penstock.changefeeds.engines.engine import Chunk
from penstock.changefeeds.sinks.storage.filetasks import FileTask, FlushReason, Waiting
from penstock.changefeeds.sinks.storage.lanes import BufferedChunk, DispatcherBuffer
from penstock.changefeeds.sinks.storage.ratios import SizeEstimator
from penstock.changefeeds.sinks.work import DmlEvent
from penstock.follow.slices import TableSpan


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
