"""All jobs in the memory of the runner: their rows, and which iterations they are in. Pure.

The log is the truth; the board follows it. A row is ordered by its `lsn`: a row that is older than the known
one is an echo. Only three things are the board's own: watermarks raised because nothing changed, iterations
under way, and when a failed job is retried.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.job import ErrorCode, Job, JobKey, JobState
from penstock.jobs.log.transitions import BUSY
from penstock.jobs.runner.tracked_job import PlannedIteration, StartReason, TableJobs, TrackedJob


class JobBoard:
    """Every job, by its key and by its table.

    Invariants: a job is in one iteration at most; its watermark here is never below that in the log, and
    falls only when that in the log has fallen (a re-sync).
    """

    def __init__(self, *, interval_s: float, retry_delay_s: Callable[[int], float]) -> None:
        """Track jobs whose tables are checked every `interval_s`; so long jobs wait for one that is behind.

        `retry_delay_s` returns how long a job waits after so many failures in a row.
        """
        self.released: frozenset[JobKey] = frozenset()
        """Jobs for which no history is held: their accounts hold back more than they may."""
        self._interval_s = interval_s
        self._retry_delay_s = retry_delay_s
        self._jobs: dict[JobKey, TrackedJob] = {}
        self._tables: dict[int, TableJobs] = {}
        self._retries: list[tuple[float, JobKey]] = []
        self._turns = 0
        self._urgent: set[int] = set()
        self._uncertain: set[JobKey] = set()
        self._orphaned: set[JobKey] = set()
        self._canceled: set[JobKey] = set()
        self._leaving: dict[JobKey, Iteration] = {}  # of removed rows, which may come back before it ends

    def __iter__(self) -> Iterator[TrackedJob]:
        """Iterate over the live jobs."""
        for table in self._tables.values():
            yield from table

    @property
    def tables(self) -> Mapping[int, TableJobs]:
        """The tables that have live jobs."""
        return self._tables

    def get(self, key: JobKey) -> TrackedJob | None:
        """Return a job whose row is in the log, also when it is dropped."""
        return self._jobs.get(key)

    # Rows of the log.

    def apply(self, rows: Iterable[Job]) -> None:
        """Follow committed rows: new jobs, new specs, drops, and echoes of our own writes."""
        for row in rows:
            known = self._jobs.get(row.key)
            if known is not None and known.job.create_at != row.create_at:
                self.remove([row.key])  # the log was created again, and this is another job of the same key
                known = None
            if known is None:
                self._add(row)
            elif row.status.lsn >= known.job.status.lsn:
                self._update(known, row)

    def replace(self, rows: Sequence[Job]) -> None:
        """Follow the whole log: any job that is not among the rows is gone."""
        self.remove(self._jobs.keys() - {row.key for row in rows})
        self.apply(rows)

    def remove(self, keys: Iterable[JobKey]) -> None:
        """Remove jobs whose rows were removed from the log."""
        for key in keys:
            tracked = self._jobs.pop(key, None)
            if tracked is not None:
                if tracked.iteration is not None:
                    self._canceled.add(key)
                    self._leaving[key] = tracked.iteration
                self._remove_from_table(tracked)

    def _add(self, row: Job) -> None:
        tracked = TrackedJob(row, row.watermark, self._leaving.get(row.key))
        self._jobs[row.key] = tracked
        if row.live:
            self._add_to_table(tracked)
            self._check_owner(tracked)
            self._urgent.add(row.key.table_id)

    def _update(self, tracked: TrackedJob, row: Job) -> None:
        known = tracked.job
        tracked.follow(row)
        is_newer = row.status.lsn > known.status.lsn  # else at most its spec is new, or the row is an echo
        lowered = is_newer and row.watermark < known.watermark
        tracked.watermark = row.watermark if lowered else max(tracked.watermark, row.watermark)
        canceled = lowered or (is_newer and row.state is JobState.CANCELED) or not row.live
        if canceled and tracked.iteration is not None:
            self._canceled.add(row.key)
        if not row.live:
            self._remove_from_table(tracked)
            return
        spec_changed = row.spec != known.spec
        if spec_changed:
            self._add_to_table(tracked)
        if spec_changed or lowered or known.state is JobState.ERROR:
            tracked.retry_at = None
            self._urgent.add(row.key.table_id)
        self._check_owner(tracked)

    def _update_if_newer(self, tracked: TrackedJob, row: Job) -> None:
        """Follow a row that did not come from the log's feed, which may have brought a newer spec since."""
        if row.status.lsn > tracked.job.status.lsn:
            self._update(tracked, row)

    def _check_owner(self, tracked: TrackedJob) -> None:
        """Note a row that says that a runner has an iteration when this one has none: that runner is gone."""
        if tracked.job.state in BUSY and not tracked.busy:
            self._orphaned.add(tracked.job.key)

    def _add_to_table(self, tracked: TrackedJob) -> None:
        table_id = tracked.job.key.table_id
        if table_id not in self._tables:
            self._tables[table_id] = TableJobs(table_id, interval_s=self._interval_s)
        self._tables[table_id].put(tracked)

    def _remove_from_table(self, tracked: TrackedJob) -> None:
        key = tracked.job.key
        self._orphaned.discard(key)
        self._uncertain.discard(key)
        table = self._tables.get(key.table_id)
        if table is None:
            return
        table.remove(key)
        if not table:
            del self._tables[key.table_id]
            self._urgent.discard(key.table_id)

    # Uncertain rows.

    def mark_uncertain(self, keys: Iterable[JobKey]) -> None:
        """Begin nothing for these jobs until `settle`: their rows are being written, or are unknown."""
        for key in keys:
            tracked = self._jobs.get(key)
            if tracked is not None:
                tracked.row_uncertain = True

    def settle(self, keys: Iterable[JobKey], rows: Iterable[Job]) -> None:
        """Follow rows as they are in the log now; keys without a row stay uncertain."""
        found = {row.key: row for row in rows}
        for key in keys:
            tracked = self._jobs.get(key)
            if tracked is None:
                continue
            if key not in found:
                self._uncertain.add(key)
                continue
            self._uncertain.discard(key)
            tracked.row_uncertain = False
            self._urgent.add(key.table_id)
            self._update_if_newer(tracked, found[key])
            self._check_owner(tracked)

    def take_uncertain(self) -> list[JobKey]:
        """Return the keys of rows that have to be read again."""
        taken, self._uncertain = self._uncertain, set()
        return [key for key in taken if key in self._jobs]

    def take_orphaned(self) -> list[Job]:
        """Return the rows that have to be adopted, because the runner that had them is gone."""
        taken, self._orphaned = self._orphaned, set()
        found = [self._jobs[key] for key in taken if key in self._jobs]
        return [tracked.job for tracked in found if tracked.job.state in BUSY and not tracked.busy]

    def take_canceled(self) -> list[JobKey]:
        """Return the jobs whose iteration has to end."""
        taken, self._canceled = self._canceled, set()
        return list(taken)

    # Iterations.

    def begin(self, planned: PlannedIteration, iteration: Iteration) -> None:
        """Record that the scheduler has accepted an iteration of these jobs."""
        self._turns += 1
        for tracked in planned.candidate.jobs:
            assert tracked.iteration is None, "a job is in one iteration at a time"
            tracked.iteration = iteration
            tracked.turn = self._turns
            tracked.catching_up = planned.candidate.reason in {StartReason.FIRST, StartReason.LAGGING}

    def end(self, iteration_id: str, key: JobKey, row: Job | None, *, now: float) -> None:
        """Record that an iteration has ended for one of its jobs with this row; None: the row is unknown.

        A job that has more to read, or for which others wait, is checked again at once; a failed one is
        retried later.
        """
        tracked = self._jobs.get(key)
        self._leaving.pop(key, None)
        if tracked is None or tracked.iteration is None or tracked.iteration.id != iteration_id:
            return
        iteration, tracked.iteration = tracked.iteration, None
        self._canceled.discard(key)
        if row is None:
            tracked.unknown_outcomes += 1
            self._delay_retry(tracked, tracked.unknown_outcomes, now)
            self.mark_uncertain([key])
            self._uncertain.add(key)
            return
        # Canceled although nobody changed the row: the target fenced this iteration.
        fenced = row.state is JobState.CANCELED and row.status.to_ts > 0
        tracked.unknown_outcomes = tracked.unknown_outcomes + 1 if fenced else 0
        self._update_if_newer(tracked, row)
        if tracked.job.live:
            self._check_owner(tracked)
            self._continue(tracked, iteration, now)

    def _continue(self, tracked: TrackedJob, iteration: Iteration, now: float) -> None:
        job = tracked.job
        if tracked.unknown_outcomes:
            self._delay_retry(tracked, tracked.unknown_outcomes, now)
        elif job.status.failures and job.status.error_code != ErrorCode.CUT_OFF:
            self._delay_retry(tracked, job.status.failures, now)
        elif tracked.catching_up or job.watermark < iteration.to_ts or job.state is JobState.CANCELED:
            self._urgent.add(job.key.table_id)

    def delay_retry(self, key: JobKey, *, now: float) -> None:
        """Delay a job that failed before an iteration of it began."""
        tracked = self._jobs.get(key)
        if tracked is not None:
            self._delay_retry(tracked, max(1, tracked.job.status.failures), now)

    def _delay_retry(self, tracked: TrackedJob, failures: int, now: float) -> None:
        tracked.retry_at = now + self._retry_delay_s(failures)
        heapq.heappush(self._retries, (tracked.retry_at, tracked.job.key))

    def release_retries(self, now: float) -> None:
        """Let failed jobs begin again whose delay is over."""
        while self._retries and self._retries[0][0] <= now:
            retry_at, key = heapq.heappop(self._retries)
            tracked = self._jobs.get(key)
            if tracked is not None and tracked.retry_at == retry_at:
                tracked.retry_at = None
                self._urgent.add(key.table_id)

    @property
    def next_retry_at(self) -> float | None:
        """When the next delay is over."""
        return self._retries[0][0] if self._retries else None

    @property
    def has_urgent(self) -> bool:
        """Whether some tables are urgent, or iterations have to end."""
        return bool(self._urgent or self._canceled)

    @property
    def has_uncertain(self) -> bool:
        """Whether rows have to be adopted or read again."""
        return bool(self._uncertain or self._orphaned)

    def take_urgent(self) -> set[int]:
        """Return the tables to check before their time, because something changed for their jobs."""
        taken, self._urgent = self._urgent, set()
        return taken

    # Upkeep.

    def list_unflushed(self) -> list[tuple[Job, int]]:
        """Return idle jobs whose watermark was raised in memory only, with that watermark."""
        return [
            (tracked.job, tracked.watermark)
            for tracked in self
            if tracked.watermark > tracked.job.watermark and not tracked.busy
        ]

    def list_needed_ts(self) -> dict[int, int]:
        """Return for each table the timestamp after which its history is still needed."""
        found = ((table_id, table.needed_ts(self.released)) for table_id, table in self._tables.items())
        return {table_id: needed_ts for table_id, needed_ts in found if needed_ts is not None}
