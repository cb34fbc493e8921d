"""How far a reader may go that takes a limited number of changes at a time, and no half commits. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ReadLimit:
    """How many changes, and how many bytes of them, are taken at a time; None: as many as there are."""

    rows: int | None = None
    nbytes: int | None = None

    def __bool__(self) -> bool:
        return self.rows is not None or self.nbytes is not None

    def allows(self, rows: float, nbytes: float) -> bool:
        """Whether so much may be taken at once."""
        return (self.rows is None or rows <= self.rows) and (self.nbytes is None or nbytes <= self.nbytes)


@dataclass(frozen=True, slots=True)
class CountedChanges:
    """Changes that were committed from `min_ts` to `max_ts`. `times` gives when, at the price of a read."""

    rows: int
    nbytes: int
    min_ts: int
    max_ts: int
    times: Callable[[], Ints]

    @classmethod
    def counted(cls, times: Ints, row_bytes: float) -> "CountedChanges":
        """Changes of which the times are known already; there is at least one."""
        nbytes = round(len(times) * row_bytes)
        return cls(len(times), nbytes, int(times.min()), int(times.max()), lambda: times)


def admitted_ts(held: Iterable[CountedChanges], from_ts: int, to_ts: int, limit: ReadLimit) -> int:
    """The end of the longest range (from_ts, end] within `to_ts` and the limit.

    It has every change of each commit in it, and at least one commit if there is any: then it may be more
    than the limit allows. Only times that the decision depends on are asked for.
    """
    inside = sorted((each for each in held if _meets(each, from_ts, to_ts)), key=lambda each: each.min_ts)
    sure = _prefix(inside, limit)
    if sure == len(inside):
        return to_ts
    safe_ts = max(from_ts, inside[sure].min_ts - 1)  # up to here it is enough even if every change counts
    whole = [each for each in inside[:sure] if each.min_ts > from_ts and each.max_ts <= safe_ts]
    tally = _Tally(limit, sum(each.rows for each in whole), sum(each.nbytes for each in whole))
    for each in inside[:sure]:
        if each.min_ts <= from_ts or each.max_ts > safe_ts:
            tally.add(each, from_ts)
    for number, each in enumerate(inside[sure:], sure + 1):
        tally.add(each, from_ts)
        known_ts = to_ts if number == len(inside) else min(to_ts, inside[number].min_ts - 1)
        end = tally.end(known_ts)
        if end is not None:
            return end
    return to_ts


def _meets(held: CountedChanges, from_ts: int, to_ts: int) -> bool:
    return held.max_ts > from_ts and held.min_ts <= to_ts


def _prefix(held: Sequence[CountedChanges], limit: ReadLimit) -> int:
    """How many of them, one after the other, are allowed together."""
    rows = accumulate(each.rows for each in held)
    nbytes = accumulate(each.nbytes for each in held)
    fits = [limit.allows(*so_far) for so_far in zip(rows, nbytes, strict=True)]
    return fits.index(False) if False in fits else len(fits)


class _Tally:
    """Changes by the time of their commit, beside some that come before all that is decided."""

    def __init__(self, limit: ReadLimit, rows: int, nbytes: int) -> None:
        self._limit = limit
        self._rows = rows
        self._nbytes = nbytes
        self._times: list[Ints] = []
        self._weights: list[npt.NDArray[np.float64]] = []

    def add(self, held: CountedChanges, from_ts: int) -> None:
        times = held.times()
        times = times[times > from_ts]
        self._times.append(times)
        self._weights.append(np.full(len(times), held.nbytes / max(1, held.rows)))

    def end(self, known_ts: int) -> int | None:
        """Where to cut, when that is certain with everything up to `known_ts` added; else None."""
        commits, which = np.unique(np.concatenate(self._times), return_inverse=True)
        rows = self._rows + np.cumsum(np.bincount(which, minlength=len(commits)))
        weights = np.bincount(which, np.concatenate(self._weights), len(commits))
        nbytes = self._nbytes + np.cumsum(weights)
        beyond = np.zeros(len(commits), np.bool_)
        if self._limit.rows is not None:
            beyond |= rows > self._limit.rows
        if self._limit.nbytes is not None:
            beyond |= nbytes > self._limit.nbytes
        first = int(beyond.argmax()) if beyond.any() else len(commits)
        if first == len(commits) or commits[first] > known_ts:
            return None
        alone = first == 0 and not self._rows
        return int(commits[first]) - (0 if alone else 1)
