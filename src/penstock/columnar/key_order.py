"""Rows in the order of a key's first column, and which of them have certain keys. Pure.

Everything is found by that column first, so that a part of a copy is held against few changes; whether keys
are the same is then decided by all of their columns, NULLs included.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["KeySet", "OrderedRows", "chunk_rows"]

CHUNK_BYTES = 8 << 20
"""Bytes of rows that are handled at once, about."""

_Ints = npt.NDArray[np.int64]


class _Places(Sequence[Any]):
    """The sorted values of a column, one of which is a Python object only when it is looked at."""

    def __init__(self, values: pa.Array) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, place: Any) -> Any:
        return self._values[place].as_py()


def chunk_rows(rows: int, nbytes: int) -> int:
    """How many rows of that many, of so many bytes, are handled at once."""
    return max(1, min(65_536, CHUNK_BYTES * max(1, rows) // max(1, nbytes)))


def _ordered(keys: pa.Table) -> tuple[_Ints, pa.Array]:
    """The places of rows by their keys, and the first column in that order without NULLs, which are last."""
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])
    first = keys.column(0).combine_chunks().take(order)
    return order.to_numpy().astype(np.int64), first.slice(0, len(first) - first.null_count)


class OrderedRows:
    """Rows of a table by key, each of which is taken once; `taken` counts them.

    `keys` are the key's columns of the same rows, as they are compared. The rows may be in a mapped file:
    only those that are being taken need memory.
    """

    def __init__(self, rows: pa.Table, keys: pa.Table) -> None:
        self._batches = rows.to_batches()
        self._starts = np.cumsum([0, *(each.num_rows for each in self._batches)])
        self._schema = rows.schema
        self._chunk = chunk_rows(rows.num_rows, rows.nbytes)
        self._order, first = _ordered(keys)
        self._first = _Places(first)
        self.taken = 0

    @property
    def left(self) -> int:
        """Rows that were not taken yet."""
        return len(self._order) - self.taken

    def between(self, lowest: Any, highest: Any) -> bool:
        """Whether some have a first column above one value and below another; None: no bound."""
        begin = 0 if lowest is None else bisect_right(self._first, lowest)
        end = len(self._order) if highest is None else bisect_left(self._first, highest)
        return begin < end

    def below(self, value: Any) -> Iterator[pa.RecordBatch]:
        """Take those whose first column is less."""
        return self._take(bisect_left(self._first, value, lo=min(self.taken, len(self._first))))

    def up_to(self, value: Any) -> Iterator[pa.RecordBatch]:
        """Take those whose first column is at most that."""
        return self._take(bisect_right(self._first, value, lo=min(self.taken, len(self._first))))

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Take all others."""
        return self._take(len(self._order))

    def _take(self, end: int) -> Iterator[pa.RecordBatch]:
        while self.taken < end:
            stop = min(end, self.taken + self._chunk)
            places = self._order[self.taken : stop]
            self.taken = stop
            yield self._at(places)

    def _at(self, places: _Ints) -> pa.RecordBatch:
        """Rows by their places: batch by batch, because taking from many at once copies all of them."""
        batches = np.searchsorted(self._starts, places, side="right") - 1
        grouped = np.argsort(batches, kind="stable")
        cuts = np.flatnonzero(np.diff(batches[grouped])) + 1
        parts = [
            self._batches[batches[group[0]]].take(pa.array(places[group] - self._starts[batches[group[0]]]))
            for group in np.split(grouped, cuts)
        ]
        back = np.empty(len(places), np.int64)
        back[grouped] = np.arange(len(places))
        together = pa.Table.from_batches(parts, self._schema).combine_chunks()
        return together.take(pa.array(back)).combine_chunks().to_batches()[0]


class KeySet:
    """Keys that changed. NULL is equal to NULL, and -0.0 to 0.0, as they are in the source's keys."""

    def __init__(self, keys: pa.Table) -> None:
        self._names = keys.column_names
        unsigned = [_unsigned(column) for column in keys.columns]
        self._table = pa.table(unsigned, names=self._names).combine_chunks()
        order, first = _ordered(self._table)
        self._table = self._table.take(pa.array(order))
        self._first = _Places(first)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @property
    def has_nulls(self) -> bool:
        """Whether the first column of some is NULL."""
        return len(self._first) < len(self)

    def within(self, lowest: Any, highest: Any) -> bool:
        """Whether some have a first column from one value to another."""
        return bisect_left(self._first, lowest) < bisect_right(self._first, highest)

    def without(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows whose keys are not among these."""
        gone = self._found(rows)
        return rows if gone is None else rows.filter(pc.invert(gone))

    def among(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows whose keys are among these."""
        found = self._found(rows)
        return rows.slice(0, 0) if found is None else rows.filter(found)

    def _found(self, rows: pa.RecordBatch) -> pa.BooleanArray | None:
        """Whether each row's key is among these; None: none is."""
        candidates = self._near(rows.column(self._names[0]))
        if not candidates.num_rows:
            return None
        keys = [_unsigned(rows.column(name)) for name in self._names]
        found = pc.is_in(_joined(keys), value_set=_joined(candidates.columns))
        return found if pc.any(found).as_py() else None

    def _near(self, first: pa.Array) -> pa.Table:
        """Those that may be among rows with these first columns."""
        bounds = pc.min_max(first).as_py()
        parts = []
        if bounds["min"] is not None:
            begin = bisect_left(self._first, bounds["min"])
            parts.append(self._table.slice(begin, bisect_right(self._first, bounds["max"]) - begin))
        if first.null_count:
            parts.append(self._table.slice(len(self._first)))
        return pa.concat_tables(parts) if parts else self._table.slice(0, 0)


def _unsigned(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The same values, with 0.0 for -0.0."""
    return pc.add(column, pa.scalar(0, column.type)) if pa.types.is_floating(column.type) else column


def _joined(columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Array | pa.ChunkedArray:
    """One column that is equal where all are. A single one is itself; is_in takes NULLs as equal."""
    if len(columns) == 1:
        return columns[0]
    return pc.binary_join_element_wise(*map(_framed, columns), b"")


def _framed(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Bytes of each value with their number in front, so that no two rows look alike when joined."""
    kinds = pa.types
    if kinds.is_temporal(column.type):
        column = column.cast(pa.int32() if kinds.is_date32(column.type) else pa.int64())
    if not (kinds.is_binary(column.type) or kinds.is_string(column.type)):
        column = column.cast(pa.string())
    data = column.cast(pa.binary())
    length = pc.binary_length(data).cast(pa.string()).cast(pa.binary())
    return pc.fill_null(pc.binary_join_element_wise(length, data, b":"), b"-")
