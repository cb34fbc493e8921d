"""All rows of a comparison by their hashes: those of every table in one file for each side.

A part holds some keys of all tables, and is compared by itself; how much memory that takes depends on a part,
not on the number of tables or rows.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.row_hash import Hashes
from penstock.columnar.sorted_spill import HashedSpill
from penstock.verify.key_changes import Basis, HashedChanges, Kinds, Orders, TableResult, compared
from penstock.verify.shapes import HashedRows

__all__ = ["ComparisonSpill"]

_TABLE, _KEY, _ROW, _ORDER, _KIND = "table", "key", "row", "order", "kind"
_FOUND = pa.schema(
    [
        (_TABLE, pa.uint32()),
        (_KEY, pa.uint64()),
        (_ROW, pa.uint64()),
        (_ORDER, pa.uint64()),
        (_KIND, pa.uint8()),
    ]
)
_WANTED = pa.schema([(_TABLE, pa.uint32()), (_KEY, pa.uint64()), (_ROW, pa.uint64())])
_MOVING = pa.schema([(_TABLE, pa.uint32()), (_KEY, pa.uint64())])
_BUFFER_BYTES = 64 << 20


class ComparisonSpill:
    """Rows go in in any order of tables; the changes of a table in their order. A context."""

    def __init__(self, folder: Path, *, buffer_bytes: int = _BUFFER_BYTES) -> None:
        self._found = HashedSpill(_FOUND, folder / "found.arrow", buffer_bytes=buffer_bytes)
        self._wanted = HashedSpill(_WANTED, folder / "wanted.arrow", buffer_bytes=buffer_bytes)
        self._moving = HashedSpill(_MOVING, folder / "moving.arrow", buffer_bytes=buffer_bytes)

    def change(self, table: int, rows: HashedRows, orders: Orders, kinds: Kinds) -> None:
        """Changes of a table: what became of keys, in the order of `orders`."""
        numbers = np.full(len(rows), table, np.uint32)
        batch = pa.record_batch([numbers, rows.keys, rows.rows, orders, kinds], schema=_FOUND)
        self._found.add(batch, rows.keys)

    def want(self, table: int, rows: HashedRows) -> None:
        """Rows that a table should have."""
        numbers = np.full(len(rows), table, np.uint32)
        self._wanted.add(pa.record_batch([numbers, rows.keys, rows.rows], schema=_WANTED), rows.keys)

    def leave_out(self, table: int, keys: Hashes) -> None:
        """Keys of a table that are not to be compared."""
        self._moving.add(pa.record_batch([np.full(len(keys), table, np.uint32), keys], schema=_MOVING), keys)

    def results(self, bases: Mapping[int, Basis]) -> dict[int, TableResult]:
        """What was found of each table, of all that was put in."""
        results = dict.fromkeys(bases, TableResult())
        parts = zip(self._found.parts(), self._wanted.parts(), self._moving.parts(), strict=True)
        for found, wanted, moving in parts:
            changes, rows = _by_table(found, _FOUND), _by_table(wanted, _WANTED)
            keys = _by_table(moving, _MOVING)
            for number in {*changes, *rows} & bases.keys():
                pairs, left_out = rows.get(number, _NO_WANTED), keys.get(number, _NO_MOVING)[0]
                made = HashedChanges(*changes.get(number, _NO_FOUND))
                results[number] += compared(made, (pairs[0], pairs[1]), left_out, bases[number])
        return results

    def close(self) -> None:
        """Remove the files."""
        for each in (self._found, self._wanted, self._moving):
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


_Arrays = tuple[npt.NDArray[Any], ...]


def _by_table(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> dict[int, _Arrays]:
    """The columns behind the table's number, of each table."""
    held = pa.Table.from_batches(batches, schema)
    numbers, *columns = (held.column(name).to_numpy() for name in schema.names)
    order = np.argsort(numbers, kind="stable")
    found, starts, counts = np.unique(numbers[order], return_index=True, return_counts=True)
    return {
        int(number): tuple(column[order[start : start + rows]] for column in columns)
        for number, start, rows in zip(found, starts, counts, strict=True)
    }


def _empty(schema: pa.Schema) -> _Arrays:
    return tuple(np.zeros(0, field.type.to_pandas_dtype()) for field in schema)[1:]


_NO_FOUND, _NO_WANTED, _NO_MOVING = map(_empty, (_FOUND, _WANTED, _MOVING))
