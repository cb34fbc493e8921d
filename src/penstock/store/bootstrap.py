"""What a data directory says about its cluster, and what is written there when it is new."""

from collections.abc import Sequence

from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid
from penstock.proto import metapb_pb2 as metapb
from penstock.settings import ServerTlsSettings
from penstock.store import meta
from penstock.store.engine import Cf, Engine, Mutation
from penstock.store.pd.ids import Ids
from penstock.store.pd.stores import VERSION, Stores
from penstock.store.region import Peer, Region
from penstock.store.regions import REPLICAS
from penstock.store.server import join_address
from penstock.store.station import Station

__all__ = ["open_stations", "settle"]


async def open_stations(
    stores: Stores, ids: Ids, *, count: int, host: str, tls: ServerTlsSettings | None, clock: Clock = SYSTEM
) -> list[Station]:
    """Bind an address for every store: where it was before if that is free, else any free port.

    A directory may get more stores, not fewer: raise Invalid then.
    """
    known = stores.all()
    if len(known) > count:
        raise Invalid(f"the data directory has {len(known)} stores; start it with --stores {len(known)}")
    stations = [_open(store.id, store.address, host, tls, clock) for store in known]
    missing = count - len(known)
    first = await ids.allocate(missing) if missing else 0
    anywhere = join_address(host, 0)
    return stations + [Station(first + i, anywhere, tls=tls, clock=clock) for i in range(missing)]


def _open(store_id: int, before: str, host: str, tls: ServerTlsSettings | None, clock: Clock) -> Station:
    anywhere = join_address(host, 0)
    if before.rpartition(":")[0] != anywhere.rpartition(":")[0]:
        return Station(store_id, anywhere, tls=tls, clock=clock)
    try:
        return Station(store_id, before, tls=tls, clock=clock)
    except Invalid:
        return Station(store_id, anywhere, tls=tls, clock=clock)


async def settle(
    engine: Engine, stores: Stores, ids: Ids, stations: Sequence[Station], *, clock: Clock = SYSTEM
) -> int:
    """Write down where the stores are, and in a new directory the cluster and its first region.

    Return the id of the cluster.
    """
    cluster_id = meta.unpack(engine.view().get(Cf.META, meta.CLUSTER_ID))
    if not cluster_id:
        cluster_id = (clock.wall_ms() // 1000 << 32) + int(clock.random() * (1 << 32))
        await _found(engine, ids, cluster_id, [station.store_id for station in stations])
    for station in stations:
        store = metapb.Store()
        store.CopyFrom(stores.get(station.store_id) or metapb.Store(id=station.store_id))
        store.address = store.peer_address = station.address
        store.version = VERSION
        store.start_timestamp = clock.wall_ms() // 1000
        store.node_state = metapb.Serving
        await stores.put(store)
    return cluster_id


async def _found(engine: Engine, ids: Ids, cluster_id: int, store_ids: Sequence[int]) -> None:
    chosen = store_ids[:REPLICAS]
    first = await ids.allocate(1 + len(chosen))
    region = Region(
        id=first,
        start=b"",
        end=b"",
        conf_ver=len(chosen),
        version=1,
        peers=tuple(Peer(first + 1 + i, store_id) for i, store_id in enumerate(chosen)),
        leader_store=chosen[0],
    )
    changes: list[Mutation] = [
        (Cf.META, meta.CLUSTER_ID, meta.pack(cluster_id)),
        (Cf.META, meta.region_key(region.id), region.to_bytes()),
    ]
    await engine.write(changes)
