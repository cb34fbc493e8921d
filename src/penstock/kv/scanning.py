"""Scans of a snapshot, a page at a time: across regions, in both directions, fetching ahead.

`Scanner` reads pages from the store, `UnionScanner` merges a transaction's own writes into them, and
`ScanRows` is what the caller iterates. Rows travel in lists from the store's answer to the caller's
loop; nothing here touches them one by one.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Protocol

from penstock.errors import PenstockError, Unavailable
from penstock.kv.backoff import Backoffer
from penstock.kv.reading import ReadView, lock_of
from penstock.kv.region_table import KeyLocation
from penstock.kv.sender import RegionStale
from penstock.proto import kvrpcpb_pb2 as kvrpcpb

Row = tuple[bytes, bytes]
Page = list[Row]


_FIRST_PAGE_ROWS = 256
_PAGE_GROWTH = 4
_value = itemgetter(1)


class PageSource(Protocol):
    """Where pages of rows come from, in the order of the scan."""

    async def next_page(self) -> Page | None:
        """Return the next rows, at least one; None at the end."""


@dataclass(slots=True)
class Cursor:
    """The position of a scan: which part of which region to ask for next.

    Forward, `position` is the next key to read; in reverse it is the key to read below (empty: the end
    of all keys). The page grows from a small first one, so that short scans stay cheap.
    """

    lower: bytes
    upper: bytes
    reverse: bool
    page_rows_max: int
    rows_left: int | None = None
    position: bytes = field(init=False)
    done: bool = field(init=False)
    _page_rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.position = self.upper if self.reverse else self.lower
        self.done = (bool(self.upper) and self.lower >= self.upper) or self.rows_left == 0
        self._page_rows = min(_FIRST_PAGE_ROWS, self.page_rows_max)

    @property
    def limit(self) -> int:
        """How many rows to ask for."""
        return self._page_rows if self.rows_left is None else min(self._page_rows, self.rows_left)

    def bounds(self, region: KeyLocation) -> tuple[bytes, bytes]:
        """Return the start and end key of a request to the region that holds the position."""
        if self.reverse:
            return self.position, max(self.lower, region.start)
        if not self.upper or (region.end and region.end < self.upper):
            return self.position, region.end
        return self.position, self.upper

    def advance(self, region: KeyLocation, asked: int, last_key: bytes | None, *, answered: int) -> None:
        """Move behind a page of `answered` rows that ended with `last_key`."""
        if answered >= asked and last_key is not None:
            self.position = last_key if self.reverse else last_key + b"\0"
            self.done = self._is_at_far_bound()
            self._page_rows = min(self._page_rows * _PAGE_GROWTH, self.page_rows_max)
        elif self.reverse:
            self.position = region.start
            self.done = region.start <= self.lower
        else:
            self.position = region.end
            self.done = not region.end or (bool(self.upper) and region.end >= self.upper)

    def _is_at_far_bound(self) -> bool:
        if self.reverse:
            return self.position <= self.lower
        return bool(self.upper) and self.position >= self.upper

    def count_rows(self, rows: int) -> None:
        """Count rows handed out against the limit of the scan."""
        if self.rows_left is not None:
            self.rows_left -= rows
            self.done = self.done or self.rows_left <= 0


class Scanner:
    """Pages of a key range at a snapshot's timestamp; the next is fetched while one is consumed."""

    def __init__(self, view: ReadView, cursor: Cursor, *, key_only: bool) -> None:
        self._view = view
        self._cursor = cursor
        self._key_only = key_only
        self._ahead: asyncio.Task[Page | PenstockError] | None = None

    async def next_page(self) -> Page | None:
        """Return the next rows; None at the end. Raises the error of the fetch."""
        while self._ahead is not None or not self._cursor.done:
            if self._ahead is None:
                page = await self._fetch()
            else:
                outcome = await self._ahead_of_time(self._ahead)
                self._ahead = None
                if isinstance(outcome, PenstockError):
                    raise outcome
                page = outcome
            if not self._cursor.done:
                self._ahead = self._view.session.background.assist(self._fetch_quietly(), "scan ahead")
            if page:
                return page
        return None

    @staticmethod
    async def _ahead_of_time(fetch: "asyncio.Task[Page | PenstockError]") -> Page | PenstockError:
        # Not awaited itself: a caller that gives up must not take the page from the next call.
        await asyncio.wait({fetch})
        if fetch.cancelled():
            raise Unavailable("the client was closed during the scan; connect again")
        return fetch.result()

    async def _fetch_quietly(self) -> Page | PenstockError:
        try:
            return await self._fetch()
        except PenstockError as error:
            return error

    async def _fetch(self) -> Page:
        """Return the rows of one request, possibly none, and move the cursor."""
        view, cursor = self._view, self._cursor
        cache = view.session.router.cache
        bo = view.backoffer("scan")
        while True:
            if cursor.reverse:
                location = await cache.locate_before(bo, cursor.position)
            else:
                location = await cache.locate(bo, cursor.position)
            start, end = cursor.bounds(location)
            asked = cursor.limit
            request = kvrpcpb.ScanRequest(
                context=view.context(),
                start_key=start,
                end_key=end,
                limit=asked,
                version=view.ts,
                key_only=self._key_only,
                reverse=cursor.reverse,
            )
            try:
                answer = await view.session.router.send_to_region(
                    bo, "KvScan", request, location, kvrpcpb.ScanResponse
                )
            except RegionStale:
                continue
            if answer.HasField("error"):
                await view.make_way(bo, [lock_of(answer.error, view.ts)])
                continue
            await view.session.safe_point.check(view.ts)
            pairs = answer.pairs
            page = [(pair.key, pair.value) for pair in pairs]
            last_key = page[-1][0] if page else None
            if self._key_only or not all(map(_value, page)):
                page, last_key = await self._read_locked(bo, pairs)
            cursor.advance(location, asked, last_key, answered=len(pairs))
            cursor.count_rows(len(page))
            return page

    async def _read_locked(self, bo: Backoffer, pairs: Sequence[kvrpcpb.KvPair]) -> tuple[Page, bytes | None]:
        """Return the rows of an answer, those behind locks read again, and the last key it went to."""
        locks = [lock_of(pair.error, self._view.ts) for pair in pairs if pair.HasField("error")]
        page = [(pair.key, pair.value) for pair in pairs if not pair.HasField("error")]
        if not locks:
            return page, page[-1][0] if page else None
        last_key = locks[-1].key if pairs[-1].HasField("error") else page[-1][0]
        await self._view.make_way(bo, locks)
        freed = await self._view.batch_get(sorted({lock.key for lock in locks}))
        page += [(key, b"" if self._key_only else value) for key, value in freed.items()]
        page.sort(reverse=self._cursor.reverse)
        return page, last_key


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


class UnionScanner:
    """Pages of a scan with a transaction's own writes in them."""

    def __init__(self, source: PageSource, union: Union, *, rows_left: int | None) -> None:
        self._source: PageSource | None = source
        self._union = union
        self._rows_left = rows_left

    async def next_page(self) -> Page | None:
        """Return the next merged rows; None at the end."""
        while self._source is not None and self._rows_left != 0:
            page = await self._source.next_page()
            if page is None:
                self._source = None
                merged = self._union.merge([], last=True)
            else:
                merged = self._union.merge(page, last=False)
            if self._rows_left is not None:
                merged = merged[: self._rows_left]
                self._rows_left -= len(merged)
            if merged:
                return merged
        return None


class ScanRows:
    """The rows of a scan: iterate them with `async for`, or take them a page at a time."""

    def __init__(self, opened: Callable[[], Awaitable[PageSource]]) -> None:
        self._open = opened
        self._source: PageSource | None = None

    async def next_page(self) -> Page | None:
        """Return the next rows in a list, at least one; None at the end."""
        if self._source is None:
            self._source = await self._open()
        return await self._source.next_page()

    async def pages(self) -> AsyncIterator[Page]:
        """Yield the rows in lists."""
        while (page := await self.next_page()) is not None:
            yield page

    async def __aiter__(self) -> AsyncIterator[Row]:
        while (page := await self.next_page()) is not None:
            for row in page:
                yield row
