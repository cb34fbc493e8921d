"""The one process that runs a changefeed, and what it keeps of its progress.

Every write renews the run's lease in the same transaction. So a process that was taken over, however late it
wakes up, meets a conflict on that row, reads the newer epoch there and is fenced: it changes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

from penstock.changefeeds.feedrows import (
    ChangefeedKeys,
    ChangefeedLease,
    committed,
    get_feed,
    read_dispatcher,
    write_dispatcher,
)
from penstock.changefeeds.feedstore import DispatcherRecord, PendingFile
from penstock.changefeeds.model import ChangefeedRecord, ChangefeedState, ChangefeedStatus
from penstock.clock import physical_ms
from penstock.errors import Fenced
from penstock.kv import AsyncClient, AsyncTransaction
from penstock.tables.keys import prefix_end


class LeasedProgress:
    """A changefeed in the hands of the one process that runs it. Implements ProgressStore."""

    def __init__(self, client: AsyncClient, feed_id: str, owner: str, epoch: int, *, ttl_s: float) -> None:
        self.feed_id = feed_id
        self._client = client
        self._owner = owner
        self._epoch = epoch
        self._ttl_ms = int(ttl_s * 1000)
        self._keys = ChangefeedKeys(feed_id)
        self._one_at_a_time = asyncio.Lock()  # every write has the lease in it: two of ours would conflict

    async def feed(self) -> ChangefeedRecord:
        """As it is now; somebody may have stopped or changed it."""
        async with self._client.begin() as txn:
            await self._check(txn)
            return await get_feed(txn, self.feed_id)

    async def renew(self) -> None:
        """Stay the one that runs it."""
        await self._write(_nothing)

    async def keep_state(self, state: ChangefeedState, error: str = "") -> None:
        """Let people see how it does."""
        await self._change_status(lambda status: replace(status, state=state, error=error))

    async def location(self) -> str | None:
        """See ProgressStore."""
        return (await self.feed()).status.location

    async def begin_at(self, location: str, *, anew: bool) -> None:
        """See ProgressStore."""

        async def begin(txn: AsyncTransaction) -> None:
            feed = await get_feed(txn, self.feed_id)
            status = replace(feed.status, location=location)
            if anew and feed.status.location != location:  # else: by an attempt that was not answered
                status = feed.status.begun_at(location, feed.info)
                folder = self._keys.dispatchers
                async for key, _ in txn.scan(folder, prefix_end(folder)):
                    await txn.delete(key)
            await txn.put(self._keys.status, status.to_json())

        await self._write(begin)

    async def checkpoint_ts(self) -> int:
        """See ProgressStore."""
        return (await self.feed()).status.checkpoint_ts

    async def keep_checkpoint(self, ts: int) -> None:
        """See ProgressStore."""
        await self._change_status(lambda status: replace(status, checkpoint_ts=max(ts, status.checkpoint_ts)))

    async def ddl_ts(self) -> int:
        """See ProgressStore."""
        return (await self.feed()).status.ddl_ts

    async def dispatchers(self) -> list[DispatcherRecord]:
        """See ProgressStore."""
        folder = self._keys.dispatchers
        async with self._client.begin() as txn:
            await self._check(txn)
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
                await txn.put(self._keys.dispatcher(each.spec.id), write_dispatcher(each))
            if ddl_ts is not None:
                status = (await get_feed(txn, self.feed_id)).status
                await txn.put(self._keys.status, replace(status, ddl_ts=max(ddl_ts, status.ddl_ts)).to_json())

        await self._write(change)

    async def begin_files(self, files: Sequence[PendingFile]) -> None:
        """See ProgressStore."""

        async def begin(txn: AsyncTransaction) -> None:
            rows = await txn.batch_get([self._keys.dispatcher(file.dispatcher_id) for file in files])
            for file in files:
                key = self._keys.dispatcher(file.dispatcher_id)
                if key not in rows:
                    raise Fenced(f"changefeed {self.feed_id} has no dispatcher {file.dispatcher_id} any more")
                await txn.put(key, write_dispatcher(replace(read_dispatcher(rows[key]), pending=file)))

        await self._write(begin)

    async def give_up(self) -> None:
        """Let another process run it at once; without effect when one does already."""

        async def give_up(txn: AsyncTransaction) -> None:
            lease = ChangefeedLease.read(await txn.get(self._keys.lease))
            if lease.epoch == self._epoch and lease.owner == self._owner:
                await txn.put(self._keys.lease, ChangefeedLease("", lease.epoch, 0).write())

        await committed(self._client, give_up)

    async def _change_status(self, edit: Callable[[ChangefeedStatus], ChangefeedStatus]) -> None:
        async def change(txn: AsyncTransaction) -> None:
            status = edit((await get_feed(txn, self.feed_id)).status)
            await txn.put(self._keys.status, status.to_json())

        await self._write(change)

    async def _write(self, change: "Callable[[AsyncTransaction], Awaitable[None]]") -> None:
        async def fenced(txn: AsyncTransaction) -> None:
            await self._check(txn)
            expires_ms = physical_ms(await txn.start_ts) + self._ttl_ms
            await txn.put(self._keys.lease, ChangefeedLease(self._owner, self._epoch, expires_ms).write())
            await change(txn)

        async with self._one_at_a_time:
            await committed(self._client, fenced)

    async def _check(self, txn: AsyncTransaction) -> None:
        lease = ChangefeedLease.read(await txn.get(self._keys.lease))
        if lease.epoch != self._epoch or lease.owner != self._owner:
            who = lease.owner or "nobody; it was removed or given up"
            raise Fenced(f"changefeed {self.feed_id} is run by {who}; this process stops")


async def _nothing(_txn: AsyncTransaction) -> None:
    """Write nothing but the lease."""
