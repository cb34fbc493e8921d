"""Where an object has the rows of touched handles: so many more offsets that do not count.

The handles of many row groups are looked up together, because each look-up costs a hash table of the touched
ones. Row groups whose handles are elsewhere are not read.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import methodcaller
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.eventstore.objects.deletion_vectors import Offsets
from penstock.eventstore.objects.objectfiles import ColumnBounds
from penstock.eventstore.sides import HANDLE

NO_HANDLES = pa.nulls(0, pa.binary())  # pa.array would import pandas

_WINDOW_ROWS = 1024 * 1024
_VALUE = methodcaller("as_py")


class GroupHandles(NamedTuple):
    """A row group: its place in the file, the offset of its first row, and what its handles are within."""

    number: int
    start: int
    rows: int
    bounds: ColumnBounds


def touched_offsets(file: pq.ParquetFile, groups: Sequence[GroupHandles], touched: pa.Array) -> Offsets:
    """The offsets, in order, of rows in some row groups whose handles are among the ordered `touched`."""
    found = [np.empty(0, np.int64)]
    for window in _windows([each for each in groups if len(_within(touched, each.bounds))]):
        low, high = min(each.bounds.low for each in window), max(each.bounds.high for each in window)
        handles = file.read_row_groups([each.number for each in window], columns=[HANDLE]).column(HANDLE)
        hits = pc.is_in(handles, value_set=_within(touched, ColumnBounds(low, high))).to_numpy()
        offsets = np.concatenate([np.arange(each.start, each.start + each.rows) for each in window])
        found.append(offsets[hits])
    return np.concatenate(found)


def _windows(groups: Sequence[GroupHandles]) -> Iterator[list[GroupHandles]]:
    window: list[GroupHandles] = []
    for group in groups:
        if window and sum(each.rows for each in window) + group.rows > _WINDOW_ROWS:
            yield window
            window = []
        window.append(group)
    if window:
        yield window


def _within(ordered: pa.Array, bounds: ColumnBounds) -> pa.Array:
    """Those of some ordered handles that are within the bounds."""
    low = bisect_left(ordered, bounds.low, key=_VALUE)
    return ordered[low : bisect_right(ordered, bounds.high, key=_VALUE)]
