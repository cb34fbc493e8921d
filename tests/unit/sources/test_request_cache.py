"""Regions that wait for their turn on a store."""

import asyncio

from penstock.sources.tikv.request_cache import STALE_AFTER_S, Deregister, RequestCache
from penstock.sources.tikv.routing import Urgency
from penstock.testing.clock import ManualClock
from support.feeds import a_feed, a_span, a_task

LOW = Urgency.LOW


def a_cache(pending_max: int, clock: ManualClock | None = None) -> RequestCache:
    return RequestCache(pending_max, clock=clock or ManualClock(), now_ms=lambda: 0)


async def ready(cache: RequestCache) -> object | None:
    """What `next` gives now; None when it would wait."""
    asking = asyncio.create_task(cache.next())
    await asyncio.wait([asking], timeout=0.02)
    if asking.done():
        return asking.result()
    asking.cancel()
    return None


async def test_tasks_come_out_by_priority_and_then_in_order() -> None:
    cache, span = a_cache(10), a_span()
    low = a_task(span, 1, b"a", b"b", urgency=LOW)
    later = a_task(span, 2, b"b", b"c", urgency=LOW)
    high = a_task(span, 3, b"c", b"d")
    for task in (low, later, high):
        cache.add(task)
    assert [await ready(cache) for _ in range(4)] == [high, low, later, None]


async def test_no_more_than_the_limit_are_in_their_scan_at_a_time() -> None:
    cache, span = a_cache(1), a_span()
    first = a_task(span, 1, b"a", b"b", urgency=LOW)
    second = a_task(span, 2, b"b", b"c", urgency=LOW)
    cache.add(first)
    cache.add(second)
    assert await ready(cache) is first
    feed = a_feed(first)
    cache.mark_sent(feed)
    assert cache.pending == 1
    assert await ready(cache) is None
    cache.settle(feed)
    cache.settle(feed)
    assert await ready(cache) is second


async def test_an_urgent_task_passes_the_limit() -> None:
    cache, span = a_cache(1), a_span()
    cache.mark_sent(a_feed(a_task(span, 1, b"a", b"b")))
    urgent = a_task(span, 2, b"b", b"c")
    cache.add(a_task(span, 3, b"c", b"d", urgency=LOW))
    cache.add(urgent)
    assert await ready(cache) is urgent
    assert await ready(cache) is None


async def test_somebody_who_waits_is_woken_by_a_task_and_by_room() -> None:
    cache, span = a_cache(1), a_span()
    asking = asyncio.create_task(cache.next())
    await asyncio.wait([asking], timeout=0.01)
    task = a_task(span, 1, b"a", b"b", urgency=LOW)
    cache.add(task)
    assert await asyncio.wait_for(asking, 1) is task
    feed = a_feed(task)
    cache.mark_sent(feed)
    cache.add(a_task(span, 2, b"b", b"c", urgency=LOW))
    asking = asyncio.create_task(cache.next())
    await asyncio.wait([asking], timeout=0.01)
    assert not asking.done()
    cache.settle(feed)
    await asyncio.wait_for(asking, 1)


async def test_a_wait_that_is_cancelled_takes_nothing() -> None:
    cache, span = a_cache(1), a_span()
    assert await ready(cache) is None
    task = a_task(span)
    cache.add(task)
    assert await ready(cache) is task


async def test_a_scan_that_takes_for_ever_stops_counting() -> None:
    clock = ManualClock()
    cache, span = a_cache(1, clock), a_span()
    cache.mark_sent(a_feed(a_task(span, 1, b"a", b"b", urgency=LOW)))
    clock.advance(STALE_AFTER_S - 1)
    cache.sweep()
    assert cache.pending == 1
    clock.advance(1)
    cache.sweep()
    assert cache.pending == 0


async def test_ending_a_subscription_goes_first_and_drops_its_tasks() -> None:
    cache, leaving, staying = a_cache(10), a_span(1), a_span(2)
    gone = [a_task(leaving, 1, b"a", b"b"), a_task(leaving, 2, b"b", b"c")]
    kept = a_task(staying, 3, b"a", b"b")
    for task in (gone[0], kept, gone[1]):
        cache.add(task)
    assert sorted(task.meta.id for task in cache.deregister(1)) == [1, 2]
    ended = await ready(cache)
    assert isinstance(ended, Deregister)
    assert ended.sub_id == 1
    assert await ready(cache) is kept


async def test_without_a_stream_there_is_nothing_to_deregister() -> None:
    cache, span = a_cache(10), a_span()
    cache.deregister(7)
    waiting = asyncio.create_task(cache.wait())
    await asyncio.wait([waiting], timeout=0.01)
    assert not waiting.done()
    task = a_task(span)
    cache.add(task)
    await asyncio.wait_for(waiting, 1)
    assert await ready(cache) is task


async def test_clearing_returns_what_waits_in_the_order_of_priority() -> None:
    cache, span = a_cache(1), a_span()
    low, high = a_task(span, 1, b"a", b"b", urgency=LOW), a_task(span, 2, b"b", b"c")
    cache.add(low)
    cache.add(high)
    cache.mark_sent(a_feed(low))
    assert cache.clear() == [high, low]
    assert (len(cache), cache.pending) == (0, 0)
