"""Raw rows in order, each once, and their division into the chunks that a flush commits. Vectorised.

The order of changes is (commit_ts, start_ts, key). Two rows with the same three are the same change,
delivered twice. Everybody who takes rows out of the event store takes them through `sort_changes`, which
writes to disk only what memory cannot hold.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar import sorted_spill
from penstock.columnar.sorted_spill import SLICE_BYTES, SLICE_ROWS
from penstock.tables.raw import RAW_SCHEMA

Times = npt.NDArray[np.uint64]

_KEYS = ("commit_ts", "start_ts", "key")
_FIXED_BYTES = 17  # op and two timestamps
_VARIABLE = ("key", "value", "old_value")


def times(batch: pa.RecordBatch, column: str = "commit_ts") -> Times:
    """Return a timestamp column as numpy, without copying."""
    found: Times = batch.column(column).to_numpy()
    return found


def commit_bounds(batch: pa.RecordBatch) -> tuple[int, int]:
    """Return the lowest and the highest commit-ts of some rows."""
    commit = times(batch)
    return int(commit.min()), int(commit.max())


def select_between(batch: pa.RecordBatch, from_ts: int, to_ts: int) -> pa.RecordBatch:
    """Return the rows with from_ts < commit_ts <= to_ts; the batch itself when those are all."""
    commit = times(batch)
    wanted = (commit > from_ts) & (commit <= to_ts)
    return batch if wanted.all() else batch.filter(pa.array(wanted))


def sort_in_memory(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield every change in order and once, in slices; of a change delivered twice the first copy is kept.

    Takes the memory of one copy of all rows and of a slice. Releases the batches before the first slice.
    """
    table = pa.Table.from_batches(list(batches), RAW_SCHEMA).combine_chunks()
    del batches
    if not table.num_rows:
        return
    (whole,) = table.to_batches()
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in _KEYS])
    bounds = _slice_bounds(whole, order.to_numpy())
    for start, end in pairwise(bounds):
        context = min(1, start)  # the row before a slice shows whether its first row is a repeat
        yield _without_repeats(whole.take(order[start - context : end]), skip=context)


def _slice_bounds(rows: pa.RecordBatch, order: npt.NDArray[np.uint64]) -> list[int]:
    """Return where to cut ordered rows into slices of bounded rows and bytes, but for a first large row."""
    total = row_bytes(rows)[order].cumsum()
    total //= SLICE_BYTES  # a row is cut off where the sum of sizes enters the next multiple
    ends = total[1:] != total[:-1]
    ends[SLICE_ROWS - 1 :: SLICE_ROWS] = True
    return [0, *(np.flatnonzero(ends) + 1).tolist(), rows.num_rows]


def _without_repeats(batch: pa.RecordBatch, *, skip: int) -> pa.RecordBatch:
    """Return the rows after the first `skip` that differ from the row before them."""
    commit, start, key = times(batch), times(batch, "start_ts"), batch.column("key")
    same = (commit[1:] == commit[:-1]) & (start[1:] == start[:-1])
    if same.any():
        same &= pc.equal(key[1:], key[:-1]).to_numpy(zero_copy_only=False)
    if not same.any():
        return batch.slice(skip)
    return batch.filter(pa.array(np.concatenate(([not skip], ~same))))


def row_bytes(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the bytes of each row."""
    sizes = np.full(rows.num_rows, _FIXED_BYTES, dtype=np.int64)
    for name in _VARIABLE:
        sizes += pc.fill_null(pc.binary_length(rows.column(name)), 0).to_numpy()
    return sizes


def sort_changes(
    load: Callable[[], Iterable[pa.RecordBatch]], nbytes: int, *, memory_bytes: int, scratch: Path
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the changes of all batches in order and once; beyond `memory_bytes` they are sorted on disk.

    `load` returns the batches, of about `nbytes` together; it may be called more than once.
    """
    return sorted_spill.sort_rows(load, nbytes, _ORDER, memory_bytes=memory_bytes, scratch=scratch)


def count_before(ordered_times: Times, ts: int) -> int:
    """Return how many of some ordered timestamps are below `ts`."""
    # With a plain int numpy would compare floats, which are too coarse for neighbouring timestamps.
    return int(np.searchsorted(ordered_times, np.uint64(ts)))


_ORDER = sorted_spill.SortOrder(RAW_SCHEMA, _KEYS, sort_in_memory)


@dataclass(frozen=True, slots=True)
class FlushChunk:
    """Consecutive rows of a chunk, which has many small commits, or a single large one (`direct`)."""

    rows: pa.RecordBatch
    chunk: int
    direct: bool


@dataclass(slots=True)
class _Last:
    """The last commit-ts seen: its rows are held while it may still turn out large."""

    commit_ts: int
    nbytes: int = 0
    held: list[pa.RecordBatch] = field(default_factory=list)

    def release(self, *, direct: bool) -> Iterator[tuple[pa.RecordBatch, bool]]:
        """Yield the rows that are held."""
        held, self.held = self.held, []
        yield from ((rows, direct) for rows in held)


def cut_chunks(
    ordered: Iterable[pa.RecordBatch], *, large_bytes: int, chunk_bytes: int
) -> Iterator[FlushChunk]:
    """Divide ordered rows into chunks; none begins within a commit-ts.

    Everything with one commit-ts is a direct chunk of its own when it is above `large_bytes`. Other chunks
    hold whole commits up to about `chunk_bytes`. The parts of a chunk come in order. At most `large_bytes`,
    and the current batch, are held.
    """
    chunk, filled, last_ts, was_direct = -1, 0, -1, False
    for rows, direct in _by_size(ordered, large_bytes):
        commit = times(rows)
        another = int(commit[0]) != last_ts
        if chunk < 0 or direct != was_direct or (another and (direct or filled >= chunk_bytes)):
            chunk, filled = chunk + 1, 0
        filled += int(row_bytes(rows).sum())
        last_ts, was_direct = int(commit[-1]), direct
        yield FlushChunk(rows, chunk, direct)


def _by_size(ordered: Iterable[pa.RecordBatch], large_bytes: int) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Yield runs of small commits, and each large commit alone: the rows, and whether they are large."""
    last = _Last(-1)
    for batch in ordered:
        if not batch.num_rows:
            continue
        rows, commit = batch, times(batch)
        starts = np.concatenate(([0], np.flatnonzero(commit[1:] != commit[:-1]) + 1))
        sizes = np.add.reduceat(row_bytes(rows), starts)
        goes_on = int(commit[0]) == last.commit_ts
        sizes[0] += last.nbytes if goes_on else 0
        large = sizes > large_bytes
        ended = not goes_on or len(starts) > 1  # no later batch has rows of the last commit-ts
        if ended or large[0]:
            yield from last.release(direct=goes_on and bool(large[0]))
        if ended:
            last = _Last(int(commit[-1]))
        last.nbytes = int(sizes[-1])
        if not large[-1]:
            last.held.append(rows.slice(starts[-1]))
            rows, starts, large = rows.slice(0, starts[-1]), starts[:-1], large[:-1]
        yield from _runs(rows, starts, large)
    yield from last.release(direct=False)


def _runs(
    rows: pa.RecordBatch, starts: npt.NDArray[np.int64], large: npt.NDArray[np.bool_]
) -> Iterator[tuple[pa.RecordBatch, bool]]:
    begin = 0
    for index in np.flatnonzero(large):
        start = int(starts[index])
        end = int(starts[index + 1]) if index + 1 < len(starts) else rows.num_rows
        if start > begin:
            yield rows.slice(begin, start - begin), False
        yield rows.slice(start, end - start), True
        begin = end
    if rows.num_rows > begin:
        yield rows.slice(begin), False
