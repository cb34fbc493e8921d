"""The sink's work on rows as Spark jobs: executors encode slices, keep the payloads, and write the files.

A segment of the spool is a DataFrame that is persisted MEMORY_AND_DISK. Spark's block manager is the spool's
memory and disk; a block that is lost with its executor is encoded again from the event store, with the same
bytes. The driver sees descriptors only.

`write_in_order` writes the files of one task, whose payloads come in order, with overlapping requests.
"""

import asyncio
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, reduce
from itertools import count, groupby
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from penstock.changefeeds.engines.encode import retry_when_moved
from penstock.changefeeds.engines.engine import (
    Chunk,
    DirectFile,
    DirectResult,
    EncodedSlice,
    FileWork,
    RowCounter,
    Traced,
    WriteResult,
)
from penstock.changefeeds.engines.files import write_files
from penstock.changefeeds.engines.rounds import FileRounds, SparkFileJobs
from penstock.clock import SYSTEM
from penstock.errors import PenstockError, Unavailable
from penstock.eventloop import call_in_thread
from penstock.follow.slices import Phase, Position
from penstock.object_storage import StorageRef
from penstock.spark.errors import first_line, hide_worker_traceback, translate_spark_errors
from penstock.spark.labels import interrupt_jobs, label_jobs
from penstock.spark.parallelism import default_parallelism, work_frame, work_session
from penstock.spark.tasks import begin_task, spread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.changefeeds.engines.encode import EncodedChunk
    from penstock.changefeeds.engines.engine import EncodeWork


INFLIGHT_BYTES_MAX = 256 * 1024 * 1024
_JOBS_AT_ONCE = 16
_CANCEL_S = 1.0
"""Seconds for a job to end by itself after its call was cancelled, and then between interrupts."""
_TASKS_PER_CORE = 2  # so that a long one keeps the others waiting less
_ONE_TASK_BYTES = 8 * 1024 * 1024  # segments of no more are read by one task
_PLACE_BITS = 32
"""The place of a chunk is (number of its file << 32) | (number in the file): one number to sort by. A chunk's
own number is (number of its task << 32) | (number in the task), so it is unique within its segment."""
_CODEC = "lz4"
_TRACED = "<u8"

T = TypeVar("T")

CHUNK_COLUMNS = (
    "which int, part int, number long, start_ts long, start_handle binary, start_phase int, end_ts long,"
    " end_handle binary, end_phase int, rows long, nbytes long, traced binary, payload binary"
)
RESULT_COLUMNS = "number int, data_path string, nbytes long, error string, final boolean, seconds double"

_CHUNKS = pa.schema(
    [
        ("which", pa.int32()),
        ("part", pa.int32()),
        ("number", pa.int64()),
        ("start_ts", pa.int64()),
        ("start_handle", pa.binary()),
        ("start_phase", pa.int32()),
        ("end_ts", pa.int64()),
        ("end_handle", pa.binary()),
        ("end_phase", pa.int32()),
        ("rows", pa.int64()),
        ("nbytes", pa.int64()),
        ("traced", pa.binary()),
        ("payload", pa.binary()),
    ]
)
_READ = -1
"""`which` of a row that has no chunk, but what a task has done for slice `part`: how many `rows` it has read,
and as `nbytes` in how many microseconds."""
_PLACES = pa.schema(
    [("number", pa.int64()), ("place", pa.int64()), ("task", pa.int32()), ("work", pa.binary())]
)
_PAYLOAD_COLUMNS = ("place", "nbytes", "payload", "work")
DESCRIPTORS = tuple(name for name in _CHUNKS.names if name != "payload")
_RESULTS = pa.schema(
    [
        ("number", pa.int32()),
        ("data_path", pa.string()),
        ("nbytes", pa.int64()),
        ("error", pa.string()),
        ("final", pa.bool_()),
        ("seconds", pa.float64()),
    ]
)


def chunk_batch(which: int, part: int, number: int, encoded: "EncodedChunk") -> pa.RecordBatch:
    """Return a row of one chunk, of part `part` of slice `which`. Compressed text is far less to move."""
    start, end = encoded.start, encoded.end
    row = [which, part, number, start.ts, start.handle, int(start.phase)]
    row += [end.ts, end.handle, int(end.phase), encoded.rows]
    packed = pa.compress(encoded.payload, codec=_CODEC, asbytes=True)
    traced = np.array(encoded.traced, _TRACED).tobytes()
    return _one_row(_CHUNKS, [*row, len(encoded.payload), traced, packed])


def read_batch(which: int, rows_read: int, seconds: float) -> pa.RecordBatch:
    """Return a row that tells what a task has read of a slice: a filter may leave no chunk of that."""
    position = [0, None, 0]
    microseconds = int(seconds * 1e6)
    return _one_row(_CHUNKS, [_READ, which, _READ, *position, *position, rows_read, microseconds, b"", b""])


def read_payloads(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes, bytes | None]]:
    """Yield the place and the payload of each row of (place, nbytes, payload, work).

    The first payload of a file comes with the file's pickled work, the others with None.
    """
    for batch in batches:
        places, sizes, packed, works = batch.columns
        rows = zip(places.to_pylist(), sizes.to_pylist(), packed, works.to_pylist(), strict=True)
        for place, nbytes, payload, work in rows:
            yield place, pa.decompress(payload.as_buffer(), nbytes, codec=_CODEC, asbytes=True), work


def read_chunks(descriptors: pa.Table, segment: int, slices: int) -> tuple[list[EncodedSlice], int]:
    """Return what each of so many slices has become, and how many rows all tasks have read."""
    chunks: dict[int, list[tuple[tuple[int, int], Chunk]]] = {}
    seconds: dict[int, float] = {}  # of the task that worked longest on a slice
    rows_read = 0
    for row in descriptors.to_pylist():
        if row["which"] == _READ:
            rows_read += row["rows"]
            seconds[row["part"]] = max(seconds.get(row["part"], 0.0), row["nbytes"] / 1e6)
            continue
        chunk = Chunk(
            segment=segment,
            number=row["number"],
            start=Position(row["start_ts"], row["start_handle"], Phase(row["start_phase"])),
            end=Position(row["end_ts"], row["end_handle"], Phase(row["end_phase"])),
            rows=row["rows"],
            nbytes=row["nbytes"],
            traced=_unpack_traced(row["traced"]),
        )
        chunks.setdefault(row["which"], []).append(((row["part"], row["number"]), chunk))
    encoded = [
        EncodedSlice(
            [chunk for _, chunk in sorted(chunks.get(which, []), key=itemgetter(0))], seconds.get(which, 0.0)
        )
        for which in range(slices)
    ]
    return encoded, rows_read


def _unpack_traced(packed: bytes) -> Traced:
    return tuple((ts, rows) for ts, rows in np.frombuffer(packed, _TRACED).reshape(-1, 2).tolist())


def result_batch(number: int, result: WriteResult) -> pa.RecordBatch:
    """Return a row with the result of file `number`."""
    row = [number, result.data_path, result.nbytes, result.error, result.final, result.seconds]
    return _one_row(_RESULTS, row)


def read_results(rows: pa.Table, files: Sequence[FileWork]) -> list[WriteResult]:
    """Return the result of each file, in their order; a file without a row had no payloads and has failed."""
    by_number = {
        row["number"]: WriteResult(*(row[name] for name in _RESULTS.names[1:])) for row in rows.to_pylist()
    }
    return [
        by_number.get(
            number, WriteResult(file.data_path, 0, "its payloads are gone from the spool", final=True)
        )
        for number, file in enumerate(files)
    ]


def _one_row(schema: pa.Schema, row: list[object]) -> pa.RecordBatch:
    arrays = [pa.array([value], field.type) for value, field in zip(row, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class SparkEngine:
    """Implements SinkEngine with Spark jobs, for a changefeed of an account.

    The account has the scheduler pool of its jobs, and its share of rounds.
    """

    def __init__(
        self,
        spark: "SparkSession",
        target: "StorageRef",
        *,
        changefeed: str = "",
        account: str = "",
        threads: int = 16,
        rounds: FileRounds | None = None,
    ) -> None:
        self._spark = spark
        self._own_rounds = rounds is None
        self._rounds = rounds or FileRounds(SparkFileJobs(lambda: spark))
        self._target = target
        self._changefeed = changefeed or account
        self._account = account
        self.cores = default_parallelism(spark)
        self._write_rows = _writer(target, threads)
        self._id = SYSTEM.unique_id()
        self._numbers = count(1)
        self._rows = RowCounter("spark")
        self._segments: dict[int, DataFrame] = {}
        self._segment_bytes: dict[int, int] = {}
        self._jobs = ThreadPoolExecutor(_JOBS_AT_ONCE, thread_name_prefix="penstock-sink-job")

    async def encode(self, work: "Sequence[EncodeWork]") -> list[EncodedSlice]:
        """Encode slices on executors into one new segment; return what each slice has become, in order."""
        what = f"encode {len(work)} slices"
        encoded, rows_read = await self._run(what, lambda: self._encode(next(self._numbers), tuple(work)))
        self._rows.count_encoded(rows_read, encoded)
        return encoded

    async def write(self, files: Sequence[FileWork]) -> list[WriteResult]:
        """Write files on executors, each data first, then index; one that fails does not stop the others."""
        results = await self._run(f"write {len(files)} files", lambda: self._write(files))
        self._rows.count_written(files, results)
        return results

    async def make_file(self, file: DirectFile) -> DirectResult:
        """Make a file in one stage, in a job with those that other changefeeds want at the same time."""
        result = await self._rounds.make_file(
            self._target, file, changefeed=self._changefeed, account=self._account
        )
        self._rows.count_made(result)
        return result

    async def release(self, segment: int) -> None:
        """Unpersist a segment."""
        frame = self._segments.pop(segment, None)
        self._segment_bytes.pop(segment, None)
        if frame is not None:
            with suppress(Unavailable):  # the session has died, and its blocks with it
                await self._run("release payloads", frame.unpersist)

    async def close(self) -> None:
        """Unpersist all segments and end the threads."""
        for segment in list(self._segments):
            await self.release(segment)
        if self._own_rounds:
            self._rounds.close()
        self._jobs.shutdown(wait=False, cancel_futures=True)

    async def _run(self, what: str, job: Callable[[], T]) -> T:
        """Run a job on a thread. A cancelled call waits for the job's end: no file may appear after that.

        After a moment it ends the job on the cluster, which may have no executors to run it.
        """
        tag = f"penstock-{SYSTEM.unique_id()}"
        running = asyncio.get_running_loop().run_in_executor(self._jobs, self._run_labelled, what, tag, job)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running], timeout=_CANCEL_S)
            while not running.done():
                await call_in_thread(interrupt_jobs, self._spark, tag)
                await asyncio.wait([running], timeout=_CANCEL_S)
            running.exception()  # mark it as retrieved: the caller does not wait for it any more
            raise

    def _run_labelled(self, what: str, tag: str, job: Callable[[], T]) -> T:
        name = f"changefeed {self._changefeed}: {what}" if self._changefeed else what
        try:
            with translate_spark_errors(), label_jobs(self._spark, name, tag=tag, account=self._account):
                return job()
        except PenstockError:
            raise
        except Exception as error:
            raise Unavailable(f"Spark failed: {first_line(error)}; it is tried again") from error

    def _encode(self, segment: int, work: "tuple[EncodeWork, ...]") -> tuple[list[EncodedSlice], int]:
        parts = [
            EncodeTask(item, which, number, part.rows)
            for which, item in enumerate(work)
            for number, part in enumerate(item.slice.parts)
        ]
        if not parts:
            return [EncodedSlice([]) for _ in work], 0
        tasks = spread(parts, self._tasks(), weight=lambda part: part.rows)
        # Spark keeps equal frames once: the name of the segment keeps that of another engine apart.
        name = f"{self._id}/{segment}"
        packed = [pickle.dumps((name, task, parts)) for task, parts in enumerate(tasks)]
        frame = work_frame(work_session(self._spark), packed)
        frame = frame.mapInArrow(_encode_rows, CHUNK_COLUMNS).persist(StorageLevel.MEMORY_AND_DISK)
        self._segments[segment] = frame
        try:
            encoded, rows_read = read_chunks(frame.select(*DESCRIPTORS).toArrow(), segment, len(work))
        except BaseException:
            self._segments.pop(segment).unpersist()
            raise
        self._segment_bytes[segment] = sum(chunk.nbytes for found in encoded for chunk in found.chunks)
        if not any(
            found.chunks for found in encoded
        ):  # no chunk names the segment, so no caller could release it
            self._segments.pop(segment).unpersist()
            del self._segment_bytes[segment]
        return encoded, rows_read

    def _write(self, files: Sequence[FileWork]) -> list[WriteResult]:
        if not files:
            return []
        tasks = spread(range(len(files)), self._tasks(), weight=lambda number: _nbytes(files[number]))
        task_of = {number: task for task, numbers in enumerate(tasks) for number in numbers}
        placed: dict[int, list[tuple[int, int, int, bytes | None]]] = {}
        for number, file in enumerate(files):
            for place, chunk in enumerate(file.chunks):
                work = pickle.dumps(file) if place == 0 else None
                row = chunk.number, number << _PLACE_BITS | place, task_of[number], work
                placed.setdefault(chunk.segment, []).append(row)
        selected = [self._select_payloads(segment, rows) for segment, rows in placed.items()]
        payloads = reduce(lambda left, right: left.unionAll(right), selected)
        if sum(self._segment_bytes[segment] for segment in placed) <= _ONE_TASK_BYTES:
            payloads = payloads.coalesce(1)  # one task reads them all: a shuffle would be a second stage
        else:
            payloads = payloads.repartitionById(len(tasks), F.col("task"))
        payloads = payloads.sortWithinPartitions("place")
        results = payloads.select(*_PAYLOAD_COLUMNS).mapInArrow(self._write_rows, RESULT_COLUMNS)
        return read_results(results.toArrow(), files)

    def _tasks(self) -> int:
        """Return into how many tasks a job is divided: executors come and go."""
        return _TASKS_PER_CORE * default_parallelism(self._spark)

    def _select_payloads(
        self, segment: int, placed: "Sequence[tuple[int, int, int, bytes | None]]"
    ) -> "DataFrame":
        """Return the payloads of some chunks of a segment, each with its place.

        Chunks are named by rows of a small frame, so that the plan is the same for all.
        """
        columns = zip(*placed, strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, _PLACES, strict=True)]
        wanted = self._spark.createDataFrame(pa.Table.from_arrays(arrays, schema=_PLACES))
        found = self._segments[segment].join(F.broadcast(wanted), "number")
        return found.select(*_PAYLOAD_COLUMNS, "task")


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """A part of a slice, as a Spark task gets it."""

    work: "EncodeWork"
    which: int  # the number of the slice in its job
    number: int  # of the slice's parts
    rows: int


def _encode_rows(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Encode the parts of slices that rows name; yield the chunks of each row."""
    begin_task()
    for batch in batches:
        for packed in batch.column(0):
            with hide_worker_traceback():
                # Pickled by our own driver, for our own executors.
                _, task, parts = pickle.loads(packed.as_buffer())  # noqa: S301 - see above
                yield from _encode_parts(task, parts)


def _encode_parts(task: int, parts: Iterable[EncodeTask]) -> "Iterator[pa.RecordBatch]":
    from penstock.changefeeds.engines.encode import encode_part

    numbers = count(task << _PLACE_BITS)
    for which, of_slice in groupby(parts, key=attrgetter("which")):
        read: list[int] = []
        began_at = SYSTEM.monotonic()
        for part in of_slice:
            chunks = retry_when_moved(
                partial(encode_part, part.work.slice, part.number, part.work.options, read.append)
            )
            for encoded in chunks:
                yield chunk_batch(which, part.number, next(numbers), encoded)
        yield read_batch(which, sum(read), SYSTEM.monotonic() - began_at)


def _nbytes(file: FileWork) -> int:
    return sum(chunk.nbytes for chunk in file.chunks)


def _writer(
    target: StorageRef, threads: int
) -> "Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    """Return what writes the files of a task out of rows of (place, nbytes, payload, work)."""

    def write(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        begin_task()
        files: dict[int, FileWork] = {}

        def payloads() -> Iterator[tuple[int, bytes]]:
            for place, payload, work in read_payloads(batches):
                number = place >> _PLACE_BITS
                if work is not None:
                    # Pickled by our own driver, for our own executors.
                    files[number] = pickle.loads(work)  # noqa: S301 - see above
                yield number, payload

        with hide_worker_traceback():
            for number, result in write_in_order(payloads(), files, target, threads=threads):
                yield result_batch(number, result)

    return write


def write_in_order(
    payloads: Iterable[tuple[int, bytes]],
    files: Mapping[int, FileWork],
    target: StorageRef,
    *,
    threads: int,
    inflight_bytes_max: int = INFLIGHT_BYTES_MAX,
) -> Iterator[tuple[int, WriteResult]]:
    """Write files as their payloads come; yield the number and the result of each file as it ends.

    Each payload comes with the number of its file, and the payloads of a file come one after the other; the
    file is known by then. Slow requests overlap in bounded memory, but one file may be larger than the bound.
    """
    running: dict[Future[WriteResult], tuple[int, int]] = {}  # the file's number and its bytes
    held = 0
    with ThreadPoolExecutor(threads, thread_name_prefix="penstock-sink-write") as pool:
        for number, group in groupby(payloads, key=itemgetter(0)):
            parts = [payload for _, payload in group]
            nbytes = sum(map(len, parts))
            while running and (len(running) >= threads or held + nbytes > inflight_bytes_max):
                for ended in wait(running, return_when=FIRST_COMPLETED).done:
                    ended_number, ended_bytes = running.pop(ended)
                    held -= ended_bytes
                    yield ended_number, ended.result()
            running[pool.submit(_write_file, files[number], parts, target)] = number, nbytes
            held += nbytes
        for future, (number, _) in running.items():
            yield number, future.result()


def _write_file(file: FileWork, payloads: list[bytes], target: StorageRef) -> WriteResult:
    if [len(payload) for payload in payloads] != [chunk.nbytes for chunk in file.chunks]:
        return WriteResult(
            file.data_path,
            0,
            "the payloads are not those that were encoded; the file is not written",
            final=True,
        )
    (result,) = write_files([file], lambda _: payloads, target, threads=1)
    return result
