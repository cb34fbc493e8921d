"""What holds while writes are under way: guards, latches, cancelled callers, restarts."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest

from penstock.clock import SYSTEM
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.settings import StoreSettings
from penstock.store.bounds import EVERYTHING, KeyBounds
from penstock.store.engine import Cf, Engine
from penstock.store.observe import Change
from penstock.store.storage import TxnStorage


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    opened = Engine.open(tmp_path / "data", sync=False)
    yield opened
    opened.close()


@pytest.fixture
def storage(engine: Engine) -> TxnStorage:
    return TxnStorage(engine, clock=SYSTEM, settings=StoreSettings(), max_ts=0)


def put(key: bytes, value: bytes = b"v") -> kvrpcpb.Mutation:
    return kvrpcpb.Mutation(op=kvrpcpb.Put, key=key, value=value)


def prewrite(
    start_ts: int, *keys: bytes, one_pc: bool = False, asynchronous: bool = False
) -> kvrpcpb.PrewriteRequest:
    return kvrpcpb.PrewriteRequest(
        mutations=[put(key) for key in keys],
        primary_lock=keys[0],
        start_version=start_ts,
        lock_ttl=3000,
        try_one_pc=one_pc,
        use_async_commit=asynchronous,
        secondaries=keys[1:],
    )


async def until(condition: Callable[[], bool]) -> None:
    deadline = SYSTEM.monotonic() + 10
    while not condition():
        assert SYSTEM.monotonic() < deadline
        await SYSTEM.sleep(0.001)


async def commit(storage: TxnStorage, start_ts: int, commit_ts: int, *keys: bytes) -> None:
    request = kvrpcpb.CommitRequest(start_version=start_ts, commit_version=commit_ts, keys=keys)
    assert not (await storage.kv_commit(request, EVERYTHING)).HasField("error")


@pytest.mark.parametrize("mode", [{"one_pc": True}, {"asynchronous": True}])
async def test_readers_meet_an_undurable_commit_whose_timestamp_is_decided(
    engine: Engine, storage: TxnStorage, mode: dict[str, bool]
) -> None:
    with engine._writing:  # nothing becomes durable
        writing = asyncio.ensure_future(storage.kv_prewrite(prewrite(10, b"a", b"b", **mode), EVERYTHING))
        await until(lambda: storage.concurrency.min_lock_ts() == 10)
        early = await storage.kv_get(kvrpcpb.GetRequest(key=b"a", version=9), EVERYTHING)
        late = await storage.kv_get(kvrpcpb.GetRequest(key=b"a", version=11), EVERYTHING)
        many = await storage.kv_batch_get(kvrpcpb.BatchGetRequest(keys=[b"z", b"b"], version=11), EVERYTHING)
        scan = await storage.kv_scan(kvrpcpb.ScanRequest(limit=9, version=11), EVERYTHING)
        locks = await storage.kv_scan_lock(kvrpcpb.ScanLockRequest(max_version=11), EVERYTHING)
    assert early.not_found
    assert late.error.locked.lock_version == 10
    assert many.error.locked.key == b"b"
    assert many.pairs[0].error.locked.key == b"b"
    assert scan.error.locked.key == b"a"
    assert scan.pairs[0].error.locked.key == b"a"
    assert locks.error.locked.key == b"a"
    response = await writing
    assert response.one_pc_commit_ts or response.min_commit_ts
    assert storage.concurrency.min_lock_ts() is None


async def test_a_read_before_the_decision_pushes_the_commit_past_itself(
    engine: Engine, storage: TxnStorage
) -> None:
    assert (await storage.kv_get(kvrpcpb.GetRequest(key=b"a", version=50), EVERYTHING)).not_found
    response = await storage.kv_prewrite(prewrite(10, b"a", one_pc=True), EVERYTHING)
    assert response.one_pc_commit_ts == 51
    assert (await storage.kv_get(kvrpcpb.GetRequest(key=b"a", version=50), EVERYTHING)).not_found


async def test_commands_on_one_key_take_turns_and_see_each_other(engine: Engine, storage: TxnStorage) -> None:
    with engine._writing:
        requests = [storage.kv_prewrite(prewrite(ts, b"a"), EVERYTHING) for ts in (10, 11, 12)]
        tasks = [asyncio.ensure_future(request) for request in requests]
        await SYSTEM.sleep(0.01)
        assert not any(task.done() for task in tasks)
    answers = await asyncio.gather(*tasks)
    assert not answers[0].errors
    assert [answer.errors[0].locked.lock_version for answer in answers[1:]] == [10, 10]


async def test_a_caller_that_goes_away_does_not_release_its_keys_early(
    engine: Engine, storage: TxnStorage
) -> None:
    told: list[Change] = []

    class Observer:
        def observe(self, changes: Sequence[Change]) -> None:
            told.extend(changes)

    storage.observer = Observer()
    with engine._writing:
        gone = asyncio.ensure_future(storage.kv_prewrite(prewrite(10, b"a", one_pc=True), EVERYTHING))
        await until(lambda: storage.concurrency.min_lock_ts() == 10)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert storage.concurrency.min_lock_ts() == 10
        after = asyncio.ensure_future(storage.kv_prewrite(prewrite(8, b"a"), EVERYTHING))
        await SYSTEM.sleep(0.01)
        assert not after.done()
    answer = await after
    assert answer.errors[0].conflict.conflict_commit_ts == 11
    assert [change.commit_ts for change in told] == [11]
    assert storage.concurrency.min_lock_ts() is None


async def test_the_observer_is_told_after_the_write_is_visible_and_before_the_answer(
    storage: TxnStorage,
) -> None:
    seen: list[tuple[int, bytes | None]] = []
    answered: list[int] = []

    class Observer:
        def observe(self, changes: Sequence[Change]) -> None:
            assert not answered
            seen.append((len(changes), storage.engine.view().get(Cf.LOCK, b"a")))

    storage.observer = Observer()
    await storage.kv_prewrite(prewrite(10, b"a", b"b"), EVERYTHING)
    answered.append(1)
    ((count, lock),) = seen
    assert count == 2
    assert lock is not None


async def test_after_a_failed_write_readers_keep_off_what_may_be_on_disk(
    engine: Engine, storage: TxnStorage
) -> None:
    bad = kvrpcpb.PrewriteRequest()
    bad.CopyFrom(prewrite(10, b"a", one_pc=True))
    original = engine._write

    def fail(group: object) -> None:
        raise OSError("no space left on device")

    engine._write = fail
    with pytest.raises(Exception, match="no space left"):
        await storage.kv_prewrite(bad, EVERYTHING)
    engine._write = original
    response = await storage.kv_get(kvrpcpb.GetRequest(key=b"a", version=20), EVERYTHING)
    assert response.error.locked.lock_version == 10
    with pytest.raises(Exception, match="no space left"):
        await storage.kv_prewrite(prewrite(20, b"b"), EVERYTHING)


async def test_locks_are_known_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "restarted"
    engine = Engine.open(path, sync=False)
    storage = TxnStorage(engine, clock=SYSTEM, settings=StoreSettings(), max_ts=0)
    await storage.kv_prewrite(prewrite(10, b"a", b"b"), EVERYTHING)
    await storage.close()
    engine.close()
    engine = Engine.open(path, sync=False)
    storage = TxnStorage(engine, clock=SYSTEM, settings=StoreSettings(), max_ts=30)
    locked = await storage.kv_get(kvrpcpb.GetRequest(key=b"b", version=20), EVERYTHING)
    assert locked.error.locked.lock_version == 10
    scan = await storage.kv_scan(kvrpcpb.ScanRequest(limit=9, version=20), EVERYTHING)
    assert [pair.error.locked.key for pair in scan.pairs] == [b"a", b"b"]
    await commit(storage, 10, 11, b"a", b"b")
    assert (await storage.kv_get(kvrpcpb.GetRequest(key=b"b", version=20), EVERYTHING)).value == b"v"
    response = await storage.kv_prewrite(prewrite(21, b"c", one_pc=True), EVERYTHING)
    assert response.one_pc_commit_ts == 31
    await storage.close()
    engine.close()


async def test_a_long_scan_reads_one_moment_over_many_pages(storage: TxnStorage) -> None:
    keys = [b"k%06d" % number for number in range(9000)]
    await storage.kv_prewrite(prewrite(10, *keys), EVERYTHING)
    await commit(storage, 10, 11, *keys)
    request = kvrpcpb.ScanRequest(limit=100_000, version=20)
    scanning = asyncio.ensure_future(storage.kv_scan(request, EVERYTHING))
    removing = asyncio.ensure_future(
        storage.unsafe_destroy_range(kvrpcpb.UnsafeDestroyRangeRequest(), EVERYTHING)
    )
    response = await scanning
    await removing
    assert [pair.key for pair in response.pairs] == keys
    assert not (await storage.kv_scan(request, EVERYTHING)).pairs


async def test_a_scan_finds_its_way_among_very_many_locks_and_versions(storage: TxnStorage) -> None:
    locked = [b"m%05d" % number for number in range(1500)]  # more than are searched one by one
    for ts in range(10, 250, 4):
        await storage.kv_prewrite(prewrite(ts, b"hot"), EVERYTHING)
        await commit(storage, ts, ts + 1, b"hot")
    await storage.kv_prewrite(prewrite(300, b"z"), EVERYTHING)
    await commit(storage, 300, 301, b"z")
    await storage.kv_prewrite(prewrite(400, *locked), EVERYTHING)

    async def scan(ts: int, **options: object) -> list[bytes]:
        request = kvrpcpb.ScanRequest(limit=5, version=ts, **options)
        response = await storage.kv_scan(request, EVERYTHING)
        return [pair.key + b"!" * pair.HasField("error") for pair in response.pairs]

    assert await scan(350) == [b"hot", b"z"]
    assert await scan(350, reverse=True) == [b"z", b"hot"]
    assert await scan(11) == [b"hot"]
    assert await scan(10) == []
    assert await scan(500) == [b"hot", *(key + b"!" for key in locked[:4])]
    assert await scan(500, start_key=b"n") == [b"z"]
    assert await scan(500, reverse=True) == [b"z", *(key + b"!" for key in locked[:-5:-1])]


async def test_range_commands_stay_inside_their_bounds(storage: TxnStorage) -> None:
    half = KeyBounds(b"c", b"e")
    keys = [bytes([letter]) for letter in b"abcdef"]
    await storage.kv_prewrite(prewrite(10, *keys), EVERYTHING)
    locks = await storage.kv_scan_lock(kvrpcpb.ScanLockRequest(max_version=99), half)
    assert [lock.key for lock in locks.locks] == [b"c", b"d"]
    await storage.kv_resolve_lock(kvrpcpb.ResolveLockRequest(start_version=10, commit_version=11), half)
    scan = await storage.kv_scan(kvrpcpb.ScanRequest(limit=9, version=20), EVERYTHING)
    assert [pair.key for pair in scan.pairs if not pair.HasField("error")] == [b"c", b"d"]
    inside = await storage.kv_scan(kvrpcpb.ScanRequest(limit=9, version=20), half)
    assert [pair.key for pair in inside.pairs] == [b"c", b"d"]
    await storage.kv_resolve_lock(kvrpcpb.ResolveLockRequest(start_version=10, commit_version=11), EVERYTHING)
    await storage.kv_delete_range(
        kvrpcpb.DeleteRangeRequest(start_key=b"a", end_key=b"z", notify_only=True), half
    )
    await storage.kv_delete_range(kvrpcpb.DeleteRangeRequest(start_key=b"a", end_key=b"z"), half)
    scan = await storage.kv_scan(kvrpcpb.ScanRequest(limit=9, version=20), EVERYTHING)
    assert [pair.key for pair in scan.pairs] == [b"a", b"b", b"e", b"f"]
    found = await storage.mvcc_get_by_start_ts(
        kvrpcpb.MvccGetByStartTsRequest(start_ts=10), KeyBounds(b"b", b"z")
    )
    assert found.key == b"b"
    assert found.info.writes[0].commit_ts == 11
    absent = await storage.mvcc_get_by_start_ts(kvrpcpb.MvccGetByStartTsRequest(start_ts=10), half)
    assert not absent.HasField("info")


async def test_collection_works_through_many_keys(storage: TxnStorage) -> None:
    keys = [b"k%04d" % number for number in range(700)]
    for ts in (10, 20, 30):
        await storage.kv_prewrite(prewrite(ts, *keys), EVERYTHING)
        await commit(storage, ts, ts + 1, *keys)
    await storage.kv_gc(kvrpcpb.GCRequest(safe_point=25), EVERYTHING)
    left = list(storage.engine.view().iterate(Cf.WRITE))
    assert len(left) == 2 * len(keys)
    scan = await storage.kv_scan(kvrpcpb.ScanRequest(limit=9999, version=25), EVERYTHING)
    assert len(scan.pairs) == len(keys)


@pytest.mark.parametrize(("asynchronous", "expected_ts"), [(True, 11), (False, 50)])
async def test_a_heart_beat_moves_the_commit_of_two_phases_only(
    storage: TxnStorage, asynchronous: bool, expected_ts: int
) -> None:
    """That of an async commit is decided by its prewrites: all who look must find the same."""
    await storage.kv_prewrite(prewrite(10, b"a", b"b", asynchronous=asynchronous), EVERYTHING)
    beat = kvrpcpb.TxnHeartBeatRequest(
        primary_lock=b"a", start_version=10, advise_lock_ttl=9000, min_commit_ts=50
    )
    assert (await storage.kv_txn_heart_beat(beat, EVERYTHING)).lock_ttl == 9000
    status = kvrpcpb.CheckTxnStatusRequest(primary_key=b"a", lock_ts=10)
    found = (await storage.kv_check_txn_status(status, EVERYTHING)).lock_info
    assert (found.lock_ttl, found.min_commit_ts) == (9000, expected_ts)


async def test_a_transaction_from_before_collection_cannot_write_over_what_was_collected(
    engine: Engine, storage: TxnStorage
) -> None:
    await storage.kv_prewrite(prewrite(5, b"b", one_pc=True), EVERYTHING)
    deletion = prewrite(20, b"a")
    deletion.mutations[0].op = kvrpcpb.Del
    await storage.kv_prewrite(deletion, EVERYTHING)
    await commit(storage, 20, 21, b"a")
    await storage.kv_gc(kvrpcpb.GCRequest(safe_point=25), EVERYTHING)
    reopened = TxnStorage(engine, clock=SYSTEM, settings=StoreSettings(), max_ts=30, collected_ts=25)
    for one in (storage, reopened):
        for one_pc in (False, True):
            response = await one.kv_prewrite(prewrite(10, b"a", one_pc=one_pc), EVERYTHING)
            assert response.errors[0].abort.startswith("GcTooEarly")
        again = await one.kv_prewrite(prewrite(5, b"b", one_pc=True), EVERYTHING)
        assert again.one_pc_commit_ts == 6  # a repeated request learns what became of the first
    assert not list(engine.view().iterate(Cf.LOCK))
    assert not (await storage.kv_prewrite(prewrite(25, b"a"), EVERYTHING)).errors


async def test_waiting_requests_end_when_their_caller_goes_away(storage: TxnStorage) -> None:
    def lock(ts: int) -> Awaitable[kvrpcpb.PessimisticLockResponse]:
        request = kvrpcpb.PessimisticLockRequest(
            mutations=[kvrpcpb.Mutation(op=kvrpcpb.PessimisticLock, key=b"a")],
            primary_lock=b"a",
            start_version=ts,
            for_update_ts=ts,
            lock_ttl=3000,
        )
        return storage.kv_pessimistic_lock(request, EVERYTHING)

    async def waits() -> int:
        response = await storage.get_lock_wait_info(kvrpcpb.GetLockWaitInfoRequest(), EVERYTHING)
        return len(response.entries)

    await lock(10)
    gone = asyncio.ensure_future(lock(20))
    while await waits() == 0:
        await SYSTEM.sleep(0.001)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert await waits() == 0
