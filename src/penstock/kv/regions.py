"""The region cache: which region holds a key, which peer leads it, at which address it is served."""

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from penstock import clock as clocks
from penstock import metrics
from penstock.clock import Clock
from penstock.errors import Unavailable
from penstock.kv.backoff import Backoffer, BackoffKind
from penstock.kv.pd import PdClient, RegionInfo, raw_region
from penstock.kv.region_table import CachedRegion, KeyLocation, RegionTable, RegionVerId, peers_that_lead
from penstock.kv.stores import Liveness, Store, StoreDirectory
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto import metapb_pb2 as metapb
from penstock.settings import KvSettings

__all__ = ["EpochVerdict", "PeerTarget", "RegionCache", "judge_epoch"]

_LOG = logging.getLogger(__name__)
_SWEEP = 50
_TTL_JITTER = 0.1
_OPERATIONS = metrics.KV_REGION_CACHE_OPERATIONS_TOTAL
_INVALIDATED = _OPERATIONS.labels("invalidate_region_from_cache", "ok")


@dataclass(frozen=True, slots=True)
class PeerTarget:
    """Where a request for a region goes: the peer, the address of its store, the context to send."""

    addr: str
    store: Store
    peer: metapb.Peer
    context: kvrpcpb.Context


class EpochVerdict(Enum):
    """What an EpochNotMatch error says about the cache."""

    UNKNOWN = auto()  # the store does not say what is there now: ask the placement driver
    STORE_BEHIND = auto()  # the cache is ahead of the store: wait for it
    CACHE_BEHIND = auto()  # the store named the regions that it has now


def judge_epoch(ver: RegionVerId, current: Sequence[metapb.Region]) -> EpochVerdict:
    """Compare what was asked for with the regions that a store has now."""
    if not current:
        return EpochVerdict.UNKNOWN
    for region in current:
        epoch = region.region_epoch
        older = epoch.conf_ver < ver.conf_ver or epoch.version < ver.version
        same = (epoch.conf_ver, epoch.version) == (ver.conf_ver, ver.version)
        if region.id == ver.id and (older or same):
            return EpochVerdict.STORE_BEHIND
    return EpochVerdict.CACHE_BEHIND


class RegionCache:
    """Regions by key, loaded from the placement driver as they are needed.

    Locations may be outdated: the store then refuses the request with a region error, the sender
    updates the cache and raises RegionStale, and the caller locates its keys again.
    """

    def __init__(self, pd: PdClient, settings: KvSettings, clock: Clock = clocks.SYSTEM) -> None:
        self._pd = pd
        self._settings = settings
        self._clock = clock
        self._table = RegionTable(settings.region_cache_size)
        self._loading: dict[tuple[str, bytes], asyncio.Task[CachedRegion]] = {}
        self.stores = StoreDirectory(pd)

    async def locate(self, bo: Backoffer, key: bytes) -> KeyLocation:
        """Return the region that holds a key."""
        region = self._fresh(self._table.find(key, self._clock.monotonic()))
        if region is None:
            region = await self._load(bo, "get_region_when_miss", key, self._pd.get_region)
        return region.location

    async def locate_before(self, bo: Backoffer, key: bytes) -> KeyLocation:
        """Return the region that holds the keys just below `key`; an empty key is above all keys."""
        region = self._fresh(self._table.find_before(key, self._clock.monotonic()))
        if region is None:
            region = await self._load(bo, "get_region_before_when_miss", key, self._ask_before)
        return region.location

    async def group_keys(self, bo: Backoffer, keys: Sequence[bytes]) -> list[tuple[KeyLocation, slice]]:
        """Cut sorted keys into runs of one region each."""
        groups: list[tuple[KeyLocation, slice]] = []
        at = 0
        while at < len(keys):
            location = await self.locate(bo, keys[at])
            past = bisect_left(keys, location.end, at + 1) if location.end else len(keys)
            groups.append((location, slice(at, past)))
            at = past
        return groups

    def route(self, ver: RegionVerId) -> PeerTarget | None:
        """Return where to send a request for a region; None when `target` has to ask for it."""
        region = self._table.get(ver)
        if region is None or region.route is None:
            return None
        target: PeerTarget = region.route
        store = target.store
        if store.epoch != region.store_epoch or store.stale or store.liveness is Liveness.UNREACHABLE:
            return None
        return target

    async def target(self, bo: Backoffer, ver: RegionVerId) -> PeerTarget | None:
        """Return where to send a request for a region; None when it must be located again."""
        region = self._fresh(self._table.get(ver))
        if region is None:
            return None
        store = self.stores.get(region.peer.store_id)
        if store.liveness is Liveness.UNREACHABLE:
            self._aim_at_reachable(region)
            store = self.stores.get(region.peer.store_id)
        addr = await self.stores.resolve(bo, store)
        if addr is None:
            self.invalidate(ver, "its store is gone")
            return None
        region.store_epoch = store.epoch
        epoch = metapb.RegionEpoch(conf_ver=ver.conf_ver, version=ver.version)
        context = kvrpcpb.Context(
            region_id=ver.id, region_epoch=epoch, peer=region.peer, cluster_id=self._pd.cluster_id
        )
        found = region.route = PeerTarget(addr, store, region.peer, context)
        return found

    def _fresh(self, region: CachedRegion | None) -> CachedRegion | None:
        if region is None or self.stores.get(region.peer.store_id).epoch == region.store_epoch:
            return region
        self.invalidate(region.location.region, "its store was unreachable or moved")
        return None

    def _aim_at_reachable(self, region: CachedRegion) -> None:
        for index in peers_that_lead(region.peers):
            store = self.stores.get(region.peers[index].store_id)
            if store.liveness is Liveness.REACHABLE:
                region.aim(index, store.epoch)
                return

    def invalidate(self, region: RegionVerId, reason: str) -> None:
        """Forget a region, so that its keys are located again."""
        if self._table.remove(region):
            _INVALIDATED.inc()
            _LOG.debug("region dropped from the cache", extra={"region": region.id, "reason": reason})

    def switch_leader(self, ver: RegionVerId, leader: metapb.Peer) -> bool:
        """Send to the peer that a store names as leader; if unknown, forget the region and return False."""
        region = self._table.get(ver)
        if region is None:
            return False
        for index, peer in enumerate(region.peers):
            if peer.id == leader.id:
                region.aim(index, self.stores.get(peer.store_id).epoch)
                return True
        self.invalidate(ver, "an unknown peer leads it")
        return False

    def try_next_peer(self, ver: RegionVerId, failed: metapb.Peer, exhausted: set[int]) -> bool:
        """Send to another peer than one that did not serve; return False when all are in `exhausted`."""
        region = self._table.get(ver)
        if region is None:
            return False
        if region.peer.id != failed.id and region.peer.id not in exhausted:
            return True  # another request has chosen another peer already
        usable = [i for i in peers_that_lead(region.peers) if region.peers[i].id not in exhausted]
        others = [i for i in usable if region.peers[i].id != failed.id]
        if not others:
            return False
        index = next((i for i in others if i > region.target), others[0])
        region.aim(index, self.stores.get(region.peers[index].store_id).epoch)
        return True

    def install(self, ver: RegionVerId, store_id: int, current: Sequence[metapb.Region]) -> None:
        """Replace a region by those that its store has now (with encoded keys), led by that store's peer."""
        self._table.remove(ver)
        for encoded in current:
            meta = raw_region(encoded)
            leader = next((peer for peer in meta.peers if peer.store_id == store_id), None)
            self._insert(RegionInfo(meta, leader))

    def _insert(self, info: RegionInfo) -> CachedRegion:
        meta, now = info.meta, self._clock.monotonic()
        peers = tuple(meta.peers)
        leads = [i for i, peer in enumerate(peers) if info.leader is not None and peer.id == info.leader.id]
        target = (leads or peers_that_lead(peers) or [0])[0]
        ver = RegionVerId(meta.id, meta.region_epoch.conf_ver, meta.region_epoch.version)
        ttl_s = self._settings.region_cache_ttl_s * (1 + _TTL_JITTER * self._clock.random())
        region = CachedRegion(
            location=KeyLocation(ver, meta.start_key, meta.end_key),
            peers=peers,
            target=target,
            ttl_s=ttl_s,
            expires_at=now + ttl_s,
            store_epoch=self.stores.get(peers[target].store_id).epoch,
        )
        if not self._table.insert(region):
            _LOG.debug("an outdated region was not cached", extra={"region": ver.id})
        self._table.sweep(now, _SWEEP)
        return region

    async def _ask_before(self, key: bytes, *, bo: Backoffer) -> RegionInfo:
        if not key:
            return await self._pd.get_last_region(bo=bo)
        found = await self._pd.get_region(key, bo=bo)
        return found if found.meta.start_key < key else await self._pd.get_previous_region(key, bo=bo)

    async def _load(
        self, bo: Backoffer, operation: str, key: bytes, ask: Callable[..., Awaitable[RegionInfo]]
    ) -> CachedRegion:
        """Load a region; concurrent callers share one load, and each retries against its own budget."""
        while True:
            task = self._loading.get((operation, key))
            if task is None:
                task = asyncio.create_task(self._load_measured(operation, key, ask))
                task.add_done_callback(_retrieve)
                self._loading[operation, key] = task
            try:
                return await asyncio.shield(task)
            except Unavailable as error:
                await bo.backoff(BackoffKind.PD_RPC, error)

    async def _load_measured(
        self, operation: str, key: bytes, ask: Callable[..., Awaitable[RegionInfo]]
    ) -> CachedRegion:
        result, started = "err", self._clock.monotonic()
        try:
            region = self._insert(await ask(key, bo=Backoffer(0)))
            result = "ok"
        finally:
            del self._loading[operation, key]
            _OPERATIONS.labels(operation, result).inc()
            metrics.KV_LOAD_REGION_CACHE_SECONDS.labels(operation).observe(self._clock.monotonic() - started)
        return region


def _retrieve(task: "asyncio.Task[CachedRegion]") -> None:
    """Retrieve the error of a load even when every caller was cancelled: asyncio would log it."""
    if not task.cancelled():
        task.exception()
