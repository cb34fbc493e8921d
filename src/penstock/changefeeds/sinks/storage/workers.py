"""Encodes what waits in the shards, several jobs at a time.

Writes the files that are due, several jobs at a time, so that slow requests overlap.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from penstock import tracing
from penstock.changefeeds.codecs.encoder import header_of
from penstock.changefeeds.engines.engine import EncodeWork, FileWork, SinkEngine, WriteResult
from penstock.changefeeds.model import PendingFile, ProgressStore
from penstock.changefeeds.sinks.sink import DmlEvent
from penstock.changefeeds.sinks.storage.buffers import FileTask
from penstock.changefeeds.sinks.storage.ledger import EncodeJob, Ledger
from penstock.changefeeds.sinks.storage.metrics import SinkMetrics
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.remote_files import FilePaths, FileTarget, RemoteFiles
from penstock.clock import Clock
from penstock.errors import Unavailable
from penstock.eventloop import TaskScope, ThreadRunner, WakeUp

_ENCODE_JOBS_MAX = 4


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
            while self._jobs < _ENCODE_JOBS_MAX and (job := self._ledger.next_job()) is not None:
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


_log = logging.getLogger(__name__)

_WRITE_JOBS_MAX = 8
_JOB_FILES_MAX = 128


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file and where it goes."""

    task: FileTask
    place: FileTarget
    paths: FilePaths
    work: FileWork

    @property
    def pending(self) -> PendingFile:
        """What is kept of it before it is written."""
        chunks = self.task.chunks
        size = len(self.work.header) + sum(chunk.nbytes for chunk in chunks)
        return PendingFile(
            self.task.dispatcher.id,
            self.paths.data_path,
            self.paths.index_path,
            chunks[0].start,
            chunks[-1].end,
            0 if self.work.parquet else size,
        )


class WriteLoop:
    """Runs write jobs of the dispatchers that are due: place, keep what is coming, write, acknowledge.

    While all jobs are busy, more files become due, and the next job is larger. A dispatcher is never in two.
    """

    def __init__(
        self,
        engine: SinkEngine,
        files: RemoteFiles,
        progress: ProgressStore,
        ledger: Ledger,
        options: SinkOptions,
        metrics: SinkMetrics,
        underway: TaskScope,
        threads: ThreadRunner,
        *,
        on_progress: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._files = files
        self._progress = progress
        self._ledger = ledger
        self._options = options
        self._metrics = metrics
        self._underway = underway
        self._threads = threads
        self._on_progress = on_progress
        self._clock = clock
        self._job_bytes = max(
            options.spool_disk_quota // _WRITE_JOBS_MAX, 1
        )  # all of the spool may be on its way
        self._jobs = 0
        self._warned = False
        self.changed = WakeUp(clock)  # there is more in the spool, or something was forced

    async def run(self) -> None:
        """For ever."""
        buffers = self._ledger.buffers
        while True:
            buffers.tick(self._clock.monotonic())
            while self._jobs < _WRITE_JOBS_MAX and (tasks := buffers.take(_JOB_FILES_MAX, self._job_bytes)):
                self._jobs += 1
                self._underway.start(self._write(tasks))
            deadline = buffers.next_deadline()
            await self.changed.wait(None if deadline is None else deadline - self._clock.monotonic())

    async def _write(self, tasks: Sequence[FileTask]) -> None:
        began_at = self._clock.monotonic()
        with self._metrics.stage("place"):
            places = await self._place(tasks)
        for task, where in zip(tasks, places, strict=True):
            if where is None:
                self._leave_out(task)
        placed = [
            PlacedFile(task, *where, self._work(task, where[1]))
            for task, where in zip(tasks, places, strict=True)
            if where is not None
        ]
        if placed:
            with self._metrics.stage("begin"):
                await self._progress.begin_files([each.pending for each in placed])
            with self._metrics.stage("write"):
                written = await self._engine.write([each.work for each in placed])
            self._acknowledge(placed, written, self._clock.monotonic() - began_at)
        self._jobs -= 1
        self._on_progress()

    async def _place(self, tasks: Sequence[FileTask]) -> list[tuple[FileTarget, FilePaths] | None]:
        """Where each file goes; None: nowhere, it is stale. All have ended when this raises."""
        placing = [self._threads.call(self._place_one, task) for task in tasks]
        placed = await asyncio.gather(*placing, return_exceptions=True)
        for each in placed:
            if isinstance(each, BaseException):
                raise each
        return [each for each in placed if not isinstance(each, BaseException)]

    def _place_one(self, task: FileTask) -> tuple[FileTarget, FilePaths] | None:
        place = self._files.place(task.dispatcher, task.schema)
        return None if place is None else (place, self._files.next_file(place, task.chunks[-1].end.ts))

    def _work(self, task: FileTask, paths: FilePaths) -> FileWork:
        options = self._options.encoder(task.schema)
        return FileWork(
            dispatcher_id=task.dispatcher.id,
            chunks=task.chunks,
            data_path=paths.data_path,
            index_path=paths.index_path,
            header=header_of(task.schema, options),
            parquet=options.protocol == "parquet",
            parquet_options=() if options.compression == "none" else (("compression", options.compression),),
        )

    def _acknowledge(
        self, placed: Sequence[PlacedFile], written: Sequence[WriteResult], seconds: float
    ) -> None:
        """Those that are on the remote count, whatever became of the others; raise if one is not."""
        failed = []
        for each, result in zip(placed, written, strict=True):
            if result.error:
                failed.append(result)
                self._metrics.failed(seconds)
            else:
                self._files.wrote(each.place, each.paths)
                self._metrics.flushed(each.task.reason, each.task.rows, result.nbytes, seconds)
                self._ledger.written(each.task, result.nbytes)
                if tracing.current is not None:
                    self._trace(tracing.current.passage(began_s_ago=seconds), each)
        if failed:
            first = failed[0]
            raise Unavailable(
                f"{len(failed)} of {len(placed)} files could not be written; {first.data_path}: {first.error}"
            )

    def _trace(self, passage: tracing.StageRecorder, file: PlacedFile) -> None:
        for chunk in file.task.chunks:
            passage.add_pairs(chunk.traced)
        passage.arrived(
            tracing.Stage.CHANGEFEED,
            key=f"{self._metrics.changefeed}/{file.paths.data_path}",
            table_id=file.task.dispatcher.table_id,
            table=file.task.schema.name,
            changefeed=self._metrics.changefeed,
        )

    def _leave_out(self, task: FileTask) -> None:
        """TiCDC's rule for rows of a version that the remote has moved past: they are left out, and done."""
        self._metrics.stale(task.rows)
        if not self._warned:
            self._warned = True
            _log.warning(
                "rows were left out: the remote has a newer version of their table; from now on only counted",
                extra={"table": task.schema.name, "version": task.schema.since_ts, "rows": task.rows},
            )
        self._ledger.left_out(task)
