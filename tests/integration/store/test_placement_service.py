import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.clock import compose_ts
from penstock.proto import etcdserverpb_pb2 as etcdserverpb
from penstock.proto import keyspacepb_pb2 as keyspacepb
from penstock.proto import metapb_pb2 as metapb
from penstock.proto import pdpb_pb2 as pdpb
from penstock.proto import storepb_pb2 as storepb
from penstock.proto.codec import encode_bytes
from penstock.proto.services import Stub

Wire = Any  # the fixture's class


async def test_members_name_the_leader_and_the_cluster_to_whoever_asks(wire: Wire) -> None:
    answer = await wire.pd.GetMembers(pdpb.GetMembersRequest())
    assert answer.header.cluster_id == wire.cluster.cluster_id
    assert list(answer.leader.client_urls) == [f"http://{wire.cluster.pd_addr}"]
    assert answer.members[0] == answer.leader == answer.etcd_leader
    info = await wire.pd.GetClusterInfo(pdpb.GetClusterInfoRequest())
    assert list(info.serviceModes) == [pdpb.PD_SVC_MODE]


async def test_a_caller_of_another_cluster_is_turned_away(wire: Wire) -> None:
    wrong = pdpb.RequestHeader(cluster_id=1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await wire.pd.GetStore(pdpb.GetStoreRequest(header=wrong, store_id=1))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details() == f"mismatch cluster id, need {wire.cluster.cluster_id} but got 1"
    stream = wire.pd.Tso()
    await stream.write(pdpb.TsoRequest(header=wrong, count=1))
    with pytest.raises(grpc.aio.AioRpcError):
        await stream.read()


async def test_the_timestamp_stream_answers_the_largest_of_each_run(wire: Wire) -> None:
    stream = wire.pd.Tso()
    last = 0
    for count in (1, 10, 1, 5000):
        await stream.write(pdpb.TsoRequest(header=wire.header, count=count))
        answer = await stream.read()
        ts = compose_ts(answer.timestamp.physical, answer.timestamp.logical)
        assert answer.count == count
        assert ts - count >= last
        last = ts
    await stream.done_writing()
    assert await stream.read() == grpc.aio.EOF
    minimum = await wire.pd.GetMinTS(pdpb.GetMinTSRequest(header=wire.header))
    assert compose_ts(minimum.timestamp.physical, minimum.timestamp.logical) > last


async def test_a_cluster_in_a_directory_is_bootstrapped_already(wire: Wire) -> None:
    answer = await wire.pd.IsBootstrapped(pdpb.IsBootstrappedRequest(header=wire.header))
    assert answer.bootstrapped
    refused = await wire.pd.Bootstrap(pdpb.BootstrapRequest(header=wire.header))
    assert refused.header.error.type == pdpb.ALREADY_BOOTSTRAPPED
    config = await wire.pd.GetClusterConfig(pdpb.GetClusterConfigRequest(header=wire.header))
    assert (config.cluster.id, config.cluster.max_peer_count) == (wire.cluster.cluster_id, 3)


async def test_ids_come_in_runs_that_end_at_the_answer(wire: Wire) -> None:
    first = await wire.pd.AllocID(pdpb.AllocIDRequest(header=wire.header))
    run = await wire.pd.AllocID(pdpb.AllocIDRequest(header=wire.header, count=10))
    assert (run.id - first.id, run.count) == (10, 10)


async def test_stores_are_listed_with_their_addresses(wire: Wire) -> None:
    listed = await wire.pd.GetAllStores(pdpb.GetAllStoresRequest(header=wire.header))
    assert {store.id: store.address for store in listed.stores} == wire.cluster.store_addrs
    assert all(store.state == metapb.Up and store.node_state == metapb.Serving for store in listed.stores)
    one = await wire.pd.GetStore(pdpb.GetStoreRequest(header=wire.header, store_id=listed.stores[1].id))
    assert one.store == listed.stores[1]
    missing = await wire.pd.GetStore(pdpb.GetStoreRequest(header=wire.header, store_id=99))
    assert (missing.header.error.type, missing.header.error.message) == (
        pdpb.UNKNOWN,
        "invalid store ID 99, not found",
    )


async def test_a_store_takes_labels_but_no_other_address(wire: Wire) -> None:
    store_id = min(wire.cluster.store_addrs)
    labelled = metapb.Store(id=store_id, labels=[metapb.StoreLabel(key="zone", value="z1")])
    answer = await wire.pd.PutStore(pdpb.PutStoreRequest(header=wire.header, store=labelled))
    assert not answer.header.HasField("error")
    shown = await wire.pd.GetStore(pdpb.GetStoreRequest(header=wire.header, store_id=store_id))
    assert shown.store.labels[0].value == "z1"
    moved = metapb.Store(id=store_id, address="elsewhere:1")
    refused = await wire.pd.PutStore(pdpb.PutStoreRequest(header=wire.header, store=moved))
    assert "cannot be moved" in refused.header.error.message
    beat = pdpb.StoreHeartbeatRequest(header=wire.header, stats=pdpb.StoreStats(store_id=store_id))
    assert (await wire.pd.StoreHeartbeat(beat)).state == metapb.Serving


async def test_every_lookup_finds_the_same_region(wire: Wire) -> None:
    edges = [encode_bytes(wire.key(name)) for name in ("a", "b", "c")]
    await wire.cluster.regions.split_at(edges)
    inside = encode_bytes(wire.key("bb"))
    by_key = await wire.pd.GetRegion(pdpb.GetRegionRequest(header=wire.header, region_key=inside))
    assert (by_key.region.start_key, by_key.region.end_key) == (edges[1], edges[2])
    assert by_key.leader in by_key.region.peers
    by_id = await wire.pd.GetRegionByID(
        pdpb.GetRegionByIDRequest(header=wire.header, region_id=by_key.region.id)
    )
    assert by_id.region == by_key.region
    before = await wire.pd.GetPrevRegion(pdpb.GetRegionRequest(header=wire.header, region_key=inside))
    assert before.region.end_key == edges[1]
    scan = await wire.pd.ScanRegions(
        pdpb.ScanRegionsRequest(header=wire.header, start_key=edges[0], end_key=edges[2], limit=10)
    )
    assert list(scan.region_metas) == [before.region, by_key.region] == [one.region for one in scan.regions]
    assert list(scan.leaders) == [before.leader, by_key.leader]
    unknown = await wire.pd.GetRegionByID(pdpb.GetRegionByIDRequest(header=wire.header, region_id=1 << 40))
    assert not unknown.HasField("region")


async def test_the_query_stream_answers_keys_ids_and_neighbours_at_once(wire: Wire) -> None:
    edges = [encode_bytes(wire.key(name)) for name in ("a", "b")]
    left, right = await wire.cluster.regions.split_at(edges)
    stream = wire.pd.QueryRegion()
    await stream.write(
        pdpb.QueryRegionRequest(
            header=wire.header, keys=[edges[1], edges[0]], prev_keys=[edges[1], b""], ids=[left.id, 1 << 40]
        )
    )
    answer = await stream.read()
    stream.cancel()
    assert list(answer.key_id_map) == [right.id, left.id]
    assert list(answer.prev_key_id_map) == [left.id, 0]
    assert set(answer.regions_by_id) == {left.id, right.id}
    assert answer.regions_by_id[left.id].leader.store_id == left.leader_store


async def test_ranges_are_scanned_together_without_repeating_a_region(wire: Wire) -> None:
    edges = [encode_bytes(wire.key(name)) for name in ("a", "b", "c", "d")]
    parts = await wire.cluster.regions.split_at(edges)

    def request(*ranges: tuple[str, str], limit: int = 0) -> pdpb.BatchScanRegionsRequest:
        wanted = [
            pdpb.KeyRange(start_key=encode_bytes(wire.key(start)), end_key=encode_bytes(wire.key(end)))
            for start, end in ranges
        ]
        return pdpb.BatchScanRegionsRequest(header=wire.header, ranges=wanted, limit=limit)

    found = await wire.pd.BatchScanRegions(request(("a", "aa"), ("ab", "bb"), ("cc", "d")))
    assert [one.region.id for one in found.regions] == [parts[0].id, parts[1].id, parts[2].id]
    assert len((await wire.pd.BatchScanRegions(request(("a", "d"), limit=2))).regions) == 2
    crossed = await wire.pd.BatchScanRegions(request(("b", "c"), ("a", "b")))
    assert crossed.header.error.type == pdpb.INVALID_VALUE


async def test_regions_are_split_and_scattered_over_the_stores(wire: Wire) -> None:
    keys = [encode_bytes(wire.key(f"{i:02d}")) for i in range(9)]
    split = await wire.pd.SplitRegions(pdpb.SplitRegionsRequest(header=wire.header, split_keys=keys))
    assert (split.finished_percentage, len(split.regions_id)) == (100, 9)
    before = await wire.pd.GetOperator(
        pdpb.GetOperatorRequest(header=wire.header, region_id=split.regions_id[0])
    )
    assert before.header.error.type == pdpb.REGION_NOT_FOUND
    scattered = await wire.pd.ScatterRegion(
        pdpb.ScatterRegionRequest(header=wire.header, regions_id=[*split.regions_id, 1 << 40])
    )
    assert (scattered.finished_percentage, list(scattered.failed_regions_id)) == (90, [1 << 40])
    operator = await wire.pd.GetOperator(
        pdpb.GetOperatorRequest(header=wire.header, region_id=split.regions_id[0])
    )
    assert (operator.desc, operator.status) == (b"scatter-region", pdpb.SUCCESS)
    leaders = [wire.cluster.regions.by_key(key).leader_store for key in keys]
    assert {leaders.count(store_id) for store_id in wire.cluster.store_addrs} == {3}


async def test_a_splitting_store_gets_ids_for_its_parts(wire: Wire) -> None:
    region = wire.region(wire.key("x"))
    asked = pdpb.AskBatchSplitRequest(header=wire.header, region=region.to_proto(), split_count=2)
    ids = (await wire.pd.AskBatchSplit(asked)).ids
    assert len({number for one in ids for number in (one.new_region_id, *one.new_peer_ids)}) == 8
    reported = await wire.pd.ReportBatchSplit(pdpb.ReportBatchSplitRequest(header=wire.header))
    assert not reported.header.HasField("error")


async def test_safe_points_move_and_hold_over_the_wire(wire: Wire) -> None:
    pd, header = wire.pd, wire.header
    barrier = await pd.SetGCBarrier(
        pdpb.SetGCBarrierRequest(header=header, barrier_id="feed", barrier_ts=500, ttl_seconds=100)
    )
    assert (barrier.new_barrier_info.barrier_ts, barrier.new_barrier_info.ttl_seconds) == (500, 100)
    advanced = await pd.AdvanceTxnSafePoint(pdpb.AdvanceTxnSafePointRequest(header=header, target=900))
    assert advanced.new_txn_safe_point == 500
    assert "feed" in advanced.blocker_description
    refused = await pd.AdvanceGCSafePoint(pdpb.AdvanceGCSafePointRequest(header=header, target=501))
    assert refused.header.error.type == pdpb.UNKNOWN
    moved = await pd.AdvanceGCSafePoint(pdpb.AdvanceGCSafePointRequest(header=header, target=400))
    assert moved.new_gc_safe_point == 400
    state = (await pd.GetGCState(pdpb.GetGCStateRequest(header=header))).gc_state
    assert (state.txn_safe_point, state.gc_safe_point) == (500, 400)
    assert [one.barrier_id for one in state.gc_barriers] == ["feed"]
    deleted = await pd.DeleteGCBarrier(pdpb.DeleteGCBarrierRequest(header=header, barrier_id="feed"))
    assert deleted.deleted_barrier_info.barrier_ts == 500
    service = pdpb.UpdateServiceGCSafePointRequest(header=header, service_id=b"late", TTL=60, safe_point=450)
    assert (await pd.UpdateServiceGCSafePoint(service)).min_safe_point == 500
    updated = await pd.UpdateGCSafePoint(pdpb.UpdateGCSafePointRequest(header=header, safe_point=450))
    assert updated.new_safe_point == 450
    assert (await pd.GetGCSafePoint(pdpb.GetGCSafePointRequest(header=header))).safe_point == 450


async def test_the_external_timestamp_only_grows_and_never_passes_the_present(wire: Wire) -> None:
    def set_to(ts: int) -> pdpb.SetExternalTimestampRequest:
        return pdpb.SetExternalTimestampRequest(header=wire.header, timestamp=ts)

    now = await wire.ts()
    assert not (await wire.pd.SetExternalTimestamp(set_to(now))).header.HasField("error")
    for wrong in (now - 1, now + (1 << 40)):
        answer = await wire.pd.SetExternalTimestamp(set_to(wrong))
        assert answer.header.error.type == pdpb.INVALID_VALUE
    got = await wire.pd.GetExternalTimestamp(pdpb.GetExternalTimestampRequest(header=wire.header))
    assert got.timestamp == now


async def test_shared_settings_are_stored_loaded_and_watched(wire: Wire) -> None:
    path = f"/{wire.prefix.decode()}"
    item = pdpb.GlobalConfigItem(name="source", value="42", kind=pdpb.PUT)
    loaded = await wire.pd.LoadGlobalConfig(pdpb.LoadGlobalConfigRequest(config_path=path))
    watch = wire.pd.WatchGlobalConfig(
        pdpb.WatchGlobalConfigRequest(config_path=path, revision=loaded.revision + 1)
    )
    await wire.pd.StoreGlobalConfig(pdpb.StoreGlobalConfigRequest(config_path=path, changes=[item]))
    change = await watch.read()
    assert [(one.payload, one.kind) for one in change.changes] == [(b"42", pdpb.PUT)]
    named = await wire.pd.LoadGlobalConfig(
        pdpb.LoadGlobalConfigRequest(config_path=path, names=["source", "none"])
    )
    assert named.items[0].payload == b"42"
    assert named.items[1].error.type == pdpb.GLOBAL_CONFIG_NOT_FOUND
    gone = pdpb.GlobalConfigItem(name="source", kind=pdpb.DELETE)
    await wire.pd.StoreGlobalConfig(pdpb.StoreGlobalConfigRequest(config_path=path, changes=[gone]))
    assert (await watch.read()).changes[0].kind == pdpb.DELETE
    assert not (await wire.pd.LoadGlobalConfig(pdpb.LoadGlobalConfigRequest(config_path=path))).items
    watch.cancel()
    forgotten = wire.pd.WatchGlobalConfig(pdpb.WatchGlobalConfigRequest(config_path=path, revision=1))
    assert (await forgotten.read()).header.error.type == pdpb.DATA_COMPACTED


async def test_etcd_serves_plain_keys_and_its_member(wire: Wire) -> None:
    channel = wire.channel(wire.cluster.pd_addr)
    keys, members = Stub(channel, "etcdserverpb.KV"), Stub(channel, "etcdserverpb.Cluster")
    listed = await members.MemberList(etcdserverpb.MemberListRequest())
    assert list(listed.members[0].clientURLs) == [f"http://{wire.cluster.pd_addr}"]
    for name in ("a", "b", "c"):
        await keys.Put(etcdserverpb.PutRequest(key=wire.key(name), value=name.encode()))
    one = await keys.Range(etcdserverpb.RangeRequest(key=wire.key("b")))
    assert [(kv.key, kv.value) for kv in one.kvs] == [(wire.key("b"), b"b")]
    some = await keys.Range(etcdserverpb.RangeRequest(key=wire.key("a"), range_end=wire.key("z"), limit=2))
    assert ([kv.value for kv in some.kvs], some.more, some.count) == ([b"a", b"b"], True, 3)
    put = await keys.Put(etcdserverpb.PutRequest(key=wire.key("a"), value=b"2", prev_kv=True))
    assert put.prev_kv.value == b"a"
    with pytest.raises(grpc.aio.AioRpcError, match="leases"):
        await keys.Put(etcdserverpb.PutRequest(key=wire.key("a"), lease=5))


async def test_there_is_one_keyspace(wire: Wire) -> None:
    stub = Stub(wire.channel(wire.cluster.pd_addr), "keyspacepb.Keyspace")
    default = await stub.LoadKeyspace(keyspacepb.LoadKeyspaceRequest(name="DEFAULT"))
    assert (default.keyspace.id, default.keyspace.state) == (0, keyspacepb.ENABLED)
    other = await stub.LoadKeyspace(keyspacepb.LoadKeyspaceRequest(name="other"))
    assert other.header.error.type == pdpb.ENTRY_NOT_FOUND


async def test_every_port_answers_health_checks(wire: Wire) -> None:
    async def status(address: str) -> int:
        stub = health_pb2_grpc.HealthStub(wire.channel(address))
        answer = await stub.Check(health_pb2.HealthCheckRequest())
        return int(answer.status)

    addresses = [wire.cluster.pd_addr, *wire.cluster.store_addrs.values()]
    answers = await asyncio.gather(*(status(address) for address in addresses))
    assert set(answers) == {health_pb2.HealthCheckResponse.SERVING}


async def test_faults_strike_the_placement_driver_by_name(wire: Wire) -> None:
    wire.cluster.faults.set([storepb.Fault(kind="UNAVAILABLE", method="GetRegion", times=1)])
    request = pdpb.GetRegionRequest(header=wire.header)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await wire.pd.GetRegion(request)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert (await wire.pd.GetRegion(request)).HasField("region")
    wire.cluster.faults.set([storepb.Fault(kind="STREAM_RESET", method="Tso", times=1, skip=1)])
    stream = wire.pd.Tso()
    await stream.write(pdpb.TsoRequest(header=wire.header, count=1))
    assert (await stream.read()).count == 1
    await stream.write(pdpb.TsoRequest(header=wire.header, count=1))
    with pytest.raises(grpc.aio.AioRpcError):
        await stream.read()
