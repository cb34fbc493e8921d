"""Jobs with how fresh they are: what a new one is, all of them, and everything of one."""

from collections.abc import Sequence
from typing import Any

from penstock import eventloop
from penstock.control import job_views
from penstock.control import jobs as jobcalls
from penstock.control.deployment import Deployment
from penstock.control.display import shown_ts
from penstock.control.verify import last_results
from penstock.errors import Invalid, PenstockError
from penstock.jobs.durations import parse_duration
from penstock.jobs.freshness import Freshness, freshness_of
from penstock.jobs.freshnessdesk import FreshnessReader
from penstock.jobs.job import Job, JobState
from penstock.jobs.jobid import JobId
from penstock.jobs.spec import JobSpec

__all__ = ["listed", "registered", "status"]


def registered(
    deployment: Deployment, job_id: JobId, spec: JobSpec, *, account: str | None = None
) -> dict[str, Any]:
    """Register a job; all that is known of it then."""
    job = jobcalls.register(deployment.jobs(account), deployment.settings, job_id, spec)
    return {
        **job_views.everything(job, _freshness(deployment, [job])[0]),
        "captured": bool(deployment.looks([job.key.table_id])),
    }


def listed(
    deployment: Deployment, state: JobState | None, *, account: str | None = None
) -> list[dict[str, Any]]:
    """How every job does."""
    jobs = deployment.jobs(account).get_jobs(state)
    found = _freshness(deployment, jobs)
    verified = last_results(deployment, jobs)
    return [
        job_views.summary(job, each, verified.get(job.key)) for job, each in zip(jobs, found, strict=True)
    ]


def status(
    deployment: Deployment,
    job_id: JobId,
    *,
    wait_for: str | None = None,
    timeout: str = "60s",
    account: str | None = None,
) -> dict[str, Any]:
    """All that is known of a job, once its target has everything up to `wait_for`: a timestamp, or `now`."""
    wanted_ts = None if wait_for is None else _timestamp(wait_for)
    timeout_s = parse_duration(timeout)
    jobs = deployment.jobs(account)
    desk = FreshnessReader(
        jobs.get_job, deployment.source, deployment.settings.jobs, attended=deployment.attended
    )
    if wait_for is not None:
        eventloop.run(desk.wait_for(job_id, wanted_ts or None, timeout_s=timeout_s))
    job = jobs.get_job(job_id)
    verified = last_results(deployment, [job]).get(job.key)
    facts = job_views.everything(job, _freshness(deployment, [job])[0], verified)
    return {**facts, **_coverage(desk, job_id)}


def _timestamp(text: str) -> int:
    """A timestamp; 0 for now."""
    if text == "now":
        return 0
    if not (text.isascii() and text.isdigit()):
        raise Invalid(f"{text!r} is no timestamp; write now, or a number as `penstock job status` shows them")
    return int(text)


def _freshness(deployment: Deployment, jobs: Sequence[Job]) -> list[Freshness]:
    now_ts = deployment.now_ts()
    looks = deployment.looks({job.key.table_id for job in jobs})
    attended = eventloop.run(deployment.attended())
    span_s = deployment.settings.jobs.span_s
    return [
        freshness_of(job, looks.get(job.key.table_id), now_ts=now_ts, span_s=span_s, attended=attended)
        for job in jobs
    ]


def _coverage(desk: FreshnessReader, job_id: JobId) -> dict[str, Any]:
    """How much of its source a target has; why nobody knows, where that is so."""
    try:
        found = eventloop.run(desk.coverage(job_id))
    except PenstockError as error:
        return {"coverage": None, "coverage_unknown": str(error)}
    return {
        "coverage": round(found.share, 6),
        "source_rows": found.rows,
        "missing_changes": found.missing,
        "oldest_missing_ts": found.oldest_ts,
        "oldest_missing_time": shown_ts(found.oldest_ts or 0),
    }
