"""Files of chunks written to the remote: data unless it is there, then the index that names it."""

import posixpath
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from penstock.changefeeds.codecs.parquet import parquet_file
from penstock.changefeeds.engines.engine import FileWork, WriteResult
from penstock.errors import Corrupt, PenstockError
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
