"""One runner at a time, on a real store."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from penstock.clock import SYSTEM
from penstock.errors import Corrupt, Fenced, Unavailable
from penstock.jobs.log.job_log import RUNNER_LEASE
from penstock.kv import AsyncClient
from penstock.kv.lease import Lease, LeaseRecord, read_lease
from penstock.testing.clock import ManualClock
from support.warmstore import WarmStore

LONG_S = 60.0
KEY = b"penstock/jobs/lease"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmStore]:
    with WarmStore.start(tmp_path_factory.mktemp("lease") / "store", stores=1) as running:
        yield running


@asynccontextmanager
async def clean(store: WarmStore) -> AsyncIterator[AsyncClient]:
    async with await AsyncClient.connect([store.pd_addr]) as client:
        async with client.begin() as txn:
            await txn.delete(KEY)
        yield client


async def test_a_second_runner_waits_until_the_first_gives_up(store: WarmStore) -> None:
    async with clean(store) as client:
        assert await read_lease(client, RUNNER_LEASE) == LeaseRecord()
        first = await Lease.acquire(client, RUNNER_LEASE, "one", ttl_s=LONG_S)
        with pytest.raises(Unavailable, match="the lease of the job runner is held by one; wait"):
            await Lease.acquire(client, RUNNER_LEASE, "two", ttl_s=LONG_S)
        await first.renew()
        assert (await read_lease(client, RUNNER_LEASE)).owner == "one"
        await first.give_up()
        second = await Lease.acquire(client, RUNNER_LEASE, "two", ttl_s=LONG_S)
        assert second.epoch == first.epoch + 1
        with pytest.raises(Fenced, match="the lease of the job runner is held by two; this process stops"):
            await first.renew()
        await first.give_up()
        assert (await read_lease(client, RUNNER_LEASE)).owner == "two", "who has lost it cannot give it up"


async def test_a_silent_runner_is_taken_over_and_is_fenced_when_it_wakes(store: WarmStore) -> None:
    async with clean(store) as client:
        first = await Lease.acquire(client, RUNNER_LEASE, "one", ttl_s=0.05)
        while True:
            try:
                second = await Lease.acquire(client, RUNNER_LEASE, "two", ttl_s=LONG_S)
                break
            except Unavailable:
                await SYSTEM.sleep(0.01)
        assert first.lapsed, "it knew before anybody could take over"
        assert not second.lapsed
        with pytest.raises(Fenced):
            await first.renew()
        await second.renew()


async def test_the_same_process_that_starts_again_has_a_new_epoch(store: WarmStore) -> None:
    async with clean(store) as client:
        first = await Lease.acquire(client, RUNNER_LEASE, "one", ttl_s=LONG_S)
        again = await Lease.acquire(client, RUNNER_LEASE, "one", ttl_s=LONG_S)
        assert again.epoch > first.epoch
        with pytest.raises(Fenced):
            await first.renew()


async def test_of_many_who_want_it_one_gets_it(store: WarmStore) -> None:
    async with clean(store) as client:
        wanted = [Lease.acquire(client, RUNNER_LEASE, f"r{number}", ttl_s=LONG_S) for number in range(8)]
        found = await asyncio.gather(*wanted, return_exceptions=True)
        assert sorted(type(each).__name__ for each in found) == ["Lease"] + ["Unavailable"] * 7


async def test_a_lease_lapses_by_the_clock_of_its_holder(store: WarmStore) -> None:
    async with clean(store) as client:
        clock = ManualClock()
        lease = await Lease.acquire(client, RUNNER_LEASE, "one", ttl_s=10, clock=clock)
        clock.advance(9.9)
        assert not lease.lapsed
        clock.advance(0.1)
        assert lease.lapsed
        await lease.renew()
        assert not lease.lapsed
        await lease.give_up()
        assert lease.lapsed


@pytest.mark.parametrize("value", [b"{}", b"nothing", b"[]", b'{"owner": 1, "epoch": "x", "expires_ms": 0}'])
async def test_a_damaged_lease_is_said_so(store: WarmStore, value: bytes) -> None:
    async with clean(store) as client:
        async with client.begin() as txn:
            await txn.put(KEY, value)
        with pytest.raises(Corrupt, match="the lease of the job runner is damaged; delete its key"):
            await Lease.acquire(client, RUNNER_LEASE, "one", ttl_s=LONG_S)
