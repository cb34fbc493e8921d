"""The next rows of one side, as slices, of which a bounded part is on view."""

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock.changes.cutting import Extent
from penstock.eventstore.sides import COMMIT_TS

BYTES_MAX = 64 * 1024 * 1024
_WEIGHED_ROWS = 256  # weighing a slice takes as long as taking it: of small ones only some are weighed
_WEIGHED_SLICES = 32


class SideCache:
    """Takes ordered slices until more than `rows_max` rows are cached: those on view, and what is next.

    What is on view depends on the rows alone, not on how they come in slices, unless rows are so large that
    about `bytes_max` is met first.
    """

    def __init__(
        self, slices: Iterator[pa.RecordBatch], rows_max: int, *, bytes_max: int = BYTES_MAX
    ) -> None:
        self._source: Iterator[pa.RecordBatch] | None = slices
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._slices: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0.0
        self._row_bytes: float = 0.0
        self._unweighed = _WEIGHED_SLICES

    def fill(self, held: int = 0) -> Extent:
        """Cache as much as may be, and say what that is; with rows `held` elsewhere, fewer are on view.

        Raises what the slices raise.
        """
        while self._source is not None and self._has_room():
            taken = next(self._source, None)
            if taken is None:
                self._source = None
            elif taken.num_rows:
                self._slices.append(taken)
                self._rows += taken.num_rows
                self._bytes += self._weigh(taken)
        if not self._slices:
            return Extent(None, None)
        on_view = self._rows if self._source is None else self._rows - 1
        return Extent(_first_ts(self._slices[0]), self._commit_ts(min(on_view, self._rows_max - held)))

    def _has_room(self) -> bool:
        return self._rows < 2 or (self._rows <= self._rows_max and self._bytes < self._bytes_max)

    def _weigh(self, taken: pa.RecordBatch) -> float:
        self._unweighed += 1
        if taken.num_rows >= _WEIGHED_ROWS or self._unweighed > _WEIGHED_SLICES:
            self._row_bytes = float(taken.nbytes / taken.num_rows)
            self._unweighed = 0
        return self._row_bytes * float(taken.num_rows)

    def _commit_ts(self, row: int) -> int | None:
        """When a cached row was committed; None when it is past them all."""
        for each in self._slices:
            if row < each.num_rows:
                return int(each.column(COMMIT_TS)[row].as_py())
            row -= each.num_rows
        return None

    def upto(self, ts: int) -> list[pa.RecordBatch]:
        """Take the cached rows up to a commit-ts out, at most as many as may be on view."""
        found: list[pa.RecordBatch] = []
        room = self._rows_max
        whole = bisect_right(self._slices, ts, key=_last_ts)
        for at, each in enumerate(self._slices):
            count = min(room, each.num_rows if at < whole else _rows_upto(each, ts))
            room -= count
            if count:
                found.append(each if count == each.num_rows else each.slice(0, count))
            if count < each.num_rows:
                self._slices = [each.slice(count), *self._slices[at + 1 :]]
                break
        else:
            self._slices = []
        left = self._rows - (self._rows_max - room)
        self._bytes *= left / self._rows if self._rows else 0
        self._rows = left
        return found


def _first_ts(rows: pa.RecordBatch) -> int:
    return int(rows.column(COMMIT_TS)[0].as_py())


def _last_ts(rows: pa.RecordBatch) -> int:
    return int(rows.column(COMMIT_TS)[-1].as_py())


def _rows_upto(ordered: pa.RecordBatch, ts: int) -> int:
    return int(np.searchsorted(ordered.column(COMMIT_TS).to_numpy(), ts, side="right"))
