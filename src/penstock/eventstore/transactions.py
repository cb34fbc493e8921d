"""Large transactions, cut out of a stream of ordered rows. A pure decision."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.eventstore.rows import times
from penstock.tables.raw import RAW_SCHEMA

_FIXED_BYTES = 17  # op and two timestamps
_VARIABLE = ("key", "value", "old_value")


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows: of many transactions, or some of a single large one (`direct`)."""

    rows: pa.RecordBatch
    direct: bool


def cut(ordered: Iterable[pa.RecordBatch], *, large_bytes: int) -> Iterator[Piece]:
    """Divide ordered rows so that a transaction above `large_bytes` has pieces of its own.

    Pieces come in order. A transaction is either wholly in direct pieces or wholly in others; the rows of
    direct pieces that follow each other and have equal timestamps belong together.
    """
    held: pa.RecordBatch | None = None  # the last transaction, while it may still turn out large
    running: tuple[int, int] | None = None  # the large one whose rows may go on
    for batch in ordered:
        rows = batch if held is None else _join(held, batch)
        held = None
        if not rows.num_rows:
            continue
        starts = _starts(rows)
        large = _bytes_between(rows, starts) > large_bytes
        large[0] |= _transaction(rows, 0) == running
        if not large[-1]:
            held = rows.slice(starts[-1])
            rows = rows.slice(0, starts[-1])
            starts, large = starts[:-1], large[:-1]
            running = None
        else:
            running = _transaction(rows, rows.num_rows - 1)
        yield from _pieces(rows, starts, large)
    if held is not None:
        yield Piece(held, direct=False)


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


def _bytes_between(rows: pa.RecordBatch, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    sizes = np.full(rows.num_rows, _FIXED_BYTES, dtype=np.int64)
    for name in _VARIABLE:
        sizes += pc.fill_null(pc.binary_length(rows.column(name)), 0).to_numpy()
    totals: npt.NDArray[np.int64] = np.add.reduceat(sizes, starts)
    return totals


def _transaction(rows: pa.RecordBatch, row: int) -> tuple[int, int]:
    return int(times(rows)[row]), int(times(rows, "start_ts")[row])


def _join(first: pa.RecordBatch, second: pa.RecordBatch) -> pa.RecordBatch:
    (joined,) = pa.Table.from_batches([first, second], RAW_SCHEMA).combine_chunks().to_batches()
    return joined
