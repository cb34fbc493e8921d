"""The transitions of a job: each makes the next row of a job from the row before. Pure.

A writer never writes back a row that it remembers: it applies a transition to the row as it is now. So a
flush of the watermark leaves a drop, a newer spec and the status alone, and the end of an iteration keeps a
spec that was changed in the meantime. Every transition of a runner except `flush_watermark` raises `lsn`, and
so does every transition that interrupts a runner: a writer that has not seen the new `lsn` is refused.

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
"""States in which a runner has an iteration of the job; in all other states no runner has."""

_ERROR_CHARS = 1000


def adopt_job(epoch: int) -> Transition:
    """Make a runner the owner of the job: whatever its predecessor still writes is refused."""

    def adopt(job: Job) -> Job:
        return replace(_idle(job, JobState.COMPLETED), status=job.with_status(runner=epoch).status)

    return adopt


def queue_iteration(from_ts: int, to_ts: int, *, runner: int) -> Transition:
    """Record that an iteration waits for a worker."""
    return _begin_iteration(JobState.PENDING, from_ts, to_ts, runner=runner, start_at=0)


def start_iteration(from_ts: int, to_ts: int, *, runner: int, at: int) -> Transition:
    """Record that an iteration runs. The last error stays visible until this iteration has ended."""
    return _begin_iteration(JobState.RUNNING, from_ts, to_ts, runner=runner, start_at=at)


def _begin_iteration(state: JobState, from_ts: int, to_ts: int, *, runner: int, start_at: int) -> Transition:
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
    """Return the greatest end of an iteration whose changes the target may have; a waiting one sent none."""
    status = job.status
    return max(status.begun_ts, 0 if job.state is JobState.PENDING else status.to_ts)


def complete_iteration(to_ts: int, *, at: int) -> Transition:
    """Record that the target has everything up to `to_ts`: an iteration ended, or the target reports it."""

    def complete(job: Job) -> Job:
        assert to_ts >= job.watermark, "a watermark never goes back"
        done = job.with_status(
            to_ts=to_ts, committed_ts=to_ts, end_at=at, error_code=0, error_msg="", failures=0
        )
        return replace(done, state=JobState.COMPLETED, watermark=to_ts)

    return complete


def fail_iteration(code: int, message: str, *, at: int) -> Transition:
    """Record a failed iteration; the watermark does not move, so that nothing is skipped.

    The job waits for its next iteration, or after a permanent error for somebody who repairs it.
    """
    assert code, "0 is the code of success"

    def fail(job: Job) -> Job:
        line = " ".join(message.split())[:_ERROR_CHARS]
        counted = job.with_status(
            error_code=code, error_msg=line, end_at=at, failures=job.status.failures + 1
        )
        return replace(counted, state=JobState.ERROR if code >= PERMANENT else JobState.COMPLETED)

    return fail


def cancel_iteration(*, at: int) -> Transition:
    """Record that the iteration was given up; the next one begins where it began."""
    return lambda job: replace(job.with_status(end_at=at), state=JobState.CANCELED)


def flush_watermark(watermark: int) -> Transition:
    """Raise the watermark, because the table had no changes up to there, and change nothing else.

    Has no effect on a job that has an iteration, which moves the watermark anyway. Has no effect on a job
    before its first iteration, which would never get the older rows.
    """

    def flush(job: Job) -> Job:
        if not job.watermark or job.state in BUSY:
            return job
        return replace(job, watermark=max(job.watermark, watermark))

    return flush


def resync_job(job: Job, *, upto_ts: int = 0) -> Job:
    """Begin again with all rows: history is gone, or a person asked for a rebuild.

    The end of an iteration that still runs is refused. What the target has by then does not count: neither
    what the log knows of, nor anything else up to `upto_ts`.
    """
    status = job.status
    reset = job.with_status(
        from_ts=0,
        to_ts=0,
        committed_ts=0,
        begun_ts=_begun_ts(job),
        resync_ts=max(status.resync_ts, status.committed_ts, status.to_ts, job.watermark, upto_ts),
    )
    return replace(_clear_error(_idle(reset, JobState.CANCELED)), watermark=0)


def resume_job(job: Job) -> Job:
    """Continue a job that was paused or stopped by an error."""
    resumed = replace(job, spec=job.spec.merge(JobSpec(trigger=TriggerSpec(paused=False))))
    return _clear_error(resumed.with_status()) if job.state is JobState.ERROR else resumed


def _clear_error(job: Job) -> Job:
    """Return the job without its error."""
    status = replace(job.status, error_code=0, error_msg="", failures=0)
    state = JobState.COMPLETED if job.state is JobState.ERROR else job.state
    return replace(job, state=state, status=status)


def update_spec(spec: JobSpec, *, interrupt: bool, at: int) -> Transition:
    """Change the fields of the spec that are not empty in `spec`; with `interrupt` cancel the iteration.

    With other columns the job begins again with all rows, because its target has not all columns of them.
    """

    def update(job: Job) -> Job:
        changed = replace(job, spec=job.spec.merge(spec))
        if changed.spec.columns != job.spec.columns:
            return resync_job(changed, upto_ts=compose_ts(at))
        if not interrupt:
            return changed
        if job.state in BUSY:
            return cancel_iteration(at=at)(changed)
        return changed.with_status()

    return update


def drop_job(*, at: int) -> Transition:
    """Mark the job as dropped; its row stays for a while."""
    return lambda job: replace(_idle(job.with_status(), JobState.CANCELED), drop_at=at)


def _idle(job: Job, state: JobState) -> Job:
    """Return the job in `state` if it had an iteration, else as it is."""
    return replace(job, state=state) if job.state in BUSY else job
