"""Tells how fresh jobs are, and waits until they are fresh enough: in any process, not only the runner's."""

import asyncio
from collections.abc import Awaitable, Callable

import pyarrow.compute as pc

from penstock.changes.limits import ReadLimit
from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid, StaleRead, Unavailable
from penstock.eventstore.sides import COMMIT_TS
from penstock.follow.source_2 import ScanSource
from penstock.jobs.freshness import Coverage, Freshness, LagReason, freshness_of
from penstock.jobs.job import Job
from penstock.jobs.jobid import JobId
from penstock.settings import JobsSettings

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
        look = (await self._source.look([table_id])).get(table_id)
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
