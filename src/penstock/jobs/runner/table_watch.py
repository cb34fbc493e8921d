"""Checks the tables of jobs that are due, and submits their iterations to the scheduler."""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from penstock.clock import SYSTEM, Clock
from penstock.errors import PenstockError
from penstock.follow.source import ReadableRange, ScanSource
from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.job import ErrorCode, Job, JobState
from penstock.jobs.log.transitions import Transition, fail_iteration
from penstock.jobs.runner.board import JobBoard
from penstock.jobs.runner.board_log import BoardLog
from penstock.jobs.runner.custom_triggers import (
    Fault,
    TriggerContext,
    TriggerRequest,
    TriggerRunner,
    clear_trigger_error,
)
from penstock.jobs.runner.seams import RunnerLease, RunnerScheduler
from penstock.jobs.runner.tracked_job import PlannedIteration, TrackedJob
from penstock.metrics import (
    JOBS_LOOK_FAILURES_TOTAL,
    JOBS_RAISED_WATERMARKS_TOTAL,
    JOBS_REFUSED_ITERATIONS_TOTAL,
    JOBS_SUBMITTED_TOTAL,
    JOBS_TRIGGER_FAULTS_TOTAL,
)
from penstock.tables.accounts import SYSTEM_ACCOUNT

_log = logging.getLogger(__name__)


class TableWatch:
    """Begins iterations. Each ends at a timestamp that was read from the source, and begins under the lease.

    Tables that could not be checked, or whose iterations found no room, are `missed`.
    """

    def __init__(
        self,
        board: JobBoard,
        log: BoardLog,
        source: ScanSource,
        scheduler: RunnerScheduler,
        lease: RunnerLease,
        *,
        jobs_max: int,
        allowed_code: tuple[str, ...] = (),
        clock: Clock = SYSTEM,
    ) -> None:
        """Begin iterations of at most `jobs_max` jobs."""
        self.now_ts: int | None = None
        """The database's time when tables were last checked; None: it could not be read."""
        self.missed: set[int] = set()
        self._board = board
        self._log = log
        self._source = source
        self._scheduler = scheduler
        self._lease = lease
        self._jobs_max = jobs_max
        self._clock = clock
        self._triggers = TriggerRunner(allowed_code, clock=clock)
        self._last_error = ""
        self._refused: dict[int, str] = {}  # tables that cannot be captured, and why, as it was logged

    def close(self) -> None:
        """Call no more triggers."""
        self._triggers.close()

    async def check_tables(self, tables: Mapping[int, bool]) -> bool:
        """Begin what is due for these tables; where the value is True, only for jobs checked more often.

        Return whether the first iteration of a job began: more of the history is needed after it.
        """
        try:
            await self._stop_orphans(tables)
            progress = await self._read_progress(tables)
            await self._ask(progress)
        except PenstockError as error:
            JOBS_LOOK_FAILURES_TOTAL.inc()
            self.missed.update(tables)
            if self._last_error != str(error):  # tried again and again: log each error once
                self._last_error = str(error)
                _log.warning(
                    "the progress of tables cannot be read; their jobs wait",
                    extra={"error": self._last_error},
                )
            return False
        self._last_error = ""
        if self._lease.lapsed:
            self.missed.update(tables)
            return False
        return self._begin(self._plan(tables, progress))

    async def _stop_orphans(self, tables: Collection[int]) -> None:
        """Stop the jobs whose tables do not exist any more, or belong to another account now."""
        changes: list[tuple[Job, Transition]] = []
        at = self._clock.wall_ms()
        for table_id in tables:
            followers = tuple(self._board.tables.get(table_id, ()))
            accounts = {tracked.job.account for tracked in followers} or {SYSTEM_ACCOUNT.name}
            gone = {account: self._source.why_gone(table_id, account) for account in accounts}
            changes += [
                (tracked.job, fail_iteration(ErrorCode.TABLE_GONE, reason, at=at))
                for tracked in followers
                if not tracked.busy and tracked.job.state is not JobState.ERROR
                if (reason := gone[tracked.job.account]) is not None
            ]
        for job, _ in changes:
            _log.warning("a job stops: its table is gone", extra={"job": str(job.id)})
        if changes:
            await self._log.write(changes)

    async def _read_progress(self, tables: Collection[int]) -> dict[int, ReadableRange]:
        """Read the progress of tables whose jobs may begin an iteration, and the database's time."""
        known = self._board.tables
        asked = [table_id for table_id in tables if table_id in known and known[table_id].idle]
        self.now_ts = await self._read_time()
        progress = await self._source.read_progress(asked) if asked else {}
        self._note_refusals(asked, progress)
        readable = {table_id: found for table_id, found in progress.items() if found.readable_ts}
        self.missed.update(table_id for table_id in asked if table_id not in readable)
        return readable

    def _note_refusals(self, asked: Collection[int], progress: Mapping[int, ReadableRange]) -> None:
        """Log once that a table cannot be captured any more: its jobs wait until somebody has helped."""
        for table_id in asked:
            refusal = progress[table_id].refusal if table_id in progress else None
            if refusal is None:
                self._refused.pop(table_id, None)
            elif self._refused.get(table_id) != refusal.reason:
                self._refused[table_id] = refusal.reason
                jobs = [str(tracked.job.id) for tracked in self._board.tables.get(table_id, ())]
                _log.warning(
                    "the table of jobs cannot be captured; they wait",
                    extra={"table_id": table_id, "jobs": jobs, "reason": refusal.reason},
                )

    async def _read_time(self) -> int | None:
        try:
            return await self._source.now_ts()
        except PenstockError as error:
            _log.warning(
                "the database's time cannot be read; periodic jobs wait", extra={"error": str(error)}
            )
            return None

    # Custom triggers.

    async def _ask(self, progress: Mapping[int, ReadableRange]) -> None:
        """Ask custom triggers, and write their faults into the log."""
        asked = {
            tracked.job.key: tracked
            for table_id in progress
            for tracked in self._board.tables.get(table_id, ())
            if tracked.rule.custom and tracked.watermark and tracked.idle
        }
        if not asked or self.now_ts is None:
            return
        answers = await self._triggers.ask(
            {
                key: _trigger_request(tracked, progress[key.table_id], self.now_ts)
                for key, tracked in asked.items()
            }
        )
        faults = [(asked[key], answer) for key, answer in answers.items() if isinstance(answer, Fault)]
        for key, answer in answers.items():
            asked[key].triggered = answer is True
        await self._write_faults(
            faults, (asked[key] for key, answer in answers.items() if isinstance(answer, bool))
        )

    async def _write_faults(
        self, faults: Collection[tuple[TrackedJob, Fault]], answered: Iterable[TrackedJob]
    ) -> None:
        at, now = self._clock.wall_ms(), self._clock.monotonic()
        changes: list[tuple[Job, Transition]] = []
        for tracked, fault in faults:
            JOBS_TRIGGER_FAULTS_TOTAL.inc()
            changes.append((tracked.job, fail_iteration(fault.code, fault.message, at=at)))
            self._board.delay_retry(tracked.job.key, now=now)
        changes += [
            (tracked.job, clear_trigger_error)
            for tracked in answered
            if tracked.job.status.error_code == ErrorCode.TRIGGER
        ]
        if changes:
            await self._log.write(changes)

    # Iterations.

    def _plan(
        self, tables: Mapping[int, bool], progress: Mapping[int, ReadableRange]
    ) -> list[PlannedIteration]:
        """Return the iterations to begin, those with the greatest priority first."""
        now = self._clock.monotonic()
        planned = []
        for table_id, readable in progress.items():
            table = self._board.tables.get(table_id)
            if table is not None:
                plan = table.plan(readable, now_ts=self.now_ts, now=now, fast=tables[table_id])
                JOBS_RAISED_WATERMARKS_TOTAL.inc(plan.raised)
                planned += [part for whole in plan.iterations for part in whole.divide(self._jobs_max)]
        planned.sort(key=lambda item: -max(job.job.spec.priority for job in item.candidate.jobs))
        return planned

    def _begin(self, planned: Iterable[PlannedIteration]) -> bool:
        """Submit as many as there is room for, in order; return whether a first iteration was among them."""
        room, first = True, False
        for item in planned:
            jobs = tuple(self._with_epoch(tracked.job) for tracked in item.candidate.jobs)
            iteration = Iteration(
                id=self._clock.unique_id(),
                table_id=jobs[0].key.table_id,
                from_ts=item.candidate.from_ts,
                to_ts=item.to_ts,
                jobs=jobs,
            )
            room = room and self._scheduler.submit(iteration)
            if not room:
                JOBS_REFUSED_ITERATIONS_TOTAL.inc()
                self.missed.add(iteration.table_id)
                continue
            self._board.begin(item, iteration)
            first = first or iteration.first
            JOBS_SUBMITTED_TOTAL.labels(item.candidate.reason.value).inc()
        return first

    def _with_epoch(self, job: Job) -> Job:
        """Return the job as it is begun: with the epoch of this lease, also if it was registered under it."""
        return replace(job, status=replace(job.status, runner=self._lease.epoch))


def _trigger_request(tracked: TrackedJob, progress: ReadableRange, now_ts: int) -> TriggerRequest:
    job, from_ts = tracked.job, tracked.watermark
    group = tracked.rule.group
    return TriggerRequest(
        group.job_type,
        TriggerContext(
            job=job.id,
            account=job.account,
            watermark=from_ts,
            readable_ts=progress.readable_ts,
            now_ts=now_ts,
            changed=None if from_ts < progress.oldest_ts else progress.changed_ts > from_ts,
            interval_s=group.interval_ms / 1000 if group.interval_ms else None,
            end_at=job.status.end_at,
        ),
    )
