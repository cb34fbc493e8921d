"""The first failure ends everything, loudly; nothing after it is acknowledged."""

import asyncio

import pytest

from penstock.errors import Corrupt, Fenced, Unavailable
from penstock.follow.ddl_events import DdlEvent
from penstock.spark.errors import SessionEnded
from penstock.testing.clock import ManualClock
from support.sinkparts import Gate, RowlessEngine, SinkWorld, dispatcher, remote_silent

DDL = DdlEvent(commit_ts=9, type=0, query="", database="shop")


async def failed(world: SinkWorld, error: type[Exception] = Unavailable) -> None:
    with pytest.raises(error):
        await world.run()
    await world.sink.close()
    assert world.engine.closed


async def test_a_file_that_cannot_be_written_is_written_later_and_the_others_of_its_job_go_on() -> None:
    async with SinkWorld(clock=ManualClock(), spool_disk_quota=1_000_000) as world:
        world.engine.failing = {"1"}
        world.engine.encoding.shut()
        for number in range(4):
            world.add(number, 5, 1000)
        await world.until(lambda: world.engine.encoding.waiting == 1)
        world.engine.encoding.open()
        await world.until(lambda: "1" in world.sink.failing)
        await world.until(lambda: sum("flushed" in each for each in world.told) == 3)
        assert {each for each in world.told if "flushed" in each} == {f"d{n}@5 flushed" for n in (0, 2, 3)}
        world.engine.failing.clear()
        await world.until_after(1, lambda: "d1@5 flushed" in world.told)
        assert not world.sink.failing


async def test_a_file_of_the_spool_that_fails_again_and_again_delays_its_dispatcher_only() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.engine.failing = {"1"}
        world.add(1, 5, 1000)
        await world.until_after(60, lambda: world.engine.refused["1"] >= 6)
        assert "could not be written" in str(world.sink.failing["1"].error)
        world.add(2, 5, 1000)
        await world.until_after(1, lambda: "d2@5 flushed" in world.told)
        assert "d1@5 flushed" not in world.told
        world.engine.failing.clear()
        await world.until_after(60, lambda: "d1@5 flushed" in world.told)
        assert not world.sink.failing


async def test_a_file_whose_payloads_are_gone_for_good_ends_the_sink() -> None:
    clock = ManualClock()
    world = SinkWorld(clock=clock)
    running = world.run()
    world.engine.failing = world.engine.final = {"1"}
    world.add(1, 5, 1000)
    await world.until_after(60, running.done)
    await failed(world)
    assert "d1@5 flushed" not in world.told


async def test_slices_that_cannot_be_encoded_delay_their_dispatchers_only() -> None:
    """Whichever jobs they come into; and their order is kept."""
    async with SinkWorld(clock=ManualClock(), spool_disk_quota=1_000_000) as world:
        for name in ("1", "3"):
            world.engine.encoding_of[name] = Gate()
            world.engine.encoding_of[name].error = remote_silent()
        for number in range(5):
            world.add(number, 5, 1000)
        await world.until(lambda: sum("flushed" in each for each in world.told) == 3)
        world.add(1, 6, 1000)
        world.add(2, 6, 1000)
        await world.until(lambda: "d2@6 flushed" in world.told)
        await world.until(lambda: set(world.sink.failing) == {"1", "3"})
        assert "changes of shop.items could not be encoded" in str(world.sink.failing["1"].error)
        for gate in world.engine.encoding_of.values():
            gate.error = None
        await world.until_after(120, lambda: {"d1@6 flushed", "d3@5 flushed"} <= set(world.told))
        assert world.told.index("d1@5 flushed") < world.told.index("d1@6 flushed")
        assert not world.sink.failing


@pytest.mark.parametrize("step", ["encode", "write"])
async def test_work_that_fails_alone_for_a_minute_ends_the_sink(step: str) -> None:
    """Whoever goes on looks where the rows are by then; the others have gone on until then."""
    clock = ManualClock()
    world = SinkWorld(clock=clock)
    world.add(2, 5, 1000)
    running = world.run()
    await world.until_after(10, lambda: "d2@5 flushed" in world.told)
    gate = world.engine.encoding_of["1"] = Gate() if step == "encode" else world.engine.writing
    gate.error = remote_silent()
    world.add(1, 5, 1000)
    await world.until_after(20, lambda: "1" in world.sink.failing)
    assert not running.done()
    began_at = clock.monotonic()
    await world.until_after(1, running.done)
    assert 10 < clock.monotonic() - began_at < 120
    await failed(world)
    assert "d1@5 flushed" not in world.told


async def test_files_of_a_write_job_that_fails_are_written_by_others() -> None:
    async with SinkWorld(clock=ManualClock(), spool_disk_quota=1_000_000) as world:
        world.engine.writing.shut()
        for number in range(4):
            world.add(number, 5, 1000)
        await world.until(lambda: world.engine.writing.waiting >= 1)
        world.engine.writing.error = remote_silent()
        world.engine.writing.open()
        await world.until(lambda: bool(world.sink.failing))
        world.engine.writing.error = None
        await world.until_after(60, lambda: sum("flushed" in each for each in world.told) == 4)
        assert not world.sink.failing


async def test_a_dispatcher_whose_place_is_not_found_waits_alone() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.files.failing = {"1": remote_silent()}
        world.add(1, 5, flush=True)
        world.add(2, 5, flush=True)
        await world.until(lambda: "d2@5 flushed" in world.told)
        await world.until(lambda: "1" in world.sink.failing)
        world.files.failing.clear()
        await world.until_after(60, lambda: "d1@5 flushed" in world.told)


async def test_after_a_failure_events_are_ignored_and_calls_for_ddls_raise() -> None:
    world = SinkWorld(clock=ManualClock())
    world.engine.encoding.error = Corrupt("an object is damaged")
    world.add(1, 5)
    with pytest.raises(Corrupt, match="is damaged"):
        await world.run()
    world.engine.encoding.error = None
    world.add(2, 5)
    with pytest.raises(Corrupt, match="is damaged"):
        await world.sink.pass_block_event(dispatcher(2), DDL)
    with pytest.raises(Corrupt, match="is damaged"):
        await world.sink.write_block_event(DDL)
    await world.sink.close()
    assert world.told == []
    assert len(world.engine.encode_jobs) == 1


@pytest.mark.parametrize("where", ["begin", "write", "release", "checkpoint", "callback"])
async def test_a_failure_anywhere_ends_the_sink(where: str) -> None:
    world = SinkWorld(clock=ManualClock())
    if where == "begin":
        world.progress.error = Fenced("another process has the changefeed")
    elif where == "write":
        world.engine.writing.error = SessionEnded("the session has ended")
    elif where == "release":

        async def release(segment: int) -> None:
            raise remote_silent()

        world.engine.release = release
    elif where == "checkpoint":
        world.files.error = remote_silent()
        world.sink.add_checkpoint_ts(5)
    event = world.add(1, 5, 1000) if where != "checkpoint" else None
    if where == "callback":

        def fail() -> None:
            raise Unavailable("the dispatcher has ended")

        event.add_post_enqueue(fail)
    await failed(world, Fenced if where == "begin" else Unavailable)
    if where != "release":
        assert not [each for each in world.told if "flushed" in each]


async def test_a_sink_that_is_cancelled_unwinds_and_acknowledges_nothing_later() -> None:
    world = SinkWorld(clock=ManualClock())
    running = world.run()
    world.engine.writing.shut()
    world.add(1, 5, 1000)
    drain = world.drain(2, 7)
    await drain
    drain = world.drain(1, 7)
    await world.until(lambda: world.engine.writing.waiting == 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(Unavailable, match="has ended"):
        await drain
    world.engine.writing.open()
    await world.settle()
    assert world.told == ["d1@5 woken"]
    await world.sink.close()
    assert world.engine.closed


async def test_the_first_failure_is_the_one_that_is_raised() -> None:
    world = SinkWorld(clock=ManualClock())
    running = world.run()
    world.engine.writing.shut()
    world.add(1, 5, 1000)
    await world.until(lambda: world.engine.writing.waiting == 1)
    world.engine.encoding.error = Corrupt("first")
    world.add(2, 5)
    with pytest.raises(Corrupt, match="first"):
        await running
    await world.sink.close()


async def test_close_before_run_releases_everything_and_fails_who_waits() -> None:
    world = SinkWorld(clock=ManualClock())
    world.add(1, 5)
    drain = world.drain(1, 7)
    await world.settle()
    await world.sink.close()
    with pytest.raises(Unavailable, match="has ended"):
        await drain
    assert world.told == []
    assert world.engine.closed


async def test_close_writes_everything_that_was_given_before() -> None:
    world = SinkWorld(clock=ManualClock())
    running = world.run()
    await world.settle()
    for number in range(20):
        for ts in (5, 6, 7):
            world.add(number, ts, 70)
    await world.sink.close()
    await running
    assert sum(each.endswith("flushed") for each in world.told) == 60
    assert not world.engine.segments


async def test_close_without_anything_to_do_returns() -> None:
    world = SinkWorld(clock=ManualClock())
    running = world.run()
    await world.settle()
    await world.sink.close()
    await running
    with pytest.raises(Unavailable, match="has ended"):
        await world.sink.write_block_event(DDL)


async def test_a_close_that_is_given_up_releases_everything_nevertheless() -> None:
    world = SinkWorld(clock=ManualClock())
    running = world.run()
    world.engine.writing.shut()
    world.add(1, 5)
    closing = asyncio.ensure_future(world.sink.close())
    await world.until(lambda: world.engine.writing.waiting == 1)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await running
    assert world.engine.closed
    assert world.told == ["d1@5 woken"]


async def test_close_fails_with_what_fails_while_it_writes() -> None:
    world = SinkWorld(clock=ManualClock())
    running = world.run()
    await world.settle()
    world.engine.failing = {"1"}
    world.add(1, 5)
    await world.sink.close()
    with pytest.raises(Unavailable, match="could not be written"):
        await running
    assert world.told == ["d1@5 woken"]


async def test_a_dispatcher_that_is_removed_leaves_nothing_behind() -> None:
    async with SinkWorld(clock=ManualClock(), worker_count=1) as world:
        world.engine.encoding.shut()
        world.add(1, 5)
        await world.until(lambda: world.engine.encoding.waiting == 1)
        world.add(1, 6)
        world.add(2, 6)
        removing = asyncio.ensure_future(world.sink.remove_dispatcher("1"))
        await world.settle()
        assert not removing.done()
        world.engine.encoding.open()
        await removing
        await world.drain(2, 9)
        await world.sink.close()
        assert {file.dispatcher_id for file in world.engine.files} == {"2"}
        assert not world.engine.segments


async def test_a_dispatcher_is_removed_only_after_its_file_under_way() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.engine.writing.shut()
        world.add(1, 5, 1000)
        await world.until(lambda: world.engine.writing.waiting == 1)
        removing = asyncio.ensure_future(world.sink.remove_dispatcher("1"))
        await world.settle()
        assert not removing.done()
        world.engine.writing.open()
        await removing
        assert world.told[-1] == "d1@5 flushed"
        assert "1" not in world.files.numbers


async def test_a_drain_of_a_dispatcher_that_is_removed_fails() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.engine.encoding.shut()
        world.add(1, 5)
        await world.until(lambda: world.engine.encoding.waiting == 1)
        drain = world.drain(1, 7)
        await world.settle()
        removing = asyncio.ensure_future(world.sink.remove_dispatcher("1"))
        with pytest.raises(Unavailable, match="was removed"):
            await drain
        world.engine.encoding.open()
        await removing


async def test_an_engine_that_gives_too_few_answers_is_not_believed() -> None:
    engine = RowlessEngine()

    async def encode(work: object) -> list[object]:
        return []

    engine.encode = encode
    world = SinkWorld(engine=engine, clock=ManualClock())
    world.add(1, 5)
    with pytest.raises(AssertionError, match="chunks of each slice"):
        await world.run()
    await world.sink.close()
