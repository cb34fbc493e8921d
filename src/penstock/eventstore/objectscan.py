"""The rows of data objects that are there at a timestamp, row group by row group.

What a row group needs is decided from the footer, the deletion vector and the touched handles alone: nothing,
when no row of it is wanted; its columns as they are, when all are; else a mask, for which `_commit_ts` and
`_handle` are read only where they decide anything.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import accumulate
from operator import methodcaller
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.eventstore.deletions import Deletions, Offsets, live_mask
from penstock.eventstore.manifest import ObjectInfo
from penstock.eventstore.objectfiles import Bounds, column_bounds, opened
from penstock.eventstore.projection import Projection
from penstock.eventstore.readahead import ReadAhead
from penstock.eventstore.sides import COMMIT_TS, HANDLE
from penstock.eventstore.storage import Storage
from penstock.tables.schema import TableInfo

_VALUE = methodcaller("as_py")
NO_HANDLES = pa.array([], pa.binary())


@dataclass(frozen=True, slots=True)
class Piece:
    """Row groups of a data object, from `first` up to `end` (None: all the rest), and what they hold."""

    info: ObjectInfo
    table: TableInfo  # the schema of its rows
    rows: int
    size_bytes: int
    first: int = 0
    end: int | None = None

    @property
    def handles(self) -> Bounds:
        """What the handles are within."""
        return Bounds(self.info.key_min, self.info.key_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleRange:
    """Handles in [low, high); b"" is no bound."""

    low: bytes = b""
    high: bytes = b""

    def meets(self, bounds: Bounds) -> bool:
        """Whether a handle within the bounds may be in the range."""
        return bool(bounds.high >= self.low and (not self.high or bounds.low < self.high))

    def covers(self, bounds: Bounds) -> bool:
        """Whether every handle within the bounds is in the range."""
        return bool(bounds.low >= self.low and (not self.high or bounds.high < self.high))


@dataclass(frozen=True, slots=True)
class ObjectScan:
    """Reads pieces as of `ts`, as columns of `table`: no deleted row, none above `ts`, none that is touched.

    `touched` must be in order. Takes the memory of two row groups, and of a deletion vector.
    """

    storage: Storage
    table_id: int
    ts: int
    table: TableInfo
    names: tuple[str, ...]
    deletions: Deletions
    batch_rows: int
    handles: HandleRange = HandleRange()
    touched: pa.Array = field(default_factory=lambda: NO_HANDLES)

    def batches(self, pieces: Sequence[Piece]) -> Generator[pa.RecordBatch, None, None]:
        """The rows of each row group that has any; the next one is read meanwhile.

        Raises Unavailable when an object is not there or storage does not answer, Corrupt when it is damaged.
        """
        with closing(ReadAhead(self._read(pieces))) as ahead:
            while (found := ahead.next()) is not None:
                batches = found.batches(self.batch_rows)
                del found  # what is not left of it is not kept while the batches are taken
                while batches:
                    yield batches.popleft()

    def _read(self, pieces: Sequence[Piece]) -> "Generator[_Read, None, None]":
        for piece in sorted(pieces, key=lambda each: each.info.id):  # as Deletions wants to be asked
            projection = Projection(piece.table, self.table, self.names)
            deleted = self.deletions.of(piece.info.id)
            with opened(self.storage, self.table_id, piece.info) as file:
                for group in self._groups(piece, file.metadata, deleted):
                    yield _Read(group, projection, group.read(file, projection.reads))

    def _groups(self, piece: Piece, footer: pq.FileMetaData, deleted: Offsets) -> list["_Group"]:
        """The row groups that may have rows, and what tells them."""
        count = footer.num_row_groups
        sizes = [footer.row_group(number).num_rows for number in range(count)]
        starts = [0, *accumulate(sizes)]
        handles = column_bounds(footer, HANDLE, missing=piece.handles)
        commits = column_bounds(footer, COMMIT_TS)
        made = []
        for number in range(count)[piece.first : piece.end]:
            commit, keys = commits[number], handles[number]
            assert commit is not None, "system columns have no nulls"
            assert keys is not None, "system columns have no nulls"
            if commit.low > self.ts or not self.handles.meets(keys):
                continue
            ends = np.searchsorted(deleted, [starts[number], starts[number + 1]])
            gone = deleted[slice(*ends)] - starts[number]
            if len(gone) < sizes[number]:
                made.append(
                    _Group(
                        number,
                        gone,
                        self.ts if commit.high > self.ts else None,
                        None if self.handles.covers(keys) else self.handles,
                        _within(self.touched, keys),
                    )
                )
        return made


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group, and what rules rows of it out; None or empty: nothing does."""

    number: int
    deleted: Offsets
    upto_ts: int | None
    handles: HandleRange | None
    touched: pa.Array

    def read(self, file: pq.ParquetFile, names: Sequence[str]) -> pa.Table:
        """The columns, and those that a mask needs."""
        extra = [COMMIT_TS] if self.upto_ts is not None else []
        extra += [HANDLE] if self.handles is not None or len(self.touched) else []
        wanted = dict.fromkeys([*names, *extra]) or {COMMIT_TS: None}  # a table without columns has no rows
        return file.read_row_group(self.number, columns=list(wanted))

    def left(self, rows: pa.Table) -> pa.Table:
        """The rows that nothing rules out; the same table when those are all."""
        mask = pa.array(live_mask(rows.num_rows, self.deleted)) if len(self.deleted) else None
        if self.upto_ts is not None:
            mask = _both(mask, pc.less_equal(rows.column(COMMIT_TS), self.upto_ts))
        if self.handles is not None:
            mask = _both(mask, _inside(rows.column(HANDLE), self.handles))
        if len(self.touched):
            mask = _both(mask, pc.invert(pc.is_in(rows.column(HANDLE), value_set=self.touched)))
        return rows if mask is None else rows.filter(mask)


class _Read(NamedTuple):
    """A row group that was read."""

    group: _Group
    projection: Projection
    rows: pa.Table

    def batches(self, batch_rows: int) -> deque[pa.RecordBatch]:
        """Its rows that are left, projected."""
        left = self.group.left(self.rows).to_batches(max_chunksize=batch_rows)
        return deque(self.projection.apply(batch) for batch in left)


def _both(one: pa.Array | None, other: pa.ChunkedArray) -> pa.Array:
    return other.combine_chunks() if one is None else pc.and_(one, other.combine_chunks())


def _inside(handles: pa.ChunkedArray, wanted: HandleRange) -> pa.ChunkedArray:
    above = pc.greater_equal(handles, pa.scalar(wanted.low, pa.binary()))
    return pc.and_(above, pc.less(handles, pa.scalar(wanted.high, pa.binary()))) if wanted.high else above


def _within(ordered: pa.Array, bounds: Bounds) -> pa.Array:
    """Those of some ordered handles that are within the bounds."""
    low = bisect_left(ordered, bounds.low, key=_VALUE)
    return ordered[low : bisect_right(ordered, bounds.high, key=_VALUE)]
