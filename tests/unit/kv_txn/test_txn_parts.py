"""Small parts of transactions: errors, caches, background work, what follows a failed lock."""

import asyncio
import logging
from typing import Any

import pytest

from penstock.clock import SYSTEM, compose_ts
from penstock.errors import (
    Aborted,
    AssertionFailed,
    Deadlock,
    KeyExists,
    LockTimeout,
    PenstockError,
    Unavailable,
    WriteConflict,
)
from penstock.kv.actions.pessimistic import NO_WAIT, LockWait
from penstock.kv.background import Background
from penstock.kv.locking import Aftermath, aftermath
from penstock.kv.locks import StatusCache, TxnStatus, to_error
from penstock.kv.protocol import check_age, check_commit_ts, check_commit_ts_expired
from penstock.kv.snapshot import ValueCache
from penstock.proto import kvrpcpb_pb2 as kvrpcpb

CONFLICT = kvrpcpb.WriteConflict(key=b"k", start_ts=7, conflict_ts=8, conflict_commit_ts=9)
ROLLED_BACK = kvrpcpb.WriteConflict(reason=kvrpcpb.WriteConflict.Reason.SelfRolledBack)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (kvrpcpb.KeyError(conflict=CONFLICT, retryable="conflict"), WriteConflict),
        (kvrpcpb.KeyError(conflict=ROLLED_BACK), Aborted),
        (kvrpcpb.KeyError(already_exist=kvrpcpb.AlreadyExist(key=b"k")), KeyExists),
        (kvrpcpb.KeyError(assertion_failed=kvrpcpb.AssertionFailed(key=b"k")), AssertionFailed),
        (kvrpcpb.KeyError(txn_lock_not_found=kvrpcpb.TxnLockNotFound(key=b"k"), retryable="x"), Aborted),
        (kvrpcpb.KeyError(txn_not_found=kvrpcpb.TxnNotFound()), Aborted),
        (kvrpcpb.KeyError(locked=kvrpcpb.LockInfo(key=b"k")), Unavailable),
        (kvrpcpb.KeyError(abort="PessimisticLockNotFound"), Aborted),
        (kvrpcpb.KeyError(retryable="try again"), Aborted),
        (kvrpcpb.KeyError(), Aborted),
    ],
)
def test_key_errors_become_errors_by_what_the_caller_does_next(
    message: kvrpcpb.KeyError, kind: type[PenstockError]
) -> None:
    error = to_error(message, 7)
    assert type(error) is kind
    if isinstance(error, WriteConflict):
        assert (error.key, error.start_ts, error.conflict_ts) == (b"k", 7, 9)


@pytest.mark.parametrize(
    ("error", "keys", "outcome"),
    [
        (WriteConflict(b"k", start_ts=1, conflict_ts=2), 1, Aftermath.NOTHING),
        (KeyExists(b"k"), 1, Aftermath.NOTHING),
        (WriteConflict(b"k", start_ts=1, conflict_ts=2), 2, Aftermath.ROLL_BACK_LATER),
        (LockTimeout(b"k", no_wait=True), 1, Aftermath.ROLL_BACK_LATER),
        (Unavailable("no answer"), 1, Aftermath.ROLL_BACK_LATER),
        (asyncio.CancelledError(), 3, Aftermath.ROLL_BACK_LATER),
        (Deadlock(b"k", waits_for_ts=1, retryable=False), 1, Aftermath.ROLL_BACK_AND_WAIT),
        (Deadlock(b"k", waits_for_ts=1, retryable=True), 4, Aftermath.ROLL_BACK_AND_WAIT),
    ],
)
def test_a_failed_lock_call_has_one_of_three_outcomes(
    error: BaseException, keys: int, outcome: Aftermath
) -> None:
    assert aftermath(error, keys) is outcome


def test_the_wait_asked_of_the_store_shrinks_to_none() -> None:
    wait = LockWait(deadline=10.0, no_wait=False)
    assert [wait.timeout_ms(now) for now in (8.0, 9.5, 10.0, 11.0)] == [2000, 500, NO_WAIT, NO_WAIT]
    assert [wait.over(now) for now in (9.9, 10.0)] == [False, True]
    declined = LockWait(deadline=10.0, no_wait=True)
    assert declined.timeout_ms(0) == NO_WAIT
    assert declined.over(0)


def test_final_statuses_are_kept_and_the_oldest_forgotten_first() -> None:
    cache = StatusCache(2)
    cache.save(1, TxnStatus(ttl_ms=100))
    cache.save(1, TxnStatus(secondaries=()))
    assert len(cache) == 0
    for start_ts in (1, 2, 3):
        cache.save(start_ts, TxnStatus(commit_ts=start_ts + 10))
    assert cache.get(1) is None
    assert [cache.get(ts) for ts in (2, 3)] == [TxnStatus(commit_ts=12), TxnStatus(commit_ts=13)]


def test_a_value_cache_stays_within_its_bytes() -> None:
    cache = ValueCache(bytes_max=1_000)
    for number in range(20):
        cache.save(b"%02d" % number, b"v" * 100)
    kept = [number for number in range(20) if b"%02d" % number in cache]
    assert kept == [16, 17, 18, 19]
    cache.save(b"none", None)
    assert b"none" in cache
    assert cache[b"none"] is None


def test_times_that_cannot_be_are_refused() -> None:
    hour = compose_ts(3_600_000)
    check_age(1, 24 * hour)
    with pytest.raises(Aborted, match="25 hours ago"):
        check_age(1, 25 * hour)
    check_commit_ts(5, 6)
    with pytest.raises(Aborted, match="not after"):
        check_commit_ts(5, 5)
    check_commit_ts_expired(10, 10 + hour)
    with pytest.raises(Aborted, match="more than an hour"):
        check_commit_ts_expired(10, 11 + hour)


async def test_background_work_is_waited_for_and_its_failure_told(caplog: pytest.LogCaptureFixture) -> None:
    background = Background()
    done = []

    async def work(name: str) -> None:
        await SYSTEM.sleep(0.01)
        if name == "bad":
            raise Unavailable("no")
        done.append(name)

    with caplog.at_level(logging.WARNING, logger="penstock"):
        background.spawn(work("good"), "good")
        background.spawn(work("bad"), "bad")
        await background.close(5)
    assert done == ["good"]
    assert [(record.work, record.error) for record in caplog.records] == [("bad", "no")]
    assert len(background) == 0


async def test_closing_does_not_wait_for_ever() -> None:
    background = Background()
    forever: Any = asyncio.Event()
    stuck = background.spawn(forever.wait(), "stuck")
    helper = background.assist(forever.wait(), "helper")
    await background.close(0.01)
    assert stuck.cancelled()
    assert helper.cancelled()
