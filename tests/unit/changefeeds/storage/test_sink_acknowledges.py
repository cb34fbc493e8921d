"""Two acknowledgements of an event: in the spool, and on the remote."""

import pytest

from penstock.changefeeds.sinks.storage.job_queue import LARGE_BYTES
from penstock.testing.clock import ManualClock
from support.sinkparts import Gate, RowlessEngine, SinkWorld


async def test_an_early_wake_does_not_advance_the_checkpoint() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.add(1, 5)
        await world.until(lambda: world.told == ["d1@5 woken"])
        await world.settle()
        assert world.told == ["d1@5 woken"]
        assert not world.engine.files


async def test_nothing_is_woken_before_the_sink_runs() -> None:
    world = SinkWorld(clock=ManualClock())
    world.add(1, 5)
    await world.settle()
    assert world.told == []
    async with world:
        await world.until(lambda: world.told == ["d1@5 woken"])


async def test_a_file_that_is_large_enough_is_written_at_once_and_then_acknowledged() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.engine.writing.shut()
        world.add(1, 5, 1000)
        await world.until(lambda: world.engine.writing.waiting == 1)
        assert world.told == ["d1@5 woken"]
        world.engine.writing.open()
        await world.until(lambda: world.told == ["d1@5 woken", "d1@5 flushed"])


async def test_what_is_coming_is_kept_before_it_is_written() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.engine.writing.shut()
        world.add(1, 5, 400)
        world.add(1, 6, 600)
        await world.until(lambda: world.engine.writing.waiting == 1)
        (pending,) = world.progress.begun[0]
        assert (pending.start.ts, pending.end.ts) == (4, 6)
        assert pending.data_path == "shop/t1/1/CDC000001.json"
        world.engine.writing.open()


async def test_all_files_of_a_job_are_kept_in_one_call() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        for number in range(10):
            world.add(number, 5, 1000)
        await world.until(lambda: len(world.engine.files) == 10)
        assert len(world.progress.begun) < 10
        assert sum(len(each) for each in world.progress.begun) == 10


async def test_an_event_without_rows_is_woken_and_done_at_once_when_nothing_is_before_it() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.add(1, 5, rows=0)
        await world.until(lambda: world.told == ["d1@5 woken", "d1@5 flushed"])
        assert not world.engine.segments


async def test_an_event_without_rows_is_done_only_after_what_was_sent_before() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.add(1, 5)
        world.add(1, 6, rows=0)
        await world.until(lambda: len(world.told) == 2)
        await world.settle()
        assert world.told == ["d1@5 woken", "d1@6 woken"]
        await world.sink.close()
        assert world.told[2:] == ["d1@5 flushed", "d1@6 flushed"]


async def test_an_event_without_rows_waits_for_the_file_under_way() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.engine.writing.shut()
        world.add(1, 5, 1000)
        await world.until(lambda: world.engine.writing.waiting == 1)
        world.add(1, 6, rows=0)
        await world.until(lambda: "d1@6 woken" in world.told)
        await world.settle()
        assert "d1@6 flushed" not in world.told
        world.engine.writing.open()
        await world.until(lambda: world.told[-2:] == ["d1@5 flushed", "d1@6 flushed"])


async def test_an_event_in_several_files_is_done_with_the_last() -> None:
    engine = RowlessEngine(sizes=lambda piece: [500] * 6)
    async with SinkWorld(engine=engine, clock=ManualClock()) as world:
        world.add(1, 5, 3000)
        await world.until(lambda: world.told == ["d1@5 woken", "d1@5 flushed"])
        assert [sum(chunk.nbytes for chunk in file.chunks) for file in engine.files] == [1000, 1000, 1000]


async def test_segments_are_given_back_when_all_of_their_chunks_are_on_the_remote() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.engine.encoding.shut()
        world.add(1, 5, 1000)
        world.add(2, 5, 100)
        await world.until(lambda: world.engine.encoding.waiting == 1)
        world.engine.encoding.open()
        await world.until(lambda: "d1@5 flushed" in world.told)
        assert len(world.engine.segments) == 1
        world.add(2, 6, 900)
        await world.until(lambda: "d2@6 flushed" in world.told and not world.engine.segments)


async def test_rows_of_a_version_that_the_remote_has_moved_past_are_left_out_and_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.files.stale = {"1"}
        world.add(1, 5, 1000)
        world.add(1, 6, 1000)
        world.add(2, 5, 1000)
        await world.until(lambda: {"d1@5 flushed", "d1@6 flushed", "d2@5 flushed"} <= set(world.told))
        assert {file.dispatcher_id for file in world.engine.files} == {"2"}
        assert len([each for each in caplog.records if "left out" in each.getMessage()]) == 1


async def test_a_version_change_begins_a_new_file() -> None:
    from dataclasses import replace

    from support.sinkparts import SCHEMA

    async with SinkWorld(clock=ManualClock()) as world:
        world.add(1, 5)
        world.add(1, 6, schema=replace(SCHEMA, since_ts=6, version=2))
        await world.until(lambda: "d1@5 flushed" in world.told)
        assert "d1@6 flushed" not in world.told
        assert [file.data_path.split("/")[2] for file in world.engine.files] == ["1"]


async def test_a_due_slice_does_not_wait_for_an_encode_job_of_others() -> None:
    async with SinkWorld(clock=ManualClock(), worker_count=1) as world:
        world.engine.encoding_of["1"] = slow = Gate()
        slow.shut()
        world.add(1, 5, flush=False)
        world.add(2, 5, flush=True)
        await world.until(lambda: "d2@5 flushed" in world.told)
        assert "d1@5 woken" not in world.told
        slow.open()
        await world.until(lambda: "d1@5 woken" in world.told)


async def test_a_large_slice_keeps_nobody_else_from_the_spool() -> None:
    quota = 8 * LARGE_BYTES
    async with SinkWorld(
        clock=ManualClock(), worker_count=1, file_size=4 * LARGE_BYTES, spool_disk_quota=quota
    ) as world:
        world.engine.encoding_of["1"] = slow = Gate()
        slow.shut()
        world.add(1, 5, LARGE_BYTES // 5)  # ten times as much is expected of it
        world.add(2, 5)
        await world.until(lambda: "d2@5 woken" in world.told)
        world.add(2, 6)
        await world.until(lambda: "d2@6 woken" in world.told)
        assert "d1@5 woken" not in world.told
        slow.open()
        await world.until(lambda: "d1@5 woken" in world.told)


async def test_a_dispatcher_that_is_slow_to_encode_is_encoded_by_itself_from_then_on() -> None:
    clock = ManualClock()
    async with SinkWorld(clock=clock, worker_count=1, flush_interval_s=1000.0) as world:
        world.engine.encoding_of["1"] = slow = Gate()
        slow.shut()
        world.add(1, 5)
        world.add(2, 5)
        await world.until(lambda: slow.waiting == 1)
        clock.advance(3.0)
        slow.open()
        await world.until(lambda: {"d1@5 woken", "d2@5 woken"} <= set(world.told))
        slow.shut()
        for ts in (6, 7):
            world.add(1, ts)
            world.add(2, ts)
            await world.until(lambda: f"d2@{ts} woken" in world.told)  # noqa: B023 - awaited at once
        assert "d1@6 woken" not in world.told
        slow.open()
        await world.until(lambda: "d1@7 woken" in world.told)
