"""Faults of an engine: time, failure, silence and lost payloads, chosen by a test."""

import asyncio

from penstock.changefeeds.engines.local import LocalEngine, Step
from penstock.clock import SYSTEM, Clock


class EngineFaults:
    """Given to a LocalEngine as `at`. Steps take `latency_s`, fail with what is in `failures`, or hang."""

    def __init__(self, *, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self.latency_s: dict[Step, float] = {}
        self.failures: dict[Step, Exception] = {}
        self.hanging: set[Step] = set()
        self.reached: list[Step] = []

    async def __call__(self, step: Step) -> None:
        self.reached.append(step)
        if step in self.hanging:
            await asyncio.Event().wait()
        if step in self.latency_s:
            await self._clock.sleep(self.latency_s[step])
        if step in self.failures:
            raise self.failures[step]


def lose_everything(engine: LocalEngine) -> None:
    """As if all executors were lost at once."""
    for segment in engine.segments:
        engine.lose(segment)
