"""Whether a target is where the log says, before an iteration begins. Pure.

The target knows best what it has: it is written first, and the log after it. But it cannot have more than
it was sent, and the log knows every iteration that was started.
"""

from dataclasses import dataclass

from penstock.jobs.error_codes import TargetDiffers
from penstock.jobs.job import Job


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
