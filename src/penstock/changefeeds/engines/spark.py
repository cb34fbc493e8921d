"""The sink's work on rows as Spark jobs: executors encode slices, keep the payloads, and write the files.

A segment of the spool is a DataFrame that is persisted MEMORY_AND_DISK: Spark's block manager is the spool's
memory and disk, and a block that an executor took with it is encoded again from the event store, with the
same bytes. The driver sees descriptors only, but of what is too small for a job.

Writing the files of one task: payloads come in order, and slow requests overlap in bounded memory.

Chunks of the spool, and what became of files, as rows of Spark's.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from itertools import count, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from penstock.changefeeds.engines.encode import tried_again
from penstock.changefeeds.engines.engine import Chunk, FileWork, Traced, WriteResult
from penstock.changefeeds.engines.local import write_files
from penstock.follow.slices import Position
from penstock.object_storage import StorageRef
from penstock.spark.errors import one_line, spark_errors
from penstock.spark.jvm import driver_context
from penstock.spark.session import in_pool
from penstock.spark.tasks import spread, task_begins

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from penstock.changefeeds.engines.encode import EncodedChunk
    from penstock.changefeeds.engines.engine import EncodeWork


DESCRIPTORS = (
    "which",
    "part",
    "number",
    "start_ts",
    "start_handle",
    "end_ts",
    "end_handle",
    "rows",
    "nbytes",
    "traced",
)
CHUNKS = (
    "which int, part int, number long, start_ts long, start_handle binary, end_ts long, end_handle binary,"
    " rows long, nbytes long, traced binary, payload binary"
)
_CODEC = "lz4"
_TRACED = "<u8"
WRITTEN = "number int, data_path string, nbytes long, error string"

_CHUNKS = pa.schema(
    [
        ("which", pa.int32()),
        ("part", pa.int32()),
        ("number", pa.int64()),
        ("start_ts", pa.int64()),
        ("start_handle", pa.binary()),
        ("end_ts", pa.int64()),
        ("end_handle", pa.binary()),
        ("rows", pa.int64()),
        ("nbytes", pa.int64()),
        ("traced", pa.binary()),
        ("payload", pa.binary()),
    ]
)
_PAYLOADS = pa.schema([("place", pa.int64()), ("nbytes", pa.int64()), ("payload", pa.binary())])
_WRITTEN = pa.schema(
    [("number", pa.int32()), ("data_path", pa.string()), ("nbytes", pa.int64()), ("error", pa.string())]
)


def chunk_batch(which: int, part: int, number: int, encoded: "EncodedChunk") -> pa.RecordBatch:
    """One chunk: of slice `which` its part `part`. Text is far less to move when it is compressed."""
    start, end = encoded.start, encoded.end
    row = [which, part, number, start.ts, start.handle, end.ts, end.handle, encoded.rows]
    packed = pa.compress(encoded.payload, codec=_CODEC, asbytes=True)
    traced = np.array(encoded.traced, _TRACED).tobytes()
    return _one_row(_CHUNKS, [*row, len(encoded.payload), traced, packed])


def payload_table(payloads: Iterable[tuple[int, bytes]]) -> pa.Table:
    """Rows of (place, nbytes, payload), as `read_payloads` takes them."""
    found = [
        (place, len(payload), pa.compress(payload, codec=_CODEC, asbytes=True)) for place, payload in payloads
    ]
    columns = zip(*found, strict=True)
    return pa.table(
        [pa.array(each, kind) for each, kind in zip(columns, _PAYLOADS.types, strict=True)], schema=_PAYLOADS
    )


def read_payloads(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    """The place and the payload of each row of (place, nbytes, payload)."""
    for batch in batches:
        places, sizes, packed = batch.columns
        for place, nbytes, payload in zip(places.to_pylist(), sizes.to_pylist(), packed, strict=True):
            yield place, pa.decompress(payload.as_buffer(), nbytes, codec=_CODEC, asbytes=True)


def read_chunks(found: pa.Table, segment: int) -> dict[int, list[tuple[tuple[int, int], Chunk]]]:
    """The chunks of each slice, with what they are ordered by."""
    chunks: dict[int, list[tuple[tuple[int, int], Chunk]]] = {}
    for row in found.to_pylist():
        chunk = Chunk(
            segment=segment,
            number=row["number"],
            start=Position(row["start_ts"], row["start_handle"]),
            end=Position(row["end_ts"], row["end_handle"]),
            rows=row["rows"],
            nbytes=row["nbytes"],
            traced=_traced(row["traced"]),
        )
        chunks.setdefault(row["which"], []).append(((row["part"], row["number"]), chunk))
    return chunks


def _traced(packed: bytes) -> Traced:
    return tuple((ts, rows) for ts, rows in np.frombuffer(packed, _TRACED).reshape(-1, 2).tolist())


def written_batch(number: int, written: WriteResult) -> pa.RecordBatch:
    """What became of file `number`."""
    return _one_row(_WRITTEN, [number, written.data_path, written.nbytes, written.error])


def read_written(found: pa.Table, files: Sequence[FileWork]) -> list[WriteResult]:
    """What became of each file, in their order; one of which no payload was found has failed."""
    by_number = {
        row["number"]: WriteResult(row["data_path"], row["nbytes"], row["error"]) for row in found.to_pylist()
    }
    return [
        by_number.get(number, WriteResult(file.data_path, 0, "its payloads are gone from the spool"))
        for number, file in enumerate(files)
    ]


def _one_row(schema: pa.Schema, row: list[object]) -> pa.RecordBatch:
    arrays = [pa.array([value], field.type) for value, field in zip(row, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


T = TypeVar("T")

_JOBS_AT_ONCE = 8
_TASKS_PER_CORE = 2  # so that a long one keeps the others waiting less
_PLACE_BITS = 32


class SparkEngine:
    """Implements FarEngine. `account` names the scheduler pool of its jobs, `numbers` are of its segments."""

    def __init__(
        self,
        spark: "SparkSession",
        target: "StorageRef",
        *,
        account: str = "",
        threads: int = 16,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self._spark = spark
        self._target = target
        self._account = account
        self._threads = threads
        self._tasks = _TASKS_PER_CORE * driver_context(spark).defaultParallelism
        self._numbers = numbers or count(1)
        self._segments: dict[int, DataFrame] = {}
        self._jobs = ThreadPoolExecutor(_JOBS_AT_ONCE, thread_name_prefix="penstock-sink-job")

    async def encode(self, work: "Sequence[EncodeWork]") -> list[list[Chunk]]:
        """See Engine."""
        return await self._run(lambda: self._encode(next(self._numbers), tuple(work)))

    async def write(
        self, files: Sequence[FileWork], lent: Mapping[int, Sequence[bytes]] | None = None
    ) -> list[WriteResult]:
        """See FarEngine."""
        return await self._run(lambda: self._write(files, lent or {}))

    async def release(self, segment: int) -> None:
        """See Engine."""
        frame = self._segments.pop(segment, None)
        if frame is not None:
            await self._run(frame.unpersist)

    async def close(self) -> None:
        """See Engine."""
        for segment in list(self._segments):
            await self.release(segment)
        self._jobs.shutdown(wait=False, cancel_futures=True)

    async def _run(self, job: Callable[[], T]) -> T:
        """Run a job on a thread. Who cancels it waits for its end: no file may appear after that."""
        running = asyncio.get_running_loop().run_in_executor(self._jobs, self._in_pool, job)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            running.exception()  # the caller has gone: a failure is told to nobody
            raise

    def _in_pool(self, job: Callable[[], T]) -> T:
        pool: AbstractContextManager[None] = nullcontext()
        if self._account:
            pool = in_pool(self._spark, self._account)
        with pool, spark_errors():
            return job()

    def _encode(self, segment: int, work: "tuple[EncodeWork, ...]") -> list[list[Chunk]]:
        pieces = [
            EncodeTask(each, which, number, part.rows)
            for which, each in enumerate(work)
            for number, part in enumerate(each.slice.parts)
        ]
        if not pieces:
            return [[] for _ in work]
        tasks = spread(pieces, self._tasks, weight=lambda piece: piece.rows)

        def encode(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
            task_begins()
            for batch in batches:
                for task in batch.column(0).to_pylist():
                    with one_line():
                        yield from _encoded(task, tasks[task])

        frame = self._spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(encode, CHUNKS)
        frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
        self._segments[segment] = frame
        try:
            found = read_chunks(frame.select(*DESCRIPTORS).toArrow(), segment)
        except BaseException:
            self._segments.pop(segment).unpersist()
            raise
        if not found:  # nobody has a name for it
            self._segments.pop(segment).unpersist()
        return [
            [chunk for _, chunk in sorted(found.get(which, []), key=itemgetter(0))]
            for which in range(len(work))
        ]

    def _write(self, files: Sequence[FileWork], lent: Mapping[int, Sequence[bytes]]) -> list[WriteResult]:
        if not files:
            return []
        tasks = spread(range(len(files)), self._tasks, weight=lambda number: _nbytes(files[number]))
        task_of = {number: task for task, numbers in enumerate(tasks) for number in numbers}
        places: dict[int, dict[int, int]] = {}
        for number, file in enumerate(files):
            for place, chunk in enumerate(file.chunks):
                places.setdefault(chunk.segment, {})[chunk.number] = number << _PLACE_BITS | place
        chosen = [self._chosen(segment, wanted) for segment, wanted in places.items() if segment not in lent]
        if lent:
            named = ((place, lent[each][number]) for each in lent for number, place in places[each].items())
            chosen.append(self._spark.createDataFrame(payload_table(named)))
        all_chosen = reduce(lambda left, right: left.unionAll(right), chosen)
        file_number = F.shiftright("place", _PLACE_BITS)
        task = _looked_up(file_number, task_of).cast("int")
        shipped = tuple(files)
        target, threads = self._target, self._threads

        def write(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":

            task_begins()
            with one_line():
                payloads = ((place >> _PLACE_BITS, payload) for place, payload in read_payloads(batches))
                for number, written in write_in_order(payloads, shipped, target, threads=threads):
                    yield written_batch(number, written)

        rows = all_chosen.repartitionById(len(tasks), task).sortWithinPartitions("place")
        return read_written(rows.mapInArrow(write, WRITTEN).toArrow(), files)

    def _chosen(self, segment: int, places: dict[int, int]) -> "DataFrame":
        """The payloads of some chunks of a segment, each with its place in its file."""
        frame = self._segments[segment].where(F.col("number").isin(list(places)))
        return frame.select(_looked_up(F.col("number"), places).alias("place"), "nbytes", "payload")


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """A part of a slice, as a task gets it."""

    work: "EncodeWork"
    which: int  # of the slices
    number: int  # of the slice's parts
    rows: int


def _encoded(task: int, pieces: Iterable[EncodeTask]) -> "Iterator[pa.RecordBatch]":
    from penstock.changefeeds.engines.encode import encode_part

    numbers = count(task << _PLACE_BITS)
    for piece in pieces:
        chunks = tried_again(partial(encode_part, piece.work.slice, piece.number, piece.work.options))
        for encoded in chunks:
            yield chunk_batch(piece.which, piece.number, next(numbers), encoded)


def _nbytes(file: FileWork) -> int:
    return sum(chunk.nbytes for chunk in file.chunks)


def _looked_up(key: "Column", found: dict[int, int]) -> "Column":
    """A column's value in a table of constants, which Spark folds into one."""
    keys = ",".join(f"{each}L" for each in found)
    values = ",".join(f"{each}L" for each in found.values())
    return F.element_at(F.expr(f"map_from_arrays(array({keys}), array({values}))"), key)


INFLIGHT_BYTES_MAX = 256 * 1024 * 1024


def write_in_order(
    payloads: Iterable[tuple[int, bytes]],
    files: Sequence[FileWork],
    target: StorageRef,
    *,
    threads: int,
    inflight_bytes_max: int = INFLIGHT_BYTES_MAX,
) -> Iterator[tuple[int, WriteResult]]:
    """Write the files that payloads, each with the number of its file, belong to; payloads of a file adjoin.

    Gives the number of each file and what became of it, as they end. One file may be larger than the bound.
    """
    running: dict[Future[WriteResult], tuple[int, int]] = {}  # to the file's number and its bytes
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
            running[pool.submit(_write, files[number], parts, target)] = number, nbytes
            held += nbytes
        for future, (number, _) in running.items():
            yield number, future.result()


def _write(file: FileWork, payloads: list[bytes], target: StorageRef) -> WriteResult:
    if [len(payload) for payload in payloads] != [chunk.nbytes for chunk in file.chunks]:
        return WriteResult(
            file.data_path, 0, "payloads are not those that were encoded; the file is not written"
        )
    (written,) = write_files([file], lambda _: payloads, target, threads=1)
    return written
