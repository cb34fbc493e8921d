"""The embedded cluster: a placement driver and its stores over one engine, in one process.

A new data directory is given a cluster id, its stores and a first region; an old one keeps them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc

from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid
from penstock.proto import metapb_pb2 as metapb
from penstock.proto.codec import encode_bytes
from penstock.settings import ServerTlsSettings, StoreSettings
from penstock.settings.network import join_address
from penstock.store import meta
from penstock.store.admin import AdminService
from penstock.store.cdc.service import ChangeDataService
from penstock.store.engine import Cf, Engine, Mutation
from penstock.store.executor import commands
from penstock.store.faults import Faults
from penstock.store.pd.etcd import Etcd, EtcdKeys, Keyspaces
from penstock.store.pd.safe_points import SafePoints
from penstock.store.pd.service import MEMBER, PlacementDriver
from penstock.store.pd.stores import VERSION, LeaderScheduler, Stores
from penstock.store.raw import RawStorage
from penstock.store.region import Peer, Region
from penstock.store.regions import REPLICAS, Regions, SizeWatch
from penstock.store.safe_ts import SafeTs
from penstock.store.server import Endpoint, FaultyStreams, check_exposure, split_server_address
from penstock.store.station import Station
from penstock.store.storage import TxnStorage
from penstock.store.tso import Ids, Tso

__all__ = ["Cluster", "open_stations", "settle"]


async def open_stations(
    stores: Stores, ids: Ids, *, count: int, host: str, tls: ServerTlsSettings | None, clock: Clock = SYSTEM
) -> list[Station]:
    """Bind an address for every store: its previous one if that is free, else any free port.

    Raise Invalid when the directory has more stores than `count`: stores can be added, not removed.
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
    """Store the addresses of the stores and, in a new directory, the cluster and its first region.

    Return the id of the cluster.
    """
    cluster_id = meta.unpack(engine.view().get(Cf.META, meta.CLUSTER_ID))
    if not cluster_id:
        cluster_id = (clock.wall_ms() // 1000 << 32) + int(clock.random() * (1 << 32))
        await _bootstrap(engine, ids, cluster_id, [station.store_id for station in stations])
    for station in stations:
        store = metapb.Store()
        store.CopyFrom(stores.get(station.store_id) or metapb.Store(id=station.store_id))
        store.address = store.peer_address = station.address
        store.version = VERSION
        store.start_timestamp = clock.wall_ms() // 1000
        store.node_state = metapb.Serving
        await stores.put(store)
    return cluster_id


async def _bootstrap(engine: Engine, ids: Ids, cluster_id: int, store_ids: Sequence[int]) -> None:
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


class Cluster:
    """A running cluster. `start` makes one; `stop` closes the data directory.

    Every store serves the same data. The leader of a region is only recorded, so that clients meet the same
    answers as in TiKV; a change of leader moves no data.
    """

    def __init__(self, settings: StoreSettings, engine: Engine, *, clock: Clock) -> None:
        self._settings = settings
        self._engine = engine
        self._clock = clock
        self._stations: dict[int, Station] = {}
        self._servers: list[Endpoint | Station] = []
        self._background: list[Callable[[], Awaitable[None]]] = []
        self.pd_addr = settings.pd_addr
        self.cluster_id = 0
        self.faults = Faults(clock=clock)
        self.tso = Tso(engine, clock=clock)
        self._ids = Ids(engine)
        self._keys = EtcdKeys(engine)
        self._stores = Stores(engine)
        self.regions: Regions
        self.storage: TxnStorage
        self._scheduler: LeaderScheduler
        self._changes: ChangeDataService

    @classmethod
    async def start(cls, settings: StoreSettings, *, clock: Clock = SYSTEM) -> "Cluster":
        """Open the data directory and serve it.

        Raise Invalid when an address, a TLS file or the directory cannot be used, Corrupt when the
        directory is damaged. Port 0 takes any free port.
        """
        split_server_address(settings.pd_addr)
        check_exposure(settings)
        if settings.tls is not None:
            settings.tls.read()
        engine = Engine.open(settings.data, sync=settings.sync)
        try:
            cluster = cls(settings, engine, clock=clock)
        except BaseException:
            engine.close()
            raise
        try:
            await cluster._start()
        except BaseException:
            await cluster.stop()
            raise
        return cluster

    @property
    def store_addrs(self) -> dict[int, str]:
        """The address of each store, by its id."""
        return {store_id: station.address for store_id, station in self._stations.items()}

    async def _start(self) -> None:
        settings, engine, clock = self._settings, self._engine, self._clock
        host, _ = split_server_address(settings.pd_addr)
        endpoint = Endpoint(settings.pd_addr, tls=settings.tls)
        self._servers.append(endpoint)
        self._background.append(self.tso.close)
        self.pd_addr = endpoint.address
        stations = await open_stations(
            self._stores, self._ids, count=settings.stores, host=host, tls=settings.tls, clock=clock
        )
        self._stations = {station.store_id: station for station in stations}
        self._servers += stations
        self.cluster_id = await settle(engine, self._stores, self._ids, stations, clock=clock)
        self.regions = Regions.load(engine, self._ids)
        await self.regions.replicate(sorted(self._stations))
        self._stores.up = set(self._stations)
        self._scheduler = LeaderScheduler(self.regions, self._stores)
        # An earlier run may have read at any timestamp that it handed out; a new timestamp is above them all.
        self.storage = TxnStorage(
            engine,
            clock=clock,
            settings=settings,
            max_ts=await self.tso.current(),
            collected_ts=SafePoints.load(engine.view().get(Cf.META, meta.GC)).gc,
        )
        self._background.append(self.storage.close)
        await self._start_stores()
        await endpoint.start(self._placement_handlers())

    async def _start_stores(self) -> None:
        settings, clock = self._settings, self._clock
        self._changes = ChangeDataService(
            storage=self.storage,
            regions=self.regions,
            tso=self.tso,
            cluster_id=self.cluster_id,
            clock=clock,
            settings=settings,
        )
        self.storage.observer = self._changes
        self.regions.listen(self._changes)
        await self._changes.start()
        self._background.append(self._changes.stop)
        sizes = SizeWatch(self._engine, self.regions, size_max=settings.region_split_bytes)
        self._background.append(sizes.close)
        safe_ts = SafeTs(self._engine, self.storage, self.tso, clock=clock)
        table = commands(self.storage, RawStorage(self._engine))
        for station in self._stations.values():
            station.equip(
                table,
                cluster_id=self.cluster_id,
                regions=self.regions,
                sizes=sizes,
                safe_ts=safe_ts,
                faults=self.faults,
                others=[
                    FaultyStreams(self._changes.handler(station.store_id), self.faults, station.store_id)
                ],
            )
            await station.start()

    def _placement_handlers(self) -> "list[grpc.GenericRpcHandler[Any, Any]]":
        scheme = "https" if self._settings.tls is not None else "http"
        url = f"{scheme}://{self.pd_addr}"
        placement = PlacementDriver(
            self._engine,
            cluster_id=self.cluster_id,
            url=url,
            ids=self._ids,
            tso=self.tso,
            stores=self._stores,
            regions=self.regions,
            scheduler=self._scheduler,
            keys=self._keys,
            faults=self.faults,
            clock=self._clock,
        )
        etcd = Etcd(self._keys, cluster_id=self.cluster_id, url=url, member=MEMBER)
        admin = AdminService(
            self.regions,
            self.faults,
            stop_store=self.stop_store,
            start_store=self.start_store,
            faults_allowed=self._settings.faults,
        )
        return [
            placement.handler(),
            *etcd.handlers(),
            Keyspaces(cluster_id=self.cluster_id).handler(),
            admin.handler(),
        ]

    async def stop(self) -> None:
        """Close every address, finish the commands under way, and close the data directory."""
        await asyncio.gather(*(server.stop() for server in self._servers))
        while self._background:
            await self._background.pop()()
        self._engine.close()

    async def split_at(self, raw_keys: Sequence[bytes]) -> list[Region]:
        """Split regions at raw keys of transactions; return the regions that begin there."""
        return await self.regions.split_at([encode_bytes(key) for key in raw_keys])

    async def stop_store(self, store_id: int) -> None:
        """Turn a store off; other stores that are up lead its regions, if they have peers of them."""
        station = self._station(store_id)
        self._stores.up.discard(store_id)
        self._changes.close_store(store_id)
        await station.stop()
        await self._scheduler.elect(store_id)

    async def start_store(self, store_id: int) -> None:
        """Turn a store on again, at the same address."""
        station = self._station(store_id)
        if not station.up:
            await station.start()
            self._stores.up.add(store_id)

    def _station(self, store_id: int) -> Station:
        station = self._stations.get(store_id)
        if station is None:
            raise Invalid(f"store {store_id} does not exist; the stores are {sorted(self._stations)}")
        return station
