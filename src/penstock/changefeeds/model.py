"""What is stored of a changefeed between runs: settings, state, checkpoint, dispatchers and pending files.

Values only, without I/O; `ProgressStore` is the contract of the storage that a running changefeed writes.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any, Protocol, Self

from penstock.clock import physical_ms
from penstock.errors import Corrupt, Invalid
from penstock.follow.slices import Position, TableSpan
from penstock.secret_keys import Keyring
from penstock.secret_references import escape_references

_ID = re.compile(r"[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*")
_ID_CHARS_MAX = 128
_PLAIN_ACCOUNT = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ChangefeedState(StrEnum):
    """TiCDC's states. WARNING: it failed and retries, or goes on without a table that cannot be captured.
    FAILED: it does nothing until a user resumes it.
    """

    NORMAL = "normal"
    WARNING = "warning"
    FAILED = "failed"
    STOPPED = "stopped"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangefeedInfo:
    """What a user asked for. `settings` is a changefeed's section of the settings file, with its secrets."""

    id: str
    settings: Mapping[str, Any] = field(repr=False, hash=False)
    start_ts: int
    snapshot: bool = False
    created_ms: int = 0
    stopped: bool = False
    account: str = "sys"
    """The account that owns it; no other account may see or change it."""
    previous_settings: Mapping[str, Any] | None = field(default=None, repr=False, hash=False)
    """The settings of the files at the status's location. They are set after an update has moved the
    changefeed, until it starts at the location of `settings`."""

    @property
    def name(self) -> str:
        """The name by which its account knows it."""
        return self.id.rpartition(".")[2]

    @property
    def begin(self) -> Position:
        """The position at which every table that exists at the start begins."""
        return Position(self.start_ts, b"") if self.snapshot else Position(self.start_ts)

    def to_json(self, keys: Keyring) -> bytes:
        """Return the stored form, in which the sink is sealed; raise MissingKey when it cannot be sealed."""
        settings, secrets = _split_secrets(self.settings)
        previous, former = (
            (None, None) if self.previous_settings is None else _split_secrets(self.previous_settings)
        )
        tree = {
            "settings": settings,
            "sealed": keys.seal({"settings": secrets, "left": former}),
            "start_ts": self.start_ts,
            "snapshot": self.snapshot,
            "created_ms": self.created_ms,
            "stopped": self.stopped,
            "account": self.account,
            "left": previous,
        }
        return json.dumps(tree, sort_keys=True).encode()

    @classmethod
    def from_json(cls, changefeed_id: str, data: bytes, keys: Keyring) -> Self:
        """Read what `to_json` wrote; raise Corrupt when it is something else, MissingKey without its key.

        An earlier release stored the sink in clear, as texts without references.
        """
        try:
            tree = json.loads(data)
            sealed = keys.open(tree["sealed"]) if "sealed" in tree else None
            previous = tree.get("left")
            return cls(
                id=changefeed_id,
                settings=_join_secrets(tree["settings"], sealed and sealed["settings"]),
                start_ts=int(tree["start_ts"]),
                snapshot=bool(tree["snapshot"]),
                created_ms=int(tree["created_ms"]),
                stopped=bool(tree["stopped"]),
                account=str(tree.get("account", "sys")),
                previous_settings=(
                    None if previous is None else _join_secrets(previous, sealed and sealed["left"])
                ),
            )
        except (Corrupt, AttributeError, KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"changefeed {changefeed_id} is damaged; remove it and create it again") from error


_SECRETS = ("sink", "sink_uri", "storage_options")
_REMOVED = ("spark_rows",)
"""Settings that changefeeds of earlier releases have, and that mean nothing any more."""


def _split_secrets(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is stored of settings in clear, and what is sealed."""
    return (
        {name: value for name, value in settings.items() if name not in _SECRETS},
        {name: value for name, value in settings.items() if name in _SECRETS},
    )


def _join_secrets(settings: Mapping[str, Any], secrets: Mapping[str, Any] | None) -> dict[str, Any]:
    settings = {name: value for name, value in settings.items() if name not in _REMOVED}
    if secrets is not None:
        return {**settings, **secrets}
    in_clear = {name: _escape(value) for name, value in settings.items() if name in _SECRETS}
    return {**settings, **in_clear}


def _escape(value: Any) -> Any:
    if isinstance(value, str):
        return escape_references(value)
    return {name: escape_references(text) for name, text in value.items()}


def is_sealed(data: bytes, keys: Keyring) -> bool:
    """Return whether the stored form of a changefeed is sealed with the newest key."""
    try:
        return keys.is_newest(json.loads(data)["sealed"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutTable:
    """A table, or partition, that cannot be captured, and without which a changefeed goes on.

    Its changes at `since_ts` or later are not in the files, also if it is captured again: the checkpoint has
    passed them, so consumers take their files for complete. `sent`: the changefeed had the table before, so
    that its DDLs still go to the consumers.
    """

    table_id: int
    """The id of the physical table, of the logical one if it was never sent."""
    name: str
    reason: str
    since_ts: int
    sent: bool = True

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Read a member of a stored status."""
        return cls(
            table_id=int(tree["table_id"]),
            name=str(tree["name"]),
            reason=str(tree["reason"]),
            since_ts=int(tree["since_ts"]),
            sent=bool(tree["sent"]),
        )


def describe_left_out(tables: Sequence[LeftOutTable]) -> str:
    """Return which tables a changefeed goes on without, why, and what to do; empty when there is none."""
    if not tables:
        return ""
    first = min(tables, key=lambda table: (table.since_ts, table.name))
    others = len({table.name for table in tables}) - 1
    names = f"table {first.name}" + (f" and {others} more" if others else "")
    since = datetime.fromtimestamp(physical_ms(first.since_ts) / 1000, UTC).isoformat(timespec="milliseconds")
    return (
        f"it goes on without {names}, whose changes since {since} are not in the files because it cannot be"
        f" captured: {first.reason}. Fix that, then send the table with another changefeed, and exclude it"
        f" from this one with !{first.name} in its tables"
    )


@dataclass(frozen=True, slots=True)
class DoneDdls:
    """Which DDLs are done: all with a commit timestamp up to `ts`, and those at the timestamps `later`."""

    ts: int
    later: frozenset[int] = frozenset()

    def __contains__(self, commit_ts: int) -> bool:
        return commit_ts <= self.ts or commit_ts in self.later

    @property
    def last_ts(self) -> int:
        """The last DDL that is done."""
        return max(self.later, default=self.ts)

    def add(self, commit_ts: int, unfinished_ts: int | None) -> "DoneDdls":
        """Return these and one more; `unfinished_ts` is the first DDL that is not done, if there is one."""
        done = self.later | {commit_ts}
        below = (ts for ts in done if unfinished_ts is None or ts < unfinished_ts)
        return self.merge(DoneDdls(max(below, default=self.ts), done))

    def merge(self, other: "DoneDdls") -> "DoneDdls":
        """Return the DDLs that one of the two has, in whatever order they became known."""
        ts = max(self.ts, other.ts)
        return DoneDdls(ts, frozenset(commit_ts for commit_ts in self.later | other.later if commit_ts > ts))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangefeedStatus:
    """How far a changefeed has come. Every change up to `checkpoint_ts`, every DDL up to `ddl_ts` and those
    at `later_ddls` are on the remote, but for those of tables that are left out.

    This status and the stored dispatchers describe the files at `location` only. The files there begin with
    the changes after `location_ts`. `location` is empty before the first start, and None when an earlier
    release stored none.
    """

    checkpoint_ts: int
    ddl_ts: int
    state: ChangefeedState = ChangefeedState.NORMAL
    error: str = ""
    location: str | None = None
    location_ts: int = 0
    warning: str = ""
    left_out: tuple[LeftOutTable, ...] = ()
    later_ddls: tuple[int, ...] = ()

    @property
    def done_ddls(self) -> DoneDdls:
        """The DDLs that are on the remote."""
        return DoneDdls(self.ddl_ts, frozenset(self.later_ddls))

    def with_done_ddls(self, done: DoneDdls) -> "ChangefeedStatus":
        """Return this status with the DDLs that it has and more."""
        merged = self.done_ddls.merge(done)
        return replace(self, ddl_ts=merged.ts, later_ddls=tuple(sorted(merged.later)))

    @classmethod
    def of_new(cls, info: ChangefeedInfo) -> Self:
        """Return the status of a changefeed that has not run yet."""
        return cls(checkpoint_ts=info.begin.checkpoint_ts, ddl_ts=info.start_ts, location="")

    def without_error(self) -> "ChangefeedStatus":
        """Return this status as NORMAL, without the error and the warning."""
        return replace(self, state=ChangefeedState.NORMAL, error="", warning="")

    def at_new_location(self, location: str, info: ChangefeedInfo) -> "ChangefeedStatus":
        """Return this status at the start of another location, which has nothing after the checkpoint."""
        ddl_ts = max(self.checkpoint_ts, info.start_ts)
        return replace(self, ddl_ts=ddl_ts, later_ddls=(), location=location, location_ts=self.checkpoint_ts)

    def to_json(self) -> bytes:
        """Return the stored form."""
        tree = {
            "checkpoint_ts": self.checkpoint_ts,
            "ddl_ts": self.ddl_ts,
            "state": self.state.value,
            "error": self.error,
            "location": self.location,
            "location_ts": self.location_ts,
            "warning": self.warning,
            "left_out": [asdict(table) for table in self.left_out],
            "later_ddls": list(self.later_ddls),
        }
        return json.dumps(tree, sort_keys=True).encode()

    @classmethod
    def from_json(cls, changefeed_id: str, data: bytes) -> Self:
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
                warning=str(tree.get("warning", "")),
                left_out=tuple(map(LeftOutTable.from_json, tree.get("left_out", ()))),
                later_ddls=tuple(map(int, tree.get("later_ddls", ()))),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(
                f"the status of changefeed {changefeed_id} is damaged; remove it and create it again"
            ) from error


@dataclass(frozen=True, slots=True)
class ChangefeedRecord:
    """A changefeed as it is stored: what was asked for, and how far it has come."""

    info: ChangefeedInfo
    status: ChangefeedStatus

    @property
    def start_ts(self) -> int:
        """The files have the changes after this timestamp, and its snapshot too if `begins_with_rows`."""
        return max(self.info.start_ts, self.status.location_ts)

    @property
    def begins_with_rows(self) -> bool:
        """Whether the files begin with a snapshot; those at a later location begin with changes."""
        return self.info.snapshot and self.status.location_ts < self.info.start_ts

    @property
    def state(self) -> ChangefeedState:
        """The state to show: STOPPED when a user paused it, unless it has finished or failed."""
        ended = self.status.state in {ChangefeedState.FINISHED, ChangefeedState.FAILED}
        return ChangefeedState.STOPPED if self.info.stopped and not ended else self.status.state

    @property
    def runnable(self) -> bool:
        """Whether a process should run it."""
        return self.state in {ChangefeedState.NORMAL, ChangefeedState.WARNING}


def check_changefeed_id(changefeed_id: str) -> None:
    """Raise Invalid when it cannot name a changefeed. The rule is TiCDC's."""
    if len(changefeed_id) > _ID_CHARS_MAX or not _ID.fullmatch(changefeed_id):
        raise Invalid(
            f"{changefeed_id!r} cannot name a changefeed; use letters and digits, with single dashes between"
            " them"
        )


def account_changefeed_id(account: str, name: str) -> str:
    """Return the id of a tenant's changefeed, so that two accounts can use the same name.

    Names have no dot. An account whose name has other signs than these is represented by a digest: ids are
    parts of keys and of addresses.
    """
    plain = _PLAIN_ACCOUNT.fullmatch(account) is not None
    return f"{account if plain else sha256(account.encode()).hexdigest()[:16]}.{name}"


@dataclass(frozen=True, slots=True)
class PendingFile:
    """A file that may or may not be on the remote: the changes of a dispatcher after `start` up to `end`.

    Once this is stored, a file of this name has these changes and no others, whoever writes it. `nbytes`
    tells the file from another one of the same name; it is 0 when the size is not known before the file is
    made. `where` is the row filter that the file was begun with; None when an earlier release stored none.
    `followed`: the next file may be begun before this one is on the remote, so it is written also when there
    turns out to be no row in it: numbers have no holes.
    """

    dispatcher_id: str
    data_path: str
    index_path: str
    start: Position
    end: Position
    nbytes: int = 0
    where: str | None = None
    followed: bool = False


@dataclass(frozen=True, slots=True)
class DispatcherRecord:
    """A dispatcher as it is stored: where it began, and its newest files.

    Invariant: each pending file begins where the one before it ends, and what is before the first is on the
    remote for certain. A file is put only when the one before it is there, so those that exist are the first.
    """

    span: TableSpan
    begin: Position
    pending: tuple[PendingFile, ...] = ()

    def with_unknown_sizes(self) -> "DispatcherRecord":
        """Return the record after a try to write its files again, which may have written other bytes."""
        return replace(self, pending=tuple(replace(file, nbytes=0) for file in self.pending))


class ProgressStore(Protocol):
    """The part of a changefeed's state that its run writes. A write is durable on return.

    Every method raises Fenced when another process has taken the changefeed over, and Unavailable when the
    database does not answer.
    """

    async def location(self) -> str | None:
        """Return the location that the stored progress describes.

        It is empty before the first start, and None when an earlier release stored none.
        """

    async def begin_at(self, location: str, *, is_new: bool) -> None:
        """Store the location. `is_new`: it has nothing after the checkpoint yet.

        With `is_new` the same write forgets the dispatchers, their files and the DDLs after the checkpoint,
        which describe another location.
        """

    async def checkpoint_ts(self) -> int:
        """Return the stored checkpoint: every change up to it is on the remote."""

    async def keep_checkpoint(self, ts: int) -> None:
        """Store a checkpoint, unless the stored one is later."""

    async def dispatchers(self) -> list[DispatcherRecord]:
        """Return every dispatcher that was added and not removed."""

    async def left_out(self) -> tuple[LeftOutTable, ...]:
        """Return the tables without which the changefeed goes on."""

    async def change_dispatchers(
        self,
        added: Sequence[DispatcherRecord],
        removed: Iterable[str],
        *,
        done: DoneDdls | None = None,
        left_out: Sequence[LeftOutTable] | None = None,
    ) -> None:
        """Add and remove dispatchers in one write, together with the DDLs that lead to them.

        `done` is added to the DDLs that are done. `left_out` replaces the tables without which the changefeed
        goes on; None leaves them as they are.
        """

    async def done_ddls(self) -> DoneDdls:
        """Return the DDLs that are on the remote; the stored dispatchers are those after them."""

    async def begin_files(self, files: Sequence[PendingFile]) -> None:
        """Store what each file will hold before it is written, in place of its dispatcher's last files.

        The files of a dispatcher are in order, all that may not be on the remote yet.
        """
