"""What commands do with targets of jobs: compare them with their sources, mend them, fill them anew."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from penstock import eventloop
from penstock.app.jobcalls import committed
from penstock.app.jobviews import reported
from penstock.clock import SYSTEM
from penstock.jobs.api import Jobs
from penstock.jobs.checking import consumer_of
from penstock.jobs.eventsource import EventStoreJobSource
from penstock.jobs.job import ErrorCode, Job, JobState
from penstock.jobs.jobid import JobId
from penstock.jobs.verifying import Verifier, VerifyReport
from penstock.kv import AsyncClient, Client
from penstock.settings import Settings

__all__ = ["reading", "repair", "verify"]

_ONLY_ANEW = {ErrorCode.SCHEMA, ErrorCode.TABLE_GONE, ErrorCode.TARGET_DIFFERS}
"""After these there is nothing to compare with."""
_PATIENCE_S = 15.0
_AGAIN_S = 0.1


@contextmanager
def reading(loaded: Settings) -> Iterator[tuple[Jobs, EventStoreJobSource]]:
    """The jobs of a cluster, and the event store that they read."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[Jobs, EventStoreJobSource]]:
        async with (
            await AsyncClient.connect(loaded.pd_addrs, tls=loaded.tls, settings=loaded.kv) as client,
            await EventStoreJobSource.connect(
                loaded, client, flight_tls=loaded.capture.flight_client_tls
            ) as source,
        ):
            yield Jobs(Client(client)), source

    context = opened()
    both = eventloop.run(context.__aenter__())
    try:
        yield both
    finally:
        eventloop.run(context.__aexit__(None, None, None))


def verify(loaded: Settings, job_id: JobId) -> VerifyReport:
    """Compare a job's target with its source; raise Invalid when it cannot be compared."""
    with reading(loaded) as (jobs, source):
        return _verified(loaded, jobs, source, jobs.get_job(job_id), lambda verifier: verifier.verify())


def repair(loaded: Settings, job_id: JobId, *, rebuild: bool) -> dict[str, Any]:
    """Mend a job's target, or have it filled anew where nothing else helps; let the job go on."""
    with reading(loaded) as (jobs, source):
        job = jobs.get_job(job_id)
        if rebuild or job.status.error_code in _ONLY_ANEW or source.gone(job.key.table_id) is not None:
            anew = committed(jobs, lambda txn: jobs.rebuild_job(txn, job_id))
            return {"job": str(job_id), "action": "rebuild", "table_id": anew.key.table_id}
        report = _verified(loaded, jobs, source, job, lambda verifier: verifier.repair())
        if job.state is JobState.ERROR:
            committed(jobs, lambda txn: jobs.resume_job(txn, job_id))
        found = reported(report)
        del found["same"]
        return {"job": found.pop("job"), "action": "nothing" if report.same else "mended", **found}


def _verified(
    loaded: Settings,
    jobs: Jobs,
    source: EventStoreJobSource,
    job: Job,
    work: Callable[[Verifier], VerifyReport],
) -> VerifyReport:
    with TemporaryDirectory(prefix="penstock-verify-") as folder:
        consumer = consumer_of(job, loaded, Path(folder, "consumer"))
        try:
            return work(
                Verifier(
                    job,
                    consumer,
                    source,
                    Path(folder),
                    log_ts=lambda: jobs.get_job(job.id).status.committed_ts,
                    same_ts=lambda at_ts: _same_ts(source, job.key.table_id, at_ts),
                )
            )
        finally:
            consumer.close()


def _same_ts(source: EventStoreJobSource, table_id: int, at_ts: int) -> int:
    """The newest timestamp at which a table is what it was at another one.

    Waits a while for whoever reads the table to have come so far; then reading it says what is wrong.
    """
    deadline = SYSTEM.monotonic() + _PATIENCE_S
    while SYSTEM.monotonic() < deadline:
        look = eventloop.run(source.look([table_id])).get(table_id)
        if look is not None and look.readable_ts >= at_ts:
            return look.readable_ts if look.changed_ts <= at_ts else at_ts
        SYSTEM.pause(_AGAIN_S)
    return at_ts
