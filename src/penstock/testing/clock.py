"""A clock that stands still until a test moves it."""

import asyncio

from penstock.clock import SYSTEM


class ManualClock:
    """A clock that only `advance` moves. A sleep of 0 seconds lets other tasks run."""

    def __init__(self, *, wall_ms: int = 0) -> None:
        self._started_ms = wall_ms
        self._now_s = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def wall_ms(self) -> int:
        return self._started_ms + round(self._now_s * 1000)

    def monotonic(self) -> float:
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await SYSTEM.sleep(0)
            return
        alarm: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._now_s + seconds, alarm))
        await alarm

    def pause(self, seconds: float) -> None:
        self._now_s += seconds

    def random(self) -> float:
        return 0.5

    def unique_id(self) -> str:
        return SYSTEM.unique_id()

    def advance(self, seconds: float) -> None:
        """Move time forward, and wake the tasks whose sleep is over."""
        self._now_s += seconds
        due = [alarm for at, alarm in self._sleepers if at <= self._now_s + 1e-9]
        self._sleepers = [(at, alarm) for at, alarm in self._sleepers if at > self._now_s + 1e-9]
        for alarm in due:
            if not alarm.done():
                alarm.set_result(None)
