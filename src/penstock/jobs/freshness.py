"""How fresh a target is: up to when it has everything, what it lacks, and why. Pure.

A job's watermark in the log stands still while its table does not change. So how fresh the target is follows
from both: where the table has no change beyond the watermark, the target has all that can be read.
"""

from dataclasses import dataclass
from enum import StrEnum

from penstock.clock import physical_ms
from penstock.follow.source import ReadableRange
from penstock.jobs.durations import parse_duration
from penstock.jobs.job import Job, JobState


class LagReason(StrEnum):
    """Why a target lacks changes."""

    NEVER_SYNCED = "never synced"
    PAUSED = "paused"
    ERROR = "error"
    """Somebody has to repair it."""
    RETRYING = "retrying"
    """Its last iteration failed; it is tried again."""
    QUEUED = "queued"
    RUNNING = "running"
    CATCHING_UP = "catching up"
    """It is so far behind that it takes more than one iteration."""
    WAITING = "waiting"
    """Its trigger has not begun the next iteration yet."""
    NO_RUNNER = "no runner"
    """No process runs jobs."""
    NOT_CAPTURED = "not captured"
    """Nobody knows how far the table has come."""
    DROPPED = "dropped"

    @property
    def passing(self) -> bool:
        """Whether it goes away without anybody doing anything."""
        return self not in {LagReason.PAUSED, LagReason.ERROR, LagReason.DROPPED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """What a target has at a moment.

    It has every change up to `watermark`; `readable_ts` is up to where the table can be read at all, and
    `now_ts` the database's time.
    """

    watermark: int
    readable_ts: int
    now_ts: int
    reason: LagReason | None
    """Why there is something that it lacks; None: it has everything that can be read."""
    message: str = ""
    """What its error says."""

    @property
    def complete(self) -> bool:
        """Whether it has everything that can be read."""
        return self.reason is None

    @property
    def lag_s(self) -> float:
        """How old the oldest change may be that it lacks."""
        return max(0, physical_ms(self.now_ts) - physical_ms(self.watermark)) / 1000

    def covers(self, ts: int) -> bool:
        """Whether it has every change up to a timestamp."""
        return self.watermark >= ts

    def __str__(self) -> str:
        if self.reason is None:
            return f"complete, {self.lag_s:.1f} s behind the database"
        lacks = f"lacks changes of the last {self.lag_s:.1f} s" if self.watermark else "has nothing yet"
        return f"{lacks}: {self.reason}{f' ({self.message})' if self.message else ''}"


def freshness_of(
    job: Job, look: ReadableRange | None, *, now_ts: int, span_s: float, attended: bool = True
) -> Freshness:
    """Judge by a job's row, and by a look at its table; None: nobody captures it.

    `span_s` is the time that one iteration covers unless the job's spec says otherwise. `attended`: some
    process runs jobs.
    """
    watermark = job.watermark
    readable_ts = watermark if look is None else max(watermark, look.readable_ts)
    known = watermark > 0 and look is not None and watermark >= look.oldest_ts
    if look is not None and known and look.changed_ts <= watermark and job.live:
        return Freshness(watermark=readable_ts, readable_ts=readable_ts, now_ts=now_ts, reason=None)
    reason = _reason(job, look, span_s, attended=attended)
    return Freshness(
        watermark=watermark,
        readable_ts=readable_ts,
        now_ts=now_ts,
        reason=reason,
        message=job.status.error_msg if reason in {LagReason.ERROR, LagReason.RETRYING} else "",
    )


def _reason(job: Job, look: ReadableRange | None, span_s: float, *, attended: bool) -> LagReason:
    """The first that holds: what somebody has to do comes before what passes by itself."""
    span = job.spec.detail.span
    span_ms = 1000 * (span_s if span is None else parse_duration(span))
    far = look is not None and physical_ms(look.readable_ts) - physical_ms(job.watermark) > span_ms
    holds = (
        (LagReason.DROPPED, not job.live),
        (LagReason.ERROR, job.state is JobState.ERROR),
        (LagReason.PAUSED, job.spec.paused),
        (LagReason.NO_RUNNER, not attended),
        (LagReason.NOT_CAPTURED, look is None),
        (LagReason.RETRYING, job.status.failures > 0),
        (LagReason.CATCHING_UP, job.watermark > 0 and far),
        (LagReason.QUEUED, job.state is JobState.PENDING),
        (LagReason.RUNNING, job.state is JobState.RUNNING),
        (LagReason.NEVER_SYNCED, not job.watermark),
    )
    return next((reason for reason, true in holds if true), LagReason.WAITING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How much of its source a target has."""

    freshness: Freshness
    rows: int
    """About how many rows the source has."""
    missing: int
    """About how many changes of it the target lacks."""
    oldest_ts: int | None
    """When the oldest of those was committed; None: it lacks none, or all."""

    @property
    def share(self) -> float:
        """The share of the rows that are in the target as they are in the source: 1 for all, 0 for none."""
        if not self.freshness.watermark:
            return 0.0
        return 1 - self.missing / max(self.missing, self.rows, 1)
