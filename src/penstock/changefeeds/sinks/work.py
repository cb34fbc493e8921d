"""What travels between dispatchers, sink and engine: descriptors of rows, never the rows. No I/O."""

from collections.abc import Callable

from penstock.follow.slices import Slice


class DmlEvent:
    """A slice on its way, with its two acknowledgements. Each runs once, whoever calls it how often.

    `post_enqueue`: the encoded payload is in the spool, so that the dispatcher may go on. `post_flush`: data
    and index are on the remote; nothing else may move a checkpoint.
    """

    def __init__(self, piece: Slice) -> None:
        self.slice = piece
        self._enqueued: list[Callable[[], None]] | None = []
        self._flushed: list[Callable[[], None]] | None = []

    def add_post_enqueue(self, call: Callable[[], None]) -> None:
        """Call it when the event is in the spool."""
        assert self._enqueued is not None, "the event is in the spool already"
        self._enqueued.append(call)

    def add_post_flush(self, call: Callable[[], None]) -> None:
        """Call it when the event is on the remote."""
        assert self._flushed is not None, "the event is on the remote already"
        self._flushed.append(call)

    def post_enqueue(self) -> None:
        """The event is in the spool, and the spool has room for more."""
        calls, self._enqueued = self._enqueued, None
        for call in calls or ():
            call()

    def post_flush(self) -> None:
        """All of the event is on the remote."""
        calls, self._flushed = self._flushed, None
        for call in calls or ():
            call()
