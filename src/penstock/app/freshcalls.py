"""Commands that say how fresh jobs are: `penstock job register`, `list` and `status`."""

from collections.abc import Sequence
from typing import Any

from penstock import eventloop
from penstock.app import jobcalls, jobviews
from penstock.app.jobreading import JobReading, reading
from penstock.errors import Invalid, PenstockError
from penstock.jobs.durations import parse_duration
from penstock.jobs.job import Job, JobState
from penstock.jobs.jobid import JobId
from penstock.jobs.running.freshness import Freshness, freshness_of
from penstock.jobs.running.freshnessdesk import FreshnessDesk
from penstock.jobs.spec import JobSpec
from penstock.settings import Settings

__all__ = ["listed", "registered", "status"]


def registered(loaded: Settings, job_id: JobId, spec: JobSpec) -> dict[str, Any]:
    """Register a job; all that is known of it then."""
    with reading(loaded) as opened:
        job = jobcalls.register(opened.jobs, loaded, job_id, spec)
        return {
            **jobviews.everything(job, _freshness(opened, [job])[0]),
            "captured": bool(opened.looks([job.key.table_id])),
        }


def listed(loaded: Settings, state: JobState | None) -> list[dict[str, Any]]:
    """How every job does."""
    with reading(loaded) as opened:
        jobs = opened.jobs.get_jobs(state)
        found = _freshness(opened, jobs)
        return [jobviews.summary(job, each) for job, each in zip(jobs, found, strict=True)]


def status(loaded: Settings, job_id: JobId, *, wait_for: str | None, timeout: str) -> dict[str, Any]:
    """All that is known of a job, once its target has everything up to `wait_for`: a timestamp, or `now`."""
    wanted_ts = None if wait_for is None else _timestamp(wait_for)
    timeout_s = parse_duration(timeout)
    with reading(loaded) as opened:
        desk = FreshnessDesk(opened.jobs.get_job, opened.source, loaded.jobs, attended=opened.attended)
        if wait_for is not None:
            eventloop.run(desk.wait_for(job_id, wanted_ts or None, timeout_s=timeout_s))
        job = opened.jobs.get_job(job_id)
        return {**jobviews.everything(job, _freshness(opened, [job])[0]), **_coverage(desk, job_id)}


def _timestamp(text: str) -> int:
    """A timestamp; 0 for now."""
    if text == "now":
        return 0
    if not (text.isascii() and text.isdigit()):
        raise Invalid(f"{text!r} is no timestamp; write now, or a number as `penstock job status` shows them")
    return int(text)


def _freshness(opened: JobReading, jobs: Sequence[Job]) -> list[Freshness]:
    now_ts = eventloop.run(opened.client.timestamp())
    looks = opened.looks({job.key.table_id for job in jobs})
    attended = eventloop.run(opened.attended())
    span_s = opened.settings.jobs.span_s
    return [
        freshness_of(job, looks.get(job.key.table_id), now_ts=now_ts, span_s=span_s, attended=attended)
        for job in jobs
    ]


def _coverage(desk: FreshnessDesk, job_id: JobId) -> dict[str, Any]:
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
        "oldest_missing_time": jobviews.shown_ts(found.oldest_ts or 0),
    }
