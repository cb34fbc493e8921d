"""A placement driver and stores that do what a test tells them, over real gRPC on loopback."""

import asyncio
import contextlib
import itertools
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.clock import SYSTEM
from penstock.kv.backoff import Backoffer
from penstock.kv.pd import PdClient
from penstock.kv.regions import RegionCache
from penstock.kv.rpc.client import RpcClient
from penstock.kv.rpc.connections import BATCH_FIELDS
from penstock.kv.sender import RegionSender
from penstock.proto import errorpb_pb2 as errorpb
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto import metapb_pb2 as metapb
from penstock.proto import pdpb_pb2 as pdpb
from penstock.proto import tikvpb_pb2 as tikvpb
from penstock.proto.codec import encode_bytes
from penstock.proto.services import handler, methods
from penstock.settings import KvSettings

CLUSTER_ID = 7001
DROP = object()  # never answer
RESET = object()  # end the stream that carries the request
NO_COMMAND = object()  # what stores answer to a command of a batch that they do not know
_METHOD_OF = {field: method for method, field in BATCH_FIELDS.items()}


class Health(health_pb2_grpc.HealthServicer):
    def __init__(self) -> None:
        self.status = health_pb2.HealthCheckResponse.SERVING

    async def Check(self, request: Any, context: Any) -> Any:
        return health_pb2.HealthCheckResponse(status=self.status)


class FakeStore:
    """A store whose answers are scripted: `script[method]` holds what the next calls meet."""

    def __init__(self, store_id: int) -> None:
        self.id = store_id
        self.health = Health()
        self.script: dict[str, deque[Any]] = defaultdict(deque)
        self.seen: list[tuple[str, Any, str]] = []  # method, request, "batch" or "unary"
        self.batches: list[int] = []  # sizes
        self.batch_ids: list[int] = []
        self.peers: set[str] = set()
        self.streams = 0
        self.load = 0
        self.stray_ids: list[int] = []  # answered beside the real ones
        self.with_batch = True
        self.reorder = False
        self.hold: asyncio.Event | None = None  # until it is set, no stream reads its next batch
        self.value: Callable[[bytes], bytes] = lambda key: b"value of " + key
        self.port = 0
        self._server: Any = None

    @property
    def addr(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self, credentials: grpc.ServerCredentials | None = None) -> None:
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
        unary = {
            name: self._unary(name)
            for name, method in methods("tikvpb.Tikv").items()
            if method.arity == "unary_unary"
        }
        behaviours = {**unary, "BatchCommands": self._batch} if self.with_batch else unary
        server.add_generic_rpc_handlers((handler("tikvpb.Tikv", behaviours),))
        health_pb2_grpc.add_HealthServicer_to_server(self.health, server)
        where = f"127.0.0.1:{self.port}"
        self.port = (
            server.add_secure_port(where, credentials) if credentials else server.add_insecure_port(where)
        )
        await server.start()
        self._server = server

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    def next_answer(self, method: str, request: Any, how: str) -> Any:
        self.seen.append((method, request, how))
        step = self.script[method].popleft() if self.script[method] else None
        if step in (DROP, RESET, NO_COMMAND) or isinstance(step, grpc.StatusCode):
            return step
        response_class = methods("tikvpb.Tikv")[method].response
        if isinstance(step, errorpb.Error):
            return response_class(region_error=step)
        if step is not None:
            return step
        return kvrpcpb.GetResponse(value=self.value(request.key)) if method == "KvGet" else response_class()

    def _unary(self, method: str) -> Callable[[Any, Any], Any]:
        async def behaviour(request: Any, context: grpc.aio.ServicerContext) -> Any:
            self.peers.add(context.peer())
            answer = self.next_answer(method, request, "unary")
            if answer is DROP:
                await asyncio.Event().wait()
            if isinstance(answer, grpc.StatusCode):
                await context.abort(answer, "scripted")
            return answer

        return behaviour

    async def _batch(self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> Any:
        self.streams += 1
        self.peers.add(context.peer())
        while True:
            if self.hold is not None:
                await self.hold.wait()
            message = await anext(requests, None)
            if message is None:
                return
            self.batches.append(len(message.requests))
            self.batch_ids += message.request_ids
            reply = tikvpb.BatchCommandsResponse(transport_layer_load=self.load)
            pairs = list(zip(message.request_ids, message.requests, strict=True))
            for request_id, command in reversed(pairs) if self.reorder else pairs:
                field = command.WhichOneof("cmd")
                answer = self.next_answer(_METHOD_OF[field], getattr(command, field), "batch")
                if answer is DROP:
                    continue
                if answer is RESET or isinstance(answer, grpc.StatusCode):
                    code = answer if isinstance(answer, grpc.StatusCode) else grpc.StatusCode.UNAVAILABLE
                    await context.abort(code, "scripted reset")
                reply.request_ids.append(request_id)
                response = reply.responses.add()
                if answer is not NO_COMMAND:
                    getattr(response, field).CopyFrom(answer)
            for stray in self.stray_ids:
                reply.request_ids.append(stray)
                reply.responses.add().Get.value = b"stray"
            await context.write(reply)


class FakePd:
    """A placement driver over tables that the test writes."""

    def __init__(self) -> None:
        self.regions: list[metapb.Region] = []  # with encoded keys, in order
        self.leaders: dict[int, int] = {}  # region id -> store id
        self.stores: dict[int, metapb.Store] = {}
        self.script: dict[str, deque[Any]] = defaultdict(deque)  # gRPC codes or pdpb.Error
        self.calls: list[str] = []
        self.requests: list[Any] = []
        self.tso_counts: list[int] = []
        self.tso_script: deque[Any] = deque()  # mangles responses: callables, gRPC codes, DROP
        self.tso_gate: asyncio.Event | None = None
        self.physical = SYSTEM.wall_ms()
        self.logical = 0
        self.leader_addr = ""  # of another member; empty when this one leads
        self.no_leader = False
        self.cluster_id = CLUSTER_ID
        self.safe_point = 0
        self.port = 0
        self._server: Any = None

    @property
    def addr(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self, credentials: grpc.ServerCredentials | None = None) -> None:
        server = grpc.aio.server()
        served = {
            name: self._wrap(name, getattr(self, f"_{name}"))
            for name in methods("pdpb.PD")
            if hasattr(self, f"_{name}")
        }
        server.add_generic_rpc_handlers((handler("pdpb.PD", {**served, "Tso": self._tso}),))
        where = f"127.0.0.1:{self.port}"
        self.port = (
            server.add_secure_port(where, credentials) if credentials else server.add_insecure_port(where)
        )
        await server.start()
        self._server = server

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    def _wrap(self, name: str, behaviour: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        async def serve(request: Any, context: grpc.aio.ServicerContext) -> Any:
            self.calls.append(name)
            self.requests.append(request)
            step = self.script[name].popleft() if self.script[name] else None
            if isinstance(step, grpc.StatusCode):
                await context.abort(step, "scripted")
            if isinstance(step, tuple):
                await context.abort(*step)
            answer = behaviour(request)
            answer.header.cluster_id = self.cluster_id
            if isinstance(step, pdpb.Error):
                answer.header.error.CopyFrom(step)
            return answer

        return serve

    async def _tso(self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> Any:
        async for request in requests:
            self.tso_counts.append(request.count)
            if self.tso_gate is not None:
                await self.tso_gate.wait()
            self.logical += request.count
            response = pdpb.TsoResponse(count=request.count)
            response.timestamp.physical, response.timestamp.logical = self.physical, self.logical
            step = self.tso_script.popleft() if self.tso_script else None
            if step is DROP:
                continue
            if isinstance(step, grpc.StatusCode):
                await context.abort(step, "scripted")
            if step is not None:
                step(response)
            await context.write(response)

    def _GetMembers(self, request: Any) -> Any:
        answer = pdpb.GetMembersResponse()
        if self.no_leader:
            return answer
        answer.leader.client_urls.append(f"http://{self.leader_addr or self.addr}")
        answer.members.add().client_urls.append(f"http://{self.addr}")
        return answer

    def _holding(self, encoded: bytes) -> int | None:
        for i, region in enumerate(self.regions):
            if region.start_key <= encoded and (not region.end_key or encoded < region.end_key):
                return i
        return None

    def _answer(self, index: int | None) -> Any:
        answer = pdpb.GetRegionResponse()
        if index is not None and index >= 0:
            region = self.regions[index]
            answer.region.CopyFrom(region)
            answer.leader.CopyFrom(self.leader_of(region))
        return answer

    def leader_of(self, region: metapb.Region) -> metapb.Peer:
        return next(peer for peer in region.peers if peer.store_id == self.leaders[region.id])

    def _GetRegion(self, request: Any) -> Any:
        return self._answer(self._holding(request.region_key))

    def _GetPrevRegion(self, request: Any) -> Any:
        at = self._holding(request.region_key)
        return self._answer(None if at is None else at - 1)

    def _GetRegionByID(self, request: Any) -> Any:
        return self._answer(next((i for i, r in enumerate(self.regions) if r.id == request.region_id), None))

    def _ScanRegions(self, request: Any) -> Any:
        answer = pdpb.ScanRegionsResponse()
        for region in self.regions:
            if (not region.end_key or region.end_key > request.start_key) and (
                not request.end_key or region.start_key < request.end_key
            ):
                item = answer.regions.add()
                item.region.CopyFrom(region)
                item.leader.CopyFrom(self.leader_of(region))
                if len(answer.regions) == request.limit:
                    break
        return answer

    def _GetStore(self, request: Any) -> Any:
        answer = pdpb.GetStoreResponse()
        store = self.stores.get(request.store_id)
        if store is None:
            answer.header.error.type = pdpb.UNKNOWN
            answer.header.error.message = f"invalid store ID {request.store_id}, not found"
        else:
            answer.store.CopyFrom(store)
        return answer

    def _GetAllStores(self, request: Any) -> Any:
        return pdpb.GetAllStoresResponse(stores=self.stores.values())

    def _GetGCSafePoint(self, request: Any) -> Any:
        return pdpb.GetGCSafePointResponse(safe_point=self.safe_point)

    def _UpdateGCSafePoint(self, request: Any) -> Any:
        self.safe_point = max(self.safe_point, request.safe_point)
        return pdpb.UpdateGCSafePointResponse(new_safe_point=self.safe_point)

    def _UpdateServiceGCSafePoint(self, request: Any) -> Any:
        return pdpb.UpdateServiceGCSafePointResponse(
            service_id=request.service_id, TTL=request.TTL, min_safe_point=max(request.safe_point, 100)
        )

    def _ScatterRegion(self, request: Any) -> Any:
        return pdpb.ScatterRegionResponse(finished_percentage=100)

    def _GetOperator(self, request: Any) -> Any:
        return pdpb.GetOperatorResponse(
            region_id=request.region_id, desc=b"scatter-region", status=pdpb.SUCCESS
        )


class FakeCluster:
    """One placement driver, three stores, regions split at the given keys, led by store 1."""

    def __init__(self, splits: tuple[bytes, ...] = (b"m",)) -> None:
        self.pd = FakePd()
        self.stores = {i: FakeStore(i) for i in (1, 2, 3)}
        self.splits = splits
        self._closers: list[Callable[[], Any]] = []

    async def start(self) -> None:
        await self.pd.start()
        for store in self.stores.values():
            await store.start()
            self.pd.stores[store.id] = metapb.Store(id=store.id, address=store.addr)
        self.cut(*self.splits)

    async def stop(self) -> None:
        for close in reversed(self._closers):
            await close()
        await self.pd.stop()
        for store in self.stores.values():
            await store.stop()

    def cut(self, *keys: bytes, version: int = 1, first_id: int = 1) -> None:
        """Lay the regions out anew, with these raw split keys."""
        bounds = [b"", *(encode_bytes(key) for key in keys), b""]
        self.pd.regions = []
        for i, (start, end) in enumerate(itertools.pairwise(bounds), first_id):
            region = metapb.Region(id=i, start_key=start, end_key=end)
            region.region_epoch.conf_ver, region.region_epoch.version = 1, version
            for store_id in self.stores:
                region.peers.add(id=i * 10 + store_id, store_id=store_id)
            self.pd.regions.append(region)
            self.pd.leaders.setdefault(i, 1)

    async def connect(self, **settings: Any) -> "Clients":
        """Return the client's parts, connected to this cluster and closed with it."""
        chosen = KvSettings(**settings)
        pd = await PdClient.connect([self.pd.addr], settings=chosen)
        self._closers.append(pd.close)
        rpc = RpcClient(None, chosen)
        self._closers.append(rpc.close)
        cache = RegionCache(pd, chosen)
        sender = RegionSender(cache, rpc, SYSTEM, chosen)
        self._closers.append(sender.close)
        return Clients(pd, rpc, cache, sender)


class Clients:
    def __init__(self, pd: PdClient, rpc: RpcClient, cache: RegionCache, sender: RegionSender) -> None:
        self.pd = pd
        self.rpc = rpc
        self.cache = cache
        self.sender = sender

    async def get(self, key: bytes, *, budget_ms: int = 20_000, **options: Any) -> Any:
        """Read a key the way a caller does: locate, send, locate again when the region changed."""
        from penstock.kv.sender import RegionStale

        bo = Backoffer(budget_ms, name="get")
        while True:
            location = await self.cache.locate(bo, key)
            request = kvrpcpb.GetRequest(key=key, version=1)
            with contextlib.suppress(RegionStale):
                return await self.sender.send(bo, "KvGet", request, location.region, **options)


class Fakes:
    """What tests need of this module: classes and sentinels."""

    DROP = DROP
    RESET = RESET
    NO_COMMAND = NO_COMMAND
    CLUSTER_ID = CLUSTER_ID
    Cluster = FakeCluster
    Pd = FakePd
    Store = FakeStore

    @staticmethod
    async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
        """Wait for a condition, with a deadline."""
        deadline = SYSTEM.monotonic() + timeout_s
        while not condition():
            assert SYSTEM.monotonic() < deadline, "the condition did not come true in time"
            await SYSTEM.sleep(0.005)


@pytest.fixture
def fakes() -> type[Fakes]:
    return Fakes


@pytest.fixture
def cluster() -> Any:
    from penstock import eventloop

    made = FakeCluster()
    eventloop.run(made.start())
    yield made
    eventloop.run(made.stop())
