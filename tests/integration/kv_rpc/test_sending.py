"""The sender, the region cache and the batch client against scripted servers."""

import asyncio


async def test_a_get_reaches_the_leader_of_its_region_in_a_batch(cluster):
    client = await cluster.connect()
    answer = await client.get(b"apple")
    assert answer.value == b"value of apple"
    method, request, how = cluster.stores[1].seen[0]
    assert (method, how) == ("KvGet", "batch")
    assert request.context.region_id == 1
    assert request.context.peer.store_id == 1
    assert request.context.cluster_id == 7001


async def test_many_callers_share_batches(cluster):
    client = await cluster.connect()
    await asyncio.gather(*(client.get(b"k%d" % i) for i in range(64)))
    store = cluster.stores[1]
    assert sum(store.batches) == 64
    assert len(store.batches) <= 4
