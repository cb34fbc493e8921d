"""What may become of a job: each transition makes the next row of the last one. Pure.

A writer never writes back a row that it remembers: it applies a transition to the row as it is now. So a
watermark that is flushed leaves a drop, a newer spec and the status alone, and the end of an iteration keeps
the spec that came meanwhile. Every transition of a runner but `flushed` counts `lsn`, and so does whatever
interrupts it: who has not seen that is refused.

A dropped job has no next row: the log refuses every transition of one.
"""

from collections.abc import Callable
from dataclasses import replace

from penstock.clock import compose_ts
from penstock.jobs.job import PERMANENT, Job, JobState
from penstock.jobs.spec import JobSpec, TriggerSpec

Transition = Callable[[Job], Job]
"""Makes the next row of a job. Called again, with a newer row, when another transaction was faster."""

BUSY = frozenset({JobState.PENDING, JobState.RUNNING})
"""A runner has an iteration of the job; in every other state nobody has."""

_ERROR_CHARS = 1000


def adopted(epoch: int) -> Transition:
    """A runner takes the job over: whatever its predecessor still writes is refused."""

    def adopt(job: Job) -> Job:
        return replace(_idle(job, JobState.COMPLETED), status=job.with_status(runner=epoch).status)

    return adopt


def pending(from_ts: int, to_ts: int, *, runner: int) -> Transition:
    """An iteration waits for a worker."""
    return _begun(JobState.PENDING, from_ts, to_ts, runner=runner, start_at=0)


def started(from_ts: int, to_ts: int, *, runner: int, at: int) -> Transition:
    """An iteration is executed. The error before it stays to be seen until this one has ended."""
    return _begun(JobState.RUNNING, from_ts, to_ts, runner=runner, start_at=at)


def _begun(state: JobState, from_ts: int, to_ts: int, *, runner: int, start_at: int) -> Transition:
    def begin(job: Job) -> Job:
        assert from_ts >= job.watermark, "an iteration would repeat what the job has"
        assert job.watermark or not from_ts, "the first iteration of a job begins with nothing"
        begun = job.with_status(
            runner=runner,
            from_ts=from_ts,
            to_ts=to_ts,
            start_at=start_at,
            end_at=0,
            begun_ts=_begun_ts(job),
        )
        return replace(begun, state=state)

    return begin


def _begun_ts(job: Job) -> int:
    """The greatest end of an iteration whose changes the target may have; of one that waits it has none."""
    status = job.status
    return max(status.begun_ts, 0 if job.state is JobState.PENDING else status.to_ts)


def completed(to_ts: int, *, at: int) -> Transition:
    """Everything up to `to_ts` is in the target: at the end of an iteration, or as the target says itself."""

    def complete(job: Job) -> Job:
        assert to_ts >= job.watermark, "a watermark never goes back"
        done = job.with_status(
            to_ts=to_ts, committed_ts=to_ts, end_at=at, error_code=0, error_msg="", failures=0
        )
        return replace(done, state=JobState.COMPLETED, watermark=to_ts)

    return complete


def failed(code: int, message: str, *, at: int) -> Transition:
    """The iteration failed; the watermark stays exactly where it is, so that nothing is skipped.

    The job waits for its next iteration, or after a permanent error for somebody who repairs it.
    """
    assert code, "0 is the code of success"

    def fail(job: Job) -> Job:
        said = " ".join(message.split())[:_ERROR_CHARS]
        counted = job.with_status(
            error_code=code, error_msg=said, end_at=at, failures=job.status.failures + 1
        )
        return replace(counted, state=JobState.ERROR if code >= PERMANENT else JobState.COMPLETED)

    return fail


def canceled(*, at: int) -> Transition:
    """The iteration was given up; the next begins where it began."""
    return lambda job: replace(job.with_status(end_at=at), state=JobState.CANCELED)


def flushed(watermark: int) -> Transition:
    """The table had no changes up to here: only the watermark is raised, and nothing else is touched.

    Without effect on a job that an iteration is about to move anyway, and on one that has had no first
    iteration: that would never get the rows of before.
    """

    def flush(job: Job) -> Job:
        if not job.watermark or job.state in BUSY:
            return job
        return replace(job, watermark=max(job.watermark, watermark))

    return flush


def resynced(job: Job, *, upto_ts: int = 0) -> Job:
    """Begin with nothing again: history is gone, or somebody wants the target filled anew.

    An iteration that is under way is refused at its end, and what the target has by then does not count:
    whatever that was to be by the log, and whatever else it may have been up to `upto_ts`.
    """
    status = job.status
    reset = job.with_status(
        from_ts=0,
        to_ts=0,
        committed_ts=0,
        begun_ts=_begun_ts(job),
        resync_ts=max(status.resync_ts, status.committed_ts, status.to_ts, job.watermark, upto_ts),
    )
    return replace(_cleared(_idle(reset, JobState.CANCELED)), watermark=0)


def resumed(job: Job) -> Job:
    """Let a job go on that was paused or stopped by an error."""
    going = replace(job, spec=job.spec.merged(JobSpec(trigger=TriggerSpec(paused=False))))
    return _cleared(going.with_status()) if job.state is JobState.ERROR else going


def _cleared(job: Job) -> Job:
    """The job without its error."""
    status = replace(job.status, error_code=0, error_msg="", failures=0)
    state = JobState.COMPLETED if job.state is JobState.ERROR else job.state
    return replace(job, state=state, status=status)


def updated(spec: JobSpec, *, interrupt: bool, at: int) -> Transition:
    """Give the job everything that is not empty in a spec; interrupting ends its iteration.

    With other columns the job begins with nothing again: its target lacks some of every row.
    """

    def update(job: Job) -> Job:
        changed = replace(job, spec=job.spec.merged(spec))
        if changed.spec.columns != job.spec.columns:
            return resynced(changed, upto_ts=compose_ts(at))
        if not interrupt:
            return changed
        if job.state in BUSY:
            return canceled(at=at)(changed)
        return changed.with_status()

    return update


def dropped(*, at: int) -> Transition:
    """The job is no more; its row stays for a while."""
    return lambda job: replace(_idle(job.with_status(), JobState.CANCELED), drop_at=at)


def _idle(job: Job, state: JobState) -> Job:
    """The job without an iteration: in `state` if it had one, else as it is."""
    return replace(job, state=state) if job.state in BUSY else job
