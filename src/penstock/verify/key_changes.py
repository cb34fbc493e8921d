"""What is left of a table's rows after its changes, compared with what should be there. Pure, in vectors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.columnar.row_hash import Digest, Hashes, digest
from penstock.verify.tally import SAMPLE_MAX, Counts, Pairs, Tally, added_samples

__all__ = ["ADDED", "PUT", "REMOVED", "Basis", "HashedChanges", "Kinds", "Orders", "TableResult", "compared"]

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
