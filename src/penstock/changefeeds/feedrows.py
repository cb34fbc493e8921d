"""The rows that changefeeds have in the key-value store, and the transactions that change them."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.changefeeds.feedstore import DispatcherRecord, PendingFile
from penstock.changefeeds.model import ChangefeedInfo, ChangefeedRecord, ChangefeedStatus
from penstock.errors import Conflict, Corrupt, NotFound, Unavailable, Undetermined
from penstock.follow.positions import Position
from penstock.follow.slices import TableSpan
from penstock.kv import AsyncClient, AsyncTransaction

_PREFIX = b"penstock/changefeed/"
INFOS, STATUSES, LEASES = _PREFIX + b"info/", _PREFIX + b"status/", _PREFIX + b"lease/"
LOCATIONS = _PREFIX + b"locations"
"""Whoever gives a changefeed a place writes it, so that two who choose one at the same time conflict."""
_ATTEMPTS = 10

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChangefeedKeys:
    """The keys of one changefeed. Those of a kind are together: listing changefeeds reads no dispatchers."""

    feed_id: str

    @property
    def info(self) -> bytes:
        """What was asked for."""
        return INFOS + self.feed_id.encode()

    @property
    def status(self) -> bytes:
        """How far it has come."""
        return STATUSES + self.feed_id.encode()

    @property
    def lease(self) -> bytes:
        """Who runs it."""
        return LEASES + self.feed_id.encode()

    @property
    def dispatchers(self) -> bytes:
        """What the keys of its dispatchers begin with."""
        return _PREFIX + b"dispatcher/" + self.feed_id.encode() + b"/"

    def dispatcher(self, dispatcher_id: str) -> bytes:
        """One dispatcher."""
        return self.dispatchers + dispatcher_id.encode()


@dataclass(frozen=True, slots=True)
class ChangefeedLease:
    """Who runs a changefeed, and until when; each new run has a greater epoch."""

    owner: str = ""
    epoch: int = 0
    expires_ms: int = 0

    def write(self) -> bytes:
        """The row's value."""
        return json.dumps({"owner": self.owner, "epoch": self.epoch, "expires_ms": self.expires_ms}).encode()

    @classmethod
    def read(cls, data: bytes | None) -> "ChangefeedLease":
        """A lease from its row; nobody's when there is none."""
        if data is None:
            return cls()
        try:
            tree = json.loads(data)
            return cls(str(tree["owner"]), int(tree["epoch"]), int(tree["expires_ms"]))
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt("the lease of a changefeed is damaged; remove the changefeed") from error


async def get_feed(txn: AsyncTransaction, feed_id: str) -> ChangefeedRecord:
    """A changefeed as a transaction sees it; raise NotFound when there is none of that name."""
    info = await require_feed(txn, feed_id)
    return feed_of(feed_id, info, await txn.get(ChangefeedKeys(feed_id).status))


async def require_feed(txn: AsyncTransaction, feed_id: str) -> bytes:
    """The row of a changefeed; raise NotFound when there is none of that name."""
    info = await txn.get(ChangefeedKeys(feed_id).info)
    if info is None:
        raise no_such_feed(feed_id)
    return info


def no_such_feed(feed_id: str) -> NotFound:
    """What is said of a changefeed that is not there, or not the caller's."""
    return NotFound(f"there is no changefeed {feed_id}; `penstock changefeed list` shows those there are")


def feed_of(feed_id: str, info: bytes, status: bytes | None) -> ChangefeedRecord:
    """A changefeed from its two rows."""
    known = ChangefeedInfo.from_json(feed_id, info)
    if status is None:
        raise Corrupt(f"changefeed {feed_id} has no status; remove it and create it again")
    return ChangefeedRecord(known, ChangefeedStatus.from_json(feed_id, status))


async def committed(client: AsyncClient, work: Callable[[AsyncTransaction], Awaitable[T]]) -> T:
    """Run a transaction until it commits.

    `work` runs again after a commit that was not answered, and may meet what it has written itself: it must
    take that for its own success.
    """
    problem: Exception | None = None
    for _ in range(_ATTEMPTS):
        try:
            async with client.begin() as txn:
                return await work(txn)
        except (Conflict, Undetermined) as error:
            problem = error
    raise Unavailable("changefeeds are changed by others all the time; try again") from problem


def write_dispatcher(kept: DispatcherRecord) -> bytes:
    """A dispatcher's row."""
    spec, pending = kept.spec, kept.pending
    tree: dict[str, Any] = {
        "table_id": spec.table_id,
        "id": spec.id,
        "handle_from": spec.handle_from.hex(),
        "handle_to": spec.handle_to.hex(),
        "begin": kept.begin.to_json(),
    }
    if pending is not None:
        tree["pending"] = {
            "data_path": pending.data_path,
            "index_path": pending.index_path,
            "start": pending.start.to_json(),
            "end": pending.end.to_json(),
            "nbytes": pending.nbytes,
        }
    return json.dumps(tree).encode()


def read_dispatcher(data: bytes) -> DispatcherRecord:
    """A dispatcher from its row."""
    try:
        tree = json.loads(data)
        spec = TableSpan(
            tree["id"],
            int(tree["table_id"]),
            bytes.fromhex(tree["handle_from"]),
            bytes.fromhex(tree["handle_to"]),
        )
        pending = tree.get("pending")
        return DispatcherRecord(
            spec,
            Position.from_json(tree["begin"]),
            None if pending is None else _read_pending(spec.id, pending),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt("a dispatcher of a changefeed is damaged; create the changefeed again") from error


def _read_pending(dispatcher_id: str, tree: dict[str, Any]) -> PendingFile:
    return PendingFile(
        dispatcher_id,
        tree["data_path"],
        tree["index_path"],
        Position.from_json(tree["start"]),
        Position.from_json(tree["end"]),
        int(tree["nbytes"]),
    )
