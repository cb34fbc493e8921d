"""Rows of the change feed, in Delta's vocabulary, and the parts that batch reads and streams share.

`ChangeRows` turns batches of changes into rows of one schema. `DeclaredSchema` says where a stream must stop
because its table does not have the declared columns any more. Both are pure.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes import ChangeBatch
from penstock.clock import LOGICAL_BITS, LOGICAL_MAX, TS_MAX, compose_ts
from penstock.errors import Invalid, StaleRead
from penstock.eventstore.read.pruning import ColumnRange, WantedRows
from penstock.eventstore.schema_version import Projection, SchemaVersion, rewritten_columns
from penstock.eventstore.sides import COMMIT_TS, HANDLE, OLD, START_TS, UPDATE
from penstock.tables.arrow import arrow_name, arrow_type
from penstock.tables.schema import TableInfo

if TYPE_CHECKING:
    from penstock.changes import ChangesPartition
    from penstock.eventstore.paths import Side
    from penstock.eventstore.read.partition import PartitionState, TableView
    from penstock.spark.filters import ReadFilter

__all__ = [
    "CHANGE_TYPE",
    "COMMIT_TIMESTAMP",
    "COMMIT_VERSION",
    "FEED_BATCH_ROWS",
    "ChangeRows",
    "DeclaredSchema",
    "commit_times",
    "feed_parts",
    "read_feed",
]


CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
FEED_BATCH_ROWS = 32 * 1024
"""Rows of a batch in which changes are collected: Spark is faster with large batches than with small ones."""

_FEED = [
    pa.field(CHANGE_TYPE, pa.string(), nullable=False),
    pa.field(COMMIT_VERSION, pa.int64(), nullable=False),
    pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC"), nullable=False),
]
_FEED_NAMES = frozenset(field.name for field in _FEED)
_SYSTEM = (HANDLE, START_TS)
_MICROSECONDS = 1000  # of a millisecond, in which the physical part of a timestamp counts

Ints = npt.NDArray[np.int64]


class ChangeRows:
    """Makes change-feed rows of `table`, whatever version of the schema they were written with.

    `schema` has the table's columns, or those of `columns` (which may name `_handle` and `_start_ts` too),
    then the type of the change and its time. Columns with the same id are the same: a renamed one keeps its
    values, an added one has in older rows the value that the database shows there. Can be pickled. Raises
    Invalid when the table has no such column, or one with a name of the feed's own.
    """

    def __init__(self, table: TableInfo, columns: Sequence[str] | None = None) -> None:
        self.table = table
        self._names = _names(table, columns)
        self.schema = pa.schema([*Projection(table, table, self._names).schema, *_FEED])

    def reads(self, versions: Iterable[TableInfo]) -> tuple[str, ...]:
        """Return the `columns` with which to collect changes of a range that has these versions of the table.

        Changes have to be collected with `coalesce` off and `old_rows` on.
        """
        wanted = self._ids()
        stored = (
            arrow_name(column)
            for table in (*versions, self.table)
            for column in table.kept_columns
            if column.id in wanted
        )
        system = [HANDLE] if HANDLE in self._names else []
        return tuple(dict.fromkeys([*stored, *system, START_TS, UPDATE]))

    def _ids(self) -> set[int]:
        """Return the ids of the table's columns among those that are read."""
        return {column.id for column in self.table.stored_columns if arrow_name(column) in self._names}

    def require_not_rewritten(self, versions: Sequence[SchemaVersion], name: str, from_ts: int) -> None:
        """Raise StaleRead when one of the columns was rewritten between two of a range's versions.

        Changes from before do not have the values that the column shows now.
        """
        wanted = self._ids()
        for before, after in reversed(list(pairwise(versions))):
            if any(column.id in wanted for column in rewritten_columns(before.table, after.table)):
                raise StaleRead(
                    name,
                    from_ts,
                    oldest_ts=after.since_ts,
                    replaced=True,
                    remedy="read the changes up to the version before it and those from it on apart",
                )

    def of(self, batch: ChangeBatch) -> pa.RecordBatch:
        """Return the rows of a batch, ordered by commit and start of their transactions.

        Within a transaction, rows that end (update_preimage and delete) come before rows that begin. Raises
        Corrupt when a value does not fit its column's later type.
        """
        sides = [
            _FeedSide(batch.tombstones, _ENDS, self._old_columns(batch)),
            _FeedSide(batch.data, _BEGINS, self._new_columns(batch)),
        ]
        filled = [side for side in sides if side.changes.num_rows] or sides
        commits, starts, kinds = (
            np.concatenate(arrays) for arrays in zip(*(side.places() for side in filled), strict=True)
        )
        columns = [
            pa.concat_arrays(arrays) for arrays in zip(*(side.columns for side in filled), strict=True)
        ]
        if len(filled) > 1:  # each side alone is in order
            order = np.lexsort((starts, commits))  # stable: rows that end stay first within a transaction
            commits, kinds = commits[order], kinds[order]
            # One column at a time, because Arrow takes twice as long for a batch.
            columns = [pc.take(column, pa.array(order), boundscheck=False) for column in columns]
        feed = [pa.array(_KINDS).take(pa.array(kinds)), pa.array(commits), commit_times(commits)]
        return pa.RecordBatch.from_arrays([*columns, *feed], schema=self.schema)

    def _new_columns(self, batch: ChangeBatch) -> list[pa.Array]:
        columns: list[pa.Array] = self._projection(batch).apply(batch.data).columns
        return columns

    def _old_columns(self, batch: ChangeBatch) -> list[pa.Array]:
        version = batch.schema.table
        columns = self._projection(batch).apply(self._old_rows(version, batch.tombstones)).columns
        return self._without_defaults(version, columns, batch.tombstones.column(OLD))

    def _projection(self, batch: ChangeBatch) -> Projection:
        return Projection(batch.schema.table, self.table, self._names)

    def _old_rows(self, version: TableInfo, tombstones: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that ended; where only the key of a row is known, its other columns are null."""
        old = tombstones.column(OLD)
        columns = dict(zip((field.name for field in old.type), old.flatten(), strict=True))
        if old.null_count:
            columns |= {name: tombstones.column(name) for name in _keys(version, tombstones)}
        columns |= {name: tombstones.column(name) for name in _SYSTEM if name in tombstones.schema.names}
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _without_defaults(self, version: TableInfo, columns: list[pa.Array], old: pa.Array) -> list[pa.Array]:
        """Return columns with null, not the default of a later column, where the old row is not known."""
        if not old.null_count:
            return columns
        stored = {column.id for column in version.kept_columns}
        ids = {arrow_name(column): column.id for column in self.table.stored_columns}
        return [
            column
            if name in _SYSTEM or ids[name] in stored
            else pc.if_else(old.is_valid(), column, pa.scalar(None, column.type))
            for name, column in zip(self._names, columns, strict=True)
        ]


_KINDS = ("delete", "update_preimage", "insert", "update_postimage")
_ENDS, _BEGINS = 0, 2  # the first kind of each side in _KINDS; the one after it is for updates


class _FeedSide(NamedTuple):
    """One side of some changes, and the columns of its rows."""

    changes: pa.RecordBatch
    first_kind: int
    columns: list[pa.Array]

    def places(self) -> tuple[Ints, Ints, Ints]:
        """Return the commit-ts, the start-ts and the kind of each row."""
        commits, starts = (self.changes.column(name).to_numpy() for name in (COMMIT_TS, START_TS))
        updates = self.changes.column(UPDATE).cast(pa.int8()).to_numpy()
        return commits, starts, self.first_kind + updates.astype(np.int64)


def _names(table: TableInfo, columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns as the table spells them, without those of the feed, which always come."""
    stored = [arrow_name(column) for column in table.stored_columns]
    if columns is None:
        names = tuple(stored)
    else:
        own = [name for name in columns if name not in _FEED_NAMES]
        known = {*_SYSTEM, *stored}
        names = tuple(name if name in known else arrow_name(table.column(name)) for name in own)
    clashes = sorted(_FEED_NAMES & {name.lower() for name in names})
    if clashes:
        raise Invalid(
            f"table {table.name} has a column {clashes[0]}, as the change feed has; name others in columns"
        )
    return names


def _keys(version: TableInfo, tombstones: pa.RecordBatch) -> list[str]:
    return [name for name in map(arrow_name, version.primary_key) if name in tombstones.schema.names]


def commit_times(commits: Ints) -> pa.Array:
    """Return the physical part of timestamps, which is in milliseconds, as times."""
    return pa.array((commits >> LOGICAL_BITS) * _MICROSECONDS).cast(pa.timestamp("us", tz="UTC"))


_PART_ROWS_MIN = 64 * 1024  # a task for less costs more than it saves
_PARTS_PER_TASK = 2  # for each task that runs at once, so that a long part keeps others waiting less


def feed_parts(
    view: "TableView",
    from_ts: int,
    to_ts: int,
    rows: ChangeRows,
    *,
    handles: tuple[bytes, bytes] = (b"", b""),
    part_bytes: int,
    parallelism: int,
    wanted: "ReadFilter | None" = None,
) -> "list[ChangesPartition]":
    """Divide the changes of a range into parts of at most about `part_bytes`, smaller when tasks would be
    idle.

    The parts depend on what is flushed when they are planned; the rows of all parts together do not. Raises
    Invalid when the timestamps are no range, Unavailable when it is not complete yet, StaleRead when history
    is gone; StaleRead for a rewritten column only if `rows` has it and the range has older changes. Rows that
    are not `wanted` are left out as far as that saves reading; the whole range is planned first, so that
    errors do not depend on them.
    """
    from penstock.changes import plan_changes
    from penstock.changes.collect import fix_range, schema_parts

    view, states, _ = fix_range(view, from_ts, to_ts, across_rewrites=True)
    in_range = [schema for _, _, schema in schema_parts(states, from_ts or to_ts - 1, to_ts)]
    versions = [schema.table for schema in in_range]
    rows.require_not_rewritten(in_range, view.name, from_ts)
    planned = plan_changes(
        view,
        from_ts,
        to_ts,
        columns=rows.reads(versions),
        coalesce=False,
        old_rows=True,
        batch_rows=FEED_BATCH_ROWS,
        partition_rows=_part_rows(states, from_ts, to_ts, part_bytes, parallelism),
    )
    if wanted is None:
        within = (part.within(*handles) for part in planned)
        return [part for part in within if part is not None]
    if wanted.passes_nothing:
        return []
    handles = wanted.handles(rows.table, handles)
    first_ts, last_ts, sides, values = _narrow(wanted, rows)
    narrowed = (part.only(first_ts, last_ts, sides, values) for part in planned)
    within = (part.within(*handles) for part in narrowed if part is not None)
    return [part for part in within if part is not None]


def _narrow(wanted: "ReadFilter", rows: ChangeRows) -> "tuple[int, int, tuple[Side, ...], WantedRows]":
    """Return the first and last commit-ts, the sides and the values of changes that a filter lets pass."""
    lows, highs = [0], [TS_MAX]
    versions, times = (wanted.ranges.get(name) for name in (COMMIT_VERSION, COMMIT_TIMESTAMP))
    if versions is not None:
        low, high = versions.ends
        lows += [low] if low is not None else []
        highs += [high] if high is not None else []
    if times is not None:
        low, high = times.ends
        lows += [compose_ts(max(0, -(-low // _MICROSECONDS)))] if low is not None else []
        highs += (
            [compose_ts(high // _MICROSECONDS, LOGICAL_MAX) if high >= 0 else -1] if high is not None else []
        )
    first_ts, last_ts = max(lows), min(highs)
    kinds = wanted.ranges.get(CHANGE_TYPE)
    passing = [kind for kind in _KINDS if kinds is None or kinds.meets(kind, kind)]
    ends, begins = (any(kind in passing for kind in _KINDS[at : at + 2]) for at in (_ENDS, _BEGINS))
    sides: tuple[Side, ...] = (*(("data",) if begins else ()), *(("tombstone",) if ends else ()))
    found = wanted.wanted_rows(rows.table, rows.schema.names[: -len(_FEED)])
    commits = ColumnRange(pa.int64(), low=first_ts, high=last_ts)
    return first_ts, last_ts, sides, replace(found, ranges={**found.ranges, COMMIT_TS: commits})


def read_feed(part: "ChangesPartition", rows: ChangeRows) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part on an executor, in order.

    Raises StaleRead when history of the part is gone, Unavailable when storage or the capture does not answer
    or has given up rows of the part.
    """
    from penstock.spark.tables import require_storage

    for partition in part.table.partitions:
        require_storage(partition.storage, partition.table_id)
    with part.collect() as handle:
        for batch in handle:
            yield rows.of(batch)


def _part_rows(
    states: "Iterable[PartitionState]", from_ts: int, to_ts: int, part_bytes: int, parallelism: int
) -> int:
    infos = [
        info
        for state in states
        for side in ("data", "tombstone")
        for info in (
            state.change_objects(side, from_ts, to_ts)
            if from_ts
            else state.visible_objects(side, min(to_ts, state.flushed_ts))
        )
    ]
    rows, nbytes = sum(info.rows for info in infos), sum(info.size_bytes for info in infos)
    largest = max(1, part_bytes * rows // nbytes) if nbytes else _PART_ROWS_MIN
    return min(largest, max(_PART_ROWS_MIN, -(-rows // (_PARTS_PER_TASK * parallelism))))


Shape = dict[str, tuple[int, pa.DataType]]
"""Columns by name, with their ids and types."""


@dataclass(frozen=True, slots=True)
class DeclaredSchema:
    """The table when a stream was declared, and the columns that the stream has.

    `wanted` is None for all of the table's columns: then a new column stops the stream, too.
    """

    table: TableInfo
    ts: int
    wanted: tuple[str, ...] | None = None

    def first_change(self, versions: Iterable[SchemaVersion]) -> SchemaVersion | None:
        """Return the first of a table's versions, by time, that is later and has other columns.

        Rows of earlier versions are read as the declared one.
        """
        shape = _shape(self.table, self.wanted)
        later = (version for version in versions if version.since_ts > self.ts)
        return next((version for version in later if _shape(version.table, self.wanted) != shape), None)

    def stop_error(self, change: SchemaVersion) -> Invalid:
        """Return the error that ends a stream at a change: the columns that differ, and the remedy."""
        before, after = _shape(self.table, self.wanted), _shape(change.table, self.wanted)
        differences = [
            *(f"{name} is new" for name in after if name not in before),
            *(f"{name} is gone" for name in before if name not in after),
            *(f"{name} is another" for name in before if name in after and before[name] != after[name]),
        ]
        return Invalid(
            f"columns of {change.name} change at version {change.since_ts} ({', '.join(differences)});"
            " load the stream again and restart the query from its checkpoint"
        )


def _shape(table: TableInfo, wanted: Collection[str] | None) -> Shape:
    names = None if wanted is None else {name.lower() for name in wanted}
    return {
        column.name: (column.id, arrow_type(column.type))
        for column in table.stored_columns
        if names is None or column.name.lower() in names
    }
