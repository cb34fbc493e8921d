"""The client's lower half against the embedded cluster: splits, merges, leaders, lost stores, faults."""

import asyncio

import pytest

from penstock import eventloop, metrics
from penstock.clock import SYSTEM
from penstock.errors import Invalid
from penstock.kv.backoff import Backoffer
from penstock.kv.pd import PdClient
from penstock.kv.regions import RegionCache
from penstock.kv.rpc.client import RpcClient
from penstock.kv.sender import RegionSender, RegionStale
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto import storepb_pb2 as storepb
from penstock.proto.codec import encode_bytes
from penstock.settings import KvSettings, StoreSettings
from penstock.store.cluster import Cluster

Fault = storepb.Fault


class Reader:
    """Reads and writes single keys through the sender, as the transaction layer does."""

    def __init__(self, pd, settings):
        self.pd = pd
        self.rpc = RpcClient(None, settings)
        self.cache = RegionCache(pd, settings)
        self.sender = RegionSender(self.cache, self.rpc, SYSTEM, settings)

    @classmethod
    async def connect(cls, cluster, **settings):
        chosen = KvSettings(**settings)
        return cls(await PdClient.connect([cluster.pd_addr], settings=chosen), chosen)

    async def close(self):
        await self.sender.close()
        await self.rpc.close()
        await self.pd.close()

    async def send(self, method, request, key, budget_ms=20_000):
        bo = Backoffer(budget_ms, name=method)
        while True:
            location = await self.cache.locate(bo, key)
            try:
                return await self.sender.send(bo, method, request, location.region)
            except RegionStale:
                continue

    async def put(self, key, value):
        """Write one key by a one-phase commit."""
        request = kvrpcpb.PrewriteRequest(
            mutations=[kvrpcpb.Mutation(op=kvrpcpb.Put, key=key, value=value)],
            primary_lock=key,
            start_version=await self.pd.timestamp(),
            lock_ttl=3000,
            try_one_pc=True,
            use_async_commit=True,
            max_commit_ts=(1 << 63) - 1,
        )
        answer = await self.send("KvPrewrite", request, key)
        assert not answer.errors
        assert answer.one_pc_commit_ts

    async def get(self, key, **options):
        request = kvrpcpb.GetRequest(key=key, version=await self.pd.timestamp())
        return (await self.send("KvGet", request, key, **options)).value


@pytest.fixture
def embedded(tmp_path):
    settings = StoreSettings(
        data=tmp_path / "store", pd_addr="127.0.0.1:0", stores=3, sync=False, faults=True
    )
    cluster = eventloop.run(Cluster.start(settings))
    yield cluster
    eventloop.run(cluster.stop())


@pytest.fixture
def reader(embedded):
    made = eventloop.run(Reader.connect(embedded, store_liveness_timeout_ms=200))
    yield made
    eventloop.run(made.close())


def region_of(embedded, key):
    return embedded.regions.by_key(encode_bytes(key))


def errors(name):
    return metrics.KV_REGION_ERR_TOTAL.labels(name)._value.get()


async def test_what_was_written_is_read(reader):
    await reader.put(b"k", b"v")
    assert await reader.get(b"k") == b"v"
    assert reader.pd.cluster_id


async def test_many_callers_read_together(reader):
    await reader.put(b"k", b"v")
    assert await asyncio.gather(*(reader.get(b"k") for _ in range(200))) == [b"v"] * 200


async def test_a_split_is_followed_by_the_regions_the_store_tells(embedded, reader):
    await asyncio.gather(*(reader.put(b"key%d" % i, b"%d" % i) for i in range(10)))
    before = errors("epoch_not_match")
    await embedded.regions.split(
        region_of(embedded, b"key5").id, [encode_bytes(b"key3"), encode_bytes(b"key7")]
    )
    values = await asyncio.gather(*(reader.get(b"key%d" % i) for i in range(10)))
    assert values == [b"%d" % i for i in range(10)]
    assert errors("epoch_not_match") > before
    bo = Backoffer(1000)
    found = [await reader.cache.locate(bo, key) for key in (b"", b"key3", b"key7")]
    assert [(each.start, each.end) for each in found] == [(b"", b"key3"), (b"key3", b"key7"), (b"key7", b"")]


async def test_a_merge_is_followed(embedded, reader):
    await embedded.regions.split(region_of(embedded, b"m").id, [encode_bytes(b"g"), encode_bytes(b"p")])
    for key in (b"a", b"h", b"z"):
        await reader.put(key, key)
    await embedded.regions.merge(region_of(embedded, b"a").id)
    assert [await reader.get(key) for key in (b"a", b"h", b"z")] == [b"a", b"h", b"z"]
    assert (await reader.cache.locate(Backoffer(1000), b"a")).end == b"p"


async def test_a_leader_change_is_followed_without_a_pause(embedded, reader):
    await reader.put(b"k", b"v")
    region = region_of(embedded, b"k")
    other = next(peer.store_id for peer in region.peers if peer.store_id != region.leader_store)
    before = errors("not_leader")
    await embedded.regions.transfer_leader(region.id, other)
    bo = Backoffer(0)  # any sleep would fail
    location = await reader.cache.locate(bo, b"k")
    request = kvrpcpb.GetRequest(key=b"k", version=await reader.pd.timestamp())
    assert (await reader.sender.send(bo, "KvGet", request, location.region)).value == b"v"
    assert errors("not_leader") == before + 1


async def test_a_stopped_store_is_survived_and_used_again(embedded, reader):
    await reader.put(b"k", b"v")
    leader = region_of(embedded, b"k").leader_store
    await embedded.stop_store(leader)
    assert await asyncio.gather(*(reader.get(b"k") for _ in range(20))) == [b"v"] * 20
    await embedded.start_store(leader)
    await embedded.regions.transfer_leader(region_of(embedded, b"k").id, leader)
    assert await reader.get(b"k") == b"v"


@pytest.mark.parametrize(
    "kind",
    [
        Fault.SERVER_IS_BUSY,
        Fault.NOT_LEADER,
        Fault.EPOCH_NOT_MATCH,
        Fault.STALE_COMMAND,
        Fault.REGION_NOT_FOUND,
        Fault.MAX_TIMESTAMP_NOT_SYNCED,
        Fault.STREAM_RESET,
        Fault.UNAVAILABLE,
    ],
    ids=Fault.Kind.Name,
)
async def test_a_fault_that_passes_is_not_seen_by_the_caller(embedded, reader, kind):
    await reader.put(b"k", b"v")
    times = 1 if kind == Fault.SERVER_IS_BUSY else 2  # whose pauses are long
    embedded.faults.set([Fault(kind=kind, method="KvGet", times=times)])
    assert await reader.get(b"k") == b"v"


async def test_commands_of_another_cluster_are_refused_with_a_clear_line(embedded, reader):
    await reader.put(b"k", b"v")
    bo = Backoffer(20_000)
    location = await reader.cache.locate(bo, b"k")
    target = await reader.cache.target(bo, location.region)
    target.context.cluster_id += 1
    with pytest.raises(Invalid, match="belongs to another cluster"):
        await reader.sender.send(bo, "KvGet", kvrpcpb.GetRequest(key=b"k", version=1), location.region)


async def test_timestamps_go_on_rising_for_all_clients(embedded, reader):
    other = await PdClient.connect([embedded.pd_addr])
    seen = []
    for _ in range(20):
        seen.append(await reader.pd.timestamp())
        seen += await asyncio.gather(other.timestamp(), other.timestamp())
    assert seen == sorted(set(seen))
    await other.close()


async def test_stores_safe_points_and_operators(embedded, reader):
    stores = await reader.pd.get_all_stores()
    assert {store.id: store.address for store in stores} == embedded.store_addrs
    assert await reader.pd.get_store(999) is None
    now = await reader.pd.timestamp()
    assert await reader.pd.update_service_gc_safe_point("capture", 60, now) <= now
    region = await reader.pd.get_region(b"k")
    assert await reader.pd.get_operator(region.meta.id) is None
    await reader.pd.scatter_region(region.meta.id)
    assert (await reader.pd.get_operator(region.meta.id)).region_id == region.meta.id
