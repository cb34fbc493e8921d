"""`penstock changefeed run`: run changefeeds in the foreground, on Spark or with `engine: local`."""

import os
import socket
from dataclasses import replace

from penstock import tracing
from penstock.changefeeds.engines.engine import SinkEngine
from penstock.changefeeds.engines.local import LocalEngine
from penstock.changefeeds.engines.rounds import FileRounds, SparkFileJobs, warm_up
from penstock.changefeeds.runner import ChangefeedRunner, EngineOrder, create_configured_changefeeds
from penstock.changefeeds.store import ChangefeedStore
from penstock.cli.service import print_ready, run_until_signalled, serve_metrics
from penstock.clock import SYSTEM
from penstock.kv import AsyncClient
from penstock.secret_keys import Keyring
from penstock.settings import Settings
from penstock.spark.options import absolute_url
from penstock.spark.shipping import for_executors
from penstock.spark.supervised import SupervisedSession

__all__ = ["serve"]


def serve(settings: Settings, *, until_idle: bool = False) -> None:
    """Run changefeeds until SIGTERM or SIGINT, then write what was read and stop.

    Changefeeds of the settings are created first when they do not exist. Prints one line of JSON once it is
    ready. With `until_idle` it also ends once every changefeed has finished, failed or is stopped.

    Spark starts when the process gets its first changefeed, and runs a small job before any change needs it.
    A process without changefeeds has no Java.
    """
    shared = for_executors(settings)
    session = SupervisedSession(shared, app_name="penstock-changefeeds", warm_up=warm_up)
    if settings.engine == "spark":
        session.check()
    try:
        with serve_metrics(settings.metrics_addr, settings.api.hosts) as metrics:
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

        def open_engine(order: EngineOrder) -> SinkEngine:
            options = order.options
            if settings.engine == "local":
                return LocalEngine(options.target, threads=options.worker_count, place=order.place)
            from penstock.changefeeds.engines.spark import SparkEngine  # imported late: it loads PySpark

            target = replace(options.target, url=absolute_url(options.target.url))
            return SparkEngine(
                session.get(),
                target,
                changefeed=order.changefeed_id,
                account=order.account,
                threads=options.worker_count,
                rounds=rounds,
            )

        rounds = FileRounds(SparkFileJobs(session.get))
        start_spark = session.start if settings.engine == "spark" else None
        runner = ChangefeedRunner(settings, feeds, open_engine, owner=owner, on_owned=start_spark)
        with tracing.configure(settings.tracing, cluster_id=client.cluster_id, service="changefeeds"):
            try:
                await runner.run(until_idle=until_idle)
            finally:
                rounds.close()
