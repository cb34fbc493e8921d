"""Net changes as rows of one kind, with a column that says which of them are deletes. Pure but for spools."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.batches import ChangeBatch
from penstock.changes.columns import DELETED, key_names, with_commit_ts
from penstock.changes.netchanges import NetChanges, net_of
from penstock.errors import Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import COMMIT_TS
from penstock.jobs.iteration.projecting import PieceProjection


def net_schema(columns: pa.Schema) -> pa.Schema:
    """The columns, `_commit_ts` and `_deleted`; raise Invalid when the table has a column of such a name."""
    for name in columns.names:
        if name.lower() in {COMMIT_TS, DELETED}:
            raise Invalid(
                f"column {name} has a name that DataFrames of changes need; leave it out with columns"
            )
    return with_commit_ts(columns).append(pa.field(DELETED, pa.bool_(), nullable=False))


def net_rows(
    batches: Iterable[ChangeBatch],
    schema: SchemaVersion,
    columns: pa.Schema,
    scratch: Path,
    *,
    distinct: bool = False,
) -> Iterator[pa.RecordBatch]:
    """One row for each key that changed in some batches; `columns` are those of `schema`, the key's first."""
    projection = PieceProjection(schema, columns.names)
    pieces = (projection.piece(batch) for batch in batches)
    if distinct:
        return (_marked(piece.inserts, deleted=False) for piece in pieces if piece.rows)
    pairs = ((piece.inserts, piece.deletes) for piece in pieces)
    return _rows(net_of(pairs, columns, key_names(schema.table), scratch), columns)


def last_rows(
    batches: Iterable[pa.RecordBatch], keys: Sequence[str], scratch: Path
) -> Iterator[pa.RecordBatch]:
    """The last row of each key, out of rows that `net_rows` gave for several parts of a range."""
    source = iter(batches)
    first = next(source, None)
    if first is None:
        return iter(())
    columns = pa.schema([each for each in first.schema if each.name not in {COMMIT_TS, DELETED}])
    pairs = (_sides(batch, columns, keys) for batch in _with(first, source))
    return _rows(net_of(pairs, columns, keys, scratch), columns)


def _with(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from others


def _sides(
    batch: pa.RecordBatch, columns: pa.Schema, keys: Sequence[str]
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Upserts and deletes of marked rows."""
    begun = with_commit_ts(columns)
    ended = pa.schema([begun.field(name) for name in (*keys, COMMIT_TS)])
    deleted = batch.column(DELETED)
    inserts, deletes = batch.filter(pc.invert(deleted)), batch.filter(deleted)
    return inserts.select(begun.names).cast(begun), deletes.select(ended.names).cast(ended)


def _rows(net: NetChanges, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in net.upserts.to_batches():
        yield _marked(batch, deleted=False)
    begun = with_commit_ts(columns)
    for batch in net.deletes.to_batches():
        known = set(batch.schema.names)
        arrays = [
            batch.column(field.name) if field.name in known else pa.nulls(len(batch), field.type)
            for field in begun
        ]
        yield _marked(pa.RecordBatch.from_arrays(arrays, schema=begun), deleted=True)


def _marked(batch: pa.RecordBatch, *, deleted: bool) -> pa.RecordBatch:
    field = pa.field(DELETED, pa.bool_(), nullable=False)
    return batch.append_column(field, pa.repeat(deleted, len(batch)))
