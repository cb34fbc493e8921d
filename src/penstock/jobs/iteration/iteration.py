"""One scan of a table's changes, for one or more of its jobs. Pure values.

How a job's try at an iteration ends, and what becomes of its row. Pure.

Whether a target is where the log says, before an iteration begins. Pure.

The target knows best what it has: it is written first, and the log after it. But it cannot have more than
it was sent, and the log knows every iteration that was started.
"""

from dataclasses import dataclass
from enum import Enum

from penstock.errors import Fenced, StaleRead
from penstock.jobs.error_codes import Failure, TargetDiffers, failure_of
from penstock.jobs.job import ErrorCode, Job
from penstock.jobs.log.transitions import Transition, canceled, completed, failed, pending, resynced


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """Changes of a table in (from_ts, to_ts] for jobs whose watermark is from_ts; 0: all rows at to_ts.

    The watermark in the log, and in the target, may be older: then nothing has changed up to `from_ts`.
    `to_ts` is as far as is wanted: caps may end it earlier, for all of its jobs alike.
    """

    id: str
    table_id: int
    from_ts: int
    to_ts: int
    jobs: tuple[Job, ...]

    @property
    def priority(self) -> int:
        """That of its most urgent job."""
        return max(job.spec.priority for job in self.jobs)

    @property
    def account(self) -> str:
        """Whose it is; all jobs of a table have the same."""
        return self.jobs[0].account

    @property
    def first(self) -> bool:
        """Whether it begins with nothing."""
        return self.from_ts == 0


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


@dataclass(frozen=True, slots=True)
class Ready:
    """The iteration may begin; the target has its changes from `from_ts` on to get."""

    from_ts: int
    doubtful: bool = False
    """The target has more than the job is known to have sent. Ask the log whether the job is still this
    iteration's: if it is, the target is to be replaced; else a newer runner filled it."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """The target has everything up to `ts` already: the log follows it."""

    ts: int


def reconcile(job: Job, from_ts: int, committed_ts: int | None) -> Ready | Ahead:
    """What to do about a job whose iteration begins at `from_ts` and whose target is at `committed_ts`.

    The watermark may be ahead of the target where nothing has changed; the consumer is then given what its
    target has as the beginning. A re-sync begins whatever the target has had before. Raises TargetDiffers
    when it has less than was committed, or more than was ever sent.
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
            f"the target of job {job.id} says that it is at {committed_ts}, but was never sent anything after"
            f" {sent_ts}: it is another's, its watermark is in the future, or the source was restored from a"
            " backup; run `penstock job repair`"
        )
    if committed_ts > from_ts:
        return Ahead(committed_ts)
    if committed_ts < status.committed_ts:
        raise TargetDiffers(
            f"the target of job {job.id} is at {committed_ts}, behind {status.committed_ts} of the log:"
            " somebody has changed or restored it; run `penstock job repair`"
        )
    return Ready(committed_ts)
