"""Tasks, signals and threads that the sink is made of."""

import asyncio
import threading
from functools import partial

import pytest

from penstock.clock import SYSTEM
from penstock.errors import Unavailable
from penstock.eventloop import AccountPlaces, Notifier, TaskScope, ThreadRunner, WakeUp
from penstock.shares import Shares
from penstock.testing.clock import ManualClock


async def turns() -> None:
    for _ in range(10):
        await SYSTEM.sleep(0)


async def test_the_first_failure_is_kept_and_nothing_is_started_after_it() -> None:
    underway = TaskScope()
    ran = []

    async def fail(text: str) -> None:
        raise Unavailable(text)

    async def work() -> None:
        ran.append(1)

    underway.start(fail("first"))
    underway.start(fail("second"))
    await underway.wait()
    underway.start(work())
    await underway.stop()
    assert str(underway.failure) == "first"
    assert ran == []


async def test_stop_returns_when_everything_has_unwound() -> None:
    underway = TaskScope()
    unwound = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await SYSTEM.sleep(0)
            unwound.append(1)

    for _ in range(3):
        underway.start(work())
    await turns()
    await underway.stop()
    assert unwound == [1, 1, 1]
    assert underway.failure is None


async def test_what_is_told_while_nobody_waits_is_not_lost() -> None:
    signal = WakeUp(ManualClock())
    signal.notify()
    await signal.wait()
    waiting = asyncio.ensure_future(signal.wait())
    await turns()
    assert not waiting.done()
    signal.notify()
    await waiting


async def test_a_wait_ends_with_its_time() -> None:
    clock = ManualClock()
    signal = WakeUp(clock)
    waiting = asyncio.ensure_future(signal.wait(5.0))
    await turns()
    clock.advance(4.9)
    await turns()
    assert not waiting.done()
    clock.advance(0.1)
    await waiting


async def test_a_beat_reaches_everybody_who_waits() -> None:
    pulse = Notifier()
    state = {"open": False}
    waiting = [asyncio.ensure_future(pulse.wait_for(lambda: state["open"])) for _ in range(3)]
    await turns()
    pulse.notify_all()
    await turns()
    assert not any(each.done() for each in waiting)
    state["open"] = True
    pulse.notify_all()
    await asyncio.gather(*waiting)


async def test_a_call_that_is_cancelled_has_ended_when_its_caller_goes_on() -> None:
    threads = ThreadRunner(1, "test")
    begun, may_end, ended = threading.Event(), threading.Event(), []

    def work() -> None:
        begun.set()
        may_end.wait(10)
        ended.append(1)

    calling = asyncio.ensure_future(threads.call(work))
    queued = asyncio.ensure_future(threads.call(lambda: ended.append(2)))
    while not begun.is_set():
        await SYSTEM.sleep(0.001)
    queued.cancel()
    calling.cancel()
    await turns()
    assert queued.cancelled()
    assert not calling.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert ended == [1]
    threads.close()


async def test_a_call_gives_its_result_or_raises_what_it_raised() -> None:
    threads = ThreadRunner(2, "test")
    assert await threads.call(int, "7") == 7
    with pytest.raises(ValueError, match="invalid literal"):
        await threads.call(int, "seven")
    threads.close()


async def test_calls_of_one_account_that_hang_leave_threads_to_another() -> None:
    """As the sinks and engines of many changefeeds make them: each has its own runner."""
    places, stop = AccountPlaces(Shares.of(8)), threading.Event()
    runners = [ThreadRunner(64, "test-ann", place=partial(places.hold, "ann")) for _ in range(5)]
    other = ThreadRunner(64, "test-bob", place=partial(places.hold, "bob"))

    def hanging() -> int:
        return sum(thread.name.startswith("test-ann") for thread in threading.enumerate())

    calls = [asyncio.ensure_future(runner.call(stop.wait)) for runner in runners for _ in range(20)]
    try:
        while hanging() < 8:
            await SYSTEM.sleep(0.001)
        assert await asyncio.wait_for(other.call(int, "7"), 20) == 7
        assert hanging() == 8
        for waiting in calls[:50]:
            waiting.cancel()
        assert await asyncio.wait_for(other.call(int, "8"), 20) == 8
    finally:
        stop.set()
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(found is True for found in ended) >= 50
    async with asyncio.timeout(20), places.hold("ann"):
        pass
    for runner in (*runners, other):
        runner.close()
