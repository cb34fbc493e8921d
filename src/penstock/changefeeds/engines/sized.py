"""Chooses the engine of a changefeed's work by its size: a Spark job costs more than thousands of rows do."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from penstock.changefeeds.engines.engine import Chunk, EncodeWork, FileWork, SinkEngine, WriteResult
from penstock.changefeeds.engines.local import Bound, LocalEngine
from penstock.object_storage import StorageRef
from penstock.spark.options import absolute_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_LOCAL_BYTES_MAX = 16 * 1024 * 1024  # of the payloads of one job
_HELD_BYTES_MAX = 64 * 1024 * 1024


class SizedEngine:
    """Implements SinkEngine with a local engine and one on Spark, whose segments have different numbers.

    Slices of fewer than `spark_rows` rows in all are encoded locally, as long as little is held there; with 0
    none are. Their number is known for certain only when they are read, so slices that turn out to be large
    are encoded again on Spark. A file is written where its chunks are; one with chunks of both is written on
    Spark. `open_spark` is called once, in a thread, when there is work for Spark.
    """

    def __init__(
        self,
        local: LocalEngine,
        open_spark: Callable[[], SinkEngine],
        *,
        spark_rows: int,
        held_bytes_max: int = _HELD_BYTES_MAX,
    ) -> None:
        self._local = local
        self._open_spark = open_spark
        self._opening = asyncio.Lock()
        self._spark: SinkEngine | None = None
        self._bound = Bound(spark_rows - 1, _LOCAL_BYTES_MAX)
        self._held_bytes_max = held_bytes_max

    async def encode(self, work: Sequence[EncodeWork]) -> list[list[Chunk]]:
        """Encode small work locally and other work on Spark."""
        chunks = await self._local.encode_up_to(work, self._bound) if self._is_small(work) else None
        return await (await self._get_spark()).encode(work) if chunks is None else chunks

    async def _get_spark(self) -> SinkEngine:
        async with self._opening:
            if self._spark is None:
                self._spark = await asyncio.to_thread(self._open_spark)
            return self._spark

    def _is_small(self, work: Sequence[EncodeWork]) -> bool:
        """Return whether work is small as far as slices know: rows that no object has yet do not count."""
        rows = sum(item.slice.rows for item in work)
        nbytes = sum(item.slice.nbytes for item in work)  # of compressed columns, usually less than payloads
        has_room = self._local.held_bytes < self._held_bytes_max
        return rows <= self._bound.rows and nbytes <= self._bound.nbytes and has_room

    async def write(
        self, files: Sequence[FileWork], local_payloads: Mapping[int, Sequence[bytes]] | None = None
    ) -> list[WriteResult]:
        """Write files whose chunks are all local here, and the others on Spark."""
        held = frozenset(self._local.segments)
        on_local, on_spark = list[FileWork](), list[FileWork]()
        for file in files:
            is_local = all(chunk.segment in held for chunk in file.chunks)
            (on_local if is_local else on_spark).append(file)
        shared = {chunk.segment for file in on_spark for chunk in file.chunks} & held
        writing = []
        if on_spark:
            payloads = {
                **(local_payloads or {}),
                **{number: self._local.payloads(number) for number in shared},
            }
            writing.append((await self._get_spark()).write(on_spark, payloads))
        if on_local:
            writing.append(self._local.write(on_local))
        outcomes = await asyncio.gather(*writing, return_exceptions=True)  # no file appears after the return
        results: dict[str, WriteResult] = {}
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            results.update((result.data_path, result) for result in outcome)
        return [results[file.data_path] for file in files]

    async def release(self, segment: int) -> None:
        """Forget a segment of either engine."""
        if segment in self._local.segments:
            await self._local.release(segment)
        elif self._spark is not None:
            await self._spark.release(segment)

    async def close(self) -> None:
        """Close both engines."""
        await self._local.close()
        if self._spark is not None:
            await self._spark.close()


def sized_engine(
    session: "Callable[[], SparkSession]",
    changefeed_id: str,
    target: StorageRef,
    *,
    threads: int,
    spark_rows: int,
) -> SizedEngine:
    """Return the engine of a changefeed that writes to `target` with so many threads.

    Raises Invalid when executors could not reach the target. The session is opened with the first work of
    `spark_rows` changes or more.
    """
    shared = replace(target, url=absolute_url(target.url))
    numbers = count(1)

    def open_spark() -> SinkEngine:
        from penstock.changefeeds.engines.spark import SparkEngine  # imported late: it loads PySpark

        return SparkEngine(session(), shared, account=changefeed_id, threads=threads, numbers=numbers)

    local = LocalEngine(shared, threads=threads, numbers=numbers)
    return SizedEngine(local, open_spark, spark_rows=spark_rows)
