"""The changes of a table between two timestamps, cut where its schema changes, and the rows at one timestamp.

Before it reads, `fix_range` finds the physical tables that hold the range.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, Unpack

import numpy as np
import pyarrow as pa

from penstock.changes.batches import Batches, ChangeBatch, ChangesHandle, Hint
from penstock.changes.options import ChangeOptions, ChangeOptionsArgs, ReadColumns, check_columns
from penstock.changes.tail import Tail
from penstock.errors import Unavailable
from penstock.eventstore.paths import Side
from penstock.eventstore.read.find import find_lives, list_known_ends
from penstock.eventstore.read.partition import Partition, PartitionState, TableView, require_range
from penstock.eventstore.read.partition_sets import (
    AskedTable,
    Life,
    PartitionSet,
    first_set,
    life_at,
    lives_of,
    merge_lives,
    partition_sets,
)
from penstock.eventstore.read.pruning import WantedRows
from penstock.eventstore.read.snapshot import read_snapshot
from penstock.eventstore.read.streams import ChangeStream, merge_streams, open_streams
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import UPDATE
from penstock.tables.schema import HandleKind

SIDES: tuple[Side, Side] = ("data", "tombstone")


def collect_changes(
    table: TableView, from_ts: int, to_ts: int, **options: Unpack[ChangeOptionsArgs]
) -> ChangesHandle:
    """Return the changes of a table in (from_ts, to_ts]; with from_ts = 0 the rows that it has at to_ts.

    Data has the table's columns, or those of `columns`, and `_commit_ts`. Tombstones have the primary key and
    `_commit_ts`, and with `old_rows` the row that ended, in `_old`: all of it, or the columns that `columns`
    names (at least one). A table without a primary key has `_handle` on both sides. `columns` may name
    `_handle`, `_start_ts` and `_update` too, for both sides; `_update` says that the row existed before the
    change and exists after it. Batches end where the schema changes; a batch does not have the columns that
    its schema does not have.

    Changes of the same row are coalesced as far as they come together, unless `coalesce` is off. `replay` is
    for a reader that may have applied some of them before. `skip_deletes` leaves out tombstones of rows that
    come back, for a reader that replaces rows. Dates that no calendar has are null, unless `impossible_dates`
    keeps them; `whole_keys` refuses changes of rows that have one in their key. A side of a batch has at most
    twice `batch_rows` rows. The last batch is complete up to to_ts, and may have no rows. The same range has
    the same changes in the same order, whatever was flushed or merged meanwhile.

    Raises Invalid when the timestamps are no range or a column does not exist, and Unavailable when the range
    is not complete yet. Raises StaleRead when history from `from_ts` on is gone, or when rows came or went in
    the range without a change of any row: by TRUNCATE, by a partition that was dropped, truncated, exchanged
    or reorganized, or by another table under the name. So it does when MODIFY COLUMN rewrote a column of
    every row. `oldest_ts` is then the last such timestamp.
    """
    chosen = ChangeOptions(**options)
    batches = collect(table, ChangesRange(from_ts, to_ts), chosen)
    return ChangesHandle(batches, chosen)


@dataclass(frozen=True, slots=True)
class ChangesRange:
    """Changes in (from_ts, to_ts], of rows in [handle_from, handle_to) (b"": no bound).

    Only those of some `sides`, and maybe without rows that are not among `wanted_rows`: for readers that do
    not coalesce.
    """

    from_ts: int
    to_ts: int
    handle_from: bytes = b""
    handle_to: bytes = b""
    sides: tuple[Side, ...] = SIDES
    wanted_rows: WantedRows | None = None


def collect(
    table: TableView, wanted: ChangesRange, options: ChangeOptions, *, checked: bool = False
) -> Batches:
    """Return the batches of a range; raise at once what `collect_changes` raises before its first batch.

    With `checked` the columns are not checked: some version of the table has them, if not one of this range.
    """
    table, states, _ = fix_range(table, wanted.from_ts, wanted.to_ts)
    if not wanted.from_ts:
        return snapshot_batches(table, states[0].schema_at(wanted.to_ts), wanted.to_ts, options)
    parts = schema_parts(states, wanted.from_ts, wanted.to_ts)
    if not checked:
        check_columns([schema.table for _, _, schema in parts], options)
    return _tail_batches(states, parts, wanted, options)


class FixedRange(NamedTuple):
    """The physical tables that hold a range up to `to_ts`, and the state of each."""

    view: TableView
    states: list[PartitionState]
    to_ts: int


def open_range(table: TableView, from_ts: int, to_ts: int) -> list[PartitionState]:
    """Return the states of the physical tables that hold a range.

    Raises Unavailable when the range is not complete yet, StaleRead when history from `from_ts` on is gone,
    or rows came or went in the range without a change.
    """
    return fix_range(table, from_ts, to_ts).states


def fix_range(
    table: TableView, from_ts: int, to_ts: int, *, one_set: bool = False, across_rewrites: bool = False
) -> FixedRange:
    """Find the physical tables that hold the changes in (from_ts, to_ts]; from_ts = 0: the rows at to_ts.

    They are the physical tables that the table has at to_ts, whenever the view was opened. With `one_set` the
    range ends before a partition is added.

    Raises Invalid when the timestamps are no range, Unavailable when it is not complete yet. Raises StaleRead
    when history from `from_ts` on is gone, or rows came or went in the range without a change; with
    `across_rewrites` a column that was rewritten does not count as that.
    """
    require_range(from_ts, to_ts)
    start = from_ts or to_ts
    states = {partition.table_id: partition.state(from_ts=start) for partition in table.partitions}
    failures: dict[int, Unavailable] = {}
    if not table.fixed:
        sets = _find_sets(
            table, list(states.values()), start, to_ts, failures, across_rewrites=across_rewrites
        )
        if sets:
            to_ts, ids = first_set(sets, to_ts) if one_set else (to_ts, sets[-1].ids)
            table = _fixed_view(table, ids)
    found = [
        states.get(partition.table_id) or partition.state(from_ts=start) for partition in table.partitions
    ]
    for state in found:
        state.check_range(from_ts, to_ts)
        if state.table_id in failures:
            raise failures[state.table_id]
    return FixedRange(replace(table, fixed=True), found, to_ts)


def _fixed_view(table: TableView, ids: Sequence[int]) -> TableView:
    """Return the view of some physical tables; ask the capture that is known for those that are new."""
    known = {partition.table_id: partition for partition in table.partitions}
    near = next(
        (partition for partition in table.partitions if partition.rows is not None), table.partitions[0]
    )
    members = (
        known.get(physical_id) or Partition(near.storage, physical_id, near.rows) for physical_id in ids
    )
    return replace(table, partitions=tuple(members))


def _find_sets(
    table: TableView,
    states: Sequence[PartitionState],
    from_ts: int,
    to_ts: int,
    failures: dict[int, Unavailable],
    *,
    across_rewrites: bool,
) -> list[PartitionSet]:
    """Return the partition sets of a range, as `partition_sets` does.

    `failures` gets the physical tables whose schemas are not known up to `to_ts`: the range may not need
    them. Only a table that was not there at `from_ts` under its name, or is gone, is looked for by its name.
    """
    known: list[Life] = []
    for state in states:
        try:
            versions = state.schemas_upto(to_ts)
        except Unavailable as error:  # its capture may know that it has ended
            failures[state.table_id] = error
            versions = state.known_schemas
        known += lives_of(state.table_id, versions, list_known_ends(state))
    lives = merge_lives(known)
    table_id = table.table_id or _table_id(lives, states[0].table_id, to_ts)
    asked = AskedTable(table.name, table_id, table.named, across_rewrites)
    start = life_at(lives, table_id, from_ts)
    there = start is not None and life_at(lives, table_id, to_ts) is not None
    if table.named and not (there and start is not None and start.is_called(table.name)):
        lives = _add_others(table, lives, asked)
    return partition_sets(asked, lives, from_ts, to_ts)


def _table_id(lives: Sequence[Life], physical_id: int, ts: int) -> int:
    """Return the table that a physical table belongs to at `ts`, or else belongs to first."""
    mine = [life for life in lives if physical_id in life.ids]
    begun = [life for life in mine if life.since_ts <= ts]
    return (begun[-1] if begun else mine[0]).schema.table.id if mine else 0


def _add_others(table: TableView, lives: Sequence[Life], asked: AskedTable) -> list[Life]:
    """Add the lives of other tables that had the name, and of partitions that the table had.

    Raises Unavailable when there may be a table of which nothing is known yet.
    """
    near = next(
        (partition for partition in table.partitions if partition.rows is not None), table.partitions[0]
    )
    found = find_lives(near.storage, table.name, near.rows)
    everything = merge_lives([*lives, *(life for known in found.values() for life in known)])
    mine = {
        physical_id
        for life in everything
        if life.schema.table.id == asked.table_id
        for physical_id in life.ids
    }
    unknown = sorted(
        physical_id for physical_id, known in found.items() if not known and physical_id not in mine
    )
    if unknown:
        raise Unavailable(
            f"table {unknown[0]} may have been {table.name} before and has no schema on"
            f" {near.storage.url} yet; wait for its first flush, or start later"
        )
    return everything


def schema_parts(
    states: Sequence[PartitionState], from_ts: int, to_ts: int
) -> list[tuple[int, int, SchemaVersion]]:
    """Divide a range where the schema of any partition changes: (from_ts, to_ts, schema) of each part.

    The first version also covers the time before it, when the table did not exist yet.
    """
    known = {version.since_ts: version for state in states for version in state.schemas(from_ts, to_ts)}
    by_time = [known[since_ts] for since_ts in sorted(known)]
    # The first version of a partition that is added after the range is not a version of the range.
    versions = [version for version in by_time if version.since_ts <= to_ts] or by_time[:1]
    starts = [from_ts, *(version.since_ts - 1 for version in versions[1:] if version.since_ts > from_ts + 1)]
    parts = []
    for start, end in pairwise([*starts, to_ts]):
        begun = [version for version in versions if version.since_ts <= start + 1]
        parts.append((start, end, (begun or versions)[-1 if begun else 0]))
    return parts


def _tail_batches(
    states: Sequence[PartitionState],
    parts: Sequence[tuple[int, int, SchemaVersion]],
    wanted: ChangesRange,
    options: ChangeOptions,
) -> Batches:
    complete_ts = wanted.from_ts
    for from_ts, to_ts, schema in parts:
        columns = ReadColumns.of(schema.table, options)
        part = replace(wanted, from_ts=from_ts, to_ts=to_ts)
        with ExitStack() as stack:
            data, tombstones = (_open_side(stack, states, side, part, schema, columns) for side in SIDES)
            tail = Tail(
                merge_streams(data, 2 * options.batch_rows),
                merge_streams(tombstones, 2 * options.batch_rows),
                schema=schema,
                columns=columns,
                options=options,
                to_ts=to_ts,
            )
            for batch in tail.batches():
                complete_ts = batch.complete_ts
                yield batch
    if complete_ts < wanted.to_ts:
        yield tail.end()


def _open_side(
    stack: ExitStack,
    states: Sequence[PartitionState],
    side: Side,
    part: ChangesRange,
    schema: SchemaVersion,
    columns: ReadColumns,
) -> list[ChangeStream]:
    """Open the streams of one side over all partitions, which start to read; the stack closes them."""
    streams: list[ChangeStream] = []
    for state in states if side in part.sides else ():
        if state.schemas(part.from_ts, part.to_ts)[0].since_ts > part.to_ts:
            continue  # it was added after this part, and may have had other columns then
        found = open_streams(
            state,
            side,
            part.from_ts,
            part.to_ts,
            columns=columns.of_side(side).read.names,
            old_columns=columns.old,
            handle_from=part.handle_from,
            handle_to=part.handle_to,
            schema=schema,
            # Elsewhere the handle is the key: a row that moves to another partition stays the same row.
            wanted_rows=part.wanted_rows,
            with_partition=len(states) > 1 and schema.table.handle_kind is HandleKind.ROWID,
        )
        for stream in found:
            stack.callback(stream.close)
        streams += found
    return streams


def snapshot_batches(table: TableView, schema: SchemaVersion, ts: int, options: ChangeOptions) -> Batches:
    """Yield the rows of a table at `ts`, at which it has the schema, as inserts."""
    names = snapshot_columns(schema, options)
    rows = read_snapshot(table, ts, columns=names, batch_rows=2 * options.batch_rows, impossible_dates=True)
    return to_batches(rows, schema, options, complete_ts=ts)


def snapshot_columns(schema: SchemaVersion, options: ChangeOptions) -> list[str]:
    """Return the columns to read for the data side; raise Invalid when the table has not all of them."""
    check_columns([schema.table], options)
    return list(ReadColumns.of(schema.table, options).data.shown.names)


def to_batches(
    rows: Iterable[pa.RecordBatch], schema: SchemaVersion, options: ChangeOptions, *, complete_ts: int
) -> Batches:
    """Yield rows as batches without tombstones.

    The last batch is complete up to `complete_ts`, and may be empty. The others are complete up to 0: a
    reader cannot start again in the middle of a snapshot.
    """
    columns = ReadColumns.of(schema.table, options)
    nothing = pa.RecordBatch.from_pylist([], columns.tombstone.shown)
    held = pa.RecordBatch.from_pylist([], columns.data.shown)
    for batch in rows:
        if held.num_rows:
            yield ChangeBatch(held, nothing, Hint.SNAPSHOT, schema, 0)
        held = _as_inserts(batch.select(columns.data.shown.names))
    yield ChangeBatch(held, nothing, Hint.SNAPSHOT, schema, complete_ts)


def _as_inserts(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with `_update` unset, if they have that column: the reader has none of them yet."""
    if UPDATE not in batch.schema.names:
        return batch
    at = batch.schema.get_field_index(UPDATE)
    return batch.set_column(at, batch.schema.field(at), pa.array(np.zeros(batch.num_rows, np.bool_)))
