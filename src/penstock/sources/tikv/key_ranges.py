"""Ranges of raw keys, [start, end); an empty end is the end of all keys."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.errors import Invalid, show_key

__all__ = ["KeyRange", "KeySpan", "RangeTsMap", "intersect", "left_cover", "lower_end", "reaches"]

KeyRange = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class KeySpan:
    """What a subscription follows: a range of keys, and the table it belongs to (0: none)."""

    table_id: int
    start: bytes
    end: bytes

    def __post_init__(self) -> None:
        if self.end and self.start >= self.end:
            raise Invalid(
                f"span of table {self.table_id} is empty: {show_key(self.start)} is not before"
                f" {show_key(self.end)}; give a start below its end"
            )


def reaches(end: bytes, key: bytes) -> bool:
    """Return whether a range that ends at `end` extends beyond `key`."""
    return not end or end > key


def lower_end(one: bytes, other: bytes) -> bytes:
    """Return the end that comes first."""
    if not one or not other:
        return one or other
    return min(one, other)


def intersect(one: KeyRange, other: KeyRange) -> KeyRange | None:
    """Return what two ranges share, or None."""
    start, end = max(one[0], other[0]), lower_end(one[1], other[1])
    return (start, end) if reaches(end, start) else None


def left_cover(regions: Sequence[KeyRange], wanted: KeyRange) -> int:
    """Return how many of the regions, in order, cover the left part of `wanted` without a hole."""
    position, wanted_end = wanted
    for count, (start, end) in enumerate(regions):
        if start > position or not reaches(end, position):
            return count
        if not end or (wanted_end and end >= wanted_end):
            return count + 1
        position = end
    return len(regions)


class RangeTsMap:
    """Timestamps of disjoint ranges. Asserts that a range is not set twice, and is set before its use."""

    __slots__ = ("_ends", "_starts", "_ts")

    def __init__(self) -> None:
        self._starts: list[bytes] = []
        self._ends: list[bytes] = []
        self._ts: list[int] = []

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[bytes, bytes, int]]:
        return zip(self._starts, self._ends, self._ts, strict=True)

    def lowest(self) -> int | None:
        """Return the smallest timestamp of all."""
        return min(self._ts, default=None)

    def set(self, start: bytes, end: bytes, ts: int) -> None:
        """Set the timestamp of a range that has none."""
        low, high = self._meeting(start, end)
        assert low == high, "a part of the range has a timestamp already"
        self._replace(low, high, [(start, end, ts)])

    def min(self, start: bytes, end: bytes) -> int:
        """Return the smallest timestamp within a range, all of which must have one."""
        low, high = self._meeting(start, end)
        self._check_covered(low, high, start, end)
        return min(self._ts[low:high])

    def unset(self, start: bytes, end: bytes) -> None:
        """Remove the timestamps of a range, all of which must have one."""
        low, high = self._meeting(start, end)
        self._check_covered(low, high, start, end)
        self._cut(low, high, start, end)

    def discard(self, start: bytes, end: bytes) -> None:
        """Remove the timestamps of a range where there are any."""
        low, high = self._meeting(start, end)
        self._cut(low, high, start, end)

    def _meeting(self, start: bytes, end: bytes) -> tuple[int, int]:
        """Return the positions of the entries that meet a range."""
        low = bisect_right(self._starts, start)
        if low and reaches(self._ends[low - 1], start):
            low -= 1
        high = low
        while high < len(self._starts) and reaches(end, self._starts[high]):
            high += 1
        return low, high

    def _check_covered(self, low: int, high: int, start: bytes, end: bytes) -> None:
        covered = left_cover(
            list(zip(self._starts[low:high], self._ends[low:high], strict=True)), (start, end)
        )
        last_end = self._ends[high - 1] if high else b"\0"
        whole = covered == high - low > 0 and (not last_end or (end and last_end >= end))
        assert whole, "a part of the range has no timestamp"

    def _cut(self, low: int, high: int, start: bytes, end: bytes) -> None:
        if low == high:
            return
        rest = []
        if self._starts[low] < start:
            rest.append((self._starts[low], start, self._ts[low]))
        if end and reaches(self._ends[high - 1], end):
            rest.append((end, self._ends[high - 1], self._ts[high - 1]))
        self._replace(low, high, rest)

    def _replace(self, low: int, high: int, entries: list[tuple[bytes, bytes, int]]) -> None:
        self._starts[low:high] = [entry[0] for entry in entries]
        self._ends[low:high] = [entry[1] for entry in entries]
        self._ts[low:high] = [entry[2] for entry in entries]
