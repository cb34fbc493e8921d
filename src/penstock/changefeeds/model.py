"""A changefeed as it is kept: what was asked for, and how far it has come. No I/O.

What is kept of changefeeds between runs: settings, state, checkpoint, dispatchers and pending files.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol, Self

from penstock.errors import Corrupt, Invalid
from penstock.follow.slices import Position, TableSpan

_ID = re.compile(r"[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*")
_ID_CHARS_MAX = 128


class ChangefeedState(StrEnum):
    """By TiCDC's words. WARNING: it failed and tries again; FAILED: it waits for somebody to resume it."""

    NORMAL = "normal"
    WARNING = "warning"
    FAILED = "failed"
    STOPPED = "stopped"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangefeedInfo:
    """What was asked for. `settings` is a changefeed's section of the settings file, with its secrets."""

    id: str
    settings: Mapping[str, Any] = field(repr=False, hash=False)
    start_ts: int
    snapshot: bool = False
    created_ms: int = 0
    stopped: bool = False
    account: str = "sys"
    """Whose it is: who may see and change it."""
    left: Mapping[str, Any] | None = field(default=None, repr=False, hash=False)
    """The settings with which it has begun at the place that its status tells, while `settings` lead to
    another one, where it has not begun."""

    @property
    def begin(self) -> Position:
        """Where every table that is there at the start begins."""
        return Position(self.start_ts, b"") if self.snapshot else Position(self.start_ts)

    def to_json(self) -> bytes:
        """What is kept."""
        tree = {
            "settings": dict(self.settings),
            "start_ts": self.start_ts,
            "snapshot": self.snapshot,
            "created_ms": self.created_ms,
            "stopped": self.stopped,
            "account": self.account,
            "left": None if self.left is None else dict(self.left),
        }
        return json.dumps(tree, sort_keys=True).encode()

    @classmethod
    def from_json(cls, feed_id: str, data: bytes) -> Self:
        """Read what `to_json` wrote; raise Corrupt when it is something else."""
        try:
            tree = json.loads(data)
            return cls(
                id=feed_id,
                settings=dict(tree["settings"]),
                start_ts=int(tree["start_ts"]),
                snapshot=bool(tree["snapshot"]),
                created_ms=int(tree["created_ms"]),
                stopped=bool(tree["stopped"]),
                account=str(tree.get("account", "sys")),
                left=None if tree.get("left") is None else dict(tree["left"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"changefeed {feed_id} is damaged; remove it and create it again") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangefeedStatus:
    """How far it has come. Every change up to `checkpoint_ts` is on the remote, every DDL up to `ddl_ts`.

    That, and what is kept of dispatchers, is true of `location` only, where the changefeed has begun with the
    changes after `location_ts`. It is empty before the first start, and None where an earlier release kept
    none.
    """

    checkpoint_ts: int
    ddl_ts: int
    state: ChangefeedState = ChangefeedState.NORMAL
    error: str = ""
    location: str | None = None
    location_ts: int = 0

    @classmethod
    def of_new(cls, info: ChangefeedInfo) -> Self:
        """That of a changefeed that has not run yet."""
        return cls(checkpoint_ts=info.begin.checkpoint_ts, ddl_ts=info.start_ts, location="")

    def resumed(self) -> "ChangefeedStatus":
        """The same without what stopped it."""
        return replace(self, state=ChangefeedState.NORMAL, error="")

    def begun_at(self, location: str, info: ChangefeedInfo) -> "ChangefeedStatus":
        """The same at the beginning of another place: nothing after the checkpoint is there."""
        ddl_ts = max(self.checkpoint_ts, info.start_ts)
        return replace(self, ddl_ts=ddl_ts, location=location, location_ts=self.checkpoint_ts)

    def to_json(self) -> bytes:
        """What is kept."""
        tree = {
            "checkpoint_ts": self.checkpoint_ts,
            "ddl_ts": self.ddl_ts,
            "state": self.state.value,
            "error": self.error,
            "location": self.location,
            "location_ts": self.location_ts,
        }
        return json.dumps(tree, sort_keys=True).encode()

    @classmethod
    def from_json(cls, feed_id: str, data: bytes) -> Self:
        """Read what `to_json` wrote; raise Corrupt when it is something else."""
        try:
            tree = json.loads(data)
            return cls(
                checkpoint_ts=int(tree["checkpoint_ts"]),
                ddl_ts=int(tree["ddl_ts"]),
                state=ChangefeedState(tree["state"]),
                error=str(tree["error"]),
                location=None if tree.get("location") is None else str(tree["location"]),
                location_ts=int(tree.get("location_ts", 0)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"the status of changefeed {feed_id} is damaged; create it again") from error


@dataclass(frozen=True, slots=True)
class ChangefeedRecord:
    """Both."""

    info: ChangefeedInfo
    status: ChangefeedStatus

    @property
    def start_ts(self) -> int:
        """Its place has the changes after it; all rows as of it too, where `begins_with_rows`."""
        return max(self.info.start_ts, self.status.location_ts)

    @property
    def begins_with_rows(self) -> bool:
        """Whether its place began with all rows; one that was moved later began with changes."""
        return self.info.snapshot and self.status.location_ts < self.info.start_ts

    @property
    def state(self) -> ChangefeedState:
        """What people call its state: what was asked for counts before what happened."""
        ended = self.status.state in {ChangefeedState.FINISHED, ChangefeedState.FAILED}
        return ChangefeedState.STOPPED if self.info.stopped and not ended else self.status.state

    @property
    def runnable(self) -> bool:
        """Whether somebody should be running it."""
        return self.state in {ChangefeedState.NORMAL, ChangefeedState.WARNING}


def check_feed_id(feed_id: str) -> None:
    """Raise Invalid unless it can name a changefeed: TiCDC's rule."""
    if len(feed_id) > _ID_CHARS_MAX or not _ID.fullmatch(feed_id):
        raise Invalid(
            f"{feed_id!r} cannot name a changefeed; use letters and digits, with single dashes between them"
        )


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
