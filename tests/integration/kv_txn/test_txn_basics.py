"""Reading and writing through every protocol."""

from typing import Any

import pytest

from penstock import metrics
from penstock.errors import AssertionFailed, Invalid, KeyExists, WriteConflict
from penstock.kv import Assertion, TxnPhase

PROTOCOLS = ["1pc", "2pc", "async-commit"]


@pytest.mark.parametrize("pessimistic", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_what_is_committed_is_read_back(world: Any, protocol: str, pessimistic: bool) -> None:
    async with world.client() as client:
        await world.write(client, "gone", "kept")
        async with client.begin(pessimistic=pessimistic, **world.options(protocol)) as txn:
            await txn.put(world.key("a"), b"1")
            await txn.insert(world.key("b"), b"2")
            await txn.delete(world.key("gone"))
            assert await txn.get(world.key("a")) == b"1"
            assert await txn.get(world.key("gone")) is None
        assert txn.commit_details.protocol == protocol
        assert txn.commit_ts > await txn.start_ts
        assert await world.read(client, "a", "b", "gone", "kept") == [b"1", b"2", None, b"old"]
        before = client.snapshot(txn.commit_ts - 1)
        assert await before.get(world.key("gone")) == b"old"
        assert await before.get(world.key("a")) is None
        await world.wait_until_unlocked(client)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_commit_comes_after_everything_that_came_before_it(world: Any, protocol: str) -> None:
    async with world.client() as client:
        txn = client.begin(**world.options(protocol))
        await txn.put(world.key("a"), b"1")
        await txn.start_ts
        earlier_ts = await client.timestamp()  # that nobody reads at
        assert await txn.commit() > earlier_ts


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_first_to_commit_wins(world: Any, protocol: str) -> None:
    async with world.client() as client:
        loser = client.begin(**world.options(protocol))
        await loser.get(world.key("k"))
        await world.write(client, "k", value=b"winner")
        await loser.put(world.key("k"), b"loser")
        await loser.put(world.key("other"), b"loser")
        with pytest.raises(WriteConflict) as caught:
            await loser.commit()
        assert caught.value.key == world.key("k")
        assert loser.phase is TxnPhase.ROLLED_BACK
        assert await world.read(client, "k", "other") == [b"winner", None]
        await world.wait_until_unlocked(client)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_key_locked_by_an_optimistic_transaction_must_not_change(world: Any, protocol: str) -> None:
    async with world.client() as client:
        await world.write(client, "watched")
        txn = client.begin(**world.options(protocol))
        assert await txn.lock_keys([world.key("watched")], return_values=True) == {
            world.key("watched"): b"old"
        }
        await txn.put(world.key("k"), b"1")
        await world.write(client, "watched", value=b"new")
        with pytest.raises(WriteConflict):
            await txn.commit()
        async with client.begin(**world.options(protocol)) as txn:
            await txn.lock_keys([world.key("watched")])
            await txn.put(world.key("k"), b"2")
        assert await world.read(client, "watched", "k") == [b"new", b"2"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_insert_of_an_existing_key_fails_at_the_commit(world: Any, protocol: str) -> None:
    async with world.client() as client:
        await world.write(client, "there")
        for undo in (False, True):
            txn = client.begin(**world.options(protocol))
            await txn.insert(world.key("there"), b"new")
            if undo:
                await txn.delete(world.key("there"))
            await txn.put(world.key("also"), b"new")
            with pytest.raises(KeyExists) as caught:
                await txn.commit()
            assert caught.value.key == world.key("there")
        assert await world.read(client, "there", "also") == [b"old", None]


async def test_an_insert_that_is_deleted_again_leaves_nothing(world: Any) -> None:
    async with world.client() as client:
        async with client.begin() as txn:
            await txn.insert(world.key("k"), b"1")
            await txn.delete(world.key("k"))
        assert await world.read(client, "k") == [None]
        assert await world.locks(client) == []


async def test_an_assertion_that_does_not_hold_fails_the_commit(world: Any) -> None:
    async with world.client() as client:
        await world.write(client, "there")
        for name, assertion in (("there", Assertion.NOT_EXISTS), ("missing", Assertion.EXISTS)):
            txn = client.begin()
            await txn.put(world.key(name), b"new", assertion=assertion)
            with pytest.raises(AssertionFailed):
                await txn.commit()
        async with client.begin() as txn:
            await txn.put(world.key("there"), b"new", assertion=Assertion.EXISTS)
            await txn.delete(world.key("missing"), assertion=Assertion.NOT_EXISTS)
        assert await world.read(client, "there", "missing") == [b"new", None]


async def test_a_block_that_raises_rolls_back(world: Any) -> None:
    async with world.client() as client:

        async def fail() -> None:
            async with client.begin() as txn:
                await txn.put(world.key("k"), b"1")
                raise RuntimeError

        with pytest.raises(RuntimeError):
            await fail()
        assert await world.read(client, "k") == [None]


async def test_a_transaction_without_writes_commits_nothing(world: Any) -> None:
    async with world.client() as client:
        async with client.begin() as txn:
            await txn.get(world.key("k"))
        assert (txn.phase, txn.commit_ts) == (TxnPhase.COMMITTED, 0)


async def test_a_finished_transaction_and_a_closed_client_refuse_to_work(world: Any) -> None:
    async with world.client() as client:
        txn = client.begin()
        await txn.put(world.key("k"), b"1")
        await txn.commit()
        for call in (txn.commit(), txn.rollback(), txn.get(b"k"), txn.put(b"k", b"v"), txn.lock_keys([b"k"])):
            with pytest.raises(Invalid, match="committed; begin another one"):
                await call
        with pytest.raises(Invalid):
            txn.scan()
    with pytest.raises(Invalid, match="closed"):
        client.begin()


async def test_wrong_arguments_are_refused_before_anything_is_sent(world: Any) -> None:
    async with world.client() as client:
        txn = client.begin()
        for call in (
            txn.get(b""),
            txn.get("k"),
            txn.batch_get([b"k", b""]),
            txn.put(b"k", b""),
            txn.delete(b""),
        ):
            with pytest.raises(Invalid):
                await call
        for bounds in (("a", b""), (b"", None)):
            with pytest.raises(Invalid, match="must be bytes"):
                txn.scan(*bounds)
        with pytest.raises(Invalid, match="limit"):
            txn.scan(limit=-1)
        with pytest.raises(Invalid, match="wait_timeout_ms"):
            await txn.lock_keys([b"k"], wait_timeout_ms=-5)
        with pytest.raises(Invalid, match="no timestamp"):
            client.snapshot(0)
        await txn.rollback()


async def test_the_start_timestamp_is_asked_for_at_begin_and_awaited_once(world: Any) -> None:
    async with world.client() as client:
        waits = metrics.KV_TS_FUTURE_WAIT_SECONDS._sum
        txn = client.begin()
        later_ts = await client.timestamp()
        before = waits.get()
        assert await txn.get(world.key("k")) is None
        assert waits.get() > before
        observed = waits.get()
        assert await txn.get(world.key("other")) is None
        assert waits.get() == observed
        assert await txn.start_ts < later_ts
        await txn.rollback()


async def test_reads_are_repeatable_and_own_writes_come_first(world: Any) -> None:
    async with world.client() as client:
        await world.write(client, "a", "b", "c")
        txn = client.begin()
        assert await txn.get(world.key("a")) == b"old"
        await world.write(client, "a", "b", value=b"new")
        await txn.put(world.key("c"), b"mine")
        keys = [world.key(name) for name in "abcd"]
        assert await txn.batch_get(keys) == {keys[0]: b"old", keys[1]: b"old", keys[2]: b"mine"}
        with txn.savepoint():
            await txn.delete(world.key("b"))
        rows = [row async for row in txn.scan(world.prefix, world.prefix + b"\xff")]
        assert rows == [(keys[0], b"old"), (keys[2], b"mine")]
        await txn.rollback()


@pytest.mark.parametrize("reverse", [False, True])
async def test_scans_cross_regions_and_pages_in_both_directions(world: Any, reverse: bool) -> None:
    names = [f"{n:03d}" for n in range(40)]
    await world.split("005", "006", "020", "0205", "039")
    async with world.client(scan_page_rows=3) as client:
        await world.write(client, *names)
        expected = sorted(world.key(name) for name in names)
        snapshot = client.snapshot(await client.timestamp())
        scan = snapshot.iter_reverse if reverse else snapshot.iter

        async def keys(*bounds: bytes, **options: Any) -> list[bytes]:
            return [key async for key, _ in scan(*bounds, **options)]

        low, high = world.key(""), world.key("\x7f")
        turned = expected[::-1] if reverse else expected
        assert await keys(low, high) == turned
        assert await keys(low, high, limit=7) == turned[:7]
        assert await keys(low, high, limit=0) == []
        assert await keys(world.key("006"), world.key("021")) == [
            key for key in turned if world.key("006") <= key < world.key("021")
        ]
        assert await keys(world.key("021"), world.key("006")) == []
        assert await keys(world.key("0055"), world.key("006")) == []
        assert set(expected) <= set(await keys())
        bare = [row async for row in scan(low, high, key_only=True)]
        assert bare == [(key, b"") for key in turned]
        pages = [page async for page in scan(low, high).pages()]
        assert [key for page in pages for key, _ in page] == turned
        assert max(map(len, pages)) <= 3


async def test_many_keys_are_read_in_batches_from_their_regions(world: Any) -> None:
    names = [f"{n:03d}" for n in range(60)]
    await world.split("010", "030")
    async with world.client(batch_get_keys=7) as client:
        await world.write(client, *names)
        snapshot = client.snapshot(await client.timestamp())
        wanted = [world.key(f"{n:03d}") for n in range(80)]
        found = await snapshot.batch_get(reversed(wanted))
        assert found == {world.key(name): b"old" for name in names}
        # A second read is answered from the snapshot's own memory, also for keys without a value.
        world.faults(world.fault("SERVER_IS_BUSY", "KvBatchGet"), world.fault("SERVER_IS_BUSY", "KvGet"))
        assert await snapshot.batch_get(wanted) == found
        assert await snapshot.get(world.key("079")) is None


async def test_causal_consistency_commits_without_asking_for_the_latest_timestamp(world: Any) -> None:
    async with world.client() as client:
        async with client.begin(causal_consistency=True) as txn:
            await txn.put(world.key("k"), b"1")
        assert txn.commit_details.protocol == "1pc"
        assert txn.commit_details.get_latest_ts_s == 0
        assert await world.read(client, "k") == [b"1"]


async def test_a_prewrite_that_may_not_commit_early_enough_falls_back_to_two_phases(world: Any) -> None:
    async with world.client() as client:
        far = await client.timestamp() + (3_000 << 18)
        for protocol in ("1pc", "async-commit"):
            assert await client.snapshot(far).get(world.key(protocol)) is None
            async with client.begin(**world.options(protocol)) as txn:
                await txn.put(world.key(protocol), b"1")
                await txn.put(world.key(protocol + "2"), b"1")
            assert txn.commit_details.protocol == "2pc"
            assert txn.commit_details.fell_back_from == protocol
        assert await world.read(client, "1pc", "async-commit2") == [b"1", b"1"]
