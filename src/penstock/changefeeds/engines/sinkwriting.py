"""Writing the files of one task: payloads come in order, and slow requests overlap in bounded memory."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import groupby
from operator import itemgetter

from penstock.changefeeds.engines.engine import FileWork, WriteResult
from penstock.changefeeds.engines.filewriting import write_files
from penstock.object_storage import StorageRef

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
