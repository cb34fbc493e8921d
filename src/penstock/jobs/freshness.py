"""How fresh the target of a job is: up to when it has every change, what is missing, and why.

A job's watermark in the log does not move while its table has no changes. So freshness follows from the job's
row and from the table's progress: if the table has no change after the watermark, the target has everything
that can be read. `freshness_of` decides that, and is pure. `FreshnessReader` reads both and waits, in any
process, not only the runner's.
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
from penstock.eventloop import call_in_thread
from penstock.eventstore.sides import COMMIT_TS
from penstock.follow.source import ReadableRange, ScanSource
from penstock.jobs.job import Job, JobId, JobState
from penstock.settings import JobsSettings


class LagReason(StrEnum):
    """Why changes are missing in a target."""

    NEVER_SYNCED = "never synced"
    PAUSED = "paused"
    ERROR = "error"
    """Somebody has to repair the job."""
    RETRYING = "retrying"
    """The last iteration failed and is retried."""
    QUEUED = "queued"
    RUNNING = "running"
    CATCHING_UP = "catching up"
    """The target is so far behind that it takes more than one iteration."""
    WAITING = "waiting"
    """The job's trigger has not begun the next iteration yet."""
    NO_RUNNER = "no runner"
    """No process runs jobs."""
    NOT_CAPTURED = "not captured"
    """No capture follows the table, so its progress is unknown."""
    UNCAPTURABLE = "cannot be captured"
    """The capture of the table has given it up until somebody removes the cause."""
    DROPPED = "dropped"

    @property
    def passing(self) -> bool:
        """Whether the reason goes away without anybody doing anything."""
        return self not in {
            LagReason.PAUSED,
            LagReason.ERROR,
            LagReason.UNCAPTURABLE,
            LagReason.DROPPED,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """What a target has at one moment.

    It has every change up to `watermark`. The table can be read up to `readable_ts`. `now_ts` is the
    database's time.
    """

    watermark: int
    readable_ts: int
    now_ts: int
    reason: LagReason | None
    """Why changes are missing; None: the target has everything that can be read."""
    message: str = ""
    """The message of the job's error, or why the table cannot be captured."""

    @property
    def complete(self) -> bool:
        """Whether the target has everything that can be read."""
        return self.reason is None

    @property
    def lag_s(self) -> float:
        """The greatest possible age of a change that is missing."""
        return max(0, physical_ms(self.now_ts) - physical_ms(self.watermark)) / 1000

    def covers(self, ts: int) -> bool:
        """Return whether the target has every change up to a timestamp."""
        return self.watermark >= ts

    def __str__(self) -> str:
        if self.reason is None:
            return f"complete, {self.lag_s:.1f} s behind the database"
        lag = f"changes of the last {self.lag_s:.1f} s are missing" if self.watermark else "has nothing yet"
        return f"{lag}: {self.reason}{f' ({self.message})' if self.message else ''}"


def freshness_of(
    job: Job, progress: ReadableRange | None, *, now_ts: int, span_s: float, attended: bool = True
) -> Freshness:
    """Decide by a job's row and by the progress of its table; None: no capture follows the table.

    `span_s` is the time that one iteration covers unless the job's spec says otherwise. `attended` says
    whether some process runs jobs.
    """
    watermark = job.watermark
    readable_ts = watermark if progress is None else max(watermark, progress.readable_ts)
    known = watermark > 0 and progress is not None and watermark >= progress.oldest_ts
    has_all = progress is not None and known and progress.changed_ts <= watermark and job.live
    refusal = None if progress is None else progress.refusal
    if has_all and refusal is None:
        return Freshness(watermark=readable_ts, readable_ts=readable_ts, now_ts=now_ts, reason=None)
    reason = _reason(job, progress, span_s, attended=attended)
    if refusal is not None and (has_all or reason.passing):
        # Whatever else is missing, nothing after it can come.
        return Freshness(
            watermark=readable_ts if has_all else watermark,
            readable_ts=readable_ts,
            now_ts=now_ts,
            reason=LagReason.UNCAPTURABLE,
            message=refusal.reason,
        )
    return Freshness(
        watermark=watermark,
        readable_ts=readable_ts,
        now_ts=now_ts,
        reason=reason,
        message=job.status.error_msg if reason in {LagReason.ERROR, LagReason.RETRYING} else "",
    )


def _reason(job: Job, progress: ReadableRange | None, span_s: float, *, attended: bool) -> LagReason:
    """Return the first reason that holds: what somebody has to fix comes before what passes by itself."""
    span = job.spec.detail.span
    span_ms = 1000 * (span_s if span is None else parse_duration(span))
    far = progress is not None and physical_ms(progress.readable_ts) - physical_ms(job.watermark) > span_ms
    reasons = (
        (LagReason.DROPPED, not job.live),
        (LagReason.ERROR, job.state is JobState.ERROR),
        (LagReason.PAUSED, job.spec.paused),
        (LagReason.NO_RUNNER, not attended),
        (LagReason.NOT_CAPTURED, progress is None),
        (LagReason.RETRYING, job.status.failures > 0),
        (LagReason.CATCHING_UP, job.watermark > 0 and far),
        (LagReason.QUEUED, job.state is JobState.PENDING),
        (LagReason.RUNNING, job.state is JobState.RUNNING),
        (LagReason.NEVER_SYNCED, not job.watermark),
    )
    return next((reason for reason, holds in reasons if holds), LagReason.WAITING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How much of its source a target has."""

    freshness: Freshness
    rows: int
    """An estimate of the rows of the source."""
    missing: int
    """An estimate of the changes of the source that are missing in the target."""
    oldest_ts: int | None
    """When the oldest missing change was committed; None: none is missing, or all are."""

    @property
    def share(self) -> float:
        """The share of rows that are the same in the target and in the source: 1 for all, 0 for none."""
        if not self.freshness.watermark:
            return 0.0
        return 1 - self.missing / max(self.missing, self.rows, 1)


_FIRST_WAIT_S = 0.05
_LAST_WAIT_S = 1.0


async def _assume_attended() -> bool:
    return True


class FreshnessReader:
    """Reads the log and the source. Every method may raise Unavailable, and Invalid for an unknown job."""

    def __init__(
        self,
        read_job: Callable[[JobId], Job],
        source: ScanSource,
        settings: JobsSettings,
        *,
        attended: Callable[[], Awaitable[bool]] = _assume_attended,
        clock: Clock = SYSTEM,
    ) -> None:
        """Read with `read_job`, which returns a job's row in the log and blocks.

        `attended` says whether any process runs jobs.
        """
        self._read_job = read_job
        self._source = source
        self._settings = settings
        self._attended = attended
        self._clock = clock

    async def freshness(self, job_id: JobId) -> Freshness:
        """Return how fresh a job's target is now."""
        return (await self._read(job_id))[1]

    async def _read(self, job_id: JobId) -> tuple[Job, Freshness]:
        """Read the row before the table's progress: then `readable_ts` is not behind the watermark."""
        job = await asyncio.to_thread(self._read_job, job_id)
        table_id = job.key.table_id
        now_ts = await self._source.now_ts()
        progress = (await self._source.read_progress([table_id])).get(table_id)
        return job, freshness_of(
            job, progress, now_ts=now_ts, span_s=self._settings.span_s, attended=await self._attended()
        )

    async def wait_for(self, job_id: JobId, ts: int | None = None, *, timeout_s: float = 60) -> Freshness:
        """Wait until a job's target has every change up to `ts`, by default up to now.

        Raises Unavailable with the reason when that takes longer than `timeout_s`. Raises Invalid at once
        when somebody has to resume or repair the job first.
        """
        target_ts = await self._source.now_ts() if ts is None else ts
        deadline = self._clock.monotonic() + timeout_s
        wait_s = _FIRST_WAIT_S
        while not (found := await self.freshness(job_id)).covers(target_ts):
            if found.reason is not None and not found.reason.passing:
                raise Invalid(f"job {job_id} makes no progress: {found}; {_REMEDIES[found.reason]}")
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                raise Unavailable(
                    f"job {job_id} is not fresh enough after {timeout_s:g} s: {found}; wait longer"
                )
            await self._clock.sleep(min(wait_s, left_s))
            wait_s = min(wait_s * 2, _LAST_WAIT_S)
        return found

    async def coverage(self, job_id: JobId) -> Coverage:
        """Return how much of its source a job's target has, and when the oldest missing change was made.

        Counts rows by the metadata of objects, so this costs more than `freshness`.
        """
        job, found = await self._read(job_id)
        # Storage may be slow: the threads of `to_thread` are a few for everybody.
        return await call_in_thread(self._cover, job, found)

    def _cover(self, job: Job, found: Freshness) -> Coverage:
        table_id, to_ts = job.key.table_id, found.readable_ts
        if found.reason is LagReason.NOT_CAPTURED:
            raise Unavailable(f"the table of job {job.id} is not captured; start a capture of it")
        if found.reason is LagReason.UNCAPTURABLE and not to_ts:
            raise Unavailable(f"the table of job {job.id} cannot be captured: {found.message}")
        rows = self._source.scan(table_id, 0, to_ts, ReadLimit()).rows
        if found.complete:
            return Coverage(freshness=found, rows=rows, missing=0, oldest_ts=None)
        if not job.watermark:
            return Coverage(freshness=found, rows=rows, missing=rows, oldest_ts=None)
        try:
            missing = self._source.scan(table_id, job.watermark, to_ts, ReadLimit()).rows
            oldest_ts = self._oldest_ts(table_id, job.watermark, to_ts) if missing else None
        except StaleRead:  # its next iteration reads all rows again
            missing, oldest_ts = rows, None
        return Coverage(freshness=found, rows=rows, missing=missing, oldest_ts=oldest_ts)

    def _oldest_ts(self, table_id: int, from_ts: int, to_ts: int) -> int:
        """Return when the first change after `from_ts` was committed."""
        scan = self._source.scan(table_id, from_ts, to_ts, ReadLimit(rows=1))
        with self._source.open(scan, ()) as changes:
            sides = (side for batch in changes for side in (batch.data, batch.tombstones))
            times = [pc.min(side.column(COMMIT_TS)).as_py() for side in sides if side.num_rows]
        return min(times, default=scan.to_ts)


_REMEDIES = {
    LagReason.PAUSED: "resume it with `penstock job resume`",
    LagReason.ERROR: "fix the cause, then run `penstock job resume` or `penstock job repair`",
    LagReason.UNCAPTURABLE: "fix the cause in the message",
    LagReason.DROPPED: "register it again",
}
