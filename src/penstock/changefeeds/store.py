"""Changefeeds as rows in the key-value store: what the commands read and change.

The rows that changefeeds have in the key-value store, and the transactions that change them.

The one process that runs a changefeed, and what it keeps of its progress.

Every write renews the run's lease in the same transaction. So a process that was taken over, however late it
wakes up, meets a conflict on that row, reads the newer epoch there and is fenced: it changes nothing.
"""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.changefeeds.model import (
    ChangefeedInfo,
    ChangefeedRecord,
    ChangefeedState,
    ChangefeedStatus,
    DispatcherRecord,
    PendingFile,
    check_changefeed_id,
)
from penstock.clock import physical_ms
from penstock.errors import AlreadyExists, Corrupt, Fenced, NotFound
from penstock.follow.slices import Position, TableSpan
from penstock.kv import AsyncClient, AsyncTransaction
from penstock.kv.lease import Lease, LeaseKey
from penstock.kv.transact import transact_async
from penstock.tables.keys import prefix_end

_PREFIX = b"penstock/changefeed/"
INFOS, STATUSES, LEASES = _PREFIX + b"info/", _PREFIX + b"status/", _PREFIX + b"lease/"
LOCATIONS = _PREFIX + b"locations"
"""Whoever gives a changefeed a place writes it, so that two who choose one at the same time conflict."""


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
    def lease(self) -> LeaseKey:
        """Who runs it."""
        work = f"changefeed {self.feed_id}"
        return LeaseKey(LEASES + self.feed_id.encode(), work, "remove the changefeed and create it again")

    @property
    def dispatchers(self) -> bytes:
        """What the keys of its dispatchers begin with."""
        return _PREFIX + b"dispatcher/" + self.feed_id.encode() + b"/"

    def dispatcher(self, dispatcher_id: str) -> bytes:
        """One dispatcher."""
        return self.dispatchers + dispatcher_id.encode()


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


def write_dispatcher(kept: DispatcherRecord) -> bytes:
    """A dispatcher's row."""
    span, pending = kept.span, kept.pending
    tree: dict[str, Any] = {
        "table_id": span.table_id,
        "id": span.id,
        "handle_from": span.handle_from.hex(),
        "handle_to": span.handle_to.hex(),
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
        span = TableSpan(
            tree["id"],
            int(tree["table_id"]),
            bytes.fromhex(tree["handle_from"]),
            bytes.fromhex(tree["handle_to"]),
        )
        pending = tree.get("pending")
        return DispatcherRecord(
            span,
            Position.from_json(tree["begin"]),
            None if pending is None else _read_pending(span.id, pending),
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


class LeasedProgress:
    """A changefeed in the hands of the one process that runs it. Implements ProgressStore."""

    def __init__(self, client: AsyncClient, feed_id: str, lease: Lease) -> None:
        self.feed_id = feed_id
        self._client = client
        self._lease = lease
        self._keys = ChangefeedKeys(feed_id)

    async def get_record(self) -> ChangefeedRecord:
        """As it is now; somebody may have stopped or changed it."""
        async with self._client.begin() as txn:
            await self._lease.check(txn)
            return await get_feed(txn, self.feed_id)

    async def renew(self) -> None:
        """Stay the one that runs it."""
        await self._lease.renew()

    async def keep_state(self, state: ChangefeedState, error: str = "") -> None:
        """Let people see how it does."""
        await self._change_status(lambda status: replace(status, state=state, error=error))

    async def location(self) -> str | None:
        """See ProgressStore."""
        return (await self.get_record()).status.location

    async def begin_at(self, location: str, *, anew: bool) -> None:
        """See ProgressStore."""

        async def begin(txn: AsyncTransaction) -> None:
            feed = await get_feed(txn, self.feed_id)
            status = replace(feed.status, location=location)
            if anew and feed.status.location != location:  # else: by an attempt that was not answered
                status = feed.status.at_new_location(location, feed.info)
                folder = self._keys.dispatchers
                async for key, _ in txn.scan(folder, prefix_end(folder)):
                    await txn.delete(key)
            await txn.put(self._keys.status, status.to_json())

        await self._lease.write(begin)

    async def checkpoint_ts(self) -> int:
        """See ProgressStore."""
        return (await self.get_record()).status.checkpoint_ts

    async def keep_checkpoint(self, ts: int) -> None:
        """See ProgressStore."""
        await self._change_status(lambda status: replace(status, checkpoint_ts=max(ts, status.checkpoint_ts)))

    async def ddl_ts(self) -> int:
        """See ProgressStore."""
        return (await self.get_record()).status.ddl_ts

    async def dispatchers(self) -> list[DispatcherRecord]:
        """See ProgressStore."""
        folder = self._keys.dispatchers
        async with self._client.begin() as txn:
            await self._lease.check(txn)
            return [read_dispatcher(value) async for _, value in txn.scan(folder, prefix_end(folder))]

    async def change_dispatchers(
        self, added: Sequence[DispatcherRecord], removed: Iterable[str], *, ddl_ts: int | None = None
    ) -> None:
        """See ProgressStore."""
        gone = list(removed)

        async def change(txn: AsyncTransaction) -> None:
            for dispatcher_id in gone:
                await txn.delete(self._keys.dispatcher(dispatcher_id))
            for each in added:
                await txn.put(self._keys.dispatcher(each.span.id), write_dispatcher(each))
            if ddl_ts is not None:
                status = (await get_feed(txn, self.feed_id)).status
                await txn.put(self._keys.status, replace(status, ddl_ts=max(ddl_ts, status.ddl_ts)).to_json())

        await self._lease.write(change)

    async def begin_files(self, files: Sequence[PendingFile]) -> None:
        """See ProgressStore."""

        async def begin(txn: AsyncTransaction) -> None:
            rows = await txn.batch_get([self._keys.dispatcher(file.dispatcher_id) for file in files])
            for file in files:
                key = self._keys.dispatcher(file.dispatcher_id)
                if key not in rows:
                    raise Fenced(f"changefeed {self.feed_id} has no dispatcher {file.dispatcher_id} any more")
                await txn.put(key, write_dispatcher(replace(read_dispatcher(rows[key]), pending=file)))

        await self._lease.write(begin)

    async def give_up(self) -> None:
        """Let another process run the changefeed at once; does nothing when one runs it already."""
        await self._lease.give_up()

    async def _change_status(self, edit: Callable[[ChangefeedStatus], ChangefeedStatus]) -> None:
        async def change(txn: AsyncTransaction) -> None:
            status = edit((await get_feed(txn, self.feed_id)).status)
            await txn.put(self._keys.status, status.to_json())

        await self._lease.write(change)


Check = Callable[[list[ChangefeedRecord]], None]
"""Looks at all changefeeds, of every account, before one gets a place; raises what speaks against it."""

_log = logging.getLogger(__name__)


class ChangefeedStore:
    """The changefeeds of a cluster, or of one account: what the commands do. Every method raises Unavailable.

    For an account, changefeeds of others do not exist: NotFound is raised, in the same words.
    """

    def __init__(self, client: AsyncClient, *, account: str | None = None) -> None:
        self._client = client
        self._account = account

    async def create(self, info: ChangefeedInfo, *, check: Check | None = None) -> None:
        """Add one; raise AlreadyExists when there is one of that name, and what `check` raises."""
        check_changefeed_id(info.id)
        keys = ChangefeedKeys(info.id)

        tried = False

        async def create(txn: AsyncTransaction) -> None:
            nonlocal tried
            there = await txn.get(keys.info)
            if there is not None:
                if there == info.to_json() or (tried and _created_together(info, there)):
                    return  # by an attempt of this call that was not answered; it may be running already
                raise AlreadyExists(
                    f"there is a changefeed {info.id} already; remove it first, or take another name"
                )
            await self._check_all(txn, check)
            tried = True
            await txn.put(keys.info, info.to_json())
            await txn.put(keys.status, ChangefeedStatus.of_new(info).to_json())

        await transact_async(self._client.begin, create, repeatable=True)

    async def list(self, *, every: bool = False) -> list[ChangefeedRecord]:
        """Changefeeds by name; `every` gives those of other accounts too.

        One whose rows are damaged is left out and logged: it can be removed.
        """
        async with self._client.begin() as txn:
            found = await _all_feeds(txn)
        return [feed for feed in found if every or self._is_seen(feed.info)]

    async def get(self, feed_id: str) -> ChangefeedRecord:
        """One of them; raise NotFound when there is none of that name."""
        async with self._client.begin() as txn:
            return await self._get(txn, feed_id)

    async def owners(self) -> dict[str, str]:
        """Who runs each changefeed that somebody runs now; the lease of a silent one ends after a while."""
        async with self._client.begin() as txn:
            now_ms = physical_ms(await txn.start_ts)
            rows = [row async for row in txn.scan(LEASES, prefix_end(LEASES))]
        found = {}
        for key, value in rows:
            name = key.removeprefix(LEASES).decode()
            lease = ChangefeedKeys(name).lease.decode(value)
            if lease.is_held(now_ms):
                found[name] = lease.owner
        return found

    async def change(
        self,
        feed_id: str,
        edit: Callable[[ChangefeedRecord], ChangefeedRecord],
        *,
        check: Check | None = None,
    ) -> ChangefeedRecord:
        """Change one in a transaction; what `check` or `edit` raises is raised, and nothing is changed."""
        keys = ChangefeedKeys(feed_id)

        async def change(txn: AsyncTransaction) -> ChangefeedRecord:
            feed = await self._get(txn, feed_id)
            await self._check_all(txn, check)
            edited = edit(feed)
            await txn.put(keys.info, edited.info.to_json())
            if edited.status != feed.status:
                await txn.put(keys.status, edited.status.to_json())
            return edited

        return await transact_async(self._client.begin, change, repeatable=True)

    async def remove(self, feed_id: str) -> None:
        """Remove one, damaged or not, and everything of it but its files; the process that runs it is fenced.

        Raises NotFound when there is none of that name as the call begins. A changefeed of the same name that
        somebody creates during the call stays.
        """
        keys = ChangefeedKeys(feed_id)
        seen: bytes | None = None

        async def remove(txn: AsyncTransaction) -> None:
            nonlocal seen
            if seen is not None:
                there = await txn.get(keys.info)
                if there is None or not _is_same_feed(feed_id, seen, there):
                    return  # an attempt of this call that was not answered has removed it, or somebody else
            info = await require_feed(txn, feed_id)
            if self._account is not None and not self._is_seen(ChangefeedInfo.from_json(feed_id, info)):
                raise no_such_feed(feed_id)
            seen = info
            for key in (keys.info, keys.status, keys.lease.key):
                await txn.delete(key)
            async for key, _ in txn.scan(keys.dispatchers, prefix_end(keys.dispatchers)):
                await txn.delete(key)

        await transact_async(self._client.begin, remove, repeatable=True)

    async def _check_all(self, txn: AsyncTransaction, check: Check | None) -> None:
        if check is not None:
            check(await _all_feeds(txn))
            await txn.put(LOCATIONS, b"%d" % await txn.start_ts)

    async def _get(self, txn: AsyncTransaction, feed_id: str) -> ChangefeedRecord:
        feed = await get_feed(txn, feed_id)
        if not self._is_seen(feed.info):
            raise no_such_feed(feed_id)
        return feed

    def _is_seen(self, info: ChangefeedInfo) -> bool:
        return self._account in {None, info.account}

    async def acquire(self, feed_id: str, owner: str, *, ttl_s: float) -> "LeasedProgress":
        """Become the one that runs it.

        Raises Unavailable while somebody else is, Invalid when there is no such changefeed.
        """
        lease = await Lease.acquire(
            self._client,
            ChangefeedKeys(feed_id).lease,
            owner,
            ttl_s=ttl_s,
            check=lambda txn: get_feed(txn, feed_id),
        )
        return LeasedProgress(self._client, feed_id, lease)


async def _all_feeds(txn: AsyncTransaction) -> list[ChangefeedRecord]:
    rows = {
        key: value
        for prefix in (INFOS, STATUSES)
        async for key, value in txn.scan(prefix, prefix_end(prefix))
    }
    found = []
    for name in (key.removeprefix(INFOS).decode() for key in rows if key.startswith(INFOS)):
        try:
            found.append(
                feed_of(name, rows[ChangefeedKeys(name).info], rows.get(ChangefeedKeys(name).status))
            )
        except Corrupt as error:
            _log.error("a changefeed is left out", extra={"changefeed": name, "error": str(error)})
    return found


def _is_same_feed(feed_id: str, seen: bytes, there: bytes) -> bool:
    """Return whether two rows are of one changefeed, whatever was changed between them."""
    if seen == there:
        return True
    try:
        return _created_together(ChangefeedInfo.from_json(feed_id, seen), there)
    except Corrupt:
        return False  # nothing is known of a damaged row but its bytes


def _created_together(info: ChangefeedInfo, there: bytes) -> bool:
    """Whether a row is of the very creation that made `info`, whatever was changed since."""
    found = ChangefeedInfo.from_json(info.id, there)
    mine = (info.created_ms, info.start_ts, info.account)
    return mine == (found.created_ms, found.start_ts, found.account)
