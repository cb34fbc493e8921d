"""`penstock changefeed run`: changefeeds in the foreground, on Spark."""

import asyncio
import os
import socket

from penstock import tracing
from penstock.app.readiness import metrics_shown, say_ready
from penstock.app.signals import run_until_signalled
from penstock.clock import SYSTEM
from penstock.errors import Unavailable
from penstock.kv import AsyncClient
from penstock.settings import Settings
from penstock.sink.feeds.kvfeedstore import Feeds
from penstock.sink.feeds.runner import FeedRunner, create_configured
from penstock.spark.executorsettings import for_executors
from penstock.spark.latesession import LateSession
from penstock.spark.sinkengine import spark_engines

__all__ = ["serve"]

_LOOK_S = 1.0


def serve(settings: Settings, *, until_idle: bool = False) -> None:
    """Run changefeeds until SIGTERM or SIGINT, then write what was read and stop.

    Those of the settings are created when they are not there. Prints one line of JSON when it is ready; Spark
    is started before that, or when the first changefeed is created. With `until_idle` it also ends once every
    changefeed has finished, failed or is stopped.
    """
    shared = for_executors(settings)
    session = LateSession(shared, app_name="penstock-changefeeds")
    try:
        with metrics_shown(settings.metrics_addr) as shown:
            run_until_signalled(_run(shared, session, shown, until_idle=until_idle))
    finally:
        session.stop()


async def _run(settings: Settings, session: LateSession, shown: dict[str, str], *, until_idle: bool) -> None:
    owner = f"{socket.gethostname()}-{os.getpid()}-{SYSTEM.unique_id()[:8]}"
    async with await AsyncClient.connect(settings.pd_addrs, tls=settings.tls, settings=settings.kv) as client:
        feeds = Feeds(client)
        await create_configured(feeds, settings, now_ts=await client.timestamp())
        found = [each.info.id for each in await feeds.list()]
        if found:
            await asyncio.to_thread(session.get)
        say_ready({"changefeeds": found} | shown)
        if not found:
            if until_idle:
                return
            await _first_feed(feeds)
        spark = await asyncio.to_thread(session.get)
        runner = FeedRunner(settings, feeds, spark_engines(spark), owner=owner)
        with tracing.configure(settings.tracing, cluster_id=client.cluster_id, service="changefeeds"):
            await runner.run(until_idle=until_idle)


async def _first_feed(feeds: Feeds) -> None:
    """Wait until there is a changefeed; a Java machine is too much to do that with."""
    while True:
        try:
            if await feeds.list():
                return
        except Unavailable:  # the store is away for a while, and so is every changefeed
            pass
        await SYSTEM.sleep(_LOOK_S)
