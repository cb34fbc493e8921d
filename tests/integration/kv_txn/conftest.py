"""A cluster for the tests of a module, and clients of it."""

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock import eventloop
from penstock.clock import SYSTEM
from penstock.kv import AsyncClient, AsyncTransaction
from penstock.kv.committer import Committer
from penstock.kv.mutations import collect
from penstock.kv.protocol import CommitOptions
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto import storepb_pb2 as storepb
from penstock.settings import KvSettings, StoreSettings
from penstock.store.cluster import Cluster

PROTOCOLS = {
    "1pc": {"one_pc": True, "async_commit": True},
    "async-commit": {"one_pc": False, "async_commit": True},
    "2pc": {"one_pc": False, "async_commit": False},
}
_worlds = itertools.count()


class World:
    """A cluster shared by a module's tests; each test has a key prefix and a client of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.prefix = b"test/%06d/" % next(_worlds)

    @staticmethod
    def options(protocol: str) -> dict[str, bool]:
        return PROTOCOLS[protocol]

    def key(self, name: str) -> bytes:
        return self.prefix + name.encode()

    @asynccontextmanager
    async def client(self, **settings: Any) -> AsyncIterator[AsyncClient]:
        chosen = KvSettings(**({"safe_point_refresh_ms": 25} | settings))
        async with await AsyncClient.connect([self.cluster.pd_addr], settings=chosen) as client:
            yield client

    @staticmethod
    def fault(kind: str, method: str, *, times: int = 0, skip: int = 0, delay_ms: int = 0) -> storepb.Fault:
        return storepb.Fault(kind=kind, method=method, times=times, skip=skip, delay_ms=delay_ms)

    def faults(self, *faults: storepb.Fault) -> None:
        self.cluster.faults.set(faults)

    @staticmethod
    async def die_after_prewrite(
        txn: AsyncTransaction, *, ttl_ms: int = 1, async_commit: bool = False
    ) -> Committer:
        """Prewrite a transaction and leave it there, as a client does whose machine is switched off."""
        opened = await txn._open()
        mutations = collect(txn._buffer, pessimistic=txn.pessimistic)
        options = CommitOptions(async_commit=async_commit, one_pc=False)
        committer = Committer(opened.scope, mutations, options)
        committer._scope.lock_ttl_ms = ttl_ms
        await committer._prepare()
        await committer._prewrite(mutations)
        opened.heart.stop()
        return committer

    async def split(self, *names: str) -> None:
        await self.cluster.split_at([self.key(name) for name in names])

    async def read(self, client: AsyncClient, *names: str) -> list[bytes | None]:
        snapshot = client.snapshot(await client.timestamp())
        return [await snapshot.get(self.key(name)) for name in names]

    async def write(self, client: AsyncClient, *names: str, value: bytes = b"old", **options: bool) -> int:
        async with client.begin(**options) as txn:
            for name in names:
                await txn.put(self.key(name), value)
        return txn.commit_ts

    async def locks(self, client: AsyncClient) -> list[kvrpcpb.LockInfo]:
        """Every lock under the prefix, as the store has it."""
        found = []
        for region in await client.regions():
            request = kvrpcpb.ScanLockRequest(
                max_version=await client.timestamp(),
                start_key=max(self.prefix, region.start_key),
                end_key=min(self.prefix + b"\xff", region.end_key or b"\xff" * 99),
                limit=10_000,
            )
            if request.start_key < request.end_key:
                router = client._session.router
                bo = client._session.backoffer(1000, "test")
                location = await router.cache.locate(bo, request.start_key)
                answer = await router.send_to_region(
                    bo, "KvScanLock", request, location, kvrpcpb.ScanLockResponse
                )
                found += answer.locks
        return found

    async def wait_until_locked(self, client: AsyncClient, name: str) -> None:
        deadline = SYSTEM.monotonic() + 10
        while self.key(name) not in {lock.key for lock in await self.locks(client)}:
            assert SYSTEM.monotonic() < deadline, f"{name} is not locked"
            await SYSTEM.sleep(0.01)

    async def wait_until_unlocked(self, client: AsyncClient) -> None:
        deadline = SYSTEM.monotonic() + 10
        while await self.locks(client):
            assert SYSTEM.monotonic() < deadline, "locks stay"
            await SYSTEM.sleep(0.01)


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data = tmp_path_factory.mktemp("store")
    settings = StoreSettings(data=data, pd_addr="127.0.0.1:0", stores=3, sync=False, faults=True)
    cluster = eventloop.run(Cluster.start(settings))
    yield cluster
    eventloop.run(cluster.stop())


@pytest.fixture
def world(shared_cluster: Cluster) -> Iterator[World]:
    world = World(shared_cluster)
    yield world
    world.faults()
