"""Deletion vectors: which rows of a data object were deleted as of a timestamp.

Tombstone objects are ordered by row id, in small row groups. A caller that asks for one data object after the
other, in the order of their ids, reads each row group of each tombstone object once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.eventstore.manifest import ObjectInfo
from penstock.eventstore.objects.object_file import ColumnBounds, column_bounds, open_object
from penstock.eventstore.sides import COMMIT_TS, OBJECT, OFFSET
from penstock.object_storage import ObjectStorage

Offsets = npt.NDArray[np.int64]


class Deletions:
    """The deletions of tombstones up to `ts`. Not thread-safe.

    Takes the memory of one deletion vector, and of the offsets in one row group of each tombstone object.
    Raises Unavailable when an object does not exist any more, Corrupt when it is damaged.
    """

    def __init__(
        self, storage: ObjectStorage, table_id: int, tombstones: Sequence[ObjectInfo], ts: int
    ) -> None:
        chosen = [info for info in tombstones if info.min_ts <= ts]
        self._objects = [_Tombstones(storage, table_id, info, ts) for info in chosen]

    def of(self, object_id: str) -> Offsets:
        """Return the offsets of the deleted rows of a data object, in order, each once."""
        return union([offsets for tombstones in self._objects for offsets in tombstones.of(object_id)])


def union(found: Sequence[Offsets]) -> Offsets:
    """Merge ordered offsets, each once."""
    if not found:
        return np.empty(0, np.int64)
    if len(found) == 1:
        return _without_repeats(found[0])
    together = np.concatenate(found)
    together.sort(kind="stable")  # a stable sort merges runs that are in order
    return _without_repeats(together)


def live_mask(rows: int, deleted: Offsets) -> npt.NDArray[np.bool_]:
    """Return which of the first `rows` offsets are not deleted."""
    mask = np.ones(rows, np.bool_)
    mask[deleted] = False
    return mask


def _without_repeats(ordered: Offsets) -> Offsets:
    """Return ordered offsets without repeats."""
    fresh = ordered[1:] != ordered[:-1]
    return ordered if fresh.all() else ordered[np.concatenate(([True], fresh))]


@dataclass(frozen=True, slots=True)
class _GroupDeletions:
    """The deletions of one row group: `runs` has the slice of each data object's offsets."""

    number: int
    runs: Mapping[str, slice]
    offsets: Offsets


class _Tombstones:
    """One tombstone object; keeps its footer and the row group that it read last."""

    def __init__(self, storage: ObjectStorage, table_id: int, info: ObjectInfo, ts: int) -> None:
        self._storage = storage
        self._table_id = table_id
        self._info = info
        self._ts = ts
        self._targets = None if info.targets is None else frozenset(target for target, _ in info.targets)
        self._footer: pq.FileMetaData | None = None
        self._bounds: list[ColumnBounds | None] = []
        self._last: _GroupDeletions | None = None

    def of(self, object_id: str) -> Iterator[Offsets]:
        """Yield the deleted offsets of a data object, in order, row group by row group."""
        if self._targets is not None and object_id not in self._targets:
            return
        if self._footer is None:
            with open_object(self._storage, self._table_id, self._info) as file:
                self._footer = file.metadata
                self._bounds = column_bounds(file.metadata, OBJECT)
        for number, bounds in enumerate(self._bounds):
            if bounds is None or not bounds.low <= object_id <= bounds.high:
                continue
            group = self._group(number)
            if object_id in group.runs:
                yield group.offsets[group.runs[object_id]]

    def _group(self, number: int) -> _GroupDeletions:
        if self._last is None or self._last.number != number:
            self._last = self._read(number)
        return self._last

    def _read(self, number: int) -> _GroupDeletions:
        timed = self._info.max_ts > self._ts
        names = [OBJECT, OFFSET, *([COMMIT_TS] if timed else [])]
        with open_object(
            self._storage, self._table_id, self._info, footer=self._footer, dictionaries=[OBJECT]
        ) as file:
            rows = file.read_row_group(number, columns=names)
        rows = rows.slice(0, rows.num_rows - rows.column(OBJECT).null_count)  # nulls are last
        if timed:
            rows = rows.filter(pc.less_equal(rows.column(COMMIT_TS), self._ts))
        offsets: Offsets = rows.column(OFFSET).to_numpy()
        return _GroupDeletions(number, _runs(rows.column(OBJECT).combine_chunks()), offsets)


def _runs(objects: pa.DictionaryArray) -> dict[str, slice]:
    """Return the slice of each of the ordered ids."""
    if not len(objects):
        return {}
    numbers, ids = objects.indices.to_numpy(), objects.dictionary
    starts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist()]
    bounds = pairwise([*starts, len(numbers)])
    return {ids[numbers[ends[0]]].as_py(): slice(*ends) for ends in bounds}
