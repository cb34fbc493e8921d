"""Writes the files that are due, several jobs at a time, so that slow requests overlap."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock import tracing
from penstock.changefeeds.engines.encode import file_header
from penstock.changefeeds.engines.engine import FileWork, SinkEngine, WriteResult
from penstock.changefeeds.feedstore import PendingFile, ProgressStore
from penstock.changefeeds.sinks.storage.filetasks import FileTask
from penstock.changefeeds.sinks.storage.ledger import Ledger
from penstock.changefeeds.sinks.storage.metrics import SinkMetrics
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.remote_files import FilePaths, FileTarget, RemoteFiles
from penstock.clock import Clock
from penstock.errors import Unavailable
from penstock.eventloop import TaskScope, ThreadRunner, WakeUp

_log = logging.getLogger(__name__)

_JOBS_MAX = 8
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
        self._job_bytes = max(options.spool_disk_quota // _JOBS_MAX, 1)  # all of the spool may be on its way
        self._jobs = 0
        self._warned = False
        self.changed = WakeUp(clock)  # there is more in the spool, or something was forced

    async def run(self) -> None:
        """For ever."""
        buffers = self._ledger.buffers
        while True:
            buffers.tick(self._clock.monotonic())
            while self._jobs < _JOBS_MAX and (tasks := buffers.take(_JOB_FILES_MAX, self._job_bytes)):
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
            header=file_header(task.schema, options),
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
