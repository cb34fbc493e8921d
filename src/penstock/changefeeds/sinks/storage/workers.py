"""The two loops of the storage sink: one encodes what waits in the shards, one writes the files that are due.

Each runs several jobs at a time, so that slow requests overlap. Small encodes share jobs, large and slow ones
have jobs of their own. Files that are made of slices, without the spool, are given to the engine one by one:
each is acknowledged when it is done, whatever the others do.
"""

import asyncio
import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice

from penstock import tracing
from penstock.changefeeds.codecs.encoder import header_of
from penstock.changefeeds.codecs.options import EncoderOptions
from penstock.changefeeds.engines.engine import (
    FIRST_NUMBER,
    Chunk,
    DirectFile,
    EncodeWork,
    FileWork,
    SinkEngine,
    WriteResult,
)
from penstock.changefeeds.model import PendingFile, ProgressStore
from penstock.changefeeds.sinks.sink import DmlEvent, FailingDispatcher
from penstock.changefeeds.sinks.storage.buffers import FileTask
from penstock.changefeeds.sinks.storage.job_queue import DispatcherJob, JobQueue
from penstock.changefeeds.sinks.storage.ledger import EncodeBatch, Ledger
from penstock.changefeeds.sinks.storage.metrics import SinkMetrics
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.remote_files import FilePaths, FileTarget, RemoteFiles
from penstock.clock import Clock
from penstock.errors import Denied, PenstockError, Unavailable
from penstock.eventloop import Notifier, TaskScope, ThreadRunner, WakeUp
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.slices import Slice
from penstock.retry import EQUAL_JITTER, BackoffPolicy
from penstock.spark.errors import SessionEnded

_log = logging.getLogger(__name__)

_SHARED_JOBS_MAX = 2
_LARGE_JOBS_MAX = 4
_SLOW_JOBS_MAX = 4
_WRITE_JOBS_MAX = 8
_FILES_MAX = 4096  # that are written at the same time
_RECORD_FILES_MAX = 512  # in one transaction
_FINAL_TRIES_MAX = 4
_JOB_TRIES_MAX = 8  # of work that fails alone, for about a minute: where its slices are read may be gone
_BACKOFF = BackoffPolicy(base_s=0.5, cap_s=60.0, jitter=EQUAL_JITTER)


def may_pass(error: PenstockError) -> bool:
    """Return whether waiting may help: the remote may answer again, and credentials may be replaced."""
    return isinstance(error, Unavailable | Denied) and not isinstance(error, SessionEnded)


def _slow_jobs_max(engine: SinkEngine) -> int:
    """Return how many jobs of slow dispatchers may run: each holds a core, and one is left to the others."""
    return min(_SLOW_JOBS_MAX, max(1, engine.cores - 1))


class Retries:
    """Pauses before work of dispatchers is tried again, and which dispatchers wait for that."""

    def __init__(self, metrics: SinkMetrics, on_progress: Callable[[], None], clock: Clock) -> None:
        self._metrics = metrics
        self._on_progress = on_progress
        self._clock = clock
        self._closing = False
        self.failing: dict[str, FailingDispatcher] = {}
        """Dispatchers whose work cannot be done now."""

    async def pause(self, dispatcher_id: str, table: str, error: PenstockError, tries: int) -> None:
        """Wait after so many failures in a row; after `close` for ever, which the end of the sink ends.

        Raises a failure that waiting cannot help.
        """
        if not may_pass(error):
            raise error
        known = self.failing.get(dispatcher_id)
        since = self._clock.monotonic() if known is None else known.since
        self.failing[dispatcher_id] = FailingDispatcher(error, since)
        facts = {"changefeed": self._metrics.changefeed, "table": table, "error": str(error)}
        _log.warning("a table cannot be written and is tried again", extra={**facts, "tries": tries})
        self._on_progress()
        await self._clock.sleep(_BACKOFF.delay_s(tries, self._clock.random()))
        if self._closing:
            await asyncio.get_running_loop().create_future()

    def clear(self, dispatcher_id: str) -> None:
        """Take note that work of a dispatcher was done."""
        self.failing.pop(dispatcher_id, None)

    def close(self) -> None:
        """Try nothing again from now on."""
        self._closing = True


class EncodeLoop:
    """Takes what waits in the shards, and runs encode jobs of what has to go through the spool.

    A batch goes on when its own job has ended, and what needs no job at once. When a job fails, its batches
    are encoded again in smaller ones: one that fails alone is tried again after pauses that grow, and only
    its dispatcher waits. After some tries the sink ends: whoever goes on looks where the slices are by then.
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
            large_max=_LARGE_JOBS_MAX,
            slow_max=_slow_jobs_max(engine),
            bytes_max=ledger.take_bytes,
        )
        self._tries: Counter[str] = Counter()  # that have failed in a row, by dispatcher
        self.retries = Retries(metrics, on_progress, clock)
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
            try:
                encoded = await self._engine.encode(work)
            except PenstockError as error:
                self._fail(job, error)
                return
            assert len(encoded) == len(work), "an engine gives the chunks of each slice"
        self._metrics.encode_seconds.observe(self._clock.monotonic() - began_at)
        in_order = iter(encoded)
        seconds: list[float] = []
        for batch in job.work:
            found = list(islice(in_order, len(batch.events)))
            self._ledger.finish_encode(batch, [slice_.chunks for slice_ in found])
            seconds.append(sum(slice_.seconds for slice_ in found))
            self.retries.clear(batch.dispatcher_id)
            self._tries.pop(batch.dispatcher_id, None)
        self._jobs.finish(job, seconds)
        self._on_progress()

    def _fail(self, job: DispatcherJob[EncodeBatch], error: PenstockError) -> None:
        """Have the batches of a job that failed encoded again; raise what does not pass."""
        if not may_pass(error):
            raise error
        alone = self._jobs.fail(job)
        if alone is not None:
            self._tasks.start(self._encode_later(alone, error))
        self._on_progress()

    async def _encode_later(self, batch: EncodeBatch, error: PenstockError) -> None:
        table = batch.events[0].slice.schema.name
        self._tries[batch.dispatcher_id] += 1
        failure = Unavailable(f"changes of {table} could not be encoded: {error}")
        if self._tries[batch.dispatcher_id] >= _JOB_TRIES_MAX:
            raise failure
        await self.retries.pause(batch.dispatcher_id, table, failure, self._tries[batch.dispatcher_id])
        self._jobs.add(batch, alone=True)
        self.changed.notify()

    def _work(self, event: DmlEvent) -> EncodeWork:
        return encode_work(event.slice, self._options, self._clock)


def encode_work(slice_: Slice, options: SinkOptions, clock: Clock) -> EncodeWork:
    """Return how a slice is encoded from now on: lines that have a time have this one, however often."""
    traced = None if tracing.current is None else tracing.current.sampling
    encoder = replace(options.encoder(slice_.schema), encoded_at_ms=clock.wall_ms(), traced=traced)
    return EncodeWork(slice_, encoder)


@dataclass(slots=True, eq=False)
class PlacedFile:
    """A file to write, with its target and its paths.

    `before` is the dispatcher's file before it, if that was under way.
    """

    task: FileTask
    target: FileTarget
    paths: FilePaths
    work: FileWork
    where: str
    before: FileTask | None
    began_at: float
    tries: int = 0

    @property
    def is_first(self) -> bool:
        """Whether its folder has no file before it."""
        return self.paths.number == FIRST_NUMBER

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
    records: "PendingRecords",
    options: SinkOptions,
    *,
    encoded_at_ms: int,
) -> None:
    """Write files of a dispatcher that another process began, in order: each the changes of its slices, under
    the name it was given.

    The other process may still write the same changes, with other bytes, so their size is forgotten first.
    That also checks the lease. Raises Unavailable when a file cannot be written.
    """
    await records.begin([replace(file, nbytes=0) for file, _ in files])
    known = next((slices[0] for _, slices in files if slices), None)
    for file, found in files:
        slices = found
        if not found and file.followed and known is not None:  # others are behind it: it is written
            slices = [replace(known, start=file.start, end=file.end, parts=(), rows=0, nbytes=0)]
        if slices:
            result = await engine.make_file(_repeat_work(file, slices, options, encoded_at_ms))
            if result.failure is not None:
                raise _file_failure(file.data_path, result.failure)


class PendingRecords:
    """Stores what files will hold before they are written. Who comes while one transaction is under way
    shares the next, so that their number does not grow with that of the dispatchers.
    """

    def __init__(self, progress: ProgressStore, tasks: TaskScope) -> None:
        self._progress = progress
        self._tasks = tasks
        self._waiting: deque[tuple[Sequence[PendingFile], asyncio.Future[None]]] = deque()
        self._storing = False

    async def begin(self, files: Sequence[PendingFile]) -> None:
        """Store the files of one dispatcher that are under way, in the place of those before."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((files, stored))
        if not self._storing:
            self._storing = True
            self._tasks.start(self._store_all())
        await stored

    async def _store_all(self) -> None:
        while self._waiting:
            files: list[PendingFile] = []
            waiting: list[asyncio.Future[None]] = []
            while self._waiting and (not files or len(files) + len(self._waiting[0][0]) <= _RECORD_FILES_MAX):
                mine, stored = self._waiting.popleft()
                files += mine
                waiting.append(stored)
            try:
                await self._progress.begin_files(files)
            except Exception as error:  # noqa: BLE001 - whoever waits for it gets it
                for stored in waiting:
                    if not stored.done():
                        stored.set_exception(error)
            else:
                for stored in waiting:
                    if not stored.done():
                        stored.set_result(None)
        self._storing = False


def _file_failure(path: str, failure: PenstockError) -> PenstockError:
    """Return a failure that names the file, unless it is final: then its own words say what to do."""
    if isinstance(failure, Unavailable):
        return Unavailable(f"{path} could not be written: {failure}")
    return failure


def _repeat_work(
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


class WriteLoop:
    """Writes the files that are due: place them, store what they hold, write, acknowledge.

    Each dispatcher goes through these steps by itself. It gets no more files before what the last ones hold
    is stored, so its files are placed and stored in order. A file that cannot be written now is tried again,
    with the same bytes, after pauses that grow. Until then its dispatcher is `failing`; the others go on.
    """

    def __init__(
        self,
        engine: SinkEngine,
        files: RemoteFiles,
        records: PendingRecords,
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
        self._records = records
        self._ledger = ledger
        self._options = options
        self._metrics = metrics
        self._tasks = tasks
        self._threads = threads
        self._on_progress = on_progress
        self._clock = clock
        self._bytes_max = options.spool_disk_quota  # the whole spool may be written at once
        self._taken: dict[FileTask, None] = {}  # files under way, without those that are tried again
        self._taken_bytes = 0
        self._jobs = JobQueue[PlacedFile](
            dispatcher_of=lambda file: file.task.dispatcher.id,
            weigh=lambda file: file.task.nbytes,
            shared_max=_SHARED_JOBS_MAX,
            large_max=_LARGE_JOBS_MAX,
            slow_max=_slow_jobs_max(engine),
            bytes_max=max(options.spool_disk_quota // _WRITE_JOBS_MAX, 1),
        )
        self._underway: dict[str, deque[PlacedFile]] = {}  # stored and not acknowledged, by dispatcher
        self._settled = Notifier()  # a file was acknowledged
        self._warned = False
        self.retries = Retries(metrics, on_progress, clock)
        self.changed = WakeUp(clock)  # there is more in the spool, or a file was made due

    async def run(self) -> None:
        """Begin the files that are due, for ever."""
        buffers = self._ledger.buffers
        while True:
            buffers.tick(self._clock.monotonic())
            while tasks := buffers.take(_FILES_MAX - len(self._taken), self._bytes_max - self._taken_bytes):
                self._taken.update(dict.fromkeys(tasks))
                self._taken_bytes += sum(task.nbytes for task in tasks)
                for _, group in groupby(tasks, key=lambda task: task.dispatcher.id):
                    self._tasks.start(self._begin(list(group)))
            deadline = buffers.next_deadline()
            await self.changed.wait(None if deadline is None else deadline - self._clock.monotonic())

    async def _begin(self, tasks: Sequence[FileTask]) -> None:
        """Place files of one dispatcher, store what they hold, and have them written.

        The first file of a folder is on the remote, or has turned out to have no rows, before the next one is
        placed: TiCDC's consumer ends with a first file without rows, so it is never written.
        """
        began_at = self._clock.monotonic()
        dispatcher_id = tasks[0].dispatcher.id
        placed: list[PlacedFile] = []
        stale: list[FileTask] = []
        for task in tasks:
            if placed and placed[-1].is_first:
                await self._start_writing(dispatcher_id, placed)
                await self._settled.wait_for(lambda: dispatcher_id not in self._underway)
                placed = []
            target = await self._place(task, following=dispatcher_id in self._underway)
            if target is None:
                stale.append(task)
            else:
                placed.append(self._to_placed_file(task, *target, began_at))
        await self._start_writing(dispatcher_id, placed)
        self._ledger.buffers.finish_begin(dispatcher_id)
        for task in stale:
            self._skip_stale(task)
        self._on_progress()

    async def _start_writing(self, dispatcher_id: str, placed: Sequence[PlacedFile]) -> None:
        """Store what files hold, then have them written."""
        if placed:
            with self._metrics.stage("begin"):
                await self._records.begin([file.pending for file in self._underway[dispatcher_id]])
        for file in placed:
            if file.task.slices:  # acknowledged by itself: no file waits for another
                self._tasks.start(self._make(file))
            else:
                self._jobs.add(file)
        self._start_jobs()

    async def _place(self, task: FileTask, *, following: bool) -> tuple[FileTarget, FilePaths] | None:
        """Return where a file goes, or None for a stale one. `following`: others are under way."""
        tries = 0
        while True:
            try:
                with self._metrics.stage("place"):
                    return await self._threads.call(partial(self._place_now, task, following=following))
            except (Unavailable, Denied) as error:
                tries += 1
                await self._wait_to_retry(task, error, tries)

    def _place_now(self, task: FileTask, *, following: bool) -> tuple[FileTarget, FilePaths] | None:
        target = self._files.place(task.dispatcher, task.schema)
        if target is None:
            return None
        return target, self._files.next_file(target, task.end.ts, following=following)

    async def _wait_to_retry(self, task: FileTask, error: PenstockError, tries: int) -> None:
        """Wait after so many failures in a row; raise a failure that waiting cannot help."""
        self._uncount(task)
        await self.retries.pause(task.dispatcher.id, task.schema.name, error, tries)

    def _uncount(self, task: FileTask) -> None:
        """Let another file be begun in the place of one that has ended, or failed and waits."""
        if task in self._taken:
            del self._taken[task]
            self._taken_bytes -= task.nbytes

    async def _make(self, file: PlacedFile) -> None:
        """Make a file of slices and acknowledge it; raise what keeps it from being written for good."""
        work = tuple(encode_work(slice_, self._options, self._clock) for slice_ in file.task.slices)
        # The same each time: one that was given up may still arrive, and must have the same bytes.
        direct = DirectFile(file.work, work, file.task.nbytes)
        while True:
            await self._settled.wait_for(lambda: self._may_try(file))
            began_at = self._clock.monotonic()
            with self._metrics.stage("write"):
                result = await self._engine.make_file(direct)
            if result.failure is None:
                break
            self._metrics.observe_failure(self._clock.monotonic() - began_at)
            file.tries += 1
            await self._wait_to_retry(
                file.task, _file_failure(file.paths.data_path, result.failure), file.tries
            )
        seconds = self._clock.monotonic() - file.began_at
        if result.nbytes:
            self._files.confirm_written(file.target, file.paths)
            self._metrics.observe_flush(file.task.reason, result.rows, result.nbytes, seconds)
        self._ledger.finish_direct(file.task, result.encoded_bytes, result.nbytes)
        self._forget_done(file)
        if tracing.current is not None and result.rows:
            self._trace(tracing.current.start_recorder(began_s_ago=seconds), file, result.traced)
        self._on_progress()

    def _may_try(self, file: PlacedFile) -> bool:
        """Return whether a file may be given to the engine: it waits for one before it that has failed."""
        failing = file.task.dispatcher.id in self.retries.failing
        return not failing or file.before is None or file.before.done

    def _start_jobs(self) -> None:
        while (job := self._jobs.take()) is not None:
            self._tasks.start(self._write(job))

    async def _write(self, job: DispatcherJob[PlacedFile]) -> None:
        """Write files out of the spool."""
        with self._metrics.stage("write"):
            try:
                results = await self._engine.write([file.work for file in job.work])
            except PenstockError as error:
                self._fail(job, error)
            else:
                self._settle(job, results)
        self._start_jobs()
        self._on_progress()

    def _settle(self, job: DispatcherJob[PlacedFile], results: Sequence[WriteResult]) -> None:
        """Acknowledge the files of a job that are on the remote; have the others written later."""
        self._jobs.finish(job, [result.seconds for result in results])
        for file, result in zip(job.work, results, strict=True):
            if result.error:
                self._metrics.observe_failure(self._clock.monotonic() - file.began_at)
                tries_max = _FINAL_TRIES_MAX if result.final else math.inf
                self._tasks.start(self._write_later(file, result.error, tries_max=tries_max))
            else:
                self._acknowledge(file, result)

    def _fail(self, job: DispatcherJob[PlacedFile], error: PenstockError) -> None:
        """Have the files of a job that failed written again; raise what does not pass."""
        if not may_pass(error):
            raise error
        alone = self._jobs.fail(job)
        if alone is not None:
            self._metrics.observe_failure(self._clock.monotonic() - alone.began_at)
            self._tasks.start(self._write_later(alone, str(error), tries_max=_JOB_TRIES_MAX))

    async def _write_later(self, file: PlacedFile, error: str, *, tries_max: float) -> None:
        """Write a file out of the spool once more.

        After `tries_max` the sink ends: whoever goes on finds out what is there, and makes the file of
        slices.
        """
        failure = Unavailable(f"{file.paths.data_path} could not be written: {error}")
        file.tries += 1
        if file.tries >= tries_max:
            raise failure
        await self._wait_to_retry(file.task, failure, file.tries)
        self._jobs.add(file, alone=True)
        self._start_jobs()

    def _to_placed_file(
        self, task: FileTask, target: FileTarget, paths: FilePaths, began_at: float
    ) -> PlacedFile:
        underway = self._underway.setdefault(task.dispatcher.id, deque())
        task.followed = task.followed and paths.number != FIRST_NUMBER
        work = file_work(
            task.dispatcher.id,
            task.chunks,
            task.schema,
            paths,
            self._options,
            after=underway[-1].paths.data_path if underway else "",
            blank=task.followed,
        )
        before = underway[-1].task if underway else None
        where = self._options.encoder(task.schema).where
        underway.append(PlacedFile(task, target, paths, work, where, before, began_at))
        return underway[-1]

    def _forget_done(self, file: PlacedFile) -> None:
        """Forget the first files of a dispatcher that are on the remote."""
        dispatcher_id = file.task.dispatcher.id
        self._uncount(file.task)
        self.retries.clear(dispatcher_id)
        underway = self._underway[dispatcher_id]
        while underway and underway[0].task.done:
            underway.popleft()
        if not underway:
            del self._underway[dispatcher_id]
        self._settled.notify_all()

    def _acknowledge(self, file: PlacedFile, result: WriteResult) -> None:
        """Acknowledge a file of the spool that is on the remote."""
        seconds = self._clock.monotonic() - file.began_at
        self._files.confirm_written(file.target, file.paths)
        self._metrics.observe_flush(file.task.reason, file.task.rows, result.nbytes, seconds)
        self._ledger.finish_file(file.task, result.nbytes)
        self._forget_done(file)
        if tracing.current is not None:
            traced = [pair for chunk in file.task.chunks for pair in chunk.traced]
            self._trace(tracing.current.start_recorder(began_s_ago=seconds), file, traced)

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
        self._uncount(task)
        self.retries.clear(task.dispatcher.id)
        if not self._warned:
            self._warned = True
            _log.warning(
                "rows were left out: the remote has a newer version of their table; from now on only counted",
                extra={"table": task.schema.name, "version": task.schema.since_ts, "rows": task.rows},
            )
        self._ledger.skip_file(task)
