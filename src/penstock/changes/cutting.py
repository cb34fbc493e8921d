"""Which part of both caches can be sent. Pure.

The side that has come less far decides: what the other one has beyond that may be crossed by its next rows,
and waits. So it is with half of a transaction, whose other half is not cached yet.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a side is cached: its first row, and the first behind those cached (None: there is none)."""

    first_ts: int | None
    next_ts: int | None


@dataclass(frozen=True, slots=True)
class Cut:
    """Every row up to `upto_ts` is cached. `large_ts` is a commit-ts that is too large to be cached whole."""

    upto_ts: int
    large_ts: int | None = None


def cut(data: Extent, tombstones: Extent, to_ts: int) -> Cut:
    """Where both caches, filled, can be cut; `to_ts` where no more rows come.

    There is a `large_ts` only if nothing is cached up to `upto_ts`: it is the lowest there is then.
    """
    sides = (data, tombstones)
    upto = min(to_ts if side.next_ts is None else side.next_ts - 1 for side in sides)
    first = min((side.first_ts for side in sides if side.first_ts is not None), default=None)
    return Cut(upto, first if first is not None and first > upto else None)


def complete_ts(data: Extent, tombstones: Extent, to_ts: int) -> int:
    """The highest timestamp below which nothing is left."""
    left = [side.first_ts for side in (data, tombstones) if side.first_ts is not None]
    return min(left) - 1 if left else to_ts
