"""When files are written, how large they are, and what is counted."""

from typing import Any

from prometheus_client import REGISTRY

from penstock.testing.clock import ManualClock
from support.sinkparts import RowlessEngine, SinkWorld


def metric(name: str, **labels: Any) -> float:
    return REGISTRY.get_sample_value(name, {"changefeed": "test", **labels}) or 0.0


def counts() -> dict[str, float]:
    reasons = ("size", "interval", "ddl", "quota", "close", "error")
    return {reason: metric("penstock_sink_flush_count_total", reason=reason) for reason in reasons}


async def test_a_quiet_dispatcher_is_written_at_the_end_of_the_interval_of_its_oldest_row() -> None:
    clock = ManualClock()
    async with SinkWorld(clock=clock) as world:
        world.add(1, 5)
        await world.until(lambda: len(world.told) == 1)
        clock.advance(3)
        world.add(1, 6)
        await world.until(lambda: len(world.told) == 2)
        clock.advance(1.9)
        await world.settle()
        assert not world.engine.files
        clock.advance(0.1)
        world.add(2, 6)
        await world.until(lambda: {"d1@5 flushed", "d1@6 flushed"} <= set(world.told))
        await world.settle()
        assert "d2@6 flushed" not in world.told
        await world.until_after(5, lambda: "d2@6 flushed" in world.told)


async def test_no_row_waits_longer_than_the_interval_before_its_file_is_begun() -> None:
    clock = ManualClock()
    async with SinkWorld(clock=clock, flush_interval_s=2.0, spool_disk_quota=1_000_000) as world:
        arrived: dict[str, float] = {}
        for step in range(1, 121):
            for number in range(7):
                if step % (number + 1) == 0:
                    event = world.add(number, step, 10 + number)
                    arrived[event.name] = clock.monotonic()
            await world.until(lambda: all(f"{name} woken" in world.told for name in arrived))  # noqa: B023 - awaited at once
            await world.turns()  # a sleep that begins after the clock was moved would end too late
            clock.advance(0.25)
            overdue = [name for name, at in arrived.items() if clock.monotonic() - at >= 2.0]
            await world.until(lambda: all(f"{name} flushed" in world.told for name in overdue))  # noqa: B023 - awaited at once
            arrived = {name: at for name, at in arrived.items() if name not in overdue}
            world.told[:] = [each for each in world.told if each.split()[0] in arrived]


async def test_time_in_the_encode_queue_counts_for_the_interval() -> None:
    clock = ManualClock()
    async with SinkWorld(clock=clock) as world:
        world.engine.encoding.shut()
        world.add(1, 5)
        await world.until(lambda: world.engine.encoding.waiting == 1)
        clock.advance(6)
        world.engine.encoding.open()
        await world.until(lambda: "d1@5 flushed" in world.told)


async def test_files_come_within_a_tenth_of_their_size_under_load() -> None:
    engine = RowlessEngine(sizes=lambda piece: [piece.nbytes // 8] * 8)
    async with SinkWorld(
        engine=engine, clock=ManualClock(), file_size=100_000, spool_disk_quota=10_000_000
    ) as world:
        for ts in range(1, 200):
            for number in range(5):
                world.add(number, ts, 11_000 + 977 * ((ts * 7 + number) % 13))
        await world.until(lambda: sum("woken" in each for each in world.told) == 995)
        await world.until(lambda: len(engine.files) > 100)
        sizes = [sum(chunk.nbytes for chunk in file.chunks) for file in engine.files]
        assert all(90_000 <= size <= 110_000 for size in sizes)


async def test_files_that_shrink_when_they_are_written_come_close_to_their_size_too() -> None:
    engine = RowlessEngine(sizes=lambda piece: [piece.nbytes // 8] * 8, file_ratio=0.3)
    async with SinkWorld(
        engine=engine, clock=ManualClock(), file_size=100_000, spool_disk_quota=10_000_000
    ) as world:
        for ts in range(1, 200):
            world.add(1, ts, 24_000)
            await world.until(lambda: f"d1@{ts} woken" in world.told)  # noqa: B023 - awaited at once
        sizes = [0.3 * sum(chunk.nbytes for chunk in file.chunks) for file in engine.files]
        assert len(sizes) > 10
        assert all(90_000 <= size <= 110_000 for size in sizes[2:])


async def test_each_file_is_counted_by_its_reason() -> None:
    clock = ManualClock()
    before = counts()
    files, rows, nbytes = (metric(f"penstock_sink_{each}_total") for each in ("files", "rows", "bytes"))
    async with SinkWorld(clock=clock) as world:
        world.add(1, 5, 1000, rows=3)
        world.add(2, 5, 200)
        await world.until(lambda: "d1@5 flushed" in world.told)
        await world.drain(2, 7)
        world.add(3, 5, 300)
        await world.until(lambda: "d3@5 woken" in world.told)
        await world.until_after(5, lambda: "d3@5 flushed" in world.told)
        world.add(4, 5, 400)
    after = counts()
    assert {reason: after[reason] - before[reason] for reason in after} == {
        "size": 1,
        "interval": 1,
        "ddl": 1,
        "quota": 0,
        "close": 1,
        "error": 0,
    }
    assert metric("penstock_sink_files_total") - files == 4
    assert metric("penstock_sink_rows_total") - rows == 6
    assert metric("penstock_sink_bytes_total") - nbytes == 1900


async def test_the_age_of_the_oldest_event_is_shown_while_the_remote_hangs() -> None:
    clock = ManualClock()
    async with SinkWorld(clock=clock) as world:
        world.engine.writing.shut()
        world.add(1, 5, 1000)
        await world.until(lambda: world.engine.writing.waiting == 1)
        for _ in range(30):
            clock.advance(1)
            await world.settle()
        assert metric("penstock_sink_oldest_unflushed_age_seconds") >= 29
        assert metric("penstock_sink_active_dispatchers") == 1
        world.engine.writing.open()
        await world.until(lambda: "d1@5 flushed" in world.told)
        await world.until_after(1, lambda: metric("penstock_sink_oldest_unflushed_age_seconds") == 0)


async def test_slow_requests_of_many_dispatchers_overlap() -> None:
    clock = ManualClock()
    engine = RowlessEngine(clock=clock, latency_s=0.2)
    async with SinkWorld(engine=engine, clock=clock, spool_disk_quota=100_000_000) as world:
        for number in range(1000):
            world.add(number, 5, 1000)
        steps = 0
        while len(engine.files) < 1000:
            for _ in range(5):
                await world.settle()
            clock.advance(0.2)
            steps += 1
            assert steps < 20
        await world.until(lambda: sum("flushed" in each for each in world.told) == 1000)


async def test_the_newest_checkpoint_is_written_at_most_every_two_seconds() -> None:
    clock = ManualClock()
    async with SinkWorld(clock=clock) as world:
        world.sink.add_checkpoint_ts(10)
        await world.until(lambda: world.files.checkpoints == [10])
        world.sink.add_checkpoint_ts(20)
        world.sink.add_checkpoint_ts(30)
        world.sink.add_checkpoint_ts(25)
        await world.settle()
        assert world.files.checkpoints == [10]
        await world.until_after(2, lambda: world.files.checkpoints == [10, 30])
        world.sink.add_checkpoint_ts(30)
        world.sink.add_checkpoint_ts(5)
        clock.advance(2)
        await world.settle()
        assert world.files.checkpoints == [10, 30]
        world.sink.add_checkpoint_ts(40)
        await world.until_after(2, lambda: world.files.checkpoints == [10, 30, 40])
        world.sink.add_checkpoint_ts(50)  # the next moment for it is after the end
    assert world.files.checkpoints == [10, 30, 40, 50]


async def test_what_is_known_of_idle_dispatchers_is_given_back() -> None:
    clock = ManualClock()
    async with SinkWorld(clock=clock) as world:
        for _ in range(61):
            clock.advance(1)
            await world.settle()
        assert world.files.swept == [600.0]


async def test_a_file_goes_where_its_last_commit_belongs() -> None:
    async with SinkWorld() as world:
        for ts in (5, 6, 9):
            world.add(1, ts, 400)
        await world.until(lambda: len(world.engine.files) == 1)
        [written] = world.engine.files
        assert world.files.ends == [written.chunks[-1].end.ts]
