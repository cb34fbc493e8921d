"""Batches of changes as rows of the change feed: Delta's vocabulary, in one schema. Pure."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes import ChangeBatch
from penstock.clock import LOGICAL_BITS
from penstock.errors import Invalid
from penstock.eventstore.projection import Projection
from penstock.eventstore.sides import COMMIT_TS, HANDLE, OLD, START_TS, UPDATE
from penstock.tables.schema import TableInfo

__all__ = ["CHANGE_TYPE", "COMMIT_TIMESTAMP", "COMMIT_VERSION", "FEED_BATCH_ROWS", "ChangeRows"]

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
FEED_BATCH_ROWS = 32 * 1024
"""What to collect changes with: Spark takes large batches better than small ones."""

_FEED = [
    pa.field(CHANGE_TYPE, pa.string(), nullable=False),
    pa.field(COMMIT_VERSION, pa.int64(), nullable=False),
    pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC"), nullable=False),
]
_FEED_NAMES = frozenset(field.name for field in _FEED)
_SYSTEM = (HANDLE, START_TS)
_MICROSECONDS = 1000  # in the millisecond that the physical part of a timestamp counts

Ints = npt.NDArray[np.int64]


class ChangeRows:
    """Change-feed rows of `table`, whatever the version of the schema that they were written with.

    `schema` has the table's columns, or those of `columns` (which may name `_handle` and `_start_ts` too),
    then the type of the change and its time. Columns are the same when their ids are: one that was renamed
    has its values, one that was added reads as the database reads it in older rows. Can be pickled. Raises
    Invalid when the table has no such column, or one with a name of the feed's own.
    """

    def __init__(self, table: TableInfo, columns: Sequence[str] | None = None) -> None:
        self._table = table
        self._names = _names(table, columns)
        shown = Projection(table, table, self._names).schema
        self.schema = pa.schema([*shown, *_FEED])

    def reads(self, versions: Iterable[TableInfo]) -> tuple[str, ...]:
        """The `columns` with which to collect changes of a range that has these versions of the table.

        Changes have to be collected with `coalesce` off and `old_rows` on.
        """
        wanted = {self._table.column(name).id for name in self._names if name not in _SYSTEM}
        stored = (
            column.name
            for table in (*versions, self._table)
            for column in table.stored_columns
            if column.id in wanted
        )
        system = [HANDLE] if HANDLE in self._names else []
        return tuple(dict.fromkeys([*stored, *system, START_TS, UPDATE]))

    def of(self, batch: ChangeBatch) -> pa.RecordBatch:
        """The rows of a batch, ordered by commit and start of their transactions.

        Of one transaction the rows that end, update_preimage and delete, come before those that begin. Raises
        Corrupt when a value is none of its column's later type.
        """
        version = batch.schema.table
        ended = self._rows(version, self._old(version, batch.tombstones), batch.tombstones, _ENDS)
        ended = self._without_defaults(version, ended, batch.tombstones)
        begun = self._rows(version, batch.data, batch.data, _BEGINS)
        if not ended.num_rows or not begun.num_rows:
            return ended if ended.num_rows else begun
        rows = pa.concat_batches([ended, begun])
        order = _order(batch.tombstones, batch.data)
        return rows if _is_rising(order) else rows.take(pa.array(order))

    def _rows(
        self, version: TableInfo, rows: pa.RecordBatch, changes: pa.RecordBatch, kinds: pa.Array
    ) -> pa.RecordBatch:
        shown = Projection(version, self._table, self._names).apply(rows)
        commit_ts = changes.column(COMMIT_TS)
        columns = [*shown.columns, kinds.take(changes.column(UPDATE).cast(pa.int8())), commit_ts]
        return pa.RecordBatch.from_arrays([*columns, _timestamps(commit_ts)], schema=self.schema)

    def _old(self, version: TableInfo, tombstones: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that ended; null where only their keys are known, but for those."""
        old = tombstones.column(OLD)
        found = dict(zip((field.name for field in old.type), old.flatten(), strict=True))
        if old.null_count:
            found |= {name: tombstones.column(name) for name in _keys(version, tombstones)}
        found |= {name: tombstones.column(name) for name in _SYSTEM if name in tombstones.schema.names}
        return pa.RecordBatch.from_arrays(list(found.values()), names=list(found))

    def _without_defaults(
        self, version: TableInfo, rows: pa.RecordBatch, tombstones: pa.RecordBatch
    ) -> pa.RecordBatch:
        """Rows without what was filled in for columns that came later, where the old row is not known."""
        old = tombstones.column(OLD)
        stored = {column.id for column in version.stored_columns}
        filled = [
            name
            for name in self._names
            if name not in _SYSTEM and self._table.column(name).id not in stored and old.null_count
        ]
        for name in filled:
            at = rows.schema.get_field_index(name)
            known = pc.if_else(old.is_valid(), rows.column(at), pa.scalar(None, rows.schema.field(at).type))
            rows = rows.set_column(at, rows.schema.field(at), known)
        return rows


_ENDS = pa.array(["delete", "update_preimage"])  # by whether the change is an update
_BEGINS = pa.array(["insert", "update_postimage"])


def _names(table: TableInfo, columns: Sequence[str] | None) -> tuple[str, ...]:
    """The columns as the table spells them; those of the feed come anyway."""
    stored = [column.name for column in table.stored_columns]
    if columns is None:
        names = tuple(stored)
    else:
        asked = [name for name in columns if name not in _FEED_NAMES]
        names = tuple(name if name in _SYSTEM else table.column(name).name for name in asked)
    taken = sorted(_FEED_NAMES & {name.lower() for name in names})
    if taken:
        raise Invalid(
            f"table {table.name} has a column {taken[0]}, as the change feed has; name others in columns"
        )
    return names


def _keys(version: TableInfo, tombstones: pa.RecordBatch) -> list[str]:
    return [column.name for column in version.primary_key if column.name in tombstones.schema.names]


def _timestamps(commit_ts: pa.Array) -> pa.Array:
    """The physical part, which is milliseconds."""
    micros = (commit_ts.to_numpy() >> LOGICAL_BITS) * _MICROSECONDS
    return pa.array(micros).cast(pa.timestamp("us", tz="UTC"))


def _order(ended: pa.RecordBatch, begun: pa.RecordBatch) -> Ints:
    """Where the rows of both sides, one behind the other, go; each side is in order already."""
    commits, starts = (
        np.concatenate([side.column(name).to_numpy() for side in (ended, begun)])
        for name in (COMMIT_TS, START_TS)
    )
    return np.lexsort((starts, commits))  # stable: at one place the rows that end stay before


def _is_rising(order: Ints) -> bool:
    return bool(np.all(order[1:] > order[:-1]))
