"""Before a DDL: everything that its dispatchers sent is on the remote."""

import asyncio
from typing import Any

import pytest
from prometheus_client import REGISTRY

from penstock.errors import Corrupt, Unavailable
from penstock.follow.ddl_events import DdlEvent
from penstock.testing.clock import ManualClock
from support.sinkparts import SinkWorld, remote_silent


def ddl(ts: int) -> DdlEvent:
    return DdlEvent(commit_ts=ts, type=0, query="", database="shop")


def metric(name: str, **labels: Any) -> float:
    return REGISTRY.get_sample_value(name, {"changefeed": "test", **labels}) or 0.0


async def test_the_drain_covers_the_encode_queue() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.engine.encoding.shut()
        world.add(1, 5)
        await world.until(lambda: world.engine.encoding.waiting == 1)
        world.add(1, 6)  # waits in the shard behind the job
        drain = world.drain(1, 7)
        await world.settle()
        assert not drain.done()
        world.engine.encoding.open()
        await drain
        assert {"d1@5 flushed", "d1@6 flushed"} <= set(world.told)


async def test_the_drain_covers_the_spool() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.add(1, 5)
        await world.until(lambda: "d1@5 woken" in world.told)
        await world.drain(1, 7)
        assert world.told[-1] == "d1@5 flushed"


async def test_the_drain_covers_the_remote() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.engine.writing.shut()
        world.add(1, 5, 1000)
        await world.until(lambda: world.engine.writing.waiting == 1)
        drain = world.drain(1, 7)
        await world.settle()
        assert not drain.done()
        world.engine.writing.open()
        await drain
        assert world.told[-1] == "d1@5 flushed"


async def test_dispatchers_drain_before_the_ddl_is_written() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        for number in range(5):
            world.add(number, 5)
            world.add(number, 6)
        await asyncio.gather(*(world.drain(number, 7) for number in range(5)))
        await world.sink.write_block_event(ddl(7))
        assert world.told[-1] == "ddl 7"
        assert sum(each.endswith("flushed") for each in world.told) == 10


async def test_a_drain_writes_its_own_dispatcher_and_leaves_the_others_to_collect() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.add(1, 5)
        world.add(2, 5)
        await world.until(lambda: len(world.told) == 2)
        await world.drain(1, 7)
        assert [file.dispatcher_id for file in world.engine.files] == ["1"]


async def test_a_drain_with_nothing_before_it_returns() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        await world.drain(1, 7)


async def test_a_drain_covers_many_files_of_its_dispatcher() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        for ts in range(1, 9):
            world.add(1, ts, 700)
        await world.drain(1, 9)
        assert [each for each in world.told if "flushed" in each] == [
            f"d1@{ts} flushed" for ts in range(1, 9)
        ]


async def test_a_failed_write_holds_the_drain_and_then_fails_it_and_acknowledges_nothing() -> None:
    world = SinkWorld(clock=ManualClock())
    running = world.run()
    world.engine.failing = world.engine.final = {"1"}
    world.add(1, 5)
    drain = world.drain(1, 7)
    await world.until(lambda: "1" in world.sink.failing)
    assert not drain.done()
    await world.until_after(60, drain.done)
    with pytest.raises(Unavailable, match="could not be written"):
        await drain
    with pytest.raises(Unavailable, match="could not be written"):
        await running
    assert world.told == ["d1@5 woken"]
    with pytest.raises(Unavailable):
        await world.sink.write_block_event(ddl(7))
    assert "ddl 7" not in world.told
    await world.sink.close()


async def test_a_failed_encode_fails_the_drain() -> None:
    world = SinkWorld(clock=ManualClock())
    running = world.run()
    world.engine.encoding.error = Corrupt("an object is damaged")
    world.add(1, 5)
    with pytest.raises(Corrupt, match="is damaged"):
        await world.drain(1, 7)
    with pytest.raises(Corrupt, match="is damaged"):
        await running
    assert world.told == []
    await world.sink.close()


async def test_a_drain_that_nobody_waits_for_any_more_harms_nobody() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.engine.writing.shut()
        world.add(1, 5)
        drain = world.drain(1, 7)
        await world.until(lambda: world.engine.writing.waiting == 1)
        drain.cancel()
        with pytest.raises(asyncio.CancelledError):
            await drain
        world.engine.writing.open()
        await world.until(lambda: "d1@5 flushed" in world.told)
        world.add(1, 6)
        await world.drain(1, 8)


async def test_a_ddl_that_cannot_be_written_tells_its_caller_and_may_be_repeated() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.files.error = remote_silent()
        with pytest.raises(Unavailable):
            await world.sink.write_block_event(ddl(7))
        world.files.error = None
        await world.sink.write_block_event(ddl(7))
        assert world.told == ["ddl 7"]


async def test_a_drain_is_timed_in_its_two_parts() -> None:
    clock = ManualClock()
    before = {
        part: metric(f"penstock_sink_ddl_drain_{part}_seconds_sum")
        for part in ("duration", "wait_encode", "wait_remote")
    }
    async with SinkWorld(clock=clock, flush_interval_s=100.0) as world:
        world.engine.encoding.shut()
        world.engine.writing.shut()
        world.add(1, 5)
        drain = world.drain(1, 7)
        await world.until(lambda: world.engine.encoding.waiting == 1)
        clock.advance(2)
        world.engine.encoding.open()
        await world.until(lambda: world.engine.writing.waiting == 1)
        clock.advance(3)
        world.engine.writing.open()
        await drain
        await world.sink.write_block_event(ddl(7))
    after = {part: metric(f"penstock_sink_ddl_drain_{part}_seconds_sum") for part in before}
    assert {part: after[part] - before[part] for part in before} == {
        "duration": 5,
        "wait_encode": 2,
        "wait_remote": 3,
    }
