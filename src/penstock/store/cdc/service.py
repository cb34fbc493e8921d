"""The ChangeData service: change streams of every store of the cluster."""

import asyncio
import logging
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from typing import Any

import grpc

from penstock import metrics
from penstock.clock import TS_MAX, Clock
from penstock.errors import PenstockError
from penstock.proto import cdcpb_pb2 as cdcpb
from penstock.proto import services
from penstock.settings import StoreSettings
from penstock.store.cdc.delegates import Delegate, Delegates
from penstock.store.cdc.outbox import Quota
from penstock.store.cdc.progress import Frontier
from penstock.store.cdc.stream import (
    STREAM_MULTIPLEXING,
    ClientStream,
    Source,
    of_change,
    requested_features,
    server_is_busy,
    unknown_features,
)
from penstock.store.mvcc.reader import MvccReader
from penstock.store.observe import Change, ChangeKind
from penstock.store.region import Region
from penstock.store.regions import Regions
from penstock.store.storage import TxnStorage
from penstock.store.tso import Tso

__all__ = ["ChangeDataService"]

_log = logging.getLogger(__name__)

Requests = AsyncIterable[cdcpb.ChangeDataRequest]
Context = grpc.aio.ServicerContext[Any, Any]


class ChangeDataService:
    """Follows the storage and the regions, and feeds the streams.

    It is the storage's ApplyObserver and a RegionListener; everything runs on the event loop. A change
    is in the outbox of each stream it concerns when `observe` returns.
    """

    def __init__(
        self,
        *,
        storage: TxnStorage,
        regions: Regions,
        tso: Tso,
        cluster_id: int,
        clock: Clock,
        settings: StoreSettings,
    ) -> None:
        self._delegates = Delegates()
        self._quota = Quota(settings.cdc_memory_bytes)
        self._source = Source(
            storage=storage,
            regions=regions,
            delegates=self._delegates,
            quota=self._quota,
            cluster_id=cluster_id,
            clock=clock,
        )
        self._tso = tso
        self._interval_s = settings.resolved_ts_interval_ms / 1000
        self._frontier = Frontier()
        self._streams: set[ClientStream] = set()
        self._rounds: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to advance resolved timestamps."""
        self._rounds = asyncio.create_task(self._advance_for_ever())

    async def stop(self) -> None:
        """End every stream and all background work."""
        for stream in tuple(self._streams):
            stream.close()
        if self._rounds is not None:
            self._rounds.cancel()
            await asyncio.gather(self._rounds, return_exceptions=True)

    def close_store(self, store_id: int) -> None:
        """End the streams of a store that is being stopped."""
        for stream in tuple(self._streams):
            if stream.store_id == store_id:
                stream.close()

    def handler(self, store_id: int) -> "grpc.GenericRpcHandler[Any, Any]":
        """Return the service as one store offers it."""

        async def event_feed(requests: Requests, context: Context) -> None:
            await self._serve(requests, context, self.open(store_id, multiplexing=False))

        async def event_feed_v2(requests: Requests, context: Context) -> None:
            requested = requested_features(context.invocation_metadata() or ())
            if unknown := unknown_features(requested):
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, ",".join(unknown))
            multiplexing = STREAM_MULTIPLEXING in requested
            await self._serve(requests, context, self.open(store_id, multiplexing=multiplexing))

        behaviours: dict[str, Callable[..., Awaitable[None]]] = {
            "EventFeed": event_feed,
            "EventFeedV2": event_feed_v2,
        }
        return services.handler("cdcpb.ChangeData", behaviours)

    def open(self, store_id: int, *, multiplexing: bool) -> ClientStream:
        """Return a new stream on a store. It gets changes until its call ends."""
        stream = ClientStream(self._source, store_id, multiplexing=multiplexing)
        self._streams.add(stream)
        return stream

    async def _serve(self, requests: Requests, context: Context, stream: ClientStream) -> None:
        try:
            await stream.serve(requests, context.write)
        finally:
            self._streams.discard(stream)
        if stream.cut_off:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"store {stream.store_id} is stopping")

    def observe(self, changes: Sequence[Change]) -> None:
        """Send the changes of one command to the subscriptions of their keys."""
        if not self._delegates:
            return
        count = 0
        for delegate, run in tuple(self._delegates.route(changes)):
            try:
                count += delegate.publish(run, self._old_values)
            except Exception:  # noqa: BLE001 - a command must not fail because of its observer
                # Some of the subscriptions may have missed the changes: all of them start over.
                _log.exception("changes of region %d could not be sent", delegate.region.id)
                self._end(delegate, lambda _: server_is_busy("changes could not be read"))
        metrics.STORE_CDC_ROWS_TOTAL.inc(count)
        if self._quota.exceeded:
            self._relieve()

    def _old_values(self, changes: Sequence[Change]) -> list[bytes]:
        """Return the value that each change replaces.

        They can be read after the change, because the latch of the key is held and a lock keeps other
        versions out.
        """
        reader: MvccReader | None = None
        values = []
        for change in changes:
            if change.kind is not ChangeKind.PREWRITE and change.kind is not ChangeKind.COMMITTED:
                values.append(b"")
                continue
            reader = reader or MvccReader(self._source.storage.engine.view())
            values.append(reader.newest_put_before(change.key, change.commit_ts or TS_MAX) or b"")
        return values

    def _relieve(self) -> None:
        """Drop what waits on the streams with most memory, until the rest fits the quota."""
        for stream in sorted(self._streams, key=lambda one: one.outbox.pending_bytes, reverse=True):
            if not self._quota.exceeded:
                return
            _log.warning(
                "a change stream of store %d is too slow: %d bytes wait; its %d subscriptions start over",
                stream.store_id,
                stream.outbox.pending_bytes,
                len(stream),
            )
            metrics.STORE_CDC_CONGESTED_TOTAL.inc()
            stream.congest()

    def region_changed(self, before: Region, after: Sequence[Region]) -> None:
        """End the subscriptions that the change makes stale; their clients locate and subscribe again."""
        delegate = self._delegates.get(before.id)
        if delegate is not None:
            self._end(delegate, lambda store_id: of_change(before, after, store_id))

    @staticmethod
    def _end(delegate: Delegate, error_at: Callable[[int], cdcpb.Error | None]) -> None:
        for subscription in tuple(delegate.subscriptions):
            error = error_at(subscription.owner.store_id)
            if error is not None:
                subscription.owner.end(subscription, error)

    async def _advance_for_ever(self) -> None:
        while True:
            await self._source.clock.sleep(self._interval_s)
            try:
                await self.advance()
            except PenstockError:
                _log.exception("resolved timestamps do not advance: the oracle does not answer")

    async def advance(self) -> None:
        """Run one round of resolved timestamps; progress.py explains why this order matters."""
        metrics.STORE_CDC_PENDING_BYTES.set(self._quota.used)
        metrics.STORE_CDC_SUBSCRIPTIONS.set(sum(len(stream) for stream in self._streams))
        if not self._streams:
            return
        ts = await self._tso.current()
        concurrency = self._source.storage.concurrency
        concurrency.update_max_ts(ts)
        bound = self._frontier.advance(ts, concurrency.min_lock_ts())
        for stream in tuple(self._streams):
            stream.advance(bound)
