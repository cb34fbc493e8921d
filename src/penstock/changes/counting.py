"""How many changes a range has, as manifests say it; where that is not enough, as their times do."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from penstock.changes.collect import SIDES
from penstock.changes.limits import CountedChanges, Ints, ReadLimit, admitted_ts
from penstock.errors import Invalid
from penstock.eventstore.manifest import ObjectInfo
from penstock.eventstore.objects.objectfiles import ColumnBounds, opened
from penstock.eventstore.read.blocks import within_handles
from penstock.eventstore.read.object_scan import HandleRange
from penstock.eventstore.read.partition import PartitionState
from penstock.eventstore.read.ranges import RangeReader, ReadRange
from penstock.eventstore.sides import COMMIT_TS, HANDLE

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

    def any(self) -> bool:
        """Whether there is a change at all."""
        if any(True for _ in self._flushed(self.to_ts)):
            return True
        return any(len(times) for times in self._unflushed_times)

    def admitted_ts(self, limit: ReadLimit) -> int:
        """The end of the longest range from `from_ts` on that the limit allows; see `admission`."""
        if not limit:
            return self.to_ts
        flushed_ts = min(self.to_ts, *(state.flushed_ts for state in self.states))
        if flushed_ts > self.from_ts:
            end = admitted_ts(self._flushed(flushed_ts), self.from_ts, flushed_ts, limit)
            if end < flushed_ts:
                return end
        held = [*self._flushed(self.to_ts)]
        row_bytes = self._row_bytes()
        held += [CountedChanges.counted(times, row_bytes) for times in self._unflushed_times if len(times)]
        return admitted_ts(held, self.from_ts, self.to_ts, limit)

    def weigh(self, upto_ts: int) -> tuple[int, int]:
        """About how many changes there are up to a timestamp of the range, and how many bytes.

        Objects count as a whole, whatever handles are wanted, but for those that go beyond the range.
        """
        shares = [(each, _share(each, self.from_ts, upto_ts)) for each in self._flushed(upto_ts)]
        unflushed = sum(int(np.count_nonzero(times <= upto_ts)) for times in self._unflushed_times)
        rows = sum(each.rows * share for each, share in shares)
        nbytes = sum(each.nbytes * share for each, share in shares)
        return round(rows) + unflushed, round(nbytes + unflushed * self._row_bytes())

    def _flushed(self, upto_ts: int) -> Iterator[CountedChanges]:
        for state in self.states:
            for side in SIDES:
                for info in state.changes(side, self.from_ts, min(upto_ts, state.flushed_ts)):
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

    @cached_property
    def _unflushed_times(self) -> list[Ints]:
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


def _share(held: CountedChanges, from_ts: int, to_ts: int) -> float:
    """How much of some changes is in (from_ts, to_ts]: commits may be of any size, so their times count."""
    if from_ts < held.min_ts and held.max_ts <= to_ts:
        return 1.0
    times = held.times()
    return float(np.count_nonzero((times > from_ts) & (times <= to_ts))) / max(1, held.rows)


def _read_times(state: PartitionState, info: ObjectInfo, from_ts: int, handles: HandleRange | None) -> Ints:
    """When the changes in an object were committed; of the handles that are wanted, if not all are."""
    with state.reading(from_ts), opened(state.storage, state.table_id, info) as file:
        if handles is None:
            times: Ints = file.read(columns=[COMMIT_TS]).column(0).to_numpy()
            return times
        batches = file.iter_batches(columns=[COMMIT_TS, HANDLE])
        kept = [within_handles(each, handles.low, handles.high).column(COMMIT_TS) for each in batches]
        return np.concatenate([np.empty(0, np.int64), *(each.to_numpy() for each in kept)])


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
