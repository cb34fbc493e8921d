"""The two loops of the storage sink: one encodes what waits in the shards, one writes the files that are due.

Each runs several jobs at a time, so that slow requests overlap. Small encodes share jobs, large and slow ones
have jobs of their own. Files that are made of slices, without the spool, are given to the engine one by one:
each is acknowledged when it is done, whatever the others do.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice

from penstock import tracing
from penstock.changefeeds.codecs.encoder import header_of
from penstock.changefeeds.codecs.options import EncoderOptions
from penstock.changefeeds.engines.engine import (
    Chunk,
    DirectFile,
    EncodeWork,
    FileWork,
    SinkEngine,
    WriteResult,
)
from penstock.changefeeds.model import PendingFile, ProgressStore
from penstock.changefeeds.sinks.sink import DmlEvent
from penstock.changefeeds.sinks.storage.buffers import FileTask
from penstock.changefeeds.sinks.storage.job_queue import DispatcherJob, JobQueue
from penstock.changefeeds.sinks.storage.ledger import EncodeBatch, Ledger
from penstock.changefeeds.sinks.storage.metrics import SinkMetrics
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.remote_files import FilePaths, FileTarget, RemoteFiles
from penstock.clock import Clock
from penstock.errors import PenstockError, Unavailable
from penstock.eventloop import TaskScope, ThreadRunner, WakeUp
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.slices import Slice

_log = logging.getLogger(__name__)

_SHARED_JOBS_MAX = 2
_ALONE_JOBS_MAX = 4
_WRITE_JOBS_MAX = 8
_JOB_FILES_MAX = 512
_PLACE_S = 0.25  # for which the files of a job wait for those that take long to place


class EncodeLoop:
    """Takes what waits in the shards, and runs encode jobs of what has to go through the spool.

    A batch goes on when its own job has ended, and what needs no job at once.
    """

    def __init__(
        self,
        engine: SinkEngine,
        ledger: Ledger,
        options: SinkOptions,
        metrics: SinkMetrics,
        tasks: TaskScope,
        *,
        on_progress: Callable[[], None],
        on_due: Callable[[], None],
        clock: Clock,
    ) -> None:
        """`on_due` is called when files may be due, `on_progress` also when there may be more room."""
        self._engine = engine
        self._ledger = ledger
        self._options = options
        self._metrics = metrics
        self._tasks = tasks
        self._on_progress = on_progress
        self._on_due = on_due
        self._clock = clock
        self._jobs = JobQueue[EncodeBatch](
            dispatcher_of=lambda batch: batch.dispatcher_id,
            weigh=lambda batch: batch.expected_bytes,
            shared_max=_SHARED_JOBS_MAX,
            alone_max=_ALONE_JOBS_MAX,
            bytes_max=ledger.take_bytes,
        )
        self.changed = WakeUp(clock)  # there is more in the shards, or more room in the spool

    async def run(self) -> None:
        """Start encode jobs for ever."""
        while True:
            waited = len(self._ledger.shards)
            for batch in self._ledger.collect():
                self._jobs.add(batch)
            while (job := self._jobs.take()) is not None:
                self._tasks.start(self._encode(job))
            # What needs no job has gone on, or files were made due for room.
            if len(self._ledger.shards) < waited or self._ledger.buffers.has_due:
                self._on_due()
            await self.changed.wait()

    async def _encode(self, job: DispatcherJob[EncodeBatch]) -> None:
        work = [self._work(event) for batch in job.work for event in batch.events]
        began_at = self._clock.monotonic()
        with self._metrics.stage("encode"):
            chunks = await self._engine.encode(work)
            assert len(chunks) == len(work), "an engine gives the chunks of each slice"
        seconds = self._clock.monotonic() - began_at
        self._metrics.encode_seconds.observe(seconds)
        in_order = iter(chunks)
        for batch in job.work:
            self._ledger.finish_encode(batch, list(islice(in_order, len(batch.events))))
        self._jobs.finish(job, seconds)
        self._on_progress()

    def _work(self, event: DmlEvent) -> EncodeWork:
        return encode_work(event.slice, self._options, self._clock)


def encode_work(slice_: Slice, options: SinkOptions, clock: Clock) -> EncodeWork:
    """Return how a slice is encoded from now on: lines that have a time have this one, however often."""
    traced = None if tracing.current is None else tracing.current.sampling
    encoder = replace(options.encoder(slice_.schema), encoded_at_ms=clock.wall_ms(), traced=traced)
    return EncodeWork(slice_, encoder)


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file to write, with its target and its paths."""

    task: FileTask
    target: FileTarget
    paths: FilePaths
    work: FileWork
    where: str

    @property
    def pending(self) -> PendingFile:
        """What is stored of it before it is written.

        The size is not known by then for a Parquet file, and for one that is made of slices.
        """
        size = len(self.work.header) + self.task.nbytes
        return PendingFile(
            self.task.dispatcher.id,
            self.paths.data_path,
            self.paths.index_path,
            self.task.start,
            self.task.end,
            0 if self.work.parquet or self.task.slices else size,
            self.where,
            self.task.followed,
        )


def file_work(
    dispatcher_id: str,
    chunks: tuple[Chunk, ...],
    schema: SchemaVersion,
    paths: FilePaths,
    options: SinkOptions,
    *,
    again: bool = False,
    after: str = "",
    blank: bool = False,
) -> FileWork:
    """Return the work of a file with these chunks; a csv file begins with its header."""
    encoder = options.encoder(schema)
    return FileWork(
        dispatcher_id=dispatcher_id,
        chunks=chunks,
        data_path=paths.data_path,
        index_path=paths.index_path,
        header=header_of(schema, encoder),
        parquet=encoder.protocol == "parquet",
        parquet_options=() if encoder.compression == "none" else (("compression", encoder.compression),),
        again=again,
        after=after,
        blank=blank,
    )


async def write_again(
    files: Sequence[tuple[PendingFile, Sequence[Slice]]],
    engine: SinkEngine,
    progress: ProgressStore,
    options: SinkOptions,
    *,
    encoded_at_ms: int,
) -> None:
    """Write files that another process began: each the changes of its slices, under the name it was given.

    The files of a dispatcher are written in order. The other process may still write the same changes, with
    other bytes, so their size is forgotten first. That also checks the lease. Raises Unavailable when a file
    cannot be written.
    """
    begun: dict[str, list[tuple[PendingFile, Sequence[Slice]]]] = {}
    for file, slices in files:
        begun.setdefault(file.dispatcher_id, []).append((file, slices))
    pending = [replace(file, nbytes=0) for of_dispatcher in begun.values() for file, _ in of_dispatcher]
    await progress.begin_files(pending)

    async def write(of_dispatcher: Sequence[tuple[PendingFile, Sequence[Slice]]]) -> None:
        known = next((slices[0] for _, slices in of_dispatcher if slices), None)
        for file, found in of_dispatcher:
            slices = found
            if not found and file.followed and known is not None:  # others are behind it: it is written
                slices = [replace(known, start=file.start, end=file.end, parts=(), rows=0, nbytes=0)]
            if slices:
                result = await engine.make_file(_made_again(file, slices, options, encoded_at_ms))
                if result.failure is not None:
                    raise _file_failure(file.data_path, result.failure)

    outcomes = await asyncio.gather(*map(write, begun.values()), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


def _file_failure(path: str, failure: PenstockError) -> PenstockError:
    """Return a failure that names the file, unless it is final: then its own words say what to do."""
    if isinstance(failure, Unavailable):
        return Unavailable(f"{path} could not be written: {failure}")
    return failure


def _made_again(
    file: PendingFile, slices: Sequence[Slice], options: SinkOptions, encoded_at_ms: int
) -> DirectFile:
    paths = FilePaths(file.data_path, file.index_path, 0)
    work = tuple(
        EncodeWork(slice_, replace(_encoder_of(file, slice_, options), encoded_at_ms=encoded_at_ms))
        for slice_ in slices
    )
    schema, blank = slices[0].schema, file.followed
    made = file_work(file.dispatcher_id, (), schema, paths, options, again=True, blank=blank)
    return DirectFile(made, work, sum(slice_.nbytes for slice_ in slices))


def _encoder_of(file: PendingFile, slice_: Slice, options: SinkOptions) -> EncoderOptions:
    encoder = options.encoder(slice_.schema)
    return encoder if file.where is None else replace(encoder, where=file.where)


_Target = tuple[FileTarget, FilePaths] | None
_Placing = asyncio.Future[list[_Target]]


async def _end_calls(placing: "Collection[_Placing]") -> None:
    """Cancel calls, and wait for those that have begun: nothing of them happens later."""
    for each in placing:
        each.cancel()
    if placing:
        await asyncio.wait(placing)
    for each in placing:
        if not each.cancelled():
            each.exception()  # retrieved, or asyncio would log it


class WriteLoop:
    """Runs write jobs of the files that are due: place them, store what they hold, write, acknowledge.

    While all jobs are busy more files become due, so the next job is larger. A dispatcher gets no more files
    before what the last ones hold is stored, so its files are placed and stored in order.
    """

    def __init__(
        self,
        engine: SinkEngine,
        files: RemoteFiles,
        progress: ProgressStore,
        ledger: Ledger,
        options: SinkOptions,
        metrics: SinkMetrics,
        tasks: TaskScope,
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
        self._tasks = tasks
        self._threads = threads
        self._on_progress = on_progress
        self._clock = clock
        self._job_bytes = max(
            options.spool_disk_quota // _WRITE_JOBS_MAX, 1
        )  # the jobs together may write the whole spool at once
        self._jobs = 0
        self._underway: dict[str, deque[PlacedFile]] = {}  # stored and not acknowledged, by dispatcher
        self._warned = False
        self.changed = WakeUp(clock)  # there is more in the spool, or a file was made due

    async def run(self) -> None:
        """Start write jobs for ever."""
        buffers = self._ledger.buffers
        while True:
            buffers.tick(self._clock.monotonic())
            while self._jobs < _WRITE_JOBS_MAX and (tasks := buffers.take(_JOB_FILES_MAX, self._job_bytes)):
                self._jobs += 1
                self._tasks.start(self._write(tasks))
            deadline = buffers.next_deadline()
            await self.changed.wait(None if deadline is None else deadline - self._clock.monotonic())

    async def _write(self, tasks: Sequence[FileTask]) -> None:
        """Place files and start to write them. Dispatchers that take long to place keep no others waiting."""
        began_at = self._clock.monotonic()
        groups = [list(group) for _, group in groupby(tasks, key=lambda task: task.dispatcher.id)]
        placing = {asyncio.ensure_future(self._place(group)): group for group in groups}
        waiting, first = set(placing), True
        try:
            while waiting:
                with self._metrics.stage("place"):
                    if not first:
                        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    done, waiting = await asyncio.wait(waiting, timeout=_PLACE_S)
                failures = [failure for each in done if (failure := each.exception()) is not None]
                if failures:
                    raise failures[0]
                placed = [(group, each.result()) for each, group in placing.items() if each in done]
                self._tasks.start(self._write_placed(placed, began_at, ends_job=first))
                first = False
        finally:
            await _end_calls(waiting)

    async def _write_placed(
        self, groups: "Sequence[tuple[list[FileTask], list[_Target]]]", began_at: float, *, ends_job: bool
    ) -> None:
        """Store what the files hold, write them and acknowledge them."""
        tasks = [task for group, _ in groups for task in group]
        targets = [target for _, targets in groups for target in targets]
        placed = [
            self._placed(task, *target)
            for task, target in zip(tasks, targets, strict=True)
            if target is not None
        ]
        dispatcher_ids = list(dict.fromkeys(task.dispatcher.id for task in tasks))
        if placed:
            underway = [self._underway.get(dispatcher_id, ()) for dispatcher_id in dispatcher_ids]
            with self._metrics.stage("begin"):
                await self._progress.begin_files([file.pending for files in underway for file in files])
        for dispatcher_id in dispatcher_ids:
            self._ledger.buffers.finish_begin(dispatcher_id)
        for task, target in zip(tasks, targets, strict=True):
            if target is None:
                self._skip_stale(task)
        for file in placed:
            if file.task.slices:  # acknowledged by itself: no file waits for another
                self._tasks.start(self._make(file, began_at))
        spooled = [file for file in placed if file.task.chunks]
        if spooled:
            with self._metrics.stage("write"):
                results = await self._engine.write([file.work for file in spooled])
            self._acknowledge(spooled, results, self._clock.monotonic() - began_at)
        self._jobs -= ends_job
        self._on_progress()

    async def _make(self, file: PlacedFile, began_at: float) -> None:
        """Make a file of slices and acknowledge it; raise what kept it from being written."""
        work = tuple(encode_work(slice_, self._options, self._clock) for slice_ in file.task.slices)
        direct = DirectFile(file.work, work, file.task.nbytes)
        with self._metrics.stage("write"):
            result = await self._engine.make_file(direct)
        seconds = self._clock.monotonic() - began_at
        if result.failure is not None:
            self._metrics.observe_failure(seconds)
            raise _file_failure(file.paths.data_path, result.failure)
        if result.nbytes:
            self._files.confirm_written(file.target, file.paths)
            self._metrics.observe_flush(file.task.reason, result.rows, result.nbytes, seconds)
        self._ledger.finish_direct(file.task, result.encoded_bytes, result.nbytes)
        self._forget_done(file)
        if tracing.current is not None and result.rows:
            self._trace(tracing.current.start_recorder(began_s_ago=seconds), file, result.traced)
        self._on_progress()

    async def _place(self, group: Sequence[FileTask]) -> "list[_Target]":
        """Return where each file of a dispatcher goes, or None for a stale one."""
        following = group[0].dispatcher.id in self._underway
        return await self._threads.call(partial(self._place_in_order, group, following=following))

    def _place_in_order(self, tasks: Sequence[FileTask], *, following: bool) -> "list[_Target]":
        """Place files of one dispatcher; `following`: others of it are under way."""
        placed: list[_Target] = []
        for task in tasks:
            target = self._files.place(task.dispatcher, task.schema)
            if target is None:
                placed.append(None)
                continue
            placed.append((target, self._files.next_file(target, task.end.ts, following=following)))
            following = True
        return placed

    def _placed(self, task: FileTask, target: FileTarget, paths: FilePaths) -> PlacedFile:
        underway = self._underway.setdefault(task.dispatcher.id, deque())
        work = file_work(
            task.dispatcher.id,
            task.chunks,
            task.schema,
            paths,
            self._options,
            after=underway[-1].paths.data_path if underway else "",
            blank=task.followed,
        )
        underway.append(PlacedFile(task, target, paths, work, self._options.encoder(task.schema).where))
        return underway[-1]

    def _forget_done(self, file: PlacedFile) -> None:
        """Forget the first files of a dispatcher that are on the remote."""
        dispatcher_id = file.task.dispatcher.id
        underway = self._underway[dispatcher_id]
        while underway and underway[0].task.done:
            underway.popleft()
        if not underway:
            del self._underway[dispatcher_id]

    def _acknowledge(
        self, placed: Sequence[PlacedFile], results: Sequence[WriteResult], seconds: float
    ) -> None:
        """Acknowledge the files that are on the remote; then raise Unavailable if one is not."""
        failed = []
        for file, result in zip(placed, results, strict=True):
            if result.error:
                failed.append(result)
                self._metrics.observe_failure(seconds)
            else:
                self._files.confirm_written(file.target, file.paths)
                self._metrics.observe_flush(file.task.reason, file.task.rows, result.nbytes, seconds)
                self._ledger.finish_file(file.task, result.nbytes)
                self._forget_done(file)
                if tracing.current is not None:
                    traced = [pair for chunk in file.task.chunks for pair in chunk.traced]
                    self._trace(tracing.current.start_recorder(began_s_ago=seconds), file, traced)
        if failed:
            first = failed[0]
            raise Unavailable(
                f"{len(failed)} of {len(placed)} files could not be written; {first.data_path}: {first.error}"
            )

    def _trace(
        self, passage: tracing.StageRecorder, file: PlacedFile, traced: Sequence[tuple[int, int]]
    ) -> None:
        passage.add_pairs(traced)
        passage.record_arrival(
            tracing.Stage.CHANGEFEED,
            key=f"{self._metrics.changefeed}/{file.paths.data_path}",
            table_id=file.task.dispatcher.table_id,
            table=file.task.schema.name,
            changefeed=self._metrics.changefeed,
        )

    def _skip_stale(self, task: FileTask) -> None:
        """Skip a file whose schema version the remote has moved past, and count it as done: TiCDC's rule."""
        self._metrics.count_stale(task.rows)
        if not self._warned:
            self._warned = True
            _log.warning(
                "rows were left out: the remote has a newer version of their table; from now on only counted",
                extra={"table": task.schema.name, "version": task.schema.since_ts, "rows": task.rows},
            )
        self._ledger.skip_file(task)
