"""Splits regions that have grown too large.

Written bytes are only counted while commands run; when the count says that a region may be too
large, its data is measured and cut into even parts.
"""

import asyncio
import heapq
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence

from penstock.errors import PenstockError
from penstock.proto.codec import encode_bytes
from penstock.store.engine import Cf, Engine
from penstock.store.mvcc import keys
from penstock.store.region import Region
from penstock.store.regions import Regions

__all__ = ["SizeWatch", "cut_points"]

_LOG = logging.getLogger(__name__)
_SAMPLES = 64


def cut_points(samples: Sequence[tuple[bytes, int]], size_max: int) -> list[bytes]:
    """Return the keys that cut sampled data into even parts of at most `size_max`.

    A sample is a key and the bytes from it to the next sample.
    """
    total = sum(size for _, size in samples)
    parts = -(-total // size_max)
    points: list[bytes] = []
    passed = 0
    for key, size in samples:
        if len(points) < parts - 1 and passed * parts >= total * (len(points) + 1):
            points.append(key)
        passed += size
    return points


class SizeWatch:
    """Counts what is written to each region and splits those that are too large.

    Implements RegionListener: parts of a split share its count, a merge adds the counts up.
    """

    def __init__(self, engine: Engine, regions: Regions, *, size_max: int) -> None:
        self._engine = engine
        self._regions = regions
        self._size_max = size_max
        self._sizes: defaultdict[int, int] = defaultdict(int)
        self._due: set[int] = set()
        self._checking: asyncio.Task[None] | None = None
        regions.listen(self)

    def grew(self, region_id: int, size: int) -> None:
        """Count bytes written to a region."""
        self._sizes[region_id] = total = self._sizes[region_id] + size
        if total >= self._size_max:
            self._due.add(region_id)
            if self._checking is None or self._checking.done():
                self._checking = asyncio.ensure_future(self._check_due())

    def region_changed(self, before: Region, after: Sequence[Region]) -> None:
        size = self._sizes.pop(before.id, 0)
        for region in after:
            self._sizes[region.id] += size // len(after)

    async def close(self) -> None:
        """Stop checking; a split under way is finished."""
        self._due.clear()
        if self._checking is not None:
            await asyncio.wait([self._checking])

    async def _check_due(self) -> None:
        while self._due:
            region = self._regions.by_id(self._due.pop())
            if region is None:
                continue
            try:
                await self._check(region)
            except PenstockError as error:
                _LOG.warning("region was not split", extra={"region": region.id, "reason": str(error)})

    async def _check(self, region: Region) -> None:
        samples = await asyncio.to_thread(self._measure, region)
        self._sizes[region.id] = size = sum(weight for _, weight in samples)
        points = [key for key in cut_points(samples, self._size_max) if key > region.start]
        if size >= self._size_max and points:
            parts = await self._regions.split(region.id, points)
            _LOG.info("region was split by size", extra={"region": region.id, "parts": len(parts)})

    def _measure(self, region: Region) -> list[tuple[bytes, int]]:
        view = self._engine.view()
        every = max(1, self._size_max // _SAMPLES)
        bounds = region.bounds()
        versions = [_versioned(view.iterate(cf, *keys.span(bounds))) for cf in (Cf.WRITE, Cf.DEFAULT)]
        plain = view.iterate(Cf.RAW, region.start, region.end)
        return list(heapq.merge(*(_sample(pairs, every) for pairs in (*versions, plain))))


def _versioned(pairs: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    for key, value in pairs:
        yield encode_bytes(keys.unescape(key)), value


def _sample(pairs: Iterator[tuple[bytes, bytes]], every: int) -> Iterator[tuple[bytes, int]]:
    """Yield a key for every so many bytes, and the bytes from it to the next one."""
    first, size = b"", 0
    for key, value in pairs:
        if not size:
            first = key
        size += len(key) + len(value)
        if size >= every:
            yield first, size
            size = 0
    if size:
        yield first, size
