"""The stores of the cluster, and the moves of region leaders among them."""

from collections.abc import Sequence

from penstock.errors import Corrupt, Unavailable
from penstock.proto import metapb_pb2 as metapb
from penstock.store import meta
from penstock.store.engine import Cf, Engine
from penstock.store.region import Region
from penstock.store.regions import Regions

__all__ = ["VERSION", "LeaderScheduler", "Stores"]


VERSION = "8.5.0"  # the TiKV release that the stores behave like; clients check it


class Stores:
    """Addresses and states of stores, kept on disk. `up` are those that serve now."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stores: dict[int, metapb.Store] = {}
        self.up: set[int] = set()
        for _, stored in engine.view().iterate(Cf.META, meta.STORE, meta.after(meta.STORE)):
            try:
                store = metapb.Store.FromString(stored)
            except Exception as error:
                raise Corrupt(
                    "a store's record is damaged; restore the data directory from a copy"
                ) from error
            self._stores[store.id] = store

    def get(self, store_id: int) -> metapb.Store | None:
        return self._stores.get(store_id)

    def all(self) -> Sequence[metapb.Store]:
        """Return the stores in the order of their ids."""
        return [self._stores[store_id] for store_id in sorted(self._stores)]

    async def put(self, store: metapb.Store) -> None:
        """Add or replace a store."""
        await self._engine.write([(Cf.META, meta.store_key(store.id), store.SerializeToString())])
        self._stores[store.id] = store


_REMEMBERED_MAX = 10_000


class LeaderScheduler:
    """Decides which store leads a region, and remembers which regions it scattered."""

    def __init__(self, regions: Regions, stores: Stores) -> None:
        self._regions = regions
        self._stores = stores
        self._scattered: dict[int, None] = {}
        self._turn = 0

    def was_scattered(self, region_id: int) -> bool:
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
        """Move the leaders on a stopped store to peers on stores that are up, if there are any."""
        await self._regions.depose(store_id, self._stores.up)
