"""An engine in this process, for `engine: local` and for simulations."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from penstock.changefeeds.engines.engine import (
    Chunk,
    DirectFile,
    DirectResult,
    EncodedSlice,
    EncodeWork,
    FileWork,
    RowCounter,
    WriteResult,
)
from penstock.changefeeds.engines.files import encode_slice, make_file, write_files
from penstock.clock import SYSTEM
from penstock.errors import Invalid, Unavailable
from penstock.eventloop import Place, ThreadRunner
from penstock.object_storage import StorageRef

Step = Literal["encode", "write", "written", "release"]
Hook = Callable[[Step], Awaitable[None]]


@dataclass(slots=True)
class _LocalSegment:
    """The payloads of an encode job, by the numbers of its chunks, and the work to make them again."""

    work: tuple[EncodeWork, ...]
    payloads: list[bytes] | None


class LocalEngine:
    """Encodes and writes in threads of this process. Implements SinkEngine.

    Payloads stay in memory until their segment is released. For tests: `at` is awaited before each step, and
    once more when files are on the remote and the caller does not know it yet (`written`); it may take time,
    fail, or never return. `lose` drops payloads as a lost executor does. `cores` is 1 otherwise: threads
    share the interpreter. Each call holds a `place`.
    """

    def __init__(
        self,
        target: StorageRef,
        *,
        at: Hook | None = None,
        threads: int = 8,
        cores: int = 1,
        place: Place | None = None,
    ) -> None:
        self.cores = cores
        self._making: dict[str, asyncio.Future[bool]] = {}  # by path; whether the file is on the remote
        self._target = target
        self._at = at
        self._writers = threads
        self._threads = ThreadRunner(threads, "penstock-engine", place=place)
        self._segments: dict[int, _LocalSegment] = {}
        self._numbers = count(1)
        self._encoding_again = threading.Lock()
        self._rows = RowCounter("local")

    @property
    def segments(self) -> tuple[int, ...]:
        """The segments that are not released."""
        return tuple(self._segments)

    @property
    def held_bytes(self) -> int:
        """The bytes of all payloads in memory."""
        return sum(len(payload) for segment in self._segments.values() for payload in segment.payloads or ())

    def lose(self, segment: int) -> None:
        """Drop the payloads of a segment; they are encoded again when they are needed."""
        self._segments[segment].payloads = None

    async def encode(self, work: Sequence[EncodeWork]) -> list[EncodedSlice]:
        """Encode slices into one new segment; return what each slice has become, in order."""
        await self._reach("encode")
        number = next(self._numbers)
        encoded, payloads, rows_read = await self._threads.call(_encode, number, work)
        self._rows.count_encoded(rows_read, encoded)
        if payloads:
            self._segments[number] = _LocalSegment(tuple(work), payloads)
        return encoded

    async def write(self, files: Sequence[FileWork]) -> list[WriteResult]:
        """Write files, each data first, then index; one that fails does not stop the others."""

        def payloads(file: FileWork) -> Iterator[bytes]:
            for chunk in file.chunks:
                yield self._payloads(chunk.segment)[chunk.number]

        await self._reach("write")
        results = await self._threads.call(write_files, files, payloads, self._target, threads=self._writers)
        self._rows.count_written(files, results)
        await self._reach("written")
        return results

    async def make_file(self, file: DirectFile) -> DirectResult:
        """Read, encode and write a file in a thread, after the one before it."""
        path, before = file.file.data_path, self._making.get(file.file.after)
        made = self._making[path] = asyncio.get_running_loop().create_future()
        try:
            if before is not None and not await asyncio.shield(before):
                return DirectResult(failure=Unavailable(f"{file.file.after} was not written"))
            await self._reach("write")
            result = await self._threads.call(make_file, file, self._target)
            self._rows.count_made(result)
            if not made.done():
                made.set_result(result.failure is None)
            await self._reach("written")
            return result
        finally:
            del self._making[path]
            if not made.done():
                made.set_result(False)

    def _payloads(self, number: int) -> Sequence[bytes]:
        """Return the payloads of a segment by their chunks' numbers; raise Invalid when it is released."""
        segment = self._segments.get(number)
        if segment is None:
            raise Invalid(
                f"segment {number} of the spool was released; its chunks cannot be written any more"
            )
        with self._encoding_again:
            if segment.payloads is None:
                _, segment.payloads, _ = _encode(number, segment.work)
            return segment.payloads

    async def release(self, segment: int) -> None:
        """Forget a segment and its payloads."""
        await self._reach("release")
        self._segments.pop(segment, None)

    async def close(self) -> None:
        """Forget all segments and end the threads."""
        self._segments.clear()
        self._threads.close()

    async def _reach(self, step: Step) -> None:
        if self._at is not None:
            await self._at(step)


def _encode(segment: int, work: Sequence[EncodeWork]) -> tuple[list[EncodedSlice], list[bytes], int]:
    """Return the chunks of each slice, all payloads, and how many rows were read."""
    read: list[int] = []
    slices: list[EncodedSlice] = []
    payloads: list[bytes] = []
    for item in work:
        began_at = SYSTEM.monotonic()
        chunks: list[Chunk] = []
        for encoded in encode_slice(item, read.append):
            size = len(encoded.payload)
            positions = encoded.start, encoded.end
            chunks.append(Chunk(segment, len(payloads), *positions, encoded.rows, size, encoded.traced))
            payloads.append(encoded.payload)
        slices.append(EncodedSlice(chunks, SYSTEM.monotonic() - began_at))
    return slices, payloads, sum(read)
