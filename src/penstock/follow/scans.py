"""Scans of jobs: ranges of a table's changes with a fixed end and a known size, and how they are read."""

from collections.abc import Collection, Sequence

from penstock.changes.collect import fix_range, open_range, schema_parts
from penstock.changes.columns import choose_columns, list_read_columns
from penstock.changes.limits import ChangeCounts, ReadLimit
from penstock.changes.options import ChangeOptionsArgs
from penstock.eventstore.read.partition import PartitionState, TableView
from penstock.follow.source import TableScan


def scan_snapshot(view: TableView, ts: int) -> TableScan:
    """Fix the scan of all rows at `ts`.

    Raises StaleRead when the history at `ts` is gone, Unavailable when it is not complete yet or storage does
    not answer.
    """
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
    """Return about how many rows and bytes a partition has at `ts`; deleted rows count."""
    objects = state.visible_objects("data", min(ts, state.flushed_ts))
    rows, nbytes = sum(info.rows for info in objects), sum(info.size_bytes for info in objects)
    if ts > state.flushed_ts:
        more, more_bytes = ChangeCounts([state], state.flushed_ts, ts).weigh(ts)
        rows, nbytes = rows + more, nbytes + more_bytes
    return rows, nbytes


def scan_tail(view: TableView, from_ts: int, to_ts: int, limit: ReadLimit) -> TableScan:
    """Fix the scan of the changes in (from_ts, to_ts] within the limit: whole commits, and at least one.

    The range also ends before a partition is added. Raises StaleRead when history from `from_ts` on is gone
    or rows came or went without a change, Unavailable when the range is not complete yet.
    """
    view, states, to_ts = fix_range(view, from_ts, to_ts, one_set=True)
    counts = ChangeCounts(states, from_ts, to_ts)
    end_ts = counts.last_admitted_ts(limit) if counts.has_changes() else to_ts
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


def change_options(view: TableView, scan: TableScan, columns: Collection[str] | None) -> ChangeOptionsArgs:
    """Return the options to read a scan; `columns` are names of the table at the end of the range.

    A row replaces the one with its key (`skip_deletes`). A caller that has applied a part of the range before
    also gets the deletes that undo it (`replay`). Rows are found by their keys (`whole_keys`).
    """
    options = ChangeOptionsArgs(replay=True, skip_deletes=True, whole_keys=True)
    options["columns"] = _names_in_range(view, scan, columns)
    return options


def _names_in_range(
    view: TableView, scan: TableScan, columns: Collection[str] | None
) -> Sequence[str] | None:
    """Return every name that the columns had in the range; None: all that readers see.

    They may have been renamed, or rows had their values before readers saw them.
    """
    wanted: list[str] = choose_columns(scan.schema.table, columns).names
    if scan.snapshot or scan.schema.since_ts <= scan.from_ts + 1:
        return None if columns is None else wanted
    states = open_range(view, scan.from_ts, scan.to_ts)
    versions = [schema for _, _, schema in schema_parts(states, scan.from_ts, scan.to_ts)]
    return sorted(list_read_columns(versions, scan.schema, wanted))
