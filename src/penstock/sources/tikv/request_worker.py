"""Change streams: one worker for each store sends requests and receives region events.

`StoreWorkers` finds the address of a store and makes its worker.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc

from penstock import metrics
from penstock.clock import Clock
from penstock.errors import Invalid
from penstock.kv.pd import PdClient
from penstock.kv.rpc.connections import EOF, Dialer
from penstock.proto import cdcpb_pb2 as cdcpb
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto.codec import encode_bytes
from penstock.proto.services import methods
from penstock.sources.tikv.matcher import Matcher
from penstock.sources.tikv.processor import RegionEventProcessor
from penstock.sources.tikv.request_cache import Deregister, RequestCache
from penstock.sources.tikv.routing import FeedEnd, FeedEndReason
from penstock.sources.tikv.subscription import FeedPhase, RegionFeedState, RegionTask

__all__ = ["RegionRequestWorker", "StoreWorkers"]


CLIENT_VERSION = "8.5.0"  # of the protocol's reference client: decides which features a store uses
_FEED = methods("cdcpb.ChangeData")["EventFeedV2"]
_FEATURES = (("features", "stream-multiplexing"),)
_PAUSE_S = 1.0
_SWEEP_S = 10.0

_log = logging.getLogger(__name__)
_LOGGED_REGIONS = 3


class RegionRequestWorker:
    """Follows regions of any number of subscriptions on one store.

    A stream is opened only when there is a region to ask for, so that a store that is gone is not
    dialled for ever. When it ends, `on_lost(store_id)` is called, every region on it is given back, and
    after a pause it starts over. `on_given_back(task, end)` is called for a region that was not subscribed;
    one that was is given back by the processor, after its earlier events.
    """

    def __init__(
        self,
        store_id: int,
        addr: str,
        *,
        dialer: Dialer,
        cluster_id: int,
        cache: RequestCache,
        processor: RegionEventProcessor,
        on_given_back: Callable[[RegionTask, FeedEnd], None],
        on_lost: Callable[[int], None],
        new_matcher: Callable[[], Matcher],
        clock: Clock,
    ) -> None:
        self.store_id = store_id
        self.addr = addr
        self.cache = cache
        self._dialer = dialer
        self._cluster_id = cluster_id
        self._processor = processor
        self._on_given_back = on_given_back
        self._on_lost = on_lost
        self._new_matcher = new_matcher
        self._clock = clock
        self._feeds: dict[int, dict[int, RegionFeedState]] = {}
        self._task = asyncio.create_task(self._run(), name=f"penstock-feed-{store_id}")

    def deregister(self, sub_id: int) -> None:
        """End a subscription on this store."""
        cancelled = FeedEnd(FeedEndReason.CANCELLED)
        for task in self.cache.deregister(sub_id):
            self._on_given_back(task, cancelled)
        for state in self._feeds.pop(sub_id, {}).values():
            self._finish(state, cancelled)

    async def close(self) -> None:
        """End the stream; regions are not given back."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def feed(self, sub_id: int, region_id: int) -> RegionFeedState | None:
        """Return the feed of a region, if it is followed here."""
        return self._feeds.get(sub_id, {}).get(region_id)

    async def _run(self) -> None:
        while True:
            await self.cache.wait()
            end = FeedEnd(FeedEndReason.STREAM_LOST, "the stream ended")
            try:
                await self._stream()
            except grpc.aio.AioRpcError as error:
                end = self._feed_end(error)
            except asyncio.InvalidStateError:
                end = FeedEnd(FeedEndReason.STREAM_LOST, "the stream ended while a request was being sent")
            except Invalid as error:
                end = FeedEnd(FeedEndReason.UNSUPPORTED, str(error))
            _log.info(
                "a change stream ended",
                extra={"store_id": self.store_id, "addr": self.addr, "error": end.detail},
            )
            self._on_lost(self.store_id)
            self.give_back(end)
            await self._clock.sleep(_PAUSE_S)

    def _feed_end(self, error: grpc.aio.AioRpcError) -> FeedEnd:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return FeedEnd(
                FeedEndReason.UNSUPPORTED,
                f"store {self.store_id} at {self.addr} serves no multiplexed change streams"
                f" ({error.details()}); use TiKV 7.1 or newer",
            )
        return FeedEnd(FeedEndReason.STREAM_LOST, f"{error.code().name}: {error.details()}")

    async def _stream(self) -> None:
        """Open a stream and use it until sending or receiving ends."""
        channel: Any = self._dialer.open(self.addr)
        try:
            multi = channel.stream_stream(
                _FEED.path,
                request_serializer=_FEED.request.SerializeToString,
                response_deserializer=_FEED.response.FromString,
            )
            call = multi(metadata=_FEATURES)
            loops = [
                asyncio.create_task(self._send(call)),
                asyncio.create_task(self._receive(call)),
                asyncio.create_task(self._sweep()),
            ]
            try:
                done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in loops:
                    task.cancel()
                call.cancel()
                await asyncio.gather(*loops, return_exceptions=True)
            for task in done:
                task.result()
        finally:
            await channel.close()

    async def _send(self, call: Any) -> None:
        while True:
            request = await self.cache.next()
            if isinstance(request, Deregister):
                await call.write(self._deregistration(request.sub_id))
                continue
            if request.span.stopped:
                self._on_given_back(request, FeedEnd(FeedEndReason.CANCELLED))
                continue
            await call.write(self._registration(self._follow(request)))

    def _follow(self, task: RegionTask) -> RegionTask:
        state = RegionFeedState(task, self._new_matcher(), asked_at=self._clock.monotonic())
        feeds = self._feeds.setdefault(task.span.sub_id, {})
        assert task.meta.id not in feeds, "a region is followed once per subscription"
        feeds[task.meta.id] = state
        self.cache.mark_sent(state)
        return task

    def _registration(self, task: RegionTask) -> cdcpb.ChangeDataRequest:
        start, end = task.key_range
        return cdcpb.ChangeDataRequest(
            header=self._header(),
            region_id=task.meta.id,
            region_epoch=task.meta.region_epoch,
            checkpoint_ts=task.locked.resolved_ts,
            start_key=encode_bytes(start) if start else b"",
            end_key=encode_bytes(end) if end else b"",
            request_id=task.span.sub_id,
            extra_op=kvrpcpb.ReadOldValue,
            register=cdcpb.ChangeDataRequest.Register(),
        )

    def _deregistration(self, sub_id: int) -> cdcpb.ChangeDataRequest:
        return cdcpb.ChangeDataRequest(
            header=self._header(), request_id=sub_id, deregister=cdcpb.ChangeDataRequest.Deregister()
        )

    def _header(self) -> cdcpb.Header:
        return cdcpb.Header(cluster_id=self._cluster_id, ticdc_version=CLIENT_VERSION)

    async def _receive(self, call: Any) -> None:
        while True:
            message = await call.read()
            if message is EOF:
                return
            await self.dispatch(message)

    async def dispatch(self, message: cdcpb.ChangeDataEvent) -> None:
        """Pass on the events of a message; drop those of regions that are not followed."""
        for event in message.events:
            state = self._feeds.get(event.request_id, {}).get(event.region_id)
            kind = event.WhichOneof("event")
            if state is None or state.phase is not FeedPhase.RUNNING:
                _log.debug(
                    "an event of a region that is not followed was dropped",
                    extra={"region_id": event.region_id, "sub_id": event.request_id, "kind": kind},
                )
            elif kind == "entries":
                await self._processor.dispatch_entries(state, event.entries, event.ByteSize())
            elif kind == "error":
                self._end_feed(state, FeedEnd.of(event.error))
            elif kind == "resolved_ts":
                await self._processor.dispatch_resolved(state.task.span, [state], event.resolved_ts)
            # Anything else is a hint about long transactions, which is not used.
        if message.HasField("resolved_ts"):
            await self._dispatch_resolved(message.resolved_ts)

    async def _dispatch_resolved(self, resolved: cdcpb.ResolvedTs) -> None:
        if not resolved.ts:
            _log.warning("a resolved timestamp of 0 was ignored", extra={"store_id": self.store_id})
            return
        feeds = self._feeds.get(resolved.request_id, {})
        states = [feeds[region_id] for region_id in resolved.regions if region_id in feeds]
        if len(states) < len(resolved.regions):
            self._log_unknown(resolved, feeds)
        metrics.PULLER_EVENTS_TOTAL.labels("resolved").inc(len(resolved.regions))
        if states:
            await self._processor.dispatch_resolved(states[0].task.span, states, resolved.ts)

    def _log_unknown(self, resolved: cdcpb.ResolvedTs, feeds: Mapping[int, RegionFeedState]) -> None:
        """Log regions of a resolved timestamp that are not followed, since their timestamp is not used.

        A subscription without any feed has just ended here: its last timestamps are expected.
        """
        unknown = [region_id for region_id in resolved.regions if region_id not in feeds]
        _log.log(
            logging.WARNING if feeds else logging.DEBUG,
            "a resolved timestamp names regions that are not followed",
            extra={
                "store_id": self.store_id,
                "sub_id": resolved.request_id,
                "regions": len(unknown),
                "first_regions": unknown[:_LOGGED_REGIONS],
            },
        )

    def _end_feed(self, state: RegionFeedState, end: FeedEnd) -> None:
        sub_id = state.task.span.sub_id
        feeds = self._feeds[sub_id]
        del feeds[state.region_id]
        if not feeds:
            del self._feeds[sub_id]
        self._finish(state, end)

    def _finish(self, state: RegionFeedState, end: FeedEnd) -> None:
        self.cache.settle(state)
        if state.stop(end):
            self._processor.dispatch_end(state)

    def give_back(self, end: FeedEnd) -> None:
        """Give every region back, those that wait and those that are followed."""
        feeds, self._feeds = self._feeds, {}
        for of_subscription in feeds.values():
            for state in of_subscription.values():
                self._finish(state, end)
        for task in self.cache.clear():
            self._on_given_back(task, end)

    async def _sweep(self) -> None:
        while True:
            await self._clock.sleep(_SWEEP_S)
            self.cache.sweep()


class StoreWorkers:
    """One worker per store, made when it is first needed, and again when the store has moved.

    Invariant: a worker that is closed has no task, and gets none. So one caller at a time asks for the
    address of a store; the others wait for its answer.
    """

    def __init__(self, pd: PdClient, new_worker: Callable[[int, str], RegionRequestWorker]) -> None:
        self._pd = pd
        self._new_worker = new_worker
        self._workers: dict[int, RegionRequestWorker] = {}
        self._addrs: dict[int, str] = {}
        self._asking: dict[int, asyncio.Lock] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def __iter__(self) -> Iterator[RegionRequestWorker]:
        return iter(list(self._workers.values()))

    async def get(self, store_id: int) -> RegionRequestWorker | None:
        """Return the worker of a store; None when it is gone for good, or `close` was called.

        Give it the task before anything else is awaited. Raises Unavailable when the placement driver does
        not answer.
        """
        async with self._asking.setdefault(store_id, asyncio.Lock()):
            if store_id not in self._addrs:
                store = await self._pd.get_store(store_id)
                if store is None:
                    return None
                self._addrs[store_id] = store.address
        if self._closed:
            return None
        addr = self._addrs[store_id]
        worker = self._workers.get(store_id)
        if worker is None or worker.addr != addr:
            if worker is not None:
                worker.give_back(FeedEnd(FeedEndReason.STREAM_LOST, f"the store has moved to {addr}"))
                closing = asyncio.create_task(worker.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            worker = self._workers[store_id] = self._new_worker(store_id, addr)
        return worker

    def forget_addr(self, store_id: int) -> None:
        """Forget the address of a store that does not answer: it may have moved."""
        self._addrs.pop(store_id, None)

    async def close(self) -> None:
        """End every stream; no other is opened."""
        self._closed = True
        await asyncio.gather(*(worker.close() for worker in self._workers.values()), *self._closing)
        self._workers.clear()
