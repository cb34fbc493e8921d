"""An engine in this process: what Spark does on executors, for work that is too small for a Spark job.

Files of chunks written to the remote: data unless it is there, then the index that names it.
"""

import math
import posixpath
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Literal

from penstock.changefeeds.codecs.parquet import parquet_file
from penstock.changefeeds.engines.encode import encode_part, tried_again
from penstock.changefeeds.engines.engine import Chunk, EncodeWork, FileWork, WriteResult
from penstock.errors import Corrupt, Invalid, PenstockError
from penstock.eventloop import ThreadRunner
from penstock.object_storage import ObjectStorage, StorageRef

_ERROR_CHARS_MAX = 500

Payloads = Callable[[FileWork], Iterable[bytes]]


def write_files(
    files: Sequence[FileWork], payloads: Payloads, target: StorageRef, *, threads: int
) -> list[WriteResult]:
    """Write files, several at once; one that fails says so in what is returned, and does not stop the others.

    `payloads` gives the payloads of a file's chunks in order, on the thread that writes the file. A file that
    is there already with the same bytes was written by an earlier attempt; one with others is an error.
    """
    storage = target.open()
    with ThreadPoolExecutor(max_workers=max(1, min(threads, len(files)))) as pool:
        return list(pool.map(lambda file: _written(file, payloads, storage), files))


def _written(file: FileWork, payloads: Payloads, storage: ObjectStorage) -> WriteResult:
    try:
        return WriteResult(file.data_path, _write(file, payloads, storage))
    except PenstockError as error:
        return WriteResult(file.data_path, 0, _one_line(error))


def _write(file: FileWork, payloads: Payloads, storage: ObjectStorage) -> int:
    data = _content(file, payloads(file))
    if not storage.create(file.data_path, data) and storage.read(file.data_path) != data:
        raise Corrupt(
            f"object {file.data_path} at {storage.url} is there with other content; "
            "see that no other changefeed writes to this place"
        )
    storage.write(file.index_path, posixpath.basename(file.data_path).encode() + b"\n")
    return len(data)


def _content(file: FileWork, payloads: Iterable[bytes]) -> bytes:
    if file.parquet:
        return parquet_file(payloads, dict(file.parquet_options))
    return b"".join((file.header, *payloads))


def _one_line(error: PenstockError) -> str:
    words = " ".join(str(error).split()) or type(error).__name__
    return words[:_ERROR_CHARS_MAX]


Step = Literal["encode", "write", "written", "release"]
Hook = Callable[[Step], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Bound:
    """How much is encoded at most."""

    rows: float = math.inf
    nbytes: float = math.inf


@dataclass(slots=True)
class _Segment:
    """The payloads of an encode job, by the numbers of its chunks, and how to make them again."""

    work: tuple[EncodeWork, ...]
    payloads: list[bytes] | None
    nbytes: int


class LocalEngine:
    """Encodes and writes in threads; payloads stay in memory until their segment is released.

    `at` is awaited before each step, and once more when files are on the remote and nobody knows it yet
    (`written`): it may take time, fail, or never return. `lose` takes payloads away as a lost executor does.
    `numbers` are those of its segments.
    """

    def __init__(
        self,
        target: StorageRef,
        *,
        at: Hook | None = None,
        threads: int = 8,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self._target = target
        self._at = at
        self._writers = threads
        self._threads = ThreadRunner(threads, "penstock-engine")
        self._segments: dict[int, _Segment] = {}
        self._numbers = numbers or count(1)
        self._encoding_again = threading.Lock()

    @property
    def segments(self) -> tuple[int, ...]:
        """Those that are held."""
        return tuple(self._segments)

    @property
    def held_bytes(self) -> int:
        """Payloads in memory."""
        return sum(each.nbytes for each in self._segments.values() if each.payloads is not None)

    def lose(self, segment: int) -> None:
        """Take the payloads away; they are encoded again when somebody needs them."""
        self._segments[segment].payloads = None

    async def encode(self, work: Sequence[EncodeWork]) -> list[list[Chunk]]:
        """See Engine."""
        chunks = await self.encode_up_to(work, Bound())
        assert chunks is not None, "there is no bound"
        return chunks

    async def encode_up_to(self, work: Sequence[EncodeWork], bound: Bound) -> list[list[Chunk]] | None:
        """Encode slices, unless they turn out to have more than the bound: then None, and nothing is kept."""
        await self._reach("encode")
        number = next(self._numbers)
        made = await self._threads.call(_encode, number, work, bound)
        if made is None:
            return None
        chunks, payloads = made
        if payloads:
            self._segments[number] = _Segment(tuple(work), payloads, sum(map(len, payloads)))
        return chunks

    async def write(self, files: Sequence[FileWork]) -> list[WriteResult]:
        """See Engine."""
        await self._reach("write")
        written = await self._threads.call(
            write_files, files, self._payloads, self._target, threads=self._writers
        )
        await self._reach("written")
        return written

    def _payloads(self, file: FileWork) -> Iterator[bytes]:
        for chunk in file.chunks:
            yield self.payloads(chunk.segment)[chunk.number]

    def payloads(self, number: int) -> Sequence[bytes]:
        """Those of a segment, by the numbers of their chunks; raises Invalid when it was released."""
        segment = self._segments.get(number)
        if segment is None:
            raise Invalid(
                f"segment {number} of the spool was released; its chunks cannot be written any more"
            )
        with self._encoding_again:
            if segment.payloads is None:
                made = _encode(number, segment.work, Bound())
                assert made is not None, "there is no bound"
                segment.payloads = made[1]
            return segment.payloads

    async def release(self, segment: int) -> None:
        """See Engine."""
        await self._reach("release")
        self._segments.pop(segment, None)

    async def close(self) -> None:
        """See Engine."""
        self._segments.clear()
        self._threads.close()

    async def _reach(self, step: Step) -> None:
        if self._at is not None:
            await self._at(step)


def _encode(
    segment: int, work: Sequence[EncodeWork], bound: Bound
) -> tuple[list[list[Chunk]], list[bytes]] | None:
    chunks: list[list[Chunk]] = []
    payloads: list[bytes] = []
    rows = nbytes = 0
    for each in work:
        chunks.append([])
        for part in range(len(each.slice.parts)):
            for encoded in tried_again(partial(encode_part, each.slice, part, each.options)):
                size = len(encoded.payload)
                rows, nbytes = rows + encoded.rows, nbytes + size
                if rows > bound.rows or nbytes > bound.nbytes:
                    return None
                place = encoded.start, encoded.end
                chunks[-1].append(Chunk(segment, len(payloads), *place, encoded.rows, size, encoded.traced))
                payloads.append(encoded.payload)
    return chunks, payloads
