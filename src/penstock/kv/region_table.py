"""Regions by key: a sorted table in which no two regions overlap. Pure: no clock, no I/O."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.proto import metapb_pb2 as metapb

_EVICTION_SAMPLE = 50


class RegionVerId(NamedTuple):
    """A region with the versions of its membership and of its bounds."""

    id: int
    conf_ver: int
    version: int


@dataclass(frozen=True, slots=True)
class KeyLocation:
    """Where raw keys from `start` up to `end` live; an empty end is the end of all keys."""

    region: RegionVerId
    start: bytes
    end: bytes

    def contains(self, key: bytes) -> bool:
        """Whether the key lies in the range."""
        return self.start <= key and (not self.end or key < self.end)


@dataclass(slots=True, eq=False)
class CachedRegion:
    """A region with the peer that requests go to.

    Invariant: `route` is None or was made for `peers[target]`.
    """

    location: KeyLocation
    peers: tuple[metapb.Peer, ...]
    target: int
    ttl_s: float
    expires_at: float
    store_epoch: int  # of the target's store when it was chosen; a later epoch makes the region stale
    route: Any = None  # how the owner reaches the target; None after the target changed

    @property
    def peer(self) -> metapb.Peer:
        """The peer that requests go to."""
        return self.peers[self.target]

    def aim(self, target: int, store_epoch: int) -> None:
        """Send requests to another peer from now on."""
        self.target = target
        self.store_epoch = store_epoch
        self.route = None


def peers_that_lead(peers: tuple[metapb.Peer, ...]) -> list[int]:
    """Return the indexes of the peers that can be leader."""
    return [i for i, peer in enumerate(peers) if peer.role != metapb.Learner and not peer.is_witness]


@dataclass(slots=True)
class RegionTable:
    """The regions known, sorted by start key.

    Invariant: `_starts[i]` is the start of `_regions[i]`, starts ascend, ranges are disjoint, and
    `_by_id` holds the same regions. At most `size_max` regions are kept.
    """

    size_max: int
    _starts: list[bytes] = field(default_factory=list)
    _regions: list[CachedRegion] = field(default_factory=list)
    _by_id: dict[RegionVerId, CachedRegion] = field(default_factory=dict)
    _hand: int = 0  # where the next sweep begins

    def __len__(self) -> int:
        return len(self._regions)

    def find(self, key: bytes, now: float) -> CachedRegion | None:
        """Return the region that holds a key and keep it alive, or None when it is unknown or expired."""
        at = bisect_right(self._starts, key) - 1
        if at < 0:
            return None
        region = self._regions[at]
        end = region.location.end
        return self._touch(region, now) if not end or key < end else None

    def find_before(self, key: bytes, now: float) -> CachedRegion | None:
        """Return the region that holds the keys just below `key`; an empty key is above all keys."""
        at = (bisect_left(self._starts, key) if key else len(self._starts)) - 1
        if at < 0:
            return None
        region = self._regions[at]
        end = region.location.end
        return self._touch(region, now) if not end or (key and key <= end) else None

    def get(self, ver: RegionVerId) -> CachedRegion | None:
        """Return a region by its id and versions."""
        return self._by_id.get(ver)

    @staticmethod
    def _touch(region: CachedRegion, now: float) -> CachedRegion | None:
        if now > region.expires_at:
            return None
        region.expires_at = now + region.ttl_s
        return region

    def insert(self, region: CachedRegion) -> bool:
        """Put in a region and drop those it overlaps; False when one of them is newer.

        Regions that overlap are ancestor and descendant by splits and merges, each of which
        raises the version, so that the versions tell which one is outdated.
        """
        first, past = self._overlapping(region.location)
        old = self._regions[first:past]
        if any(other.location.region.version > region.location.region.version for other in old):
            return False
        for other in old:
            del self._by_id[other.location.region]
        self._starts[first:past] = [region.location.start]
        self._regions[first:past] = [region]
        self._by_id[region.location.region] = region
        if len(self._regions) > self.size_max:
            self._evict(keep=region)
        return True

    def _overlapping(self, location: KeyLocation) -> tuple[int, int]:
        first = max(bisect_right(self._starts, location.start) - 1, 0)
        if first < len(self._regions):
            end = self._regions[first].location.end
            if end and end <= location.start:
                first += 1
        past = bisect_left(self._starts, location.end) if location.end else len(self._starts)
        return first, max(first, past)

    def remove(self, ver: RegionVerId) -> bool:
        """Drop a region; False when it is not here."""
        region = self._by_id.pop(ver, None)
        if region is None:
            return False
        at = bisect_left(self._starts, region.location.start)
        del self._starts[at]
        del self._regions[at]
        return True

    def sweep(self, now: float, count: int) -> int:
        """Drop the expired among the next `count` regions, going round; return how many."""
        begin = self._hand if self._hand < len(self._regions) else 0
        looked_at = self._regions[begin : begin + count]
        expired = [region for region in looked_at if now > region.expires_at]
        for region in expired:
            self.remove(region.location.region)
        self._hand = begin + len(looked_at) - len(expired)
        return len(expired)

    def _evict(self, keep: CachedRegion) -> None:
        begin = self._hand if self._hand < len(self._regions) else 0
        sample = [r for r in self._regions[begin : begin + _EVICTION_SAMPLE] if r is not keep]
        if not sample:
            sample = [r for r in self._regions[:2] if r is not keep]
        self.remove(min(sample, key=lambda r: r.expires_at).location.region)
        self._hand = begin + len(sample)
