"""What commands do with targets of jobs: compare them with their sources, mend them, fill them anew."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from penstock.app.jobcalls import committed
from penstock.app.jobreading import JobReading, reading
from penstock.app.jobviews import reported
from penstock.clock import SYSTEM
from penstock.errors import Invalid
from penstock.jobs.api import Jobs
from penstock.jobs.checking import consumer_of
from penstock.jobs.job import ErrorCode, Job, JobState
from penstock.jobs.jobid import JobId
from penstock.jobs.verifying import Verifier, VerifyReport
from penstock.settings import Settings

__all__ = ["repair", "verify"]

_ONLY_ANEW = {ErrorCode.SCHEMA, ErrorCode.TABLE_GONE, ErrorCode.TARGET_DIFFERS}
"""After these there is nothing to compare with."""
_PATIENCE_S = 15.0
_AGAIN_S = 0.1


def verify(loaded: Settings, job_id: JobId) -> VerifyReport:
    """Compare a job's target with its source; raise Invalid when it cannot be compared."""
    with reading(loaded) as opened:
        return _verified(opened, opened.jobs.get_job(job_id), lambda verifier: verifier.verify())


def repair(loaded: Settings, job_id: JobId, *, rebuild: bool) -> dict[str, Any]:
    """Mend a job's target, or have it filled anew where nothing else helps; let the job go on."""
    with reading(loaded) as opened:
        jobs = opened.jobs
        job = jobs.get_job(job_id)
        if rebuild or job.status.error_code in _ONLY_ANEW or _is_stranded(jobs, job):
            anew = committed(jobs, lambda txn: jobs.rebuild_job(txn, job_id))
            return {"job": str(job_id), "action": "rebuild", "table_id": anew.key.table_id}
        report = _verified(opened, job, lambda verifier: verifier.repair())
        if job.state is JobState.ERROR:
            committed(jobs, lambda txn: jobs.resume_job(txn, job_id))
        found = reported(report)
        del found["same"]
        return {"job": found.pop("job"), "action": "nothing" if report.same else "mended", **found}


def _is_stranded(jobs: Jobs, job: Job) -> bool:
    """Whether the table of that name is another one by now, or gone."""
    try:
        return jobs.log.catalog.table_info(job.id.table_name).id != job.key.table_id
    except Invalid:
        return True


def _verified(opened: JobReading, job: Job, work: Callable[[Verifier], VerifyReport]) -> VerifyReport:
    if _is_stranded(opened.jobs, job):
        raise Invalid(
            f"the table of job {job.id} was truncated or dropped; fill the target anew with"
            f" `penstock job repair {job.id}`, or unregister the job"
        )
    with TemporaryDirectory(prefix="penstock-verify-") as folder:
        consumer = consumer_of(job, opened.settings, Path(folder, "consumer"))
        try:
            return work(
                Verifier(
                    job,
                    consumer,
                    opened.source,
                    Path(folder),
                    log_ts=lambda: opened.jobs.get_job(job.id).status.committed_ts,
                    same_ts=lambda at_ts: _same_ts(opened, job.key.table_id, at_ts),
                )
            )
        finally:
            consumer.close()


def _same_ts(opened: JobReading, table_id: int, at_ts: int) -> int:
    """The newest timestamp at which a table is what it was at another one.

    Waits a while for whoever reads the table to have come so far; then reading it says what is wrong.
    """
    deadline = SYSTEM.monotonic() + _PATIENCE_S
    while SYSTEM.monotonic() < deadline:
        look = opened.looks([table_id]).get(table_id)
        if look is not None and look.readable_ts >= at_ts:
            return look.readable_ts if look.changed_ts <= at_ts else at_ts
        SYSTEM.pause(_AGAIN_S)
    return at_ts
