"""How fresh a target is: up to when it has everything, what it lacks, and why. Pure.

A job's watermark in the log stands still while its table does not change. So how fresh the target is follows
from both: where the table has no change beyond the watermark, the target has all that can be read.

Tells how fresh jobs are, and waits until they are fresh enough: in any process, not only the runner's.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

import pyarrow.compute as pc

from penstock.changes.limits import ReadLimit
from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.durations import parse_duration
from penstock.errors import Invalid, StaleRead, Unavailable
from penstock.eventstore.sides import COMMIT_TS
from penstock.follow.source import ReadableRange, ScanSource
from penstock.jobs.job import Job, JobId, JobState
from penstock.settings import JobsSettings


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


_FIRST_WAIT_S = 0.05
_LAST_WAIT_S = 1.0


async def _somebody() -> bool:
    return True


class FreshnessReader:
    """Asks the log and the source. May always raise Unavailable, and Invalid when there is no such job."""

    def __init__(
        self,
        read_job: Callable[[JobId], Job],
        source: ScanSource,
        settings: JobsSettings,
        *,
        attended: Callable[[], Awaitable[bool]] = _somebody,
        clock: Clock = SYSTEM,
    ) -> None:
        """`read_job` gives a job's row as it is in the log, and blocks; `attended`: does anybody run jobs."""
        self._read_job = read_job
        self._source = source
        self._settings = settings
        self._attended = attended
        self._clock = clock

    async def freshness(self, job_id: JobId) -> Freshness:
        """How fresh a job's target is now."""
        return (await self._look(job_id))[1]

    async def _look(self, job_id: JobId) -> tuple[Job, Freshness]:
        """The row is read before the table is looked at: what the row has can be read then."""
        job = await asyncio.to_thread(self._read_job, job_id)
        table_id = job.key.table_id
        now_ts = await self._source.now_ts()
        look = (await self._source.read_progress([table_id])).get(table_id)
        return job, freshness_of(
            job, look, now_ts=now_ts, span_s=self._settings.span_s, attended=await self._attended()
        )

    async def wait_for(self, job_id: JobId, ts: int | None = None, *, timeout_s: float = 60) -> Freshness:
        """Wait until a job's target has every change up to `ts`, by default up to now.

        Raises Unavailable with the reason when that takes longer than `timeout_s`, and Invalid at once when
        it will not come to be before somebody resumes or repairs the job.
        """
        wanted_ts = await self._source.now_ts() if ts is None else ts
        deadline = self._clock.monotonic() + timeout_s
        wait_s = _FIRST_WAIT_S
        while not (found := await self.freshness(job_id)).covers(wanted_ts):
            if found.reason is not None and not found.reason.passing:
                raise Invalid(f"job {job_id} does not go on: {found}; {_REMEDIES[found.reason]}")
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                raise Unavailable(f"job {job_id} is not there after {timeout_s:g} s: {found}; wait longer")
            await self._clock.sleep(min(wait_s, left_s))
            wait_s = min(wait_s * 2, _LAST_WAIT_S)
        return found

    async def coverage(self, job_id: JobId) -> Coverage:
        """How much of its source a job's target has, and when the oldest change was made that it lacks.

        Counts rows by what objects say of themselves, so this costs more than `freshness`.
        """
        job, found = await self._look(job_id)
        return await asyncio.to_thread(self._cover, job, found)

    def _cover(self, job: Job, found: Freshness) -> Coverage:
        table_id, to_ts = job.key.table_id, found.readable_ts
        if found.reason is LagReason.NOT_CAPTURED:
            raise Unavailable(f"the table of job {job.id} is not captured; start a capture of it")
        rows = self._source.scan(table_id, 0, to_ts, ReadLimit()).rows
        if found.complete:
            return Coverage(freshness=found, rows=rows, missing=0, oldest_ts=None)
        if not job.watermark:
            return Coverage(freshness=found, rows=rows, missing=rows, oldest_ts=None)
        try:
            missing = self._source.scan(table_id, job.watermark, to_ts, ReadLimit()).rows
            oldest_ts = self._oldest_ts(table_id, job.watermark, to_ts) if missing else None
        except StaleRead:  # it will begin with nothing again
            missing, oldest_ts = rows, None
        return Coverage(freshness=found, rows=rows, missing=missing, oldest_ts=oldest_ts)

    def _oldest_ts(self, table_id: int, from_ts: int, to_ts: int) -> int:
        """When the first change after `from_ts` was committed."""
        scan = self._source.scan(table_id, from_ts, to_ts, ReadLimit(rows=1))
        with self._source.open(scan, ()) as changes:
            sides = (side for batch in changes for side in (batch.data, batch.tombstones))
            times = [pc.min(side.column(COMMIT_TS)).as_py() for side in sides if side.num_rows]
        return min(times, default=scan.to_ts)


_REMEDIES = {
    LagReason.PAUSED: "resume it with `penstock job resume`",
    LagReason.ERROR: "repair it, then let it go on with `penstock job resume` or `penstock job repair`",
    LagReason.DROPPED: "register it again",
}
