"""Those that have nothing to do cost nothing, however many they are."""

import asyncio
import random  # noqa: TID251 - the simulated clock's, with a seed
from collections import Counter
from collections.abc import Collection
from typing import Any

from penstock import eventloop
from penstock.changefeeds import run
from penstock.changefeeds.changefeed import Changefeed
from penstock.changefeeds.dispatcher import Dispatcher
from penstock.changefeeds.resume import ChangefeedOptions
from penstock.changefeeds.sinks.storage.layout import decode_checkpoint
from penstock.changefeeds.sinks.storage.remote_files import RemoteFiles
from penstock.changefeeds.sinks.storage.sink import StorageSink
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.slices import Position
from penstock.follow.source import ReadableRange
from support.ddlevents import alter_table, table_schema
from support.shakyfeed import SimClock
from support.shakyremote import Remote
from support.simloop import SimLoop, SimPool
from support.sinkdoubles import MemoryProgress, ScriptedSource
from support.sinkparts import RowlessEngine, sink_options

IDLE, BUSY = 10_000, 10


async def test_ten_thousand_idle_dispatchers_are_not_touched_while_ten_are_busy(world, monkeypatch) -> None:
    w = world(*(table_schema(each) for each in range(1, IDLE + BUSY + 1)))
    steps: list[int] = []
    next_step = Dispatcher.next_step

    def counted(self, horizon, pace):
        steps.append(self.span.table_id)
        return next_step(self, horizon, pace)

    w.source.advance(100)
    w.start()
    await w.reached(100)
    monkeypatch.setattr(Dispatcher, "next_step", counted)
    spawned: list[object] = []
    spawn = run.ChangefeedRun._spawn
    monkeypatch.setattr(
        run.ChangefeedRun, "_spawn", lambda self, work: (spawned.append(work), spawn(self, work))[1]
    )
    looks = w.source.progress_reads
    for ts in range(110, 310, 10):
        for table_id in range(1, BUSY + 1):
            w.source.put(table_id, ts)
        w.source.advance(ts)
        await w.settle()
    await w.reached(300)
    looks = w.source.progress_reads - looks
    assert set(steps) == set(range(1, BUSY + 1))
    assert len(w.rows()) == len(w.source.slice_calls) == len(spawned) == 20 * BUSY
    assert len(steps) <= 20 * BUSY * 6
    assert looks < 20 * 10


async def test_a_ddl_of_an_idle_table_touches_that_table_only(world, monkeypatch) -> None:
    tables = [table_schema(each) for each in range(1, 1001)]
    w = world(*tables)
    w.source.advance(100)
    w.start()
    await w.reached(100)
    touched: set[int] = set()
    next_step = Dispatcher.next_step

    def counted(self, horizon, pace):
        touched.add(self.span.table_id)
        return next_step(self, horizon, pace)

    monkeypatch.setattr(Dispatcher, "next_step", counted)
    w.source.ddl(alter_table(150, tables[4]))
    w.source.advance(200)
    await w.reached(200)
    assert touched == {5}
    assert [each.commit_ts for each in w.remote.ddls] == [150]


class CountedRemote(Remote):
    """Counts what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        if name in {
            "read",
            "exists",
            "size",
            "create",
            "advance",
            "swap",
            "names",
            "folders",
            "list_objects",
        }:
            self.calls[name] += 1
        return super().__getattribute__(name)


class LiveSource(ScriptedSource):
    """Time goes on in the source as it does on the clock."""

    def __init__(self, clock: SimClock, *tables: SchemaVersion) -> None:
        super().__init__(tables)
        self.clock = clock

    async def read_progress(self, table_ids: Collection[int]) -> dict[int, ReadableRange]:
        self.advance(self.clock.wall_ms() << 18)
        return await super().read_progress(table_ids)


def test_a_changefeed_without_changes_asks_for_progress_and_does_little_else(monkeypatch) -> None:
    monkeypatch.setattr(eventloop, "ThreadPoolExecutor", SimPool)
    loop = SimLoop()
    clock = SimClock(loop, random.Random(1))
    begin = Position(clock.wall_ms() << 18)
    source = LiveSource(clock, *(table_schema(number) for number in range(1, 101)))
    source.advance(begin.ts)
    remote, engine = CountedRemote(), RowlessEngine(clock=clock)
    transactions: list[str] = []
    progress = MemoryProgress(begin, fault=transactions.append)
    options = sink_options(flush_interval_s=2.0)
    files = RemoteFiles(remote, options, clock=clock)

    async def open_sink() -> StorageSink:
        return StorageSink(engine, files, progress, options, changefeed="feed", clock=clock)

    async def published() -> int:
        data = remote.read("metadata")
        return 0 if data is None else decode_checkpoint(data)

    async def run() -> None:
        feed = Changefeed(
            "feed",
            ChangefeedOptions(begin=begin, flush_interval_s=2.0),
            source=source,
            open_sink=open_sink,
            files=files,
            progress=progress,
            clock=clock,
        )
        task = loop.create_task(feed.run())
        await clock.sleep(60)
        transactions.clear()
        remote.calls.clear()
        jobs, asked = len(engine.encode_jobs) + len(engine.made), source.progress_reads
        await clock.sleep(600)
        assert len(engine.encode_jobs) + len(engine.made) == jobs == 0
        assert source.progress_reads - asked > 1000
        assert transactions.count("keep_checkpoint") == len(transactions) / 2 <= 61
        assert set(remote.calls) == {"advance"}
        assert remote.calls["advance"] <= 61
        assert clock.wall_ms() - (await published() >> 18) < 11_000, "consumers still see that time goes on"

        changed_ts = clock.wall_ms() << 18
        source.put(1, changed_ts)
        await clock.sleep(5)
        assert len(engine.made) == 1
        assert await published() >= changed_ts, "what was written is published at once"
        task.cancel()
        await asyncio.wait([task])

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
