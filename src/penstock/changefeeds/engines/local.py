"""An engine in this process, for `engine: local`; how both engines write files."""

import posixpath
import re
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Literal

from penstock.changefeeds.codecs.parquet import parquet_file
from penstock.changefeeds.engines.encode import encode_part, retry_when_moved
from penstock.changefeeds.engines.engine import Chunk, EncodeWork, FileWork, WriteResult
from penstock.errors import Corrupt, Invalid, PenstockError
from penstock.eventloop import ThreadRunner
from penstock.object_storage import ObjectStorage, StorageRef

_ERROR_CHARS_MAX = 500
_NUMBER = re.compile(rb"([0-9]+)[.][^/]*$")  # of a data file, at the end of its name

Payloads = Callable[[FileWork], Iterable[bytes]]
Step = Literal["encode", "write", "written", "release"]
Hook = Callable[[Step], Awaitable[None]]


@dataclass(slots=True)
class _Segment:
    """The payloads of an encode job, by the numbers of its chunks, and the work to make them again."""

    work: tuple[EncodeWork, ...]
    payloads: list[bytes] | None


class LocalEngine:
    """Encodes and writes in threads of this process. Implements SinkEngine.

    Payloads stay in memory until their segment is released. For tests: `at` is awaited before each step, and
    once more when files are on the remote and the caller does not know it yet (`written`); it may take time,
    fail, or never return. `lose` drops payloads as a lost executor does.
    """

    def __init__(self, target: StorageRef, *, at: Hook | None = None, threads: int = 8) -> None:
        self._target = target
        self._at = at
        self._writers = threads
        self._threads = ThreadRunner(threads, "penstock-engine")
        self._segments: dict[int, _Segment] = {}
        self._numbers = count(1)
        self._encoding_again = threading.Lock()

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

    async def encode(self, work: Sequence[EncodeWork]) -> list[list[Chunk]]:
        """Encode slices into one new segment; return the chunks of each slice, in order."""
        await self._reach("encode")
        number = next(self._numbers)
        chunks, payloads = await self._threads.call(_encode, number, work)
        if payloads:
            self._segments[number] = _Segment(tuple(work), payloads)
        return chunks

    async def write(self, files: Sequence[FileWork]) -> list[WriteResult]:
        """Write files, each data first, then index; one that fails does not stop the others."""

        def payloads(file: FileWork) -> Iterator[bytes]:
            for chunk in file.chunks:
                yield self._payloads(chunk.segment)[chunk.number]

        await self._reach("write")
        results = await self._threads.call(write_files, files, payloads, self._target, threads=self._writers)
        await self._reach("written")
        return results

    def _payloads(self, number: int) -> Sequence[bytes]:
        """Return the payloads of a segment by their chunks' numbers; raise Invalid when it is released."""
        segment = self._segments.get(number)
        if segment is None:
            raise Invalid(
                f"segment {number} of the spool was released; its chunks cannot be written any more"
            )
        with self._encoding_again:
            if segment.payloads is None:
                _, segment.payloads = _encode(number, segment.work)
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


def _encode(segment: int, work: Sequence[EncodeWork]) -> tuple[list[list[Chunk]], list[bytes]]:
    """Return the chunks of each slice, and all payloads."""
    chunks: list[list[Chunk]] = []
    payloads: list[bytes] = []
    for item in work:
        chunks.append([])
        for part in range(len(item.slice.parts)):
            for encoded in retry_when_moved(partial(encode_part, item.slice, part, item.options)):
                chunk = Chunk(
                    segment,
                    len(payloads),
                    encoded.start,
                    encoded.end,
                    encoded.rows,
                    len(encoded.payload),
                    encoded.traced,
                )
                chunks[-1].append(chunk)
                payloads.append(encoded.payload)
    return chunks, payloads


def write_files(
    files: Sequence[FileWork], payloads: Payloads, target: StorageRef, *, threads: int
) -> list[WriteResult]:
    """Write files, several at once: data first, then the index, unless it names a later file.

    A file that fails has an error in its result, and does not stop the others. `payloads` returns the
    payloads of a file's chunks in order, on the thread that writes the file. A file that exists with the same
    bytes was written by an earlier attempt; one with other bytes is an error, unless the file is written
    `again`.
    """
    storage = target.open()
    with ThreadPoolExecutor(max_workers=max(1, min(threads, len(files)))) as pool:
        return list(pool.map(lambda file: _try_write(file, payloads, storage), files))


def _try_write(file: FileWork, payloads: Payloads, storage: ObjectStorage) -> WriteResult:
    try:
        return WriteResult(file.data_path, _write(file, payloads, storage))
    except PenstockError as error:
        return WriteResult(file.data_path, 0, _one_line(error))


def _write(file: FileWork, payloads: Payloads, storage: ObjectStorage) -> int:
    data = _content(file, payloads(file))
    created = storage.create(file.data_path, data) or file.again
    if not created and storage.read(file.data_path) != data:
        raise Corrupt(
            f"object {file.data_path} at {storage.url} exists with other content; "
            "make sure that no other changefeed writes to this place"
        )
    name = posixpath.basename(file.data_path).encode()
    storage.advance(
        file.index_path, name + b"\n", is_older=lambda named: _file_number(named) < _file_number(name)
    )
    return len(data)


def _file_number(name: bytes) -> int:
    """Return the number of a data file; 0 for the content of a damaged index, which is replaced."""
    found = _NUMBER.search(name.strip())
    return int(found[1]) if found else 0


def _content(file: FileWork, payloads: Iterable[bytes]) -> bytes:
    if file.parquet:
        return parquet_file(payloads, dict(file.parquet_options))
    return b"".join((file.header, *payloads))


def _one_line(error: PenstockError) -> str:
    words = " ".join(str(error).split()) or type(error).__name__
    return words[:_ERROR_CHARS_MAX]
