"""All jobs in the memory of the runner: what they have come to, and who is busy with what. Pure.

The log is the truth; the board follows it. A row is known by its `lsn`: one that is older than what is known
is an echo. Only three things are the board's own: watermarks raised because nothing changed, iterations under
way, and how long a failed job rests.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.job import ErrorCode, Job, JobKey, JobState
from penstock.jobs.log.transitions import BUSY
from penstock.jobs.runner.tracked_job import TableJobs, TrackedJob, Wanted, Why


class JobBoard:
    """Every job, by its key and by its table.

    Invariants: a job is in one iteration at most; its watermark here is never below that in the log, and
    falls only when that in the log has fallen (a re-sync).
    """

    def __init__(self, *, interval_s: float, rest_s: Callable[[int], float]) -> None:
        """Tables are looked at every `interval_s`: so long others wait for a job that is behind.

        `rest_s` says how long a job rests after so many failures in a row.
        """
        self._interval_s = interval_s
        self._rest_s = rest_s
        self._standings: dict[JobKey, TrackedJob] = {}
        self._tables: dict[int, TableJobs] = {}
        self._rests: list[tuple[float, JobKey]] = []
        self._turns = 0
        self._urgent: set[int] = set()
        self._doubted: set[JobKey] = set()
        self._orphaned: set[JobKey] = set()
        self._canceled: set[JobKey] = set()
        self._leaving: dict[JobKey, Iteration] = {}  # of rows that are gone; one may come again meanwhile

    def __iter__(self) -> Iterator[TrackedJob]:
        """The jobs that are live."""
        for table in self._tables.values():
            yield from table

    @property
    def tables(self) -> Mapping[int, TableJobs]:
        """The tables that have live jobs."""
        return self._tables

    def get(self, key: JobKey) -> TrackedJob | None:
        """A job whose row is in the log, also when it is dropped."""
        return self._standings.get(key)

    # What the log says.

    def apply(self, rows: Iterable[Job]) -> None:
        """Follow rows that were committed: new jobs, new specs, drops, and echoes of our own writes."""
        for row in rows:
            known = self._standings.get(row.key)
            if known is not None and known.job.create_at != row.create_at:
                self.remove([row.key])  # the log was made anew, and with it another job of the same key
                known = None
            if known is None:
                self._add(row)
            elif row.status.lsn >= known.job.status.lsn:
                self._update(known, row)

    def replace(self, rows: Sequence[Job]) -> None:
        """Follow the whole log: what is not among the rows is gone."""
        self.remove(self._standings.keys() - {row.key for row in rows})
        self.apply(rows)

    def remove(self, keys: Iterable[JobKey]) -> None:
        """Rows were collected."""
        for key in keys:
            standing = self._standings.pop(key, None)
            if standing is not None:
                if standing.iteration is not None:
                    self._canceled.add(key)
                    self._leaving[key] = standing.iteration
                self._leave(standing)

    def _add(self, row: Job) -> None:
        standing = TrackedJob(row, row.watermark, self._leaving.get(row.key))
        self._standings[row.key] = standing
        if row.live:
            self._enter(standing)
            self._check_owner(standing)
            self._urgent.add(row.key.table_id)

    def _update(self, standing: TrackedJob, row: Job) -> None:
        known = standing.job
        standing.follow(row)
        news = row.status.lsn > known.status.lsn  # else at most its spec is new, or it is an echo
        lowered = news and row.watermark < known.watermark
        standing.watermark = row.watermark if lowered else max(standing.watermark, row.watermark)
        canceled = lowered or (news and row.state is JobState.CANCELED) or not row.live
        if canceled and standing.iteration is not None:
            self._canceled.add(row.key)
        if not row.live:
            self._leave(standing)
            return
        respecified = row.spec != known.spec
        if respecified:
            self._enter(standing)
        if respecified or lowered or known.state is JobState.ERROR:
            standing.rests_until = None
            self._urgent.add(row.key.table_id)
        self._check_owner(standing)

    def _learn(self, standing: TrackedJob, row: Job) -> None:
        """Follow a row that came beside the log's feed, which may have told of a newer spec since."""
        if row.status.lsn > standing.job.status.lsn:
            self._update(standing, row)

    def _check_owner(self, standing: TrackedJob) -> None:
        """A row that says that somebody is busy with the job when nobody is: its runner has gone."""
        if standing.job.state in BUSY and not standing.busy:
            self._orphaned.add(standing.job.key)

    def _enter(self, standing: TrackedJob) -> None:
        table_id = standing.job.key.table_id
        if table_id not in self._tables:
            self._tables[table_id] = TableJobs(table_id, interval_s=self._interval_s)
        self._tables[table_id].put(standing)

    def _leave(self, standing: TrackedJob) -> None:
        key = standing.job.key
        self._orphaned.discard(key)
        self._doubted.discard(key)
        table = self._tables.get(key.table_id)
        if table is None:
            return
        table.remove(key)
        if not table:
            del self._tables[key.table_id]
            self._urgent.discard(key.table_id)

    # Rows that are not certain.

    def doubt(self, keys: Iterable[JobKey]) -> None:
        """Rows are being written, or nobody knows what they are now: nothing begins until `settle`."""
        for key in keys:
            standing = self._standings.get(key)
            if standing is not None:
                standing.unsure = True

    def settle(self, keys: Iterable[JobKey], rows: Iterable[Job]) -> None:
        """Follow rows as they are in the log now; of those left out it is not known, so they are doubted."""
        found = {row.key: row for row in rows}
        for key in keys:
            standing = self._standings.get(key)
            if standing is None:
                continue
            if key not in found:
                self._doubted.add(key)
                continue
            self._doubted.discard(key)
            standing.unsure = False
            self._urgent.add(key.table_id)
            self._learn(standing, found[key])
            self._check_owner(standing)

    def take_doubted(self) -> list[JobKey]:
        """Rows that have to be read again."""
        taken, self._doubted = self._doubted, set()
        return [key for key in taken if key in self._standings]

    def take_orphaned(self) -> list[Job]:
        """Rows that have to be adopted: whoever was busy with them is gone."""
        taken, self._orphaned = self._orphaned, set()
        found = [self._standings[key] for key in taken if key in self._standings]
        return [each.job for each in found if each.job.state in BUSY and not each.busy]

    def take_canceled(self) -> list[JobKey]:
        """Jobs whose iteration has to end."""
        taken, self._canceled = self._canceled, set()
        return list(taken)

    # Iterations.

    def begin(self, wanted: Wanted, iteration: Iteration) -> None:
        """The scheduler has accepted an iteration of these jobs."""
        self._turns += 1
        for each in wanted.candidate.jobs:
            assert each.iteration is None, "a job is in one iteration at a time"
            each.iteration = iteration
            each.turn = self._turns
            each.chasing = wanted.candidate.why in {Why.FIRST, Why.LAGGING}

    def end(self, iteration_id: str, key: JobKey, row: Job | None, *, now: float) -> None:
        """An iteration has ended for one of its jobs and wrote this row; None: nobody knows what the log has.

        What it left over (a capped range), or what waits for it, goes on at once; what failed rests first.
        """
        standing = self._standings.get(key)
        self._leaving.pop(key, None)
        if standing is None or standing.iteration is None or standing.iteration.id != iteration_id:
            return
        iteration, standing.iteration = standing.iteration, None
        self._canceled.discard(key)
        if row is None:
            standing.stumbles += 1
            self._rest(standing, standing.stumbles, now)
            self.doubt([key])
            self._doubted.add(key)
            return
        # Given up with a row that nobody has touched: its target is somebody else's for now.
        fenced = row.state is JobState.CANCELED and row.status.to_ts > 0
        standing.stumbles = standing.stumbles + 1 if fenced else 0
        self._learn(standing, row)
        if standing.job.live:
            self._check_owner(standing)
            self._go_on(standing, iteration, now)

    def _go_on(self, standing: TrackedJob, iteration: Iteration, now: float) -> None:
        job = standing.job
        if standing.stumbles:
            self._rest(standing, standing.stumbles, now)
        elif job.status.failures and job.status.error_code != ErrorCode.CUT_OFF:
            self._rest(standing, job.status.failures, now)
        elif standing.chasing or job.watermark < iteration.to_ts or job.state is JobState.CANCELED:
            self._urgent.add(job.key.table_id)

    def rest(self, key: JobKey, *, now: float) -> None:
        """A job failed before an iteration of it began."""
        standing = self._standings.get(key)
        if standing is not None:
            self._rest(standing, max(1, standing.job.status.failures), now)

    def _rest(self, standing: TrackedJob, failures: int, now: float) -> None:
        standing.rests_until = now + self._rest_s(failures)
        heapq.heappush(self._rests, (standing.rests_until, standing.job.key))

    def wake(self, now: float) -> None:
        """Let those try again that have rested long enough."""
        while self._rests and self._rests[0][0] <= now:
            until, key = heapq.heappop(self._rests)
            standing = self._standings.get(key)
            if standing is not None and standing.rests_until == until:
                standing.rests_until = None
                self._urgent.add(key.table_id)

    @property
    def wakes_at(self) -> float | None:
        """When the next one has rested."""
        return self._rests[0][0] if self._rests else None

    @property
    def pressing(self) -> bool:
        """Whether some tables are urgent, or iterations are to be ended."""
        return bool(self._urgent or self._canceled)

    @property
    def doubtful(self) -> bool:
        """Whether rows are to be adopted or read again."""
        return bool(self._doubted or self._orphaned)

    def take_urgent(self) -> set[int]:
        """Tables to look at before their time: something has become of their jobs."""
        taken, self._urgent = self._urgent, set()
        return taken

    # Upkeep.

    def unflushed(self) -> list[tuple[Job, int]]:
        """Jobs whose watermark was raised in memory only, and that nobody is busy with."""
        return [
            (each.job, each.watermark)
            for each in self
            if each.watermark > each.job.watermark and not each.busy
        ]

    def needed(self) -> dict[int, int]:
        """After when the history of each table is still needed."""
        found = ((table_id, table.needed_ts()) for table_id, table in self._tables.items())
        return {table_id: needed for table_id, needed in found if needed is not None}
