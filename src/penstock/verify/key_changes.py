"""What is left of a table's rows after its changes, compared with what should be there. Pure, in vectors.

All rows of a comparison by their hashes: those of every table in one file for each side.

A part holds some keys of all tables, and is compared by itself; how much memory that takes depends on a part,
not on the number of tables or rows.

Rows of any version of a table, as they read in its last one, and their hashes. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.row_hash import Digest, Hashes, digest, hashes_of
from penstock.columnar.sorted_spill import HashedSpill
from penstock.errors import Invalid
from penstock.eventstore.schema_version import Projection
from penstock.tables.schema import TableInfo
from penstock.verify.compare import SAMPLE_MAX, Counts, Pairs, Tally, added_samples

__all__ = [
    "ADDED",
    "PUT",
    "REMOVED",
    "Basis",
    "ComparisonSpill",
    "HashedChanges",
    "HashedRows",
    "Kinds",
    "Orders",
    "Shape",
    "TableResult",
    "compared",
]


ADDED, PUT, REMOVED = 0, 1, 2
"""What a change does to its key: makes a row where none was, makes one whatever was there, ends it."""

Kinds = npt.NDArray[np.uint8]
Orders = npt.NDArray[np.uint64]
_Mask = npt.NDArray[np.bool_]
_NO_COUNTS = Counts()


class HashedChanges(NamedTuple):
    """Changes of one table's keys, in any order; `orders` says which came first."""

    keys: Hashes
    rows: Hashes
    orders: Orders
    kinds: Kinds

    def where(self, mask: _Mask) -> "HashedChanges":
        """Some of them."""
        return HashedChanges(self.keys[mask], self.rows[mask], self.orders[mask], self.kinds[mask])


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """How a table is compared."""

    keyed: bool
    """Whether rows have keys; else they are counted by what they say."""
    whole: bool
    """Whether all rows count, and not only those of keys that changes were seen of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResult:
    """What was found of a table: of a part of its keys, or of all."""

    wanted: int = 0
    """Rows that there should be, of those that count."""
    found: int = 0
    """Rows that there are, of those that count."""
    seen: int = 0
    """Keys that changes were seen of."""
    moving: int = 0
    """Keys that were left out, because they changed meanwhile."""
    counts: Counts = _NO_COUNTS
    samples: Mapping[str, list[str]] = field(default_factory=dict)

    def __add__(self, other: "TableResult") -> "TableResult":
        return TableResult(
            wanted=self.wanted + other.wanted,
            found=self.found + other.found,
            seen=self.seen + other.seen,
            moving=self.moving + other.moving,
            counts=self.counts + other.counts,
            samples=added_samples(dict(self.samples), dict(other.samples)),
        )


def compared(changes: HashedChanges, wanted: Pairs, left_out: Hashes, basis: Basis) -> TableResult:
    """Compare what changes lead to with the rows that there should be, but for keys that are left out."""
    moving = len(np.unique(left_out))
    if moving:
        changes = changes.where(~np.isin(changes.keys, left_out))
        wanted = _where(wanted, ~np.isin(wanted[0], left_out))
    left = _left(changes) if basis.keyed else _counted(changes)
    if not basis.whole:
        wanted = _where(wanted, np.isin(wanted[0], left.seen))
    found = TableResult(
        wanted=len(wanted[0]),
        found=len(left.rows[0]),
        seen=len(left.seen),
        moving=moving,
        counts=Counts(duplicates=len(left.repeated)),
        samples={"duplicates": [digest(int(key)) for key in left.repeated[:SAMPLE_MAX]]},
    )
    if Digest.of(wanted[1]) == Digest.of(left.rows[1]):
        return found
    tally = Tally.of(wanted, left.rows)
    return found + TableResult(counts=tally.counts, samples=tally.samples())


class _Left(NamedTuple):
    """Rows that are there after all changes, the keys that changes were of, and those that came twice."""

    rows: Pairs
    seen: Hashes
    repeated: Hashes


def _left(changes: HashedChanges) -> _Left:
    """The last change of each key decides."""
    order = np.lexsort((changes.orders, changes.keys))
    keys, rows, kinds = changes.keys[order], changes.rows[order], changes.kinds[order]
    same = keys[1:] == keys[:-1]
    last = np.append(~same, np.ones(min(1, len(keys)), np.bool_))
    again = same & (kinds[1:] == ADDED) & (kinds[:-1] != REMOVED)
    there = last & (kinds != REMOVED)
    return _Left((keys[there], rows[there]), keys[last], keys[1:][again])


def _counted(changes: HashedChanges) -> _Left:
    """Of equal rows as many are left as came more often than they went."""
    keys, places = np.unique(changes.keys, return_inverse=True)
    steps = np.where(changes.kinds == REMOVED, -1, 1)
    left = np.repeat(keys, np.maximum(np.bincount(places, steps, len(keys)).astype(np.int64), 0))
    return _Left((left, left), keys, keys[:0])


def _where(pairs: Pairs, mask: _Mask) -> Pairs:
    return pairs[0][mask], pairs[1][mask]


@dataclass(frozen=True, slots=True)
class HashedRows:
    """Rows by the hashes of their keys, and of all that they say."""

    keys: Hashes
    rows: Hashes

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(slots=True)
class Shape:
    """What rows of a table are compared by: the columns `names` of `table`, and those of its key.

    Columns of other versions are the same when their ids are. A row without a key is known by all it says.
    """

    table: TableInfo
    names: list[str]
    _projections: dict[int, Projection] = field(default_factory=dict)
    _versions: list[TableInfo] = field(default_factory=list)
    """Those of which there is a projection: so their ids in memory are not given to others."""

    @property
    def keys(self) -> list[str]:
        """The columns of the key; none: rows have none."""
        return [column.name for column in self.table.primary_key]

    def hashes(self, rows: pa.RecordBatch, version: TableInfo) -> HashedRows:
        """The hashes of rows of a version, as they read in the last one.

        Raises Invalid when the version has another key, Corrupt when a value does not fit.
        """
        found = self._projection(version).apply(rows)
        whole = hashes_of(found, self.names)
        return HashedRows(hashes_of(found, self.keys) if self.keys else whole, whole)

    def key_hashes(self, rows: pa.RecordBatch, version: TableInfo) -> Hashes:
        """The hashes of the keys alone, of rows that may have no other columns."""
        self._check_key(version)
        return hashes_of(Projection(version, self.table, self.keys).apply(rows), self.keys)

    def _projection(self, version: TableInfo) -> Projection:
        if id(version) not in self._projections:
            self._check_key(version)
            self._projections[id(version)] = Projection(version, self.table, self.names)
            self._versions.append(version)
        return self._projections[id(version)]

    def _check_key(self, version: TableInfo) -> None:
        ours = {column.id for column in self.table.primary_key}
        if ours != {column.id for column in version.primary_key}:
            raise Invalid(
                f"table {self.table.name} had another primary key before; its rows cannot be compared"
            )


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
