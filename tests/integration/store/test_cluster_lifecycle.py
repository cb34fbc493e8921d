import asyncio
import importlib.util
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.clock import physical_ms
from penstock.errors import Invalid, Unavailable
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto import storepb_pb2 as storepb
from penstock.proto import tikvpb_pb2 as tikvpb
from penstock.proto.codec import encode_bytes
from penstock.settings import StoreSettings
from penstock.store.cluster import Cluster
from penstock.testing.store import Admin

_spec = importlib.util.spec_from_file_location("store_wire", Path(__file__).with_name("conftest.py"))
assert _spec is not None
assert _spec.loader is not None
_wire = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_wire)
opened: Any = _wire.opened


async def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    async with opened(tmp_path / "data", stores=3) as before:
        await before.put(b"a", b"1")
        await before.cluster.split_at([b"m"])
        region = before.region(b"z")
        await before.cluster.regions.transfer_leader(region.id, 3)
        last_ts = await before.ts()
        cluster_id, addrs = before.cluster.cluster_id, before.cluster.store_addrs
        regions = list(before.cluster.regions)
    async with opened(tmp_path / "data", stores=3) as after:
        assert after.cluster.cluster_id == cluster_id
        assert after.cluster.store_addrs == addrs
        regions[1] = after.region(b"z")
        assert list(after.cluster.regions) == regions
        assert regions[1].leader_store == 3
        assert await after.ts() > last_ts
        assert after.cluster.storage.concurrency.max_ts > last_ts
        assert await after.get(b"a") == b"1"


async def test_a_store_port_that_was_taken_meanwhile_is_replaced(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as before:
        ((store_id, taken),) = before.cluster.store_addrs.items()
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", int(taken.rpartition(":")[2])))
        squatter.listen(1)
        async with opened(tmp_path / "data") as after:
            assert after.cluster.store_addrs[store_id] != taken
            await after.put(b"a", b"1")


async def test_a_directory_may_get_more_stores_but_not_fewer(tmp_path: Path) -> None:
    async with opened(tmp_path / "data", stores=1) as before:
        await before.put(b"a", b"1")
    async with opened(tmp_path / "data", stores=3) as after:
        region = after.region(b"a")
        assert [peer.store_id for peer in region.peers] == sorted(after.cluster.store_addrs)
        await after.cluster.regions.transfer_leader(region.id, max(after.cluster.store_addrs))
        assert await after.get(b"a") == b"1"
    with pytest.raises(Invalid, match="--stores 3"):
        async with opened(tmp_path / "data", stores=2):
            pass
    async with opened(tmp_path / "data", stores=3) as again:
        assert await again.get(b"a") == b"1"


async def test_a_stopped_store_hands_its_regions_over_and_comes_back(tmp_path: Path) -> None:
    async with opened(tmp_path / "data", stores=3) as wire:
        await wire.put(b"a", b"1")
        region = wire.region(b"a")
        address = wire.cluster.store_addrs[region.leader_store]
        stub = wire.store(region.leader_store)
        admin = Admin(wire.cluster.pd_addr)
        await admin.stop_store(region.leader_store)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.KvGet(kvrpcpb.GetRequest(context=wire.context(region)), timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert wire.region(b"a").leader_store != region.leader_store
        assert await wire.get(b"a") == b"1"
        await admin.start_store(region.leader_store)
        await admin.start_store(region.leader_store)
        assert wire.cluster.store_addrs[region.leader_store] == address
        await wire.cluster.regions.transfer_leader(region.id, region.leader_store)
        async with asyncio.timeout(10):
            while True:
                try:
                    assert await wire.get(b"a") == b"1"
                    break
                except grpc.aio.AioRpcError:  # the channel waits before it connects again
                    await asyncio.to_thread(int)
        await admin.close()


async def test_a_lone_store_that_stops_takes_its_regions_with_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as wire:
        ((store_id, _),) = wire.cluster.store_addrs.items()
        await wire.cluster.stop_store(store_id)
        assert wire.region(b"a").leader_store == store_id
        await wire.cluster.start_store(store_id)
        await wire.put(b"a", b"1")


async def test_more_stores_than_replicas_share_the_regions(tmp_path: Path) -> None:
    async with opened(tmp_path / "data", stores=5) as wire:
        await wire.cluster.split_at([b"%02d" % i for i in range(10)])
        scheduler = wire.cluster._scheduler
        for region in wire.cluster.regions:
            await scheduler.scatter(region.id)
        led = [region.leader_store for region in wire.cluster.regions]
        assert set(led) == set(wire.cluster.store_addrs)
        assert {len(region.peers) for region in wire.cluster.regions} == {3}
        await wire.put(b"05", b"1")
        assert await wire.get(b"05") == b"1"


async def test_a_region_that_grows_is_split_while_it_is_written(tmp_path: Path) -> None:
    async with opened(tmp_path / "data", region_split_bytes=200_000) as wire:
        for i in range(60):
            await wire.put(b"key%04d" % i, bytes([i]) * 10_000)
        async with asyncio.timeout(20):
            while len(wire.cluster.regions) < 3:
                await asyncio.to_thread(int)
        starts = [region.start for region in wire.cluster.regions][1:]
        assert all(encode_bytes(b"key0000") < start < encode_bytes(b"key0060") for start in starts)
        for i in range(60):
            assert await wire.get(b"key%04d" % i) == bytes([i]) * 10_000


async def test_faults_need_leave(tmp_path: Path) -> None:
    async with opened(tmp_path / "data", faults=False) as wire:
        admin = Admin(wire.cluster.pd_addr)
        with pytest.raises(Invalid, match="--enable-faults"):
            await admin.set_faults([storepb.Fault(kind="DROP")])
        await admin.close()


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:x", "127.0.0.1:70000", "0.0.0.0:0", ":2379"])
async def test_an_address_nobody_could_reach_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(Invalid, match="address"):
        await Cluster.start(StoreSettings(data=tmp_path / "data", pd_addr=address))
    assert not (tmp_path / "data").exists()


async def test_a_busy_address_is_refused_and_the_directory_let_go(tmp_path: Path) -> None:
    async with opened(tmp_path / "one") as wire:
        with pytest.raises(Invalid, match="Address already in use"):
            await Cluster.start(StoreSettings(data=tmp_path / "two", pd_addr=wire.cluster.pd_addr))
        async with opened(tmp_path / "two") as other:
            assert physical_ms(await other.ts()) > 0


async def test_a_failed_disk_refuses_writes_and_acknowledges_none(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as wire:
        await wire.put(b"a", b"1")
        region = wire.region(b"a")
        wire.cluster._engine._failure = Unavailable("store cannot write (no space); check the disk")
        request = wire.prewrite(await wire.ts(), {b"b": b"2"})
        request.context.CopyFrom(wire.context(region))
        store = wire.store(region.leader_store)
        with pytest.raises(grpc.aio.AioRpcError, match="no space") as caught:
            await store.KvPrewrite(request)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        message = tikvpb.BatchCommandsRequest(request_ids=[1])
        message.requests.add().Prewrite.CopyFrom(request)
        stream = store.BatchCommands()
        await stream.write(message)
        with pytest.raises(grpc.aio.AioRpcError, match="no space"):
            await stream.read()
        assert await wire.get(b"a") == b"1"
