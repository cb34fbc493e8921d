"""Changes on their way to consumers: in one schema, in the order in which they take effect, the same for all.

`BatchProjection` turns changes of any version of a table into batches of the version that an iteration ends
with. `iter_in_order` orders batches that overlap: a TAIL_WIP batch may have to be applied after what follows
it, so it is kept, on disk if it is large, until a TAIL_DONE closes it.
"""

from collections.abc import Generator, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.changes.batches import ChangeBatch, Hint
from penstock.changes.columns import key_names
from penstock.columnar.spill_queue import SPOOL_BYTES, SpillTable
from penstock.eventstore.schema_version import Projection, SchemaVersion
from penstock.eventstore.sides import COMMIT_TS
from penstock.jobs.schema_changes import check_keys
from penstock.tables.schema import TableInfo


class ConsumerBatch(NamedTuple):
    """What one `next` of a consumer returns, with the columns of all consumers. `last`: nothing follows."""

    inserts: pa.RecordBatch
    deletes: pa.RecordBatch
    last: bool = False

    @property
    def rows(self) -> int:
        """The rows of both sides."""
        return int(self.inserts.num_rows + self.deletes.num_rows)

    @property
    def nbytes(self) -> int:
        """The approximate memory of both sides."""
        return int(self.inserts.nbytes + self.deletes.nbytes)


def mark_last(batches: Iterable[ConsumerBatch], nothing: ConsumerBatch) -> Iterator[ConsumerBatch]:
    """Yield the batches with `last` set on the last one; if there are none, yield `nothing` as the last."""
    held: ConsumerBatch | None = None
    for batch in batches:
        if held is not None:
            yield held
        held = batch
    yield (held or nothing)._replace(last=True)


class _SideProjections(NamedTuple):
    inserts: Projection
    deletes: Projection


class BatchProjection:
    """Makes batches with `columns`, which include the key's.

    A column that was added later has its default in older rows; a dropped column is left out. Defaults that
    no calendar has are null, unless `impossible_dates` keeps them.
    """

    def __init__(
        self, schema: SchemaVersion, columns: Iterable[str], *, impossible_dates: bool = False
    ) -> None:
        self._impossible_dates = impossible_dates
        self._table = schema.table
        self._inserts = [*columns, COMMIT_TS]
        self._deletes = [*key_names(schema.table), COMMIT_TS]
        self._known: dict[int, _SideProjections] = {}
        self._now = self._sides(self._table)

    @property
    def inserts(self) -> pa.Schema:
        """The schema of the inserts of all batches."""
        return self._now.inserts.schema

    @property
    def deletes(self) -> pa.Schema:
        """The schema of the deletes of all batches."""
        return self._now.deletes.schema

    @property
    def nothing(self) -> ConsumerBatch:
        """A batch without rows."""
        return ConsumerBatch(
            pa.RecordBatch.from_pylist([], self.inserts), pa.RecordBatch.from_pylist([], self.deletes)
        )

    def project(self, batch: ChangeBatch) -> ConsumerBatch:
        """Return the changes of a batch; raise SchemaRefused when its rows have another key than now."""
        sides = self._known.get(batch.schema.version)
        if sides is None:
            check_keys(batch.schema.table, self._table)
            sides = self._known[batch.schema.version] = self._sides(batch.schema.table)
        return ConsumerBatch(sides.inserts.apply(batch.data), sides.deletes.apply(batch.tombstones))

    def _sides(self, old: TableInfo) -> _SideProjections:
        inserts, deletes = (
            Projection(old, self._table, names, impossible_dates=self._impossible_dates)
            for names in (self._inserts, self._deletes)
        )
        return _SideProjections(inserts, deletes)


BATCH_ROWS = 16 * 1024

Ints = npt.NDArray[np.int64]


def iter_in_order(
    batches: Iterable[ChangeBatch],
    projection: BatchProjection,
    scratch: Path,
    *,
    memory_bytes: int = SPOOL_BYTES,
    batch_rows: int = BATCH_ROWS,
) -> Generator[ConsumerBatch, None, None]:
    """Yield all changes in batches: no change comes before one of an earlier batch.

    Within a batch too, smaller `_commit_ts` come first, and at equal ones the deletes. Raises OSError when
    the disk does not accept what has to be kept.
    """
    open_batches: _OpenBatches | None = None
    try:
        for batch in batches:
            projected = projection.project(batch)
            if batch.hint is not Hint.TAIL_WIP and open_batches is None:
                yield projected
                continue
            if open_batches is None:
                open_batches = _OpenBatches(projection, scratch, memory_bytes)
            open_batches.add(projected)
            if batch.hint is Hint.TAIL_DONE:
                inserts, deletes = open_batches.finish()
                open_batches = None
                yield from merge_sides(inserts, deletes, batch_rows)
        assert open_batches is None, "a handle ends with a batch that closes those before it"
    finally:
        if open_batches is not None:
            open_batches.discard()


class _OpenBatches:
    """Batches that wait for the TAIL_DONE that closes them."""

    def __init__(self, projection: BatchProjection, scratch: Path, memory_bytes: int) -> None:
        half = memory_bytes // 2
        self._inserts = SpillTable(projection.inserts, scratch / "kept-inserts.arrow", memory_bytes=half)
        self._deletes = SpillTable(projection.deletes, scratch / "kept-deletes.arrow", memory_bytes=half)

    def add(self, batch: ConsumerBatch) -> None:
        self._inserts.add(batch.inserts)
        self._deletes.add(batch.deletes)

    def finish(self) -> tuple[pa.Table, pa.Table]:
        return self._inserts.finish(), self._deletes.finish()

    def discard(self) -> None:
        self._inserts.discard()
        self._deletes.discard()


def merge_sides(inserts: pa.Table, deletes: pa.Table, batch_rows: int) -> Iterator[ConsumerBatch]:
    """Yield batches of both sides in order of time, whatever order the sides have."""
    # The times of inserts are `begun` and those of deletes `ended`: so a row version begins and ends.
    begun, ended = _times(inserts), _times(deletes)
    if not len(begun) or not len(ended) or ended.max() <= begun.min():
        bounds = [(0, 0), (0, len(ended)), (len(begun), len(ended))]
    else:
        bounds = _find_bounds(begun, ended, batch_rows)
    sides = _Ordered(inserts, begun), _Ordered(deletes, ended)
    for (low_begun, low_ended), (high_begun, high_ended) in pairwise(bounds):
        yield from _cut_batches(sides, (low_begun, high_begun), (low_ended, high_ended), batch_rows)


def _find_bounds(begun: Ints, ended: Ints, batch_rows: int) -> list[tuple[int, int]]:
    """Return how many rows of each side come before the end of each batch."""
    times = np.concatenate((np.sort(ended), np.sort(begun)))
    # The order is by time, and at equal times deletes (False) come before inserts (True).
    is_insert = np.repeat(np.array([False, True]), [len(ended), len(begun)])
    inserts = np.concatenate(([0], np.cumsum(is_insert[np.lexsort((is_insert, times))])))
    cuts = [*range(0, len(times), batch_rows), len(times)]
    return [(int(inserts[cut]), cut - int(inserts[cut])) for cut in cuts]


class _Ordered:
    """The rows of a side, ordered by time."""

    def __init__(self, rows: pa.Table, times: Ints) -> None:
        self.rows = rows
        ordered = not len(times) or bool(np.all(times[1:] >= times[:-1]))
        self._order = None if ordered else np.argsort(times, kind="stable")

    def between(self, low: int, high: int) -> pa.RecordBatch:
        part = (
            self.rows.slice(low, high - low)
            if self._order is None
            else self.rows.take(pa.array(self._order[low:high]))
        )
        batches = part.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], self.rows.schema)


def _cut_batches(
    sides: tuple[_Ordered, _Ordered], begun: tuple[int, int], ended: tuple[int, int], batch_rows: int
) -> Iterator[ConsumerBatch]:
    """Yield rows of both sides; divide them where only one side has some."""
    inserts, deletes = sides
    longest = max(begun[1] - begun[0], ended[1] - ended[0])
    assert longest <= batch_rows or begun[0] == begun[1] or ended[0] == ended[1], "one side is cut at a time"
    for start in range(0, longest, batch_rows):
        yield ConsumerBatch(
            inserts.between(*_part(begun, start, batch_rows)),
            deletes.between(*_part(ended, start, batch_rows)),
        )


def _part(bounds: tuple[int, int], start: int, rows: int) -> tuple[int, int]:
    low = min(bounds[0] + start, bounds[1])
    return low, min(low + rows, bounds[1])


def _times(rows: pa.Table) -> Ints:
    return np.asarray(rows.column(COMMIT_TS).to_numpy(), np.int64)
