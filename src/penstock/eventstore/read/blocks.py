"""Changes out of objects, in order, block by block.

Objects of one kind and side do not overlap in time; where they touch, at one commit-ts, they are parts of one
ordered whole. Data objects are in the order of changes, (commit_ts, start_ts, handle). Tombstone objects are
ordered by row id, and `change_order` puts them in the order of changes.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.eventstore.manifest import ObjectInfo
from penstock.eventstore.objects.object_file import ColumnBounds, column_bounds, open_object
from penstock.eventstore.read.pruning import ColumnRange, groups_with
from penstock.eventstore.sides import COMMIT_TS, HANDLE, START_TS
from penstock.object_storage import ObjectStorage

Times = npt.NDArray[np.int64]
Indices = npt.NDArray[np.integer]

Blocks = Generator["Block", None, None]

_WHOLE_BYTES = 16 * 1024 * 1024
_BLOCKS_PER_GROUP = 4  # row groups are bounded in bytes, and so are parts of them
_SORTED_ROWS = 32 * 1024
_FOOTERS_AT_ONCE = 16
_TS_MAX = np.iinfo(np.int64).max
_HANDLE_BYTES = 8  # of the handle of an integer primary key, or of an implicit one


class Block(NamedTuple):
    """Some rows in order, with the columns that were asked for, and the commit-ts and start-ts of each."""

    rows: pa.RecordBatch
    commit: Times
    start: Times

    @classmethod
    def of(cls, batch: pa.RecordBatch, shown: pa.Schema) -> "Block":
        """Make a block of ordered rows that have the shown columns, `_commit_ts` and `_start_ts`."""
        commit, start = batch.column(COMMIT_TS).to_numpy(), batch.column(START_TS).to_numpy()
        return cls(batch.select(shown.names).cast(shown), commit, start)


def count_below(ordered: Times, ts: int) -> int:
    """Return how many of some ordered timestamps are below `ts`, which may be any integer."""
    return int(np.searchsorted(ordered, np.int64(min(ts, _TS_MAX))))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockReader:
    """Reads some columns of a table's changes in (from_ts, to_ts], of rows in [handle_from, handle_to).

    Rows whose values are not within the `ranges`, by paths of columns, may be left out.
    """

    storage: ObjectStorage
    table_id: int
    from_ts: int
    to_ts: int
    shown: pa.Schema
    handle_from: bytes = b""
    handle_to: bytes = b""
    ranges: Mapping[str, ColumnRange] = field(default_factory=dict)

    def blocks(self, objects: Iterable[ObjectInfo]) -> Blocks:
        """Yield the changes of objects of one kind and side, in order; no block is empty.

        Takes the memory of a part of a row group, or of one tombstone object. Raises Unavailable when an
        object does not exist or storage does not answer, Corrupt when an object is damaged.
        """
        for info in self._in_order(info for info in objects if self._may_have(info)):
            with open_object(self.storage, self.table_id, info) as file:
                blocks = self._data(file) if info.side == "data" else self._tombstones(file)
                yield from (block for block in blocks if len(block.commit))

    def _may_have(self, info: ObjectInfo) -> bool:
        in_time = info.min_ts <= self.to_ts and info.max_ts > self.from_ts
        return in_time and self._handles_meet(info.key_min, info.key_max)

    def _handles_meet(self, low: bytes, high: bytes) -> bool:
        return high >= self.handle_from and (not self.handle_to or low < self.handle_to)

    def _in_order(self, objects: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
        """Yield objects by time; those of one and the same commit-ts by transaction, then by handle."""
        by_time = sorted(objects, key=_times)
        for _, same in groupby(by_time, key=_times):
            found = list(same)
            if len(found) > 1:
                with ThreadPoolExecutor(_FOOTERS_AT_ONCE, thread_name_prefix="penstock-footer") as pool:
                    places = dict(zip(found, pool.map(self._within_commit, found), strict=True))
                found.sort(key=places.__getitem__)
            yield from found

    def _within_commit(self, info: ObjectInfo) -> tuple[int, int, bytes]:
        with open_object(self.storage, self.table_id, info) as file:
            bounds = [starts for starts in column_bounds(file.metadata, START_TS) if starts is not None]
        return min(starts.low for starts in bounds), max(starts.high for starts in bounds), info.key_min

    def _groups(self, footer: pq.FileMetaData) -> list[int]:
        """Return the row groups that may have rows of the range, by their statistics."""
        commits = column_bounds(footer, COMMIT_TS)
        anything = ColumnBounds(b"", self.handle_from)  # overlaps every range that is asked for
        handles = column_bounds(footer, HANDLE, missing=anything)
        possible = groups_with(footer, self.ranges)
        return [
            group
            for group, (commit, handle) in enumerate(zip(commits, handles, strict=True))
            if commit is not None
            and handle is not None
            and commit.low <= self.to_ts
            and commit.high > self.from_ts
            and self._handles_meet(handle.low, handle.high)
            and group in possible
        ]

    def _columns(self, *, handles: bool) -> list[str]:
        """Return the columns to read, as Parquet names them: of structs, only the shown children."""
        shown = (
            name
            for field in self.shown
            for name in (
                [f"{field.name}.{child.name}" for child in field.type]
                if pa.types.is_struct(field.type)
                else [field.name]
            )
        )
        return list(dict.fromkeys([*shown, COMMIT_TS, START_TS, *([HANDLE] if handles else [])]))

    def _data(self, file: pq.ParquetFile) -> Blocks:
        columns = self._columns(handles=bool(self.handle_from or self.handle_to))
        for group in self._groups(file.metadata):
            for batch in _batches(file, group, columns):
                commit = batch.column(COMMIT_TS).to_numpy()
                start, end = count_below(commit, self.from_ts + 1), count_below(commit, self.to_ts + 1)
                rows = select_handles(batch.slice(start, end - start), self.handle_from, self.handle_to)
                yield Block.of(rows, self.shown)

    def _tombstones(self, file: pq.ParquetFile) -> Blocks:
        groups = self._groups(file.metadata)
        if not groups:
            return
        table = file.read_row_groups(groups, columns=self._columns(handles=True))
        commit = table.column(COMMIT_TS).to_numpy()
        wanted = (commit > self.from_ts) & (commit <= self.to_ts)
        if not wanted.all():
            table = table.filter(pa.array(wanted))
        table = select_handles(table, self.handle_from, self.handle_to).combine_chunks()
        for whole in table.to_batches():
            yield from self._sort(whole)

    def _sort(self, rows: pa.RecordBatch) -> Blocks:
        """Yield the rows of an object in the order of changes; only the shown columns are moved."""
        commit, start = rows.column(COMMIT_TS).to_numpy(), rows.column(START_TS).to_numpy()
        order = change_order(commit, start, rows.column(HANDLE))
        shown = rows.select(self.shown.names).cast(self.shown)
        if order is None:
            yield Block(shown, commit, start)
            return
        for begin in range(0, len(order), _SORTED_ROWS):
            part = order[begin : begin + _SORTED_ROWS]
            yield Block(_take_rows(shown, pa.array(part)), commit[part], start[part])


def _batches(file: pq.ParquetFile, group: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a row group: at once, which is faster, or in parts when they are many bytes."""
    metadata = file.metadata.row_group(group)
    if metadata.total_byte_size <= _WHOLE_BYTES:
        yield from file.read_row_group(group, columns=columns).to_batches()
    else:
        rows = -(-metadata.num_rows // _BLOCKS_PER_GROUP)
        yield from file.iter_batches(rows, row_groups=[group], columns=columns)


def _take_rows(rows: pa.RecordBatch, places: pa.Array) -> pa.RecordBatch:
    """Take rows, one column after the other, because Arrow takes twice as long for a batch."""
    columns = [pc.take(column, places, boundscheck=False) for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _times(info: ObjectInfo) -> tuple[int, int]:
    return info.min_ts, info.max_ts


def select_handles(rows: pa.RecordBatch, handle_from: bytes, handle_to: bytes) -> pa.RecordBatch:
    """Return the rows (a batch or a table) with handles in [handle_from, handle_to); b"" is no bound."""
    if handle_to:
        rows = rows.filter(pc.less(rows.column(HANDLE), pa.scalar(handle_to, pa.binary())))
    if handle_from:
        rows = rows.filter(pc.greater_equal(rows.column(HANDLE), pa.scalar(handle_from, pa.binary())))
    return rows


def change_order(commit: Times, start: Times, handles: pa.BinaryArray) -> Indices | None:
    """Return the indices that put rows in the order of changes; None when they are in that order already."""
    if _in_order(commit, start, handles):
        return None
    numbers = _as_numbers(handles)
    if numbers is None:
        rows = pa.table({"commit": commit, "start": start, "handle": handles})
        keys = [(name, "ascending") for name in rows.column_names]
        found: Indices = pc.sort_indices(rows, sort_keys=keys).to_numpy()
        return found
    order = _by_commit_and_number(commit, numbers)
    if _one_start_for_each_commit(commit[order], start[order]):
        return order
    return np.lexsort((numbers, start, commit))


def _in_order(commit: Times, start: Times, handles: pa.BinaryArray) -> bool:
    same = commit[1:] == commit[:-1]
    later = (commit[1:] > commit[:-1]) | (same & (start[1:] > start[:-1]))
    if later.all():
        return True
    same &= start[1:] == start[:-1]
    if not (later | same).all():
        return False
    return bool((later | pc.less(handles[:-1], handles[1:]).to_numpy(zero_copy_only=False)).all())


def _as_numbers(handles: pa.BinaryArray) -> npt.NDArray[np.uint64] | None:
    """Return handles as numbers of the same order; None when some handle is not as long as a number."""
    _, offsets, content = handles.buffers()
    bounds = np.frombuffer(offsets, np.int32)[handles.offset : handles.offset + len(handles) + 1]
    if not (np.diff(bounds) == _HANDLE_BYTES).all():
        return None
    return np.frombuffer(content, np.uint8)[bounds[0] : bounds[-1]].view(">u8").astype(np.uint64)


def _by_commit_and_number(commit: Times, numbers: npt.NDArray[np.uint64]) -> Indices:
    """Sort by commit-ts and handle.

    When both fit in 64 bits, they are packed into one integer, commit-ts in the high bits, which sorts
    several times faster.
    """
    lowest = numbers.min()
    number_bits = int(numbers.max() - lowest).bit_length()
    commit_bits = int(commit.max() - commit.min()).bit_length()
    if commit_bits + number_bits > 64:
        return np.lexsort((numbers, commit))
    since = (commit - commit.min()).astype(np.uint64)
    return np.argsort((since << np.uint64(number_bits)) | (numbers - lowest))


def _one_start_for_each_commit(commit: Times, start: Times) -> bool:
    return not ((commit[1:] == commit[:-1]) & (start[1:] != start[:-1])).any()
