"""What the runner compares targets with: their care, and where results are kept."""

from collections.abc import Callable, Iterable

from penstock.clock import SYSTEM, Clock
from penstock.follow.source_2 import ScanSource
from penstock.jobs.api import Jobs
from penstock.jobs.job import Job
from penstock.jobs.jobid import JobKey
from penstock.jobs.log.job_log import JobLog
from penstock.settings import Settings
from penstock.verify.results import LastVerification, Outcomes
from penstock.verify.target import TargetVerifyReport
from penstock.verify.targetcare import TargetVerification

__all__ = ["ScheduledCare"]


class ScheduledCare:
    """Implements RunnerVerifier over a job log."""

    def __init__(self, log: JobLog, source: ScanSource, settings: Settings, *, clock: Clock = SYSTEM) -> None:
        jobs = Jobs(log.client, catalog=log.catalog)
        self._care = TargetVerification(jobs, source, settings, clock=clock)
        self._outcomes = Outcomes(log)

    def last(self, keys: Iterable[JobKey]) -> dict[JobKey, LastVerification]:
        """See RunnerVerifier."""
        return self._outcomes.read(keys)

    def verify(self, job: Job, proceed: Callable[[], None]) -> TargetVerifyReport:
        """See RunnerVerifier."""
        return self._care.verify(job.id, proceed=proceed)

    def note(self, key: JobKey, last: LastVerification, *, epoch: int) -> None:
        """See RunnerVerifier."""
        self._outcomes.note(key, last, epoch=epoch)
