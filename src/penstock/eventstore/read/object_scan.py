"""The rows of data objects that exist at a timestamp, row group by row group.

The footer and the offsets that do not count decide what is read of a row group: nothing, when no row of it
counts; its columns as they are, when all rows count; else its columns and a mask, for which `_commit_ts` and
`_handle` are read only where they decide anything.

`overwritten_offsets` finds the rows of handles that changed later, whose offsets do not count either.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import accumulate
from operator import methodcaller
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.eventstore.manifest import ObjectInfo
from penstock.eventstore.objects.deletion_vectors import Deletions, Offsets, live_mask, union
from penstock.eventstore.objects.object_file import ColumnBounds, column_bounds, open_object
from penstock.eventstore.read.pruning import WantedRows, groups_with
from penstock.eventstore.read.streams import ReadAhead
from penstock.eventstore.schema_version import Projection
from penstock.eventstore.sides import COMMIT_TS, HANDLE
from penstock.object_storage import ObjectStorage
from penstock.tables.schema import TableInfo

NO_HANDLES = pa.nulls(0, pa.binary())  # pa.array would import pandas

_WINDOW_ROWS = 1024 * 1024
_VALUE = methodcaller("as_py")
_BLOCKS_PER_GROUP = 4  # row groups are bounded in bytes, and so are parts of them


@dataclass(frozen=True, slots=True)
class ObjectScanTask:
    """Row groups of a data object, from `first` up to `end` (None: to the last), and their size."""

    info: ObjectInfo
    table: TableInfo  # the schema of the object's rows
    rows: int
    size_bytes: int
    first: int = 0
    end: int | None = None

    @property
    def handles(self) -> ColumnBounds:
        """The bounds of the handles."""
        return ColumnBounds(self.info.key_min, self.info.key_max)

    def possible_groups(
        self, footer: pq.FileMetaData, handles: "HandleRange", wanted: WantedRows | None
    ) -> list[int]:
        """Return those of its row groups that may have rows with some handles that are wanted."""
        possible = set(range(footer.num_row_groups))
        if wanted is not None:
            possible = groups_with(footer, wanted.in_version(self.table, "data"))
        bounds = column_bounds(footer, HANDLE, missing=self.handles)
        return [
            group
            for group in range(footer.num_row_groups)[self.first : self.end]
            if group in possible
            if (keys := bounds[group]) is not None and handles.meets(keys)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleRange:
    """Handles in [low, high); b"" is no bound."""

    low: bytes = b""
    high: bytes = b""

    def meets(self, bounds: ColumnBounds) -> bool:
        """Return whether a handle within the bounds may be in the range."""
        return bool(bounds.high >= self.low and (not self.high or bounds.low < self.high))

    def covers(self, bounds: ColumnBounds) -> bool:
        """Return whether every handle within the bounds is in the range."""
        return bool(bounds.low >= self.low and (not self.high or bounds.high < self.high))


@dataclass(frozen=True, slots=True)
class ObjectScan:
    """Reads objects as of `ts`, as columns of `table`, without deleted rows and without `changed_handles`.

    `changed_handles` must be in order. Takes the memory of parts of a row group, and of a deletion vector.
    """

    storage: ObjectStorage
    table_id: int
    ts: int
    table: TableInfo
    names: tuple[str, ...]
    deletions: Deletions
    batch_rows: int
    handles: HandleRange = HandleRange()
    changed_handles: pa.Array = field(default_factory=lambda: NO_HANDLES)
    wanted: WantedRows | None = None  # rows that are not wanted may be left out, and need not

    def batches(self, tasks: Sequence[ObjectScanTask]) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows, in parts of row groups; the next part is read meanwhile. No batch is empty.

        Raises Unavailable when an object does not exist or storage does not answer, Corrupt when it is
        damaged.
        """
        with closing(ReadAhead(self._read(tasks))) as ahead:
            while (found := ahead.next()) is not None:
                batch = found.select_live()
                del found  # so that rows that were filtered out do not stay in memory
                if batch.num_rows:
                    yield batch

    def _read(self, tasks: Sequence[ObjectScanTask]) -> "Generator[_RowBlock, None, None]":
        for task in sorted(
            tasks, key=lambda task: task.info.id
        ):  # in this order Deletions reads each row group once
            projection = Projection(task.table, self.table, self.names, impossible_dates=True)
            deleted = self.deletions.of(task.info.id)
            with open_object(self.storage, self.table_id, task.info) as file:
                for group in self._groups(task, file, deleted):
                    start = 0
                    for rows in group.read(file, projection.reads, self.batch_rows):
                        yield _RowBlock(group, projection, start, rows)
                        start += rows.num_rows

    def _groups(self, task: ObjectScanTask, file: pq.ParquetFile, deleted: Offsets) -> list["_ScannedGroup"]:
        """Return the row groups that may have rows, and what rules rows out."""
        footer = file.metadata
        commits = column_bounds(footer, COMMIT_TS)
        handles = column_bounds(footer, HANDLE, missing=task.handles)
        sizes = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
        starts = [0, *accumulate(sizes)]
        possible = task.possible_groups(footer, self.handles, self.wanted)
        chosen = [
            (commit, GroupHandles(number, starts[number], sizes[number], keys))
            for number, (commit, keys) in enumerate(zip(commits, handles, strict=True))
            if number in possible
            if commit is not None and commit.low <= self.ts
            if keys is not None
        ]
        if len(self.changed_handles):
            overwritten = overwritten_offsets(file, [keys for _, keys in chosen], self.changed_handles)
            deleted = union([deleted, overwritten])
        groups = []
        for commit, group in chosen:
            low, high = np.searchsorted(deleted, [group.start, group.start + group.rows])
            if high - low < group.rows:
                upto_ts = self.ts if commit.high > self.ts else None
                inside = None if self.handles.covers(group.bounds) else self.handles
                gone = deleted[low:high] - group.start
                groups.append(_ScannedGroup(group.number, group.rows, gone, upto_ts, inside))
        return groups


@dataclass(frozen=True, slots=True)
class _ScannedGroup:
    """A row group, and what rules its rows out; None or empty: nothing does. Its offsets are from 0."""

    number: int
    rows: int
    deleted: Offsets
    upto_ts: int | None
    handles: HandleRange | None

    def read(self, file: pq.ParquetFile, names: Sequence[str], rows_max: int) -> Iterator[pa.RecordBatch]:
        """Yield the columns, and those that a mask needs, of all its rows in order."""
        extra = [COMMIT_TS] if self.upto_ts is not None else []
        extra += [HANDLE] if self.handles is not None else []
        columns = list(dict.fromkeys([*names, *extra])) or [
            COMMIT_TS
        ]  # without columns Parquet yields no batches
        rows = min(rows_max, -(-self.rows // _BLOCKS_PER_GROUP))
        yield from file.iter_batches(rows, row_groups=[self.number], columns=columns)

    def mask(self, rows: pa.RecordBatch, start: int) -> pa.Array | None:
        """Return which of the rows from `start` on count; None: all."""
        low, high = np.searchsorted(self.deleted, [start, start + rows.num_rows])
        gone = self.deleted[low:high] - start
        mask = pa.array(live_mask(rows.num_rows, gone)) if len(gone) else None
        if self.upto_ts is not None:
            mask = _both(mask, pc.less_equal(rows.column(COMMIT_TS), self.upto_ts))
        if self.handles is not None:
            mask = _both(mask, _inside(rows.column(HANDLE), self.handles))
        return mask


class _RowBlock(NamedTuple):
    """Rows of a row group, from its row `start` on, as they were read."""

    group: _ScannedGroup
    projection: Projection
    start: int
    rows: pa.RecordBatch

    def select_live(self) -> pa.RecordBatch:
        """Return the rows that count, projected; nothing is copied when those are all."""
        mask = self.group.mask(self.rows, self.start)
        return self.projection.apply(self.rows if mask is None else self.rows.filter(mask))


def _both(one: pa.Array | None, other: pa.Array) -> pa.Array:
    return other if one is None else pc.and_(one, other)


def _inside(handles: pa.Array, wanted: HandleRange) -> pa.Array:
    above = pc.greater_equal(handles, pa.scalar(wanted.low, pa.binary()))
    return pc.and_(above, pc.less(handles, pa.scalar(wanted.high, pa.binary()))) if wanted.high else above


class GroupHandles(NamedTuple):
    """A row group: its number in the file, the offset of its first row, and the bounds of its handles."""

    number: int
    start: int
    rows: int
    bounds: ColumnBounds


def overwritten_offsets(
    file: pq.ParquetFile, groups: Sequence[GroupHandles], changed_handles: pa.Array
) -> Offsets:
    """Return the offsets, in order, of rows in some row groups whose handles are in `changed_handles`.

    Those must be in order. The handles of many row groups are looked up together, because each look-up costs
    a hash table of the changed handles. Row groups without such handles are not read.
    """
    found = [np.empty(0, np.int64)]
    for window in _windows([group for group in groups if len(_select_within(changed_handles, group.bounds))]):
        low, high = min(member.bounds.low for member in window), max(member.bounds.high for member in window)
        handles = file.read_row_groups([member.number for member in window], columns=[HANDLE]).column(HANDLE)
        hits = pc.is_in(
            handles, value_set=_select_within(changed_handles, ColumnBounds(low, high))
        ).to_numpy()
        offsets = np.concatenate([np.arange(member.start, member.start + member.rows) for member in window])
        found.append(offsets[hits])
    return np.concatenate(found)


def _windows(groups: Sequence[GroupHandles]) -> Iterator[list[GroupHandles]]:
    window: list[GroupHandles] = []
    for group in groups:
        if window and sum(member.rows for member in window) + group.rows > _WINDOW_ROWS:
            yield window
            window = []
        window.append(group)
    if window:
        yield window


def _select_within(ordered: pa.Array, bounds: ColumnBounds) -> pa.Array:
    """Return those of some ordered handles that are within the bounds."""
    low = bisect_left(ordered, bounds.low, key=_VALUE)
    return ordered[low : bisect_right(ordered, bounds.high, key=_VALUE)]
