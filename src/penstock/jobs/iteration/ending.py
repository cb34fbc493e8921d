"""How a job's try at an iteration ends, and what becomes of its row. Pure."""

from dataclasses import dataclass
from enum import Enum

from penstock.errors import Fenced, StaleRead
from penstock.jobs.error_codes import Failure, failure_of
from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.job import ErrorCode, Job
from penstock.jobs.log.transitions import Transition, canceled, completed, failed, pending, resynced


class OutcomeKind(Enum):
    """What happened."""

    COMPLETED = "completed"
    FOLLOWED = "followed"
    """The target had come further than the log."""
    CANCELED = "canceled"
    FENCED = "fenced"
    """Somebody else has the job, or its target, by now."""
    RESYNCED = "resynced"
    """History is gone: the job begins with nothing again."""
    RETRIED = "retried"
    FAILED = "failed"
    PERMANENT = "permanent"


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What happened, and how the row goes on. Without a transition the consumer has written the row."""

    how: OutcomeKind
    transition: Transition | None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class AttemptCount:
    """One try at an iteration; `last`: another one would be too many."""

    iteration: Iteration
    last: bool

    def completed(self, to_ts: int, *, at: int) -> RunOutcome:
        """Everything up to `to_ts` is in the target."""
        return RunOutcome(OutcomeKind.COMPLETED, completed(to_ts, at=at))

    def followed(self, ts: int, *, at: int) -> RunOutcome:
        """The target said itself how far it has come."""
        return RunOutcome(OutcomeKind.FOLLOWED, completed(ts, at=at))

    def canceled(self, *, at: int) -> RunOutcome:
        """Nobody wants it any more."""
        return RunOutcome(OutcomeKind.CANCELED, canceled(at=at))

    def stopped(self, error: BaseException, *, at: int, by_source: bool) -> RunOutcome:
        """It failed: by its source, which tells when history is gone, or by its consumer.

        A consumer that was fenced by its target is no failure of the job: another try of the same job has
        written meanwhile, and the next iteration begins where that ended.
        """
        if isinstance(error, Fenced):
            return RunOutcome(OutcomeKind.FENCED, canceled(at=at))
        if by_source and isinstance(error, StaleRead) and not self.iteration.first:
            return RunOutcome(OutcomeKind.RESYNCED, resynced, failure_of(error))
        failure = failure_of(error)
        fail = failed(failure.code, failure.message, at=at)
        if failure.code.permanent:
            return RunOutcome(OutcomeKind.PERMANENT, fail, failure)
        if failure.code is ErrorCode.CUT_OFF or self.last:
            return RunOutcome(OutcomeKind.FAILED, fail, failure)
        return RunOutcome(OutcomeKind.RETRIED, lambda job: self._again(fail(job)), failure)

    def _again(self, job: Job) -> Job:
        wait = pending(self.iteration.from_ts, self.iteration.to_ts, runner=job.status.runner)
        return wait(job)
