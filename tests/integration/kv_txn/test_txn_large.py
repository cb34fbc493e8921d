"""Large transactions: many regions and batches, splits in the middle, pre-split."""

import asyncio
from typing import Any

import pytest

from penstock import metrics

PROTOCOLS = ["2pc", "1pc"]


@pytest.mark.parametrize("pessimistic", [False, True])
async def test_a_transaction_over_many_regions_survives_splits_and_moved_leaders(
    world: Any, pessimistic: bool
) -> None:
    names = [f"{n:05d}" for n in range(3_000)]
    await world.split("00500", "01000", "02000")
    async with world.client(txn_batch_bytes=2_048) as client:
        txn = client.begin(pessimistic=pessimistic)
        if pessimistic:
            await txn.lock_keys([world.key(name) for name in names])
        for name in names:
            await txn.put(world.key(name), b"v" * 50)

        async def disturb() -> None:
            for number in range(8):
                await world.split(f"{number * 370 + 111:05d}")
                regions = await client.regions()
                region = regions[number % len(regions)]
                await world.cluster.regions.transfer_leader(region.id, 1 + number % 3)

        commit_ts, _ = await asyncio.gather(txn.commit(), disturb())
        assert txn.commit_details.protocol == "2pc"
        rows = [row async for row in client.snapshot(commit_ts).iter(world.prefix, world.prefix + b"\xff")]
        assert rows == [(world.key(name), b"v" * 50) for name in names]
        await world.wait_until_unlocked(client)


async def test_a_region_that_one_transaction_would_fill_is_split_first(world: Any) -> None:
    settings = {"presplit_keys_min": 500, "presplit_bytes": 32 * 1024, "txn_batch_bytes": 4_096}
    async with world.client(**settings) as client:
        before = len(await client.regions())
        async with client.begin() as txn:
            for number in range(1_500):
                await txn.put(world.key(f"{number:05d}"), b"v" * 80)
        assert len(await client.regions()) >= before + 4
        assert txn.commit_details.prewrite_regions >= 5
        rows = client.snapshot(txn.commit_ts).iter(world.prefix, world.prefix + b"\xff", key_only=True)
        assert len([key async for key, _ in rows]) == 1_500


async def test_batches_wait_for_their_tokens(world: Any) -> None:
    waited = metrics.KV_BATCH_EXECUTOR_TOKEN_WAIT_DURATION._sum
    before = waited.get()
    async with world.client(txn_batch_bytes=64, committer_concurrency=2) as client:
        async with client.begin(one_pc=False) as txn:  # one phase takes one request
            for number in range(40):
                await txn.put(world.key(f"{number:03d}"), b"v" * 40)
        assert await world.read(client, "000", "039") == [b"v" * 40] * 2
    assert waited.get() > before


async def test_a_large_transaction_keeps_its_primary_alive_while_it_commits(world: Any) -> None:
    async with world.client(ttl_refreshed_txn_bytes=100, lock_ttl_ms=1_000) as client:
        txn = client.begin(**world.options("2pc"))
        await txn.put(world.key("a"), b"v" * 200)
        committer = await world.die_after_prewrite(txn, ttl_ms=1_000)
        heart = (await txn._open()).heart
        heart.start()
        assert heart.beating
        other = client.begin()
        await other.put(world.key("a"), b"other")
        commit = asyncio.ensure_future(other.commit())
        done, _ = await asyncio.wait({commit}, timeout=2.5)
        assert not done
        await committer._commit_in_two_phases()
        heart.stop()
        with pytest.raises(Exception, match="conflict"):
            await commit
