"""How far a reader may go that takes a limited number of changes at a time, and no half commits. Pure.

How many changes a range has, as manifests say it; where that is not enough, as their times do.

Where a reader that takes a limited part of a snapshot at a time goes on: at a handle.
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
    """How many changes, and how many bytes of them, are taken at a time; None: as many as there are."""

    rows: int | None = None
    nbytes: int | None = None

    def __bool__(self) -> bool:
        return self.rows is not None or self.nbytes is not None

    def allows(self, rows: float, nbytes: float) -> bool:
        """Whether so much may be taken at once."""
        return (self.rows is None or rows <= self.rows) and (self.nbytes is None or nbytes <= self.nbytes)


@dataclass(frozen=True, slots=True)
class CountedChanges:
    """Changes that were committed from `min_ts` to `max_ts`. `times` gives when, at the price of a read."""

    rows: int
    nbytes: int
    min_ts: int
    max_ts: int
    times: Callable[[], Ints]

    @classmethod
    def from_times(cls, times: Ints, row_bytes: float) -> "CountedChanges":
        """Changes of which the times are known already; there is at least one."""
        nbytes = round(len(times) * row_bytes)
        return cls(len(times), nbytes, int(times.min()), int(times.max()), lambda: times)


def last_admitted_ts(held: Iterable[CountedChanges], from_ts: int, to_ts: int, limit: ReadLimit) -> int:
    """The end of the longest range (from_ts, end] within `to_ts` and the limit.

    It has every change of each commit in it, and at least one commit if there is any: then it may be more
    than the limit allows. Only times that the decision depends on are asked for.
    """
    inside = sorted(
        (counted for counted in held if _meets(counted, from_ts, to_ts)), key=lambda counted: counted.min_ts
    )
    sure = _prefix(inside, limit)
    if sure == len(inside):
        return to_ts
    safe_ts = max(from_ts, inside[sure].min_ts - 1)  # up to here it is enough even if every change counts
    whole = [counted for counted in inside[:sure] if counted.min_ts > from_ts and counted.max_ts <= safe_ts]
    tally = _Tally(limit, sum(counted.rows for counted in whole), sum(counted.nbytes for counted in whole))
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


def _meets(held: CountedChanges, from_ts: int, to_ts: int) -> bool:
    return held.max_ts > from_ts and held.min_ts <= to_ts


def _prefix(held: Sequence[CountedChanges], limit: ReadLimit) -> int:
    """How many of them, one after the other, are allowed together."""
    rows = accumulate(counted.rows for counted in held)
    nbytes = accumulate(counted.nbytes for counted in held)
    fits = [limit.allows(*so_far) for so_far in zip(rows, nbytes, strict=True)]
    return fits.index(False) if False in fits else len(fits)


class _Tally:
    """Changes by the time of their commit, beside some that come before all that is decided."""

    def __init__(self, limit: ReadLimit, rows: int, nbytes: int) -> None:
        self._limit = limit
        self._rows = rows
        self._nbytes = nbytes
        self._times: list[Ints] = []
        self._weights: list[npt.NDArray[np.float64]] = []

    def add(self, held: CountedChanges, from_ts: int) -> None:
        times = held.times()
        times = times[times > from_ts]
        self._times.append(times)
        self._weights.append(np.full(len(times), held.nbytes / max(1, held.rows)))

    def end(self, known_ts: int) -> int | None:
        """Where to cut, when that is certain with everything up to `known_ts` added; else None."""
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
        alone = first == 0 and not self._rows
        return int(commits[first]) - (0 if alone else 1)


_ROW_BYTES = 64.0  # of a row, where no object says it


@dataclass(frozen=True)
class ChangeCounts:
    """The changes in (from_ts, to_ts] of a table's partitions, for which `open_range` gives the states.

    An update counts twice, for the row before and the row after. Bytes are those of objects; changes that are
    not flushed weigh what the others do. With `handles` only rows there count, as far as the objects tell
    without being read. Every method raises what reading changes raises.
    """

    states: Sequence[PartitionState]
    from_ts: int
    to_ts: int
    handles: HandleRange = field(default_factory=HandleRange)
    _read: dict[str, Ints] = field(default_factory=dict, repr=False)  # the times in objects, by their ids
    _asked: list[list[Ints]] = field(default_factory=list, init=False, repr=False)  # see _unflushed_times

    def has_changes(self) -> bool:
        """Whether there is a change at all."""
        if any(True for _ in self._flushed(self.to_ts)):
            return True
        return any(len(times) for times in self._unflushed_times)

    def last_admitted_ts(self, limit: ReadLimit) -> int:
        """The end of the longest range from `from_ts` on that the limit allows; see `admission`."""
        if not limit:
            return self.to_ts
        flushed_ts = min(self.to_ts, *(state.flushed_ts for state in self.states))
        if flushed_ts > self.from_ts:
            end = last_admitted_ts(self._flushed(flushed_ts), self.from_ts, flushed_ts, limit)
            if end < flushed_ts:
                return end
        held = [*self._flushed(self.to_ts)]
        row_bytes = self._row_bytes()
        held += [CountedChanges.from_times(times, row_bytes) for times in self._unflushed_times if len(times)]
        return last_admitted_ts(held, self.from_ts, self.to_ts, limit)

    def weigh(self, upto_ts: int) -> tuple[int, int]:
        """About how many changes there are up to a timestamp of the range, and how many bytes.

        Objects count as a whole, whatever handles are wanted, but for those that go beyond the range.
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
        """The first answer of the captures, kept.

        No lock is held while they are asked; that of a cached_property is the same for all tables.
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


def _share_within(held: CountedChanges, from_ts: int, to_ts: int) -> float:
    """How much of some changes is in (from_ts, to_ts]: commits may be of any size, so their times count."""
    if from_ts < held.min_ts and held.max_ts <= to_ts:
        return 1.0
    times = held.times()
    return float(np.count_nonzero((times > from_ts) & (times <= to_ts))) / max(1, held.rows)


def _read_times(state: PartitionState, info: ObjectInfo, from_ts: int, handles: HandleRange | None) -> Ints:
    """When the changes in an object were committed; of the handles that are wanted, if not all are."""
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
    """Rows that are together in an object, by their lowest handle."""

    low: bytes
    rows: int
    nbytes: float


@dataclass(frozen=True, slots=True)
class _Found:
    state: PartitionState
    info: ObjectInfo


def admitted_handle(states: Sequence[PartitionState], ts: int, low: bytes, limit: ReadLimit) -> bytes | None:
    """The handle before which about as many rows of the snapshot at `ts`, from `low` on, are as are allowed.

    None when that is all of them. Counts come from objects, whose deleted rows count, and whose row groups
    count where they begin. Only the footers of objects that begin before the end are read. Raises as
    reading the snapshot does.
    """
    if not limit:
        return None
    objects = sorted(
        (
            _Found(state, info)
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
    """Where the first group begins that would be too much and is not among the lowest. Pure."""
    rows, nbytes, lowest = 0, 0.0, None
    for group in sorted(groups):
        rows, nbytes = rows + group.rows, nbytes + group.nbytes
        if lowest is not None and group.low > lowest and not limit.allows(rows, nbytes):
            return group.low
        lowest = group.low if lowest is None else lowest
    return None


def _groups(found: _Found, ts: int, low: bytes) -> Iterator[HandleGroup]:
    state, info = found.state, found.info
    row_bytes = info.size_bytes / max(1, info.rows)
    with state.reading(ts), open_object(state.storage, state.table_id, info) as file:
        bounds = column_bounds(file.metadata, HANDLE, missing=ColumnBounds(info.key_min, info.key_max))
        for number, handles in enumerate(bounds):
            if handles is not None and handles.high >= low:
                rows = file.metadata.row_group(number).num_rows
                yield HandleGroup(max(handles.low, low), rows, rows * row_bytes)
