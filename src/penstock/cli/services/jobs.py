"""`penstock job run`: run the jobs of a cluster in the foreground."""

import asyncio
import os
import socket

from penstock import tracing
from penstock.cli.service import print_ready, run_until_signalled, serve_metrics
from penstock.clock import SYSTEM
from penstock.follow.follower import ScanFollower
from penstock.follow.source import ScanSource
from penstock.jobs.iteration.consumer_run import AbandonedConsumers
from penstock.jobs.iteration.iteration_run import IterationRunner
from penstock.jobs.iteration.rounds import ReadRounds, SparkReadJobs, warm_up
from penstock.jobs.iteration.spark_frame import SparkFrames
from penstock.jobs.log.job_log import RUNNER_LEASE, JobLog
from penstock.jobs.log.log_feed import LogFeed
from penstock.jobs.runner.held_bytes import release_over_quota
from penstock.jobs.runner.lease_term import seal_options
from penstock.jobs.runner.runner import JobRunner, watch_abandoned
from penstock.jobs.runner.seams import OnEnd
from penstock.jobs.scheduler.scheduler import Scheduler
from penstock.jobs.usage import UsageMeter
from penstock.kv import AsyncClient, Client
from penstock.kv.lease import Lease
from penstock.secret_keys import Keyring
from penstock.settings import Settings
from penstock.spark.shipping import for_executors
from penstock.spark.supervised import SupervisedSession
from penstock.verify.schedule import verify_on_schedule

__all__ = ["serve"]


def serve(settings: Settings) -> None:
    """Run jobs until SIGTERM or SIGINT, then cancel running iterations.

    Prints one line of JSON once it is ready. Spark starts when this process runs jobs and there is one, and
    runs a small job before any change needs it; never with `engine: local`.
    """
    shared = for_executors(settings)
    session = SupervisedSession(shared, app_name="penstock-jobs", warm_up=warm_up)
    if settings.engine == "spark":
        session.check()
    try:
        with serve_metrics(settings.metrics_addr, settings.api.hosts) as metrics:
            run_until_signalled(_run(shared, session, metrics), on_signal=session.interrupt)
    finally:
        session.stop()


async def _run(settings: Settings, session: SupervisedSession, metrics: dict[str, str]) -> None:
    owner = f"{socket.gethostname()}-{os.getpid()}-{SYSTEM.unique_id()[:8]}"
    async with await AsyncClient.connect(settings.pd_addrs, tls=settings.tls, settings=settings.kv) as client:
        log = JobLog(Client(client), keys=Keyring(settings.secrets_dir))
        await asyncio.to_thread(log.ensure)
        async with await ScanFollower.connect(
            settings, client, flight_tls=settings.capture.flight_client_tls
        ) as source:
            abandoned, usage = AbandonedConsumers(settings.jobs.abandoned_max), UsageMeter(log.client)
            on_spark = settings.engine == "spark"
            rounds = ReadRounds(SparkReadJobs(session.get)) if on_spark else None
            runner = JobRunner(
                settings.jobs,
                acquire=lambda: Lease.acquire(client, RUNNER_LEASE, owner, ttl_s=settings.jobs.lease_ttl_s),
                log=log,
                feed=LogFeed(log, settings),
                source=source,
                open_scheduler=lambda on_end: _scheduler(
                    settings, log, source, session, rounds, abandoned, usage, on_end
                ),
                on_jobs=session.start if on_spark else None,
                side_tasks=[
                    verify_on_schedule(log, source, settings, usage),
                    seal_options(log),
                    watch_abandoned(abandoned),
                    release_over_quota(source, settings),
                ],
            )
            _, jobs = await asyncio.to_thread(log.read_all)
            print_ready({"runner": owner, "jobs": sum(job.live for job in jobs)} | metrics)
            with tracing.configure(settings.tracing, cluster_id=client.cluster_id, service="jobs"):
                try:
                    await runner.run()
                finally:
                    if rounds is not None:
                        rounds.close()


def _scheduler(
    settings: Settings,
    log: JobLog,
    source: ScanSource,
    session: SupervisedSession,
    rounds: ReadRounds | None,
    abandoned: AbandonedConsumers,
    usage: UsageMeter,
    on_end: OnEnd,
) -> Scheduler:
    executor = IterationRunner(
        log,
        source,
        settings,
        frames=SparkFrames(session.get) if rounds is not None else None,
        rounds=rounds,
        spark=session if rounds is not None else None,
        usage=usage,
        abandoned=abandoned,
    )
    weights = {name: pool.weight for name, pool in settings.spark.pools.items()}
    scheduler = Scheduler(executor, settings.jobs, on_end=on_end, weights=weights)
    scheduler.start()
    return scheduler
