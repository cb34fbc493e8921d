"""Whether a target is where the log says, before an iteration begins. Pure.

The target knows best what it has: it is written first, and the log after it.
"""

from dataclasses import dataclass

from penstock.jobs.errorcodes import TargetDiffers
from penstock.jobs.job import Job


@dataclass(frozen=True, slots=True)
class Ready:
    """The iteration may begin; the target has its changes from `from_ts` on to get."""

    from_ts: int


@dataclass(frozen=True, slots=True)
class Ahead:
    """The target has everything up to `ts` already: the log follows it."""

    ts: int


def reconcile(job: Job, from_ts: int, committed_ts: int | None) -> Ready | Ahead:
    """What to do about a job whose iteration begins at `from_ts` and whose target is at `committed_ts`.

    The watermark may be ahead of the target where nothing has changed; the consumer is then given what its
    target has as the beginning. A re-sync begins whatever the target has had before. Raises TargetDiffers
    when it has less than was committed.
    """
    if committed_ts is None:
        return Ready(from_ts)
    if committed_ts > max(from_ts, job.status.resync_ts if not from_ts else 0):
        return Ahead(committed_ts)
    if not from_ts:
        return Ready(0)
    if committed_ts < job.status.committed_ts:
        raise TargetDiffers(
            f"the target of job {job.id} is at {committed_ts}, behind {job.status.committed_ts} of the log:"
            " somebody has changed or restored it; run `penstock job repair`"
        )
    return Ready(committed_ts)
