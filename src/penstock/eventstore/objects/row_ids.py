"""Row ids: which written row a tombstone ends. Vectorised; no I/O.

A row id is (object id, offset of the row in that object). At one commit-ts a handle has at most one tombstone
and one written row, tombstone first. So a tombstone ends the row that was written last before it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]

ASK, UNKNOWN = -1, -2
_INTEGER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Events:
    """Rows of one side: their handles and commit timestamps."""

    handles: pa.Array
    commit_ts: Ints

    @classmethod
    def of(cls, handles: Iterable[pa.Array], commit_ts: Iterable[pa.Array]) -> "Events":
        """Join events that come in parts."""
        times = [part.to_numpy() for part in commit_ts]
        return cls(
            pa.concat_arrays([pa.array([], pa.binary()), *handles]),
            np.concatenate(times) if times else np.empty(0, np.int64),
        )


@dataclass(frozen=True, slots=True)
class Matches:
    """Which row each tombstone ends, and which rows are left at the end.

    `ends` has for each tombstone the number of the written row that it ends, ASK when that row was written
    before all of these, UNKNOWN when its handle was ended already. `live` are the written rows, and `gone`
    the tombstones, that come last of their handle, both in the order of handles.
    """

    ends: Ints
    live: Ints
    gone: Ints


def match_tombstones(written: Events, ended: Events) -> Matches:
    """Match each tombstone with the row that it ends, by following every handle through time."""
    count = len(ended.commit_ts)
    if not count + len(written.commit_ts):
        return Matches(*(np.empty(0, np.int64) for _ in range(3)))
    # Both sides are in the order of commits, unless some of their rows went into objects of another kind.
    rows, tombstones = _order(written.commit_ts), _order(ended.commit_ts)
    by_time = _in_time(written.commit_ts[rows], ended.commit_ts[tombstones])
    by_time = np.concatenate((tombstones, count + rows))[by_time]
    keys = as_sort_keys(pa.concat_arrays([ended.handles, written.handles]))[by_time]
    order = np.argsort(keys, kind="stable")
    events, keys = (
        by_time[order],
        keys[order],
    )  # by handle, then by time; tombstones have the numbers below `count`
    same = np.concatenate(([False], keys[1:] == keys[:-1]))  # has the handle of the event before it
    before = np.concatenate(([0], events[:-1]))
    found = np.where(same, np.where(before >= count, before - count, UNKNOWN), ASK)
    ends = np.empty(count, np.int64)
    tombstone = events < count
    ends[events[tombstone]] = found[tombstone]
    last = events[~np.concatenate((same[1:], [False]))]
    return Matches(ends, live=last[last >= count] - count, gone=last[last < count])


def _order(commit_ts: Ints) -> Ints:
    in_order = bool((commit_ts[1:] >= commit_ts[:-1]).all())
    return np.arange(len(commit_ts)) if in_order else np.argsort(commit_ts, kind="stable")


def _in_time(written: Ints, ended: Ints) -> Ints:
    """Return the numbers of all events by commit-ts; tombstones come first and have the low numbers."""
    events = np.empty(len(written) + len(ended), np.int64)
    numbers = np.arange(len(events))
    first, second = numbers[: len(ended)], numbers[: len(written)]
    events[first + np.searchsorted(written, ended, side="left")] = first
    events[second + np.searchsorted(ended, written, side="right")] = len(ended) + second
    return events


def as_sort_keys(handles: pa.Array) -> npt.NDArray[np.uint64]:
    """Return numbers that compare as the handles do."""
    if not len(handles):
        return np.empty(0, np.uint64)
    lengths = pc.min_max(pc.binary_length(handles)).as_py()
    if (
        lengths["min"] == lengths["max"] == _INTEGER_BYTES
    ):  # handles of integer keys: big-endian integers sort as their bytes
        _, offsets, content = handles.buffers()
        first = int(np.frombuffer(offsets, np.int32)[handles.offset])
        integers = np.frombuffer(content, ">u8", len(handles), first)
        return integers.astype(np.uint64)
    ranks: npt.NDArray[np.uint64] = pc.rank(handles, tiebreaker="dense").to_numpy()
    return ranks


@dataclass(frozen=True, slots=True)
class RowIds:
    """Row ids of some rows: positions in `names` and offsets, both -1 where the row is not known."""

    names: Sequence[str]
    objects: npt.NDArray[np.int32]
    offsets: Ints

    @classmethod
    def within(cls, name: str, offsets: Ints) -> "RowIds":
        """Return the row ids of rows of one object."""
        return cls([name], np.zeros(len(offsets), np.int32), offsets)

    def columns(self, rows: Ints) -> tuple[pa.Array, pa.Array]:
        """Return object ids and offsets of some rows, null where the row is not known."""
        objects, offsets = self.objects[rows], self.offsets[rows]
        unknown = objects < 0
        encoded = pa.DictionaryArray.from_arrays(
            pa.array(objects, mask=unknown), pa.array(self.names, pa.string())
        )
        return encoded.cast(pa.string()), pa.array(offsets, mask=unknown)

    def order(self, commit_ts: Ints) -> Ints:
        """Return the order by (object, offset, commit-ts), with rows that are not known last."""
        ranks = np.empty(len(self.names) + 1, np.int64)
        ranks[np.argsort(np.array(self.names, dtype=np.str_))] = np.arange(len(self.names))
        ranks[-1] = len(self.names)  # the rank of unknown rows: -1 is the last element
        return np.lexsort((commit_ts, self.offsets, ranks[self.objects]))

    def part(self, start: int, rows: int) -> "RowIds":
        """Return a run of them."""
        return RowIds(self.names, self.objects[start : start + rows], self.offsets[start : start + rows])


@dataclass(frozen=True, slots=True)
class Moves:
    """What a chunk does to an index: handles without a row any more, and the new places of others' rows."""

    gone: pa.Array
    live: pa.Array
    places: RowIds


@dataclass(frozen=True, slots=True)
class Places:
    """Where consecutive written rows went: the first `rows` of them into the first object, and so on."""

    names: Sequence[str]
    rows: Sequence[int]

    def of(self, numbers: Ints) -> RowIds:
        """Return the row ids of some of the rows; negative numbers are not known."""
        ends = np.cumsum(self.rows, dtype=np.int64)
        objects = np.searchsorted(ends, numbers, side="right")
        offsets = numbers - np.concatenate(([0], ends))[objects]
        known = numbers >= 0
        return RowIds(self.names, np.where(known, objects, -1).astype(np.int32), np.where(known, offsets, -1))


def fill_row_ids(known: RowIds, asked: npt.NDArray[np.bool_], answers: RowIds) -> RowIds:
    """Return row ids with the answers for those that were `asked` for."""
    objects, offsets = known.objects.copy(), known.offsets.copy()
    objects[asked] = np.where(answers.objects < 0, -1, answers.objects + len(known.names))
    offsets[asked] = answers.offsets
    return RowIds([*known.names, *answers.names], objects, offsets)
