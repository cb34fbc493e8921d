"""Ordered rows, cut into the chunks that a flush commits one by one. A pure decision."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.eventstore.log.rows import row_bytes, times


@dataclass(frozen=True, slots=True)
class FlushChunk:
    """Consecutive rows of one chunk: of many small commits, or some of a single large one (`direct`)."""

    rows: pa.RecordBatch
    chunk: int
    direct: bool


@dataclass(slots=True)
class _Last:
    """The last commit-ts seen: its rows are held while it may still turn out large."""

    commit_ts: int
    nbytes: int = 0
    held: list[pa.RecordBatch] = field(default_factory=list)

    def let_go(self, *, direct: bool) -> Iterator[tuple[pa.RecordBatch, bool]]:
        """Give out the rows that are held."""
        held, self.held = self.held, []
        yield from ((rows, direct) for rows in held)


def cut(ordered: Iterable[pa.RecordBatch], *, large_bytes: int, chunk_bytes: int) -> Iterator[FlushChunk]:
    """Divide ordered rows into chunks; none begins within a commit-ts.

    Everything with one commit-ts is a direct chunk of its own when it is above `large_bytes`. Other chunks
    hold whole commits up to about `chunk_bytes`. Pieces come in order. At most `large_bytes`, and the batch
    at hand, are held.
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
    """Runs of commits, and each large one alone: the rows, and whether they are large."""
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
            yield from last.let_go(direct=goes_on and bool(large[0]))
        if ended:
            last = _Last(int(commit[-1]))
        last.nbytes = int(sizes[-1])
        if not large[-1]:
            last.held.append(rows.slice(starts[-1]))
            rows, starts, large = rows.slice(0, starts[-1]), starts[:-1], large[:-1]
        yield from _runs(rows, starts, large)
    yield from last.let_go(direct=False)


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
