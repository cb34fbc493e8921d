"""Two sets of rows compared by key, in memory that does not grow with them.

Both sides are divided by the hashes of their keys, and each part is compared by itself, in vectors: first by
its digest, and where that differs row by row. Rows are known by two hashes of 64 bits, of the key and of all
values, and for each hash of a key the values on both sides are compared as multisets: keys that happen to
have one hash are no difference by that. What is left to chance, with 2^-64 each: that parts which differ have
one digest, rows of a key that differ one hash, a missing key and an extra one the same.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from penstock.columnar.row_hash import Digest, Hashes, hashes_of
from penstock.columnar.sorted_spill import HashedSpill
from penstock.errors import Invalid
from penstock.verify.tally import Counts, Pairs, Tally

__all__ = ["Comparison", "PartDifferences"]

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
