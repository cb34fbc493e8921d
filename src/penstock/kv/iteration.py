"""Merging a transaction's own writes into pages of a snapshot scan, in either direction."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

Row = tuple[bytes, bytes]
Page = list[Row]


@dataclass(slots=True)
class Union:
    """Merges pages of a scan with the rows a transaction had written when the scan began.

    Pages come in the scan's order and cover its range without gaps. A buffered row replaces the
    snapshot's row of the same key; an empty value hides it. A page that no buffered row touches
    is handed on as it is, so that a scan of unwritten ranges costs nothing per row.
    """

    buffered: Sequence[Row]  # ascending by key
    reverse: bool
    _keys: list[bytes] = field(init=False)
    _low: int = field(init=False, default=0)
    _high: int = field(init=False)

    def __post_init__(self) -> None:
        self._keys = [key for key, _ in self.buffered]
        self._high = len(self._keys)

    def merge(self, page: Page, *, last: bool) -> Page:
        """Return the page with the buffered rows up to its last key, or all the rest after the last page."""
        touched = self._take(page, last=last)
        if not touched:
            return page
        merged = dict(page)
        for key, value in touched:
            if value:
                merged[key] = value
            else:
                merged.pop(key, None)
        return sorted(merged.items(), reverse=self.reverse)

    def _take(self, page: Page, *, last: bool) -> Sequence[Row]:
        low, high = self._low, self._high
        if low == high or (not page and not last):
            return ()
        if self.reverse:
            start = low if last else bisect_left(self._keys, page[-1][0], low, high)
            self._high = start
            return self.buffered[start:high]
        stop = high if last else bisect_right(self._keys, page[-1][0], low, high)
        self._low = stop
        return self.buffered[low:stop]
