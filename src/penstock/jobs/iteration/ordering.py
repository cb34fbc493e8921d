"""Changes in the order in which they take effect, out of batches that may cross each other.

A batch that is a TAIL_WIP may have to be applied after what follows it. It is kept, on disk when there is
much of it, until a TAIL_DONE closes it.

Changes of any of a table's versions as pieces in the version that an iteration ends with. Pure.

Changes on their way to consumers: in one schema, in order, and the same for all of them.
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
    """What one `next` of a consumer gives, with the columns of all of them. `last`: nothing follows."""

    inserts: pa.RecordBatch
    deletes: pa.RecordBatch
    last: bool = False

    @property
    def rows(self) -> int:
        """Of both sides."""
        return int(self.inserts.num_rows + self.deletes.num_rows)

    @property
    def nbytes(self) -> int:
        """About as much memory."""
        return int(self.inserts.nbytes + self.deletes.nbytes)


def closed(pieces: Iterable[ConsumerBatch], nothing: ConsumerBatch) -> Iterator[ConsumerBatch]:
    """The pieces, of which the last says that it is; `nothing`, if there are none."""
    held: ConsumerBatch | None = None
    for piece in pieces:
        if held is not None:
            yield held
        held = piece
    yield (held or nothing)._replace(last=True)


class _Sides(NamedTuple):
    inserts: Projection
    deletes: Projection


class PieceProjection:
    """Makes pieces with `columns`, the key's among them.

    A column that was added since reads as its default in older rows, one that was dropped is left out.
    """

    def __init__(self, schema: SchemaVersion, columns: Iterable[str]) -> None:
        self._table = schema.table
        self._inserts = [*columns, COMMIT_TS]
        self._deletes = [*key_names(schema.table), COMMIT_TS]
        self._known: dict[int, _Sides] = {}
        self._now = self._sides(self._table)

    @property
    def inserts(self) -> pa.Schema:
        """The schema of one side of all pieces."""
        return self._now.inserts.schema

    @property
    def deletes(self) -> pa.Schema:
        """The schema of the other."""
        return self._now.deletes.schema

    @property
    def nothing(self) -> ConsumerBatch:
        """A piece without rows."""
        return ConsumerBatch(
            pa.RecordBatch.from_pylist([], self.inserts), pa.RecordBatch.from_pylist([], self.deletes)
        )

    def piece(self, batch: ChangeBatch) -> ConsumerBatch:
        """The changes of a batch; raise SchemaRefused when its rows have another key than those now."""
        sides = self._known.get(batch.schema.version)
        if sides is None:
            check_keys(batch.schema.table, self._table)
            sides = self._known[batch.schema.version] = self._sides(batch.schema.table)
        return ConsumerBatch(sides.inserts.apply(batch.data), sides.deletes.apply(batch.tombstones))

    def _sides(self, old: TableInfo) -> _Sides:
        return _Sides(
            Projection(old, self._table, self._inserts), Projection(old, self._table, self._deletes)
        )


PIECE_ROWS = 16 * 1024

Ints = npt.NDArray[np.int64]


def in_order(
    batches: Iterable[ChangeBatch],
    projection: PieceProjection,
    scratch: Path,
    *,
    memory_bytes: int = SPOOL_BYTES,
    piece_rows: int = PIECE_ROWS,
) -> Generator[ConsumerBatch, None, None]:
    """Pieces of all batches: no change of one comes before a change of an earlier one.

    Within a piece too, smaller `_commit_ts` come first, and of equal ones the deletes. Raises OSError when
    the disk does not take what has to be kept.
    """
    kept: _Kept | None = None
    try:
        for batch in batches:
            piece = projection.piece(batch)
            if batch.hint is not Hint.TAIL_WIP and kept is None:
                yield piece
                continue
            if kept is None:
                kept = _Kept(projection, scratch, memory_bytes)
            kept.add(piece)
            if batch.hint is Hint.TAIL_DONE:
                inserts, deletes = kept.finish()
                kept = None
                yield from merged(inserts, deletes, piece_rows)
        assert kept is None, "a handle ends with a batch that closes those before"
    finally:
        if kept is not None:
            kept.discard()


class _Kept:
    """Pieces that wait to be closed."""

    def __init__(self, projection: PieceProjection, scratch: Path, memory_bytes: int) -> None:
        half = memory_bytes // 2
        self._inserts = SpillTable(projection.inserts, scratch / "kept-inserts.arrow", memory_bytes=half)
        self._deletes = SpillTable(projection.deletes, scratch / "kept-deletes.arrow", memory_bytes=half)

    def add(self, piece: ConsumerBatch) -> None:
        self._inserts.add(piece.inserts)
        self._deletes.add(piece.deletes)

    def finish(self) -> tuple[pa.Table, pa.Table]:
        return self._inserts.finish(), self._deletes.finish()

    def discard(self) -> None:
        self._inserts.discard()
        self._deletes.discard()


def merged(inserts: pa.Table, deletes: pa.Table, piece_rows: int) -> Iterator[ConsumerBatch]:
    """Pieces of both sides, whatever their order is."""
    begun, ended = _times(inserts), _times(deletes)
    if not len(begun) or not len(ended) or ended.max() <= begun.min():
        bounds = [(0, 0), (0, len(ended)), (len(begun), len(ended))]
    else:
        bounds = _crossing(begun, ended, piece_rows)
    sides = _Ordered(inserts, begun), _Ordered(deletes, ended)
    for (low_begun, low_ended), (high_begun, high_ended) in pairwise(bounds):
        yield from _pieces(sides, (low_begun, high_begun), (low_ended, high_ended), piece_rows)


def _crossing(begun: Ints, ended: Ints, piece_rows: int) -> list[tuple[int, int]]:
    """How many rows of each side come before the end of each piece."""
    times = np.concatenate((np.sort(ended), np.sort(begun)))
    is_insert = np.repeat(np.array([False, True]), [len(ended), len(begun)])
    inserts = np.concatenate(([0], np.cumsum(is_insert[np.lexsort((is_insert, times))])))
    cuts = [*range(0, len(times), piece_rows), len(times)]
    return [(int(inserts[cut]), cut - int(inserts[cut])) for cut in cuts]


class _Ordered:
    """The rows of a side by time."""

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
        found = part.combine_chunks().to_batches()
        return found[0] if found else pa.RecordBatch.from_pylist([], self.rows.schema)


def _pieces(
    sides: tuple[_Ordered, _Ordered], begun: tuple[int, int], ended: tuple[int, int], piece_rows: int
) -> Iterator[ConsumerBatch]:
    """Rows of both sides, divided where only one has some."""
    inserts, deletes = sides
    longest = max(begun[1] - begun[0], ended[1] - ended[0])
    assert longest <= piece_rows or begun[0] == begun[1] or ended[0] == ended[1], "one side is cut at a time"
    for start in range(0, longest, piece_rows):
        yield ConsumerBatch(
            inserts.between(*_part(begun, start, piece_rows)),
            deletes.between(*_part(ended, start, piece_rows)),
        )


def _part(bounds: tuple[int, int], start: int, rows: int) -> tuple[int, int]:
    low = min(bounds[0] + start, bounds[1])
    return low, min(low + rows, bounds[1])


def _times(rows: pa.Table) -> Ints:
    return np.asarray(rows.column(COMMIT_TS).to_numpy(), np.int64)
