"""The changes of a range as parts that are read independently, wherever that is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Unpack

from penstock.changes.balancing import Split, Weight, ranges, share_handles, share_times
from penstock.changes.collect import SIDES, ChangesRange, collect, fix_range, schema_parts
from penstock.changes.handle import ChangesHandle
from penstock.changes.options import ChangeOptions, ChangeOptionsArgs, ReadColumns, check_columns
from penstock.changes.snapshots import as_batches, snapshot_columns
from penstock.errors import Invalid
from penstock.eventstore.manifest import ObjectInfo
from penstock.eventstore.objects.objectfiles import ColumnBounds, column_bounds, opened
from penstock.eventstore.read.object_scan import HandleRange
from penstock.eventstore.read.partition import PartitionState, TableView
from penstock.eventstore.read.snapshot import SnapshotPartition, plan_snapshot
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import COMMIT_TS, HANDLE

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
            return ChangesHandle(as_batches(rows, self.schema, self.options, complete_ts=self.to_ts))
        wanted = ChangesRange(self.from_ts, self.to_ts, self.handle_from, self.handle_to)
        return ChangesHandle(collect(self.table, wanted, self.options, checked=True))  # by the plan

    def within(self, low: bytes, high: bytes) -> "ChangesPartition | None":
        """The part as far as its rows are in [low, high) (b"": no bound); None when none can be."""
        if not low and not high:
            return self
        first = max(self.handle_from, low)
        end = min((each for each in (self.handle_to, high) if each), default=b"")
        if end and end <= first:
            return None
        inside = replace(self, handle_from=first, handle_to=end)
        if self.snapshot is None:
            return inside
        handles = HandleRange(low=first, high=end)
        pieces = tuple(each for each in self.snapshot.pieces if handles.meets(each.handles))
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
    rows = sum(info.rows for state in states for info in state.visible("data", min(ts, state.flushed_ts)))
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
        return [part for share in self._shares() for part in self._divided(share, by_handle=by_handle)]

    def _shares(self) -> list[Split]:
        """Flushed changes, then the others: of those nobody has counted the rows."""
        flushed_ts = min(self.to_ts, *(state.flushed_ts for state in self.states))
        weights = [each for state in self.states for each in self._weights(state)]
        bounds = dict.fromkeys((self.from_ts, max(self.from_ts, flushed_ts), self.to_ts))
        return [
            share
            for from_ts, to_ts in pairwise(bounds)
            for share in share_times(weights, from_ts, to_ts, self.partition_rows)
        ]

    def _weights(self, state: PartitionState) -> Iterator[Weight]:
        for side in SIDES:
            for info in state.changes(side, self.from_ts, min(self.to_ts, state.flushed_ts)):
                if info.rows > self.partition_rows and info.min_ts < info.max_ts:
                    for group in self._row_groups(state, info):
                        yield Weight(group.rows, group.min_ts, group.max_ts)
                else:
                    yield Weight(info.rows, info.min_ts, info.max_ts)

    def _row_groups(self, state: PartitionState, info: ObjectInfo) -> list["_RowGroup"]:
        with state.reading(self.from_ts), opened(state.storage, state.table_id, info) as file:
            whole = ColumnBounds(info.key_min, info.key_max)
            handles = column_bounds(file.metadata, HANDLE, missing=whole)
            bounds = zip(column_bounds(file.metadata, COMMIT_TS), handles, strict=True)
            return [
                _RowGroup(file.metadata.row_group(number).num_rows, commit.low, commit.high, handle.low)
                for number, (commit, handle) in enumerate(bounds)
                if commit is not None and handle is not None
            ]

    def _divided(self, share: Split, *, by_handle: bool) -> list[ChangesPartition]:
        cuts = self._handle_cuts(share.large_ts) if share.large_ts is not None and by_handle else []
        parts = ranges(cuts)
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

    def _handle_cuts(self, ts: int) -> list[bytes]:
        """Where a timestamp is divided: by its data, which is in the order of handles, if there is any."""
        for side in SIDES:
            groups = [
                group
                for state in self.states
                for info in state.changes(side, ts - 1, ts)
                for group in self._row_groups(state, info)
                if group.min_ts <= ts <= group.max_ts
            ]
            if groups:
                return share_handles(((group.low, group.rows) for group in groups), self.partition_rows)
        return []


@dataclass(frozen=True, slots=True)
class _RowGroup:
    rows: int
    min_ts: int
    max_ts: int
    low: bytes  # the lowest handle
