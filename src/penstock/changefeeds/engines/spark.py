"""The sink's work on rows as Spark jobs: executors encode slices, keep the payloads, and write the files.

A segment of the spool is a DataFrame that is persisted MEMORY_AND_DISK: Spark's block manager is the spool's
memory and disk, and a block that an executor took with it is encoded again from the event store, with the
same bytes. The driver sees descriptors only, but of what is too small for a job.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from penstock.changefeeds.engines.engine import Chunk, FileWork, WriteResult
from penstock.changefeeds.engines.spoolrows import (
    CHUNKS,
    DESCRIPTORS,
    WRITTEN,
    chunk_batch,
    payload_table,
    read_chunks,
    read_payloads,
    read_written,
    written_batch,
)
from penstock.changefeeds.engines.tryingagain import tried_again
from penstock.spark.errors import one_line, spark_errors
from penstock.spark.jvm import driver_context
from penstock.spark.pools import in_pool
from penstock.spark.spreading import spread
from penstock.spark.workerprocess import task_begins

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from penstock.changefeeds.engines.engine import EncodeWork
    from penstock.object_storage import StorageRef

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
            from penstock.changefeeds.engines.sinkwriting import write_in_order

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
