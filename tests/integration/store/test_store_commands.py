import asyncio
from typing import Any

import grpc
import pytest

from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto.codec import encode_bytes

Wire = Any  # the fixture's class


async def test_a_committed_value_is_read_and_scanned(wire: Wire) -> None:
    for name in ("a", "b", "c"):
        await wire.put(wire.key(name), name.encode())
    assert await wire.get(wire.key("b")) == b"b"
    assert await wire.get(wire.key("none")) is None
    ts = await wire.ts()
    scan = kvrpcpb.ScanRequest(start_key=wire.key("a"), end_key=wire.key("z"), limit=2, version=ts)
    pairs = (await wire.call("KvScan", scan, wire.key("a"))).pairs
    assert [(pair.key, pair.value) for pair in pairs] == [(wire.key("a"), b"a"), (wire.key("b"), b"b")]
    several = kvrpcpb.BatchGetRequest(keys=[wire.key("a"), wire.key("none"), wire.key("c")], version=ts)
    pairs = (await wire.call("KvBatchGet", several, wire.key("a"))).pairs
    assert {pair.value for pair in pairs} == {b"a", b"c"}


async def test_a_transaction_goes_through_every_command(wire: Wire) -> None:
    key, start_ts = wire.key("k"), await wire.ts()
    lock = kvrpcpb.PessimisticLockRequest(
        mutations=[kvrpcpb.Mutation(op=kvrpcpb.PessimisticLock, key=key)],
        primary_lock=key,
        start_version=start_ts,
        for_update_ts=start_ts,
        lock_ttl=3000,
        is_first_lock=True,
    )
    assert not (await wire.call("KvPessimisticLock", lock, key)).errors
    beat = kvrpcpb.TxnHeartBeatRequest(primary_lock=key, start_version=start_ts, advise_lock_ttl=9000)
    assert (await wire.call("KvTxnHeartBeat", beat, key)).lock_ttl == 9000
    locks = kvrpcpb.ScanLockRequest(max_version=start_ts, start_key=key, end_key=key + b"\x00")
    assert len((await wire.call("KvScanLock", locks, key)).locks) == 1
    undo = kvrpcpb.PessimisticRollbackRequest(start_version=start_ts, for_update_ts=start_ts, keys=[key])
    assert not (await wire.call("KVPessimisticRollback", undo, key)).errors
    assert not (await wire.call("KvPrewrite", wire.prewrite(start_ts, {key: b"v"}), key)).errors
    status = kvrpcpb.CheckTxnStatusRequest(primary_key=key, lock_ts=start_ts, current_ts=start_ts)
    assert (await wire.call("KvCheckTxnStatus", status, key)).lock_ttl > 0
    secondary = kvrpcpb.CheckSecondaryLocksRequest(keys=[key], start_version=start_ts)
    assert len((await wire.call("KvCheckSecondaryLocks", secondary, key)).locks) == 1
    resolve = kvrpcpb.ResolveLockRequest(start_version=start_ts, keys=[key])
    assert not (await wire.call("KvResolveLock", resolve, key)).HasField("error")
    assert await wire.get(key) is None
    clean = kvrpcpb.CleanupRequest(key=key, start_version=start_ts)
    assert (await wire.call("KvCleanup", clean, key)).commit_version == 0
    roll_back = kvrpcpb.BatchRollbackRequest(start_version=start_ts, keys=[key])
    assert not (await wire.call("KvBatchRollback", roll_back, key)).HasField("error")
    history = await wire.call("MvccGetByKey", kvrpcpb.MvccGetByKeyRequest(key=key), key)
    assert [write.type for write in history.info.writes] == [kvrpcpb.Rollback]
    started = kvrpcpb.MvccGetByStartTsRequest(start_ts=start_ts)
    assert not (await wire.call("MvccGetByStartTs", started, key)).error
    collect = kvrpcpb.GCRequest(safe_point=await wire.ts())
    assert not (await wire.call("KvGC", collect, key)).HasField("error")


async def test_ranges_are_deleted_inside_their_region_only(wire: Wire) -> None:
    await wire.cluster.split_at([wire.key("m"), wire.key("zz")])
    await wire.put(wire.key("a"), b"1")
    await wire.put(wire.key("x"), b"2")
    delete = kvrpcpb.DeleteRangeRequest(start_key=wire.key("a"), end_key=wire.key("z"))
    assert not (await wire.call("KvDeleteRange", delete, wire.key("a"))).error
    assert await wire.get(wire.key("a")) is None
    assert await wire.get(wire.key("x")) == b"2"
    destroy = kvrpcpb.UnsafeDestroyRangeRequest(start_key=wire.key("a"), end_key=wire.key("z"))
    store_id = next(iter(wire.cluster.store_addrs))
    assert not (await wire.store(store_id).UnsafeDestroyRange(destroy)).error
    assert await wire.get(wire.key("x")) is None


async def test_a_key_outside_the_region_is_refused_by_every_command_that_names_it(wire: Wire) -> None:
    await wire.cluster.split_at([wire.key("a"), wire.key("m")])
    region = wire.region(wire.key("b"))
    stray, ts = wire.key("z"), await wire.ts()
    mutation = kvrpcpb.Mutation(op=kvrpcpb.Put, key=stray, value=b"v")
    inside = kvrpcpb.Mutation(op=kvrpcpb.Put, key=wire.key("b"), value=b"v")
    requests = {
        "KvGet": kvrpcpb.GetRequest(key=stray, version=ts),
        "KvBatchGet": kvrpcpb.BatchGetRequest(keys=[wire.key("b"), stray], version=ts),
        "KvPrewrite": kvrpcpb.PrewriteRequest(mutations=[inside, mutation], start_version=ts),
        "KvPessimisticLock": kvrpcpb.PessimisticLockRequest(mutations=[mutation], start_version=ts),
        "KVPessimisticRollback": kvrpcpb.PessimisticRollbackRequest(keys=[stray], start_version=ts),
        "KvCommit": kvrpcpb.CommitRequest(keys=[stray], start_version=ts, commit_version=ts + 1),
        "KvCleanup": kvrpcpb.CleanupRequest(key=stray, start_version=ts),
        "KvBatchRollback": kvrpcpb.BatchRollbackRequest(keys=[stray], start_version=ts),
        "KvCheckTxnStatus": kvrpcpb.CheckTxnStatusRequest(primary_key=stray, lock_ts=ts),
        "KvCheckSecondaryLocks": kvrpcpb.CheckSecondaryLocksRequest(keys=[stray], start_version=ts),
        "KvTxnHeartBeat": kvrpcpb.TxnHeartBeatRequest(primary_lock=stray, start_version=ts),
        "KvResolveLock": kvrpcpb.ResolveLockRequest(keys=[stray], start_version=ts),
        "MvccGetByKey": kvrpcpb.MvccGetByKeyRequest(key=stray),
    }
    for method, request in requests.items():
        request.context.CopyFrom(wire.context(region))
        answer = await getattr(wire.store(region.leader_store), method)(request)
        refused = answer.region_error.key_not_in_region
        assert (refused.region_id, refused.key) == (region.id, encode_bytes(stray)), method
        assert (refused.start_key, refused.end_key) == (region.start, region.end)
    assert await wire.get(wire.key("b")) is None


async def test_only_the_leader_serves_unless_any_replica_will_do(wire: Wire) -> None:
    await wire.put(wire.key("a"), b"1")
    region = wire.region(wire.key("a"))
    follower = next(peer for peer in region.peers if peer.store_id != region.leader_store)
    request = kvrpcpb.GetRequest(key=wire.key("a"), version=await wire.ts(), context=wire.context(region))
    request.context.peer.CopyFrom(follower.to_proto())
    refused = await wire.store(follower.store_id).KvGet(request)
    assert refused.region_error.not_leader.leader.store_id == region.leader_store
    for flag in ("replica_read", "stale_read"):
        setattr(request.context, flag, True)
        assert (await wire.store(follower.store_id).KvGet(request)).value == b"1"
        request.context.ClearField(flag)
    write = wire.prewrite(await wire.ts(), {wire.key("a"): b"2"})
    write.context.CopyFrom(wire.context(region, replica_read=True))
    write.context.peer.CopyFrom(follower.to_proto())
    assert (await wire.store(follower.store_id).KvPrewrite(write)).region_error.HasField("not_leader")


async def test_a_stale_read_holds_later_commits_above_it(wire: Wire) -> None:
    region, read_ts = wire.region(wire.key("a")), await wire.ts() + (1000 << 18)
    request = kvrpcpb.GetRequest(
        key=wire.key("a"), version=read_ts, context=wire.context(region, stale_read=True)
    )
    assert (await wire.store(region.leader_store).KvGet(request)).not_found
    write = wire.prewrite(await wire.ts(), {wire.key("a"): b"2"})
    write.try_one_pc = True
    assert (await wire.call("KvPrewrite", write, wire.key("a"))).one_pc_commit_ts > read_ts


async def test_a_region_is_split_on_request_and_the_old_version_refused(wire: Wire) -> None:
    region = wire.region(wire.key("a"))
    request = kvrpcpb.SplitRegionRequest(
        context=wire.context(region), split_keys=[wire.key("m"), wire.key("c")]
    )
    store = wire.store(region.leader_store)
    parts = (await store.SplitRegion(request)).regions
    assert [part.start_key for part in parts][1:] == [
        encode_bytes(wire.key("c")),
        encode_bytes(wire.key("m")),
    ]
    assert parts[2].id == region.id
    assert {part.region_epoch.version for part in parts} == {region.version + 2}
    again = await store.SplitRegion(request)
    assert [one.id for one in again.region_error.epoch_not_match.current_regions] == [region.id, parts[1].id]
    stray = kvrpcpb.SplitRegionRequest(
        context=wire.context(wire.region(wire.key("d"))), split_keys=[wire.key("z")]
    )
    assert (await store.SplitRegion(stray)).region_error.HasField("key_not_in_region")


async def test_two_splits_at_once_leave_no_gap(wire: Wire) -> None:
    region = wire.region(wire.key("a"))
    requests = [
        kvrpcpb.SplitRegionRequest(context=wire.context(region), split_keys=[wire.key(name)])
        for name in ("c", "m", "c")
    ]
    answers = await asyncio.gather(*(wire.store(region.leader_store).SplitRegion(one) for one in requests))
    assert sum(1 for answer in answers if answer.regions) >= 1
    edge = b""
    for one in wire.cluster.regions:
        assert one.start == edge
        edge = one.end
    assert edge == b""


async def test_raw_keys_are_put_read_scanned_and_deleted(wire: Wire) -> None:
    region = wire.cluster.regions.by_key(wire.prefix)
    store, context = wire.store(region.leader_store), wire.context(region)
    pairs = [kvrpcpb.KvPair(key=wire.key(f"{i}"), value=b"%d" % i) for i in range(5)]
    await store.RawPut(kvrpcpb.RawPutRequest(context=context, key=wire.key("x"), value=b"x"))
    await store.RawBatchPut(kvrpcpb.RawBatchPutRequest(context=context, pairs=pairs))
    assert (await store.RawGet(kvrpcpb.RawGetRequest(context=context, key=wire.key("3")))).value == b"3"
    assert (await store.RawGet(kvrpcpb.RawGetRequest(context=context, key=wire.key("none")))).not_found

    async def scan(start: str, end: str, limit: int, **more: bool) -> list[bytes]:
        request = kvrpcpb.RawScanRequest(
            context=context, start_key=wire.key(start), end_key=wire.key(end), limit=limit, **more
        )
        return [pair.value for pair in (await store.RawScan(request)).kvs]

    assert await scan("1", "9", 3) == [b"1", b"2", b"3"]
    assert await scan("3", "0", 10, reverse=True) == [b"2", b"1", b"0"]
    assert await scan("0", "9", 2, key_only=True) == [b"", b""]
    got = await store.RawBatchGet(
        kvrpcpb.RawBatchGetRequest(context=context, keys=[wire.key("0"), wire.key("none"), wire.key("4")])
    )
    assert [pair.value for pair in got.pairs] == [b"0", b"4"]
    await store.RawDelete(kvrpcpb.RawDeleteRequest(context=context, key=wire.key("0")))
    await store.RawBatchDelete(kvrpcpb.RawBatchDeleteRequest(context=context, keys=[wire.key("1")]))
    gone = kvrpcpb.RawDeleteRangeRequest(context=context, start_key=wire.key("2"), end_key=wire.key("4"))
    await store.RawDeleteRange(gone)
    assert await scan("0", "z", 10) == [b"4", b"x"]
    for refused in (
        kvrpcpb.RawPutRequest(context=context, key=wire.key("t"), value=b"", ttl=5),
        kvrpcpb.RawPutRequest(context=context, key=wire.key("t"), value=b"", cf="lock"),
    ):
        assert (await store.RawPut(refused)).error


async def test_raw_swaps_of_one_key_happen_one_after_the_other(wire: Wire) -> None:
    region = wire.cluster.regions.by_key(wire.prefix)
    store, context, key = wire.store(region.leader_store), wire.context(region), wire.key("n")
    first = kvrpcpb.RawCASRequest(context=context, key=key, value=b"0", previous_not_exist=True)
    assert (await store.RawCompareAndSwap(first)).succeed
    again = await store.RawCompareAndSwap(first)
    assert (again.succeed, again.previous_value) == (False, b"0")

    async def increment() -> None:
        while True:
            old = (await store.RawGet(kvrpcpb.RawGetRequest(context=context, key=key))).value
            swap = kvrpcpb.RawCASRequest(
                context=context, key=key, previous_value=old, value=b"%d" % (int(old) + 1)
            )
            if (await store.RawCompareAndSwap(swap)).succeed:
                return

    await asyncio.gather(*(increment() for _ in range(20)))
    assert (await store.RawGet(kvrpcpb.RawGetRequest(context=context, key=key))).value == b"20"


async def test_the_safe_timestamp_waits_for_locks(wire: Wire) -> None:
    store_id = next(iter(wire.cluster.store_addrs))
    store, start_ts = wire.store(store_id), await wire.ts()
    await wire.call("KvPrewrite", wire.prewrite(start_ts, {wire.key("a"): b"1"}), wire.key("a"))
    assert (await store.GetStoreSafeTS(kvrpcpb.StoreSafeTSRequest())).safe_ts < start_ts
    undo = kvrpcpb.BatchRollbackRequest(start_version=start_ts, keys=[wire.key("a")])
    await wire.call("KvBatchRollback", undo, wire.key("a"))
    async with asyncio.timeout(10):
        while (await store.GetStoreSafeTS(kvrpcpb.StoreSafeTSRequest())).safe_ts < start_ts:
            await asyncio.to_thread(int)


async def test_a_store_tells_its_health_and_takes_hints(wire: Wire) -> None:
    store_id = next(iter(wire.cluster.store_addrs))
    store = wire.store(store_id)
    first = (await store.GetHealthFeedback(kvrpcpb.GetHealthFeedbackRequest())).health_feedback
    second = (await store.GetHealthFeedback(kvrpcpb.GetHealthFeedbackRequest())).health_feedback
    assert (first.store_id, first.slow_score) == (store_id, 1)
    assert second.feedback_seq_no > first.feedback_seq_no
    await store.BroadcastTxnStatus(kvrpcpb.BroadcastTxnStatusRequest())
    waits = await store.GetLockWaitInfo(kvrpcpb.GetLockWaitInfoRequest())
    assert not waits.entries


async def test_a_request_of_another_cluster_is_refused(wire: Wire) -> None:
    request = kvrpcpb.GetRequest(key=wire.key("a"), context=kvrpcpb.Context(cluster_id=1))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await wire.call("KvGet", request, wire.key("a"))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_caller_whose_deadline_passes_leaves_nothing_behind(wire: Wire) -> None:
    key, holder = wire.key("held"), await wire.ts()
    lock = kvrpcpb.PessimisticLockRequest(
        mutations=[kvrpcpb.Mutation(op=kvrpcpb.PessimisticLock, key=key)],
        primary_lock=key,
        start_version=holder,
        for_update_ts=holder,
        lock_ttl=3000,
    )
    await wire.call("KvPessimisticLock", lock, key)
    region, waiter = wire.region(key), await wire.ts()
    lock.start_version = lock.for_update_ts = waiter
    lock.wait_timeout = 1000
    lock.context.CopyFrom(wire.context(region))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await wire.store(region.leader_store).KvPessimisticLock(lock, timeout=0.1)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    undo = kvrpcpb.PessimisticRollbackRequest(start_version=holder, for_update_ts=holder, keys=[key])
    await wire.call("KVPessimisticRollback", undo, key)
    await wire.put(key, b"free")


async def test_a_message_of_many_megabytes_passes(wire: Wire) -> None:
    rows = {wire.key(f"{i:02d}"): bytes([i]) * (8 << 20) for i in range(9)}
    start_ts = await wire.ts()
    first = wire.key("00")
    assert not (await wire.call("KvPrewrite", wire.prewrite(start_ts, rows), first)).errors
    commit = kvrpcpb.CommitRequest(start_version=start_ts, keys=list(rows), commit_version=await wire.ts())
    await wire.call("KvCommit", commit, first)
    scan = kvrpcpb.ScanRequest(start_key=first, end_key=wire.key("99"), limit=20, version=await wire.ts())
    pairs = (await wire.call("KvScan", scan, first)).pairs
    assert {pair.key: pair.value for pair in pairs} == rows
