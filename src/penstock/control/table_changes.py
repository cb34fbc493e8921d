"""Reads the changes of a table between two timestamps, in commit order, with an operation for each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes import ChangeBatch, ChangesHandle, Hint, collect_changes
from penstock.changes.collect import open_range, schema_parts
from penstock.changes.columns import choose_columns, key_names, list_read_columns
from penstock.changes.limits import ReadLimit
from penstock.clock import compose_ts, physical_ms
from penstock.control.deployment import Deployment
from penstock.errors import Conflict, Invalid, StaleRead
from penstock.eventstore.schema_version import Projection
from penstock.eventstore.sides import COMMIT_TS, HANDLE, OLD, UPDATE
from penstock.follow.source import ReadableRange, TableScan
from penstock.tables.accounts import SYSTEM_ACCOUNT
from penstock.tables.schema import TableInfo
from penstock.tables.schema_snapshot import TablePlace

__all__ = [
    "OP",
    "ChangeReader",
    "ChangesRequest",
    "ResolvedRange",
    "change_schema",
    "open_changes",
    "resolve_range",
]

OP = "_op"
INSERT, UPDATED, DELETE = "insert", "update", "delete"
_LAST_MS = 3_600_000
_BATCH_ROWS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesRequest:
    """A range (from_ts, to_ts] of a table, and some of its columns; the key columns are always included.

    Without `from_ts` the range begins an hour before its end, or where the readable history begins. Without
    `to_ts` it ends where the table can be read. With from_ts = 0 it is the rows of the table at to_ts.
    """

    from_ts: int | None = None
    to_ts: int | None = None
    columns: Sequence[str] | None = None
    account: str = SYSTEM_ACCOUNT.name
    """The account that asks; `sys` reads the tables of all."""


@dataclass(frozen=True, slots=True)
class ResolvedRange:
    """A range with both ends known; `scan` is what one read covers of it, None when the range is empty."""

    from_ts: int
    to_ts: int
    scan: TableScan | None

    @property
    def end_ts(self) -> int:
        """The end of what one read covers."""
        return self.to_ts if self.scan is None else self.scan.to_ts


def resolve_range(
    deployment: Deployment, place: TablePlace, request: ChangesRequest, limit: ReadLimit
) -> ResolvedRange:
    """Resolve the ends of a range; cover as many whole transactions as the limit allows, at least one.

    Raises Conflict when the range is not complete yet, Invalid when from_ts is above to_ts, and StaleRead
    when its history is gone, or when a statement such as TRUNCATE replaced rows without changes of them.
    Raises TableGone when the table was another account's in a part of the range.
    """
    name = f"{place.database.name}.{place.table.name}"
    progress = deployment.readable_ranges([place.table.id]).get(place.table.id)
    if progress is None:
        raise Conflict(
            f"table {name} is not captured; start a capture whose capture.tables contain it, or wait for it"
        )
    if progress.refusal is not None and not progress.readable_ts:
        raise Conflict(f"table {name} cannot be captured: {progress.refusal.reason}")
    _check_columns(place, request.columns)
    from_ts, to_ts = _range_ends(name, request, progress)
    if from_ts == to_ts:
        return ResolvedRange(from_ts, to_ts, None)
    try:
        scan = deployment.source.scan(place.table.id, from_ts, to_ts, limit, named=True)
    except StaleRead as error:
        if request.from_ts is not None or not from_ts < error.oldest_ts <= to_ts:
            raise
        later = replace(request, from_ts=error.oldest_ts, to_ts=to_ts)
        return resolve_range(deployment, place, later, limit)
    return ResolvedRange(from_ts, to_ts, scan.check_account(request.account))


def _range_ends(name: str, request: ChangesRequest, progress: ReadableRange) -> tuple[int, int]:
    to_ts = progress.readable_ts if request.to_ts is None else request.to_ts
    if to_ts > progress.readable_ts:
        if progress.refusal is not None:
            raise Conflict(
                f"table {name} can be read up to {progress.readable_ts}, and no further because it cannot be"
                f" captured: {progress.refusal.reason}"
            )
        raise Conflict(
            f"table {name} can be read up to {progress.readable_ts}, not up to {to_ts} yet; ask again later"
        )
    hour_before = compose_ts(max(0, physical_ms(to_ts) - _LAST_MS))
    from_ts = request.from_ts
    if from_ts is None:
        from_ts = min(to_ts, max(1, progress.oldest_ts, hour_before))
    if from_ts > to_ts:
        raise Invalid(f"({from_ts}, {to_ts}] is not a range; from_ts must not be above to_ts")
    return from_ts, to_ts


def _check_columns(place: TablePlace, columns: Sequence[str] | None) -> None:
    for name in columns or ():
        place.table.column(name)


def open_changes(scan: TableScan, columns: Sequence[str] | None) -> "ChangeReader":
    """Open the changes of a resolved range.

    Raises StaleRead when the history of the range is gone; iterating may raise it too.
    """
    shown = choose_columns(scan.schema.table, columns)
    names = [name for name in shown.names if name != HANDLE]
    system = [HANDLE] if HANDLE in shown.names else []
    if not scan.snapshot:
        system.append(UPDATE)
    handle = collect_changes(
        scan.view,
        scan.from_ts,
        scan.to_ts,
        columns=[*_names_read(scan, names), *system],
        coalesce=False,
        skip_deletes=True,
        old_rows=not scan.snapshot,
        batch_rows=_BATCH_ROWS,
    )
    return ChangeReader(handle, scan, shown)


def _names_read(scan: TableScan, names: Sequence[str]) -> list[str]:
    """Return the names that the columns have in the schema versions of the range: some may be renamed."""
    if scan.snapshot or scan.schema.since_ts <= scan.from_ts + 1:
        return list(names)
    states = open_range(scan.view, scan.from_ts, scan.to_ts)
    versions = [schema for _, _, schema in schema_parts(states, scan.from_ts, scan.to_ts)]
    return sorted(list_read_columns(versions, scan.schema, names))


def change_schema(columns: pa.Schema) -> pa.Schema:
    """Return the schema of changes: the operation, the commit timestamp, then the columns of the table."""
    system = [pa.field(OP, pa.string(), nullable=False), pa.field(COMMIT_TS, pa.int64(), nullable=False)]
    return pa.schema([*system, *(pa.field(field.name, field.type) for field in columns)])


class ChangeReader:
    """Batches of `schema`: `_op`, `_commit_ts`, then columns as the table has them at the end of the range.

    Changes are ordered by commit timestamp, deletes first within one; the order is the same for every read of
    a range. A delete shows the row that it removed, or only its key when the old row is unknown. Close it
    after use. Not thread-safe.
    """

    def __init__(self, handle: ChangesHandle, scan: TableScan, shown: pa.Schema) -> None:
        self._handle = handle
        self._table = scan.schema.table
        self._shown = shown
        self.schema = change_schema(shown)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._handle:
            if batch.data.num_rows or batch.tombstones.num_rows:
                yield self._merge_sides(batch)

    def close(self) -> None:
        """Close everything that is open. A second call does nothing."""
        self._handle.close()

    def _merge_sides(self, batch: ChangeBatch) -> pa.RecordBatch:
        """Return the rows and the tombstones of a batch as one batch, in commit order."""
        table = batch.schema.table
        if batch.hint is Hint.SNAPSHOT:
            return self._side(batch.data, pa.array([INSERT] * batch.data.num_rows, pa.string()), table)
        replaced = batch.data.column(UPDATE)
        deleted = self._side(
            _ended_rows(batch.tombstones, table),
            pa.array([DELETE] * batch.tombstones.num_rows, pa.string()),
            table,
        )
        written = self._side(batch.data, pc.if_else(replaced, UPDATED, INSERT), table)
        changes = pa.concat_batches([deleted, written])
        # A stable sort keeps the deletes before the writes of the same commit.
        order = np.argsort(changes.column(COMMIT_TS).to_numpy(), kind="stable")
        return changes.take(pa.array(order))

    def _side(self, rows: pa.RecordBatch, ops: pa.Array, table: TableInfo) -> pa.RecordBatch:
        projected = Projection(table, self._table, self._shown.names).apply(rows)
        return pa.RecordBatch.from_arrays(
            [ops, rows.column(COMMIT_TS), *projected.columns], schema=self.schema
        )


def _ended_rows(tombstones: pa.RecordBatch, table: TableInfo) -> pa.RecordBatch:
    """Return the removed rows of tombstones: the old row where it is known, else its key."""
    old = tombstones.column(OLD)
    columns = {
        field.name: pc.struct_field(old, [index]) for index, field in enumerate(old.type)
    }  # a field is null where the whole old row is
    for name in key_names(table):
        known = tombstones.column(name)
        columns[name] = pc.coalesce(columns[name], known) if name in columns else known
    columns[COMMIT_TS] = tombstones.column(COMMIT_TS)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
