"""A spool that fills: wakes stop, wakes resume, and nothing waits for ever."""

from typing import Any

from prometheus_client import REGISTRY

from penstock.changefeeds.engines.engine import Chunk
from penstock.changefeeds.sinks.storage.ledger import Ledger
from penstock.changefeeds.sinks.storage.metrics import SinkMetrics
from penstock.changefeeds.sinks.storage.spool import ItemBudget
from penstock.follow.slices import Position
from penstock.testing.clock import ManualClock
from support.sinkparts import RowlessEngine, SinkWorld, Watched, sink_options, slice_of


def metric(name: str, **labels: Any) -> float:
    return REGISTRY.get_sample_value(name, {"changefeed": "test", **labels}) or 0.0


def woken(world: SinkWorld) -> int:
    return sum(each.endswith("woken") for each in world.told)


def flushed(world: SinkWorld) -> int:
    return sum(each.endswith("flushed") for each in world.told)


async def test_the_watermark_suppresses_wakes_and_resumes_them() -> None:
    calls, suppressed = (
        metric("penstock_sink_wake_calls_total"),
        metric("penstock_sink_wake_suppressed_total"),
    )
    async with SinkWorld(clock=ManualClock()) as world:
        world.engine.writing.shut()
        for number in range(8):
            world.add(number, 5, 1000)
            await world.until(lambda: woken(world) == number + 1)  # noqa: B023 - awaited at once
        world.add(8, 5, 1000)  # 9000 of 10,000 is above 8000
        world.add(9, 5, 1)
        await world.until(lambda: world.sink._ledger.spool.held_wakes == 2)
        assert woken(world) == 8
        assert metric("penstock_sink_spool_bytes") == 9001
        assert metric("penstock_sink_spool_items") == 10
        marks = {
            each: metric("penstock_sink_spool_mark_bytes", mark=each) for each in ("quota", "high", "low")
        }
        assert marks == {"quota": 10_000, "high": 8000, "low": 6000}
        world.engine.writing.open()
        await world.until(lambda: woken(world) == 10)
    of_it = {"changefeed": "test", "mark": "high"}
    assert REGISTRY.get_sample_value("penstock_sink_spool_mark_bytes", of_it) is None
    assert metric("penstock_sink_wake_calls_total") - calls == 10
    assert metric("penstock_sink_wake_suppressed_total") - suppressed == 2


def test_a_flush_does_not_release_a_wake_that_is_held_before_the_low_mark() -> None:
    told: list[str] = []
    ledger = Ledger(sink_options(), SinkMetrics("test"), lambda segment: None, ManualClock())
    for number in range(9):
        ledger.add(Watched(slice_of(number, 5, 1000), told))
    while batches := ledger.collect():
        for batch in batches:
            segment = len(told) + 1
            chunks = [
                [Chunk(segment, n, Position(4), Position(5), 1, 1000)] for n in range(len(batch.events))
            ]
            ledger.finish_encode(batch, chunks)
    held = ledger.spool.held_wakes
    assert held > 0
    for left in (8000, 7000, 6000):
        (task,) = ledger.buffers.take(1, 1)
        ledger.buffers.finish_begin(task.dispatcher.id)
        ledger.finish_file(task, 1000)
        assert ledger.spool.nbytes == left
        assert ledger.spool.held_wakes == (held if left > 6000 else 0)
    assert sum(each.endswith("woken") for each in told) == 9
    assert sum(each.endswith("flushed") for each in told) == 3


async def test_a_full_spool_of_small_files_is_written_although_none_of_them_is_due() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        for number in range(90):
            world.add(number, 5, 99)
        await world.until(lambda: woken(world) == 90)
        assert 0 < flushed(world) < 90


async def test_what_large_files_leave_behind_does_not_keep_dispatchers_waiting() -> None:
    engine = RowlessEngine(sizes=lambda piece: [501, 999])
    async with SinkWorld(engine=engine, clock=ManualClock(), spool_disk_quota=26_000) as world:
        engine.encoding.shut()
        for number in range(17):
            world.add(number, 5, 1500)
        await world.settle()
        engine.encoding.open()
        await world.until(lambda: woken(world) == 17)


async def test_no_job_is_started_that_does_not_fit_into_the_quota() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.engine.writing.shut()
        for number in range(30):
            world.add(number, 5, 1000)
        await world.settle()
        assert world.sink._ledger.spool.retained_bytes <= 10_000
        assert len(world.sink._ledger.shards) == 20
        world.engine.writing.open()
        await world.until(lambda: flushed(world) == 30)


async def test_an_event_larger_than_the_quota_gets_through() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.add(1, 5, 100)
        await world.until(lambda: woken(world) == 1)
        world.add(2, 5, 25_000)
        await world.until(lambda: "d2@5 flushed" in world.told)
        await world.until(lambda: woken(world) == 2)


async def test_a_segment_that_one_quiet_dispatcher_holds_does_not_fill_the_spool_for_ever() -> None:
    async with SinkWorld(clock=ManualClock(), worker_count=1) as world:
        world.engine.encoding.shut()
        world.add(1, 5, 1)
        await world.until(lambda: world.engine.encoding.waiting == 1)
        world.engine.encoding.open()
        await world.until(lambda: woken(world) == 1)
        for ts in range(1, 30):  # each job has a byte of a quiet dispatcher beside a full file
            world.engine.encoding.shut()
            world.add(99, ts, 1)
            await world.until(lambda: world.engine.encoding.waiting == 1)
            world.add(100 + ts, ts, 1)
            world.add(2, ts, 999)
            world.engine.encoding.open()
            await world.until(lambda: f"d2@{ts} flushed" in world.told or not world.engine.writing.waiting)  # noqa: B023 - awaited at once
            await world.settle()
        await world.until(lambda: "d2@29 woken" in world.told)
        assert world.sink._ledger.spool.retained_bytes <= 10_000


async def test_a_remote_that_hangs_for_long_leaves_the_spool_bounded() -> None:
    engine = RowlessEngine(sizes=lambda piece: [piece.nbytes // 4] * 4)
    clock = ManualClock()
    async with SinkWorld(engine=engine, clock=clock) as world:
        engine.writing.shut()
        for ts in range(1, 51):
            for number in range(10):
                world.add(number, ts, 400)
        for _ in range(60):
            clock.advance(10)
            await world.settle()
        assert world.sink._ledger.spool.retained_bytes <= 10_000
        assert world.sink._ledger.oldest_age_s == 600
        engine.writing.open()
        await world.until(lambda: flushed(world) == 500)


def test_what_the_driver_knows_of_a_backlog_is_bounded_however_small_its_slices_are() -> None:
    """Dispatchers send one tiny slice after the other, as fast as they are woken; nothing is ever written."""
    told: list[str] = []
    options = sink_options(spool_disk_quota=1 << 40, file_size=1 << 30, flush_interval_s=3600.0)
    share = ItemBudget(1000).open()
    ledger = Ledger(options, SinkMetrics("test"), lambda _: None, ManualClock(), items=share)
    dispatchers, segment = 20, 0
    sent = dict.fromkeys(range(dispatchers), 1)
    for number in range(dispatchers):
        ledger.add(Watched(slice_of(number, 1, 1), told))
    for _ in range(200):
        woken = len(told)
        for batch in ledger.collect():
            segment += 1
            ends = [event.slice.end for event in batch.events]
            chunks = [[Chunk(segment, n, Position(end.ts - 1), end, 1, 10)] for n, end in enumerate(ends)]
            ledger.finish_encode(batch, chunks)
        for name in [line.split("@")[0] for line in told[woken:] if line.endswith("woken")]:
            number = int(name.removeprefix("d"))
            sent[number] += 1
            ledger.add(Watched(slice_of(number, sent[number], 1), told))
    assert 400 < ledger.spool.items <= 400 + dispatchers
    assert sum(sent.values()) <= 400 + 2 * dispatchers
    assert ledger.buffers.has_due, "what waits is written early, so that they go on"
