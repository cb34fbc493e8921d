"""Whether the target of a job is what its source says, and what brings it back to that."""

from typing import Any

from penstock.control.deployment import Deployment
from penstock.control.job_views import reported
from penstock.jobs.jobid import JobId
from penstock.verify.target import TargetVerifyReport
from penstock.verify.targetcare import TargetVerification

__all__ = ["repair", "verify"]


def verify(deployment: Deployment, job_id: JobId, *, account: str | None = None) -> TargetVerifyReport:
    """Compare a job's target with its source."""
    return _care(deployment, account).verify(job_id)


def repair(
    deployment: Deployment, job_id: JobId, *, rebuild: bool, account: str | None = None
) -> dict[str, Any]:
    """Mend a job's target, or have it filled anew; what was done, and what was found before."""
    done = _care(deployment, account).repair(job_id, rebuild=rebuild)
    answer = {"job": str(job_id), "action": done.action.value, "table_id": done.job.key.table_id}
    found = {} if done.report is None else reported(done.report)
    return answer | {name: value for name, value in found.items() if name not in {"job", "same"}}


def _care(deployment: Deployment, account: str | None) -> TargetVerification:
    return TargetVerification(deployment.jobs(account), deployment.source, deployment.settings)
