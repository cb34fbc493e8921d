"""Ranges of a table's changes, with their ends fixed and their sizes known, and how they are read."""

from collections.abc import Collection, Sequence

from penstock.changes.collect import fix_range, open_range, schema_parts
from penstock.changes.columns import chosen_columns, columns_read
from penstock.changes.limits import ChangeCounts, ReadLimit
from penstock.changes.options import ChangeOptionsArgs
from penstock.eventstore.read.partition import PartitionState, TableView
from penstock.follow.source import TableScan


def scan_snapshot(view: TableView, ts: int) -> TableScan:
    """All rows at `ts`. Raises as reading them does."""
    view, states, _ = fix_range(view, 0, ts)
    sizes = [_snapshot_size(state, ts) for state in states]
    return TableScan(
        view=view,
        from_ts=0,
        to_ts=ts,
        schema=states[0].schema_at(ts),
        rows=sum(rows for rows, _ in sizes),
        nbytes=sum(nbytes for _, nbytes in sizes),
    )


def _snapshot_size(state: PartitionState, ts: int) -> tuple[int, int]:
    """About how many rows of a partition there are, and bytes: deleted ones count."""
    objects = state.visible("data", min(ts, state.flushed_ts))
    rows, nbytes = sum(each.rows for each in objects), sum(each.size_bytes for each in objects)
    if ts > state.flushed_ts:
        more, more_bytes = ChangeCounts([state], state.flushed_ts, ts).weigh(ts)
        rows, nbytes = rows + more, nbytes + more_bytes
    return rows, nbytes


def scan_tail(view: TableView, from_ts: int, to_ts: int, limit: ReadLimit) -> TableScan:
    """Changes in (from_ts, to_ts], as many as the limit allows: whole commits, and at least one.

    The range also ends before a partition is added. Raises as reading changes does.
    """
    view, states, to_ts = fix_range(view, from_ts, to_ts, one_set=True)
    counts = ChangeCounts(states, from_ts, to_ts)
    end_ts = counts.admitted_ts(limit) if counts.any() else to_ts
    rows, nbytes = counts.weigh(end_ts)
    before, *_ = versions = states[0].schemas(from_ts, end_ts)
    return TableScan(
        view=view,
        from_ts=from_ts,
        to_ts=end_ts,
        schema=versions[-1],
        rows=rows,
        nbytes=nbytes,
        before=before,
    )


def change_wishes(view: TableView, scan: TableScan, columns: Collection[str] | None) -> ChangeOptionsArgs:
    """What to ask of a reader of changes, for those who get columns of the table at the end of the range.

    A row replaces the one that was there. Who has applied a part of it gets what undoes that.
    """
    found = ChangeOptionsArgs(replay=True, skip_deletes=True)
    if columns is not None:
        found["columns"] = _names(view, scan, columns)
    return found


def _names(view: TableView, scan: TableScan, columns: Collection[str]) -> Sequence[str]:
    """What the columns were called, whenever that was; they may have had other names."""
    wanted: list[str] = chosen_columns(scan.schema.table, columns).names
    if scan.snapshot or scan.schema.since_ts <= scan.from_ts + 1:
        return wanted
    states = open_range(view, scan.from_ts, scan.to_ts)
    versions = [schema for _, _, schema in schema_parts(states, scan.from_ts, scan.to_ts)]
    return sorted(columns_read(versions, scan.schema, wanted))
