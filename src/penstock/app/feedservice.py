"""`penstock changefeed run`: changefeeds in the foreground, on Spark."""

import contextlib
import json
import os
import socket

from penstock.app.signals import run_until_signalled
from penstock.clock import SYSTEM
from penstock.kv import AsyncClient
from penstock.settings import Settings
from penstock.sink.feeds.kvfeedstore import Feeds
from penstock.sink.feeds.runner import FeedRunner, OpenEngine, create_configured
from penstock.spark.executorsettings import for_executors
from penstock.spark.session import build_session
from penstock.spark.sinkengine import spark_engines

__all__ = ["serve"]


def serve(settings: Settings, *, until_idle: bool = False) -> None:
    """Run changefeeds until SIGTERM or SIGINT, then write what was read and stop.

    Those of the settings are created when they are not there. Prints one line of JSON when it is ready. With
    `until_idle` it also ends once every changefeed has finished, failed or is stopped.
    """
    shared = for_executors(settings)
    spark = build_session(shared, app_name="penstock-changefeeds")
    try:
        run_until_signalled(_run(shared, spark_engines(spark), until_idle=until_idle))
    finally:
        spark.stop()


async def _run(settings: Settings, open_engine: OpenEngine, *, until_idle: bool) -> None:
    owner = f"{socket.gethostname()}-{os.getpid()}-{SYSTEM.unique_id()[:8]}"
    async with await AsyncClient.connect(settings.pd_addrs, tls=settings.tls, settings=settings.kv) as client:
        feeds = Feeds(client)
        await create_configured(feeds, settings, now_ts=await client.timestamp())
        with contextlib.suppress(BrokenPipeError):  # nobody has to read it
            print(json.dumps({"changefeeds": [each.info.id for each in await feeds.list()]}), flush=True)
        await FeedRunner(settings, feeds, open_engine, owner=owner).run(until_idle=until_idle)
