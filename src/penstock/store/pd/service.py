"""The gRPC service of the placement driver."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from penstock.clock import SYSTEM, Clock, logical, physical_ms
from penstock.errors import Invalid
from penstock.proto import metapb_pb2 as metapb
from penstock.proto import pdpb_pb2 as pdpb
from penstock.proto.services import handler
from penstock.store import meta
from penstock.store.engine import Cf, Engine
from penstock.store.faults import Faults
from penstock.store.pd.answers import SERVICE, Answers, Behaviour, Context, PdRefused
from penstock.store.pd.etcd import EtcdKeys, GlobalConfig
from penstock.store.pd.routing import Routing
from penstock.store.pd.safe_points import GarbageCollection
from penstock.store.pd.stores import VERSION, LeaderScheduler, Stores
from penstock.store.regions import REPLICAS, Regions
from penstock.store.server import end_call
from penstock.store.tso import Ids, Tso

__all__ = ["MEMBER", "PlacementDriver"]

MEMBER = "penstock"


class PlacementDriver:
    """One member, always the leader: members, timestamps, stores, and the calls of its parts."""

    def __init__(
        self,
        engine: Engine,
        *,
        cluster_id: int,
        url: str,
        ids: Ids,
        tso: Tso,
        stores: Stores,
        regions: Regions,
        scheduler: LeaderScheduler,
        keys: EtcdKeys,
        faults: Faults,
        clock: Clock = SYSTEM,
    ) -> None:
        self._engine = engine
        self._url = url
        self._ids = ids
        self._tso = tso
        self._stores = stores
        self._answers = Answers(cluster_id, faults)
        self._routing = Routing(regions, scheduler, ids)
        self._gc = GarbageCollection(engine, clock=clock)
        self._config = GlobalConfig(keys, cluster_id=cluster_id)

    def handler(self) -> "grpc.GenericRpcHandler[Any, Any]":
        unary: dict[str, Behaviour] = {
            **self._routing.behaviours(),
            **self._gc.behaviours(),
            "Bootstrap": self.bootstrap,
            "IsBootstrapped": self.is_bootstrapped,
            "AllocID": self.alloc_id,
            "GetStore": self.get_store,
            "PutStore": self.put_store,
            "GetAllStores": self.get_all_stores,
            "StoreHeartbeat": self.store_heartbeat,
            "GetClusterConfig": self.get_cluster_config,
            "SetExternalTimestamp": self.set_external_timestamp,
            "GetExternalTimestamp": self.get_external_timestamp,
            "GetMinTS": self.get_min_ts,
        }
        calls: dict[str, Callable[..., Any]] = {
            name: self._answers.unary(name, behaviour) for name, behaviour in unary.items()
        }
        unchecked: dict[str, Behaviour] = {  # callers learn the cluster's id from some, others carry none
            "GetMembers": self.get_members,
            "GetClusterInfo": self.get_cluster_info,
            "StoreGlobalConfig": self._config.store,
            "LoadGlobalConfig": self._config.load,
        }
        calls.update((name, self._answers.plain(name, behaviour)) for name, behaviour in unchecked.items())
        calls["WatchGlobalConfig"] = self._config.watch
        calls["Tso"] = self.timestamps
        calls["QueryRegion"] = self.query_region
        return handler(SERVICE, calls)

    async def get_members(self, _: pdpb.GetMembersRequest) -> pdpb.GetMembersResponse:
        member = pdpb.Member(
            name=MEMBER,
            member_id=self._answers.cluster_id,
            peer_urls=[self._url],
            client_urls=[self._url],
            binary_version=f"v{VERSION}",
        )
        return pdpb.GetMembersResponse(
            header=self._answers.header(), members=[member], leader=member, etcd_leader=member
        )

    async def get_cluster_info(self, _: pdpb.GetClusterInfoRequest) -> pdpb.GetClusterInfoResponse:
        return pdpb.GetClusterInfoResponse(header=self._answers.header(), serviceModes=[pdpb.PD_SVC_MODE])

    async def timestamps(
        self, requests: AsyncIterator[pdpb.TsoRequest], context: Context
    ) -> AsyncIterator[pdpb.TsoResponse]:
        """Answer each request with one allocation of as many timestamps as it asks for."""
        header = self._answers.header()
        async for request in requests:
            await self._answers.check(request.header, context)
            try:
                ts = await self._answers.faulty("Tso", self._tso.allocate, request.count)
            except Invalid as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            except Exception as error:  # noqa: BLE001 - every error becomes a status of the call
                await end_call(context, error, "Tso")
            yield pdpb.TsoResponse(
                header=header,
                count=request.count,
                timestamp=pdpb.Timestamp(physical=physical_ms(ts), logical=logical(ts)),
            )

    async def query_region(
        self, requests: AsyncIterator[pdpb.QueryRegionRequest], context: Context
    ) -> AsyncIterator[pdpb.QueryRegionResponse]:
        async for request in requests:
            await self._answers.check(request.header, context)
            response = self._routing.query(request)
            response.header.CopyFrom(self._answers.header())
            yield response

    async def bootstrap(self, _: pdpb.BootstrapRequest) -> pdpb.BootstrapResponse:
        raise PdRefused(pdpb.ALREADY_BOOTSTRAPPED, "cluster is already bootstrapped")

    async def is_bootstrapped(self, _: pdpb.IsBootstrappedRequest) -> pdpb.IsBootstrappedResponse:
        return pdpb.IsBootstrappedResponse(bootstrapped=True)

    async def alloc_id(self, request: pdpb.AllocIDRequest) -> pdpb.AllocIDResponse:
        count = request.count or 1
        first = await self._ids.allocate(count)
        return pdpb.AllocIDResponse(id=first + count - 1, count=count)

    async def get_store(self, request: pdpb.GetStoreRequest) -> pdpb.GetStoreResponse:
        store = self._store(request.store_id)
        return pdpb.GetStoreResponse(store=store, stats=pdpb.StoreStats(store_id=store.id))

    def _store(self, store_id: int) -> metapb.Store:
        store = self._stores.get(store_id)
        if store is None:
            raise PdRefused(pdpb.UNKNOWN, f"invalid store ID {store_id}, not found")
        return store

    async def put_store(self, request: pdpb.PutStoreRequest) -> pdpb.PutStoreResponse:
        """Set the labels of a store. Stores live in this process, so clients cannot add or move one."""
        store = metapb.Store()
        store.CopyFrom(self._store(request.store.id))
        if request.store.address not in {"", store.address}:
            raise Invalid(f"store {store.id} lives at {store.address}; it cannot be moved")
        del store.labels[:]
        store.labels.extend(request.store.labels)
        await self._stores.put(store)
        return pdpb.PutStoreResponse()

    async def get_all_stores(self, _: pdpb.GetAllStoresRequest) -> pdpb.GetAllStoresResponse:
        return pdpb.GetAllStoresResponse(stores=self._stores.all())

    async def store_heartbeat(self, request: pdpb.StoreHeartbeatRequest) -> pdpb.StoreHeartbeatResponse:
        self._store(request.stats.store_id)
        return pdpb.StoreHeartbeatResponse(cluster_version=VERSION, state=metapb.Serving)

    async def get_cluster_config(self, _: pdpb.GetClusterConfigRequest) -> pdpb.GetClusterConfigResponse:
        return pdpb.GetClusterConfigResponse(
            cluster=metapb.Cluster(id=self._answers.cluster_id, max_peer_count=REPLICAS)
        )

    async def set_external_timestamp(
        self, request: pdpb.SetExternalTimestampRequest
    ) -> pdpb.SetExternalTimestampResponse:
        now_ts = await self._tso.current()
        if request.timestamp > now_ts:
            raise PdRefused(
                pdpb.INVALID_VALUE, "the external timestamp should not be larger than the present"
            )
        if request.timestamp <= self._external_ts():
            raise PdRefused(pdpb.INVALID_VALUE, "the external timestamp should be larger than now")
        await self._engine.write([(Cf.META, meta.EXTERNAL_TS, meta.pack(request.timestamp))])
        return pdpb.SetExternalTimestampResponse()

    async def get_external_timestamp(
        self, _: pdpb.GetExternalTimestampRequest
    ) -> pdpb.GetExternalTimestampResponse:
        return pdpb.GetExternalTimestampResponse(timestamp=self._external_ts())

    def _external_ts(self) -> int:
        return meta.unpack(self._engine.view().get(Cf.META, meta.EXTERNAL_TS))

    async def get_min_ts(self, _: pdpb.GetMinTSRequest) -> pdpb.GetMinTSResponse:
        ts = await self._tso.current()
        return pdpb.GetMinTSResponse(timestamp=pdpb.Timestamp(physical=physical_ms(ts), logical=logical(ts)))
