"""Changes of rows in the order in which they are written: what every format encodes."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.text_lines import Ints

INSERT, UPDATE, DELETE = 0, 1, 2

Mask = npt.NDArray[np.bool_]
Kinds = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Some changes. `rows` has the row after each, or the one that a delete ended.

    `old` has the rows before the updates. Of rows that `known` does not mark, only
    the primary key is known: they were deleted.
    """

    kinds: Kinds
    commit_ts: Ints
    handles: pa.Array
    known: Mask
    rows: pa.RecordBatch
    old: pa.RecordBatch
    snapshot: bool = False

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def updates(self) -> Mask:
        """Which of them are updates."""
        mask: Mask = self.kinds == UPDATE
        return mask

    @property
    def followed(self) -> Mask:
        """Deletes whose row comes back, with another key, in the change behind them."""
        mask = np.zeros(len(self), np.bool_)
        mask[:-1] = (self.kinds[:-1] == DELETE) & (self.kinds[1:] == INSERT)
        mask[:-1] &= self.commit_ts[:-1] == self.commit_ts[1:]
        at = np.flatnonzero(mask)
        if len(at):
            mask[at] = np.asarray(pc.equal(taken(self.handles, at), taken(self.handles, at + 1)))
        return mask

    def slice(self, start: int, stop: int) -> "RowChanges":
        """Those in [start, stop); nothing is copied."""
        before, inside = int(self.updates[:start].sum()), int(self.updates[start:stop].sum())
        return RowChanges(
            self.kinds[start:stop],
            self.commit_ts[start:stop],
            self.handles.slice(start, stop - start),
            self.known[start:stop],
            self.rows.slice(start, stop - start),
            self.old.slice(before, inside),
            self.snapshot,
        )

    def where(self, mask: Mask) -> "RowChanges":
        """Some of them."""
        places = np.flatnonzero(mask)
        return RowChanges(
            self.kinds[places],
            self.commit_ts[places],
            taken(self.handles, places),
            self.known[places],
            taken_rows(self.rows, places),
            taken_rows(self.old, np.flatnonzero(mask[self.updates])),
            self.snapshot,
        )

    def pieces(self, rows_max: int, bytes_max: int) -> Iterator["RowChanges"]:
        """All of them in order, a limited part at a time."""
        nbytes = self.rows.nbytes + self.old.nbytes
        step = max(1, min(rows_max, len(self) * bytes_max // max(1, nbytes)))
        for start in range(0, len(self), step):
            yield self.slice(start, min(len(self), start + step))


def taken(cells: pa.Array, places: Ints) -> pa.Array:
    """Some cells of a column."""
    return pc.take(cells, pa.array(places), boundscheck=False)


def taken_rows(rows: pa.RecordBatch, places: Ints) -> pa.RecordBatch:
    """Some rows; column by column, because Arrow takes twice as long for a batch."""
    if len(places) == rows.num_rows and np.array_equal(places, np.arange(len(places))):
        return rows
    if not rows.num_columns:
        return rows.slice(0, len(places))
    return pa.RecordBatch.from_arrays([taken(each, places) for each in rows.columns], schema=rows.schema)
