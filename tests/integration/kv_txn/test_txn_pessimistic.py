"""Pessimistic transactions: waiting, conflicts, deadlocks, heart beats."""

import asyncio
from typing import Any

import pytest

from penstock import metrics
from penstock.clock import SYSTEM
from penstock.errors import Aborted, Deadlock, KeyExists, LockTimeout

PROTOCOLS = ["1pc", "2pc", "async-commit"]


async def test_a_written_key_is_locked_at_once(world: Any) -> None:
    async with world.client() as client:
        txn, other = client.begin(pessimistic=True), client.begin(pessimistic=True)
        await txn.put(world.key("k"), b"1")
        with pytest.raises(LockTimeout) as caught:
            await other.lock_keys([world.key("k")], no_wait=True)
        assert caught.value.no_wait
        began = SYSTEM.monotonic()
        with pytest.raises(LockTimeout) as caught:
            await other.lock_keys([world.key("k")], wait_timeout_ms=200)
        assert not caught.value.no_wait
        assert 0.15 < SYSTEM.monotonic() - began < 3
        await txn.commit()
        await other.put(world.key("k"), b"2")
        await other.commit()
        assert await world.read(client, "k") == [b"2"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_counters_that_wait_for_their_lock_lose_no_increment(world: Any, protocol: str) -> None:
    async with world.client() as client:
        await world.write(client, "n", value=b"0")

        async def increment() -> None:
            async with client.begin(pessimistic=True, **world.options(protocol)) as txn:
                value = await txn.get_for_update(world.key("n"))
                await txn.put(world.key("n"), b"%d" % (int(value or b"0") + 1))

        await asyncio.gather(*(increment() for _ in range(12)))
        assert await world.read(client, "n") == [b"12"]


async def test_a_locked_key_reads_at_its_latest_value_everywhere(world: Any) -> None:
    async with world.client() as client:
        await world.write(client, "changed", "deleted", "other")
        txn = client.begin(pessimistic=True)
        assert await txn.get(world.key("changed")) == b"old"
        await world.write(client, "changed", "other", "added", value=b"new")
        async with client.begin() as writer:
            await writer.delete(world.key("deleted"))
        locked = [world.key(name) for name in ("changed", "deleted", "added")]
        values = await txn.lock_keys(locked, return_values=True)
        assert values == dict(zip(locked, (b"new", None, b"new"), strict=True))
        assert await txn.lock_keys(locked, return_values=True) == values
        assert await txn.get(world.key("changed")) == b"new"
        assert await txn.get(world.key("deleted")) is None
        assert await txn.get(world.key("other")) == b"old"
        assert await txn.batch_get([*locked, world.key("other")]) == {
            world.key("changed"): b"new",
            world.key("added"): b"new",
            world.key("other"): b"old",
        }
        rows = [row async for row in txn.scan(world.prefix, world.prefix + b"\xff")]
        assert rows == [
            (world.key("added"), b"new"),
            (world.key("changed"), b"new"),
            (world.key("other"), b"old"),
        ]
        await txn.rollback()
        assert await world.locks(client) == []


async def test_each_key_is_locked_once(world: Any) -> None:
    async with world.client() as client:
        requests = metrics.KV_TXN_REGIONS_NUM.labels("2pc_pessimistic_lock", "general")._sum
        async with client.begin(pessimistic=True) as txn:
            await txn.lock_keys([world.key("a"), world.key("b"), world.key("a")])
            before = requests.get()
            await txn.put(world.key("a"), b"1")
            await txn.insert(world.key("b"), b"1")
            await txn.delete(world.key("a"))
            await txn.lock_keys([world.key("b")])
            assert requests.get() == before


async def test_of_two_transactions_in_a_deadlock_one_is_told_and_the_other_goes_on(world: Any) -> None:
    async with world.client() as client:
        one, two = client.begin(pessimistic=True), client.begin(pessimistic=True)
        await one.put(world.key("a"), b"1")
        await two.put(world.key("b"), b"2")
        calls = {
            asyncio.ensure_future(one.put(world.key("b"), b"1")): (two, one),
            asyncio.ensure_future(two.put(world.key("a"), b"2")): (one, two),
        }
        done, waiting = await asyncio.wait(calls, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        winner, loser = calls[failed := done.pop()]
        with pytest.raises(Deadlock) as caught:
            await failed
        assert caught.value.wait_chain
        assert not caught.value.retryable
        await loser.rollback()
        await waiting.pop()
        await winner.commit()
        value = b"1" if winner is one else b"2"
        assert await world.read(client, "a", "b") == [value, value]


async def test_a_deadlock_closed_by_a_lock_of_the_same_call_can_be_retried(world: Any) -> None:
    """The call has given that lock up when it fails, so the cycle is broken without a rollback."""
    await world.split("m")
    async with world.client() as client:
        one, two = client.begin(pessimistic=True), client.begin(pessimistic=True)
        await one.lock_keys([world.key("z")])
        world.faults(world.fault("DELAY", "KvPessimisticLock", times=1, delay_ms=300))
        call = asyncio.ensure_future(two.lock_keys([world.key("a"), world.key("z")]))
        await world.wait_until_locked(client, "a")
        waiting = asyncio.ensure_future(one.lock_keys([world.key("a")]))
        with pytest.raises(Deadlock) as caught:
            await call
        assert caught.value.retryable
        await waiting
        retried = asyncio.ensure_future(two.lock_keys([world.key("a"), world.key("z")]))
        await one.rollback()
        await retried
        await two.rollback()
        assert await world.locks(client) == []


async def test_a_lock_call_that_fails_locks_none_of_its_keys(world: Any) -> None:
    await world.split("m")
    async with world.client() as client:
        holder, txn, third = (client.begin(pessimistic=True) for _ in range(3))
        await holder.lock_keys([world.key("z")])
        with pytest.raises(LockTimeout):
            await txn.lock_keys([world.key("a"), world.key("b"), world.key("z")], wait_timeout_ms=100)
        await third.lock_keys([world.key("a"), world.key("b")], wait_timeout_ms=5_000)
        await third.rollback()
        await holder.rollback()
        # The same transaction may try again at once: it waits for its own rollback.
        await txn.lock_keys([world.key("a"), world.key("z")])
        await txn.put(world.key("a"), b"1")
        await txn.commit()
        assert await world.read(client, "a") == [b"1"]
        await world.wait_until_unlocked(client)


async def test_an_insert_knows_at_once_whether_the_key_exists(world: Any) -> None:
    async with world.client() as client:
        await world.write(client, "there")
        async with client.begin(pessimistic=True) as txn:
            with pytest.raises(KeyExists):
                await txn.insert(world.key("there"), b"1")
            await txn.insert(world.key("new"), b"1")
            await txn.delete(world.key("there"))
            await txn.insert(world.key("there"), b"2")
            await txn.insert(world.key("undone"), b"1")
            await txn.delete(world.key("undone"))
        assert await world.read(client, "there", "new", "undone") == [b"2", b"1", None]


async def test_rollback_gives_up_every_lock(world: Any) -> None:
    await world.split("b", "c")
    async with world.client() as client:
        txn = client.begin(pessimistic=True)
        await txn.lock_keys([world.key(name) for name in "abcd"])
        assert len(await world.locks(client)) == 4
        await txn.rollback()
        assert await world.locks(client) == []


async def test_heart_beats_keep_a_long_transaction_alive(world: Any) -> None:
    async with world.client(lock_ttl_ms=1_000) as client:
        txn = client.begin(pessimistic=True)
        await txn.put(world.key("k"), b"1")
        other = client.begin(pessimistic=True)
        with pytest.raises(LockTimeout):
            await other.lock_keys([world.key("k")], wait_timeout_ms=2_500)
        await txn.commit()
        await other.rollback()
        assert await world.read(client, "k") == [b"1"]
        beats = metrics.KV_TXN_HEART_BEAT.labels("ok")._sum
        assert beats.get() > 0


async def test_locks_of_a_client_that_died_are_taken_over_when_they_expire(world: Any) -> None:
    async with world.client(lock_ttl_ms=1_000) as client:
        dead = client.begin(pessimistic=True)
        await dead.lock_keys([world.key("a"), world.key("b")])
        (await dead._open()).heart.stop()
        async with client.begin(pessimistic=True) as txn:
            await txn.lock_keys([world.key("b"), world.key("c")], wait_timeout_ms=10_000)
            await txn.put(world.key("b"), b"1")
        assert await world.read(client, "b") == [b"1"]
        await dead.put(world.key("b"), b"late")
        with pytest.raises(Aborted):
            await dead.commit()
        assert await world.read(client, "b") == [b"1"]


async def test_a_transaction_that_outlives_its_time_is_refused(world: Any) -> None:
    async with world.client(lock_ttl_ms=1_000, txn_ttl_max_ms=1_000) as client:
        reached = metrics.KV_TTL_LIFETIME_REACH_TOTAL._value
        before = reached.get()
        txn = client.begin(pessimistic=True)
        await txn.put(world.key("k"), b"1")
        heart = (await txn._open()).heart
        deadline = SYSTEM.monotonic() + 10
        while not heart.expired:
            assert SYSTEM.monotonic() < deadline
            await SYSTEM.sleep(0.05)
        assert reached.get() == before + 1
        with pytest.raises(Aborted, match="ran too long"):
            await txn.lock_keys([world.key("other")])
        with pytest.raises(Aborted, match="ran too long"):
            await txn.commit()
        await world.wait_until_unlocked(client)


async def test_a_cancelled_lock_call_leaves_no_locks(world: Any) -> None:
    async with world.client() as client:
        holder, txn = client.begin(pessimistic=True), client.begin(pessimistic=True)
        await holder.lock_keys([world.key("b")])
        waiting = asyncio.ensure_future(txn.lock_keys([world.key("a"), world.key("b")]))
        await SYSTEM.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await holder.rollback()
        await txn.rollback()
        await world.wait_until_unlocked(client)


async def test_keys_are_locked_again_only_when_the_rollback_of_a_failed_call_is_done(world: Any) -> None:
    async with world.client() as client:
        other = client.begin(pessimistic=True)
        await other.lock_keys([world.key("b")])
        await world.split("b")
        sender = client._session.router.sender
        send, gate = sender.send, asyncio.Event()

        async def hold_rollbacks(bo: Any, method: str, request: Any, region: Any, **options: Any) -> Any:
            if method == "KVPessimisticRollback":
                await gate.wait()
            return await send(bo, method, request, region, **options)

        sender.send = hold_rollbacks
        txn = client.begin(pessimistic=True)
        with pytest.raises(LockTimeout):
            await txn.lock_keys([world.key("a"), world.key("b")], no_wait=True)
        again = asyncio.ensure_future(txn.lock_keys([world.key("a")]))
        done, _ = await asyncio.wait({again}, timeout=0.1)
        assert not done
        gate.set()
        await again
        assert {lock.key for lock in await world.locks(client)} == {world.key("a"), world.key("b")}
        await txn.rollback()
        await other.rollback()
