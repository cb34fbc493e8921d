"""What a changefeed needs of its sink and of the files there.

What travels between dispatchers, sink and engine: descriptors of rows, never the rows. No I/O.

A mark in a dispatcher's queue: when it comes out at the far end, everything before it is on the remote.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from penstock.changefeeds.model import PendingFile
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.slices import Position, Slice, TableSpan


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


class Sink(Protocol):
    """Where dispatchers send. Per dispatcher everything stays in order; the changefeed opens one per life.

    `add_dml_event` acknowledges twice, by the event (see DmlEvent). After a failure, which `run` raises,
    nothing is acknowledged any more and the calls for DDLs raise.
    """

    def add_dml_event(self, event: DmlEvent) -> None:
        """Take a slice. Never blocks, no I/O."""

    async def pass_block_event(self, dispatcher: TableSpan, event: DdlEvent) -> None:
        """Return when everything that the dispatcher sent before is on the remote."""

    async def write_block_event(self, event: DdlEvent) -> None:
        """Write the files of a DDL. Doing it again changes nothing."""

    @property
    def told_ts(self) -> int:
        """The newest checkpoint that consumers can read by this sink's doing; 0 before the first."""

    def add_checkpoint_ts(self, ts: int) -> None:
        """Tell consumers, in a moment, that everything up to it is there; `told_ts` says when it is done."""

    async def remove_dispatcher(self, dispatcher_id: str) -> None:
        """Forget one that has drained."""

    async def run(self) -> None:
        """Work until `close` or the first failure, which is raised."""

    async def close(self) -> None:
        """Write what is there, unless it failed; then release everything."""


class SinkFiles(Protocol):
    """The files of a changefeed, beside the sink. Blocking, for threads."""

    location: str
    """The place where they are."""

    def check_unused(self) -> None:
        """Raise Invalid when there are files of a changefeed already."""

    def repair(self, pending: PendingFile) -> Position:
        """Find out whether a file came to be, and finish it: where its dispatcher goes on."""

    def forget(self, dispatcher_id: str) -> None:
        """Look at the remote again before the dispatcher's next file."""

    def write_checkpoint(self, ts: int) -> None:
        """Write the checkpoint that consumers read."""


class DrainMarker:
    """Follows a dispatcher's events through shard, spool and writer, for the DDL at `commit_ts`.

    Ends once: acknowledged, or failed with a reason. Any number may wait for it, before or after.
    """

    def __init__(self, dispatcher: TableSpan, commit_ts: int, *, at: float) -> None:
        self.dispatcher = dispatcher
        self.commit_ts = commit_ts
        self.begun_at = at
        self.encoded_at = at
        self._ended = asyncio.Event()
        self._error: BaseException | None = None

    @property
    def ended(self) -> bool:
        """Whether it was acknowledged or has failed."""
        return self._ended.is_set()

    def encoded(self, at: float) -> None:
        """Everything before it is in the spool."""
        self.encoded_at = at

    def acknowledge(self) -> None:
        """Everything before it is on the remote."""
        self._ended.set()

    def fail(self, error: BaseException) -> None:
        """Something before it will not get there; nothing happens to a marker that has ended."""
        if not self.ended:
            self._error = error
            self._ended.set()

    async def wait(self) -> None:
        """Return when it is acknowledged; raise what made it fail."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error
