"""Commits while calls fail: retried, reported as failed, or reported as unknown - never wrongly."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import Unavailable, Undetermined
from penstock.kv import AsyncClient, TxnPhase, backoff
from penstock.kv.sender import RegionStale
from penstock.testing.store import Admin
from support.warmstore import WarmStore

PROTOCOLS = ["1pc", "2pc", "async-commit"]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up soon."""
    for name in ("PREWRITE_MS", "COMMIT_MS", "CLEANUP_MS", "COMMIT_SECONDARIES_MS", "PESSIMISTIC_LOCK_MS"):
        monkeypatch.setattr(backoff, name, 150)


async def commit_two(world: Any, client: AsyncClient, protocol: str, *, pessimistic: bool = False) -> Any:
    txn = client.begin(pessimistic=pessimistic, **world.options(protocol))
    await txn.put(world.key("a"), b"new")
    await txn.put(world.key("b"), b"new")
    await txn.commit()
    return txn


@pytest.mark.parametrize(
    "kind",
    [
        "NOT_LEADER",
        "STALE_COMMAND",
        "EPOCH_NOT_MATCH",
        "REGION_NOT_FOUND",
        "MAX_TIMESTAMP_NOT_SYNCED",
        "UNAVAILABLE",
        "UNDETERMINED",
        "STREAM_RESET",
    ],
)
@pytest.mark.parametrize("pessimistic", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_commit_survives_faults_that_pass(
    world: Any, protocol: str, pessimistic: bool, kind: str
) -> None:
    async with world.client() as client:
        await world.write(client, "a", "b")
        methods = ("KvPrewrite", "KvCommit", "KvPessimisticLock")
        world.faults(*(world.fault(kind, method, times=2) for method in methods))
        txn = await commit_two(world, client, protocol, pessimistic=pessimistic)
        world.faults()
        assert txn.commit_details.protocol == protocol
        assert await world.read(client, "a", "b") == [b"new", b"new"]
        assert await client.snapshot(txn.commit_ts).get(world.key("b")) == b"new"
        assert await client.snapshot(txn.commit_ts - 1).get(world.key("b")) == b"old"
        await world.wait_until_unlocked(client)


@pytest.mark.parametrize("protocol", ["1pc", "async-commit"])
async def test_a_prewrite_that_may_have_committed_is_undetermined(
    world: Any, protocol: str, hasty: None
) -> None:
    async with world.client() as client:
        await world.write(client, "a", "b")
        world.faults(world.fault("UNDETERMINED", "KvPrewrite"))
        txn = client.begin(**world.options(protocol))
        await txn.put(world.key("a"), b"new")
        await txn.put(world.key("b"), b"new")
        with pytest.raises(Undetermined):
            await txn.commit()
        assert txn.phase is TxnPhase.UNDETERMINED
        world.faults()
        # It did happen, and nobody cleaned it up.
        assert await world.read(client, "a", "b") == [b"new", b"new"]


async def test_a_first_phase_that_fails_is_cleaned_up(world: Any, hasty: None) -> None:
    await world.split("b")
    async with world.client() as client:
        await world.write(client, "a", "b")
        world.faults(world.fault("UNDETERMINED", "KvPrewrite"))
        txn = client.begin(**world.options("2pc"))
        await txn.put(world.key("a"), b"new")
        await txn.put(world.key("b"), b"new")
        with pytest.raises(Unavailable):
            await txn.commit()
        assert txn.phase is TxnPhase.ROLLED_BACK
        world.faults()
        await world.wait_until_unlocked(client)
        assert await world.read(client, "a", "b") == [b"old", b"old"]


async def test_a_primary_commit_without_an_answer_is_undetermined_and_not_cleaned_up(
    world: Any, hasty: None
) -> None:
    await world.split("b")
    async with world.client() as client:
        await world.write(client, "a", "b")
        world.faults(world.fault("UNDETERMINED", "KvCommit"))
        with pytest.raises(Undetermined):
            await commit_two(world, client, "2pc")
        world.faults()
        assert await world.read(client, "a", "b") == [b"new", b"new"]


@pytest.mark.parametrize(
    ("protocol", "method"), [("1pc", "KvPrewrite"), ("async-commit", "KvPrewrite"), ("2pc", "KvCommit")]
)
async def test_the_outcome_stays_open_when_a_lost_answer_is_followed_by_lost_regions(
    world: Any, protocol: str, method: str, hasty: None
) -> None:
    async with world.client() as client:
        await world.write(client, "a", "b")
        world.faults(
            world.fault("UNDETERMINED", method, times=1),
            world.fault("REGION_NOT_FOUND", method),
            world.fault("UNAVAILABLE", "GetRegion"),
        )
        with pytest.raises(Undetermined):
            await commit_two(world, client, protocol)
        world.faults()
        assert await world.read(client, "a", "b") == [b"new", b"new"]


async def test_a_one_phase_commit_without_an_answer_is_not_tried_again_in_two_halves(world: Any) -> None:
    async with world.client() as client:
        await world.write(client, "a", "b")
        router = client._session.router
        send = router.sender.send

        async def lose_and_split(bo: Any, method: str, request: Any, region: Any, **options: Any) -> Any:
            answer = await send(bo, method, request, region, **options)
            if method == "KvPrewrite":
                router.sender.send = send
                await world.split("b")
                router.cache.invalidate(region, "split")
                options["on_rpc_error"](ConnectionError("lost"))
                raise RegionStale("split")
            return answer

        router.sender.send = lose_and_split
        with pytest.raises(Undetermined):
            await commit_two(world, client, "1pc")
        assert await world.read(client, "a", "b") == [b"new", b"new"]
        assert await world.locks(client) == []


async def test_a_primary_commit_that_never_arrives_is_not_taken_for_done(world: Any, hasty: None) -> None:
    async with world.client() as client:
        await world.write(client, "a", "b")
        world.faults(world.fault("NOT_LEADER", "KvCommit"))
        with pytest.raises(Unavailable):
            await commit_two(world, client, "2pc")
        world.faults()
        await world.wait_until_unlocked(client)
        assert await world.read(client, "a", "b") == [b"old", b"old"]


async def test_secondaries_that_cannot_be_committed_are_resolved_by_readers(world: Any, hasty: None) -> None:
    await world.split("b")
    async with world.client() as client:
        world.faults(world.fault("NOT_LEADER", "KvCommit", skip=1))
        txn = await commit_two(world, client, "2pc")
        assert await world.read(client, "a", "b") == [b"new", b"new"]
        await world.wait_until_unlocked(client)
        assert txn.commit_ts


async def test_an_async_commit_is_visible_while_its_commits_fail(world: Any, hasty: None) -> None:
    await world.split("b")
    async with world.client() as client:
        world.faults(world.fault("NOT_LEADER", "KvCommit"))
        await commit_two(world, client, "async-commit")
        world.faults(world.fault("NOT_LEADER", "KvCommit"))
        assert await world.read(client, "a", "b") == [b"new", b"new"]


@pytest.mark.parametrize(("protocol", "method"), [("1pc", "KvPrewrite"), ("2pc", "KvCommit")])
async def test_a_cancelled_commit_is_unknown_and_not_cleaned_up(
    world: Any, protocol: str, method: str
) -> None:
    async with world.client() as client:
        await world.write(client, "a", "b")
        world.faults(world.fault("DROP", method))
        txn = client.begin(**world.options(protocol))
        await txn.put(world.key("a"), b"new")
        commit = asyncio.ensure_future(txn.commit())
        done, _ = await asyncio.wait({commit}, timeout=0.2)
        assert not done
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
        assert txn.phase is TxnPhase.UNDETERMINED
        assert len(client._session.background) == 0


async def test_a_pessimistic_lock_that_cannot_be_taken_leaves_none(world: Any, hasty: None) -> None:
    await world.split("b")
    async with world.client() as client:
        txn = client.begin(pessimistic=True)
        world.faults(world.fault("UNDETERMINED", "KvPessimisticLock"))
        with pytest.raises(Unavailable):
            await txn.lock_keys([world.key("a"), world.key("b")])
        world.faults()
        await world.wait_until_unlocked(client)
        await txn.lock_keys([world.key("a"), world.key("b")])
        await txn.rollback()
        assert await world.locks(client) == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("method", ["KvPrewrite", "KvCommit"])
async def test_a_store_that_crashes_before_it_answers_loses_nothing(
    tmp_path: Path, protocol: str, method: str
) -> None:
    options = {"1pc": {}, "async-commit": {"one_pc": False}, "2pc": {"one_pc": False, "async_commit": False}}
    store = await asyncio.to_thread(WarmStore.start, tmp_path / "data", stores=2)
    admin = Admin(store.pd_addr)
    try:
        async with await AsyncClient.connect([store.pd_addr]) as client:
            await client.timestamp()
            await admin.set_faults([admin.fault("CRASH", method=method, times=1)])
            txn = client.begin(**options[protocol])
            await txn.put(b"a", b"1")
            await txn.put(b"b", b"2")
            commit = asyncio.ensure_future(txn.commit())
            if (protocol, method) != ("1pc", "KvCommit"):
                await asyncio.to_thread(store.wait)
                await asyncio.to_thread(store.kill)
                await asyncio.to_thread(store.restart)
            assert await commit == txn.commit_ts > 0
            snapshot = client.snapshot(await client.timestamp())
            assert await snapshot.batch_get([b"a", b"b"]) == {b"a": b"1", b"b": b"2"}
    finally:
        await admin.close()
        await asyncio.to_thread(store.kill)


@pytest.mark.parametrize(
    ("protocol", "method", "error", "value"),
    [
        ("1pc", "KvPrewrite", Undetermined, b"1"),
        ("async-commit", "KvPrewrite", Undetermined, b"1"),
        ("2pc", "KvPrewrite", Unavailable, None),
        ("2pc", "KvCommit", Undetermined, b"1"),
    ],
)
async def test_a_store_that_is_gone_for_good_leaves_the_outcome_open_only_where_it_is(
    tmp_path: Path,
    protocol: str,
    method: str,
    error: type[Exception],
    value: bytes | None,
    hasty: None,
    world: Any,
) -> None:
    store = await asyncio.to_thread(WarmStore.start, tmp_path / "data", stores=2)
    admin = Admin(store.pd_addr)
    try:
        async with await AsyncClient.connect([store.pd_addr]) as client:
            await admin.set_faults([admin.fault("CRASH", method=method, times=1)])
            txn = client.begin(**world.options(protocol))
            await txn.put(b"a", b"1")
            await txn.put(b"b", b"1")
            with pytest.raises(error):
                await txn.commit()
            await asyncio.to_thread(store.kill)
            await asyncio.to_thread(store.restart)
        async with await AsyncClient.connect([store.pd_addr]) as client:
            snapshot = client.snapshot(await client.timestamp())
            assert [await snapshot.get(key) for key in (b"a", b"b")] == [value, value]
    finally:
        await admin.close()
        await asyncio.to_thread(store.kill)
