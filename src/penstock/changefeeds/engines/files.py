"""Makes files on the remote, wherever that runs: of payloads from the spool, or of slices in one stage.

A data file is put if absent, then its index is advanced. Whoever repeats that writes the same bytes, so it
changes nothing.
"""

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from penstock.changefeeds.codecs.encoder import encoder_of
from penstock.changefeeds.codecs.parquet import parquet_file
from penstock.changefeeds.engines.encode import (
    EncodedChunk,
    OnStep,
    encode_part,
    ignore_step,
    retry_when_moved,
)
from penstock.changefeeds.engines.engine import (
    FIRST_NUMBER,
    PUT,
    DirectFile,
    DirectResult,
    EncodeWork,
    FileWork,
    WriteResult,
)
from penstock.clock import SYSTEM
from penstock.errors import Corrupt, Denied, PenstockError, Unavailable
from penstock.object_storage import ObjectStorage, StorageRef

_ERROR_CHARS_MAX = 500
_NUMBER = re.compile(rb"([0-9]{1,20})[.][^/]*$")  # of a data file, at the end of its name

Payloads = Callable[[FileWork], Iterable[bytes]]


def make_file(
    direct: DirectFile,
    target: StorageRef,
    turn: Callable[[FileWork, ObjectStorage], None] | None = None,
    on_step: OnStep = ignore_step,
) -> DirectResult:
    """Read, encode and write a file; a filter that leaves no row leaves no file, unless one is asked for.

    `turn` is called when the file is encoded, and returns when it may be put. `on_step` is called again and
    again with the step that comes next; what it raises ends the work, and the file is not put. A
    PenstockError is returned in the result: another file of the same task is not affected by it.
    """
    try:
        return _make_file(direct, target.open(), turn, on_step)
    except PenstockError as error:
        return DirectResult(failure=error)


def _make_file(
    direct: DirectFile,
    storage: ObjectStorage,
    turn: Callable[[FileWork, ObjectStorage], None] | None,
    on_step: OnStep,
) -> DirectResult:
    read: list[int] = []
    chunks = [chunk for work in direct.work for chunk in encode_slice(work, read.append, on_step)]
    if not chunks and not direct.file.blank:
        return DirectResult(rows_read=sum(read))
    if turn is not None:
        turn(direct.file, storage)
    on_step(PUT)
    payloads = [chunk.payload for chunk in chunks]
    if not payloads:
        name = posixpath.basename(direct.file.data_path).encode()
        assert _file_number(name) != FIRST_NUMBER, "a folder's first file has rows"
        work = direct.work[0]
        payloads = [encoder_of(work.slice.schema, work.options).payload([])]
    nbytes = _put(direct.file, payloads, storage)
    return DirectResult(
        rows=sum(chunk.rows for chunk in chunks),
        rows_read=sum(read),
        encoded_bytes=sum(len(chunk.payload) for chunk in chunks),
        nbytes=nbytes,
        traced=tuple(pair for chunk in chunks for pair in chunk.traced),
    )


def encode_slice(
    work: EncodeWork, on_read: Callable[[int], None], on_step: OnStep = ignore_step
) -> Iterator[EncodedChunk]:
    """Yield the chunks of all parts of a slice, in order.

    `on_read` is called once for each part, with the rows that were read. An error of `on_step` ends the work.
    Raises Unavailable, StaleRead or Corrupt when the slice cannot be read, and Invalid for options that do
    not fit the table.
    """
    for number in range(len(work.slice.parts)):
        yield from retry_when_moved(partial(encode_part, work.slice, number, work.options, on_read, on_step))


def write_files(
    files: Sequence[FileWork], payloads: Payloads, target: StorageRef, *, threads: int
) -> list[WriteResult]:
    """Write files, several at once: data first, then the index, unless it names a later file.

    A file that fails has an error in its result, and does not stop the others. `payloads` returns the
    payloads of a file's chunks in order, on the thread that writes the file; what it raises is final: lost
    payloads are made again of slices, whose rows may have moved for good. A file that exists with the same
    bytes was written by an earlier attempt; one with other bytes is an error, unless the file is written
    `again`.
    """
    storage = target.open()
    with ThreadPoolExecutor(max_workers=max(1, min(threads, len(files)))) as pool:
        return list(pool.map(lambda file: _try_write(file, payloads, storage), files))


def _try_write(file: FileWork, payloads: Payloads, storage: ObjectStorage) -> WriteResult:
    began_at = SYSTEM.monotonic()
    nbytes, failure, final = 0, "", False
    held: list[bytes] | None = None
    try:
        held = list(payloads(file))
        nbytes = _put(file, held, storage)
    except PenstockError as error:
        failure, final = _one_line(error), held is None or not isinstance(error, Unavailable | Denied)
    return WriteResult(file.data_path, nbytes, failure, final, SYSTEM.monotonic() - began_at)


def _put(file: FileWork, payloads: Iterable[bytes], storage: ObjectStorage) -> int:
    """Put a file and its index; return its bytes."""
    data = _content(file, payloads)
    created = storage.create(file.data_path, data) or file.again
    if not created and not storage.holds(file.data_path, data):
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
