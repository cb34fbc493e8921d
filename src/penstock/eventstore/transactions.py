"""Large transactions, cut out of a stream of ordered rows. A pure decision."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.eventstore.rows import row_bytes, times


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows: of many transactions, or some of a single large one (`direct`)."""

    rows: pa.RecordBatch
    direct: bool


@dataclass(slots=True)
class _Last:
    """The last transaction seen: its rows are held while it may still turn out large."""

    times: tuple[int, int]
    nbytes: int = 0
    held: list[pa.RecordBatch] = field(default_factory=list)

    def let_go(self, *, direct: bool) -> Iterator[Piece]:
        """Give out the rows that are held."""
        held, self.held = self.held, []
        yield from (Piece(rows, direct) for rows in held)


def cut(ordered: Iterable[pa.RecordBatch], *, large_bytes: int) -> Iterator[Piece]:
    """Divide ordered rows so that a transaction above `large_bytes` has pieces of its own.

    Pieces come in order. A transaction is either wholly in direct pieces or wholly in others; the rows of
    direct pieces that follow each other and have equal timestamps belong together. At most `large_bytes`,
    and the batch at hand, are held.
    """
    last = _Last((-1, -1))
    for batch in ordered:
        if not batch.num_rows:
            continue
        rows, starts = batch, _starts(batch)
        sizes = np.add.reduceat(row_bytes(rows), starts)
        goes_on = _transaction(rows, 0) == last.times
        sizes[0] += last.nbytes if goes_on else 0
        large = sizes > large_bytes
        ended = not goes_on or len(starts) > 1  # no later batch has rows of the last transaction
        if ended or large[0]:
            yield from last.let_go(direct=goes_on and bool(large[0]))
        if ended:
            last = _Last(_transaction(rows, rows.num_rows - 1))
        last.nbytes = int(sizes[-1])
        if not large[-1]:
            last.held.append(rows.slice(starts[-1]))
            rows, starts, large = rows.slice(0, starts[-1]), starts[:-1], large[:-1]
        yield from _pieces(rows, starts, large)
    yield from last.let_go(direct=False)


def _pieces(
    rows: pa.RecordBatch, starts: npt.NDArray[np.int64], large: npt.NDArray[np.bool_]
) -> Iterator[Piece]:
    """Runs of small transactions, and each large one alone."""
    begin = 0
    for index in np.flatnonzero(large):
        start = int(starts[index])
        end = int(starts[index + 1]) if index + 1 < len(starts) else rows.num_rows
        if start > begin:
            yield Piece(rows.slice(begin, start - begin), direct=False)
        yield Piece(rows.slice(start, end - start), direct=True)
        begin = end
    if rows.num_rows > begin:
        yield Piece(rows.slice(begin), direct=False)


def _starts(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Where each transaction begins."""
    commit, start = times(rows), times(rows, "start_ts")
    changes = (commit[1:] != commit[:-1]) | (start[1:] != start[:-1])
    return np.concatenate(([0], np.flatnonzero(changes) + 1))


def _transaction(rows: pa.RecordBatch, row: int) -> tuple[int, int]:
    return int(times(rows)[row]), int(times(rows, "start_ts")[row])
