"""Rows in the order of their keys, and the rows that have certain keys. Pure.

Both look up by the key's first column, so that one part of a table is compared with few changes. Then all
columns of the key, NULLs included, decide whether two keys are equal.
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
"""Approximate bytes of rows that are processed at once."""

_Ints = npt.NDArray[np.int64]


class _SortedValues(Sequence[Any]):
    """The sorted values of a column. A value becomes a Python object only when it is read."""

    def __init__(self, values: pa.Array) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, place: Any) -> Any:
        return self._values[place].as_py()


def chunk_rows(rows: int, nbytes: int) -> int:
    """Return how many of `rows` rows, which have `nbytes` bytes together, to process at once."""
    return max(1, min(65_536, CHUNK_BYTES * max(1, rows) // max(1, nbytes)))


def _sort_keys(keys: pa.Table) -> tuple[_Ints, pa.Array]:
    """Return the order of rows by key, and the first column in that order, without the NULLs at its end."""
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])
    first = keys.column(0).combine_chunks().take(order)
    return order.to_numpy().astype(np.int64), first.slice(0, len(first) - first.null_count)


class OrderedRows:
    """Rows of a table in key order, each of which is taken once.

    `keys` has the key columns of the same rows, in the types in which keys are compared. The rows may be in a
    mapped file: only the rows that are being taken need memory.
    """

    def __init__(self, rows: pa.Table, keys: pa.Table) -> None:
        self._batches = rows.to_batches()
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])
        self._schema = rows.schema
        self._chunk = chunk_rows(rows.num_rows, rows.nbytes)
        self._order, first = _sort_keys(keys)
        self._first = _SortedValues(first)
        self.taken = 0
        """Rows taken so far."""

    @property
    def left(self) -> int:
        """Rows not taken yet."""
        return len(self._order) - self.taken

    def has_between(self, lowest: Any, highest: Any) -> bool:
        """Return whether a row has a first column above one value and below another; None: no bound."""
        begin = 0 if lowest is None else bisect_right(self._first, lowest)
        end = len(self._order) if highest is None else bisect_left(self._first, highest)
        return begin < end

    def take_below(self, value: Any) -> Iterator[pa.RecordBatch]:
        """Take the rows whose first column is below a value."""
        return self._take(bisect_left(self._first, value, lo=min(self.taken, len(self._first))))

    def take_up_to(self, value: Any) -> Iterator[pa.RecordBatch]:
        """Take the rows whose first column is at most a value."""
        return self._take(bisect_right(self._first, value, lo=min(self.taken, len(self._first))))

    def take_rest(self) -> Iterator[pa.RecordBatch]:
        """Take all remaining rows."""
        return self._take(len(self._order))

    def _take(self, end: int) -> Iterator[pa.RecordBatch]:
        while self.taken < end:
            stop = min(end, self.taken + self._chunk)
            places = self._order[self.taken : stop]
            self.taken = stop
            yield self._at(places)

    def _at(self, places: _Ints) -> pa.RecordBatch:
        """Return the rows at some places, batch by batch: a take from a table would copy all its batches."""
        batches = np.searchsorted(self._starts, places, side="right") - 1
        grouped = np.argsort(batches, kind="stable")
        cuts = np.flatnonzero(np.diff(batches[grouped])) + 1
        parts = [
            self._batches[batches[group[0]]].take(pa.array(places[group] - self._starts[batches[group[0]]]))
            for group in np.split(grouped, cuts)
        ]
        unsorted = np.empty(
            len(places), np.int64
        )  # the inverse of `grouped`: back to the order of the places
        unsorted[grouped] = np.arange(len(places))
        together = pa.Table.from_batches(parts, self._schema).combine_chunks()
        return together.take(pa.array(unsorted)).combine_chunks().to_batches()[0]


class KeySet:
    """A set of keys. NULL equals NULL and -0.0 equals 0.0, as in the keys of the source."""

    def __init__(self, keys: pa.Table) -> None:
        self._names = keys.column_names
        columns = [_normalize_zeros(column) for column in keys.columns]
        self._table = pa.table(columns, names=self._names).combine_chunks()
        order, first = _sort_keys(self._table)
        self._table = self._table.take(pa.array(order))
        self._first = _SortedValues(first)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @property
    def has_nulls(self) -> bool:
        """Whether the first column of a key is NULL."""
        return len(self._first) < len(self)

    def overlaps(self, lowest: Any, highest: Any) -> bool:
        """Return whether a key has a first column from `lowest` to `highest`, both included."""
        return bisect_left(self._first, lowest) < bisect_right(self._first, highest)

    def remove_from(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows whose keys are not in the set."""
        matches = self._match(rows)
        return rows if matches is None else rows.filter(pc.invert(matches))

    def select_from(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows whose keys are in the set."""
        matches = self._match(rows)
        return rows.slice(0, 0) if matches is None else rows.filter(matches)

    def _match(self, rows: pa.RecordBatch) -> pa.BooleanArray | None:
        """Return for each row whether its key is in the set; None when no key is."""
        candidates = self._near(rows.column(self._names[0]))
        if not candidates.num_rows:
            return None
        keys = [_normalize_zeros(rows.column(name)) for name in self._names]
        matches = pc.is_in(_join_columns(keys), value_set=_join_columns(candidates.columns))
        return matches if pc.any(matches).as_py() else None

    def _near(self, first: pa.Array) -> pa.Table:
        """Return the keys that rows with these first columns may have."""
        bounds = pc.min_max(first).as_py()
        parts = []
        if bounds["min"] is not None:
            begin = bisect_left(self._first, bounds["min"])
            parts.append(self._table.slice(begin, bisect_right(self._first, bounds["max"]) - begin))
        if first.null_count:
            parts.append(self._table.slice(len(self._first)))
        return pa.concat_tables(parts) if parts else self._table.slice(0, 0)


def _normalize_zeros(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the same values, with 0.0 for -0.0."""
    return pc.add(column, pa.scalar(0, column.type)) if pa.types.is_floating(column.type) else column


def _join_columns(columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Array | pa.ChunkedArray:
    """Join columns into one whose values are equal where all columns are.

    A single column stays as it is, because is_in treats NULLs as equal.
    """
    if len(columns) == 1:
        return columns[0]
    return pc.binary_join_element_wise(*map(_frame, columns), b"")


def _frame(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the bytes of each value after their length, so that different rows never join to equal bytes."""
    kinds = pa.types
    if kinds.is_temporal(column.type):
        column = column.cast(pa.int32() if kinds.is_date32(column.type) else pa.int64())
    if not (kinds.is_binary(column.type) or kinds.is_string(column.type)):
        column = column.cast(pa.string())
    data = column.cast(pa.binary())
    length = pc.binary_length(data).cast(pa.string()).cast(pa.binary())
    return pc.fill_null(pc.binary_join_element_wise(length, data, b":"), b"-")
