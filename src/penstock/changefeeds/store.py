"""Changefeeds as rows in the key-value store: what the commands read and change."""

import logging
from collections.abc import Callable

from penstock.changefeeds.feedrows import (
    INFOS,
    LEASES,
    LOCATIONS,
    STATUSES,
    ChangefeedKeys,
    ChangefeedLease,
    committed,
    feed_of,
    get_feed,
    no_such_feed,
    require_feed,
)
from penstock.changefeeds.feedrun import LeasedProgress
from penstock.changefeeds.model import ChangefeedInfo, ChangefeedRecord, ChangefeedStatus, check_feed_id
from penstock.clock import physical_ms
from penstock.errors import AlreadyExists, Corrupt, Unavailable
from penstock.kv import AsyncClient, AsyncTransaction
from penstock.tables.keys import prefix_end

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
        check_feed_id(info.id)
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

        await committed(self._client, create)

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
        found = {key.removeprefix(LEASES).decode(): ChangefeedLease.read(value) for key, value in rows}
        return {
            name: lease.owner for name, lease in found.items() if lease.owner and lease.expires_ms > now_ms
        }

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

        return await committed(self._client, change)

    async def remove(self, feed_id: str) -> None:
        """Forget one, damaged or not, and everything of it but its files; who runs it is fenced.

        Raises NotFound when there is none of that name as the call begins.
        """
        keys = ChangefeedKeys(feed_id)
        seen = False

        async def remove(txn: AsyncTransaction) -> None:
            nonlocal seen
            if seen and await txn.get(keys.info) is None:
                return  # an attempt of this call that was not answered has removed it, or somebody else
            info = await require_feed(txn, feed_id)
            if self._account is not None and not self._is_seen(ChangefeedInfo.from_json(feed_id, info)):
                raise no_such_feed(feed_id)
            seen = True
            for key in (keys.info, keys.status, keys.lease):
                await txn.delete(key)
            async for key, _ in txn.scan(keys.dispatchers, prefix_end(keys.dispatchers)):
                await txn.delete(key)

        await committed(self._client, remove)

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
        keys = ChangefeedKeys(feed_id)

        async def acquire(txn: AsyncTransaction) -> int:
            await get_feed(txn, feed_id)
            lease = ChangefeedLease.read(await txn.get(keys.lease))
            now_ms = physical_ms(await txn.start_ts)
            if lease.owner not in {"", owner} and lease.expires_ms > now_ms:
                raise Unavailable(f"changefeed {feed_id} is run by {lease.owner}; wait until that one stops")
            taken = ChangefeedLease(owner, lease.epoch + 1, now_ms + int(ttl_s * 1000))
            await txn.put(keys.lease, taken.write())
            return taken.epoch

        return LeasedProgress(
            self._client, feed_id, owner, await committed(self._client, acquire), ttl_s=ttl_s
        )


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


def _created_together(info: ChangefeedInfo, there: bytes) -> bool:
    """Whether a row is of the very creation that made `info`, whatever was changed since."""
    found = ChangefeedInfo.from_json(info.id, there)
    mine = (info.created_ms, info.start_ts, info.account)
    return mine == (found.created_ms, found.start_ts, found.account)
