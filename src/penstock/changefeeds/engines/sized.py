"""Small work in this process, large work on Spark: a Spark job costs more than thousands of rows do.

The engines of changefeeds: small work in this process, large work on Spark.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Protocol

from penstock.changefeeds.engines.engine import Chunk, EncodeWork, FileWork, SinkEngine, WriteResult
from penstock.changefeeds.engines.local import Bound, LocalEngine
from penstock.object_storage import StorageRef
from penstock.spark.options import shared_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.changefeeds.engines.spark import SparkEngine


_NEAR_BYTES = 16 * 1024 * 1024  # of payloads
_HELD_BYTES_MAX = 64 * 1024 * 1024


class FarEngine(SinkEngine, Protocol):
    """An engine that also writes files of which it has only some of the chunks."""

    async def write(
        self, files: Sequence[FileWork], lent: Mapping[int, Sequence[bytes]] | None = None
    ) -> list[WriteResult]:
        """See Engine. `lent` has the payloads of segments that it does not have, by their chunks' numbers."""


class SizedEngine:
    """Implements Engine with two others, whose segments have different numbers.

    Slices of fewer than `far_rows` rows in all are encoded near, as long as little is held there; 0: none is.
    How many they are is known for sure only when they are read, so what turns out to be large is begun anew
    far. A file goes where its chunks are; one with chunks of both is written far. `open_far` is called in a
    thread, once, when there is something to do there.
    """

    def __init__(
        self,
        near: LocalEngine,
        open_far: Callable[[], FarEngine],
        *,
        far_rows: int,
        held_bytes_max: int = _HELD_BYTES_MAX,
    ) -> None:
        self._near = near
        self._open_far = open_far
        self._opening = asyncio.Lock()
        self._far: FarEngine | None = None
        self._bound = Bound(far_rows - 1, _NEAR_BYTES)
        self._held_bytes_max = held_bytes_max

    async def encode(self, work: Sequence[EncodeWork]) -> list[list[Chunk]]:
        """See Engine."""
        chunks = await self._near.encode_up_to(work, self._bound) if self._is_small(work) else None
        return await (await self._reach_far()).encode(work) if chunks is None else chunks

    async def _reach_far(self) -> FarEngine:
        async with self._opening:
            if self._far is None:
                self._far = await asyncio.to_thread(self._open_far)
            return self._far

    def _is_small(self, work: Sequence[EncodeWork]) -> bool:
        """As far as slices can tell: what no object has yet counts nothing."""
        rows = sum(each.slice.rows for each in work)
        nbytes = sum(
            each.slice.nbytes for each in work
        )  # of compressed columns, mostly fewer than of payloads
        has_room = self._near.held_bytes < self._held_bytes_max
        return rows <= self._bound.rows and nbytes <= self._bound.nbytes and has_room

    async def write(self, files: Sequence[FileWork]) -> list[WriteResult]:
        """See Engine."""
        held = frozenset(self._near.segments)
        near, far = list[FileWork](), list[FileWork]()
        for file in files:
            (near if all(chunk.segment in held for chunk in file.chunks) else far).append(file)
        lent = {chunk.segment for file in far for chunk in file.chunks} & held
        writing = []
        if far:
            payloads = {segment: self._near.payloads(segment) for segment in lent}
            writing.append((await self._reach_far()).write(far, payloads))
        if near:
            writing.append(self._near.write(near))
        both = await asyncio.gather(*writing, return_exceptions=True)  # no file appears after the return
        written: dict[str, WriteResult] = {}
        for some in both:
            if isinstance(some, BaseException):
                raise some
            written.update((each.data_path, each) for each in some)
        return [written[file.data_path] for file in files]

    async def release(self, segment: int) -> None:
        """See Engine."""
        if segment in self._near.segments:
            await self._near.release(segment)
        elif self._far is not None:
            await self._far.release(segment)

    async def close(self) -> None:
        """See Engine."""
        await self._near.close()
        if self._far is not None:
            await self._far.close()


def sized_engine(
    session: "Callable[[], SparkSession]", feed_id: str, target: StorageRef, *, threads: int, spark_rows: int
) -> SizedEngine:
    """The engine of a changefeed that writes to `target` with so many threads.

    Raises Invalid when executors could not reach the target. The session is asked for with the first work of
    `spark_rows` changes or more.
    """
    shared = replace(target, url=shared_url(target.url))
    numbers = count(1)

    def on_spark() -> "SparkEngine":
        from penstock.changefeeds.engines.spark import SparkEngine  # which takes a while

        return SparkEngine(session(), shared, account=feed_id, threads=threads, numbers=numbers)

    near = LocalEngine(shared, threads=threads, numbers=numbers)
    return SizedEngine(near, on_spark, far_rows=spark_rows)
