"""Moves leaders when a client or a stopping store asks for it."""

from penstock.errors import Unavailable
from penstock.store.pd.stores import Stores
from penstock.store.region import Region
from penstock.store.regions import Regions

__all__ = ["LeaderScheduler"]

_REMEMBERED_MAX = 10_000


class LeaderScheduler:
    """Decides which store leads a region, and remembers which regions it scattered."""

    def __init__(self, regions: Regions, stores: Stores) -> None:
        self._regions = regions
        self._stores = stores
        self._scattered: dict[int, None] = {}
        self._turn = 0

    def scattered(self, region_id: int) -> bool:
        return region_id in self._scattered

    async def scatter(self, region_id: int) -> Region:
        """Move a region's leader to the store whose turn it is."""
        up = sorted(self._stores.up)
        if not up:
            raise Unavailable("no store is up; start one")
        self._turn += 1
        moved = await self._regions.move_leader(region_id, up[self._turn % len(up)])
        self._scattered.pop(region_id, None)
        self._scattered[region_id] = None
        if len(self._scattered) > _REMEMBERED_MAX:
            del self._scattered[next(iter(self._scattered))]
        return moved

    async def elect(self, store_id: int) -> None:
        """Give the regions that a stopped store led to peers on stores that are up, where there are any."""
        await self._regions.depose(store_id, self._stores.up)
