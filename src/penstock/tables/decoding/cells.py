"""The cells of columns in a batch of version 2 rows: where they are, and how to read them all at once.

All arrays have one entry per row. Reading is a gather: numpy takes unaligned words from the buffer at every
row's offset in one call.

Rows of one batch may differ in shape (which columns are NULL or missing). So `locate` goes through the batch
by the place of a cell in its row: for the nth cell of all rows at once, the column id gives a slot, and the
bounds are written there. That takes as many vector operations as the longest row has columns, for any number
of shapes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.buffers import Bytes, Floats, Ints, Mask, Uints, gather, validity, words
from penstock.errors import Corrupt
from penstock.tables.codec.rows import FLAG_LARGE

SIGN = np.uint64(1 << 63)

_INT_SIZES = np.zeros(256, dtype=np.bool_)
_INT_SIZES[[1, 2, 4, 8]] = True
_KEEP = np.array([(1 << 8 * min(size, 8)) - 1 for size in range(9)], dtype=np.uint64)
_SHIFT = np.array([64 - 8 * max(size, 1) for size in range(9)], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Cells:
    """The places of one column's cells, and their values.

    Invariant: `start` never decreases, and a row whose cell is not `valid` has size 0.
    """

    data: Bytes
    start: Ints
    size: Ints
    valid: Mask

    def __len__(self) -> int:
        return len(self.start)

    def ints(self) -> Ints:
        """Return signed integers of 1, 2, 4 or 8 bytes; raise Corrupt for any other size."""
        shift = _SHIFT[self._int_sizes()]
        signed = words(self.data, self.start, "<u8").view(np.int64) << shift >> shift
        return np.where(self.valid, signed, 0)

    def uints(self) -> Uints:
        """Return unsigned integers of 1, 2, 4 or 8 bytes; raise Corrupt for any other size."""
        return words(self.data, self.start, "<u8") & _KEEP[self._int_sizes()]

    def floats(self) -> Floats:
        """Return doubles, decoded from their ordered form."""
        self.check(self.size == 8, "a float that is not 8 bytes")
        return decode_ordered_floats(words(self.data, self.start, ">u8").astype(np.uint64))

    def binary(self) -> pa.Array:
        """Return the cells as a binary array."""
        return gather(self.data, self.start, self.start + self.size, self.valid)

    def decimal_cells(self) -> "Cells":
        """Return these cells: a decimal in a row begins with its precision and scale."""
        return self

    def check(self, holds: Mask, what: str) -> None:
        """Raise Corrupt unless the condition holds for every valid cell."""
        if not (holds | ~self.valid).all():
            raise Corrupt(f"a row has {what}; keep it for inspection")

    def _int_sizes(self) -> Ints:
        clipped = np.minimum(self.size, 9)
        self.check(_INT_SIZES[clipped], "an integer that is not 1, 2, 4 or 8 bytes")
        return clipped


def decode_ordered_ints(encoded: Uints) -> Ints:
    """Return signed integers from their ordered form."""
    return (encoded ^ SIGN).view(np.int64)


def decode_ordered_floats(encoded: Uints) -> Floats:
    """Return doubles from their ordered form."""
    return np.where(encoded & SIGN, encoded ^ SIGN, ~encoded).view(np.float64)


def fixed_array(kind: pa.DataType, values: npt.NDArray[Any], valid: Mask) -> pa.Array:
    """Return an Arrow array of fixed-width values over numpy's memory."""
    return pa.Array.from_buffers(
        kind, len(valid), [validity(valid), pa.py_buffer(np.ascontiguousarray(values))]
    )


_HEAD_BYTES = 6
_ABSENT = -1
_NULL = -2
_SMALL_IDS = 256


@dataclass(frozen=True, slots=True)
class ColumnCells:
    """The cells of one column. `absent` marks rows that were written without the column."""

    cells: Cells
    absent: Mask


def locate(data: Bytes, begin: Ints, end: Ints, column_ids: Sequence[int]) -> list[ColumnCells]:
    """Return the cells of each of these columns; raise Corrupt when a row is damaged.

    `begin` and `end` bound the rows, in the order of the buffer.
    """
    if (end - begin < _HEAD_BYTES).any():
        raise Corrupt("a row is cut short in its head; keep it for inspection")
    large = (data[begin + 1] & FLAG_LARGE).astype(np.bool_)
    slots = _Slots(column_ids)
    if not large.any():
        starts, sizes = _Heads.read(data, begin, end, id_word="u1", offset_word="<u2").cells(slots)
    elif large.all():
        starts, sizes = _Heads.read(data, begin, end, id_word="<u4", offset_word="<u4").cells(slots)
    else:
        starts = np.empty((slots.count, len(begin)), dtype=np.int64)
        sizes = np.empty_like(starts)
        for rows, id_word, offset_word in ((~large, "u1", "<u2"), (large, "<u4", "<u4")):
            heads = _Heads.read(data, begin[rows], end[rows], id_word=id_word, offset_word=offset_word)
            starts[:, rows], sizes[:, rows] = heads.cells(slots)
    return [_column(data, starts[slot], sizes[slot]) for slot in range(len(column_ids))]


def _column(data: Bytes, start: Ints, size: Ints) -> ColumnCells:
    valid = size >= 0
    return ColumnCells(Cells(data, start, np.maximum(size, 0), valid), size == _ABSENT)


class _Slots:
    """Maps column ids to slots. Ids of other columns share the last slot."""

    def __init__(self, column_ids: Sequence[int]) -> None:
        ids = np.array(column_ids, dtype=np.int64)
        self._others = len(ids)
        self.count = len(ids) + 1
        self._order = np.argsort(ids)
        self._sorted = ids[self._order]
        self._small = np.full(_SMALL_IDS, self._others, dtype=np.int64)
        small = (ids >= 0) & (ids < _SMALL_IDS)
        self._small[ids[small]] = np.flatnonzero(small)

    def of(self, ids: npt.NDArray[np.unsignedinteger]) -> Ints:
        if ids.dtype == np.uint8:
            return np.asarray(self._small[ids])
        if not self._others:
            return np.zeros(len(ids), dtype=np.int64)
        at = np.minimum(np.searchsorted(self._sorted, ids), self._others - 1)
        return np.where(self._sorted[at] == ids, self._order[at], self._others)


@dataclass(frozen=True, slots=True)
class _Heads:
    """The heads of rows with one width of ids and offsets."""

    data: Bytes
    filled: Ints
    total: Ints
    ids_at: Ints
    offsets_at: Ints
    data_at: Ints
    end: Ints
    id_word: str
    offset_word: str

    @classmethod
    def read(cls, data: Bytes, begin: Ints, end: Ints, *, id_word: str, offset_word: str) -> "_Heads":
        filled = words(data, begin + 2, "<u2").astype(np.int64)
        total = filled + words(data, begin + 4, "<u2")
        ids_at = begin + _HEAD_BYTES
        offsets_at = ids_at + np.dtype(id_word).itemsize * total
        data_at = offsets_at + np.dtype(offset_word).itemsize * filled
        if (data_at > end).any():
            raise Corrupt("a row is cut short in its offsets; keep it for inspection")
        return cls(data, filled, total, ids_at, offsets_at, data_at, end, id_word, offset_word)

    def cells(self, slots: _Slots) -> tuple[Ints, Ints]:
        """Return start and size of each slot's cell in each row; the size may be _ABSENT or _NULL."""
        rows = np.arange(len(self.filled))
        starts = np.tile(self.data_at, (slots.count, 1))
        sizes = np.full_like(starts, _ABSENT)
        flat_starts, flat_sizes = starts.reshape(-1), sizes.reshape(-1)
        before = self.data_at
        for nth in range(int(self.total.max(initial=0))):
            some = np.flatnonzero(nth < self.total) if nth >= self.total.min() else None
            cells = (slots.of(self._ids(nth, some)) * len(rows)) + (rows if some is None else some)
            if nth >= self.filled.max():
                flat_sizes[cells] = _NULL
                continue
            after = self._end(nth, before)
            if (after < before).any():
                raise Corrupt("the offsets of a row go backwards; keep it for inspection")
            size = np.where(nth < self.filled, after - before, _NULL)
            flat_starts[cells] = before if some is None else before[some]
            flat_sizes[cells] = size if some is None else size[some]
            before = after
        if (before > self.end).any():
            raise Corrupt("a row is shorter than its offsets say; keep it for inspection")
        return starts, sizes

    def _ids(self, nth: int, some: Ints | None) -> npt.NDArray[np.unsignedinteger]:
        ids_at = self.ids_at if some is None else self.ids_at[some]
        return words(self.data, ids_at + nth * np.dtype(self.id_word).itemsize, self.id_word)

    def _end(self, nth: int, before: Ints) -> Ints:
        """Return the end of the nth cell of each row, or of its last cell if it has fewer."""
        width = np.dtype(self.offset_word).itemsize
        if nth < self.filled.min():
            return np.asarray(
                self.data_at + words(self.data, self.offsets_at + nth * width, self.offset_word)
            )
        has = nth < self.filled
        at = np.where(has, self.offsets_at + nth * width, 0)
        return np.where(has, self.data_at + words(self.data, at, self.offset_word), before)
