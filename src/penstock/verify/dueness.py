"""Which target is to be compared next. Pure."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.jobs.job import Job, JobState
from penstock.jobs.jobid import JobKey
from penstock.verify.results import LastVerification

__all__ = ["Due", "next_due"]


class Due(NamedTuple):
    """A job whose target is to be compared, and when: in milliseconds since the epoch."""

    at_ms: int
    job: Job


def next_due(jobs: Iterable[Job], last: Mapping[JobKey, LastVerification]) -> Due | None:
    """The first that is due, now or later; None: there is none.

    A job is due an interval after its last comparison came to its end, whatever that found, or after it was
    registered. One that has no rows yet, or is stopped by an error, waits until that is over.
    """
    due = [Due(_at_ms(job, job.spec.verify_s, last), job) for job in jobs if _can_be(job)]
    return min(due, key=lambda each: (each.at_ms, each.job.key.job_name), default=None)


def _can_be(job: Job) -> bool:
    return (
        job.live and job.spec.verify_s is not None and bool(job.watermark) and job.state is not JobState.ERROR
    )


def _at_ms(job: Job, interval_s: float | None, last: Mapping[JobKey, LastVerification]) -> int:
    assert interval_s is not None, "it is to be compared"
    known = last.get(job.key)
    return (job.create_at if known is None else known.ended_ms) + int(interval_s * 1000)
