"""A changefeed among doubles, on a clock that jumps."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.changefeeds.changefeed import Changefeed
from penstock.changefeeds.filters import TableFilter
from penstock.changefeeds.resume import ChangefeedOptions
from penstock.changes.limits import ReadLimit
from penstock.clock import SYSTEM
from penstock.errors import Unavailable
from penstock.follow.slices import Position
from support.sinkdoubles import MemoryProgress, ScriptedSource
from support.sinkrecorder import RecordingSink, RemoteDouble

BEGIN = Position(10)
TURNS_MAX = 20_000


class SwiftClock:
    """Nobody waits: a sleep lets the others run and moves the time."""

    def __init__(self) -> None:
        self.now = 0.0

    def wall_ms(self) -> int:
        return round(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        for _ in range(3):
            await SYSTEM.sleep(0)
        self.now += seconds

    def random(self) -> float:
        return 0.5


@dataclass
class World:
    """What outlives a changefeed's process, and the changefeed that runs now."""

    source: ScriptedSource
    begin: Position = BEGIN
    patterns: tuple[str, ...] = ("*.*",)
    sink_options: dict[str, Any] = field(default_factory=dict)
    feed_options: dict[str, Any] = field(default_factory=dict)
    give_up_s: float = 1800.0

    def __post_init__(self) -> None:
        self.remote = RemoteDouble()
        self.progress = MemoryProgress(self.begin)
        self.clock = SwiftClock()
        self.sinks: list[RecordingSink] = []
        self.prepare: Callable[[RecordingSink], None] = lambda _: None
        self.task: asyncio.Task[None] | None = None
        self.feed: Changefeed

    @property
    def sink(self) -> RecordingSink:
        return self.sinks[-1]

    @property
    def log(self) -> list[str]:
        return self.remote.log

    async def open_sink(self) -> RecordingSink:
        self.sinks.append(RecordingSink(self.remote, self.progress, **self.sink_options))
        self.prepare(self.sinks[-1])
        return self.sinks[-1]

    def start(self, **more: Any) -> None:
        given = {"slice_limit": ReadLimit(rows=2), **self.feed_options, **more}
        self.feed = Changefeed(
            "feed",
            ChangefeedOptions(begin=self.begin, tables=TableFilter(self.patterns), **given),
            source=self.source,
            open_sink=self.open_sink,
            files=self.remote,
            progress=self.progress,
            give_up_s=self.give_up_s,
            clock=self.clock,
        )
        self.task = asyncio.create_task(self.feed.run())

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(TURNS_MAX):
            if condition():
                return
            if self.task is not None and self.task.done():
                self.task.result()
            await SYSTEM.sleep(0)
        raise AssertionError(f"never came true; log: {self.log}")

    async def reached(self, ts: int) -> None:
        """Wait until the checkpoint that is kept is there."""
        await self.until(lambda: self.progress.checkpoints[-1] >= ts)

    async def settle(self) -> None:
        """Let everything happen that can: several ticks go by."""
        looks = self.source.progress_reads
        await self.until(lambda: self.source.progress_reads >= looks + 4)

    async def pause(self) -> None:
        assert self.task is not None
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task
        self.task = None

    async def kill(self) -> None:
        """End without a last write, as if the process was gone."""
        self.sink.fail(Unavailable("killed"))
        await self.pause()

    def rows(self) -> list[tuple[int, int, bytes]]:
        """(table, commit_ts, handle) of every row on the remote, in the order of files."""
        return [
            (piece.dispatcher.table_id, ts, handle)
            for pieces in self.remote.files.values()
            for piece in pieces
            for ts, handle in self.source.rows_in(piece)
        ]


@pytest.fixture
def world():
    """Makes worlds; whatever still runs is ended."""
    made: list[World] = []

    def make(*tables: Any, **more: Any) -> World:
        made.append(World(ScriptedSource(tables), **more))
        return made[-1]

    yield make
    running = [each.task for each in made if each.task is not None]
    for task in running:
        task.get_loop().call_soon_threadsafe(task.cancel)
