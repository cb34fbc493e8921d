"""Dividing a range into shares of about as many rows each, by what statistics say. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

import numpy as np
import numpy.typing as npt

_NEAR = 1 / 16  # the part of an even share that one may be larger or smaller by
_ABOUT = 1 / 4  # the part of `rows_max` that an even share may be larger by: more shares would be less even


@dataclass(frozen=True, slots=True)
class Weight:
    """So many rows that were committed from `min_ts` to `max_ts`, evenly as far as is known."""

    rows: int
    min_ts: int
    max_ts: int


@dataclass(frozen=True, slots=True)
class Split:
    """(from_ts, to_ts], with about so many rows; more than are wanted only if they are all at `large_ts`."""

    from_ts: int
    to_ts: int
    rows: int
    large_ts: int | None = None


def share_times(weights: Iterable[Weight], from_ts: int, to_ts: int, rows_max: int) -> list[Split]:
    """Divide (from_ts, to_ts] into as few even shares of at most about `rows_max` rows as may be.

    Together they are all of it. Only a single timestamp may have more, as a share of its own. Shares end
    where objects do if that is about even: an object in two of them is read twice.
    """
    pieces = list(_pieces(weights, from_ts, to_ts))
    filling = _Filling(from_ts, rows_max, left=sum(held for _, _, held in pieces))
    for piece in pieces:
        filling.add(*piece)
    return filling.shares(to_ts)


class _Filling:
    """Shares in the making."""

    def __init__(self, from_ts: int, rows_max: int, left: float) -> None:
        self._rows_max = rows_max
        self._left = left  # rows that no finished share has
        self._even = self._even_rows()
        self._done: list[Split] = []
        self._begin, self._rows = from_ts, 0.0

    def add(self, start: int, end: int, held: float) -> None:
        """Rows that were committed in (start, end], evenly."""
        at_once = held / (end - start)
        if at_once > self._rows_max:
            for ts in range(start + 1, end + 1):
                self._add_large(ts, at_once)
            return
        while self._rows + held > self._even * (1 + _NEAR):
            fitting = round((self._even - self._rows) / at_once)  # timestamps
            if self._rows and (fitting < 1 or self._rows >= self._even * (1 - _NEAR)):
                self._finish(start)
                continue
            fitting = max(1, fitting)
            if fitting >= end - start:
                break
            self._rows += at_once * fitting
            start += fitting
            held -= at_once * fitting
            self._finish(start)
        self._rows += held

    def shares(self, to_ts: int) -> list[Split]:
        """All of them; the last has what is left."""
        if self._rows or not self._done:
            self._finish(to_ts)
        return [*self._done[:-1], replace(self._done[-1], to_ts=to_ts)]

    def _add_large(self, ts: int, held: float) -> None:
        if self._rows:
            self._finish(ts - 1)
        self._rows = held
        self._finish(ts, large_ts=ts)

    def _finish(self, end: int, large_ts: int | None = None) -> None:
        self._done.append(Split(self._begin, end, round(self._rows), large_ts))
        self._left -= self._rows
        self._even = self._even_rows()
        self._begin, self._rows = end, 0.0

    def _even_rows(self) -> float:
        even = self._left / max(1, ceil(self._left / self._rows_max - _ABOUT))
        return max(1.0, even)  # fractions of a row, and what rounding leaves of them, need no share


def _pieces(weights: Iterable[Weight], from_ts: int, to_ts: int) -> Iterator[tuple[int, int, float]]:
    """The parts of a range that have rows, with how many: from where an object begins or ends to the next."""
    inside = [each for each in weights if each.max_ts > from_ts and each.min_ts <= to_ts]
    ends = {end for each in inside for end in (each.min_ts - 1, each.max_ts) if from_ts < end < to_ts}
    points = sorted({from_ts, to_ts, *ends})
    for (start, end), held in zip(pairwise(points), _rows(inside, np.array(points, np.int64)), strict=True):
        if held:
            yield start, end, float(held)


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
