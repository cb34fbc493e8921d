"""What a changefeed needs of its sink and of the files there."""

from typing import Protocol

from penstock.changefeeds.feedstore import PendingFile
from penstock.changefeeds.sinks.work import DmlEvent
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.positions import Position
from penstock.follow.slices import TableSpan


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
