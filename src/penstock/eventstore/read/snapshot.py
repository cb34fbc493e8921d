"""A table as of one timestamp: a scan of its objects, with the rows that are not flushed yet on top.

Up to the flushed-ts a snapshot is the visible data objects without the rows in their deletion vectors. Above
it, the rows of handles that changed since are left out, and the last version of those that live is added.
There is no shuffle and no sort; rows come in no particular order. A read takes the memory of a row group, of
the deletion vector of one object (and of a part of each tombstone object that it comes from), and of the
handles that changed above the flushed-ts (and of a million others, to find them in).

`Unflushed` is the effect of the changes that are not in objects yet. It takes the memory of every changed
handle, and of the batches that a reader yields; never of the rows.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import Corrupt, Invalid, StaleRead, Unavailable
from penstock.eventstore.manifest import ObjectInfo
from penstock.eventstore.objects.deletion_vectors import Deletions
from penstock.eventstore.objects.object_file import open_object
from penstock.eventstore.paths import Side
from penstock.eventstore.read.object_scan import NO_HANDLES, HandleRange, ObjectScan, ObjectScanTask
from penstock.eventstore.read.partition import (
    Partition,
    PartitionState,
    RangeReader,
    ReadRange,
    SchemaRange,
    TableView,
    reading_history,
)
from penstock.eventstore.read.pruning import WantedRows
from penstock.eventstore.schema_version import Projection, schemas_in
from penstock.eventstore.sides import COMMIT_TS, HANDLE, START_TS, UPDATE
from penstock.object_storage import ObjectStorage
from penstock.tables.arrow import arrow_name
from penstock.tables.impossible_dates import hide_and_log
from penstock.tables.schema import TableInfo

Ints = npt.NDArray[np.int64]

BATCH_ROWS = 64 * 1024
PARTITION_BYTES = 128 * 1024 * 1024

Batches = Generator[pa.RecordBatch, None, None]

_SYSTEM = frozenset({HANDLE, COMMIT_TS, START_TS, UPDATE})


@dataclass(frozen=True, kw_only=True)
class SnapshotPartition:
    """A part of a snapshot that is read on its own, wherever that is; all parts together are the snapshot.

    It names the objects that it reads, so that it gives the same rows whatever was flushed or merged since.
    Can be pickled when its partition can.
    """

    partition: Partition
    ts: int
    flushed_ts: int  # at the time of the plan: changes above it are not in `tasks`
    table: TableInfo
    columns: tuple[str, ...]
    handles: HandleRange
    batch_rows: int
    tasks: tuple[ObjectScanTask, ...] = ()
    tombstones: tuple[ObjectInfo, ...] = field(default=(), repr=False)
    adds_unflushed: bool = False  # whether the rows that changed above `flushed_ts` are part of this
    wanted: WantedRows | None = None  # rows that are not wanted may be left out, and need not

    @property
    def rows(self) -> int:
        """About how many rows there are: deleted rows count, unflushed ones do not."""
        return sum(task.rows for task in self.tasks)

    def read(self, *, impossible_dates: bool = False) -> Batches:
        """Yield the rows, in no particular order; close it when it is not read to its end.

        Dates that no calendar has are null, and the log names their columns, unless `impossible_dates` keeps
        them.
        Raises StaleRead when history at `ts` was collected meanwhile, Unavailable when objects are gone (plan
        again) or storage or the capture does not answer, Corrupt when an object is damaged.
        """
        return self._read() if impossible_dates else self._read_hidden()

    def _read_hidden(self) -> Batches:
        with closing(self._read()) as batches:
            for batch in batches:
                yield hide_and_log(self.table.name, batch)

    def _read(self) -> Batches:
        storage, table_id = self.partition.storage.open(), self.partition.table_id
        base_ts = min(self.ts, self.flushed_ts)
        with reading_history(storage, table_id, self.ts):
            newer = self._load_unflushed()
            scan = ObjectScan(
                storage=storage,
                table_id=table_id,
                ts=base_ts,
                table=self.table,
                names=self.columns,
                deletions=Deletions(storage, table_id, self.tombstones, base_ts),
                batch_rows=self.batch_rows,
                handles=self.handles,
                changed_handles=NO_HANDLES if newer is None else newer.changed_handles,
                wanted=self.wanted,
            )
            yield from scan.batches(self.tasks)
            if newer is not None and self.adds_unflushed:
                for batch in newer.batches(self.table, self.columns):
                    for start in range(0, batch.num_rows, self.batch_rows):
                        yield batch.slice(start, self.batch_rows)

    def _load_unflushed(self) -> "Unflushed | None":
        """Load the changes above the flushed-ts that concern these rows; None when there are none."""
        if self.ts <= self.flushed_ts:
            return None
        assert self.partition.rows is not None, (
            "without a capture no snapshot above the flushed-ts is planned"
        )
        low, high = self.handles.low, self.handles.high
        if not self.adds_unflushed:
            low = max(low, min(task.info.key_min for task in self.tasks))
            above = max(task.info.key_max for task in self.tasks) + b"\0"
            high = min(high, above) if high else above
        wanted = ReadRange(
            table_id=self.partition.table_id,
            from_ts=self.flushed_ts,
            to_ts=self.ts,
            handle_from=low,
            handle_to=high,
            backfills=True,
        )
        try:
            return Unflushed.load(self.partition.rows, wanted)
        except StaleRead as error:  # at the flushed-ts; at `ts` the table may be readable
            raise Unavailable(f"{error.table} was flushed and merged since the plan; plan again") from error


def snapshot_schema(table: TableView, ts: int, columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the schema of a snapshot's batches: the named columns, or all and `_commit_ts`, as of `ts`.

    `columns` may name `_handle`, `_commit_ts`, `_start_ts` and `_update` too. Raises StaleRead when the
    history at `ts` is gone, Unavailable when it is not complete yet, Invalid when the table has no such
    column then.
    """
    version = _states(table, ts)[0].schema_at(ts)
    return Projection(version.table, version.table, _names(version.table, columns)).schema


def read_snapshot(
    table: TableView,
    ts: int,
    *,
    columns: Sequence[str] | None = None,
    handle_from: bytes = b"",
    handle_to: bytes = b"",
    batch_rows: int = BATCH_ROWS,
    impossible_dates: bool = False,
) -> Batches:
    """Yield the rows of a table as of `ts`, in no particular order, of handles in [handle_from, handle_to).

    Batches have `snapshot_schema`, and at most `batch_rows` rows. Close it when it is not read to its end.
    Dates that no calendar has are null, unless `impossible_dates` keeps them.
    Raises StaleRead when the history at `ts` is gone, Unavailable when it is not complete yet or storage or
    the capture does not answer, Invalid when the table has no such column then, Corrupt when an object is
    damaged.
    """
    wanted = HandleRange(low=handle_from, high=handle_to)
    parts = _plan_whole(table, ts, columns, wanted, batch_rows)
    return _read_all(parts, impossible_dates=impossible_dates)


def plan_snapshot(
    table: TableView,
    ts: int,
    *,
    columns: Sequence[str] | None = None,
    handle_from: bytes = b"",
    handle_to: bytes = b"",
    batch_rows: int = BATCH_ROWS,
    partition_bytes: int = PARTITION_BYTES,
    partitions: int | None = None,
    wanted: WantedRows | None = None,
) -> list[SnapshotPartition]:
    """Divide the snapshot into parts that are read independently, of about `partition_bytes` of objects each.

    With `partitions` it aims at that many parts instead. Objects and row groups without `wanted` rows are
    left out where that is known. Raises StaleRead when the history at `ts` is gone, Unavailable when it is
    not complete yet or storage does not answer, Invalid when the table has no such column then.
    """
    if partition_bytes < 1 or (partitions is not None and partitions < 1):
        raise Invalid("partition_bytes and partitions must be at least 1")
    handles = HandleRange(low=handle_from, high=handle_to)
    whole = [replace(part, wanted=wanted) for part in _plan_whole(table, ts, columns, handles, batch_rows)]
    if partitions is not None:
        partition_bytes = max(1, -(-sum(map(_bytes, whole)) // partitions))
    return list(chain.from_iterable(_divide(part, partition_bytes) for part in whole))


def _read_all(parts: Iterable[SnapshotPartition], *, impossible_dates: bool) -> Batches:
    for part in parts:
        yield from part.read(impossible_dates=impossible_dates)


def _states(table: TableView, ts: int) -> list[PartitionState]:
    states = [partition.state(from_ts=ts) for partition in table.partitions]
    for state in states:
        state.check_range(0, ts)
    return states


def _names(table: TableInfo, columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns as the table spells them."""
    names = [arrow_name(column) for column in table.stored_columns]
    if columns is None:
        return (*names, COMMIT_TS)
    known = {*names, *_SYSTEM}
    return tuple(name if name in known else arrow_name(table.column(name)) for name in columns)


def _plan_whole(
    table: TableView, ts: int, columns: Sequence[str] | None, handles: HandleRange, batch_rows: int
) -> list[SnapshotPartition]:
    """Return each partition's snapshot as one part."""
    states = _states(table, ts)
    shown = states[0].schema_at(ts).table  # partitions have the schema of their table
    names = _names(shown, columns)
    return [
        SnapshotPartition(
            partition=partition,
            ts=ts,
            flushed_ts=state.flushed_ts,
            table=shown,
            columns=names,
            handles=handles,
            batch_rows=batch_rows,
            tasks=(tasks := _plan_tasks(state, min(ts, state.flushed_ts), handles)),
            tombstones=_select_tombstones(
                state.visible_objects("tombstone", min(ts, state.flushed_ts)), tasks
            ),
            adds_unflushed=ts > state.flushed_ts,
        )
        for partition, state in zip(table.partitions, states, strict=True)
    ]


def _plan_tasks(state: PartitionState, ts: int, handles: HandleRange) -> tuple[ObjectScanTask, ...]:
    """Return the visible data objects that may have rows in the range of handles, each as a whole."""
    tables = {version.version: version.table for version in schemas_in(state.manifest.facts)}
    made = []
    for info in state.visible_objects("data", ts):
        if info.schema_version not in tables:
            raise Corrupt(
                f"the manifest of table {state.table_id} has no schema of object {info.id}; keep it"
            )
        task = ObjectScanTask(info, tables[info.schema_version], info.rows, info.size_bytes)
        if handles.meets(task.handles):
            made.append(task)
    return tuple(made)


def _select_tombstones(
    tombstones: Iterable[ObjectInfo], tasks: Iterable[ObjectScanTask]
) -> tuple[ObjectInfo, ...]:
    """Return the tombstone objects that may delete rows of the tasks, with no other targets."""
    wanted = {task.info.id for task in tasks}
    trimmed = (
        tombstone
        if tombstone.targets is None
        else replace(tombstone, targets=tuple(t for t in tombstone.targets if t[0] in wanted))
        for tombstone in tombstones
    )
    return tuple(tombstone for tombstone in trimmed if tombstone.targets is None or tombstone.targets)


def _divide(whole: SnapshotPartition, limit: int) -> list[SnapshotPartition]:
    """Divide a partition's snapshot into parts of about `limit` bytes, with neighbours by handle together."""
    storage = whole.partition.storage.open()
    packs: list[list[ObjectScanTask]] = []
    packed = limit
    for whole_task in sorted(whole.tasks, key=lambda task: (task.info.key_min, task.info.id)):
        for task in _cut(storage, whole, whole_task, limit):
            if packed + task.size_bytes - limit >= limit - packed:  # closer to the limit without this task
                packs.append([])
                packed = 0
            packs[-1].append(task)
            packed += task.size_bytes
    if len(packs) <= 1:
        return [whole] if packs or whole.adds_unflushed else []
    parts = [
        replace(
            whole,
            tasks=tuple(pack),
            tombstones=_select_tombstones(whole.tombstones, pack),
            adds_unflushed=False,
        )
        for pack in packs
    ]
    on_top = [replace(whole, tasks=(), tombstones=())] if whole.adds_unflushed else []
    return parts + on_top


def _cut(
    storage: ObjectStorage, whole: SnapshotPartition, task: ObjectScanTask, limit: int
) -> list[ObjectScanTask]:
    """Cut a task by its row groups, when it is too large by more than a part of its own would be worth.

    Pieces have no row groups without wanted rows at their begin, and none is of such row groups alone.
    """
    if task.size_bytes <= limit + limit // 4:
        return [task]
    with open_object(storage, whole.partition.table_id, task.info) as file:
        possible = set(task.possible_groups(file.metadata, whole.handles, whole.wanted))
        sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    rows_max = max(1, task.rows * limit // task.size_bytes)
    made: list[ObjectScanTask] = []
    first = rows = 0
    for number, size in enumerate(sizes):
        if not rows and number not in possible:
            first = number + 1
            continue
        rows += size
        if rows + (sizes[number + 1] if number + 1 < len(sizes) else rows_max) > rows_max:
            nbytes = -(-task.size_bytes * rows // task.rows)
            made.append(replace(task, rows=rows, size_bytes=nbytes, first=first, end=number + 1))
            first, rows = number + 1, 0
    return made


def _bytes(part: SnapshotPartition) -> int:
    return sum(task.size_bytes for task in part.tasks)


@dataclass(frozen=True, slots=True)
class Unflushed:
    """The effect of the changes of a range.

    `changed_handles` are the handles of all of them, in order, each once. `live` are the row numbers, among
    the data rows in their order, of the rows that exist at the end of the range.
    """

    reader: RangeReader
    parts: tuple[SchemaRange, ...]
    changed_handles: pa.Array
    live: Ints
    rows: int

    @classmethod
    def load(cls, reader: RangeReader, wanted: ReadRange) -> "Unflushed":
        """Read the handles of every change of a range; raise Unavailable when it is not complete."""
        parts = tuple(reader.parts(wanted))
        begun = _times_of(reader, parts, "data")
        ended = _times_of(reader, parts, "tombstone")
        handles = pa.chunked_array([*begun.column(HANDLE).chunks, *ended.column(HANDLE).chunks], pa.binary())
        numbered = handles.combine_chunks().dictionary_encode()
        distinct = numbered.dictionary
        live = live_rows(
            numbered.indices.to_numpy(),
            begun.column(COMMIT_TS).to_numpy(),
            ended.column(COMMIT_TS).to_numpy(),
            len(distinct),
        )
        changed_handles = distinct.take(pc.array_sort_indices(distinct))
        return cls(reader, parts, changed_handles, live, begun.num_rows)

    def batches(self, table: TableInfo, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that exist at the end of the range, once each, as columns of `table`.

        Raises Unavailable when the reader does not yield the same rows again.
        """
        seen = 0
        for part in self.parts:
            projection = Projection(part.schema.table, table, names, impossible_dates=True)
            wanted = replace(part.wanted, side="data", columns=projection.reads or (COMMIT_TS,))
            for batch in self.reader.read(wanted)[1]:
                start, end = np.searchsorted(self.live, [seen, seen + batch.num_rows])
                chosen = self.live[start:end] - seen
                seen += batch.num_rows
                if len(chosen):
                    kept = batch if len(chosen) == batch.num_rows else batch.take(pa.array(chosen))
                    yield projection.apply(kept)
        if seen != self.rows:
            raise Unavailable("rows that are not flushed changed while they were read; try again")


def live_rows(numbers: Ints, begun_ts: Ints, ended_ts: Ints, handles: int) -> Ints:
    """Return the row numbers of each handle's last data row, unless a tombstone came later.

    `numbers` has the number of the handle of each data row, then of each tombstone; both sides are ordered by
    time. At one timestamp a row ends before the next begins.
    """
    data, tombstones = numbers[: len(begun_ts)], numbers[len(begun_ts) :]
    last, begun, ended = (
        np.full(handles, -1, np.int64),
        np.zeros(handles, np.int64),
        np.zeros(handles, np.int64),
    )
    last[data] = np.arange(len(data))  # of several assignments to one handle the last one stays
    begun[data] = begun_ts
    ended[tombstones] = ended_ts
    last = last[(last >= 0) & (begun >= ended)]
    last.sort()
    return last


def _times_of(reader: RangeReader, parts: Sequence[SchemaRange], side: Side) -> pa.Table:
    """Return handles and commit timestamps of one side, in order."""
    columns = (HANDLE, COMMIT_TS)
    schema = pa.schema([(HANDLE, pa.binary()), (COMMIT_TS, pa.int64())])
    batches = [
        batch.cast(schema)
        for part in parts
        for batch in reader.read(replace(part.wanted, side=side, columns=columns))[1]
    ]
    return pa.Table.from_batches(batches, schema)
