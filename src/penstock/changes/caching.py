"""The next rows of one side, as slices, of which a bounded part is on view."""

from collections import deque
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock.changes.cutting import Extent
from penstock.eventstore.sides import COMMIT_TS

BYTES_MAX = 64 * 1024 * 1024


class SideCache:
    """Takes ordered slices until more than `rows_max` rows are cached: those on view, and what is next.

    What is on view depends on the rows alone, not on how they come in slices, unless rows are so large that
    `bytes_max` is met first.
    """

    def __init__(
        self, slices: Iterator[pa.RecordBatch], rows_max: int, *, bytes_max: int = BYTES_MAX
    ) -> None:
        self._source: Iterator[pa.RecordBatch] | None = slices
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._slices: deque[pa.RecordBatch] = deque()
        self._rows = 0
        self._bytes = 0

    def fill(self) -> Extent:
        """Cache as much as may be, and say what that is. Raises what the slices raise."""
        while self._source is not None and self._has_room():
            taken = next(self._source, None)
            if taken is None:
                self._source = None
            elif taken.num_rows:
                self._slices.append(taken)
                self._rows += taken.num_rows
                self._bytes += taken.nbytes
        if not self._slices:
            return Extent(None, None)
        on_view = self._rows if self._source is None else self._rows - 1
        return Extent(self._commit_ts(0), self._commit_ts(min(on_view, self._rows_max)))

    def _has_room(self) -> bool:
        return self._rows < 2 or (self._rows <= self._rows_max and self._bytes < self._bytes_max)

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
        while self._slices and room:
            slice_ = self._slices.popleft()
            count = min(_rows_upto(slice_, ts), room)
            if count:
                found.append(slice_.slice(0, count))
                room -= count
            if count < slice_.num_rows:
                self._slices.appendleft(slice_.slice(count))
                break
        self._rows -= sum(each.num_rows for each in found)
        self._bytes = sum(each.nbytes for each in self._slices)
        return found


def _rows_upto(ordered: pa.RecordBatch, ts: int) -> int:
    commit = ordered.column(COMMIT_TS).to_numpy()
    return len(commit) if commit[-1] <= ts else int(np.searchsorted(commit, ts, side="right"))
