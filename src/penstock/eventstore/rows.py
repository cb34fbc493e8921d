"""Raw rows in order, each once. Vectorised; no I/O but the scratch files of a sort that memory cannot hold.

The order of changes is (commit_ts, start_ts, key); two rows with the same three are the same change,
delivered twice. Everybody who takes rows out of the event store takes them through `in_order`.
"""

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
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
_SAMPLES_MAX = 1 << 16
_FIXED_BYTES = 17  # op and two timestamps
_VARIABLE = ("key", "value", "old_value")
SLICE_BYTES = 8 * 1024 * 1024
SLICE_ROWS = 32 * 1024


def times(batch: pa.RecordBatch, column: str = "commit_ts") -> Times:
    """A timestamp column as numpy, without copying."""
    found: Times = batch.column(column).to_numpy()
    return found


def commit_ends(batch: pa.RecordBatch) -> tuple[int, int]:
    """The lowest and the highest commit-ts of some rows."""
    commit = times(batch)
    return int(commit.min()), int(commit.max())


def between(batch: pa.RecordBatch, from_ts: int, to_ts: int) -> pa.RecordBatch:
    """The rows with from_ts < commit_ts <= to_ts; the batch itself when those are all."""
    commit = times(batch)
    wanted = (commit > from_ts) & (commit <= to_ts)
    return batch if wanted.all() else batch.filter(pa.array(wanted))


def in_order(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Every change in order and once, in slices; of a change delivered twice the first copy is kept.

    Takes one copy of all rows, and a slice, of memory. The batches are let go before the first slice.
    """
    table = pa.Table.from_batches(list(batches), RAW_SCHEMA).combine_chunks()
    del batches
    if not table.num_rows:
        return
    (whole,) = table.to_batches()
    order = pc.sort_indices(table, sort_keys=_ORDER)
    bounds = _slice_bounds(whole, order.to_numpy())
    for start, end in pairwise(bounds):
        before_it = min(1, start)  # the row before a slice tells whether its first row is a repeat
        yield _without_repeats(whole.take(order[start - before_it : end]), skip=before_it)


def _slice_bounds(rows: pa.RecordBatch, order: npt.NDArray[np.uint64]) -> list[int]:
    """Where ordered rows are cut, so that a slice is bounded in rows, and in bytes but for its first row."""
    total = row_bytes(rows)[order].cumsum()
    total //= SLICE_BYTES
    cuts = total[1:] != total[:-1]
    cuts[SLICE_ROWS - 1 :: SLICE_ROWS] = True
    return [0, *(np.flatnonzero(cuts) + 1).tolist(), rows.num_rows]


def _without_repeats(batch: pa.RecordBatch, *, skip: int) -> pa.RecordBatch:
    """The rows after the first `skip` that differ from the row before them."""
    commit, start, key = times(batch), times(batch, "start_ts"), batch.column("key")
    same = (commit[1:] == commit[:-1]) & (start[1:] == start[:-1])
    if same.any():
        same &= pc.equal(key[1:], key[:-1]).to_numpy(zero_copy_only=False)
    if not same.any():
        return batch.slice(skip)
    return batch.filter(pa.array(np.concatenate(([not skip], ~same))))


def row_bytes(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """What each row takes."""
    sizes = np.full(rows.num_rows, _FIXED_BYTES, dtype=np.int64)
    for name in _VARIABLE:
        sizes += pc.fill_null(pc.binary_length(rows.column(name)), 0).to_numpy()
    return sizes


def ordered(
    load: Callable[[], Iterable[pa.RecordBatch]], nbytes: int, *, memory_bytes: int, scratch: Path
) -> Generator[pa.RecordBatch, None, None]:
    """The changes of all batches, in order and once, in slices; takes about `memory_bytes` of memory.

    `load` is called once when `nbytes` fits in memory, else twice: to choose where to divide the rows, and to
    divide them into scratch files, which are sorted one by one. It is let go before the first slice. Close
    the result when it is not read to its end: that removes the files.
    """
    if nbytes <= memory_bytes:
        rows = in_order(load())
        del load
        yield from rows
        return
    cuts = _choose_cuts(load(), parts=-(-2 * nbytes // memory_bytes))
    scratch.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=scratch) as folder:
        files = [Path(folder) / f"{index}.arrow" for index in range(len(cuts) + 1)]
        _divide(_chunks(load(), memory_bytes // 2), cuts, files)
        del load
        for file in files:
            with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as part:
                yield from in_order(part)
            file.unlink()


def _choose_cuts(batches: Iterable[pa.RecordBatch], *, parts: int) -> list[Place]:
    """Places that divide a sample of the rows evenly."""
    sample: list[Place] = []
    apart, skipped = 1, 0  # every so many rows one is sampled; the fewer, the more rows there are
    for batch in batches:
        rows = batch.take(pa.array(np.arange(-skipped % apart, batch.num_rows, apart)))
        skipped += batch.num_rows
        columns = (rows.column(name).to_pylist() for name in ("commit_ts", "start_ts", "key"))
        sample.extend(zip(*columns, strict=True))
        while len(sample) > _SAMPLES_MAX:
            del sample[1::2]
            apart *= 2
    sample.sort()
    return sorted({sample[len(sample) * part // parts] for part in range(1, parts)})


def _chunks(batches: Iterable[pa.RecordBatch], nbytes: int) -> Iterator[pa.RecordBatch]:
    """Slices that are in order each, of chunks of about `nbytes`."""
    pending: list[pa.RecordBatch] = []
    weight = 0
    for batch in batches:
        pending.append(batch)
        weight += batch.nbytes
        if weight >= nbytes:
            yield from in_order(pending)
            pending, weight = [], 0
    yield from in_order(pending)


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
