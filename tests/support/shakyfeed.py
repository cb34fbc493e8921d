"""What a simulated changefeed has beside the remote: a clock, an engine, and a store of progress."""

import asyncio
import random  # noqa: TID251 - only the type; the simulation's seed decides the numbers
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from penstock.changefeeds.engines.engine import EncodedSlice, EncodeWork
from penstock.changefeeds.engines.local import Hook, LocalEngine
from penstock.changefeeds.model import DispatcherRecord, DoneDdls, LeftOutTable, PendingFile
from penstock.errors import Unavailable
from penstock.object_storage import StorageRef
from support.shakyremote import Killed, Process, Weather
from support.simloop import SimLoop
from support.sinkdoubles import MemoryProgress

__all__ = ["ShakyProgress", "SimClock", "WeighingEngine"]

T = TypeVar("T")

_MIDNIGHT_MS = 1_700_006_400_000


class SimClock:
    """The time of the loop, which begins before some midnight; randomness of the seed."""

    def __init__(self, loop: SimLoop, mix: random.Random) -> None:
        self._loop = loop
        self._mix = mix
        self._start_ms = _MIDNIGHT_MS - mix.randint(0, 100_000)

    def wall_ms(self) -> int:
        return self._start_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # noqa: TID251 - of the simulated loop

    def pause(self, seconds: float) -> None:
        self._loop.pause(seconds)

    def random(self) -> float:
        return self._mix.random()

    def unique_id(self) -> str:
        return f"{self._mix.getrandbits(128):032x}"


class WeighingEngine(LocalEngine):
    """Notes the largest payload of a slice, and how much there was more than the quota allows.

    A single slice may always come, however large it is. The quota counts what runs by what is expected of it,
    so a job may end with one more than that; so may each of the others that were under way beside it.
    """

    def __init__(self, target: StorageRef, quota: int, at: Hook, *, cores: int = 1) -> None:
        super().__init__(target, at=at, cores=cores)
        self._quota = quota
        self._largest = 0
        self._beside: list[list[int]] = []  # for each job under way: the largest slice of those that ended
        self.excess = 0

    async def encode(self, work: Sequence[EncodeWork]) -> list[EncodedSlice]:
        beside: list[int] = []
        self._beside.append(beside)
        try:
            made = await super().encode(work)
        finally:
            self._beside = [each for each in self._beside if each is not beside]
        sizes = [sum(chunk.nbytes for chunk in encoded.chunks) for encoded in made]
        self._largest = max([self._largest, *sizes])
        self.excess = max(self.excess, self.held_bytes - self._quota - self._largest - sum(beside))
        for each in self._beside:
            each.append(max(sizes))
        return made


class ShakyProgress:
    """The database that keeps a changefeed's progress, as one process sees it."""

    def __init__(self, kept: MemoryProgress, weather: Weather, process: Process, clock: SimClock) -> None:
        self._kept = kept
        self._weather = weather
        self._process = process
        self._clock = clock

    async def location(self) -> str | None:
        return await self._call(self._kept.location)

    async def begin_at(self, location: str, *, is_new: bool) -> None:
        await self._call(lambda: self._kept.begin_at(location, is_new=is_new))

    async def checkpoint_ts(self) -> int:
        return await self._call(self._kept.checkpoint_ts)

    async def keep_checkpoint(self, ts: int) -> None:
        await self._call(lambda: self._kept.keep_checkpoint(ts))

    async def dispatchers(self) -> list[DispatcherRecord]:
        return await self._call(self._kept.dispatchers)

    async def left_out(self) -> tuple[LeftOutTable, ...]:
        return await self._kept.left_out()  # part of the row that `done_ddls` reads, with its troubles

    async def change_dispatchers(
        self,
        added: Sequence[DispatcherRecord],
        removed: Iterable[str],
        *,
        done: DoneDdls | None = None,
        left_out: Sequence[LeftOutTable] | None = None,
    ) -> None:
        gone = list(removed)
        await self._call(lambda: self._kept.change_dispatchers(added, gone, done=done, left_out=left_out))

    async def done_ddls(self) -> DoneDdls:
        return await self._call(self._kept.done_ddls)

    async def begin_files(self, files: Sequence[PendingFile]) -> None:
        await self._call(lambda: self._kept.begin_files(files))

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        mix = self._process.mix
        if self._process.dead:
            raise Killed
        await self._clock.sleep(mix.random() * 0.02)
        self._process.step()
        if self._weather.strikes("progress before", 0.01):
            raise Unavailable("the database does not answer")
        made = await call()
        self._process.step()
        await self._clock.sleep(mix.random() * 0.02)
        if self._weather.strikes("progress after", 0.01):
            raise Unavailable("the answer of the database is lost")
        return made
