"""Local latches: order, staleness, waiting."""

import asyncio

import pytest

from penstock.clock import SYSTEM, compose_ts
from penstock.errors import WriteConflict
from penstock.kv.latches import LatchTable, LocalLatches


def test_a_key_goes_to_the_claims_in_the_order_they_came() -> None:
    table = LatchTable(4)
    first, second, third = (table.claim([b"k"], ts) for ts in (10, 11, 12))
    assert [table.acquire(claim) for claim in (first, second, third)] == [True, False, False]
    assert table.release(first, 0) == [second]
    assert table.release(second, 0) == [third]
    assert table.release(third, 0) == []


def test_a_waiting_claim_that_became_stale_lets_the_next_one_pass() -> None:
    table = LatchTable(4)
    holder, old, new = table.claim([b"k"], 10), table.claim([b"k"], 11), table.claim([b"k"], 30)
    for claim in (holder, old, new):
        table.acquire(claim)
    holder.commit_ts = 20
    assert table.release(holder, 0) == [old, new]
    assert (old.stale_key, old.stale_ts) == (b"k", 20)
    assert new.stale_key is None
    assert table.release(old, 0) == []
    assert new.taken == 1


def test_a_claim_that_gives_up_waiting_returns_what_it_held() -> None:
    table = LatchTable(1)
    holder, waiter, other = table.claim([b"z"], 1), table.claim([b"a", b"z"], 2), table.claim([b"a"], 3)
    assert table.acquire(holder)
    assert not table.acquire(waiter)
    assert not table.acquire(other)
    assert table.release(waiter, 0) == [other]
    assert table.release(holder, 0) == []


def test_claims_over_the_same_keys_never_wait_for_each_other() -> None:
    table = LatchTable(8)
    keys = [b"%d" % n for n in range(20)]
    one, two = table.claim(keys, 1), table.claim(reversed(keys), 2)
    assert one.keys == two.keys
    assert table.acquire(one)
    assert not table.acquire(two)
    assert table.release(one, 0) == [two]


def test_keys_are_forgotten_after_a_while() -> None:
    table = LatchTable(2)
    committed_ms = 1_000_000
    for ts in (1, 2):
        claim = table.claim([b"%d" % ts], ts)
        table.acquire(claim)
        claim.commit_ts = compose_ts(committed_ms)
        table.release(claim, committed_ms)
    assert len(table) == 2
    late = table.claim([b"late"], compose_ts(committed_ms))
    table.acquire(late)
    table.release(late, committed_ms + 121_000)
    assert len(table) == 0


async def test_a_stale_transaction_learns_it_without_any_request() -> None:
    latches = LocalLatches(16, clock=SYSTEM)
    now_ts = compose_ts(SYSTEM.wall_ms())
    async with latches.hold([b"k"], now_ts) as latch:
        latch.commit_ts = now_ts + 10
    with pytest.raises(WriteConflict, match="local latch"):
        async with latches.hold([b"k"], now_ts + 5):
            pytest.fail("the latch was given to a stale transaction")
    async with latches.hold([b"k"], now_ts + 11):
        pass


async def test_a_waiting_transaction_goes_on_when_the_holder_is_done() -> None:
    latches = LocalLatches(16, clock=SYSTEM)
    order = []

    async def commit(name: str, release: asyncio.Event, start_ts: int) -> None:
        async with latches.hold([b"k"], start_ts):
            order.append(name)
            await release.wait()

    gates = [asyncio.Event() for _ in range(3)]
    tasks = [asyncio.ensure_future(commit(f"t{n}", gates[n], n + 1)) for n in range(3)]
    await SYSTEM.sleep(0)
    tasks[1].cancel()
    gates[0].set()
    gates[2].set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == ["t0", "t2"]
    assert tasks[1].cancelled()
