"""`penstock changefeed run`: run changefeeds in the foreground, on Spark."""

import os
import socket

from penstock import tracing
from penstock.changefeeds.engines.sized import SizedEngine, sized_engine
from penstock.changefeeds.runner import ChangefeedRunner, create_configured_changefeeds
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.store import ChangefeedStore
from penstock.cli.service import print_ready, run_until_signalled, serve_metrics
from penstock.clock import SYSTEM
from penstock.kv import AsyncClient
from penstock.secret_keys import Keyring
from penstock.settings import Settings
from penstock.spark.shipping import for_executors
from penstock.spark.supervised import SupervisedSession

__all__ = ["serve"]


def serve(settings: Settings, *, until_idle: bool = False) -> None:
    """Run changefeeds until SIGTERM or SIGINT, then write what was read and stop.

    Changefeeds of the settings are created first when they do not exist. Prints one line of JSON once it is
    ready. Spark starts with the first work that is large enough for it. With `until_idle` it also ends once
    every changefeed has finished, failed or is stopped.
    """
    shared = for_executors(settings)
    session = SupervisedSession(shared, app_name="penstock-changefeeds")
    session.check()
    try:
        with serve_metrics(settings.metrics_addr) as metrics:
            work = _run(shared, session, metrics, until_idle=until_idle)
            run_until_signalled(work, on_signal=session.interrupt)
    finally:
        session.stop()


async def _run(
    settings: Settings, session: SupervisedSession, metrics: dict[str, str], *, until_idle: bool
) -> None:
    owner = f"{socket.gethostname()}-{os.getpid()}-{SYSTEM.unique_id()[:8]}"
    async with await AsyncClient.connect(settings.pd_addrs, tls=settings.tls, settings=settings.kv) as client:
        feeds = ChangefeedStore(client, keys=Keyring(settings.secrets_dir))
        await feeds.reseal()
        await create_configured_changefeeds(feeds, settings, now_ts=await client.timestamp())
        print_ready({"changefeeds": [feed.info.id for feed in await feeds.list()]} | metrics)

        def engine(feed_id: str, options: SinkOptions) -> SizedEngine:
            threads, spark_rows = options.worker_count, options.spark_rows
            return sized_engine(session.get, feed_id, options.target, threads=threads, spark_rows=spark_rows)

        runner = ChangefeedRunner(settings, feeds, engine, owner=owner)
        with tracing.configure(settings.tracing, cluster_id=client.cluster_id, service="changefeeds"):
            await runner.run(until_idle=until_idle)
