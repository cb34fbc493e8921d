"""Every target against its source."""

from penstock.app.demo.report import Verified
from penstock.app.demo.targets import FEEDS, Target
from penstock.control import targetcalls
from penstock.control.deployment import Deployment
from penstock.jobs.jobid import JobId

__all__ = ["verified"]


def verified(deployment: Deployment, target: Target) -> Verified:
    """Compare one with what the event store has at its watermark."""
    if target in FEEDS:
        return Verified(target.title, True, 0)
    report = targetcalls.verify(deployment, JobId.parse(target.name))
    counts = report.counts
    differs = f"{counts.missing} missing, {counts.different} different, {counts.extra} extra"
    return Verified(target.title, report.same, report.source_rows, "" if report.same else differs)
