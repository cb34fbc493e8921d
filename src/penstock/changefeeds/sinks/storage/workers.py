"""Encodes what waits in the shards, several jobs at a time."""

from collections.abc import Callable
from dataclasses import replace

from penstock import tracing
from penstock.changefeeds.engines.engine import EncodeWork, SinkEngine
from penstock.changefeeds.sinks.storage.ledger import EncodeJob, Ledger
from penstock.changefeeds.sinks.storage.metrics import SinkMetrics
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.work import DmlEvent
from penstock.clock import Clock
from penstock.eventloop import TaskScope, WakeUp

_JOBS_MAX = 4


class EncodeLoop:
    """Runs encode jobs of what is ready. While all are busy more becomes ready: the next job is larger."""

    def __init__(
        self,
        engine: SinkEngine,
        ledger: Ledger,
        options: SinkOptions,
        metrics: SinkMetrics,
        underway: TaskScope,
        *,
        on_progress: Callable[[], None],
        on_due: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._ledger = ledger
        self._options = options
        self._metrics = metrics
        self._underway = underway
        self._on_progress = on_progress
        self._on_due = on_due
        self._clock = clock
        self._jobs = 0
        self.changed = WakeUp(clock)  # there is more in the shards, or more room in the spool

    async def run(self) -> None:
        """For ever."""
        while True:
            while self._jobs < _JOBS_MAX and (job := self._ledger.next_job()) is not None:
                self._jobs += 1
                self._underway.start(self._encode(job))
            if self._ledger.buffers.has_due:  # the next job may have asked for room
                self._on_due()
            await self.changed.wait()

    async def _encode(self, job: EncodeJob) -> None:
        work = [self._work(event) for event in job.events]
        began_at = self._clock.monotonic()
        with self._metrics.stage("encode"):
            chunks = await self._engine.encode(work) if work else []
            assert len(chunks) == len(work), "an engine gives the chunks of each slice"
        self._metrics.encode_seconds.observe(self._clock.monotonic() - began_at)
        self._ledger.encoded(job, chunks)
        self._jobs -= 1
        self._on_progress()

    def _work(self, event: DmlEvent) -> EncodeWork:
        options = self._options.encoder(event.slice.schema)
        traced = None if tracing.current is None else tracing.current.sampling
        return EncodeWork(event.slice, replace(options, encoded_at_ms=self._clock.wall_ms(), traced=traced))
