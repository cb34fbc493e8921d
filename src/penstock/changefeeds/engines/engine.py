"""The seam between the sink's decisions and the engine that touches rows: Spark, or this process."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from penstock import metrics
from penstock.changefeeds.codecs.options import EncoderOptions
from penstock.errors import PenstockError
from penstock.follow.slices import Position, Slice

Traced = tuple[tuple[int, int], ...]
"""The commit timestamps of traced transactions, and how many rows of each there are."""

READ, ENCODE, PUT = "read rows", "encode rows", "put the file"
"""The steps of making a file, as the one that makes it tells them."""


FIRST_NUMBER = 1
"""Of the data files in a folder."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """An encoded payload in the spool: the changes after `start` up to `end`. Its key: segment, number."""

    segment: int
    number: int
    start: Position
    end: Position
    rows: int
    nbytes: int
    traced: Traced = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWork:
    """A file to write: its chunks in order, and the index that names it.

    `again`: another process may have written the same changes under this name, with other bytes. `after` is
    the path of the dispatcher's file before this one, if that may not be on the remote yet: this file is put
    when it is. `blank`: the file is written also without rows; never the first of a folder, because TiCDC's
    consumer ends with a first file without rows.
    """

    dispatcher_id: str
    chunks: tuple[Chunk, ...]
    data_path: str
    index_path: str
    header: bytes = b""  # before the first chunk
    parquet: bool = False  # chunks are Arrow streams, to become one Parquet file
    parquet_options: tuple[tuple[str, str], ...] = field(default=())
    again: bool = False
    after: str = ""
    blank: bool = False


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The outcome of a FileWork. `error` is one line; it is empty when data and index are on the remote.

    An error is `final` when another try would not help. `seconds` is how long this one took.
    """

    data_path: str
    nbytes: int
    error: str = ""
    final: bool = False
    seconds: float = field(default=0.0, compare=False)


class EncodedSlice(NamedTuple):
    """The chunks of a slice in the spool, in order, and how long a task took to read and encode it."""

    chunks: list[Chunk]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class EncodeWork:
    """A slice to encode, and how to encode it."""

    slice: Slice
    options: EncoderOptions


@dataclass(frozen=True, slots=True)
class DirectFile:
    """A file that is made of slices without the spool: whoever reads and encodes them also writes it.

    The chunks of `file` are not known before, so it has none. `weight` is how many bytes are expected.
    """

    file: FileWork
    work: tuple[EncodeWork, ...]
    weight: int = 0


@dataclass(frozen=True, slots=True)
class DirectResult:
    """What became of a DirectFile. Without rows, because a filter left none, there is no file, unless a file
    without rows was asked for.

    `rows_read` are the rows before the filter. `encoded_bytes` are the bytes of the chunks, `nbytes` those of
    the file. `failure` tells why it could not be made: Unavailable when the remote or the event store did not
    answer, or what else reading raises.
    """

    rows: int = 0
    encoded_bytes: int = 0
    nbytes: int = 0
    traced: Traced = ()
    failure: PenstockError | None = None
    rows_read: int = 0


class SinkEngine(Protocol):
    """Encodes slices into the spool and writes files out of it, or makes files of slices at once.

    The caller sees descriptors only.

    Several calls may be under way at once, also for files of one dispatcher, if they are made of slices: each
    names the one before it, and is put when that is on the remote, so a reader meets no hole.

    A payload that is lost (an executor died) is encoded again from the event store when it is needed, with
    the same rows. A call raises a PenstockError when the work as a whole cannot be done; nothing of it counts
    then. Unavailable and Denied may pass; after SessionEnded the engine cannot be used any more.
    """

    @property
    def cores(self) -> int:
        """How many tasks run at once."""

    async def encode(self, work: Sequence[EncodeWork]) -> list[EncodedSlice]:
        """Encode slices into one new segment of the spool; return what each slice has become, in order.

        A slice without rows (all were filtered out) has no chunks.
        """

    async def write(self, files: Sequence[FileWork]) -> list[WriteResult]:
        """Write files, each data first, then index; one that fails does not stop the others."""

    async def make_file(self, file: DirectFile) -> DirectResult:
        """Read, encode and write a file; return when it, and no other, is done.

        Files of many calls may share the cost of a job, but none waits for another that is slow. After the
        return nothing is written any more, unless the call was cancelled or has failed: then the same changes
        may still arrive under the same name.
        """

    async def release(self, segment: int) -> None:
        """Forget a segment of which no chunk is needed any more."""

    async def close(self) -> None:
        """Forget all segments."""


class RowCounter:
    """Counts the rows of an engine in `penstock_rows_total`, by what was done with them.

    An engine counts what came back as done, so that a task that Spark repeats counts once.
    """

    def __init__(self, engine: Literal["spark", "local"]) -> None:
        self._read = metrics.ROWS_TOTAL.labels("read", engine)
        self._encoded = metrics.ROWS_TOTAL.labels("encode", engine)
        self._written = metrics.ROWS_TOTAL.labels("write", engine)

    def count_encoded(self, rows_read: int, encoded: Sequence[EncodedSlice]) -> None:
        """Count the rows that were read for the chunks of slices, and those in the chunks."""
        self._read.inc(rows_read)
        self._encoded.inc(sum(chunk.rows for found in encoded for chunk in found.chunks))

    def count_written(self, files: Sequence[FileWork], results: Sequence[WriteResult]) -> None:
        """Count the rows of the files that are on the remote."""
        for file, result in zip(files, results, strict=True):
            if not result.error:
                self._written.inc(sum(chunk.rows for chunk in file.chunks))

    def count_made(self, result: DirectResult) -> None:
        """Count the rows of a file that was made of slices, unless it failed."""
        if result.failure is None:
            self._read.inc(result.rows_read)
            self._encoded.inc(result.rows)
            self._written.inc(result.rows)
