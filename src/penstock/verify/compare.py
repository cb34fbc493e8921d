"""Two sets of rows compared by key, in memory that does not grow with them.

Both sides are divided by the hashes of their keys, and each part is compared by itself, in vectors: first by
its digest, and where that differs row by row. Rows are known by two hashes of 64 bits, of the key and of all
values, and for each hash of a key the values on both sides are compared as multisets: keys that happen to
have one hash are no difference by that. What is left to chance, with 2^-64 each: that parts which differ have
one digest, rows of a key that differ one hash, a missing key and an extra one the same.

How many rows of each key should be there, are there, and are the same. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.row_hash import Digest, Hashes, digest, hashes_of
from penstock.columnar.sorted_spill import HashedSpill
from penstock.errors import Invalid

__all__ = ["SAMPLE_MAX", "Comparison", "Counts", "Pairs", "PartDifferences", "Tally", "added_samples"]


SAMPLE_MAX = 20
"""Digests of keys that are listed for each way to differ."""

_Numbers = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Rows that are not as they should be."""

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
        """All of them."""
        return self.missing + self.different + self.extra + self.duplicates


Pairs = tuple[Hashes, Hashes]
"""Of each row the hash of its key and that of its values."""


@dataclass(frozen=True, slots=True)
class Tally:
    """For each key: rows that should be there, rows that are, and rows that are the same on both sides."""

    keys: Hashes
    wanted: _Numbers
    found: _Numbers
    same: _Numbers

    @classmethod
    def of(cls, wanted: Pairs, found: Pairs) -> "Tally":
        keys = np.concatenate([wanted[0], found[0]])
        rows = np.concatenate([wanted[1], found[1]])
        ours = np.concatenate([np.ones(len(wanted[0]), np.int64), np.zeros(len(found[0]), np.int64)])
        order = np.lexsort((rows, keys))
        keys, rows, ours = keys[order], rows[order], ours[order]
        pairs = _starts((keys[1:] != keys[:-1]) | (rows[1:] != rows[:-1]))
        wanted_of = np.add.reduceat(ours, pairs)
        found_of = np.add.reduceat(1 - ours, pairs)
        keys = keys[pairs]
        firsts = _starts(keys[1:] != keys[:-1])
        same = np.add.reduceat(np.minimum(wanted_of, found_of), firsts)
        return cls(keys[firsts], np.add.reduceat(wanted_of, firsts), np.add.reduceat(found_of, firsts), same)

    @property
    def _ways(self) -> dict[str, _Numbers]:
        surplus = np.maximum(self.found - self.wanted, 0)
        return {
            "missing": np.maximum(self.wanted - self.found, 0),
            "different": np.minimum(self.wanted, self.found) - self.same,
            "extra": np.where(self.wanted == 0, surplus, 0),
            "duplicates": np.where(self.wanted > 0, surplus, 0),
        }

    @property
    def counts(self) -> Counts:
        return Counts(**{way: int(numbers.sum()) for way, numbers in self._ways.items()})

    @property
    def _wrong(self) -> _Mask:
        wrong: _Mask = (self.same != self.wanted) | (self.same != self.found)
        return wrong

    @property
    def put(self) -> _Mask:
        wanted: _Mask = self._wrong & (self.wanted > 0)
        return wanted

    @property
    def removed(self) -> _Mask:
        """A put replaces the one row of a key; where several have the hash, those there are go first."""
        leaving: _Mask = self._wrong & ((self.found > self.wanted) | (self.wanted > 1))
        return leaving

    def samples(self) -> dict[str, list[str]]:
        return {
            way: [digest(int(key)) for key in self.keys[numbers > 0][:SAMPLE_MAX]]
            for way, numbers in self._ways.items()
        }


def _starts(changes: _Mask) -> _Numbers:
    """Where runs of equal neighbours begin, of where a neighbour is another one."""
    return np.concatenate([np.zeros(1, np.int64), np.flatnonzero(changes) + 1])


def added_samples(known: dict[str, list[str]], more: dict[str, list[str]]) -> dict[str, list[str]]:
    """Both, as far as samples go; ways without any are left out."""
    both = {way: (known.get(way, []) + more.get(way, []))[:SAMPLE_MAX] for way in (*known, *more)}
    return {way: digests for way, digests in both.items() if digests}


_KEY_HASH, _ROW_HASH = "_key_hash", "_row_hash"
_HASH_FIELDS = [pa.field(_KEY_HASH, pa.uint64()), pa.field(_ROW_HASH, pa.uint64())]


@dataclass(frozen=True, slots=True)
class PartDifferences:
    """What differs in one part of the keys, and what has to be done about it."""

    counts: Counts
    put: Hashes
    """Hashes of the keys whose rows the target should get from the source."""
    removed: pa.Table = field(repr=False)
    """Keys of which the target has rows that have to go first."""
    samples: dict[str, list[str]] = field(repr=False)
    """Digests of some keys, by the name of the count."""


class Comparison:
    """The rows that a target should have, and those that it has. A context, with files below a directory.

    `schema` is that of rows as they should be; those that are there are cast to it. The first columns are
    the key's.
    """

    def __init__(self, schema: pa.Schema, keys: int, folder: Path, *, buffer_bytes: int = 64 << 20) -> None:
        self._names = schema.names
        self._schema = pa.schema([pa.field(each.name, each.type) for each in schema])
        self._keys = schema.names[:keys]
        self.key_schema = pa.schema([self._schema.field(name) for name in self._keys])
        hashes = pa.schema(_HASH_FIELDS)
        kept = pa.schema([*self.key_schema, *_HASH_FIELDS])
        self._expected = HashedSpill(hashes, folder / "expected.arrow", buffer_bytes=buffer_bytes)
        self._present = HashedSpill(kept, folder / "present.arrow", buffer_bytes=buffer_bytes)

    @property
    def rows(self) -> tuple[int, int]:
        """How many there should be, and how many there are."""
        return self._expected.rows, self._present.rows

    def expect(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Rows that should be there."""
        for batch in batches:
            keys, rows = self._hashes(self._shaped(batch))
            self._expected.add(pa.record_batch([keys, rows], schema=self._expected.schema), keys)

    def find(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Rows that are there; raise Invalid when their columns cannot be compared."""
        for batch in batches:
            shaped = self._shaped(batch)
            keys, rows = self._hashes(shaped)
            columns = [*(shaped.column(name) for name in self._keys), keys, rows]
            self._present.add(pa.record_batch(columns, schema=self._present.schema), keys)

    def differences(self) -> Iterator[PartDifferences]:
        """What differs, part by part; parts without a difference are left out."""
        both = zip(self._expected.parts(), self._present.parts(), strict=True)
        for expected, present in both:
            found = self._compared(expected, present)
            if found is not None:
                yield found

    def key_hashes(self, rows: pa.RecordBatch) -> Hashes:
        """The hashes by which rows that have the key's columns are known, as in `PartDifferences.put`."""
        return hashes_of(rows.select(self._keys).cast(self.key_schema), self._keys)

    def _shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return batch.select(self._names).cast(self._schema)
        except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
            wanted = ", ".join(f"{each.name} {each.type}" for each in self._schema)
            there = ", ".join(f"{each.name} {each.type}" for each in batch.schema)
            raise Invalid(
                f"the target has the columns {there} where there should be {wanted}; rebuild it"
            ) from None  # what Arrow says may show a value

    def _hashes(self, batch: pa.RecordBatch) -> tuple[Hashes, Hashes]:
        return hashes_of(batch, self._keys), hashes_of(batch, self._names)

    def _compared(
        self, expected: Sequence[pa.RecordBatch], present: Sequence[pa.RecordBatch]
    ) -> PartDifferences | None:
        there = pa.Table.from_batches(present, self._present.schema)
        wanted = _pairs(pa.Table.from_batches(expected, self._expected.schema))
        found = _pairs(there)
        if Digest.of(wanted[1]) == Digest.of(found[1]):
            return None
        tally = Tally.of(wanted, found)
        leaving = there.filter(pa.array(np.isin(found[0], tally.keys[tally.removed]))).select(self._keys)
        return PartDifferences(
            counts=tally.counts,
            put=tally.keys[tally.put],
            removed=leaving.group_by(self._keys).aggregate([]),
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
