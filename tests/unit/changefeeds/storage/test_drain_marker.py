"""A marker's end, and who waits for it."""

import asyncio

import pytest

from penstock.changefeeds.sinks.sink import DrainMarker
from penstock.errors import Unavailable
from support.sinkparts import dispatcher


def marker() -> DrainMarker:
    return DrainMarker(dispatcher(1), 9, at=0.0)


async def test_any_number_may_wait_before_and_after_the_end() -> None:
    drain = marker()
    waiting = [asyncio.ensure_future(drain.wait()) for _ in range(3)]
    drain.acknowledge()
    await asyncio.gather(*waiting, drain.wait())


async def test_everybody_hears_why_it_failed() -> None:
    drain = marker()
    drain.fail(Unavailable("gone"))
    for _ in range(2):
        with pytest.raises(Unavailable, match="gone"):
            await drain.wait()


async def test_a_marker_that_was_acknowledged_does_not_fail_later() -> None:
    drain = marker()
    drain.acknowledge()
    drain.fail(Unavailable("gone"))
    await drain.wait()


async def test_somebody_who_stops_waiting_does_not_end_it() -> None:
    drain = marker()
    waiting = asyncio.ensure_future(drain.wait())
    await asyncio.wait([waiting], timeout=0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not drain.ended
