"""What costs: dispatchers with something in the spool. What costs nothing: all others."""

import gc
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from penstock.changefeeds.engines.engine import Chunk
from penstock.changefeeds.sinks.storage.ledger import Ledger
from penstock.changefeeds.sinks.storage.metrics import SinkMetrics
from penstock.changefeeds.sinks.storage.remote_files import RemoteFiles
from penstock.changefeeds.sinks.storage.sink import StorageSink
from penstock.testing.clock import ManualClock
from support.sinkparts import KeptInMemory, RowlessEngine, SinkWorld, Watched, sink_options, slice_of


class Driven:
    """A ledger and a clock, moved by hand; counts every call of a Python function."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        options = sink_options(file_size=1000, spool_disk_quota=100_000_000)
        self.ledger = Ledger(options, SinkMetrics("test"), lambda segment: None, self.clock)
        self.segment = 0
        self.most_active = 0

    def send(self, number: int, ts: int) -> None:
        self.ledger.add(Watched(slice_of(number, ts), []))

    def encode(self) -> None:
        for batch in self.ledger.collect():
            self.segment += 1
            chunks = [
                [Chunk(self.segment, n, event.slice.start, event.slice.end, 1, 100)]
                for n, event in enumerate(batch.events)
            ]
            self.ledger.finish_encode(batch, chunks)

    def write(self) -> int:
        self.ledger.buffers.tick(self.clock.monotonic())
        tasks = self.ledger.buffers.take(1000, 1 << 40)
        for task in tasks:
            self.ledger.buffers.finish_begin(task.dispatcher.id)
            self.ledger.finish_file(task, task.nbytes)
        return len(tasks)

    def ten_active_for_a_minute(self) -> None:
        for second in range(60):
            for number in range(10):
                self.send(number, 10 + second)
            self.encode()
            self.most_active = max(self.most_active, self.ledger.buffers.active)
            self.write()
            self.clock.advance(1)


def calls_of(work: Callable[[], Any]) -> int:
    count = 0

    def called(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    gc.collect()
    gc.disable()  # others watch it, and their calls would count
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def test_only_active_dispatchers_are_touched() -> None:
    costs = {}
    for registered in (10, 10_000):
        driven = Driven()
        for number in range(registered):
            driven.send(number, 5)
        driven.encode()
        driven.clock.advance(5)
        while driven.write():
            pass
        assert driven.ledger.buffers.active == 0
        costs[registered] = calls_of(driven.ten_active_for_a_minute)
        assert driven.most_active == 10
    assert costs[10_000] == costs[10]


async def test_a_day_of_churn_ends_at_the_memory_it_began_with() -> None:
    clock = ManualClock()
    options = sink_options(date_separator="none")
    engine = RowlessEngine()
    files = RemoteFiles(options.target.open(), options, clock=clock)
    world = SinkWorld(engine=engine, clock=clock)
    progress = KeptInMemory()
    world.sink = StorageSink(engine, files, progress, options, changefeed="churn", clock=clock)

    async def an_hour(hour: int) -> None:
        """Ten dispatchers come, send, drain and are removed; ten more are idle for an hour before that."""
        for number in range(hour * 20, hour * 20 + 20):
            world.add(number, 5, 70)
            world.add(number, 6, 0, rows=0)
            if number % 2:
                await world.drain(number, 7)
                await world.sink.remove_dispatcher(str(number))
        await world.until(lambda: sum("woken" in each for each in world.told) == 40)
        clock.advance(5)
        await world.until(lambda: sum("flushed" in each for each in world.told) == 40)
        for _ in range(60):
            clock.advance(60)
            await world.turns()
        await world.until(lambda: files.kept_state_count == 0)
        for number in range(hour * 20, hour * 20 + 20, 2):
            await world.sink.remove_dispatcher(str(number))
        world.told.clear()
        engine.forget_files()
        progress.begun.clear()
        progress.pending.clear()

    def ours() -> Counter[str]:
        gc.collect()
        kinds = Counter(type(each) for each in gc.get_objects())
        return Counter(
            {
                kind.__name__: n
                for kind, n in kinds.items()
                if str(kind.__module__).startswith("penstock.changefeeds")
            }
        )

    async with world:
        await an_hour(0)
        before = ours()
        for hour in range(1, 25):
            await an_hour(hour)
        assert ours() == before
