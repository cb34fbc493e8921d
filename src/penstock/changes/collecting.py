"""What changed in a table between two timestamps."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Unpack

from penstock.changes.handle import Batches, ChangesHandle
from penstock.changes.options import ChangeOptions, Columns, Wishes, check_columns
from penstock.changes.snapshots import snapshot_batches
from penstock.changes.tail import Tail
from penstock.eventstore.partition import PartitionState, TableView
from penstock.eventstore.paths import Side
from penstock.eventstore.schemaversion import SchemaVersion
from penstock.eventstore.streams import Stream, merged, streams_of

SIDES: tuple[Side, Side] = ("data", "tombstone")


def collect_changes(table: TableView, from_ts: int, to_ts: int, **wishes: Unpack[Wishes]) -> ChangesHandle:
    """The changes of a table in (from_ts, to_ts]; with from_ts = 0 the rows that it has at to_ts.

    Data has the table's columns, or those of `columns`, and `_commit_ts`. Tombstones have the primary key and
    `_commit_ts`, and with `old_rows` the row that ended, in `_old`: all of it, or what `columns` names (one
    column at least). A table without a primary key has `_handle` on both sides. `columns` may name
    `_handle`, `_start_ts` and `_update` too, for both sides; `_update` says that the row was there before and
    is there after. Batches end where the schema changes; one whose schema lacks a column of `columns` comes
    without it.

    Changes of the same row are coalesced as far as they come together, unless `coalesce` is off. `replay` is
    for a reader that may have applied some of them before, and `skip_deletes` leaves out tombstones of rows
    that come back, for one that replaces rows. A side of a batch has up to twice `batch_rows` rows. The last
    batch is complete up to to_ts, and may have no rows. The same range gives the same changes in the same
    order, whatever was flushed or merged meanwhile.

    Raises Invalid for what is no range or no column, StaleRead when history from `from_ts` on is gone, and
    Unavailable when the range is not complete yet.
    """
    options = ChangeOptions(**wishes)
    return ChangesHandle(collect(table, ChangesRange(from_ts, to_ts), options))


@dataclass(frozen=True, slots=True)
class ChangesRange:
    """(from_ts, to_ts], of rows in [handle_from, handle_to) (b"": no bound)."""

    from_ts: int
    to_ts: int
    handle_from: bytes = b""
    handle_to: bytes = b""


def collect(
    table: TableView, wanted: ChangesRange, options: ChangeOptions, *, checked: bool = False
) -> Batches:
    """The batches of a range; what `collect_changes` raises at once is raised at once.

    `checked`: the columns are of some version of the table, if not of one in this range.
    """
    states = open_range(table, wanted.from_ts, wanted.to_ts)
    if not wanted.from_ts:
        return snapshot_batches(table, states[0].schema_at(wanted.to_ts), wanted.to_ts, options)
    parts = schema_parts(states, wanted.from_ts, wanted.to_ts)
    if not checked:
        check_columns([schema.table for _, _, schema in parts], options)
    return _tail_batches(states, parts, wanted, options)


def open_range(table: TableView, from_ts: int, to_ts: int) -> list[PartitionState]:
    """What each partition is now; raise unless the range can be read from all of them."""
    states = [partition.state(from_ts=from_ts or to_ts) for partition in table.partitions]
    for state in states:
        state.check_range(from_ts, to_ts)
    return states


def schema_parts(
    states: Sequence[PartitionState], from_ts: int, to_ts: int
) -> list[tuple[int, int, SchemaVersion]]:
    """Divide a range where the schema of any partition changes: (from_ts, to_ts, schema) of each part.

    What is before the first version, where the table was not there yet, belongs to that one.
    """
    known = {each.since_ts: each for state in states for each in state.schemas(from_ts, to_ts)}
    versions = [known[since_ts] for since_ts in sorted(known)]
    starts = [from_ts, *(each.since_ts - 1 for each in versions[1:] if each.since_ts > from_ts + 1)]
    parts = []
    for start, end in pairwise([*starts, to_ts]):
        begun = [each for each in versions if each.since_ts <= start + 1]
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
        columns = Columns.of(schema.table, options)
        part = replace(wanted, from_ts=from_ts, to_ts=to_ts)
        with ExitStack() as stack:
            data, tombstones = (_opened(stack, states, side, part, schema, columns) for side in SIDES)
            tail = Tail(
                merged(data, 2 * options.batch_rows),
                merged(tombstones, 2 * options.batch_rows),
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


def _opened(
    stack: ExitStack,
    states: Sequence[PartitionState],
    side: Side,
    part: ChangesRange,
    schema: SchemaVersion,
    columns: Columns,
) -> list[Stream]:
    """The streams of a side over all partitions, which begin to read; the stack closes them."""
    streams: list[Stream] = []
    for state in states:
        found = streams_of(
            state,
            side,
            part.from_ts,
            part.to_ts,
            columns=columns.of_side(side).read.names,
            old_columns=columns.old,
            handle_from=part.handle_from,
            handle_to=part.handle_to,
            schema=schema,
            with_partition=len(states) > 1,
        )
        for stream in found:
            stack.callback(stream.close)
        streams += found
    return streams
