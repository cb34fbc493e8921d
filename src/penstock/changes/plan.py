"""The changes of a range as parts of about equal size that are read independently, wherever that is.

The first half divides a range by what statistics say, and is pure; the second makes parts of that.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Unpack

import numpy as np
import numpy.typing as npt

from penstock.changes.batches import ChangesHandle
from penstock.changes.collect import (
    SIDES,
    ChangesRange,
    collect,
    fix_range,
    schema_parts,
    snapshot_columns,
    to_batches,
)
from penstock.changes.options import ChangeOptions, ChangeOptionsArgs, ReadColumns, check_columns
from penstock.errors import Invalid
from penstock.eventstore.manifest import ObjectInfo
from penstock.eventstore.objects.object_file import ColumnBounds, column_bounds, open_object
from penstock.eventstore.paths import Side
from penstock.eventstore.read.object_scan import HandleRange
from penstock.eventstore.read.partition import PartitionState, TableView
from penstock.eventstore.read.pruning import WantedRows
from penstock.eventstore.read.snapshot import SnapshotPartition, plan_snapshot
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import COMMIT_TS, HANDLE

_NEAR = 1 / 16  # a split may be larger or smaller than an even one by this part of it
_ABOUT = 1 / 4  # an even split may exceed `rows_max` by this part of it: more splits would be less even


@dataclass(frozen=True, slots=True)
class Weight:
    """Rows that were committed from `min_ts` to `max_ts`, evenly as far as is known."""

    rows: int
    min_ts: int
    max_ts: int


@dataclass(frozen=True, slots=True)
class Split:
    """The changes in (from_ts, to_ts], of about `rows` rows.

    With `large_ts` all rows were committed at that timestamp, and may be more than were asked for.
    """

    from_ts: int
    to_ts: int
    rows: int
    large_ts: int | None = None


def split_by_time(weights: Iterable[Weight], from_ts: int, to_ts: int, rows_max: int) -> list[Split]:
    """Divide (from_ts, to_ts] into as few even splits of at most about `rows_max` rows as possible.

    Together they cover the range. Only a single timestamp may have more rows, as a split of its own. Splits
    end where objects end if that is about even, because an object in two splits is read twice.
    """
    runs = list(_divide_at_objects(weights, from_ts, to_ts))
    builder = _SplitBuilder(from_ts, rows_max, left=sum(rows for _, _, rows in runs))
    for run in runs:
        builder.add(*run)
    return builder.finish(to_ts)


class _SplitBuilder:
    """Fills splits one after the other."""

    def __init__(self, from_ts: int, rows_max: int, left: float) -> None:
        self._rows_max = rows_max
        self._left = left  # rows that no finished split has
        self._even = self._even_rows()
        self._done: list[Split] = []
        self._begin, self._rows = from_ts, 0.0

    def add(self, start: int, end: int, rows: float) -> None:
        """Add rows that were committed in (start, end], evenly."""
        per_ts = rows / (end - start)
        if per_ts > self._rows_max:
            for ts in range(start + 1, end + 1):
                self._add_large(ts, per_ts)
            return
        while self._rows + rows > self._even * (1 + _NEAR):
            fitting = round((self._even - self._rows) / per_ts)  # timestamps
            if self._rows and (fitting < 1 or self._rows >= self._even * (1 - _NEAR)):
                self._end_split(start)
                continue
            fitting = max(1, fitting)
            if fitting >= end - start:
                break
            self._rows += per_ts * fitting
            start += fitting
            rows -= per_ts * fitting
            self._end_split(start)
        self._rows += rows

    def finish(self, to_ts: int) -> list[Split]:
        """Return all splits; the last one has the rest of the range."""
        if self._rows or not self._done:
            self._end_split(to_ts)
        return [*self._done[:-1], replace(self._done[-1], to_ts=to_ts)]

    def _add_large(self, ts: int, rows: float) -> None:
        if self._rows:
            self._end_split(ts - 1)
        self._rows = rows
        self._end_split(ts, large_ts=ts)

    def _end_split(self, end: int, large_ts: int | None = None) -> None:
        self._done.append(Split(self._begin, end, round(self._rows), large_ts))
        self._left -= self._rows
        self._even = self._even_rows()
        self._begin, self._rows = end, 0.0

    def _even_rows(self) -> float:
        even = self._left / max(1, ceil(self._left / self._rows_max - _ABOUT))
        return max(1.0, even)  # a fraction of a row, which rounding may leave, needs no split


def _divide_at_objects(
    weights: Iterable[Weight], from_ts: int, to_ts: int
) -> Iterator[tuple[int, int, float]]:
    """Divide a range wherever an object begins or ends; yield (start, end, rows) of the parts with rows."""
    inside = [weight for weight in weights if weight.max_ts > from_ts and weight.min_ts <= to_ts]
    ends = {end for weight in inside for end in (weight.min_ts - 1, weight.max_ts) if from_ts < end < to_ts}
    points = sorted({from_ts, to_ts, *ends})
    counts = _count_rows(inside, np.array(points, np.int64))
    for (start, end), rows in zip(pairwise(points), counts, strict=True):
        if rows:
            yield start, end, float(rows)


def _count_rows(weights: Iterable[Weight], points: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Count the rows between each point and the next."""
    lengths = np.diff(points)
    rows = np.zeros(len(lengths))
    for weight in weights:
        low, high = np.searchsorted(points, np.array([weight.min_ts - 1, weight.max_ts], np.int64))
        covered = slice(low, high)
        rows[covered] += weight.rows * (lengths[covered] / (weight.max_ts - weight.min_ts + 1))
    return rows


def split_by_handle(groups: Iterable[tuple[bytes, int]], rows_max: int) -> list[bytes]:
    """Return the handles that divide groups of rows (lowest handle, rows) into about `rows_max` rows each."""
    split_points: list[bytes] = []
    begin: bytes | None = None
    filled = 0
    for handle, rows in sorted(groups):
        if begin is None:
            begin = handle
        elif filled + rows > rows_max and handle > begin:
            split_points.append(handle)
            begin, filled = handle, 0
        filled += rows
    return split_points


def handle_ranges(split_points: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Return the handle ranges between split points, which together are all handles."""
    return list(zip([b"", *split_points], [*split_points, b""], strict=True))


PARTITION_ROWS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class ChangesPartition:
    """One part: the changes in (from_ts, to_ts] of rows in [handle_from, handle_to) (b"": no bound).

    Can be pickled when the table can. The parts of a plan, one after the other, are the changes of the range,
    but each is coalesced by itself, and its hints and `complete_ts` hold for its own rows. `rows` estimates
    the rows of the part; those that are not flushed yet do not count.
    """

    table: TableView
    from_ts: int
    to_ts: int
    options: ChangeOptions
    rows: int
    handle_from: bytes = b""
    handle_to: bytes = b""
    snapshot: SnapshotPartition | None = None  # with from_ts = 0
    schema: SchemaVersion | None = None  # of the snapshot
    sides: tuple[Side, ...] = SIDES
    wanted_rows: WantedRows | None = None

    def collect(self) -> ChangesHandle:
        """Read the part.

        Raises Unavailable when the capture has given up rows of the part since it was planned: plan again.
        Raises StaleRead when history of the part is gone.
        """
        if self.snapshot is not None and self.schema is not None:
            rows = self.snapshot.read(impossible_dates=True)
            batches = to_batches(rows, self.schema, self.options, complete_ts=self.to_ts)
        else:
            wanted = ChangesRange(
                self.from_ts, self.to_ts, self.handle_from, self.handle_to, self.sides, self.wanted_rows
            )
            # The plan has checked the columns.
            batches = collect(self.table, wanted, self.options, checked=True)
        return ChangesHandle(batches, self.options)

    def within(self, low: bytes, high: bytes) -> "ChangesPartition | None":
        """Return the part whose rows are in [low, high) (b"": no bound); None when it cannot have any."""
        if not low and not high:
            return self
        first = max(self.handle_from, low)
        end = min((bound for bound in (self.handle_to, high) if bound), default=b"")
        if end and end <= first:
            return None
        inside = replace(self, handle_from=first, handle_to=end)
        if self.snapshot is None:
            return inside
        handles = HandleRange(low=first, high=end)
        tasks = tuple(task for task in self.snapshot.tasks if handles.meets(task.handles))
        if not tasks and not self.snapshot.adds_unflushed:
            return None
        return replace(inside, snapshot=replace(self.snapshot, handles=handles, tasks=tasks))

    def only(
        self, first_ts: int, last_ts: int, sides: tuple[Side, ...], wanted: WantedRows
    ) -> "ChangesPartition | None":
        """Return the part without changes that nobody wants; None when it cannot have any that are wanted.

        Wanted are changes from `first_ts` to `last_ts`, of some sides, whose rows are among `wanted`. Others
        may still come. The part must not coalesce.
        """
        if self.snapshot is not None:
            known = replace(self, snapshot=replace(self.snapshot, wanted=wanted))
            return known if "data" in sides else None
        from_ts, to_ts = max(self.from_ts, first_ts - 1), min(self.to_ts, last_ts)
        if from_ts >= to_ts or not sides:
            return None
        return replace(self, from_ts=from_ts, to_ts=to_ts, sides=sides, wanted_rows=wanted)


def plan_changes(
    table: TableView,
    from_ts: int,
    to_ts: int,
    *,
    partition_rows: int = PARTITION_ROWS,
    partition_bytes: int | None = None,
    divide_commits: bool = True,
    **options: Unpack[ChangeOptionsArgs],
) -> list[ChangesPartition]:
    """Divide the changes that `collect_changes` gives into parts of about `partition_rows` rows, by time.

    Parts have fewer rows when these would take more than about `partition_bytes` in objects.
    Only a single commit-ts that has more rows is divided by handles, if `divide_commits` allows it. Changes
    that are not flushed yet have parts of their own.

    Raises Invalid when the timestamps are no range or a column does not exist, Unavailable when the range is
    not complete yet, StaleRead when history is gone or rows came or went without a change.
    """
    if partition_rows < 1:
        raise Invalid(f"partition_rows is {partition_rows}; a partition needs at least one row")
    chosen = ChangeOptions(**options)
    table, states, _ = fix_range(table, from_ts, to_ts)
    if partition_bytes is not None:
        partition_rows = min(partition_rows, _rows_within(states, from_ts, to_ts, partition_bytes))
    if not from_ts:
        return _plan_snapshot(table, states, to_ts, partition_rows, chosen)
    return _TailPlan(table, states, from_ts, to_ts, partition_rows, chosen, divide_commits).parts()


def _rows_within(states: Sequence[PartitionState], from_ts: int, to_ts: int, nbytes: int) -> int:
    """Return how many rows of the range have about `nbytes` in objects."""
    infos = [
        info
        for state in states
        for side in SIDES
        for info in (
            state.change_objects(side, from_ts, min(to_ts, state.flushed_ts))
            if from_ts
            else state.visible_objects(side, min(to_ts, state.flushed_ts))
        )
    ]
    stored = sum(info.size_bytes for info in infos)
    return max(1, nbytes * sum(info.rows for info in infos) // stored) if stored else PARTITION_ROWS


def _plan_snapshot(
    table: TableView, states: Sequence[PartitionState], ts: int, partition_rows: int, options: ChangeOptions
) -> list[ChangesPartition]:
    schema = states[0].schema_at(ts)
    rows = sum(
        info.rows for state in states for info in state.visible_objects("data", min(ts, state.flushed_ts))
    )
    parts = plan_snapshot(
        table,
        ts,
        columns=snapshot_columns(schema, options),
        batch_rows=2 * options.batch_rows,
        partitions=max(1, -(-rows // partition_rows)),
    )
    return [
        ChangesPartition(
            table=table,
            from_ts=0,
            to_ts=ts,
            options=options,
            rows=part.rows,
            snapshot=part,
            schema=schema,
        )
        for part in parts
    ]


@dataclass(frozen=True, slots=True)
class _TailPlan:
    """The parts of a range of changes, of tables whose range is fixed."""

    table: TableView
    states: Sequence[PartitionState]
    from_ts: int
    to_ts: int
    partition_rows: int
    options: ChangeOptions
    divide_commits: bool

    def parts(self) -> list[ChangesPartition]:
        tables = [schema.table for _, _, schema in schema_parts(self.states, self.from_ts, self.to_ts)]
        check_columns(tables, self.options)
        # When a key moves from one row to another, both rows must be in the same part.
        by_handle = self.divide_commits and not any(
            ReadColumns.of(table, self.options).keys_move for table in tables
        )
        return [part for split in self._splits() for part in self._divide(split, by_handle=by_handle)]

    def _splits(self) -> list[Split]:
        """Divide the flushed changes, then the others, whose rows nobody has counted."""
        flushed_ts = min(self.to_ts, *(state.flushed_ts for state in self.states))
        weights = [weight for state in self.states for weight in self._weights(state)]
        bounds = dict.fromkeys((self.from_ts, max(self.from_ts, flushed_ts), self.to_ts))
        return [
            split
            for from_ts, to_ts in pairwise(bounds)
            for split in split_by_time(weights, from_ts, to_ts, self.partition_rows)
        ]

    def _weights(self, state: PartitionState) -> Iterator[Weight]:
        for side in SIDES:
            for info in state.change_objects(side, self.from_ts, min(self.to_ts, state.flushed_ts)):
                if info.rows > self.partition_rows and info.min_ts < info.max_ts:
                    for group in self._row_groups(state, info):
                        yield Weight(group.rows, group.min_ts, group.max_ts)
                else:
                    yield Weight(info.rows, info.min_ts, info.max_ts)

    def _row_groups(self, state: PartitionState, info: ObjectInfo) -> list["_RowGroup"]:
        with state.reading(self.from_ts), open_object(state.storage, state.table_id, info) as file:
            whole = ColumnBounds(info.key_min, info.key_max)
            handles = column_bounds(file.metadata, HANDLE, missing=whole)
            bounds = zip(column_bounds(file.metadata, COMMIT_TS), handles, strict=True)
            return [
                _RowGroup(file.metadata.row_group(number).num_rows, commit.low, commit.high, handle.low)
                for number, (commit, handle) in enumerate(bounds)
                if commit is not None and handle is not None
            ]

    def _divide(self, split: Split, *, by_handle: bool) -> list[ChangesPartition]:
        split_points: list[bytes] = []
        if split.large_ts is not None and by_handle:
            split_points = self._split_points(split.large_ts)
        parts = handle_ranges(split_points)
        return [
            ChangesPartition(
                table=self.table,
                from_ts=split.from_ts,
                to_ts=split.to_ts,
                options=self.options,
                rows=split.rows // len(parts),
                handle_from=low,
                handle_to=high,
            )
            for low, high in parts
        ]

    def _split_points(self, ts: int) -> list[bytes]:
        """Choose where to divide a timestamp: by its data, which is ordered by handle, if it has any."""
        for side in SIDES:
            groups = [
                group
                for state in self.states
                for info in state.change_objects(side, ts - 1, ts)
                for group in self._row_groups(state, info)
                if group.min_ts <= ts <= group.max_ts
            ]
            if groups:
                return split_by_handle(((group.low, group.rows) for group in groups), self.partition_rows)
        return []


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """A row group of an object: its rows, its commit timestamps and its lowest handle."""

    rows: int
    min_ts: int
    max_ts: int
    low: bytes
