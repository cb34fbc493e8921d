"""Tells consumers how far the files go, not too often."""

import asyncio

from penstock.changefeeds.sinks.storage.metrics import SinkMetrics
from penstock.changefeeds.sinks.storage.remote_files import RemoteFiles
from penstock.clock import Clock
from penstock.eventloop import ThreadRunner, WakeUp

_INTERVAL_S = 2.0


class Checkpoints:
    """Writes the newest checkpoint, at most one in `_INTERVAL_S`; older ones are skipped."""

    def __init__(self, files: RemoteFiles, threads: ThreadRunner, metrics: SinkMetrics, clock: Clock) -> None:
        self._files = files
        self._threads = threads
        self._metrics = metrics
        self._clock = clock
        self._newest = 0
        self.written = 0
        self._changed = WakeUp(clock)
        self._one_at_a_time = asyncio.Lock()

    def add(self, ts: int) -> None:
        """A checkpoint, to be written if it is the newest."""
        if ts > self._newest:
            self._newest = ts
            self._changed.tell()

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._changed.wait()
            await self.write()
            await self._clock.sleep(_INTERVAL_S)

    async def write(self) -> None:
        """Write the newest now, unless it is there."""
        async with self._one_at_a_time:
            newest = self._newest
            if newest > self.written:
                with self._metrics.stage("checkpoint"):
                    await self._threads.call(self._files.write_checkpoint, newest)
                self.written = newest
