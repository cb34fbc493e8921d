"""Looks at tables for the jobs that are due, and hands their iterations to the scheduler."""

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
from penstock.jobs.runner.tracked_job import TrackedJob, PlannedIteration
from penstock.metrics import (
    JOBS_LOOK_FAILURES_TOTAL,
    JOBS_RAISED_WATERMARKS_TOTAL,
    JOBS_REFUSED_ITERATIONS_TOTAL,
    JOBS_SUBMITTED_TOTAL,
    JOBS_TRIGGER_FAULTS_TOTAL,
)

_log = logging.getLogger(__name__)


class TableWatch:
    """Begins iterations. None begins with an end that was not read from the source, or without the lease.

    Tables that could not be looked at, or whose iterations found no room, are `missed`.
    """

    def __init__(
        self,
        board: JobBoard,
        log: BoardLog,
        source: ScanSource,
        scheduler: RunnerScheduler,
        lease: RunnerLease,
        *,
        clock: Clock = SYSTEM,
    ) -> None:
        self.now_ts: int | None = None
        """The database's time when tables were last looked at; None: it was not to be had."""
        self.missed: set[int] = set()
        self._board = board
        self._log = log
        self._source = source
        self._scheduler = scheduler
        self._lease = lease
        self._clock = clock
        self._desk = TriggerRunner(clock=clock)
        self._told = ""

    def close(self) -> None:
        """Ask no trigger any more."""
        self._desk.close()

    async def look_at(self, tables: Mapping[int, bool]) -> bool:
        """Begin what is due of these tables; where the value is true, only of jobs that cannot wait.

        Return whether the first iteration of a job began: after it, more of the history is needed.
        """
        try:
            await self._bury(tables)
            looks = await self._looks(tables)
            await self._ask(looks)
        except PenstockError as error:
            JOBS_LOOK_FAILURES_TOTAL.inc()
            self.missed.update(tables)
            if self._told != str(error):  # it is tried again and again
                self._told = str(error)
                _log.warning("tables cannot be looked at; their jobs wait", extra={"error": self._told})
            return False
        self._told = ""
        if self._lease.lapsed:
            self.missed.update(tables)
            return False
        return self._begin(self._wanted(tables, looks))

    async def _bury(self, tables: Collection[int]) -> None:
        """Stop the jobs of tables that are not there any more."""
        changes: list[tuple[Job, Transition]] = []
        at = self._clock.wall_ms()
        for table_id in tables:
            fate = self._source.why_gone(table_id)
            if fate is not None:
                stop = fail_iteration(ErrorCode.TABLE_GONE, fate, at=at)
                changes += [
                    (each.job, stop)
                    for each in self._board.tables.get(table_id, ())
                    if not each.busy and each.job.state is not JobState.ERROR
                ]
        for job, _ in changes:
            _log.warning("a job stops: its table is gone", extra={"job": str(job.id)})
        if changes:
            await self._log.write(changes)

    async def _looks(self, tables: Collection[int]) -> dict[int, ReadableRange]:
        """How far tables have come whose jobs may begin something, and what time the database has."""
        there = self._board.tables
        asked = [each for each in tables if each in there and there[each].idle]
        self.now_ts = await self._time()
        looks = await self._source.read_progress(asked) if asked else {}
        self.missed.update(each for each in asked if each not in looks)
        return looks

    async def _time(self) -> int | None:
        try:
            return await self._source.now_ts()
        except PenstockError as error:
            _log.warning(
                "the database does not tell the time; periodic jobs wait", extra={"error": str(error)}
            )
            return None

    # Custom triggers.

    async def _ask(self, looks: Mapping[int, ReadableRange]) -> None:
        """Ask custom triggers, and write down which of them failed."""
        asked = {
            each.job.key: each
            for table_id in looks
            for each in self._board.tables.get(table_id, ())
            if each.rule.custom and each.watermark and each.idle
        }
        if not asked or self.now_ts is None:
            return
        answers = await self._desk.ask(
            {key: _question(each, looks[key.table_id], self.now_ts) for key, each in asked.items()}
        )
        faults = [(asked[key], said) for key, said in answers.items() if isinstance(said, Fault)]
        for key, said in answers.items():
            asked[key].wanted = said is True
        await self._note(faults, (asked[key] for key, said in answers.items() if isinstance(said, bool)))

    async def _note(
        self, faults: Collection[tuple[TrackedJob, Fault]], answered: Iterable[TrackedJob]
    ) -> None:
        at, now = self._clock.wall_ms(), self._clock.monotonic()
        changes: list[tuple[Job, Transition]] = []
        for each, fault in faults:
            JOBS_TRIGGER_FAULTS_TOTAL.inc()
            changes.append((each.job, fail_iteration(fault.code, fault.message, at=at)))
            self._board.rest(each.job.key, now=now)
        changes += [
            (each.job, clear_trigger_error) for each in answered if each.job.status.error_code == ErrorCode.TRIGGER
        ]
        if changes:
            await self._log.write(changes)

    # Iterations.

    def _wanted(self, tables: Mapping[int, bool], looks: Mapping[int, ReadableRange]) -> list[PlannedIteration]:
        now = self._clock.monotonic()
        found = []
        for table_id, look in looks.items():
            table = self._board.tables.get(table_id)
            if table is not None:
                plan = table.plan(look, now_ts=self.now_ts, now=now, fast=tables[table_id])
                JOBS_RAISED_WATERMARKS_TOTAL.inc(plan.raised)
                found += plan.wanted
        found.sort(key=lambda each: -max(job.job.spec.priority for job in each.candidate.jobs))
        return found

    def _begin(self, wanted: Iterable[PlannedIteration]) -> bool:
        """Submit as many as there is room for, the most urgent first; whether a first one was among them."""
        room, first = True, False
        for each in wanted:
            jobs = tuple(self._ours(standing.job) for standing in each.candidate.jobs)
            iteration = Iteration(
                id=self._clock.unique_id(),
                table_id=jobs[0].key.table_id,
                from_ts=each.candidate.from_ts,
                to_ts=each.to_ts,
                jobs=jobs,
            )
            room = room and self._scheduler.submit(iteration)
            if not room:
                JOBS_REFUSED_ITERATIONS_TOTAL.inc()
                self.missed.add(iteration.table_id)
                continue
            self._board.begin(each, iteration)
            first = first or iteration.first
            JOBS_SUBMITTED_TOTAL.labels(each.candidate.why.value).inc()
        return first

    def _ours(self, job: Job) -> Job:
        """The job as it is begun: under this lease, also one that was registered under it."""
        return replace(job, status=replace(job.status, runner=self._lease.epoch))


def _question(standing: TrackedJob, look: ReadableRange, now_ts: int) -> TriggerRequest:
    job, from_ts = standing.job, standing.watermark
    group = standing.rule.group
    return TriggerRequest(
        group.job_type,
        TriggerContext(
            job=job.id,
            account=job.account,
            watermark=from_ts,
            readable_ts=look.readable_ts,
            now_ts=now_ts,
            changed=None if from_ts < look.oldest_ts else look.changed_ts > from_ts,
            interval_s=group.interval_ms / 1000 if group.interval_ms else None,
            end_at=job.status.end_at,
        ),
    )
