"""What a dead client left behind is completed or undone by whoever meets it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.clock import SYSTEM, TS_MAX
from penstock.errors import Aborted, Invalid, Unavailable
from penstock.kv import AsyncClient
from penstock.kv.actions.commit import Commit
from penstock.kv.batch_executor import BatchExecutor
from penstock.proto import kvrpcpb_pb2 as kvrpcpb

KEYS = ["a", "b", "c"]


async def read_one_by_one(world: Any, client: AsyncClient) -> list[bytes | None]:
    """Each with a snapshot of its own, so that each meets its lock."""
    found: list[bytes | None] = [(await world.read(client, name))[0] for name in KEYS]
    return found


async def read_together(world: Any, client: AsyncClient) -> list[bytes | None]:
    snapshot = client.snapshot(await client.timestamp())
    found = await snapshot.batch_get([world.key(name) for name in KEYS])
    return [found.get(world.key(name)) for name in KEYS]


async def scan(world: Any, client: AsyncClient) -> list[bytes | None]:
    snapshot = client.snapshot(await client.timestamp())
    found = {key: value async for key, value in snapshot.iter(world.prefix, world.prefix + b"\xff")}
    return [found.get(world.key(name)) for name in KEYS]


async def scan_in_reverse(world: Any, client: AsyncClient) -> list[bytes | None]:
    snapshot = client.snapshot(await client.timestamp())
    found = {key: value async for key, value in snapshot.iter_reverse(world.prefix, world.prefix + b"\xff")}
    return [found.get(world.key(name)) for name in KEYS]


async def write_first(world: Any, client: AsyncClient) -> list[bytes | None]:
    """Meet the locks as a writer of a key that the test does not look at."""
    async with client.begin() as txn:
        await txn.put(world.key("b") + b"x", b"1")
        await txn.lock_keys([world.key(name) for name in KEYS])
    return await read_one_by_one(world, client)


async def lock_first(world: Any, client: AsyncClient) -> list[bytes | None]:
    async with client.begin(pessimistic=True) as txn:
        await txn.lock_keys([world.key(name) for name in reversed(KEYS)])
    return await read_one_by_one(world, client)


async def resolve_first(world: Any, client: AsyncClient) -> list[bytes | None]:
    ts = await client.timestamp()
    assert await client.resolve_locks_before(ts, world.prefix, world.prefix + b"\xff") == 0
    assert await world.locks(client) == []
    return await read_one_by_one(world, client)


async def collect_first(world: Any, client: AsyncClient) -> list[bytes | None]:
    await client.gc(await client.timestamp())
    assert await world.locks(client) == []
    return await read_one_by_one(world, client)


Meeting = Callable[[Any, AsyncClient], Awaitable[list[bytes | None]]]
MEETINGS: list[Meeting] = [
    read_one_by_one,
    read_together,
    scan,
    scan_in_reverse,
    write_first,
    lock_first,
    resolve_first,
    collect_first,
]
meetings = pytest.mark.parametrize("meet", MEETINGS, ids=lambda meet: meet.__name__)
lite = pytest.mark.parametrize("lite_keys", [512, 0], ids=["by key", "by region"])


async def prepare(world: Any, client: AsyncClient, **died: Any) -> Any:
    await world.split("b")
    await world.write(client, *KEYS)
    txn = client.begin()
    for name in KEYS:
        await txn.put(world.key(name), b"new")
    return await world.die_after_prewrite(txn, **died)


@lite
@meetings
async def test_an_abandoned_prewrite_is_rolled_back(world: Any, meet: Meeting, lite_keys: int) -> None:
    async with world.client(resolve_lock_lite_keys=lite_keys) as client:
        dead = await prepare(world, client)
        await SYSTEM.sleep(0.003)
        await client.timestamp()
        assert await meet(world, client) == [b"old"] * 3
        assert await read_one_by_one(world, client) == [b"old"] * 3
        await world.wait_until_unlocked(client)
        with pytest.raises(Aborted):
            await dead._commit_in_two_phases()
        assert await meet(world, client) == [b"old"] * 3


@lite
@meetings
async def test_an_abandoned_commit_is_completed_once_its_primary_is_committed(
    world: Any, meet: Meeting, lite_keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.client(resolve_lock_lite_keys=lite_keys) as client:
        dead = await prepare(world, client, ttl_ms=20_000)
        background = client._session.background
        with monkeypatch.context() as patch:
            patch.setattr(background, "spawn", lambda work, name: work.close())
            await dead._commit_in_two_phases()
        assert {lock.key for lock in await world.locks(client)} == {world.key("b"), world.key("c")}
        assert await meet(world, client) == [b"new"] * 3
        assert await read_one_by_one(world, client) == [b"new"] * 3
        await world.wait_until_unlocked(client)


@meetings
async def test_an_abandoned_async_commit_is_committed_when_every_lock_is_there(
    world: Any, meet: Meeting
) -> None:
    async with world.client() as client:
        await prepare(world, client, async_commit=True)
        await SYSTEM.sleep(0.003)
        await client.timestamp()
        assert await meet(world, client) == [b"new"] * 3
        assert await read_one_by_one(world, client) == [b"new"] * 3
        await world.wait_until_unlocked(client)


@meetings
async def test_an_abandoned_async_commit_is_rolled_back_when_a_lock_is_missing(
    world: Any, meet: Meeting
) -> None:
    async with world.client() as client:
        await world.split("b")
        await world.write(client, *KEYS)
        txn = client.begin()
        for name in KEYS:
            await txn.put(world.key(name), b"new")
        # The second region never gets its prewrite: the client dies in between.
        router = client._session.router
        lost = (await router.cache.locate(client._session.backoffer(100, "test"), world.key("b"))).region
        send = router.sender.send

        async def send_some(bo: Any, method: str, request: Any, region: Any, **options: Any) -> Any:
            if method == "KvPrewrite" and region == lost:
                return kvrpcpb.PrewriteResponse(min_commit_ts=1)
            return await send(bo, method, request, region, **options)

        router.sender.send = send_some
        await world.die_after_prewrite(txn, async_commit=True)
        router.sender.send = send
        assert len(await world.locks(client)) == 1
        await SYSTEM.sleep(0.003)
        await client.timestamp()
        assert await meet(world, client) == [b"old"] * 3
        assert await read_one_by_one(world, client) == [b"old"] * 3
        await world.wait_until_unlocked(client)


async def test_an_async_commit_that_fell_back_half_way_is_judged_by_its_primary(world: Any) -> None:
    """Plain locks among async-commit ones: the primary decides as in two phases."""
    async with world.client() as client:
        await world.split("b")
        await world.write(client, *KEYS)
        txn = client.begin()
        for name in KEYS:
            await txn.put(world.key(name), b"new")
        router = client._session.router
        send = router.sender.send

        async def send_plain(bo: Any, method: str, request: Any, region: Any, **options: Any) -> Any:
            if method == "KvPrewrite" and not request.secondaries:
                request.use_async_commit = False
            answer = await send(bo, method, request, region, **options)
            if method == "KvPrewrite" and not request.secondaries:
                answer.min_commit_ts = 1
            return answer

        router.sender.send = send_plain
        await world.die_after_prewrite(txn, async_commit=True)
        router.sender.send = send
        assert {lock.use_async_commit for lock in await world.locks(client)} == {True, False}
        await SYSTEM.sleep(0.003)
        await client.timestamp()
        assert await read_one_by_one(world, client) == [b"old"] * 3
        await world.wait_until_unlocked(client)


async def test_a_reader_passes_a_live_transaction_by_pushing_its_commit(world: Any) -> None:
    async with world.client() as client:
        dead = await prepare(world, client, ttl_ms=20_000)
        began = SYSTEM.monotonic()
        read_ts = await client.timestamp()
        assert await client.snapshot(read_ts).get(world.key("b")) == b"old"
        assert SYSTEM.monotonic() - began < 2
        assert await dead._commit_in_two_phases() > read_ts
        assert await read_one_by_one(world, client) == [b"new"] * 3
        assert await client.snapshot(read_ts).get(world.key("b")) == b"old"


async def test_the_newest_values_are_those_after_a_commit_that_an_earlier_read_passed_by(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.client() as client:
        alive = await prepare(world, client, ttl_ms=20_000)
        newest = client.snapshot(TS_MAX)
        assert await newest.get(world.key("b")) == b"old"
        with monkeypatch.context() as patch:
            patch.setattr(client._session.background, "spawn", lambda work, name: work.close())
            await alive._commit_in_two_phases()
            assert await newest.get(world.key("b")) == b"new"
            assert await newest.batch_get([world.key("c")]) == {world.key("c"): b"new"}
            rows = newest.iter(world.prefix, world.prefix + b"\xff")
            assert [value async for _, value in rows] == [b"new"] * 3


async def test_a_reader_waits_for_a_live_async_commit_and_no_longer_than_its_locks(world: Any) -> None:
    async with world.client() as client:
        dead = await prepare(world, client, async_commit=True, ttl_ms=1_500)
        assert await read_one_by_one(world, client) == [b"new"] * 3
        assert dead._scope.state.min_commit_ts < await client.timestamp()


async def test_live_locks_are_left_and_counted(world: Any) -> None:
    async with world.client() as client:
        await prepare(world, client, ttl_ms=20_000)
        ts = await client.timestamp()
        assert await client.resolve_locks_before(ts, world.prefix, world.prefix + b"\xff") == 3
        assert len(await world.locks(client)) == 3
        await client.gc(ts)
        assert await world.locks(client) == []


async def test_locks_are_listed_over_regions_and_none_is_touched(world: Any) -> None:
    async with world.client() as client:
        await world.split("b")
        before_ts = await client.timestamp()
        await prepare(world, client, ttl_ms=20_000)
        bounds = world.prefix, world.prefix + b"\xff"
        ts = await client.timestamp()
        found = await client.locks_before(ts, *bounds)
        assert [lock.key for lock in found] == [world.key(name) for name in KEYS]
        assert {lock.primary for lock in found} <= {world.key(name) for name in KEYS}
        assert all(before_ts < lock.start_ts < ts for lock in found)
        assert [lock.key for lock in await client.locks_before(ts, *bounds, count_max=1)] == [world.key("a")]
        assert await client.locks_before(ts, world.key("b"), world.key("c")) == [found[1]]
        assert await client.locks_before(before_ts, *bounds) == []
        assert len(await world.locks(client)) == 3
        await client.gc(ts)


async def test_every_kind_of_read_below_the_safe_point_is_refused(world: Any) -> None:
    async with world.client() as client:
        await world.write(client, "a")
        old = client.snapshot(await client.timestamp())
        await world.write(client, "a", value=b"new")
        await client.gc(await client.timestamp())
        with pytest.raises(Invalid, match="garbage collection"):
            await old.get(world.key("a"))
        with pytest.raises(Invalid, match="garbage collection"):
            await old.batch_get([world.key("a")])
        with pytest.raises(Invalid, match="garbage collection"):
            await old.iter(world.prefix, world.prefix + b"\xff").next_page()


async def test_resolving_waits_for_a_commit_that_is_being_written(world: Any) -> None:
    async with world.client() as client:
        await world.write(client, "a")
        concurrency = world.cluster.storage.concurrency
        txn = client.begin()
        await txn.put(world.key("a"), b"new")
        with world.cluster._engine._writing:
            commit = asyncio.ensure_future(txn.commit())
            async with asyncio.timeout(10):
                while concurrency.min_lock_ts() is None:
                    await SYSTEM.sleep(0.001)
            ts = await client.timestamp()
            resolve = asyncio.ensure_future(
                client.resolve_locks_before(ts, world.prefix, world.prefix + b"\xff")
            )
            done, _ = await asyncio.wait({resolve}, timeout=0.1)
            assert not done
        assert await resolve == 0
        assert await commit


async def test_a_transaction_that_garbage_collection_overtook_cannot_bring_a_deleted_key_back(
    world: Any,
) -> None:
    async with world.client() as client:
        await world.write(client, "a")
        txn = client.begin()
        assert await txn.get(world.key("a")) == b"old"
        async with client.begin() as other:
            await other.delete(world.key("a"))
        await client.gc(await client.timestamp())
        await txn.put(world.key("a"), b"new")
        with pytest.raises(Aborted, match="garbage collection"):
            await txn.commit()
        assert await world.read(client, "a") == [None]


async def test_expired_pessimistic_locks_disappear_with_garbage_collection(world: Any) -> None:
    async with world.client() as client:
        txn = client.begin(pessimistic=True)
        await txn.lock_keys([world.key("a"), world.key("b")])
        (await txn._open()).heart.stop()
        await client.gc(await client.timestamp())
        assert await world.locks(client) == []


async def test_a_commit_below_what_a_reader_was_promised_is_moved_up(world: Any) -> None:
    async with world.client() as client:
        alive = await prepare(world, client, ttl_ms=20_000)
        session = client._session
        early_ts = await client.timestamp()
        read_ts = await client.timestamp()
        assert await client.snapshot(read_ts).get(world.key("a")) == b"old"
        alive._scope.commit_ts = early_ts
        action = Commit(alive._scope, primary_first=True)
        bo = session.backoffer(1_000, "commit")
        await BatchExecutor(session).run(bo, action, alive.mutations, alive.txn.primary)
        assert alive._scope.commit_ts > read_ts
        assert await client.snapshot(read_ts).get(world.key("a")) == b"old"
        assert await read_one_by_one(world, client) == [b"new"] * 3


async def test_a_lock_whose_primary_moved_elsewhere_is_rolled_back(world: Any) -> None:
    async with world.client(lock_ttl_ms=20_000) as client:
        txn = client.begin(pessimistic=True)
        scope = (await txn._open()).scope
        scope.primary = world.key("elsewhere")
        await txn.lock_keys([world.key("a")])
        scope.primary = world.key("a")
        await txn.lock_keys([world.key("b")])
        async with client.begin(pessimistic=True) as other:
            await other.lock_keys([world.key("b")], wait_timeout_ms=5_000)
        assert {lock.key for lock in await world.locks(client)} == {world.key("a")}
        await txn.rollback()


async def test_a_scan_tells_when_its_client_is_closed(world: Any) -> None:
    async with world.client(scan_page_rows=2) as client:
        await world.write(client, *KEYS)
        rows = client.snapshot(await client.timestamp()).iter(world.prefix, world.prefix + b"\xff")
        world.faults(world.fault("DROP", "KvScan", skip=1))
        assert await rows.next_page()
    with pytest.raises(Unavailable, match="closed during the scan"):
        await rows.next_page()
