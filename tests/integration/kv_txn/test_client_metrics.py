"""What the client measures of transactions and requests, and what it logs of slow commits."""

import asyncio
import logging
from typing import Any

import pytest

from penstock import metrics
from penstock.errors import WriteConflict
from penstock.proto.storepb_pb2 import Fault


def read(histogram: Any, **labels: str) -> tuple[float, float]:
    """Return the count and the sum of a histogram's observations with these labels."""
    samples = [
        sample
        for family in histogram.collect()
        for sample in family.samples
        if labels.items() <= sample.labels.items()
    ]
    count = sum(sample.value for sample in samples if sample.name.endswith("_count"))
    return count, sum(sample.value for sample in samples if sample.name.endswith("_sum"))


def total(counter: Any, **labels: str) -> float:
    """Return the sum of a counter over everything with these labels."""
    samples = [sample for family in counter.collect() for sample in family.samples]
    return sum(
        sample.value
        for sample in samples
        if sample.name.endswith("_total") and labels.items() <= sample.labels.items()
    )


WRITTEN = (metrics.KV_TXN_WRITE_KV_NUM, metrics.KV_TXN_WRITE_SIZE_BYTES)


async def test_each_command_of_a_transaction_is_measured_once(world: Any) -> None:
    commands = ("get", "batch_get", "lock_keys", "commit", "rollback")

    def counts() -> list[float]:
        return [read(metrics.KV_TXN_CMD_DURATION_SECONDS, type=each)[0] for each in commands]

    async with world.client() as client:
        before = counts()
        async with client.begin(pessimistic=True) as txn:
            await txn.lock_keys([world.key("a"), world.key("b")])
            await txn.put(world.key("a"), b"1")  # asks for its lock again
        snapshot = client.snapshot(await client.timestamp())
        await snapshot.get(world.key("a"))
        await snapshot.batch_get([world.key("a"), world.key("b")])
        given_up = client.begin(pessimistic=True)
        await given_up.lock_keys([world.key("c")])
        await given_up.rollback()
        assert [after - then for after, then in zip(counts(), before, strict=True)] == [1, 1, 3, 1, 1]


async def test_the_duration_of_a_commit_contains_the_delay_of_its_store(world: Any) -> None:
    async with world.client() as client:
        await world.write(client, "warm")
        before = read(metrics.KV_TXN_CMD_DURATION_SECONDS, type="commit")
        world.faults(world.fault(Fault.DELAY, "KvPrewrite", times=1, delay_ms=200))
        await world.write(client, "k", one_pc=False, async_commit=False)
        after = read(metrics.KV_TXN_CMD_DURATION_SECONDS, type="commit")
    assert after[0] - before[0] == 1
    assert after[1] - before[1] >= 0.2


async def test_the_wait_for_a_local_latch_is_measured(world: Any) -> None:
    async with world.client(local_latches=64) as client:
        await world.write(client, "warm")
        world.faults(world.fault(Fault.DELAY, "KvPrewrite", times=1, delay_ms=300))
        first, second = client.begin(one_pc=False), client.begin(one_pc=False)
        for txn in (first, second):
            await txn.start_ts
            await txn.put(world.key("k"), b"1")
        before = read(metrics.KV_LOCAL_LATCH_WAIT_SECONDS)
        outcomes = await asyncio.gather(first.commit(), second.commit(), return_exceptions=True)
        after = read(metrics.KV_LOCAL_LATCH_WAIT_SECONDS)
    assert [type(outcome) for outcome in outcomes] == [int, WriteConflict]
    assert after[0] - before[0] == 2
    assert after[1] - before[1] >= 0.25


async def test_requests_are_measured_by_method_and_store(world: Any) -> None:
    async with world.client() as client:
        await world.write(client, "k")
        before = [read(metrics.KV_REQUEST_SECONDS, type="KvGet", store=store) for store in ("1", "2", "3")]
        world.faults(world.fault(Fault.DELAY, "KvGet", times=1, delay_ms=100))
        assert await world.read(client, "k") == [b"old"]
        after = [read(metrics.KV_REQUEST_SECONDS, type="KvGet", store=store) for store in ("1", "2", "3")]
    taken = [(now[0] - then[0], now[1] - then[1]) for now, then in zip(after, before, strict=True)]
    assert sorted(count for count, _ in taken) == [0, 0, 1]
    assert sum(seconds for _, seconds in taken) >= 0.1


async def test_batches_are_measured_when_they_are_sent_and_received(world: Any) -> None:
    async with world.client() as client:
        await world.write(client, "k")
        sent, received = read(metrics.KV_BATCH_SEND_LATENCY), read(metrics.KV_BATCH_RECV_LATENCY, result="ok")
        world.faults(world.fault(Fault.DELAY, "KvGet", times=1, delay_ms=100))
        await world.read(client, "k")
        assert read(metrics.KV_BATCH_SEND_LATENCY)[0] > sent[0]
        after = read(metrics.KV_BATCH_RECV_LATENCY, result="ok")
    assert after[0] > received[0]
    assert after[1] - received[1] >= 0.1 * 1e9  # nanoseconds


@pytest.mark.parametrize(
    ("counter", "options"),
    [
        (metrics.KV_COMMIT_TXN_COUNTER, {"one_pc": False, "async_commit": False}),
        (metrics.KV_ASYNC_COMMIT_TXN_COUNTER, {"one_pc": False, "async_commit": True}),
        (metrics.KV_ONE_PC_TXN_COUNTER, {"one_pc": True}),
    ],
)
async def test_commits_are_counted_by_protocol_with_what_they_wrote(
    world: Any, counter: Any, options: dict[str, bool]
) -> None:
    async with world.client() as client:
        await world.write(client, "warm")
        done, keys, written = total(counter, type="ok"), *map(read, WRITTEN)
        await world.write(client, "a", "b", value=b"1234", **options)
        size = 2 * len(world.key("a") + b"1234")
        assert total(counter, type="ok") - done == 1
        assert [now - then for now, then in zip(read(WRITTEN[0]), keys, strict=True)] == [1, 2]
        assert [now - then for now, then in zip(read(WRITTEN[1]), written, strict=True)] == [1, size]


async def test_loads_of_regions_and_requests_in_the_batch_channel_are_measured(world: Any) -> None:
    def counts() -> list[float]:
        loads = total(metrics.KV_REGION_CACHE_OPERATIONS_TOTAL, result="ok")
        histograms = (metrics.KV_LOAD_REGION_CACHE_SECONDS, metrics.KV_BATCH_PENDING_REQUESTS)
        return [loads, *(read(histogram)[0] for histogram in histograms)]

    before = counts()
    async with world.client() as client:
        await world.read(client, "k")
    assert all(now > then for now, then in zip(counts(), before, strict=True))


async def test_the_steps_to_resolve_a_lock_are_counted(world: Any) -> None:
    steps = ("resolve", "expired", "query_txn_status_rolled_back")

    def counts() -> list[float]:
        return [total(metrics.KV_LOCK_RESOLVER_ACTIONS_TOTAL, type=step) for step in steps]

    async with world.client() as client:
        dead = client.begin(one_pc=False, async_commit=False)
        await dead.put(world.key("left"), b"1")
        await world.die_after_prewrite(dead)
        before = counts()
        assert await world.read(client, "left") == [None]
        assert all(now > then for now, then in zip(counts(), before, strict=True))


async def test_a_slow_commit_is_logged_with_its_steps(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.kv")
    async with world.client(slow_commit_ms=150) as client:
        await world.write(client, "warm", one_pc=False, async_commit=False)
        world.faults(world.fault(Fault.DELAY, "KvPrewrite", times=1, delay_ms=200))
        async with client.begin(one_pc=False, async_commit=False) as txn:
            await txn.put(world.key("secret-key"), b"secret-value")
    slow = [record for record in caplog.records if record.getMessage() == "slow commit"]
    assert [record.start_ts for record in slow].count(await txn.start_ts) == 1
    (record,) = [record for record in slow if record.start_ts == await txn.start_ts]
    assert record.protocol == "2pc"
    assert record.write_keys == 1
    assert 0.2 <= record.prewrite_s <= record.commit_total_s
    assert record.get_commit_ts_s > 0
    assert record.commit_s > 0
    assert "secret" not in str(vars(record))


async def test_a_commit_within_its_time_is_not_logged(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.kv")
    async with world.client(slow_commit_ms=60_000) as client:
        await world.write(client, "k")
    assert "slow commit" not in [record.getMessage() for record in caplog.records]
