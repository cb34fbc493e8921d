"""`penstock changefeed run`: changefeeds in the foreground, on Spark."""

import os
import socket

from penstock import tracing
from penstock.changefeeds.engines.sized import SizedEngine, sized_engine
from penstock.changefeeds.runner import ChangefeedRunner, create_configured
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.store import ChangefeedStore
from penstock.cli.service import metrics_shown, run_until_signalled, say_ready
from penstock.clock import SYSTEM
from penstock.kv import AsyncClient
from penstock.settings import Settings
from penstock.spark.session import LateSession
from penstock.spark.shipping import for_executors

__all__ = ["serve"]


def serve(settings: Settings, *, until_idle: bool = False) -> None:
    """Run changefeeds until SIGTERM or SIGINT, then write what was read and stop.

    Those of the settings are created when they are not there. Prints one line of JSON when it is ready; Spark
    is started with the first work that is worth it. With `until_idle` it also ends once every changefeed has
    finished, failed or is stopped.
    """
    shared = for_executors(settings)
    session = LateSession(shared, app_name="penstock-changefeeds")
    session.check()
    try:
        with metrics_shown(settings.metrics_addr) as shown:
            run_until_signalled(_run(shared, session, shown, until_idle=until_idle))
    finally:
        session.stop()


async def _run(settings: Settings, session: LateSession, shown: dict[str, str], *, until_idle: bool) -> None:
    owner = f"{socket.gethostname()}-{os.getpid()}-{SYSTEM.unique_id()[:8]}"
    async with await AsyncClient.connect(settings.pd_addrs, tls=settings.tls, settings=settings.kv) as client:
        feeds = ChangefeedStore(client)
        await create_configured(feeds, settings, now_ts=await client.timestamp())
        say_ready({"changefeeds": [each.info.id for each in await feeds.list()]} | shown)

        def engine(feed_id: str, options: SinkOptions) -> SizedEngine:
            threads, spark_rows = options.worker_count, options.spark_rows
            return sized_engine(session.get, feed_id, options.target, threads=threads, spark_rows=spark_rows)

        runner = ChangefeedRunner(settings, feeds, engine, owner=owner)
        with tracing.configure(settings.tracing, cluster_id=client.cluster_id, service="changefeeds"):
            await runner.run(until_idle=until_idle)
