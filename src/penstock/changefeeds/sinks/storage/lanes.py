"""What one dispatcher has in the spool, in order, and how a file is cut off its front. Pure."""

from collections import deque
from dataclasses import dataclass, field

from penstock.changefeeds.engines.engine import Chunk
from penstock.changefeeds.sinks.drain import DrainMarker
from penstock.changefeeds.sinks.storage.filetasks import FileTask, FlushReason, Waiting
from penstock.changefeeds.sinks.work import DmlEvent
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.slices import TableSpan


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
