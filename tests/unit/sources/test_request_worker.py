"""The worker of one store against a store that says what a test wants."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from penstock.clock import SYSTEM
from penstock.kv.rpc.connections import Dialer
from penstock.proto import cdcpb_pb2 as cdcpb
from penstock.proto import errorpb_pb2 as errorpb
from penstock.proto import services
from penstock.proto.codec import encode_bytes
from penstock.settings import KvSettings
from penstock.sources.tikv.request_cache import RequestCache
from penstock.sources.tikv.request_worker import RegionRequestWorker
from penstock.sources.tikv.routing import FeedEnd, FeedEndReason
from penstock.sources.tikv.subscription import FeedPhase, RegionFeedState, RegionTask, SubscribedSpan
from support.feeds import a_matcher, a_span, a_task


class ScriptedStore:
    """Remembers requests and sends what it is given, on one stream at a time."""

    def __init__(self) -> None:
        self.requests: list[cdcpb.ChangeDataRequest] = []
        self.streams = 0
        self.features: list[tuple[str, str]] = []
        self._outgoing: asyncio.Queue[cdcpb.ChangeDataEvent | None] = asyncio.Queue()

    async def feed(self, requests: Any, context: Any) -> AsyncIterator[cdcpb.ChangeDataEvent]:
        self.streams += 1
        self.features = [(k, v) for k, v in context.invocation_metadata() if k == "features"]
        receiving = asyncio.create_task(self._receive(requests))
        try:
            while (message := await self._outgoing.get()) is not None:
                yield message
        finally:
            receiving.cancel()

    async def _receive(self, requests: Any) -> None:
        async for request in requests:
            self.requests.append(request)

    def send(self, **message: Any) -> None:
        self._outgoing.put_nowait(cdcpb.ChangeDataEvent(**message))

    def hang_up(self) -> None:
        self._outgoing.put_nowait(None)


class Processor:
    """Remembers what it is given."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []
        self.resolved: list[tuple[int, list[int], int]] = []
        self.ended: list[RegionFeedState] = []

    async def dispatch_entries(self, state: RegionFeedState, entries: cdcpb.Event.Entries, size: int) -> None:
        self.entries.append((state.region_id, len(entries.entries)))

    async def dispatch_resolved(self, span: SubscribedSpan, states: list[RegionFeedState], ts: int) -> None:
        self.resolved.append((span.sub_id, [state.region_id for state in states], ts))

    def dispatch_end(self, state: RegionFeedState) -> None:
        self.ended.append(state)


class Listener:
    def __init__(self) -> None:
        self.failed: list[tuple[RegionTask, FeedEnd]] = []
        self.stores: list[int] = []

    def take_back(self, task: RegionTask, end: FeedEnd) -> None:
        self.failed.append((task, end))

    def lose_store(self, store_id: int) -> None:
        self.stores.append(store_id)


class Rig:
    def __init__(self, addr: str, store: ScriptedStore) -> None:
        self.store = store
        self.processor = Processor()
        self.listener = Listener()
        self.cache = RequestCache(8, clock=SYSTEM, now_ms=lambda: 0)
        self.worker = RegionRequestWorker(
            4,
            addr,
            dialer=Dialer(None, KvSettings()),
            cluster_id=77,
            cache=self.cache,
            processor=self.processor,
            on_given_back=self.listener.take_back,
            on_lost=self.listener.lose_store,
            new_matcher=a_matcher,
            clock=SYSTEM,
        )

    async def follow(self, *tasks: RegionTask) -> None:
        wanted = len(self.store.requests) + len(tasks)
        for task in tasks:
            self.cache.add(task)
        await until(lambda: len(self.store.requests) == wanted)


async def until(condition: Callable[[], bool]) -> None:
    deadline = SYSTEM.monotonic() + 5
    while not condition():
        assert SYSTEM.monotonic() < deadline, "it never came true"
        await SYSTEM.sleep(0.002)


@contextlib.asynccontextmanager
async def rig(method: str = "EventFeedV2") -> AsyncIterator[Rig]:
    store = ScriptedStore()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((services.handler("cdcpb.ChangeData", {method: store.feed}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    made = Rig(f"127.0.0.1:{port}", store)
    try:
        yield made
    finally:
        await made.worker.close()
        await server.stop(None)


def event(region_id: int, sub_id: int = 1, **what: Any) -> cdcpb.Event:
    return cdcpb.Event(region_id=region_id, request_id=sub_id, **what)


async def test_a_region_is_asked_for_with_its_range_epoch_and_checkpoint() -> None:
    async with rig() as made:
        task = a_task(a_span(start_ts=33), 9, b"b", b"d")
        await made.follow(task)
        assert made.store.features == [("features", "stream-multiplexing")]
    request = made.store.requests[0]
    assert (request.region_id, request.request_id, request.checkpoint_ts) == (9, 1, 33)
    assert (request.start_key, request.end_key) == (encode_bytes(b"b"), encode_bytes(b"d"))
    assert request.region_epoch.version == 1
    assert (request.header.cluster_id, request.extra_op, request.WhichOneof("request")) == (77, 1, "register")


async def test_a_stream_is_not_opened_before_there_is_a_region_to_ask_for() -> None:
    async with rig() as made:
        await SYSTEM.sleep(0.05)
        assert made.store.streams == 0
        await made.follow(a_task(a_span()))
        assert made.store.streams == 1


async def test_events_go_to_their_regions_and_those_of_others_are_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with rig() as made:
        span = a_span()
        await made.follow(a_task(span, 1, b"a", b"m"), a_task(span, 2, b"m", b"z"))
        rows = cdcpb.Event.Entries(entries=[cdcpb.Event.Row(), cdcpb.Event.Row()])
        made.store.send(
            events=[
                event(1, entries=rows),
                event(3, entries=rows),
                event(1, sub_id=8, entries=rows),
                event(2, resolved_ts=40),
                event(2, long_txn=cdcpb.Event.LongTxn()),
            ]
        )
        made.store.send(resolved_ts=cdcpb.ResolvedTs(regions=[1, 2, 5], ts=50, request_id=1))
        made.store.send(resolved_ts=cdcpb.ResolvedTs(regions=[1], ts=0, request_id=1))
        made.store.send(resolved_ts=cdcpb.ResolvedTs(regions=[5], ts=60, request_id=1))
        made.store.send(resolved_ts=cdcpb.ResolvedTs(regions=[2], ts=70, request_id=1))
        await until(lambda: len(made.processor.resolved) == 3)
    assert made.processor.entries == [(1, 2)]
    assert made.processor.resolved == [(1, [2], 40), (1, [1, 2], 50), (1, [2], 70)]
    unknown = [record for record in caplog.records if "regions that are not followed" in record.getMessage()]
    assert [(record.sub_id, record.regions, record.first_regions) for record in unknown] == [
        (1, 1, [5]),
        (1, 1, [5]),
    ]


async def test_a_region_with_an_error_is_stopped_forgotten_and_passed_on() -> None:
    async with rig() as made:
        await made.follow(a_task(a_span()))
        state = made.worker.feed(1, 1)
        assert state is not None
        error = cdcpb.Error(region_not_found=errorpb.RegionNotFound(region_id=1))
        made.store.send(events=[event(1, error=error), event(1, error=error)])
        await until(lambda: made.processor.ended == [state])
        assert state.phase is FeedPhase.STOPPED
        assert state.end == FeedEnd(FeedEndReason.REGION_NOT_FOUND)
        assert made.worker.feed(1, 1) is None
        assert made.worker._feeds == {}
        assert made.cache.pending == 0


async def test_when_the_stream_ends_every_region_is_given_back_and_a_new_one_is_opened() -> None:
    async with rig() as made:
        span = a_span()
        await made.follow(a_task(span, 1, b"a", b"c"), a_task(span, 2, b"c", b"e"))
        made.store.hang_up()
        await until(lambda: len(made.processor.ended) == 2)
        assert {state.end.reason for state in made.processor.ended if state.end} == {
            FeedEndReason.STREAM_LOST
        }
        await until(lambda: made.listener.stores == [4])
        await made.follow(a_task(span, 3, b"e", b"g"))
        assert made.store.streams == 2


async def test_regions_that_wait_on_a_store_that_is_gone_are_given_back() -> None:
    async with rig() as made:
        made.worker.addr = "127.0.0.1:1"
        task = a_task(a_span())
        made.cache.add(task)
        await until(lambda: bool(made.processor.ended or made.listener.failed))
        await until(lambda: made.listener.stores == [4])


async def test_a_subscription_that_ends_is_deregistered_and_its_regions_stop() -> None:
    async with rig() as made:
        leaving, staying = a_span(1), a_span(2)
        await made.follow(a_task(leaving), a_task(staying))
        state = made.worker.feed(1, 1)
        leaving.stopped = True
        made.worker.deregister(1)
        await until(lambda: len(made.store.requests) == 3)
        request = made.store.requests[-1]
        assert (request.request_id, request.region_id, request.WhichOneof("request")) == (1, 0, "deregister")
        assert made.processor.ended == [state]
        assert made.worker.feed(1, 1) is None
        assert made.worker.feed(2, 1) is not None


async def test_a_region_of_a_stopped_span_is_not_asked_for() -> None:
    async with rig() as made:
        stopped, other = a_span(1), a_span(2)
        stopped.stopped = True
        task = a_task(stopped)
        made.cache.add(task)
        await until(lambda: made.listener.failed == [(task, FeedEnd(FeedEndReason.CANCELLED))])
        await made.follow(a_task(other))
        assert [request.request_id for request in made.store.requests] == [2]


async def test_a_store_without_multiplexed_streams_is_reported() -> None:
    async with rig("EventFeed") as made:
        made.cache.add(a_task(a_span()))
        await until(lambda: bool(made.processor.ended or made.listener.failed))
        ends = [state.end for state in made.processor.ended] + [end for _, end in made.listener.failed]
        assert ends[0] is not None
        assert ends[0].reason is FeedEndReason.UNSUPPORTED
        assert "serves no multiplexed change streams" in ends[0].detail
