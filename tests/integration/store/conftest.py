"""A cluster in this process, and calls to it over real gRPC."""

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock import eventloop
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto import metapb_pb2 as metapb
from penstock.proto import pdpb_pb2 as pdpb
from penstock.proto.codec import encode_bytes
from penstock.proto.services import Stub
from penstock.settings import StoreSettings
from penstock.store.cluster import Cluster
from penstock.store.region import Region

_prefixes = itertools.count()


class Wire:
    """Stubs of a cluster's services; each test has a key prefix of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.prefix = b"test/%04d/" % next(_prefixes)
        self._channels: dict[str, grpc.aio.Channel] = {}

    def key(self, name: str) -> bytes:
        return self.prefix + name.encode()

    def channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
            self._channels[address] = grpc.aio.insecure_channel(address, options=options)
        return self._channels[address]

    @property
    def pd(self) -> Stub:
        return Stub(self.channel(self.cluster.pd_addr), "pdpb.PD")

    @property
    def header(self) -> pdpb.RequestHeader:
        return pdpb.RequestHeader(cluster_id=self.cluster.cluster_id)

    def store(self, store_id: int) -> Stub:
        return Stub(self.channel(self.cluster.store_addrs[store_id]), "tikvpb.Tikv")

    async def ts(self) -> int:
        return await self.cluster.tso.current()

    def region(self, raw_key: bytes) -> Region:
        return self.cluster.regions.by_key(encode_bytes(raw_key))

    def context(self, region: Region, **more: Any) -> kvrpcpb.Context:
        epoch = metapb.RegionEpoch(conf_ver=region.conf_ver, version=region.version)
        return kvrpcpb.Context(region_id=region.id, region_epoch=epoch, peer=region.leader.to_proto(), **more)

    async def call(self, method: str, request: Any, raw_key: bytes) -> Any:
        """Send a command to the leader of the region that holds a key, again if it was split meanwhile."""
        own = kvrpcpb.Context()
        own.CopyFrom(request.context)
        while True:
            region = self.region(raw_key)
            request.context.CopyFrom(self.context(region))
            request.context.MergeFrom(own)
            response = await getattr(self.store(region.leader_store), method)(request, timeout=10)
            if not response.region_error.HasField("epoch_not_match"):
                return response

    async def put(self, key: bytes, value: bytes) -> int:
        """Commit one key in two phases; return the commit timestamp."""
        start_ts = await self.ts()
        response = await self.call("KvPrewrite", self.prewrite(start_ts, {key: value}), key)
        assert not response.errors
        assert not response.HasField("region_error")
        commit_ts = await self.ts()
        request = kvrpcpb.CommitRequest(start_version=start_ts, keys=[key], commit_version=commit_ts)
        response = await self.call("KvCommit", request, key)
        assert not response.HasField("error")
        assert not response.HasField("region_error")
        return commit_ts

    @staticmethod
    def prewrite(start_ts: int, rows: dict[bytes, bytes]) -> kvrpcpb.PrewriteRequest:
        mutations = [kvrpcpb.Mutation(op=kvrpcpb.Put, key=key, value=value) for key, value in rows.items()]
        return kvrpcpb.PrewriteRequest(
            mutations=mutations, primary_lock=next(iter(rows)), start_version=start_ts, lock_ttl=3000
        )

    async def get(self, key: bytes) -> bytes | None:
        request = kvrpcpb.GetRequest(key=key, version=await self.ts())
        response = await self.call("KvGet", request, key)
        assert not response.HasField("region_error")
        assert not response.HasField("error")
        return None if response.not_found else response.value

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()


@asynccontextmanager
async def opened(data: Path, **settings: Any) -> AsyncIterator[Wire]:
    values = {"pd_addr": "127.0.0.1:0", "sync": False, "faults": True, **settings}
    cluster = await Cluster.start(StoreSettings(data=data, **values))
    wire = Wire(cluster)
    try:
        yield wire
    finally:
        await wire.close()
        await cluster.stop()


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = StoreSettings(
        data=tmp_path_factory.mktemp("cluster") / "data",
        pd_addr="127.0.0.1:0",
        stores=3,
        sync=False,
        faults=True,
    )
    cluster = eventloop.run(Cluster.start(settings))
    yield cluster
    eventloop.run(cluster.stop())


@pytest.fixture
def wire(shared_cluster: Cluster) -> Iterator[Wire]:
    made = Wire(shared_cluster)
    yield made
    shared_cluster.faults.set([])
    eventloop.run(made.close())
