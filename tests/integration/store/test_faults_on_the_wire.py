import asyncio
from typing import Any

import grpc
import pytest

from penstock.clock import SYSTEM
from penstock.errors import Invalid
from penstock.proto import cdcpb_pb2 as cdcpb
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto import storepb_pb2 as storepb
from penstock.proto.services import Stub
from penstock.testing.store import Admin

Wire = Any  # the fixture's class


async def get(wire: Wire, timeout: float = 10) -> Any:
    region = wire.region(wire.key("a"))
    request = kvrpcpb.GetRequest(key=wire.key("a"), version=await wire.ts(), context=wire.context(region))
    return await wire.store(region.leader_store).KvGet(request, timeout=timeout)


@pytest.mark.parametrize(
    "kind",
    [
        "SERVER_IS_BUSY",
        "NOT_LEADER",
        "EPOCH_NOT_MATCH",
        "STALE_COMMAND",
        "REGION_NOT_FOUND",
        "MAX_TIMESTAMP_NOT_SYNCED",
    ],
)
async def test_a_region_error_is_answered_as_often_as_it_was_set(wire: Wire, kind: str) -> None:
    wire.cluster.faults.set([storepb.Fault(kind=kind, method="KvGet", times=2, skip=1)])
    errors = [(await get(wire)).region_error for _ in range(4)]
    assert [error.HasField(kind.lower()) for error in errors] == [False, True, True, False]
    assert not errors[1].not_leader.HasField("leader")
    assert not errors[1].epoch_not_match.current_regions


async def test_a_dropped_call_is_never_answered(wire: Wire) -> None:
    wire.cluster.faults.set([storepb.Fault(kind="DROP", method="KvGet", times=1)])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await get(wire, timeout=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert (await get(wire)).not_found


async def test_a_delayed_call_is_applied_at_once_and_answered_later(wire: Wire) -> None:
    wire.cluster.faults.set([storepb.Fault(kind="DELAY", method="RawPut", times=1, delay_ms=300)])
    region = wire.cluster.regions.by_key(wire.prefix)
    store, context = wire.store(region.leader_store), wire.context(region)
    began = SYSTEM.monotonic()
    putting = asyncio.ensure_future(
        store.RawPut(kvrpcpb.RawPutRequest(context=context, key=wire.key("a"), value=b"1"))
    )
    async with asyncio.timeout(10):
        while (await store.RawGet(kvrpcpb.RawGetRequest(context=context, key=wire.key("a")))).not_found:
            pass
    await putting
    assert SYSTEM.monotonic() - began >= 0.3


async def test_unavailable_means_not_applied_and_undetermined_means_applied(wire: Wire) -> None:
    region = wire.cluster.regions.by_key(wire.prefix)
    store, context = wire.store(region.leader_store), wire.context(region)
    for kind, applied in (("UNAVAILABLE", False), ("UNDETERMINED", True)):
        key = wire.key(kind)
        wire.cluster.faults.set([storepb.Fault(kind=kind, method="RawPut", times=1)])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await store.RawPut(kvrpcpb.RawPutRequest(context=context, key=key, value=b"1"))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        found = await store.RawGet(kvrpcpb.RawGetRequest(context=context, key=key))
        assert found.not_found is not applied


async def test_a_fault_on_one_store_spares_the_others(wire: Wire) -> None:
    region = wire.region(wire.key("a"))
    other = next(peer for peer in region.peers if peer.store_id != region.leader_store)
    wire.cluster.faults.set([storepb.Fault(kind="UNAVAILABLE", store_id=other.store_id)])
    assert (await get(wire)).not_found
    await wire.cluster.regions.transfer_leader(region.id, other.store_id)
    with pytest.raises(grpc.aio.AioRpcError):
        await get(wire)


async def test_a_change_stream_is_reset(wire: Wire) -> None:
    region = wire.region(wire.key("a"))
    stub = Stub(wire.channel(wire.cluster.store_addrs[region.leader_store]), "cdcpb.ChangeData")
    wire.cluster.faults.set([storepb.Fault(kind="STREAM_RESET", method="EventFeed", times=1)])
    request = cdcpb.ChangeDataRequest(region_id=region.id, checkpoint_ts=await wire.ts())
    stream = stub.EventFeed()
    await stream.write(request)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    again = stub.EventFeed()
    await again.write(request)
    assert (await again.read()).events
    again.cancel()


async def test_admin_calls_change_regions_and_refuse_nonsense(wire: Wire) -> None:
    admin = Admin(wire.cluster.pd_addr)
    parts = await admin.split([wire.key("m"), wire.key("p")])
    assert len(parts) == 2
    merged = await admin.merge(parts[0].id)
    assert merged.id == parts[1].id
    region = wire.region(wire.key("q"))
    other = next(peer.store_id for peer in region.peers if peer.store_id != region.leader_store)
    await admin.transfer_leader(region.id, other)
    assert wire.region(wire.key("q")).leader_store == other
    await admin.set_faults([Admin.fault("SERVER_IS_BUSY", method="KvGet", times=1)])
    assert (await get(wire)).region_error.HasField("server_is_busy")
    with pytest.raises(Invalid, match="does not exist"):
        await admin.merge(1 << 40)
    with pytest.raises(Invalid, match="store 99 does not exist"):
        await admin.stop_store(99)
    await admin.close()
