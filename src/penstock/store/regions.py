"""The regions of the cluster: one sorted, gapless map of the key space, kept on disk.

`SizeWatch` splits regions that have grown too large. While commands run it only counts written bytes; when a
region may be too large by that count, it measures the region's data and splits it into even parts.
"""

import asyncio
import heapq
import logging
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Protocol

from penstock.errors import Corrupt, Invalid, PenstockError
from penstock.proto import errorpb_pb2 as errorpb
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto.codec import encode_bytes
from penstock.store import meta
from penstock.store.engine import Cf, Engine, Mutation
from penstock.store.mvcc import records
from penstock.store.refusals import refusal
from penstock.store.region import Peer, Region
from penstock.store.tso import Ids

__all__ = ["REPLICAS", "RegionListener", "Regions", "SizeWatch", "cut_points"]


REPLICAS = 3


class RegionListener(Protocol):
    """Is called at every change of a region."""

    def region_changed(self, before: Region, after: Sequence[Region]) -> None:
        """Take note that the regions `after`, often one with the same id, now cover the range of `before`.

        It is called on the loop once the change is durable and visible. It must not block or raise.
        """


class Regions:
    """Looks regions up and changes them. Each change is durable before it is visible.

    Invariant: the regions cover the whole key space without gap or overlap.
    """

    def __init__(self, engine: Engine, ids: Ids, regions: Iterable[Region]) -> None:
        self._engine = engine
        self._ids = ids
        self._ordered = sorted(regions, key=lambda region: region.start)
        self._starts = [region.start for region in self._ordered]
        self._by_id = {region.id: region for region in self._ordered}
        self._listeners: list[RegionListener] = []
        self._changing = asyncio.Lock()
        self._check_cover()

    @classmethod
    def load(cls, engine: Engine, ids: Ids) -> "Regions":
        """Read the regions of a data directory; raise Corrupt when they do not cover the key space."""
        view = engine.view()
        stored = view.iterate(Cf.META, meta.REGION, meta.after(meta.REGION))
        return cls(engine, ids, [Region.from_bytes(value) for _, value in stored])

    def _check_cover(self) -> None:
        edge = b""
        for i, region in enumerate(self._ordered):
            last = i == len(self._ordered) - 1
            if region.start != edge or (not region.end) != last:
                raise Corrupt(
                    f"region {region.id} leaves a gap or an overlap; restore the data directory from a copy"
                )
            edge = region.end
        if not self._ordered:
            raise Corrupt("the data directory has no regions; restore it from a copy")

    def __len__(self) -> int:
        return len(self._ordered)

    def __iter__(self) -> Iterator[Region]:
        return iter(tuple(self._ordered))

    def by_id(self, region_id: int) -> Region | None:
        return self._by_id.get(region_id)

    def by_key(self, encoded: bytes) -> Region:
        """Return the region that holds an encoded key."""
        return self._ordered[bisect_right(self._starts, encoded) - 1]

    def previous(self, encoded: bytes) -> Region | None:
        """Return the region before the one that holds an encoded key."""
        at = bisect_right(self._starts, encoded) - 2
        return self._ordered[at] if at >= 0 else None

    def scan(self, start: bytes, end: bytes, limit: int) -> list[Region]:
        """Return the regions that meet [start, end), in order; a limit below 1 is no limit."""
        first = bisect_right(self._starts, start) - 1
        last = bisect_left(self._starts, end) if end else len(self._ordered)
        found = self._ordered[first : max(last, first)]
        return found[:limit] if limit > 0 else found

    def check(
        self, context: kvrpcpb.Context, store_id: int, *, any_peer: bool = False
    ) -> Region | errorpb.Error:
        """Return the region of a request, or the error why `store_id` may not serve it."""
        region = self._by_id.get(context.region_id)
        if (
            region is not None
            and region.leader_store == store_id
            and region.version == context.region_epoch.version
            and region.leader.id == context.peer.id
            and context.peer.store_id == store_id
            and not context.term
        ):
            return region
        error = refusal(region, context, store_id, any_peer=any_peer, siblings=self._siblings(region))
        if error is not None:
            return error
        assert region is not None
        return region

    def _siblings(self, region: Region | None) -> list[Region]:
        # The old id keeps the right-most part of a split, so the new parts lie on the left.
        left = self.previous(region.start) if region is not None else None
        return [left] if left is not None else []

    def listen(self, listener: RegionListener) -> None:
        """Call `listener` at every later change."""
        self._listeners.append(listener)

    async def split(self, region_id: int, encoded_keys: Iterable[bytes]) -> list[Region]:
        """Split a region; return its parts in order. A key that already is its start is ignored.

        Raise Invalid when the region is unknown or a key lies outside of it.
        """
        async with self._changing:
            region = self._get(region_id)
            keys = sorted({key for key in encoded_keys if key != region.start})
            if not keys:
                return [region]
            if not region.contains(keys[0]) or not region.contains(keys[-1]):
                raise Invalid(f"a split key is not in region {region_id}; locate the keys again")
            width = 1 + len(region.peers)
            first = await self._ids.allocate(len(keys) * width)
            starts = range(first, first + len(keys) * width, width)
            parts = region.split(keys, [(n, range(n + 1, n + width)) for n in starts])
            await self._replace([region], parts)
            return list(parts)

    async def split_at(self, encoded_keys: Iterable[bytes]) -> list[Region]:
        """Split the regions in which the keys lie; return the regions that begin at the keys, in order."""
        keys = sorted(set(encoded_keys) - {b""})
        waiting = list(keys)
        while waiting:
            region = self.by_key(waiting[0])
            count = bisect_left(waiting, region.end) if region.end else len(waiting)
            inside, waiting = waiting[:count], waiting[count:]
            await self.split(region.id, inside)
        return [self.by_key(key) for key in keys]

    async def merge(self, region_id: int) -> Region:
        """Give a region's range to its right neighbour (the last one's to its left); return that one."""
        async with self._changing:
            source = self._get(region_id)
            target = self.by_key(source.end) if source.end else self.previous(source.start)
            if target is None:
                raise Invalid(f"region {region_id} is the only one; split before you merge")
            merged = target.absorb(source)
            await self._replace([source, target], [merged])
            return merged

    async def transfer_leader(self, region_id: int, store_id: int) -> Region:
        """Make the peer on `store_id` the leader; raise Invalid when there is none."""
        async with self._changing:
            before = self._get(region_id)
            after = before.with_leader(store_id)
            if after is not before:
                await self._replace([before], [after])
            return after

    async def move_leader(self, region_id: int, store_id: int) -> Region:
        """Make `store_id` the leader, moving a follower's peer there when it has none."""
        async with self._changing:
            before = self._get(region_id)
            after = before
            if before.peer_on(store_id) is None:
                after = after.with_peer(Peer(await self._ids.allocate(1), store_id))
                followers = [peer.store_id for peer in before.peers if peer.store_id != before.leader_store]
                if len(after.peers) > REPLICAS:
                    after = after.without_peer(followers[0])
            after = after.with_leader(store_id)
            if after is not before:
                await self._replace([before], [after])
            return after

    async def depose(self, store_id: int, heirs: Container[int]) -> None:
        """Move the leaders on `store_id` to peers on `heirs`; regions without such a peer keep theirs."""
        async with self._changing:
            for before in tuple(self._ordered):
                if before.leader_store != store_id:
                    continue
                peers = [peer.store_id for peer in before.peers if peer.store_id in heirs]
                if peers:
                    await self._replace([before], [before.with_leader(peers[before.id % len(peers)])])

    async def replicate(self, store_ids: Sequence[int]) -> None:
        """Give every region peers on these stores until it has its full number of replicas."""
        async with self._changing:
            for before in tuple(self._ordered):
                after = before
                for store_id in store_ids:
                    if len(after.peers) < REPLICAS and after.peer_on(store_id) is None:
                        after = after.with_peer(Peer(await self._ids.allocate(1), store_id))
                if after is not before:
                    await self._replace([before], [after])

    def _get(self, region_id: int) -> Region:
        region = self._by_id.get(region_id)
        if region is None:
            raise Invalid(f"region {region_id} does not exist; locate the key again")
        return region

    async def _replace(self, before: Sequence[Region], after: Sequence[Region]) -> None:
        """Replace `before` by `after`: on disk, then in the map; then call the listeners.

        A cancellation of the caller takes effect only then, because the next change builds on the map.
        """
        kept = {region.id for region in after}
        changes: list[Mutation] = [
            (Cf.META, meta.region_key(region.id), region.to_bytes()) for region in after
        ]
        changes += [(Cf.META, meta.region_key(gone.id), None) for gone in before if gone.id not in kept]
        cancelled = await _land(asyncio.ensure_future(self._engine.write(changes)))
        at = bisect_left(self._starts, min(region.start for region in before))
        self._ordered[at : at + len(before)] = after
        self._starts[at : at + len(before)] = [region.start for region in after]
        for gone in before:
            del self._by_id[gone.id]
        self._by_id.update((region.id, region) for region in after)
        for old in before:
            for listener in self._listeners:
                listener.region_changed(old, after)
        if cancelled is not None:
            raise cancelled


async def _land(durable: "asyncio.Task[None]") -> asyncio.CancelledError | None:
    """Wait for a write even when cancelled; return the cancellation that came meanwhile."""
    cancelled = None
    while not durable.done():
        try:
            await asyncio.wait([durable])
        except asyncio.CancelledError as error:
            cancelled = error
    durable.result()
    return cancelled


_LOG = logging.getLogger(__name__)
_SAMPLES = 64


def cut_points(samples: Sequence[tuple[bytes, int]], size_max: int) -> list[bytes]:
    """Return the keys that split sampled data into even parts of at most `size_max`.

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
    """Counts the bytes written to each region and splits regions that are too large.

    As a RegionListener it divides the count of a split region among its parts, and adds the counts of a
    merge.
    """

    def __init__(self, engine: Engine, regions: Regions, *, size_max: int) -> None:
        self._engine = engine
        self._regions = regions
        self._size_max = size_max
        self._sizes: defaultdict[int, int] = defaultdict(int)
        self._due: set[int] = set()
        self._checking: asyncio.Task[None] | None = None
        regions.listen(self)

    def count_written(self, region_id: int, size: int) -> None:
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
        """Stop checking, after a split under way is finished."""
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
        versions = [
            _decode_versions(view.iterate(cf, *records.span(bounds))) for cf in (Cf.WRITE, Cf.DEFAULT)
        ]
        plain = view.iterate(Cf.RAW, region.start, region.end)
        return list(heapq.merge(*(_sample(pairs, every) for pairs in (*versions, plain))))


def _decode_versions(pairs: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    for key, value in pairs:
        yield encode_bytes(records.unescape(key)), value


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
