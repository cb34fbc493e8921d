"""Changes from nothing: the rows of a table at one timestamp."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from penstock.changes.batches import ChangeBatch, Hint
from penstock.changes.handle import Batches
from penstock.changes.options import ChangeOptions, ReadColumns, check_columns
from penstock.eventstore.read.partition import TableView
from penstock.eventstore.read.snapshot import read_snapshot
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import UPDATE


def snapshot_batches(table: TableView, schema: SchemaVersion, ts: int, options: ChangeOptions) -> Batches:
    """The rows of a table at `ts`, where it has a schema; all of them begin there for the reader."""
    names = snapshot_columns(schema, options)
    rows = read_snapshot(table, ts, columns=names, batch_rows=2 * options.batch_rows)
    return as_batches(rows, schema, options, complete_ts=ts)


def snapshot_columns(schema: SchemaVersion, options: ChangeOptions) -> list[str]:
    """The columns to read for the data side; raise Invalid when the table has none of a name asked for."""
    check_columns([schema.table], options)
    return list(ReadColumns.of(schema.table, options).data.shown.names)


def as_batches(
    rows: Iterable[pa.RecordBatch], schema: SchemaVersion, options: ChangeOptions, *, complete_ts: int
) -> Batches:
    """Rows as batches without tombstones. The last one is complete up to `complete_ts`, and may be empty."""
    columns = ReadColumns.of(schema.table, options)
    nothing = pa.RecordBatch.from_pylist([], columns.tombstone.shown)
    held = pa.RecordBatch.from_pylist([], columns.data.shown)
    for batch in rows:
        if held.num_rows:
            yield ChangeBatch(held, nothing, Hint.SNAPSHOT, schema, 0)
        held = _as_inserts(batch.select(columns.data.shown.names))
    yield ChangeBatch(held, nothing, Hint.SNAPSHOT, schema, complete_ts)


def _as_inserts(batch: pa.RecordBatch) -> pa.RecordBatch:
    if UPDATE not in batch.schema.names:
        return batch
    at = batch.schema.get_field_index(UPDATE)
    return batch.set_column(at, batch.schema.field(at), pa.array(np.zeros(batch.num_rows, np.bool_)))
