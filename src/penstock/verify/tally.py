"""How many rows of each key should be there, are there, and are the same. Pure."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.columnar.row_hash import Hashes, digest

__all__ = ["SAMPLE_MAX", "Counts", "Pairs", "Tally", "added_samples"]

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
