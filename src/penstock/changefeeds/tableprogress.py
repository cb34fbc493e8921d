"""What of a dispatcher's changes is on the remote. Pure."""

from collections import deque

from penstock.changefeeds.sinks.work import DmlEvent
from penstock.follow.positions import Position


class TableProgress:
    """The slices that a dispatcher gave to the sink, until each is on the remote.

    Invariant: `checkpoint_ts` is before the first change that is not on the remote, in whatever order slices
    get there. `position` never goes back.
    """

    __slots__ = ("_unflushed", "position")

    def __init__(self, position: Position) -> None:
        self.position = position
        self._unflushed: deque[_Sent] = deque()

    def add(self, event: DmlEvent) -> None:
        """Follow a slice, which continues where the last one ended; it has not been given to the sink yet."""
        piece = event.slice
        assert piece.start == self.position, f"a slice begins at {piece.start}, not at {self.position}"
        assert piece.end > piece.start, f"a slice ends where it begins, at {piece.end}"
        sent = _Sent(piece.start)
        self._unflushed.append(sent)
        self.position = piece.end
        event.add_post_flush(lambda: self._flushed(sent))

    def skip_to(self, position: Position) -> None:
        """There are no changes up to it that were not added."""
        self.position = max(self.position, position)

    @property
    def flushed(self) -> bool:
        """Whether everything that was added is on the remote."""
        return not self._unflushed

    @property
    def checkpoint_ts(self) -> int:
        """Every commit up to it is on the remote."""
        first = self._unflushed[0].start if self._unflushed else self.position
        return first.checkpoint_ts

    def _flushed(self, sent: "_Sent") -> None:
        sent.flushed = True
        while self._unflushed and self._unflushed[0].flushed:
            self._unflushed.popleft()


class _Sent:
    __slots__ = ("flushed", "start")

    def __init__(self, start: Position) -> None:
        self.start = start
        self.flushed = False
