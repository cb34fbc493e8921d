"""An iteration: what is read for which jobs, where each target begins, and how a run of it ends. Pure.

`reconcile` compares the log with the target before an iteration begins. The target knows best what it has,
because it is written before the log. But it cannot have more than it was sent, and the log knows every
iteration that was started.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from penstock.errors import Fenced, StaleRead
from penstock.jobs.error_codes import Failure, TargetDiffers, failure_of
from penstock.jobs.job import ErrorCode, Job
from penstock.jobs.log.transitions import (
    Transition,
    cancel_iteration,
    complete_iteration,
    fail_iteration,
    queue_iteration,
    resync_job,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """The changes of a table in (from_ts, to_ts], for jobs whose watermark is from_ts; 0: all rows at to_ts.

    The watermarks in the log and in the target may be older: then nothing has changed up to `from_ts`.
    `to_ts` is the end that is wanted: caps may end the iteration earlier, for all of its jobs alike.
    """

    id: str
    table_id: int
    from_ts: int
    to_ts: int
    jobs: tuple[Job, ...]

    @property
    def priority(self) -> int:
        """The greatest priority of its jobs."""
        return max(job.spec.priority for job in self.jobs)

    @property
    def account(self) -> str:
        """The account that owns it; all jobs of a table have the same."""
        return self.jobs[0].account

    @property
    def first(self) -> bool:
        """Whether it reads all rows instead of changes."""
        return self.from_ts == 0


class OutcomeKind(Enum):
    """What became of a run."""

    COMPLETED = "completed"
    FOLLOWED = "followed"
    """The target was further than the log."""
    CANCELED = "canceled"
    FENCED = "fenced"
    """Another process has the job, or its target, by now."""
    RESYNCED = "resynced"
    """History is gone: the job begins again with all rows."""
    RETRIED = "retried"
    FAILED = "failed"
    PERMANENT = "permanent"


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What became of a run, and the row's transition; None: the consumer has written the row itself."""

    kind: OutcomeKind
    transition: Transition | None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class OutcomePolicy:
    """Decides how a run of an iteration ends for a job. `last`: a failure is not retried."""

    iteration: Iteration
    last: bool

    def complete(self, to_ts: int, *, at: int) -> RunOutcome:
        """Return the outcome when everything up to `to_ts` is in the target."""
        return RunOutcome(OutcomeKind.COMPLETED, complete_iteration(to_ts, at=at))

    def follow_target(self, ts: int, *, at: int) -> RunOutcome:
        """Return the outcome when the target itself says that it has everything up to `ts`."""
        return RunOutcome(OutcomeKind.FOLLOWED, complete_iteration(ts, at=at))

    def cancel(self, *, at: int) -> RunOutcome:
        """Return the outcome of a canceled run."""
        return RunOutcome(OutcomeKind.CANCELED, cancel_iteration(at=at))

    def fail(
        self, error: BaseException, *, at: int, by_source: bool, mask: Callable[[str], str] = str
    ) -> RunOutcome:
        """Return the outcome of an error, which came from the source if `by_source`, else from the consumer.

        `mask` takes the secrets of the job from the message that is recorded.

        When a target fences its consumer, the job has not failed: another run of the same job has written in
        the meantime, and the next iteration begins where that run ended. Only the source can tell that
        history is gone.
        """
        if isinstance(error, Fenced):
            return RunOutcome(OutcomeKind.FENCED, cancel_iteration(at=at))
        if by_source and isinstance(error, StaleRead) and not self.iteration.first:
            return RunOutcome(OutcomeKind.RESYNCED, resync_job, failure_of(error, mask))
        failure = failure_of(error, mask)
        fail_job = fail_iteration(failure.code, failure.message, at=at)
        if failure.code.permanent:
            return RunOutcome(OutcomeKind.PERMANENT, fail_job, failure)
        if failure.code in {ErrorCode.CUT_OFF, ErrorCode.ABANDONED} or self.last:
            return RunOutcome(OutcomeKind.FAILED, fail_job, failure)
        return RunOutcome(OutcomeKind.RETRIED, lambda job: self._queue_again(fail_job(job)), failure)

    def _queue_again(self, job: Job) -> Job:
        queue = queue_iteration(self.iteration.from_ts, self.iteration.to_ts, runner=job.status.runner)
        return queue(job)


@dataclass(frozen=True, slots=True)
class Ready:
    """The iteration may begin; the target gets the changes after `from_ts`."""

    from_ts: int
    doubtful: bool = False
    """The target has more than the job is known to have sent. Ask the log whether this iteration still owns
    the job: if it does, the target is replaced; if not, a newer runner filled it."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """The target has everything up to `ts` already: the log follows it."""

    ts: int


def reconcile(job: Job, from_ts: int, committed_ts: int | None) -> Ready | Ahead:
    """Decide about an iteration that begins at `from_ts` when the target is at `committed_ts`.

    The watermark may be ahead of the target while the table has no changes; then the consumer's changes begin
    where its target is. A re-sync begins whatever the target had before. Raises TargetDiffers when the target
    has less than was committed, or more than was ever sent.
    """
    status = job.status
    if committed_ts is None:
        return Ready(from_ts)
    if not from_ts and committed_ts <= status.resync_ts:
        return Ready(0)
    sent_ts = max(status.begun_ts, status.committed_ts)
    if committed_ts > sent_ts:
        if not from_ts:
            return Ready(0, doubtful=True)
        raise TargetDiffers(
            f"the target of job {job.id} is at {committed_ts}, but was never sent anything after {sent_ts}:"
            " another job writes it, its watermark is in the future, or the source was restored from a"
            " backup; run `penstock job repair`"
        )
    if committed_ts > from_ts:
        return Ahead(committed_ts)
    if committed_ts < status.committed_ts:
        raise TargetDiffers(
            f"the target of job {job.id} is at {committed_ts}, behind {status.committed_ts} of the log:"
            " it was changed or restored; run `penstock job repair`"
        )
    return Ready(committed_ts)
