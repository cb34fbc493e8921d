"""How many changes a range has, as manifests say it; where that is not enough, as their times do."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from penstock.changes.admission import Held, Ints, Limit, admitted_ts
from penstock.changes.collecting import SIDES
from penstock.eventstore.manifest import ObjectInfo
from penstock.eventstore.objectfiles import opened
from penstock.eventstore.partition import PartitionState
from penstock.eventstore.ranges import RangeReader, ReadRange
from penstock.eventstore.sides import COMMIT_TS

_ROW_BYTES = 64.0  # of a row, where no object says it


@dataclass(frozen=True, slots=True)
class ChangeCounts:
    """The changes in (from_ts, to_ts] of a table's partitions, for which `open_range` gives the states.

    An update counts twice, for the row before and the row after. Bytes are those of objects; changes that are
    not flushed weigh what the others do. Every method raises what reading changes raises.
    """

    states: Sequence[PartitionState]
    from_ts: int
    to_ts: int

    def any(self) -> bool:
        """Whether there is a change at all."""
        if any(True for _ in self._flushed(self.to_ts)):
            return True
        return any(len(times) for times in self._unflushed_times())

    def admitted_ts(self, limit: Limit) -> int:
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
        held += [Held.counted(times, row_bytes) for times in self._unflushed_times() if len(times)]
        return admitted_ts(held, self.from_ts, self.to_ts, limit)

    def _flushed(self, upto_ts: int) -> Iterator[Held]:
        for state in self.states:
            for side in SIDES:
                for info in state.changes(side, self.from_ts, min(upto_ts, state.flushed_ts)):
                    yield Held(
                        info.rows, info.size_bytes, info.min_ts, info.max_ts, self._times_of(state, info)
                    )

    def _times_of(self, state: PartitionState, info: ObjectInfo) -> Callable[[], Ints]:
        if info.min_ts == info.max_ts:
            return lambda: np.full(info.rows, info.min_ts, np.int64)
        return partial(_read_times, state, info, self.from_ts)

    def _unflushed_times(self) -> Iterator[Ints]:
        for state in self.states:
            if state.rows is not None and self.to_ts > state.flushed_ts:
                from_ts = max(self.from_ts, state.flushed_ts)
                wanted = ReadRange(table_id=state.table_id, from_ts=from_ts, to_ts=self.to_ts)
                yield from _ask_times(state.rows, wanted)

    def _row_bytes(self) -> float:
        infos = [info for state in self.states for info in state.manifest.objects.values() if info.rows]
        rows = sum(info.rows for info in infos)
        return sum(info.size_bytes for info in infos) / rows if rows else _ROW_BYTES


def _read_times(state: PartitionState, info: ObjectInfo, from_ts: int) -> Ints:
    with state.reading(from_ts), opened(state.storage, state.table_id, info) as file:
        times: Ints = file.read(columns=[COMMIT_TS]).column(0).to_numpy()
        return times


def _ask_times(reader: RangeReader, wanted: ReadRange) -> Iterator[Ints]:
    for part in reader.parts(wanted):
        for side in SIDES:
            for batch in reader.read(replace(part.wanted, side=side, columns=(COMMIT_TS,)))[1]:
                yield batch.column(0).to_numpy()
