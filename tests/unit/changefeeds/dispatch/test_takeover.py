"""A changefeed that another process has taken over, and failures that are far apart."""

import pytest

from penstock.changefeeds.model import ChangefeedState
from penstock.errors import Fenced, Unavailable
from penstock.follow.slices import Position
from support.ddlevents import table_schema

A = table_schema(1)


async def test_one_that_was_taken_over_does_not_take_the_checkpoint_of_consumers_back(world) -> None:
    w = world(A)
    w.source.put(1, 20)
    w.source.advance(50)
    w.start()
    await w.reached(50)

    def taken_over(name: str) -> None:
        if name == "keep_checkpoint":
            raise Fenced("another process has taken it over")

    w.progress.fault = taken_over
    told = list(w.remote.checkpoints)
    await w.pause()
    assert w.remote.checkpoints == told


async def test_failures_far_apart_do_not_end_a_snapshot_that_takes_long(world) -> None:
    w = world(A, begin=Position(10, b""), give_up_s=60.0)
    w.source.put(1, 5, *(b"%03d" % each for each in range(40)))
    w.source.advance(50)
    slices = 0

    def now_and_then(name: str) -> None:
        nonlocal slices
        if name == "next_slice":
            slices += 1
            w.clock.now += 7.0  # reading takes its time
            if slices % 6 == 0:
                raise Unavailable("a glitch")

    w.source.fault = now_and_then
    w.start()
    await w.reached(50)
    assert w.clock.now > 120
    assert w.feed.state is ChangefeedState.NORMAL
    assert len(w.rows()) == 40


async def test_a_snapshot_that_comes_no_further_is_given_up(world) -> None:
    w = world(A, begin=Position(10, b""), give_up_s=60.0)
    w.source.put(1, 5, *(b"%03d" % each for each in range(40)))
    w.source.advance(50)

    def after_a_while(name: str) -> None:
        if name == "next_slice" and len(w.source.slice_calls) > 5:
            raise Unavailable("no more")

    w.source.fault = after_a_while
    w.start()
    with pytest.raises(Unavailable, match="no more"):
        await w.reached(50)
    assert w.feed.state is ChangefeedState.FAILED
