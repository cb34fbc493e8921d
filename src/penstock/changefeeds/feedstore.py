"""What is kept of changefeeds between runs: settings, state, checkpoint, dispatchers and pending files."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.follow.positions import Position
from penstock.follow.slices import TableSpan


@dataclass(frozen=True, slots=True)
class PendingFile:
    """A file that may or may not be on the remote: the changes of a dispatcher after `start` up to `end`.

    Everything up to `start` is on the remote for certain. `nbytes` tells the file from another that has its
    name; 0 where nobody knows the size before the file is made.
    """

    dispatcher_id: str
    data_path: str
    index_path: str
    start: Position
    end: Position
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class DispatcherRecord:
    """A dispatcher as it was kept last: where it began, and its newest file, if it has had one."""

    spec: TableSpan
    begin: Position
    pending: PendingFile | None = None


class ProgressStore(Protocol):
    """The part of a changefeed's state that its run writes. Durable on return.

    Every method raises Fenced when another process has taken the changefeed over, Unavailable when the
    database does not answer.
    """

    async def location(self) -> str | None:
        """The place that the rest is of: empty before the first, None where nobody has kept it."""

    async def begin_at(self, location: str, *, anew: bool) -> None:
        """Keep the place. `anew`: it has nothing after the checkpoint yet, so that dispatchers, their files
        and DDLs after it, which are of another place, are forgotten at once.
        """

    async def checkpoint_ts(self) -> int:
        """The checkpoint that was kept last: every change up to it is on the remote."""

    async def keep_checkpoint(self, ts: int) -> None:
        """Keep a later one."""

    async def dispatchers(self) -> list[DispatcherRecord]:
        """Every dispatcher that was kept and not removed."""

    async def change_dispatchers(
        self, added: Sequence[DispatcherRecord], removed: Iterable[str], *, ddl_ts: int | None = None
    ) -> None:
        """Add some and remove some, at once, with the DDL after which that is so (see `ddl_ts`)."""

    async def ddl_ts(self) -> int:
        """DDLs up to it are on the remote, and the dispatchers are those after it."""

    async def begin_files(self, files: Sequence[PendingFile]) -> None:
        """Before files are written: what each will hold, in place of its dispatcher's file before it."""
