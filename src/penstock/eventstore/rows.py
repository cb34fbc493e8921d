"""Raw rows in order, each once. Vectorised; no I/O but the scratch files of a sort that memory cannot hold.

The order of changes is (commit_ts, start_ts, key); two rows with the same three are the same change,
delivered twice. Everybody who takes rows out of the event store takes them through `in_order`.
"""

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.tables.raw import RAW_SCHEMA

Times = npt.NDArray[np.uint64]
Place = tuple[int, int, bytes]  # commit_ts, start_ts, key

_ORDER = [("commit_ts", "ascending"), ("start_ts", "ascending"), ("key", "ascending")]
_SAMPLES_PER_BATCH = 16
EMPTY = pa.RecordBatch.from_pylist([], schema=RAW_SCHEMA)


def times(batch: pa.RecordBatch, column: str = "commit_ts") -> Times:
    """A timestamp column as numpy, without copying."""
    found: Times = batch.column(column).to_numpy()
    return found


def between(batch: pa.RecordBatch, from_ts: int, to_ts: int) -> pa.RecordBatch:
    """The rows with from_ts < commit_ts <= to_ts; the batch itself when those are all."""
    commit = times(batch)
    wanted = (commit > from_ts) & (commit <= to_ts)
    return batch if wanted.all() else batch.filter(pa.array(wanted))


def in_order(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of every change, in order and once; of a change delivered twice the first copy is kept."""
    table = pa.Table.from_batches(batches, RAW_SCHEMA).combine_chunks()
    if not table.num_rows:
        return EMPTY
    table = table.take(pc.sort_indices(table, sort_keys=_ORDER)).combine_chunks()
    (batch,) = table.to_batches()
    return _without_repeats(batch)


def _without_repeats(batch: pa.RecordBatch) -> pa.RecordBatch:
    commit, start, key = times(batch), times(batch, "start_ts"), batch.column("key")
    same = (commit[1:] == commit[:-1]) & (start[1:] == start[:-1])
    if not same.any():
        return batch
    same &= pc.equal(key[1:], key[:-1]).to_numpy(zero_copy_only=False)
    return batch.filter(pa.array(np.concatenate(([True], ~same)))) if same.any() else batch


def ordered(
    load: Callable[[], Iterable[pa.RecordBatch]], nbytes: int, *, memory_bytes: int, scratch: Path
) -> Generator[pa.RecordBatch, None, None]:
    """The changes of all batches, in order and once, in batches of about `memory_bytes` at most.

    `load` is called once when `nbytes` fits in memory, else twice: to choose where to divide the rows, and to
    divide them into scratch files, which are sorted one by one. Close the result when it is not read to its
    end: that removes the files.
    """
    if nbytes <= memory_bytes:
        yield in_order(list(load()))
        return
    cuts = _choose_cuts(load(), parts=-(-2 * nbytes // memory_bytes))
    scratch.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=scratch) as folder:
        files = [Path(folder) / f"{index}.arrow" for index in range(len(cuts) + 1)]
        _divide(_chunks(load(), memory_bytes // 2), cuts, files)
        for file in files:
            with pa.ipc.open_stream(file.read_bytes()) as part:
                batch = in_order(list(part))
            if batch.num_rows:
                yield batch
            file.unlink()


def _choose_cuts(batches: Iterable[pa.RecordBatch], *, parts: int) -> list[Place]:
    """Places that divide a sample of the rows evenly."""
    sample: list[Place] = []
    for batch in batches:
        step = max(1, batch.num_rows // _SAMPLES_PER_BATCH)
        rows = batch.take(pa.array(np.arange(0, batch.num_rows, step)))
        columns = (rows.column(name).to_pylist() for name in ("commit_ts", "start_ts", "key"))
        sample.extend(zip(*columns, strict=True))
    sample.sort()
    return sorted({sample[len(sample) * part // parts] for part in range(1, parts)})


def _chunks(batches: Iterable[pa.RecordBatch], nbytes: int) -> Iterator[pa.RecordBatch]:
    """Ordered chunks of about `nbytes`."""
    pending: list[pa.RecordBatch] = []
    weight = 0
    for batch in batches:
        pending.append(batch)
        weight += batch.nbytes
        if weight >= nbytes:
            yield in_order(pending)
            pending, weight = [], 0
    if pending:
        yield in_order(pending)


def _divide(chunks: Iterable[pa.RecordBatch], cuts: Sequence[Place], files: Sequence[Path]) -> None:
    with ExitStack() as stack:
        writers = [stack.enter_context(pa.ipc.new_stream(str(file), RAW_SCHEMA)) for file in files]
        for chunk in chunks:
            bounds = [0, *(position(chunk, cut) for cut in cuts), chunk.num_rows]
            for writer, start, end in zip(writers, bounds, bounds[1:], strict=False):
                if end > start:
                    writer.write_batch(chunk.slice(start, end - start))


def before(ordered_times: Times, ts: int) -> int:
    """How many of some ordered timestamps are below `ts`."""
    # A plain int would make numpy compare floats, which cannot tell neighbouring timestamps apart.
    return int(np.searchsorted(ordered_times, np.uint64(ts)))


def position(batch: pa.RecordBatch, place: Place) -> int:
    """How many rows of an ordered batch come before a place."""
    commit_ts, start_ts, key = place
    low, high = before(times(batch), commit_ts), before(times(batch), commit_ts + 1)
    start = times(batch, "start_ts")[low:high]
    first, last = low + before(start, start_ts), low + before(start, start_ts + 1)
    keys = batch.column("key")
    return first + bisect_left(range(first, last), key, key=lambda row: keys[row].as_py())
