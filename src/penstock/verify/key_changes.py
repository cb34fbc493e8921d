"""The rows that remain after a table's changes, compared by hashes with the rows that there should be.

`Shape` hashes rows of any version of a table as they read in its last version. `ComparisonSpill` keeps the
hashes of all tables on disk, one file for each side, divided by keys. `compare_changes` compares a part by
itself: memory depends on the size of a part, not on the number of tables or rows. `Shape` and
`compare_changes` are pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.row_hash import Digest, Hashes, hash_text, hashes_of
from penstock.columnar.sorted_spill import HashedSpill
from penstock.errors import Invalid
from penstock.eventstore.schema_version import Projection
from penstock.tables.arrow import arrow_name
from penstock.tables.schema import TableInfo
from penstock.verify.compare import SAMPLE_MAX, Counts, Pairs, Tally, merge_samples

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
    "compare_changes",
]


ADDED, PUT, REMOVED = 0, 1, 2
"""What a change does to its key: adds a row where none was, puts one whatever was there, removes it."""

Kinds = npt.NDArray[np.uint8]
Orders = npt.NDArray[np.uint64]
_Mask = npt.NDArray[np.bool_]
_NO_COUNTS = Counts()


class HashedChanges(NamedTuple):
    """Changes of one table's keys, in any order of rows; those with lower `orders` came first."""

    keys: Hashes
    rows: Hashes
    orders: Orders
    kinds: Kinds

    def where(self, mask: _Mask) -> "HashedChanges":
        """Return the changes that the mask selects."""
        return HashedChanges(self.keys[mask], self.rows[mask], self.orders[mask], self.kinds[mask])


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """How a table is compared."""

    keyed: bool
    """Whether rows have keys; without them, equal rows are counted."""
    whole: bool
    """Whether all rows count, or only those of keys that have changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResult:
    """The result for a table: for a part of its keys, or for all."""

    wanted: int = 0
    """How many rows there should be, of those that count."""
    found: int = 0
    """How many rows there are, of those that count."""
    seen: int = 0
    """How many keys have changes."""
    moving: int = 0
    """How many keys were left out, because they changed during the comparison."""
    counts: Counts = _NO_COUNTS
    samples: Mapping[str, list[str]] = field(default_factory=dict)

    def __add__(self, other: "TableResult") -> "TableResult":
        return TableResult(
            wanted=self.wanted + other.wanted,
            found=self.found + other.found,
            seen=self.seen + other.seen,
            moving=self.moving + other.moving,
            counts=self.counts + other.counts,
            samples=merge_samples(dict(self.samples), dict(other.samples)),
        )


def compare_changes(changes: HashedChanges, wanted: Pairs, left_out: Hashes, basis: Basis) -> TableResult:
    """Compare the rows that remain after changes with those that there should be, without `left_out` keys."""
    moving = len(np.unique(left_out))
    if moving:
        changes = changes.where(~np.isin(changes.keys, left_out))
        wanted = _where(wanted, ~np.isin(wanted[0], left_out))
    final = _final_rows(changes) if basis.keyed else _count_rows(changes)
    if not basis.whole:
        wanted = _where(wanted, np.isin(wanted[0], final.seen))
    result = TableResult(
        wanted=len(wanted[0]),
        found=len(final.rows[0]),
        seen=len(final.seen),
        moving=moving,
        counts=Counts(duplicates=len(final.repeated)),
        samples={"duplicates": [hash_text(int(key)) for key in final.repeated[:SAMPLE_MAX]]},
    )
    if Digest.of(wanted[1]) == Digest.of(final.rows[1]):
        return result
    tally = Tally.of(wanted, final.rows)
    return result + TableResult(counts=tally.counts, samples=tally.samples())


class _FinalRows(NamedTuple):
    """The rows that remain after all changes, the keys with changes, and the keys that were added twice."""

    rows: Pairs
    seen: Hashes
    repeated: Hashes


def _final_rows(changes: HashedChanges) -> _FinalRows:
    """Return the rows that remain when rows have keys: the last change of each key decides."""
    order = np.lexsort((changes.orders, changes.keys))
    keys, rows, kinds = changes.keys[order], changes.rows[order], changes.kinds[order]
    same = keys[1:] == keys[:-1]
    last = np.append(~same, np.ones(min(1, len(keys)), np.bool_))
    repeated = same & (kinds[1:] == ADDED) & (kinds[:-1] != REMOVED)
    remains = last & (kinds != REMOVED)
    return _FinalRows((keys[remains], rows[remains]), keys[last], keys[1:][repeated])


def _count_rows(changes: HashedChanges) -> _FinalRows:
    """Return the rows that remain when rows have no keys: of equal rows, those added minus those removed."""
    keys, places = np.unique(changes.keys, return_inverse=True)
    steps = np.where(changes.kinds == REMOVED, -1, 1)
    rows = np.repeat(keys, np.maximum(np.bincount(places, steps, len(keys)).astype(np.int64), 0))
    return _FinalRows((rows, rows), keys, keys[:0])


def _where(pairs: Pairs, mask: _Mask) -> Pairs:
    return pairs[0][mask], pairs[1][mask]


@dataclass(frozen=True, slots=True)
class HashedRows:
    """The hashes of rows: of their keys, and of all their values."""

    keys: Hashes
    rows: Hashes

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(slots=True)
class Shape:
    """How rows of a table are hashed: the columns `names` of its version `table`, and those of its key.

    A column of another version is the same column when it has the same id. The key of a row without a primary
    key is all its values.
    """

    table: TableInfo
    names: list[str]
    _projections: dict[int, Projection] = field(default_factory=dict)
    _versions: list[TableInfo] = field(default_factory=list)
    """The versions that have a projection, kept alive: projections are found by `id(version)`."""

    @property
    def keys(self) -> list[str]:
        """The columns of the primary key, as Arrow has them; empty when the table has none."""
        return [arrow_name(column) for column in self.table.primary_key]

    def hashes(self, rows: pa.RecordBatch, version: TableInfo) -> HashedRows:
        """Return the hashes of rows of a version, as they read in the last version.

        Raises Invalid when the version has another key, Corrupt when a value does not fit.
        """
        projected = self._projection(version).apply(_with_arrow_names(rows, version))
        whole = hashes_of(projected, projected.schema.names)
        return HashedRows(hashes_of(projected, self.keys) if self.keys else whole, whole)

    def key_hashes(self, rows: pa.RecordBatch, version: TableInfo) -> Hashes:
        """Return the hashes of the keys alone; rows need no other columns."""
        self._check_key(version)
        projection = Projection(version, self.table, self.keys, impossible_dates=True)
        return hashes_of(projection.apply(_with_arrow_names(rows, version)), self.keys)

    def _projection(self, version: TableInfo) -> Projection:
        if id(version) not in self._projections:
            self._check_key(version)
            names = [arrow_name(self.table.column(name)) for name in self.names]
            self._projections[id(version)] = Projection(version, self.table, names, impossible_dates=True)
            self._versions.append(version)
        return self._projections[id(version)]

    def _check_key(self, version: TableInfo) -> None:
        key_ids = {column.id for column in self.table.primary_key}
        if key_ids != {column.id for column in version.primary_key}:
            raise Invalid(
                f"table {self.table.name} had another primary key before; its rows cannot be compared"
            )


def _with_arrow_names(rows: pa.RecordBatch, version: TableInfo) -> pa.RecordBatch:
    """Return rows of files, which have the table's names, with the names that projections read."""
    return rows.rename_columns([arrow_name(version.column(name)) for name in rows.schema.names])


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
    """Keeps hashes of rows and changes on disk, in any order of tables, and compares them. A context."""

    def __init__(self, folder: Path, *, buffer_bytes: int = _BUFFER_BYTES) -> None:
        self._found = HashedSpill(_FOUND, folder / "found.arrow", buffer_bytes=buffer_bytes)
        self._wanted = HashedSpill(_WANTED, folder / "wanted.arrow", buffer_bytes=buffer_bytes)
        self._moving = HashedSpill(_MOVING, folder / "moving.arrow", buffer_bytes=buffer_bytes)

    def change(self, table: int, rows: HashedRows, orders: Orders, kinds: Kinds) -> None:
        """Add changes of a table; of one key, the change with the highest order is the last."""
        numbers = np.full(len(rows), table, np.uint32)
        batch = pa.record_batch([numbers, rows.keys, rows.rows, orders, kinds], schema=_FOUND)
        self._found.add(batch, rows.keys)

    def want(self, table: int, rows: HashedRows) -> None:
        """Add rows that a table should have."""
        numbers = np.full(len(rows), table, np.uint32)
        self._wanted.add(pa.record_batch([numbers, rows.keys, rows.rows], schema=_WANTED), rows.keys)

    def leave_out(self, table: int, keys: Hashes) -> None:
        """Add keys of a table that are not to be compared."""
        self._moving.add(pa.record_batch([np.full(len(keys), table, np.uint32), keys], schema=_MOVING), keys)

    def results(self, bases: Mapping[int, Basis]) -> dict[int, TableResult]:
        """Compare all that was added; return the result of each table in `bases`."""
        results = dict.fromkeys(bases, TableResult())
        parts = zip(self._found.parts(), self._wanted.parts(), self._moving.parts(), strict=True)
        for found, wanted, moving in parts:
            changes, rows = _by_table(found, _FOUND), _by_table(wanted, _WANTED)
            keys = _by_table(moving, _MOVING)
            for number in {*changes, *rows} & bases.keys():
                pairs, left_out = rows.get(number, _NO_WANTED), keys.get(number, _NO_MOVING)[0]
                hashed = HashedChanges(*changes.get(number, _NO_FOUND))
                results[number] += compare_changes(hashed, (pairs[0], pairs[1]), left_out, bases[number])
        return results

    def close(self) -> None:
        """Remove the files."""
        for spill in (self._found, self._wanted, self._moving):
            spill.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


_Arrays = tuple[npt.NDArray[Any], ...]


def _by_table(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> dict[int, _Arrays]:
    """Return the columns after the table's number, by table."""
    rows = pa.Table.from_batches(batches, schema)
    numbers, *columns = (rows.column(name).to_numpy() for name in schema.names)
    order = np.argsort(numbers, kind="stable")
    found, starts, counts = np.unique(numbers[order], return_index=True, return_counts=True)
    return {
        int(number): tuple(column[order[start : start + count]] for column in columns)
        for number, start, count in zip(found, starts, counts, strict=True)
    }


def _empty(schema: pa.Schema) -> _Arrays:
    return tuple(np.zeros(0, field.type.to_pandas_dtype()) for field in schema)[1:]


_NO_FOUND, _NO_WANTED, _NO_MOVING = map(_empty, (_FOUND, _WANTED, _MOVING))
