"""`penstock job verify` and `penstock job repair`."""

from typing import Any

from penstock.app.jobreading import reading
from penstock.app.jobviews import reported
from penstock.jobs.jobid import JobId
from penstock.jobs.verifying.targetcare import TargetCare
from penstock.jobs.verifying.verifying import VerifyReport
from penstock.settings import Settings

__all__ = ["repair", "verify"]


def verify(loaded: Settings, job_id: JobId) -> VerifyReport:
    """Compare a job's target with its source."""
    with reading(loaded) as opened:
        return TargetCare(opened.jobs, opened.source, loaded).verify(job_id)


def repair(loaded: Settings, job_id: JobId, *, rebuild: bool) -> dict[str, Any]:
    """Mend a job's target, or have it filled anew; what was done, and what was found before."""
    with reading(loaded) as opened:
        done = TargetCare(opened.jobs, opened.source, loaded).repair(job_id, rebuild=rebuild)
    answer = {"job": str(job_id), "action": done.action.value, "table_id": done.job.key.table_id}
    found = {} if done.report is None else reported(done.report)
    return answer | {name: value for name, value in found.items() if name not in {"job", "same"}}
