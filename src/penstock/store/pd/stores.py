"""The stores of the cluster, as the placement driver knows them."""

from collections.abc import Sequence

from penstock.errors import Corrupt
from penstock.proto import metapb_pb2 as metapb
from penstock.store import meta
from penstock.store.engine import Cf, Engine

__all__ = ["VERSION", "Stores"]

VERSION = "8.5.0"  # the release whose behaviour the stores show; clients look at it


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
