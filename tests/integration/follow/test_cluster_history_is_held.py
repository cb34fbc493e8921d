"""The cluster keeps the DDLs that a changefeed reads again at its next start."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.control import changefeeds
from penstock.control.deployment import Deployment, open_deployment
from penstock.follow.follower import SliceFollower
from penstock.follow.holds import ClusterHold
from penstock.kv.cluster_ref import ClusterRef
from penstock.kv.pd import PdClient
from penstock.settings import Settings, StoreSettings
from penstock.store.cluster import Cluster

COLLECTOR = "gc_worker"  # who collects, up to what it is answered
FOREVER_S = 2**63 - 1


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[tuple[Settings, PdClient]]:
    store = StoreSettings(data=folder / "kv", pd_addr="127.0.0.1:0", sync=False, resolved_ts_interval_ms=50)
    running = await Cluster.start(store)
    settings = Settings(pd_addrs=(running.pd_addr,), capture={"storage": f"file://{folder}/events"})
    pd = await PdClient.connect(settings.pd_addrs, settings=settings.kv)
    try:
        yield settings, pd
    finally:
        await pd.close()
        await asyncio.to_thread(ClusterRef.of(settings).close)  # sources have one client for the process
        await running.stop()


async def test_collection_waits_for_the_checkpoint_until_the_changefeed_needs_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (settings, pd):
        now = await pd.timestamp()
        source = await SliceFollower.connect(settings, "feed")
        try:
            await source.hold([7], now - 100)
            assert await pd.update_service_gc_safe_point(COLLECTOR, FOREVER_S, now) == now - 100
            await source.hold([7], now - 50)
            assert await pd.update_service_gc_safe_point(COLLECTOR, FOREVER_S, now) == now - 50
        finally:
            await source.close()
        assert await pd.update_service_gc_safe_point(COLLECTOR, FOREVER_S, now) == now - 50, "a pause keeps"
        source = await SliceFollower.connect(settings, "feed")
        try:
            await source.hold([7, 8], now - 50)
            await source.release([8])
            assert await pd.update_service_gc_safe_point(COLLECTOR, FOREVER_S, now) == now - 50
            await source.release([7])
            assert await pd.update_service_gc_safe_point(COLLECTOR, FOREVER_S, now) == now
        finally:
            await source.close()


async def test_a_removed_changefeed_holds_nothing_back(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (settings, pd):
        wanted = {"sink_uri": f"file://{tmp_path}/out?protocol=canal-json"}
        await _at(settings, lambda deployment: changefeeds.create_from_options(deployment, "feed", wanted))
        now = await pd.timestamp()
        history = await ClusterHold.connect(settings, "feed")
        try:
            await history.hold(now - 100)
        finally:
            await history.close()
        assert await pd.update_service_gc_safe_point(COLLECTOR, FOREVER_S, now) == now - 100
        await _at(settings, lambda deployment: changefeeds.remove_changefeed(deployment, "feed"))
        assert await pd.update_service_gc_safe_point(COLLECTOR, FOREVER_S, now) == now


async def _at(settings: Settings, work: Callable[[Deployment], object]) -> None:
    def worked() -> None:
        with open_deployment(settings) as deployment:
            work(deployment)

    await asyncio.to_thread(worked)
