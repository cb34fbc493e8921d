"""Whether stores can be reached, and what happens while they cannot."""

import asyncio

import pytest
from grpc_health.v1 import health_pb2

from penstock.clock import SYSTEM
from penstock.kv import stores
from penstock.kv.backoff import Backoffer
from penstock.kv.stores import Liveness, Prober

Status = health_pb2.HealthCheckResponse


async def probing(cluster, **settings):
    client = await cluster.connect(**settings)
    store = client.cache.stores.get(1)
    await client.cache.stores.resolve(Backoffer(1000), store)
    return client, store, Prober(client.cache.stores, client.rpc, timeout_s=0.2, clock=SYSTEM)


@pytest.mark.parametrize(
    ("status", "liveness"),
    [
        (Status.SERVING, Liveness.REACHABLE),
        (Status.NOT_SERVING, Liveness.UNREACHABLE),
        (Status.UNKNOWN, Liveness.UNKNOWN),
        (Status.SERVICE_UNKNOWN, Liveness.UNKNOWN),
    ],
    ids=["serving", "not-serving", "unknown", "service-unknown"],
)
async def test_the_health_service_decides(cluster, status, liveness):
    _, store, prober = await probing(cluster)
    cluster.stores[1].health.status = status
    assert await prober.check(store) is liveness
    await prober.close()


async def test_a_store_that_is_down_is_unreachable_and_its_regions_are_in_doubt(cluster):
    _, store, prober = await probing(cluster)
    await cluster.stores[1].stop()
    epoch = store.epoch
    assert await asyncio.gather(*(prober.check(store) for _ in range(5))) == [Liveness.UNREACHABLE] * 5
    assert store.epoch == epoch + 1
    await prober.close()


async def test_a_store_that_came_back_at_another_address_is_found_there(cluster, fakes, monkeypatch):
    monkeypatch.setattr(stores, "_PROBE_S", 0.02)
    monkeypatch.setattr(stores, "_RESOLVE_AGAIN_S", 0.05)
    client, store, prober = await probing(cluster)
    await client.get(b"a")
    before = store.addr
    await cluster.stores[1].stop()
    assert await prober.check(store) is Liveness.UNREACHABLE
    cluster.stores[1].port = 0
    await cluster.stores[1].start()
    cluster.pd.stores[1].address = cluster.stores[1].addr
    await fakes.until(lambda: store.liveness is Liveness.REACHABLE)
    assert store.addr == cluster.stores[1].addr != before
    assert before not in client.rpc._pools
    assert (await client.get(b"a")).value == b"value of a"
    await prober.close()


async def test_a_store_that_is_gone_is_no_longer_asked(cluster, fakes, monkeypatch):
    monkeypatch.setattr(stores, "_PROBE_S", 0.02)
    monkeypatch.setattr(stores, "_RESOLVE_AGAIN_S", 0.05)
    _, store, prober = await probing(cluster)
    await cluster.stores[1].stop()
    assert await prober.check(store) is Liveness.UNREACHABLE
    del cluster.pd.stores[1]
    await fakes.until(lambda: store.gone)
    await fakes.until(lambda: not prober._loops)
    await prober.close()
