"""How far a reader goes that takes a limited number of changes at a time, and no half commits.

`last_admitted_ts` decides from counts, and is pure. `ChangeCounts` counts the changes of a range: from
manifests, and where those do not suffice from the commit timestamps in the objects. `admitted_handle` cuts a
snapshot, which has no timestamps, at a handle.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.changes.collect import SIDES
from penstock.errors import Invalid
from penstock.eventstore.manifest import ObjectInfo
from penstock.eventstore.objects.object_file import ColumnBounds, column_bounds, open_object
from penstock.eventstore.read.blocks import select_handles
from penstock.eventstore.read.object_scan import HandleRange
from penstock.eventstore.read.partition import PartitionState, RangeReader, ReadRange
from penstock.eventstore.sides import COMMIT_TS, HANDLE

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ReadLimit:
    """The most changes, and bytes of changes, that are taken at a time; None: no limit."""

    rows: int | None = None
    nbytes: int | None = None

    def __bool__(self) -> bool:
        return self.rows is not None or self.nbytes is not None

    def up_to(self, nbytes: int | None) -> "ReadLimit":
        """Return this limit with at most so many bytes; None changes nothing."""
        bounds = [bound for bound in (self.nbytes, nbytes) if bound is not None]
        return replace(self, nbytes=min(bounds, default=None))

    def allows(self, rows: float, nbytes: float) -> bool:
        """Return whether so much may be taken at once."""
        return (self.rows is None or rows <= self.rows) and (self.nbytes is None or nbytes <= self.nbytes)


@dataclass(frozen=True, slots=True)
class CountedChanges:
    """Changes that were committed from `min_ts` to `max_ts`.

    `times` returns their commit timestamps, which may cost a read.
    """

    rows: int
    nbytes: int
    min_ts: int
    max_ts: int
    times: Callable[[], Ints]

    @classmethod
    def from_times(cls, times: Ints, row_bytes: float) -> "CountedChanges":
        """Return at least one change whose commit timestamps are known already."""
        nbytes = round(len(times) * row_bytes)
        return cls(len(times), nbytes, int(times.min()), int(times.max()), lambda: times)


def last_admitted_ts(changes: Iterable[CountedChanges], from_ts: int, to_ts: int, limit: ReadLimit) -> int:
    """Return the end of the longest range (from_ts, end] within `to_ts` and the limit.

    The range has every change of each commit in it, and at least one commit if there is any. That commit
    alone may exceed the limit. Only the timestamps that the decision depends on are read.
    """
    inside = sorted(
        (counted for counted in changes if _meets(counted, from_ts, to_ts)),
        key=lambda counted: counted.min_ts,
    )
    sure = _count_allowed(inside, limit)
    if sure == len(inside):
        return to_ts
    safe_ts = max(from_ts, inside[sure].min_ts - 1)  # the limit allows everything up to here
    whole = [counted for counted in inside[:sure] if counted.min_ts > from_ts and counted.max_ts <= safe_ts]
    tally = _Admitted(limit, sum(counted.rows for counted in whole), sum(counted.nbytes for counted in whole))
    for counted in inside[:sure]:
        if counted.min_ts <= from_ts or counted.max_ts > safe_ts:
            tally.add(counted, from_ts)
    for number, counted in enumerate(inside[sure:], sure + 1):
        tally.add(counted, from_ts)
        known_ts = to_ts if number == len(inside) else min(to_ts, inside[number].min_ts - 1)
        end = tally.end(known_ts)
        if end is not None:
            return end
    return to_ts


def _meets(counted: CountedChanges, from_ts: int, to_ts: int) -> bool:
    return counted.max_ts > from_ts and counted.min_ts <= to_ts


def _count_allowed(changes: Sequence[CountedChanges], limit: ReadLimit) -> int:
    """Return how many of them, from the first on, the limit allows together."""
    rows = accumulate(counted.rows for counted in changes)
    nbytes = accumulate(counted.nbytes for counted in changes)
    fits = [limit.allows(*so_far) for so_far in zip(rows, nbytes, strict=True)]
    return fits.index(False) if False in fits else len(fits)


class _Admitted:
    """Counts changes by commit-ts, after `rows` and `nbytes` of changes that are admitted already."""

    def __init__(self, limit: ReadLimit, rows: int, nbytes: int) -> None:
        self._limit = limit
        self._rows = rows
        self._nbytes = nbytes
        self._times: list[Ints] = []
        self._weights: list[npt.NDArray[np.float64]] = []

    def add(self, counted: CountedChanges, from_ts: int) -> None:
        times = counted.times()
        times = times[times > from_ts]
        self._times.append(times)
        self._weights.append(np.full(len(times), counted.nbytes / max(1, counted.rows)))

    def end(self, known_ts: int) -> int | None:
        """Return where to cut, when that is certain once all changes up to `known_ts` are added, or None."""
        commits, which = np.unique(np.concatenate(self._times), return_inverse=True)
        rows = self._rows + np.cumsum(np.bincount(which, minlength=len(commits)))
        weights = np.bincount(which, np.concatenate(self._weights), len(commits))
        nbytes = self._nbytes + np.cumsum(weights)
        beyond = np.zeros(len(commits), np.bool_)
        if self._limit.rows is not None:
            beyond |= rows > self._limit.rows
        if self._limit.nbytes is not None:
            beyond |= nbytes > self._limit.nbytes
        first = int(beyond.argmax()) if beyond.any() else len(commits)
        if first == len(commits) or commits[first] > known_ts:
            return None
        alone = first == 0 and not self._rows  # the first commit is admitted whatever its size
        return int(commits[first]) - (0 if alone else 1)


_ROW_BYTES = 64.0  # the size of a row of a table without objects


@dataclass(frozen=True)
class ChangeCounts:
    """Counts the changes in (from_ts, to_ts] of a table's partitions, whose states `open_range` returns.

    An update counts twice, for the row before and the row after. Bytes are those of objects; a change that is
    not flushed weighs as much as an average row. With `handles` only rows in that range count, as far as
    objects say that without being read. Every method raises StaleRead when history of
    the range is gone, and Unavailable when storage or the capture does not answer.
    """

    states: Sequence[PartitionState]
    from_ts: int
    to_ts: int
    handles: HandleRange = field(default_factory=HandleRange)
    _read: dict[str, Ints] = field(default_factory=dict, repr=False)  # commit timestamps by object id
    _asked: list[list[Ints]] = field(default_factory=list, init=False, repr=False)  # the first answer

    def has_changes(self) -> bool:
        """Return whether the range has any change."""
        if any(True for _ in self._flushed(self.to_ts)):
            return True
        return any(len(times) for times in self._unflushed_times)

    def last_admitted_ts(self, limit: ReadLimit) -> int:
        """Return the end of the longest range from `from_ts` on that the limit allows, in whole commits.

        It has at least one commit if there is any, even when that exceeds the limit.
        """
        if not limit:
            return self.to_ts
        flushed_ts = min(self.to_ts, *(state.flushed_ts for state in self.states))
        if flushed_ts > self.from_ts:
            end = last_admitted_ts(self._flushed(flushed_ts), self.from_ts, flushed_ts, limit)
            if end < flushed_ts:
                return end
        changes = [*self._flushed(self.to_ts)]
        row_bytes = self._row_bytes()
        changes += [
            CountedChanges.from_times(times, row_bytes) for times in self._unflushed_times if len(times)
        ]
        return last_admitted_ts(changes, self.from_ts, self.to_ts, limit)

    def weigh(self, upto_ts: int) -> tuple[int, int]:
        """Estimate the number and the bytes of the changes up to a timestamp of the range.

        Objects inside the range count as a whole, whatever the handles are.
        """
        shares = [
            (counted, _share_within(counted, self.from_ts, upto_ts)) for counted in self._flushed(upto_ts)
        ]
        unflushed = sum(int(np.count_nonzero(times <= upto_ts)) for times in self._unflushed_times)
        rows = sum(counted.rows * share for counted, share in shares)
        nbytes = sum(counted.nbytes * share for counted, share in shares)
        return round(rows) + unflushed, round(nbytes + unflushed * self._row_bytes())

    def _flushed(self, upto_ts: int) -> Iterator[CountedChanges]:
        for state in self.states:
            for side in SIDES:
                for info in state.change_objects(side, self.from_ts, min(upto_ts, state.flushed_ts)):
                    if self.handles.meets(_bounds(info)):
                        yield CountedChanges(
                            info.rows, info.size_bytes, info.min_ts, info.max_ts, self._times_of(state, info)
                        )

    def _times_of(self, state: PartitionState, info: ObjectInfo) -> Callable[[], Ints]:
        handles = None if self.handles.covers(_bounds(info)) else self.handles
        if handles is None and info.min_ts == info.max_ts:
            return lambda: np.full(info.rows, info.min_ts, np.int64)

        def times() -> Ints:
            if info.id not in self._read:
                self._read[info.id] = _read_times(state, info, self.from_ts, handles)
            return self._read[info.id]

        return times

    @property
    def _unflushed_times(self) -> list[Ints]:
        """The commit timestamps of unflushed changes, as the captures first answered.

        No lock is held while they are asked. The lock of a cached_property would be shared by all tables.
        """
        if not self._asked:
            self._asked.append(self._ask_unflushed_times())
        return self._asked[0]

    def _ask_unflushed_times(self) -> list[Ints]:
        found: list[Ints] = []
        for state in self.states:
            if state.rows is not None and self.to_ts > state.flushed_ts:
                wanted = ReadRange(
                    table_id=state.table_id,
                    from_ts=max(self.from_ts, state.flushed_ts),
                    to_ts=self.to_ts,
                    handle_from=self.handles.low,
                    handle_to=self.handles.high,
                )
                found += _ask_times(state.rows, wanted)
        return found

    def _row_bytes(self) -> float:
        infos = [info for state in self.states for info in state.manifest.objects.values() if info.rows]
        rows = sum(info.rows for info in infos)
        return sum(info.size_bytes for info in infos) / rows if rows else _ROW_BYTES


def _bounds(info: ObjectInfo) -> ColumnBounds:
    return ColumnBounds(info.key_min, info.key_max)


def _share_within(counted: CountedChanges, from_ts: int, to_ts: int) -> float:
    """Return which share of some changes is in (from_ts, to_ts].

    Commits may be of any size, so the commit timestamps are counted.
    """
    if from_ts < counted.min_ts and counted.max_ts <= to_ts:
        return 1.0
    times = counted.times()
    return float(np.count_nonzero((times > from_ts) & (times <= to_ts))) / max(1, counted.rows)


def _read_times(state: PartitionState, info: ObjectInfo, from_ts: int, handles: HandleRange | None) -> Ints:
    """Read the commit timestamps of the changes in an object, or of those in a range of handles."""
    with state.reading(from_ts), open_object(state.storage, state.table_id, info) as file:
        if handles is None:
            times: Ints = file.read(columns=[COMMIT_TS]).column(0).to_numpy()
            return times
        batches = file.iter_batches(columns=[COMMIT_TS, HANDLE])
        kept = [select_handles(batch, handles.low, handles.high).column(COMMIT_TS) for batch in batches]
        return np.concatenate([np.empty(0, np.int64), *(times.to_numpy() for times in kept)])


def _ask_times(reader: RangeReader, wanted: ReadRange) -> list[Ints]:
    try:
        return _times_of_part(reader, wanted)
    except Invalid:  # the schema changes within the range
        return [times for part in reader.parts(wanted) for times in _times_of_part(reader, part.wanted)]


def _times_of_part(reader: RangeReader, wanted: ReadRange) -> list[Ints]:
    return [
        batch.column(0).to_numpy()
        for side in SIDES
        for batch in reader.read(replace(wanted, side=side, columns=(COMMIT_TS,)))[1]
    ]


class HandleGroup(NamedTuple):
    """Rows that lie together in an object, by their lowest handle."""

    low: bytes
    rows: int
    nbytes: float


@dataclass(frozen=True, slots=True)
class _FoundObject:
    """A data object, and the partition that has it."""

    state: PartitionState
    info: ObjectInfo


def admitted_handle(states: Sequence[PartitionState], ts: int, low: bytes, limit: ReadLimit) -> bytes | None:
    """Return the handle before which the snapshot at `ts`, from `low` on, has about as many rows as allowed.

    None when the limit allows all of them. Rows are counted by objects: deleted rows count, and a row group
    counts where it begins. Only the footers of objects that begin before the end are read. Raises
    StaleRead when the history at `ts` is gone, Unavailable when storage does not answer.
    """
    if not limit:
        return None
    objects = sorted(
        (
            _FoundObject(state, info)
            for state in states
            for info in state.visible_objects("data", min(ts, state.flushed_ts))
            if info.key_max >= low
        ),
        key=lambda found: found.info.key_min,
    )
    groups: list[HandleGroup] = []
    for found in objects:
        cut = cut_groups(groups, limit)
        if cut is not None and cut <= found.info.key_min:
            return cut
        groups.extend(_groups(found, ts, low))
    return cut_groups(groups, limit)


def cut_groups(groups: Iterable[HandleGroup], limit: ReadLimit) -> bytes | None:
    """Return the lowest handle of the first group that exceeds the limit, but not that of the first. Pure."""
    rows, nbytes, lowest = 0, 0.0, None
    for group in sorted(groups):
        rows, nbytes = rows + group.rows, nbytes + group.nbytes
        if lowest is not None and group.low > lowest and not limit.allows(rows, nbytes):
            return group.low
        lowest = group.low if lowest is None else lowest
    return None


def _groups(found: _FoundObject, ts: int, low: bytes) -> Iterator[HandleGroup]:
    state, info = found.state, found.info
    row_bytes = info.size_bytes / max(1, info.rows)
    with state.reading(ts), open_object(state.storage, state.table_id, info) as file:
        bounds = column_bounds(file.metadata, HANDLE, missing=ColumnBounds(info.key_min, info.key_max))
        for number, handles in enumerate(bounds):
            if handles is not None and handles.high >= low:
                rows = file.metadata.row_group(number).num_rows
                yield HandleGroup(max(handles.low, low), rows, rows * row_bytes)
