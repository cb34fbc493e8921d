"""The sender and the region cache: every region error and every lost connection, over real gRPC."""

import asyncio

import grpc
import pytest

from penstock import metrics
from penstock.errors import Invalid, Unavailable
from penstock.kv.backoff import Backoffer
from penstock.kv.region_table import RegionVerId
from penstock.kv.sender import RegionStale, UndeterminedAnswer
from penstock.proto import errorpb_pb2 as errorpb
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto import metapb_pb2 as metapb


def value(metric, *labels):
    return metric.labels(*labels)._value.get()


async def test_a_get_reaches_the_leader_of_its_region_in_a_batch(cluster):
    client = await cluster.connect()
    answer = await client.get(b"apple")
    assert answer.value == b"value of apple"
    method, request, how = cluster.stores[1].seen[0]
    assert (method, how) == ("KvGet", "batch")
    assert request.context.region_id == 1
    assert request.context.peer.store_id == 1
    assert request.context.cluster_id == 7001
    assert not request.context.is_retry_request


async def test_the_callers_part_of_the_context_is_kept(cluster):
    client = await cluster.connect()
    bo = Backoffer(1000)
    location = await client.cache.locate(bo, b"zebra")
    request = kvrpcpb.GetRequest(key=b"zebra", version=1)
    request.context.resolved_locks.append(42)
    request.context.priority = kvrpcpb.High
    await client.sender.send(bo, "KvGet", request, location.region)
    context = cluster.stores[1].seen[0][1].context
    assert list(context.resolved_locks) == [42]
    assert context.priority == kvrpcpb.High
    assert context.region_id == 2


async def test_a_named_leader_is_followed_at_once(cluster):
    client = await cluster.connect()
    elsewhere = errorpb.NotLeader(region_id=1, leader=metapb.Peer(id=12, store_id=2))
    cluster.stores[1].script["KvGet"].append(errorpb.Error(not_leader=elsewhere))
    before = value(metrics.KV_REGION_ERR_TOTAL, "not_leader")
    bo = Backoffer(0)  # any sleep would fail
    location = await client.cache.locate(bo, b"a")
    await client.sender.send(bo, "KvGet", kvrpcpb.GetRequest(key=b"a"), location.region)
    assert value(metrics.KV_REGION_ERR_TOTAL, "not_leader") == before + 1
    assert [len(cluster.stores[i].seen) for i in (1, 2)] == [1, 1]
    repeated = cluster.stores[2].seen[0][1].context
    assert repeated.is_retry_request
    assert repeated.peer == metapb.Peer(id=12, store_id=2)
    await client.get(b"b")  # the leader is remembered
    assert len(cluster.stores[2].seen) == 2


async def test_without_a_leader_the_other_peers_are_asked(cluster):
    client = await cluster.connect()
    cluster.stores[1].script["KvGet"].append(errorpb.Error(not_leader=errorpb.NotLeader(region_id=1)))
    assert (await client.get(b"a")).value == b"value of a"
    assert [len(cluster.stores[i].seen) for i in (1, 2)] == [1, 1]


async def test_a_leader_nobody_has_heard_of_makes_the_region_load_again(cluster):
    client = await cluster.connect()
    unknown = errorpb.NotLeader(region_id=1, leader=metapb.Peer(id=99, store_id=3))
    cluster.stores[1].script["KvGet"].append(errorpb.Error(not_leader=unknown))
    await client.get(b"a")
    assert cluster.pd.calls.count("GetRegion") == 2


async def test_two_peers_that_name_each_other_do_not_spin_for_ever(cluster):
    client = await cluster.connect()
    for store, other in ((1, 2), (2, 1)):
        error = errorpb.NotLeader(region_id=1, leader=metapb.Peer(id=10 + other, store_id=other))
        cluster.stores[store].script["KvGet"].extend([errorpb.Error(not_leader=error)] * 10)
    await client.get(b"a")
    assert cluster.pd.calls.count("GetRegion") == 2


@pytest.mark.parametrize(
    "error",
    [
        errorpb.Error(region_not_found=errorpb.RegionNotFound(region_id=1)),
        errorpb.Error(key_not_in_region=errorpb.KeyNotInRegion(region_id=1)),
        errorpb.Error(mismatch_peer_id=errorpb.MismatchPeerId(request_peer_id=11)),
        errorpb.Error(epoch_not_match=errorpb.EpochNotMatch()),
        errorpb.Error(recovery_in_progress=errorpb.RecoveryInProgress(region_id=1)),
        errorpb.Error(undetermined_result=errorpb.UndeterminedResult(message="?")),
        errorpb.Error(message="something new"),
    ],
    ids=lambda error: error.ListFields()[-1][0].name,
)
async def test_an_error_that_puts_the_region_in_doubt_loads_it_again(cluster, error):
    client = await cluster.connect()
    bo = Backoffer(10_000)
    location = await client.cache.locate(bo, b"a")
    cluster.stores[1].script["KvGet"].append(error)
    reported = []
    with pytest.raises(RegionStale):
        await client.sender.send(
            bo, "KvGet", kvrpcpb.GetRequest(key=b"a"), location.region, on_rpc_error=reported.append
        )
    assert bo.total_ms >= 2
    assert await client.cache.target(bo, location.region) is None
    undetermined = error.HasField("undetermined_result")
    assert [type(one) for one in reported] == ([UndeterminedAnswer] if undetermined else [])


async def test_a_witness_is_left_after_a_pause(cluster):
    client = await cluster.connect()
    cluster.stores[1].script["KvGet"].append(errorpb.Error(is_witness=errorpb.IsWitness(region_id=1)))
    await client.get(b"a")
    assert cluster.pd.calls.count("GetRegion") == 2


@pytest.mark.parametrize(
    "error",
    [
        errorpb.Error(stale_command=errorpb.StaleCommand()),
        errorpb.Error(max_timestamp_not_synced=errorpb.MaxTimestampNotSynced()),
        errorpb.Error(read_index_not_ready=errorpb.ReadIndexNotReady(region_id=1)),
        errorpb.Error(proposal_in_merging_mode=errorpb.ProposalInMergingMode(region_id=1)),
        errorpb.Error(data_is_not_ready=errorpb.DataIsNotReady(region_id=1)),
        errorpb.Error(region_not_initialized=errorpb.RegionNotInitialized(region_id=1)),
        errorpb.Error(disk_full=errorpb.DiskFull(reason="full")),
        errorpb.Error(bucket_version_not_match=errorpb.BucketVersionNotMatch(version=3)),
        errorpb.Error(server_is_busy=errorpb.ServerIsBusy(reason="busy", backoff_ms=20)),
    ],
    ids=lambda error: error.ListFields()[-1][0].name,
)
async def test_an_error_that_passes_is_waited_for_at_the_same_peer(cluster, error):
    client = await cluster.connect()
    bo = Backoffer(10_000)
    location = await client.cache.locate(bo, b"a")
    cluster.stores[1].script["KvGet"].append(error)
    answer = await client.sender.send(bo, "KvGet", kvrpcpb.GetRequest(key=b"a"), location.region)
    assert answer.value == b"value of a"
    assert bo.total_ms >= 2
    assert len(cluster.stores[1].seen) == 2
    if error.HasField("server_is_busy"):
        assert bo.total_ms == 20  # as long as the store asked for


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (
            errorpb.Error(raft_entry_too_large=errorpb.RaftEntryTooLarge(region_id=1, entry_size=9_000_000)),
            Invalid,
        ),
        (errorpb.Error(flashback_in_progress=errorpb.FlashbackInProgress(region_id=1)), Unavailable),
        (errorpb.Error(flashback_not_prepared=errorpb.FlashbackNotPrepared(region_id=1)), Invalid),
    ],
    ids=["too-large", "flashback", "not-prepared"],
)
async def test_an_error_that_nothing_mends_reaches_the_caller(cluster, error, kind):
    client = await cluster.connect()
    cluster.stores[1].script["KvGet"].append(error)
    with pytest.raises(kind, match="region 1"):
        await client.get(b"a")


async def test_regions_told_by_the_store_are_taken_over_without_a_pause(cluster):
    client = await cluster.connect()
    bo = Backoffer(0)  # any sleep would fail
    location = await client.cache.locate(bo, b"a")
    cluster.cut(b"f", b"m", version=2)
    told = errorpb.EpochNotMatch(current_regions=cluster.pd.regions[:2])
    cluster.stores[1].script["KvGet"].append(errorpb.Error(epoch_not_match=told))
    with pytest.raises(RegionStale):
        await client.sender.send(bo, "KvGet", kvrpcpb.GetRequest(key=b"a"), location.region)
    left, right = await client.cache.locate(bo, b"a"), await client.cache.locate(bo, b"g")
    assert (left.start, left.end, left.region) == (b"", b"f", RegionVerId(1, 1, 2))
    assert (right.start, right.end, right.region) == (b"f", b"m", RegionVerId(2, 1, 2))
    assert cluster.pd.calls.count("GetRegion") == 1


async def test_a_store_that_lags_behind_the_cache_is_waited_for(cluster):
    cluster.cut(b"m", version=5)
    client = await cluster.connect()
    old = metapb.Region(id=1, region_epoch=metapb.RegionEpoch(conf_ver=1, version=4))
    told = errorpb.EpochNotMatch(current_regions=[old])
    cluster.stores[1].script["KvGet"].append(errorpb.Error(epoch_not_match=told))
    await client.get(b"a")
    assert len(cluster.stores[1].seen) == 2
    assert cluster.pd.calls.count("GetRegion") == 1


async def test_an_address_of_another_store_is_asked_for_again(cluster):
    client = await cluster.connect()
    await client.get(b"a")
    cluster.pd.stores[1].address = cluster.stores[3].addr
    wrong = errorpb.StoreNotMatch(request_store_id=1, actual_store_id=2)
    cluster.stores[1].script["KvGet"].append(errorpb.Error(store_not_match=wrong))
    await client.get(b"b")
    assert cluster.pd.calls.count("GetStore") == 2
    assert len(cluster.stores[3].seen) == 1


async def test_a_store_that_is_gone_makes_the_region_load_again(cluster):
    client = await cluster.connect()
    gone = cluster.pd.stores.pop(1)
    bo = Backoffer(10_000)
    location = await client.cache.locate(bo, b"a")
    assert await client.cache.target(bo, location.region) is None
    cluster.pd.stores[1] = gone
    gone.state = metapb.Tombstone
    cluster.pd.leaders[1] = 2
    assert (await client.get(b"a")).value == b"value of a"


async def test_a_request_lost_on_a_living_store_is_sent_again(cluster, fakes):
    client = await cluster.connect()
    cluster.stores[1].script["KvGet"].append(fakes.RESET)
    reported = []
    before = value(metrics.KV_RPC_ERR_TOTAL, "UNAVAILABLE", 1)
    answer = await client.get(b"a", on_rpc_error=reported.append)
    assert answer.value == b"value of a"
    assert len(reported) == 1
    assert value(metrics.KV_RPC_ERR_TOTAL, "UNAVAILABLE", 1) == before + 1
    assert len(cluster.stores[1].seen) == 2


async def test_a_request_without_an_answer_times_out_and_is_sent_again(cluster, fakes):
    client = await cluster.connect()
    cluster.stores[1].script["KvGet"].append(fakes.DROP)
    reported = []
    answer = await client.get(b"a", timeout_s=0.1, on_rpc_error=reported.append)
    assert answer.value == b"value of a"
    assert [error.code for error in reported] == [grpc.StatusCode.DEADLINE_EXCEEDED]


async def test_when_a_store_is_down_another_peer_serves_and_the_store_is_welcomed_back(cluster, fakes):
    client = await cluster.connect(store_liveness_timeout_ms=200)
    await client.get(b"a")
    await cluster.stores[1].stop()
    assert (await client.get(b"a")).value == b"value of a"
    assert value(metrics.KV_STORE_LIVENESS_STATE, 1) == 1
    assert sum(len(cluster.stores[i].seen) for i in (2, 3)) == 1
    # The placement driver still names the dead leader: requests avoid it without a new failure.
    failures = value(metrics.KV_RPC_ERR_TOTAL, "UNAVAILABLE", 1)
    assert (await client.get(b"zebra")).value == b"value of zebra"
    assert value(metrics.KV_RPC_ERR_TOTAL, "UNAVAILABLE", 1) == failures
    await cluster.stores[1].start()
    await fakes.until(lambda: value(metrics.KV_STORE_LIVENESS_STATE, 1) == 0, 15)


async def test_when_every_store_is_down_the_budget_ends_with_unavailable(cluster):
    client = await cluster.connect(store_liveness_timeout_ms=50)
    for store in cluster.stores.values():
        await store.stop()
    with pytest.raises(Unavailable, match="TiKV server timeout in get"):
        await client.get(b"a", budget_ms=300)


async def test_a_method_the_store_does_not_know_is_not_repeated(cluster):
    client = await cluster.connect()
    bo = Backoffer(10_000)
    location = await client.cache.locate(bo, b"a")
    cluster.stores[1].script["MvccGetByKey"].append(grpc.StatusCode.UNIMPLEMENTED)
    with pytest.raises(Invalid, match="does not serve MvccGetByKey"):
        await client.sender.send(bo, "MvccGetByKey", kvrpcpb.MvccGetByKeyRequest(key=b"a"), location.region)


async def test_a_store_of_another_cluster_is_refused(cluster):
    client = await cluster.connect()
    foreign = errorpb.Error(message="mismatch cluster id, need 1 but got 2")
    cluster.stores[1].script["KvGet"].append(foreign)
    with pytest.raises(Invalid, match="another cluster"):
        await client.get(b"a")


async def test_callers_of_one_key_share_one_lookup(cluster):
    client = await cluster.connect()
    bo = Backoffer(1000)
    found = await asyncio.gather(*(client.cache.locate(bo, b"a") for _ in range(50)))
    assert len(set(found)) == 1
    assert cluster.pd.calls.count("GetRegion") == 1


async def test_a_cancelled_caller_does_not_take_the_shared_lookup_down(cluster):
    client = await cluster.connect()
    first = asyncio.create_task(client.cache.locate(Backoffer(1000), b"a"))
    second = asyncio.create_task(client.cache.locate(Backoffer(1000), b"a"))
    await asyncio.wait([first], timeout=0)
    first.cancel()
    assert (await second).contains(b"a")


async def test_reverse_lookups_find_the_region_below_a_key(cluster):
    cluster.cut(b"g", b"m")
    client = await cluster.connect()
    bo = Backoffer(1000)
    for _ in range(2):  # asked, then from the cache
        assert (await client.cache.locate_before(bo, b"g")).end == b"g"
        assert (await client.cache.locate_before(bo, b"ga")).start == b"g"
        assert (await client.cache.locate_before(bo, b"")).start == b"m"
    assert (await client.pd.get_region_by_id(2)).meta.start_key == b"g"


async def test_keys_are_grouped_by_region(cluster):
    client = await cluster.connect()
    keys = [b"a", b"l", b"m", b"z"]
    groups = await client.cache.group_keys(Backoffer(1000), keys)
    assert [(location.region.id, keys[part]) for location, part in groups] == [
        (1, [b"a", b"l"]),
        (2, [b"m", b"z"]),
    ]
