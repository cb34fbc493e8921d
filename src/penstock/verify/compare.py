"""Compares two sets of rows by key, in memory that does not grow with them.

Both sides are divided by the hashes of their keys. Each part is compared by itself, in vectors: first by its
digest, and row by row where the digests differ. A row is known by two hashes of 64 bits: of its key and of
all its values. `Tally` compares the values of both sides as multisets for each hash of a key, so two keys
that have the same hash are not a difference. Three coincidences stay unnoticed, with a chance of 2^-64 each:
parts that differ have the same digest, rows of a key that differ have the same hash, a missing key and an
extra one have the same hash.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.row_hash import Digest, Hashes, hash_text, hashes_of
from penstock.columnar.sorted_spill import HashedSpill
from penstock.errors import Invalid

__all__ = ["SAMPLE_MAX", "Comparison", "Counts", "Pairs", "PartDifferences", "Tally", "merge_samples"]


SAMPLE_MAX = 20
"""How many digests of keys are listed for each kind of difference."""

_Numbers = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many rows differ, by the kind of difference."""

    missing: int = 0
    """The target has no row of the key."""
    different: int = 0
    """The row of the key has other values."""
    extra: int = 0
    """The source has no row of the key."""
    duplicates: int = 0
    """Rows of a key beyond those that it should have."""

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            missing=self.missing + other.missing,
            different=self.different + other.different,
            extra=self.extra + other.extra,
            duplicates=self.duplicates + other.duplicates,
        )

    @property
    def total(self) -> int:
        """How many rows differ in any way."""
        return self.missing + self.different + self.extra + self.duplicates


Pairs = tuple[Hashes, Hashes]
"""The hash of the key and the hash of all values, for each row."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How many rows of each key the source has (`wanted`), the target has (`found`), and both have. Pure."""

    keys: Hashes
    wanted: _Numbers
    found: _Numbers
    same: _Numbers

    @classmethod
    def of(cls, wanted: Pairs, found: Pairs) -> "Tally":
        """Count the rows of both sides; at least one side has rows."""
        keys = np.concatenate([wanted[0], found[0]])
        rows = np.concatenate([wanted[1], found[1]])
        ours = np.concatenate([np.ones(len(wanted[0]), np.int64), np.zeros(len(found[0]), np.int64)])
        order = np.lexsort((rows, keys))
        keys, rows, ours = keys[order], rows[order], ours[order]
        # First count equal (key, row) pairs on both sides; then add up the pairs of each key.
        pairs = _starts((keys[1:] != keys[:-1]) | (rows[1:] != rows[:-1]))
        wanted_of = np.add.reduceat(ours, pairs)
        found_of = np.add.reduceat(1 - ours, pairs)
        keys = keys[pairs]
        firsts = _starts(keys[1:] != keys[:-1])
        same = np.add.reduceat(np.minimum(wanted_of, found_of), firsts)
        return cls(keys[firsts], np.add.reduceat(wanted_of, firsts), np.add.reduceat(found_of, firsts), same)

    @property
    def _differences(self) -> dict[str, _Numbers]:
        surplus = np.maximum(self.found - self.wanted, 0)
        return {
            "missing": np.maximum(self.wanted - self.found, 0),
            "different": np.minimum(self.wanted, self.found) - self.same,
            "extra": np.where(self.wanted == 0, surplus, 0),
            "duplicates": np.where(self.wanted > 0, surplus, 0),
        }

    @property
    def counts(self) -> Counts:
        """How many rows differ, by the kind of difference."""
        return Counts(**{kind: int(numbers.sum()) for kind, numbers in self._differences.items()})

    @property
    def _wrong(self) -> _Mask:
        wrong: _Mask = (self.same != self.wanted) | (self.same != self.found)
        return wrong

    @property
    def put(self) -> _Mask:
        """Which keys' rows the target has to get from the source."""
        wanted: _Mask = self._wrong & (self.wanted > 0)
        return wanted

    @property
    def removed(self) -> _Mask:
        """Which keys' rows have to go first: a put replaces one row only, and several may have the hash."""
        leaving: _Mask = self._wrong & ((self.found > self.wanted) | (self.wanted > 1))
        return leaving

    def samples(self) -> dict[str, list[str]]:
        """Return digests of the first keys that differ, by the kind of difference."""
        return {
            kind: [hash_text(int(key)) for key in self.keys[numbers > 0][:SAMPLE_MAX]]
            for kind, numbers in self._differences.items()
        }


def _starts(changes: _Mask) -> _Numbers:
    """Return where runs of equal values begin; `changes` says which values differ from the one before."""
    return np.concatenate([np.zeros(1, np.int64), np.flatnonzero(changes) + 1])


def merge_samples(known: dict[str, list[str]], more: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the samples of both, up to SAMPLE_MAX of each kind; kinds without samples are left out."""
    both = {kind: (known.get(kind, []) + more.get(kind, []))[:SAMPLE_MAX] for kind in (*known, *more)}
    return {kind: digests for kind, digests in both.items() if digests}


_KEY_HASH, _ROW_HASH = "_key_hash", "_row_hash"
_HASH_FIELDS = [pa.field(_KEY_HASH, pa.uint64()), pa.field(_ROW_HASH, pa.uint64())]


@dataclass(frozen=True, slots=True)
class PartDifferences:
    """The differences of one part of the keys, and what makes the target the same."""

    counts: Counts
    put: Hashes
    """Hashes of the keys whose rows the target should get from the source."""
    removed: pa.Table = field(repr=False)
    """Keys of which the target has rows that have to go first."""
    samples: dict[str, list[str]] = field(repr=False)
    """Digests of some keys, by the name of the count."""


class Comparison:
    """Compares the rows that a target should have with those that it has. A context, with files below a
    folder.

    `schema` is that of the rows that it should have; the others are cast to it. The first `keys` columns are
    the key.
    """

    def __init__(self, schema: pa.Schema, keys: int, folder: Path, *, buffer_bytes: int = 64 << 20) -> None:
        self._names = schema.names
        self._schema = pa.schema([pa.field(column.name, column.type) for column in schema])
        self._keys = schema.names[:keys]
        self.key_schema = pa.schema([self._schema.field(name) for name in self._keys])
        hashes = pa.schema(_HASH_FIELDS)
        keyed = pa.schema([*self.key_schema, *_HASH_FIELDS])
        self._expected = HashedSpill(hashes, folder / "expected.arrow", buffer_bytes=buffer_bytes)
        self._present = HashedSpill(keyed, folder / "present.arrow", buffer_bytes=buffer_bytes)
        self.nbytes = 0
        """Bytes of the rows that were added, of both sides."""

    @property
    def rows(self) -> tuple[int, int]:
        """How many rows the target should have, and how many it has."""
        return self._expected.rows, self._present.rows

    def expect(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add rows that the target should have."""
        for batch in batches:
            self.nbytes += batch.nbytes
            keys, rows = self._hashes(self._shape(batch))
            self._expected.add(pa.record_batch([keys, rows], schema=self._expected.schema), keys)

    def find(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add rows that the target has; raise Invalid when their columns cannot be compared."""
        for batch in batches:
            self.nbytes += batch.nbytes
            shaped = self._shape(batch)
            keys, rows = self._hashes(shaped)
            columns = [*(shaped.column(name) for name in self._keys), keys, rows]
            self._present.add(pa.record_batch(columns, schema=self._present.schema), keys)

    def differences(self) -> Iterator[PartDifferences]:
        """Yield the differences part by part; parts without a difference are left out."""
        both = zip(self._expected.parts(), self._present.parts(), strict=True)
        for expected, present in both:
            found = self._compare(expected, present)
            if found is not None:
                yield found

    def key_hashes(self, rows: pa.RecordBatch) -> Hashes:
        """Return the hashes of keys, as in `PartDifferences.put`; rows need only the key's columns."""
        return hashes_of(rows.select(self._keys).cast(self.key_schema), self._keys)

    def _shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return batch.select(self._names).cast(self._schema)
        except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
            expected = ", ".join(f"{column.name} {column.type}" for column in self._schema)
            present = ", ".join(f"{column.name} {column.type}" for column in batch.schema)
            raise Invalid(
                f"the target has the columns {present} instead of {expected}; rebuild it"
            ) from None  # Arrow's own message may show a value

    def _hashes(self, batch: pa.RecordBatch) -> tuple[Hashes, Hashes]:
        return hashes_of(batch, self._keys), hashes_of(batch, self._names)

    def _compare(
        self, expected: Sequence[pa.RecordBatch], present: Sequence[pa.RecordBatch]
    ) -> PartDifferences | None:
        present_rows = pa.Table.from_batches(present, self._present.schema)
        wanted = _pairs(pa.Table.from_batches(expected, self._expected.schema))
        found = _pairs(present_rows)
        if Digest.of(wanted[1]) == Digest.of(found[1]):
            return None
        tally = Tally.of(wanted, found)
        is_removed = pa.array(np.isin(found[0], tally.keys[tally.removed]))
        removed = present_rows.filter(is_removed).select(self._keys)
        return PartDifferences(
            counts=tally.counts,
            put=tally.keys[tally.put],
            removed=removed.group_by(self._keys).aggregate([]),  # each key once
            samples=tally.samples(),
        )

    def close(self) -> None:
        """Remove the files."""
        self._expected.close()
        self._present.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


def _pairs(table: pa.Table) -> Pairs:
    return table.column(_KEY_HASH).to_numpy(), table.column(_ROW_HASH).to_numpy()
