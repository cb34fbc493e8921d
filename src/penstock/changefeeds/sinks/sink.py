"""The contract of a sink: `Sink` and its files, and the events that go through it.

Events are descriptors of rows, never the rows; they do no I/O.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.changefeeds.model import PendingFile
from penstock.errors import PenstockError
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.slices import Position, Slice, SliceSize, TableSpan


class DmlEvent:
    """A slice on its way to the remote, with two acknowledgements. Each runs once, also if called twice.

    `post_enqueue`: the encoded payload is in the spool, so the dispatcher may go on. `post_flush`: data and
    index are on the remote; nothing else may move a checkpoint. `flush`: the dispatcher has nothing more to
    read and its file is due, so the slice need not wait for others in the spool.
    """

    def __init__(self, slice_: Slice, *, flush: bool = False) -> None:
        self.slice = slice_
        self.flush = flush
        self._enqueued: list[Callable[[], None]] | None = []
        self._flushed: list[Callable[[], None]] | None = []

    def add_post_enqueue(self, call: Callable[[], None]) -> None:
        """Register a call for when the event is in the spool."""
        assert self._enqueued is not None, "the event is in the spool already"
        self._enqueued.append(call)

    def add_post_flush(self, call: Callable[[], None]) -> None:
        """Register a call for when the event is on the remote."""
        assert self._flushed is not None, "the event is on the remote already"
        self._flushed.append(call)

    def post_enqueue(self) -> None:
        """Acknowledge that the event is in the spool, and that the spool has room for more."""
        calls, self._enqueued = self._enqueued, None
        for call in calls or ():
            call()

    def post_flush(self) -> None:
        """Acknowledge that all of the event is on the remote."""
        calls, self._flushed = self._flushed, None
        for call in calls or ():
            call()


class DrainMarker:
    """A marker in a dispatcher's queue, for the DDL at `commit_ts`.

    It follows the dispatcher's events through shard, spool and writer: when it is acknowledged, everything
    before it is on the remote. It ends once, acknowledged or failed. Any number of tasks may wait for it.
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

    def mark_encoded(self, at: float) -> None:
        """Record that everything before it is in the spool."""
        self.encoded_at = at

    def acknowledge(self) -> None:
        """End it: everything before it is on the remote."""
        self._ended.set()

    def fail(self, error: BaseException) -> None:
        """End it with the reason why something before it is not written; a marker that has ended stays so."""
        if not self.ended:
            self._error = error
            self._ended.set()

    async def wait(self) -> None:
        """Return when it is acknowledged; raise what made it fail."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error


@dataclass(frozen=True, slots=True)
class FailingDispatcher:
    """Why files of a dispatcher cannot be written now, and since which time of the clock."""

    error: PenstockError
    since: float


QueueItem = DmlEvent | DrainMarker
"""What goes through the sink in order, and is acknowledged when everything up to it is on the remote."""


class Sink(Protocol):
    """Where dispatchers send their events. Each run of a changefeed opens a sink of its own.

    The events of a dispatcher stay in order. Each event is acknowledged twice: in the spool (`post_enqueue`)
    and on the remote (`post_flush`). Delivery is at least once: after a restart the same slice may come
    again. A file that cannot be written now is tried again, and only its dispatcher waits. After any other
    failure, which `run` raises, nothing is acknowledged any more, and the calls for DDLs raise.
    """

    def slice_size(self, dispatcher: TableSpan) -> SliceSize:
        """Return how large the next slice of a dispatcher should be."""

    def add_dml_event(self, event: DmlEvent) -> None:
        """Accept a slice. It never blocks and does no I/O."""

    async def pass_block_event(self, dispatcher: TableSpan, event: DdlEvent) -> None:
        """Return when everything that the dispatcher sent before is on the remote."""

    async def write_block_event(self, event: DdlEvent) -> None:
        """Write the files of a DDL. Repeating it changes nothing."""

    @property
    def published_ts(self) -> int:
        """The newest checkpoint that this sink has published to consumers; 0 before the first."""

    def add_checkpoint_ts(self, ts: int) -> None:
        """Publish a checkpoint to consumers soon; `published_ts` shows when it is done."""

    async def write_again(self, files: Sequence[tuple[PendingFile, Sequence[Slice]]]) -> None:
        """Write files of one dispatcher that a process before this one began and that are not there, in
        order, each of its slices.

        If such a file arrives meanwhile, it has the same changes and counts. Raises Unavailable when a file
        cannot be written now; repeating the call is safe.
        """

    @property
    def failing(self) -> Mapping[str, FailingDispatcher]:
        """The dispatchers whose changes cannot be encoded or written now and are tried again."""

    async def remove_dispatcher(self, dispatcher_id: str) -> None:
        """Forget a dispatcher that has drained."""

    async def run(self) -> None:
        """Work until `close` or the first failure, which is raised."""

    async def close(self) -> None:
        """Write what was accepted, unless the sink has failed; then release everything."""


class SinkFiles(Protocol):
    """The files of a changefeed that are handled beside the sink. Calls block: run them in threads."""

    location: str
    """Where the files are."""

    def check_unused(self) -> None:
        """Raise Invalid when the location has files of a changefeed already."""

    def repair(self, pending: PendingFile) -> Position | None:
        """Find out whether a file was written, and write its index; return where its dispatcher goes on.

        None: the file is not there, and has to be written again.
        """

    def forget(self, dispatcher_id: str) -> None:
        """Forget what is known of a dispatcher's files: its next file looks at the remote again."""

    def write_checkpoint(self, ts: int) -> None:
        """Write the checkpoint that consumers read."""
