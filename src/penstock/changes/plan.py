"""The changes of a range as parts that are read independently, wherever that is.

Dividing a range into shares of about as many rows each, by what statistics say. Pure.
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
    to_batches,
    collect,
    fix_range,
    schema_parts,
    snapshot_columns,
)
from penstock.changes.options import ChangeOptions, ChangeOptionsArgs, ReadColumns, check_columns
from penstock.errors import Invalid
from penstock.eventstore.manifest import ObjectInfo
from penstock.eventstore.objects.object_file import ColumnBounds, column_bounds, open_object
from penstock.eventstore.read.object_scan import HandleRange
from penstock.eventstore.read.partition import PartitionState, TableView
from penstock.eventstore.read.snapshot import SnapshotPartition, plan_snapshot
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import COMMIT_TS, HANDLE

_NEAR = 1 / 16  # the part of an even share that one may be larger or smaller by
_ABOUT = 1 / 4  # the part of `rows_max` that an even share may be larger by: more shares would be less even


@dataclass(frozen=True, slots=True)
class Weight:
    """So many rows that were committed from `min_ts` to `max_ts`, evenly as far as is known."""

    rows: int
    min_ts: int
    max_ts: int


@dataclass(frozen=True, slots=True)
class Split:
    """(from_ts, to_ts], with about so many rows; more than are wanted only if they are all at `large_ts`."""

    from_ts: int
    to_ts: int
    rows: int
    large_ts: int | None = None


def split_by_time(weights: Iterable[Weight], from_ts: int, to_ts: int, rows_max: int) -> list[Split]:
    """Divide (from_ts, to_ts] into as few even shares of at most about `rows_max` rows as may be.

    Together they are all of it. Only a single timestamp may have more, as a share of its own. Shares end
    where objects do if that is about even: an object in two of them is read twice.
    """
    pieces = list(_pieces(weights, from_ts, to_ts))
    filling = _Filling(from_ts, rows_max, left=sum(held for _, _, held in pieces))
    for piece in pieces:
        filling.add(*piece)
    return filling.splits(to_ts)


class _Filling:
    """Shares in the making."""

    def __init__(self, from_ts: int, rows_max: int, left: float) -> None:
        self._rows_max = rows_max
        self._left = left  # rows that no finished share has
        self._even = self._even_rows()
        self._done: list[Split] = []
        self._begin, self._rows = from_ts, 0.0

    def add(self, start: int, end: int, held: float) -> None:
        """Rows that were committed in (start, end], evenly."""
        at_once = held / (end - start)
        if at_once > self._rows_max:
            for ts in range(start + 1, end + 1):
                self._add_large(ts, at_once)
            return
        while self._rows + held > self._even * (1 + _NEAR):
            fitting = round((self._even - self._rows) / at_once)  # timestamps
            if self._rows and (fitting < 1 or self._rows >= self._even * (1 - _NEAR)):
                self._finish(start)
                continue
            fitting = max(1, fitting)
            if fitting >= end - start:
                break
            self._rows += at_once * fitting
            start += fitting
            held -= at_once * fitting
            self._finish(start)
        self._rows += held

    def splits(self, to_ts: int) -> list[Split]:
        """All of them; the last has what is left."""
        if self._rows or not self._done:
            self._finish(to_ts)
        return [*self._done[:-1], replace(self._done[-1], to_ts=to_ts)]

    def _add_large(self, ts: int, held: float) -> None:
        if self._rows:
            self._finish(ts - 1)
        self._rows = held
        self._finish(ts, large_ts=ts)

    def _finish(self, end: int, large_ts: int | None = None) -> None:
        self._done.append(Split(self._begin, end, round(self._rows), large_ts))
        self._left -= self._rows
        self._even = self._even_rows()
        self._begin, self._rows = end, 0.0

    def _even_rows(self) -> float:
        even = self._left / max(1, ceil(self._left / self._rows_max - _ABOUT))
        return max(1.0, even)  # fractions of a row, and what rounding leaves of them, need no share


def _pieces(weights: Iterable[Weight], from_ts: int, to_ts: int) -> Iterator[tuple[int, int, float]]:
    """The parts of a range that have rows, with how many: from where an object begins or ends to the next."""
    inside = [weight for weight in weights if weight.max_ts > from_ts and weight.min_ts <= to_ts]
    ends = {end for weight in inside for end in (weight.min_ts - 1, weight.max_ts) if from_ts < end < to_ts}
    points = sorted({from_ts, to_ts, *ends})
    for (start, end), held in zip(pairwise(points), _rows(inside, np.array(points, np.int64)), strict=True):
        if held:
            yield start, end, float(held)


def _rows(weights: Iterable[Weight], points: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """How many rows there are between each point and the next."""
    lengths = np.diff(points)
    rows = np.zeros(len(lengths))
    for weight in weights:
        low, high = np.searchsorted(points, np.array([weight.min_ts - 1, weight.max_ts], np.int64))
        covered = slice(low, high)
        rows[covered] += weight.rows * (lengths[covered] / (weight.max_ts - weight.min_ts + 1))
    return rows


def split_by_handle(groups: Iterable[tuple[bytes, int]], rows_max: int) -> list[bytes]:
    """Handles that divide groups of rows, each given by its lowest handle, into about `rows_max` rows."""
    cuts: list[bytes] = []
    begin: bytes | None = None
    rows = 0
    for handle, held in sorted(groups):
        if begin is None:
            begin = handle
        elif rows + held > rows_max and handle > begin:
            cuts.append(handle)
            begin, rows = handle, 0
        rows += held
    return cuts


def handle_ranges(cuts: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """The handle ranges between cuts, which together are all handles."""
    return list(zip([b"", *cuts], [*cuts, b""], strict=True))


PARTITION_ROWS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class ChangesPartition:
    """One part: the changes in (from_ts, to_ts] of rows in [handle_from, handle_to) (b"": no bound).

    Can be pickled when the table can. The parts of a plan, one after the other, are what a handle gives, but
    each is coalesced by itself, and what its batches say of being done and complete holds for its own rows.
    `rows` estimates how many there are; those that are not flushed yet do not count.
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

    def collect(self) -> ChangesHandle:
        """Read it. Raises as `collect_changes` does."""
        if self.snapshot is not None and self.schema is not None:
            rows = self.snapshot.read()
            return ChangesHandle(to_batches(rows, self.schema, self.options, complete_ts=self.to_ts))
        wanted = ChangesRange(self.from_ts, self.to_ts, self.handle_from, self.handle_to)
        return ChangesHandle(collect(self.table, wanted, self.options, checked=True))  # by the plan

    def within(self, low: bytes, high: bytes) -> "ChangesPartition | None":
        """The part as far as its rows are in [low, high) (b"": no bound); None when none can be."""
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
        pieces = tuple(piece for piece in self.snapshot.pieces if handles.meets(piece.handles))
        if not pieces and not self.snapshot.adds_unflushed:
            return None
        return replace(inside, snapshot=replace(self.snapshot, handles=handles, pieces=pieces))


def plan_changes(
    table: TableView,
    from_ts: int,
    to_ts: int,
    *,
    partition_rows: int = PARTITION_ROWS,
    **wishes: Unpack[ChangeOptionsArgs],
) -> list[ChangesPartition]:
    """What `collect_changes` gives, in parts of about `partition_rows` rows that follow each other in time.

    Only a single commit-ts that has more is divided by handles. What is not flushed yet has parts of its own.
    Raises as `collect_changes` does.
    """
    if partition_rows < 1:
        raise Invalid(f"partition_rows is {partition_rows}; a partition needs at least one row")
    options = ChangeOptions(**wishes)
    table, states, _ = fix_range(table, from_ts, to_ts)
    if not from_ts:
        return _plan_snapshot(table, states, to_ts, partition_rows, options)
    return _TailPlan(table, states, from_ts, to_ts, partition_rows, options).parts()


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
    table: TableView
    states: Sequence[PartitionState]
    from_ts: int
    to_ts: int
    partition_rows: int
    options: ChangeOptions

    def parts(self) -> list[ChangesPartition]:
        tables = [schema.table for _, _, schema in schema_parts(self.states, self.from_ts, self.to_ts)]
        check_columns(tables, self.options)
        # A key that moves from one row to another needs both in the same part.
        by_handle = not any(ReadColumns.of(table, self.options).keys_move for table in tables)
        return [part for share in self._splits() for part in self._divide(share, by_handle=by_handle)]

    def _splits(self) -> list[Split]:
        """Flushed changes, then the others: of those nobody has counted the rows."""
        flushed_ts = min(self.to_ts, *(state.flushed_ts for state in self.states))
        weights = [weight for state in self.states for weight in self._weights(state)]
        bounds = dict.fromkeys((self.from_ts, max(self.from_ts, flushed_ts), self.to_ts))
        return [
            share
            for from_ts, to_ts in pairwise(bounds)
            for share in split_by_time(weights, from_ts, to_ts, self.partition_rows)
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

    def _divide(self, share: Split, *, by_handle: bool) -> list[ChangesPartition]:
        cuts = self._split_points(share.large_ts) if share.large_ts is not None and by_handle else []
        parts = handle_ranges(cuts)
        return [
            ChangesPartition(
                table=self.table,
                from_ts=share.from_ts,
                to_ts=share.to_ts,
                options=self.options,
                rows=share.rows // len(parts),
                handle_from=low,
                handle_to=high,
            )
            for low, high in parts
        ]

    def _split_points(self, ts: int) -> list[bytes]:
        """Where a timestamp is divided: by its data, which is in the order of handles, if there is any."""
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
    rows: int
    min_ts: int
    max_ts: int
    low: bytes  # the lowest handle
