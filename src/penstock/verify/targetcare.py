"""Whether the targets of jobs are what their sources say, and what brings them back to that.

care = TargetVerification(Jobs(client), source, settings)
report = care.verify(JobId.parse("shop.orders/search"))
if not report.same:
    care.repair(JobId.parse("shop.orders/search"))
"""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from penstock import eventloop
from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid
from penstock.follow.source_2 import ScanSource
from penstock.jobs.api import Jobs
from penstock.jobs.checking import consumer_of
from penstock.jobs.job import ErrorCode, Job, JobState
from penstock.jobs.jobid import JobId
from penstock.kv import Transaction
from penstock.kv.transact import retried
from penstock.settings import Settings
from penstock.verify.target import TargetVerifyReport, Verifier

__all__ = ["RepairAction", "TargetRepair", "TargetVerification"]

_ONLY_ANEW = {ErrorCode.SCHEMA, ErrorCode.TABLE_GONE, ErrorCode.TARGET_DIFFERS}
"""After these there is nothing to compare with."""
_PATIENCE_S = 15.0
_AGAIN_S = 0.1


class RepairAction(StrEnum):
    """What a repair did."""

    NOTHING = "nothing"
    MENDED = "mended"
    REBUILD = "rebuild"
    """The next iteration fills the target anew."""


class TargetRepair(NamedTuple):
    """What a repair did to a job, and what the comparison had found, if there was one."""

    action: RepairAction
    job: Job
    report: TargetVerifyReport | None


class TargetVerification:
    """Verifies and repairs targets, in any process; blocks. Files for comparisons go below `TMPDIR`.

    Every method raises Invalid when there is no such job, or its target cannot be compared.
    """

    def __init__(self, jobs: Jobs, source: ScanSource, settings: Settings, *, clock: Clock = SYSTEM) -> None:
        self._jobs = jobs
        self._source = source
        self._settings = settings
        self._clock = clock

    def verify(self, job_id: JobId, *, proceed: Callable[[], None] = lambda: None) -> TargetVerifyReport:
        """Compare a job's target with its source as of the target's watermark. See Verifier."""
        return self._compared(self._jobs.get_job(job_id), lambda verifier: verifier.verify(), proceed)

    def repair(self, job_id: JobId, *, rebuild: bool = False) -> TargetRepair:
        """Mend a job's target, or have it filled anew where nothing else helps; let the job go on.

        A job whose table was truncated is registered for the table that there is now.
        """
        job = self._jobs.get_job(job_id)
        if rebuild or job.status.error_code in _ONLY_ANEW or self._is_stranded(job):
            anew = self._committed(lambda txn: self._jobs.rebuild_job(txn, job_id))
            return TargetRepair(RepairAction.REBUILD, anew, None)
        report = self._compared(job, lambda verifier: verifier.repair())
        if job.state is JobState.ERROR:
            job = self._committed(lambda txn: self._jobs.resume_job(txn, job_id))
        return TargetRepair(RepairAction.NOTHING if report.same else RepairAction.MENDED, job, report)

    def _committed(self, change: Callable[[Transaction], Job]) -> Job:
        def attempt() -> Job:
            with self._jobs.log.client.begin() as txn:
                return change(txn)

        return retried(attempt, clock=self._clock)

    def _is_stranded(self, job: Job) -> bool:
        """Whether the table of that name is another one by now, or gone."""
        try:
            return self._jobs.log.catalog.table_info(job.id.table_name).id != job.key.table_id
        except Invalid:
            return True

    def _compared(
        self,
        job: Job,
        work: Callable[[Verifier], TargetVerifyReport],
        proceed: Callable[[], None] = lambda: None,
    ) -> TargetVerifyReport:
        if self._is_stranded(job):
            raise Invalid(
                f"the table of job {job.id} was truncated or dropped; fill the target anew with"
                f" `penstock job repair {job.id}`, or unregister the job"
            )
        with TemporaryDirectory(prefix="penstock-verify-") as folder:
            consumer = consumer_of(job, self._settings, Path(folder, "consumer"))
            try:
                return work(
                    Verifier(
                        job,
                        consumer,
                        self._source,
                        Path(folder),
                        log_ts=lambda: self._jobs.get_job(job.id).status.committed_ts,
                        same_ts=lambda at_ts: self._same_ts(job.key.table_id, at_ts),
                        proceed=proceed,
                    )
                )
            finally:
                consumer.close()

    def _same_ts(self, table_id: int, at_ts: int) -> int:
        """The newest timestamp at which a table is what it was at another one.

        Waits a while for whoever reads the table to have come so far; then reading it says what is wrong.
        """
        deadline = self._clock.monotonic() + _PATIENCE_S
        while self._clock.monotonic() < deadline:
            look = eventloop.run(self._source.look([table_id])).get(table_id)
            if look is not None and look.readable_ts >= at_ts:
                return look.readable_ts if look.changed_ts <= at_ts else at_ts
            self._clock.pause(_AGAIN_S)
        return at_ts
