"""A table that takes long to encode or to write does not take wakes and flushes from the others."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence

import pytest

from penstock.changefeeds.engines.engine import EncodedSlice, EncodeWork, FileWork, WriteResult
from penstock.clock import SYSTEM
from penstock.testing.clock import ManualClock
from support.sinkparts import RowlessEngine, SinkWorld

DISPATCHERS = 12
SLOW_S = {"1": 1.5, "2": 3.0}
JOB_S = 0.1
PAUSE_S = 0.4  # between a wake of a dispatcher and its next slice
STEP_S = 0.1
WARM_S = 5.0  # for the first job: nobody knows yet who is slow
RUN_S = 20.0


class PacedEngine(RowlessEngine):
    """An engine with as many cores as it says: a job holds one for as long as its slowest piece takes."""

    def __init__(self, clock: ManualClock, stage: str, slow: dict[str, float]) -> None:
        super().__init__(cores=2)
        self._time = clock
        self._stage = stage
        self._slow = slow
        self._free = asyncio.Semaphore(self.cores)

    async def _work(self, stage: str, dispatcher_ids: Sequence[str]) -> list[float]:
        seconds = [self._slow.get(each, 0.0) if stage == self._stage else 0.0 for each in dispatcher_ids]
        async with self._free:
            await self._time.sleep(JOB_S + max(seconds))
        return seconds

    async def encode(self, work: Sequence[EncodeWork]) -> list[EncodedSlice]:
        seconds = await self._work("encode", [each.slice.dispatcher.id for each in work])
        encoded = await super().encode(work)
        return [EncodedSlice(each.chunks, took_s) for each, took_s in zip(encoded, seconds, strict=True)]

    async def write(self, files: Sequence[FileWork]) -> list[WriteResult]:
        seconds = await self._work("write", [each.dispatcher_id for each in files])
        written = await super().write(files)
        return [
            WriteResult(each.data_path, each.nbytes, seconds=took_s)
            for each, took_s in zip(written, seconds, strict=True)
        ]


async def events_of_the_others(stage: str, slow: dict[str, float]) -> Counter[str]:
    """Return how often dispatchers that are not slow were woken and flushed."""
    clock = ManualClock()
    counted: Counter[str] = Counter()
    world = SinkWorld(
        engine=PacedEngine(clock, stage, slow), clock=clock, spool_disk_quota=1_000_000, flush_interval_s=2.0
    )
    world.run()

    def count(what: str) -> None:
        counted[what] += warm_at <= clock.monotonic() < end_at

    async def send(number: int) -> None:
        for ts in itertools.count(5):
            woken = asyncio.Event()
            event = world.add(number, ts)
            event.add_post_enqueue(woken.set)
            if str(number) not in SLOW_S:
                event.add_post_enqueue(lambda: count("wake"))
                event.add_post_flush(lambda: count("flush"))
            await woken.wait()
            await clock.sleep(PAUSE_S)

    warm_at = clock.monotonic() + WARM_S
    end_at = warm_at + RUN_S
    sending = [asyncio.ensure_future(send(number)) for number in range(DISPATCHERS)]
    while clock.monotonic() < end_at:
        await SYSTEM.sleep(0.001)  # for the threads that place files
        await world.turns()
        clock.advance(STEP_S)
    for task in sending:
        task.cancel()
    closing = asyncio.ensure_future(world.sink.close())
    await world.until_after(1.0, closing.done)
    return counted


@pytest.mark.parametrize("stage", ["encode", "write"])
async def test_the_others_keep_their_wakes_and_flushes(stage: str) -> None:
    without, beside = [await events_of_the_others(stage, slow) for slow in ({}, SLOW_S)]
    assert without["wake"] > 100
    for what in ("wake", "flush"):
        assert beside[what] >= 0.9 * without[what], f"{what}: {beside} beside slow tables, {without} without"
