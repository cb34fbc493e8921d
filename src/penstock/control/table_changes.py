"""The changes of a table between two timestamps, one after the other, as people and programs ask for them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes import ChangeBatch, ChangesHandle, Hint, collect_changes
from penstock.changes.collect import open_range, schema_parts
from penstock.changes.columns import chosen_columns, columns_read, key_names
from penstock.changes.limits import ReadLimit
from penstock.clock import compose_ts, physical_ms
from penstock.control.deployment import Deployment
from penstock.errors import Conflict, Invalid, StaleRead
from penstock.eventstore.schema_version import Projection
from penstock.eventstore.sides import COMMIT_TS, HANDLE, OLD, UPDATE
from penstock.follow.source import ReadableRange, TableScan
from penstock.tables.schema import TableInfo
from penstock.tables.schema_snapshot import TablePlace

__all__ = ["OP", "Asked", "ChangeReader", "ResolvedRange", "fixed", "opened", "shown_schema"]

OP = "_op"
INSERT, UPDATED, DELETE = "insert", "update", "delete"
_LAST_MS = 3_600_000
_BATCH_ROWS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A range (from_ts, to_ts] of a table, and some of its columns; the key's always come.

    Without `from_ts` it begins an hour before its end, or where history does that can be told. Without
    `to_ts` it ends where the table can be read. from_ts = 0 stands for the rows that there are at to_ts.
    """

    from_ts: int | None = None
    to_ts: int | None = None
    columns: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class ResolvedRange:
    """A range whose ends are known, and what of it is read at once; None: nothing can be in it."""

    from_ts: int
    to_ts: int
    scan: TableScan | None

    @property
    def end_ts(self) -> int:
        """Up to where it is read."""
        return self.to_ts if self.scan is None else self.scan.to_ts


def fixed(deployment: Deployment, place: TablePlace, asked: Asked, limit: ReadLimit) -> ResolvedRange:
    """Fix a range, as much of it as the limit allows in whole transactions, and at least one.

    Raises Conflict when it is not complete yet, Invalid when it is none, and StaleRead as `collect_changes`
    does: its history is gone, or rows came or went in it without a change of any.
    """
    name = f"{place.database.name}.{place.table.name}"
    look = deployment.looks([place.table.id]).get(place.table.id)
    if look is None:
        raise Conflict(
            f"table {name} is not captured, or not yet; start a capture whose capture.tables name it"
        )
    _check_columns(place, asked.columns)
    from_ts, to_ts = _range(name, asked, look)
    if from_ts == to_ts:
        return ResolvedRange(from_ts, to_ts, None)
    try:
        scan = deployment.source.scan(place.table.id, from_ts, to_ts, limit, named=True)
    except StaleRead as error:
        if asked.from_ts is not None or not from_ts < error.oldest_ts <= to_ts:
            raise
        return fixed(deployment, place, replace(asked, from_ts=error.oldest_ts, to_ts=to_ts), limit)
    return ResolvedRange(from_ts, to_ts, scan)


def _range(name: str, asked: Asked, look: ReadableRange) -> tuple[int, int]:
    to_ts = look.readable_ts if asked.to_ts is None else asked.to_ts
    if to_ts > look.readable_ts:
        raise Conflict(f"table {name} can be read up to {look.readable_ts}, not {to_ts} yet; ask again")
    hour_before = compose_ts(max(0, physical_ms(to_ts) - _LAST_MS))
    from_ts = min(to_ts, max(1, look.oldest_ts, hour_before)) if asked.from_ts is None else asked.from_ts
    if from_ts > to_ts:
        raise Invalid(f"({from_ts}, {to_ts}] is no range; from_ts must not be above to_ts")
    return from_ts, to_ts


def _check_columns(place: TablePlace, columns: Sequence[str] | None) -> None:
    for name in columns or ():
        place.table.column(name)


def opened(scan: TableScan, columns: Sequence[str] | None) -> "ChangeReader":
    """Read a range that was fixed. Raises as `collect_changes` does; so does going on."""
    shown = chosen_columns(scan.schema.table, columns)
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
    """What the columns were called in the versions of the range: they may have had other names."""
    if scan.snapshot or scan.schema.since_ts <= scan.from_ts + 1:
        return list(names)
    states = open_range(scan.view, scan.from_ts, scan.to_ts)
    versions = [schema for _, _, schema in schema_parts(states, scan.from_ts, scan.to_ts)]
    return sorted(columns_read(versions, scan.schema, names))


def shown_schema(columns: pa.Schema) -> pa.Schema:
    """Columns of a table, with what is said of each change."""
    said = [pa.field(OP, pa.string(), nullable=False), pa.field(COMMIT_TS, pa.int64(), nullable=False)]
    return pa.schema([*said, *(pa.field(each.name, each.type) for each in columns)])


class ChangeReader:
    """Batches of `schema`: `_op`, `_commit_ts`, then columns as the table has them at the end of the range.

    In the order of their commits, in each one deletes first; always the same for the same range. Of a delete
    the row that ended is shown, or its key where no more is known. A context; use from one thread at a time.
    """

    def __init__(self, handle: ChangesHandle, scan: TableScan, shown: pa.Schema) -> None:
        self._handle = handle
        self._table = scan.schema.table
        self._shown = shown
        self.schema = shown_schema(shown)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._handle:
            if batch.data.num_rows or batch.tombstones.num_rows:
                yield self._listed(batch)

    def close(self) -> None:
        """Let go of everything that is open. Can be called twice."""
        self._handle.close()

    def _listed(self, batch: ChangeBatch) -> pa.RecordBatch:
        """Both sides of a batch as one."""
        table = batch.schema.table
        if batch.hint is Hint.SNAPSHOT:
            return self._side(batch.data, pa.array([INSERT] * batch.data.num_rows, pa.string()), table)
        replaced = batch.data.column(UPDATE)
        deleted = self._side(
            _ended(batch.tombstones, table),
            pa.array([DELETE] * batch.tombstones.num_rows, pa.string()),
            table,
        )
        written = self._side(batch.data, pc.if_else(replaced, UPDATED, INSERT), table)
        joined = pa.concat_batches([deleted, written])
        order = np.argsort(joined.column(COMMIT_TS).to_numpy(), kind="stable")
        return joined.take(pa.array(order))

    def _side(self, rows: pa.RecordBatch, ops: pa.Array, table: TableInfo) -> pa.RecordBatch:
        projected = Projection(table, self._table, self._shown.names).apply(rows)
        return pa.RecordBatch.from_arrays(
            [ops, rows.column(COMMIT_TS), *projected.columns], schema=self.schema
        )


def _ended(tombstones: pa.RecordBatch, table: TableInfo) -> pa.RecordBatch:
    """Rows that ended, by what is known of them: at least the key."""
    old = tombstones.column(OLD)
    columns = {
        field.name: pc.struct_field(old, [place]) for place, field in enumerate(old.type)
    }  # null where the whole row is
    for name in key_names(table):
        known = tombstones.column(name)
        columns[name] = pc.coalesce(columns[name], known) if name in columns else known
    columns[COMMIT_TS] = tombstones.column(COMMIT_TS)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
