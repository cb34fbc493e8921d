"""Dividing a range into shares of about as many rows each, by what statistics say. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Weight:
    """So many rows that were committed from `min_ts` to `max_ts`, evenly as far as is known."""

    rows: int
    min_ts: int
    max_ts: int


@dataclass(frozen=True, slots=True)
class Share:
    """(from_ts, to_ts], with about so many rows; more than are wanted only if they are all at `large_ts`."""

    from_ts: int
    to_ts: int
    rows: int
    large_ts: int | None = None


def share_times(weights: Iterable[Weight], from_ts: int, to_ts: int, rows_max: int) -> list[Share]:
    """Divide (from_ts, to_ts] into shares of at most about `rows_max` rows; together they are all of it.

    Only a single timestamp may have more, as a share of its own.
    """
    shares: list[Share] = []
    begin, rows, large_ts = from_ts, 0.0, None
    for start, end, held in _pieces(weights, from_ts, to_ts, rows_max):
        if rows and rows + held > rows_max:
            shares.append(Share(begin, start, round(rows), large_ts))
            begin, rows, large_ts = start, 0.0, None
        rows += held
        large_ts = end if held > rows_max else large_ts
    return [*shares, Share(begin, to_ts, round(rows), large_ts)]


def _pieces(
    weights: Iterable[Weight], from_ts: int, to_ts: int, rows_max: int
) -> Iterator[tuple[int, int, float]]:
    """The parts of a range that have rows, with how many: at most `rows_max` but for single timestamps."""
    inside = [each for each in weights if each.max_ts > from_ts and each.min_ts <= to_ts]
    ends = {end for each in inside for end in (each.min_ts - 1, each.max_ts) if from_ts < end < to_ts}
    points = sorted({from_ts, to_ts, *ends})
    for (start, end), held in zip(pairwise(points), _rows(inside, np.array(points, np.int64)), strict=True):
        count = max(1, min(end - start, ceil(held / rows_max)))
        cuts = [start + (end - start) * part // count for part in range(count + 1)]
        for low, high in pairwise(cuts):
            if held:
                yield low, high, float(held) / count


def _rows(weights: Iterable[Weight], points: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """How many rows there are between each point and the next."""
    lengths = np.diff(points)
    rows = np.zeros(len(lengths))
    for each in weights:
        low, high = np.searchsorted(points, np.array([each.min_ts - 1, each.max_ts], np.int64))
        covered = slice(low, high)
        rows[covered] += each.rows * (lengths[covered] / (each.max_ts - each.min_ts + 1))
    return rows


def share_handles(groups: Iterable[tuple[bytes, int]], rows_max: int) -> list[bytes]:
    """Handles that divide groups of rows, each given by its lowest handle, into about `rows_max` rows."""
    cuts: list[bytes] = []
    begin: bytes | None = None
    rows = 0
    for handle, held in sorted(groups):
        if begin is None:
            begin = handle
        elif rows + held > rows_max and handle > begin:
            cuts.append(handle)
            begin, rows = handle, 0
        rows += held
    return cuts


def ranges(cuts: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """The handle ranges between cuts, which together are all handles."""
    return list(zip([b"", *cuts], [*cuts, b""], strict=True))
