"""The placement driver's client: leader discovery, retries, lookups, timestamps."""

import asyncio

import grpc
import pytest

from penstock import eventloop
from penstock.clock import SYSTEM
from penstock.errors import Corrupt, Invalid, Unavailable
from penstock.kv import tso
from penstock.kv.backoff import Backoffer
from penstock.kv.pd import PdClient
from penstock.proto import metapb_pb2 as metapb
from penstock.proto import pdpb_pb2 as pdpb
from penstock.settings import KvSettings


@pytest.fixture
def other_pd(fakes, cluster):
    """A second member of the same placement driver."""
    made = fakes.Pd()
    eventloop.run(made.start())
    made.regions, made.leaders, made.stores = cluster.pd.regions, cluster.pd.leaders, cluster.pd.stores
    yield made
    eventloop.run(made.stop())


@pytest.fixture
def connect():
    """Connect a PdClient that is closed when the test ends."""
    made = []

    async def connecting(*addrs, **settings):
        client = await PdClient.connect(addrs, settings=KvSettings(**settings))
        made.append(client)
        for _ in range(2):  # the client's own first timestamp comes between these
            await client.timestamp()
        return client

    yield connecting
    for client in made:
        eventloop.run(client.close())


async def test_connecting_learns_the_cluster_and_survives_dead_addresses(cluster, connect):
    client = await connect("127.0.0.1:1", f"http://{cluster.pd.addr}")
    assert client.cluster_id == 7001


async def test_no_address_that_answers_is_one_clear_line():
    with pytest.raises(Unavailable, match="no placement driver answers") as raised:
        await PdClient.connect(["127.0.0.1:1", "127.0.0.1:2"])
    assert "127.0.0.1:1: " in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "check pd_addrs" in str(raised.value)


async def test_no_address_at_all_is_refused():
    with pytest.raises(Invalid, match="pd_addrs is empty"):
        await PdClient.connect([])


async def test_a_follower_leads_to_the_leader(cluster, other_pd, connect):
    other_pd.leader_addr = cluster.pd.addr
    client = await connect(other_pd.addr)
    await client.get_region(b"a")
    assert cluster.pd.calls.count("GetRegion") == 1
    assert other_pd.calls == ["GetMembers"]


async def test_a_new_leader_is_followed_at_once(cluster, other_pd, connect):
    client = await connect(cluster.pd.addr)
    cluster.pd.script["GetRegion"].append((grpc.StatusCode.UNAVAILABLE, "not leader"))
    cluster.pd.leader_addr = other_pd.addr
    found = await client.get_region(b"a", bo=Backoffer(0))  # any sleep would fail
    assert found.meta.id == 1
    assert other_pd.calls.count("GetRegion") == 1


async def test_members_learned_from_the_leader_are_tried_when_it_dies(cluster, other_pd, connect):
    cluster.pd.leader_addr = other_pd.addr  # the leader is known by its word only
    client = await connect(cluster.pd.addr)
    await client.get_region(b"a")
    await other_pd.stop()
    cluster.pd.leader_addr = ""
    cluster.pd.physical = other_pd.physical + 10
    assert (await client.get_region(b"a")).meta.id == 1
    assert isinstance(await client.timestamp(), int)


async def test_a_failed_call_is_repeated_after_a_pause(cluster, connect):
    client = await connect(cluster.pd.addr)
    cluster.pd.script["GetRegion"].append(grpc.StatusCode.UNAVAILABLE)
    bo = Backoffer(15_000)
    assert (await client.get_region(b"z", bo=bo)).meta.id == 2
    assert 250 <= bo.total_ms <= 500


async def test_an_error_in_the_header_is_repeated_too(cluster, connect):
    client = await connect(cluster.pd.addr)
    cluster.pd.script["GetGCSafePoint"].append(pdpb.Error(type=pdpb.NOT_BOOTSTRAPPED, message="not yet"))
    assert await client.get_gc_safe_point() == 0
    cluster.pd.script["GetGCSafePoint"].append(pdpb.Error(type=pdpb.NOT_BOOTSTRAPPED, message="not yet"))
    with pytest.raises(Unavailable, match="not yet"):
        await client.get_gc_safe_point(bo=Backoffer(0))


async def test_another_clusters_placement_driver_is_never_retried(cluster, connect):
    client = await connect(cluster.pd.addr)
    cluster.pd.script["GetRegion"].append(
        (grpc.StatusCode.FAILED_PRECONDITION, "mismatch cluster id, need 1 but got 7001")
    )
    with pytest.raises(Invalid, match="another cluster"):
        await client.get_region(b"a")
    cluster.pd.script["GetRegion"].append(grpc.StatusCode.UNAVAILABLE)
    cluster.pd.cluster_id = 5
    with pytest.raises(Invalid, match="now serves cluster 5, not 7001"):
        await client.get_region(b"a")


async def test_a_call_the_placement_driver_does_not_serve_is_not_repeated(cluster, connect):
    client = await connect(cluster.pd.addr)
    cluster.pd.script["GetOperator"].append(grpc.StatusCode.UNIMPLEMENTED)
    with pytest.raises(Invalid, match="does not serve GetOperator"):
        await client.get_operator(1)


async def test_regions_are_looked_up_by_raw_keys(cluster, connect):
    cluster.cut(b"g", b"m")
    client = await connect(cluster.pd.addr)
    middle = await client.get_region(b"hello")
    assert (middle.meta.start_key, middle.meta.end_key, middle.leader.store_id) == (b"g", b"m", 1)
    assert (await client.get_previous_region(b"hello")).meta.end_key == b"g"
    assert (await client.get_region_by_id(3)).meta.start_key == b"m"
    assert (await client.get_last_region()).meta.id == 3
    assert [r.meta.id for r in await client.scan_regions(b"h", b"", 10)] == [2, 3]
    assert [r.meta.id for r in await client.scan_regions(b"", b"g", 10)] == [1]
    assert [r.meta.id for r in await client.scan_regions(b"", b"", 2)] == [1, 2]
    assert all(request.header.cluster_id == 7001 for request in cluster.pd.requests[1:])


async def test_a_region_that_is_not_there_yet_is_waited_for(cluster, connect):
    client = await connect(cluster.pd.addr)
    regions, cluster.pd.regions = cluster.pd.regions, []
    waiting = asyncio.create_task(client.get_region(b"a"))
    await asyncio.wait([waiting], timeout=0.1)
    cluster.pd.regions = regions
    assert (await waiting).meta.id == 1


async def test_stores_and_safe_points(cluster, connect):
    client = await connect(cluster.pd.addr)
    assert (await client.get_store(2)).address == cluster.stores[2].addr
    assert await client.get_store(99) is None
    cluster.pd.stores[3].state = metapb.Tombstone
    assert await client.get_store(3) is None
    assert len(await client.get_all_stores()) == 3
    assert await client.update_gc_safe_point(50) == 50
    assert await client.update_gc_safe_point(40) == 50
    assert await client.get_gc_safe_point() == 50
    assert await client.update_service_gc_safe_point("capture", 60, 70) == 100
    await client.scatter_region(1)
    operator = await client.get_operator(1)
    assert (operator.desc, operator.status) == (b"scatter-region", pdpb.SUCCESS)
    cluster.pd.script["GetOperator"].append(pdpb.Error(type=pdpb.REGION_NOT_FOUND, message="Not Found"))
    assert await client.get_operator(1) is None


async def test_timestamps_asked_together_come_from_one_request_in_order(cluster, connect, fakes):
    client = await connect(cluster.pd.addr)
    cluster.pd.tso_counts.clear()
    asked = [client.timestamp() for _ in range(100)]
    taken = await asyncio.gather(*asked)
    assert taken == list(range(taken[0], taken[0] + 100))
    assert cluster.pd.tso_counts == [100]


async def test_callers_gather_while_a_request_is_under_way(cluster, connect, fakes):
    client = await connect(cluster.pd.addr)
    cluster.pd.tso_counts.clear()
    cluster.pd.tso_gate = asyncio.Event()
    first = client.timestamp()
    await fakes.until(lambda: cluster.pd.tso_counts == [1])
    rest = []
    for _ in range(50):
        rest.append(client.timestamp())
        await SYSTEM.sleep(0)
    cluster.pd.tso_gate.set()
    taken = await asyncio.gather(first, *rest)
    assert taken == sorted(set(taken))
    assert cluster.pd.tso_counts == [1, 50]


async def test_a_request_is_never_larger_than_the_limit(cluster, connect):
    client = await connect(cluster.pd.addr, tso_batch_max=10)
    cluster.pd.tso_counts.clear()
    taken = await asyncio.gather(*(client.timestamp() for _ in range(25)))
    assert len(set(taken)) == 25
    assert cluster.pd.tso_counts == [10, 10, 5]


async def test_a_cancelled_caller_is_not_counted(cluster, connect):
    client = await connect(cluster.pd.addr)
    cluster.pd.tso_counts.clear()
    asked = [client.timestamp() for _ in range(3)]
    asked[1].cancel()
    await asyncio.gather(asked[0], asked[2])
    assert cluster.pd.tso_counts == [2]


async def test_a_broken_timestamp_stream_is_made_again_for_the_same_callers(cluster, connect):
    client = await connect(cluster.pd.addr)
    cluster.pd.tso_script.append(grpc.StatusCode.UNAVAILABLE)
    cluster.pd.tso_counts.clear()
    taken = await asyncio.gather(*(client.timestamp() for _ in range(3)))
    assert len(set(taken)) == 3
    assert cluster.pd.tso_counts == [3, 3]


async def test_a_lost_timestamp_request_is_asked_again(cluster, connect, fakes):
    client = await connect(cluster.pd.addr, pd_timeout_ms=100)
    cluster.pd.tso_script.append(fakes.DROP)
    assert await client.timestamp() > 0


async def test_a_response_of_the_wrong_size_is_asked_again(cluster, connect):
    client = await connect(cluster.pd.addr)

    def mangle(response):
        response.count = 7

    cluster.pd.tso_script.append(mangle)
    assert await client.timestamp() > 0


async def test_a_clock_that_goes_back_is_an_error_and_not_a_timestamp(cluster, connect):
    client = await connect(cluster.pd.addr)

    def mangle(response):
        response.timestamp.physical -= 1000

    cluster.pd.tso_script.append(mangle)
    with pytest.raises(Corrupt, match="handed out timestamp"):
        await client.timestamp()
    assert await client.timestamp() > 0


async def test_timestamps_follow_the_leader(cluster, other_pd, connect):
    client = await connect(cluster.pd.addr, other_pd.addr)
    before = await client.timestamp()
    other_pd.physical = cluster.pd.physical + 10
    cluster.pd.leader_addr = other_pd.addr
    await cluster.pd.stop()
    assert await client.timestamp() > before


async def test_a_caller_without_a_timestamp_for_too_long_gets_an_error(cluster, connect, monkeypatch):
    monkeypatch.setattr(tso, "PATIENCE_S", 0.2)
    client = await connect(cluster.pd.addr)
    await cluster.pd.stop()
    with pytest.raises(Unavailable, match="PD server timeout"):
        await client.timestamp()


async def test_the_low_resolution_timestamp_follows_without_being_asked_for(
    cluster, connect, fakes, monkeypatch
):
    monkeypatch.setattr("penstock.kv.pd._LOW_RESOLUTION_S", 0.01)
    client = await connect(cluster.pd.addr)
    await fakes.until(lambda: client.low_resolution_ts() > 0)
    seen = client.low_resolution_ts()
    await fakes.until(lambda: client.low_resolution_ts() > seen)
    mine = await client.timestamp()
    assert client.low_resolution_ts() >= mine


async def test_closing_answers_those_who_wait(cluster, fakes):
    client = await PdClient.connect([cluster.pd.addr])
    await client.timestamp()
    cluster.pd.tso_gate = asyncio.Event()
    cluster.pd.tso_counts.clear()
    waiting = client.timestamp()
    await fakes.until(lambda: cluster.pd.tso_counts == [1])
    await client.close()
    with pytest.raises(Unavailable, match="closed"):
        await waiting
    with pytest.raises(Unavailable, match="closed"):
        await client.timestamp()
    cluster.pd.tso_gate.set()
