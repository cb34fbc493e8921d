"""Stores: their addresses, and whether they can be reached."""

import asyncio
import logging
from enum import IntEnum

import grpc
from grpc_health.v1 import health_pb2

from penstock import metrics
from penstock.clock import Clock
from penstock.errors import PenstockError, Unavailable
from penstock.kv.backoff import Backoffer, BackoffKind
from penstock.kv.pd import PdClient
from penstock.kv.rpc.client import RpcClient
from penstock.kv.rpc.connections import RpcFailed

_LOG = logging.getLogger(__name__)
_PROBE_S = 1.0
_RESOLVE_AGAIN_S = 30.0
_RESOLVED = metrics.KV_REGION_CACHE_OPERATIONS_TOTAL.labels("get_store", "ok")
_NOT_RESOLVED = metrics.KV_REGION_CACHE_OPERATIONS_TOTAL.labels("get_store", "err")
_STORE_REGIONS_DROPPED = metrics.KV_REGION_CACHE_OPERATIONS_TOTAL.labels("invalidate_store_regions", "ok")


class Liveness(IntEnum):
    """Whether a store answered the last probe; the numbers are those of the metric."""

    REACHABLE = 0
    UNREACHABLE = 1
    UNKNOWN = 2


class Store:
    """What is known of a store. `epoch` rises when what is cached about its regions is in doubt."""

    __slots__ = ("addr", "epoch", "gone", "id", "liveness", "stale")

    def __init__(self, store_id: int) -> None:
        self.id = store_id
        self.addr = ""
        self.stale = True  # the address must be asked for (again)
        self.gone = False
        self.epoch = 0
        self.liveness = Liveness.REACHABLE


class StoreDirectory:
    """Addresses of stores, asked from the placement driver once, and again when one proves wrong."""

    def __init__(self, pd: PdClient) -> None:
        self._pd = pd
        self._stores: dict[int, Store] = {}
        self._resolving: dict[int, asyncio.Task[None]] = {}

    def get(self, store_id: int) -> Store:
        """Return a store; its address may not be known yet."""
        store = self._stores.get(store_id)
        if store is None:
            store = self._stores[store_id] = Store(store_id)
        return store

    async def resolve(self, bo: Backoffer, store: Store) -> str | None:
        """Return the store's address, or None when it is gone for good."""
        while store.stale:
            task = self._resolving.get(store.id)
            if task is None:
                task = self._resolving[store.id] = asyncio.create_task(self._resolve(store))
                task.add_done_callback(lambda done: self._end_resolve(store.id, done))
            try:
                await asyncio.shield(task)
            except Unavailable as error:
                await bo.backoff(BackoffKind.PD_RPC, error)
        return None if store.gone else store.addr

    async def _resolve(self, store: Store) -> None:
        found = await self._pd.get_store(store.id, bo=Backoffer(0))
        store.gone = found is None
        if found is not None and found.address != store.addr:
            if store.addr:
                store.epoch += 1
            store.addr = found.address
        store.stale = False

    def _end_resolve(self, store_id: int, task: "asyncio.Task[None]") -> None:
        del self._resolving[store_id]
        failed = task.cancelled() or task.exception() is not None
        (_NOT_RESOLVED if failed else _RESOLVED).inc()


class Prober:
    """Finds out whether stores answer, and keeps asking those that do not until they do."""

    def __init__(self, directory: StoreDirectory, rpc: RpcClient, *, timeout_s: float, clock: Clock) -> None:
        self._directory = directory
        self._rpc = rpc
        self._timeout_s = timeout_s
        self._clock = clock
        self._checks: dict[int, asyncio.Task[Liveness]] = {}
        self._loops: dict[int, asyncio.Task[None]] = {}

    async def check(self, store: Store) -> Liveness:
        """Return whether a store answers now; concurrent callers share one probe.

        While a store is known to be unreachable the answer comes at once, from the loop.
        """
        if store.id in self._loops:
            return store.liveness
        task = self._checks.get(store.id)
        if task is None:
            task = self._checks[store.id] = asyncio.create_task(self._probe(store.addr))
            task.add_done_callback(lambda _: self._checks.pop(store.id))
        self._note(store, await asyncio.shield(task))
        if store.liveness is not Liveness.REACHABLE and store.id not in self._loops:
            self._loops[store.id] = asyncio.create_task(self._watch(store))
        return store.liveness

    async def _probe(self, addr: str) -> Liveness:
        try:
            status = await self._rpc.health(addr, self._timeout_s)
        except RpcFailed as error:
            # A store without the health service answers all the same.
            answered = error.code is grpc.StatusCode.UNIMPLEMENTED
            return Liveness.REACHABLE if answered else Liveness.UNREACHABLE
        except Unavailable:
            return Liveness.UNREACHABLE  # the client is closing
        if status == health_pb2.HealthCheckResponse.SERVING:
            return Liveness.REACHABLE
        unknown = (health_pb2.HealthCheckResponse.UNKNOWN, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
        return Liveness.UNKNOWN if status in unknown else Liveness.UNREACHABLE

    def _note(self, store: Store, liveness: Liveness) -> None:
        metrics.KV_STORE_LIVENESS_STATE.labels(store.id).set(liveness)
        if liveness is not store.liveness:
            _LOG.info("a store's liveness changed", extra={"store": store.id, "liveness": liveness.name})
            if liveness is Liveness.UNREACHABLE:
                store.epoch += 1
                _STORE_REGIONS_DROPPED.inc()
        store.liveness = liveness

    async def _watch(self, store: Store) -> None:
        resolved_at = self._clock.monotonic()
        try:
            while store.liveness is not Liveness.REACHABLE and not store.gone:
                await self._clock.sleep(_PROBE_S)
                if self._clock.monotonic() - resolved_at >= _RESOLVE_AGAIN_S:
                    resolved_at = self._clock.monotonic()
                    await self._resolve_again(store)
                self._note(store, await self._probe(store.addr))
        finally:
            del self._loops[store.id]

    async def _resolve_again(self, store: Store) -> None:
        before = store.addr
        store.stale = True
        try:
            await self._directory.resolve(Backoffer(0), store)
        except PenstockError as error:
            _LOG.warning("a store cannot be resolved", extra={"store": store.id, "error": str(error)})
            return
        if store.addr != before:
            await self._rpc.close_addr(before)

    async def close(self) -> None:
        """Stop asking."""
        tasks = [*self._checks.values(), *self._loops.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
