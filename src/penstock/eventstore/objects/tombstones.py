"""Tombstones on their way into objects: cut by time, then ordered by row id. Vectorised; no I/O."""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from penstock.eventstore.objects.object_file import TOMBSTONE_GROUP_ROWS
from penstock.eventstore.objects.row_ids import RowIds
from penstock.eventstore.sides import COMMIT_TS, OBJECT, OFFSET

OBJECT_ROWS = 8 * TOMBSTONE_GROUP_ROWS
OBJECT_BYTES = 16 * 1024 * 1024
"""Of Arrow. Whoever reads an object for its changes sorts all of it by time, in memory."""


def bounded(ordered: Iterable[pa.RecordBatch], *, within_commit: bool) -> Iterator[list[pa.RecordBatch]]:
    """Divide ordered tombstones into what goes into one object each.

    An object ends at the first commit after it is full, so that no two overlap in time; `within_commit`
    lets it end anywhere, which is right for tombstones of a single transaction.
    """
    group: list[pa.RecordBatch] = []
    rows = nbytes = 0
    for batch in ordered:
        rest = batch
        if group and (rows >= OBJECT_ROWS or nbytes >= OBJECT_BYTES):
            commit = batch.column(COMMIT_TS).to_numpy()
            last = group[-1].column(COMMIT_TS)[-1].as_py()
            kept = 0 if within_commit else int(np.searchsorted(commit, last, side="right"))
            rest = batch.slice(kept)
            if kept:
                group.append(batch.slice(0, kept))
            if rest.num_rows:
                yield group
                group, rows, nbytes = [], 0, 0
        if rest.num_rows:
            group.append(rest)
            rows, nbytes = rows + rest.num_rows, nbytes + rest.nbytes
    if group:
        yield group


def by_row_id(group: list[pa.RecordBatch], ids: RowIds) -> Iterator[pa.RecordBatch]:
    """The tombstones of one object with their row ids, in the order of those, a row group at a time.

    Empties the group: its rows would be in memory twice.
    """
    (whole,) = pa.Table.from_batches(group).combine_chunks().to_batches()
    group.clear()
    order = ids.order(whole.column(COMMIT_TS).to_numpy())
    columns = [whole.schema.get_field_index(name) for name in (OBJECT, OFFSET)]
    for start in range(0, len(order), TOMBSTONE_GROUP_ROWS):
        chosen = order[start : start + TOMBSTONE_GROUP_ROWS]
        batch = whole.take(pa.array(chosen))
        for column, values in zip(columns, ids.columns(chosen), strict=True):
            batch = batch.set_column(column, whole.schema.field(column), values)
        yield batch
