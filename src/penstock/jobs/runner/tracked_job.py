"""The live jobs of a table in the memory of the runner, and which iterations they need now. Pure.

The triggers decide which iterations a table's jobs want:

* A new job begins at once with all rows. It ends where the jobs are with which it will share iterations; if
  there are none, as far as the table can be read.
* Default jobs share one iteration from their common watermark to now. A job that is behind the others of its
  table catches up with them first, one job at a time (jobs at the very same watermark catch up together: that
  is one scan). The others wait for it, but not for long, and not for a job that fails.
* An independent job, and a greedy one, has iterations of its own.
* A periodic job begins when the database's time is its interval ahead of its watermark. Jobs of the same
  interval may share iterations as default jobs do.
* For a job with a custom trigger, the trigger is asked instead of the clock.

A job that is paused, dropped or stopped by an error takes no part: no job waits for it or for its watermark.

Then the table's progress decides: where it has no changes, only the watermarks are raised.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from penstock.clock import physical_ms
from penstock.follow.source import ReadableRange
from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.job import ErrorCode, Job, JobKey, JobState
from penstock.jobs.spec import DEFAULT, GREEDY, PERIODIC, JobSpec

RUNNABLE = frozenset({JobState.COMPLETED, JobState.CANCELED})
"""States in which a job waits for its next iteration."""


class TriggerGroup(NamedTuple):
    """Jobs of a table with the same trigger, which may share iterations."""

    job_type: str
    interval_ms: int

    def faster_than(self, interval_s: float) -> bool:
        """Return whether such jobs must be checked more often than every `interval_s`."""
        return self.job_type == GREEDY or 0 < self.interval_ms < interval_s * 1000


@dataclass(frozen=True, slots=True)
class TriggerRule:
    """When a job runs, by its spec."""

    group: TriggerGroup
    """The jobs with which it shares iterations, if it does."""
    shares: bool
    periodic: bool
    """Whether time decides."""
    custom: bool
    """Whether a custom trigger decides."""

    @classmethod
    def of(cls, spec: JobSpec) -> "TriggerRule":
        """Read the rule of a spec."""
        kind = spec.job_type
        periodic, custom = kind == PERIODIC, kind not in {DEFAULT, GREEDY, PERIODIC}
        timed = periodic or (custom and spec.trigger.schedule.interval is not None)
        group = TriggerGroup(kind, round(spec.interval_s * 1000) if timed else 0)
        return cls(group, spec.shares, periodic, custom)


@dataclass(slots=True, eq=False)
class TrackedJob:
    """One job. The board changes it; triggers only read it.

    Invariant: the table has no change in (job.watermark, watermark], so an iteration from `watermark` skips
    none. Fields that follow from the row alone are computed when the row changes, because every check of a
    table reads them.
    """

    job: Job
    watermark: int
    iteration: Iteration | None = None
    """The iteration that has not ended for this job yet; there is never a second one."""
    row_uncertain: bool = False
    """Its row is being written, or has to be read again: nothing begins until that is done."""
    retry_at: float | None = None
    """It failed, and is not retried before this time."""
    triggered: bool = False
    """The last answer of its custom trigger."""
    turn: int = 0
    """The number of its last iteration on the board: a job with a smaller one has waited longer."""
    catching_up: bool = False
    """Its iteration brings it to where others are: they continue together as soon as it ends."""
    unknown_outcomes: int = 0
    """How often in a row the outcome of its iteration was unknown, or the target fenced it."""
    rule: TriggerRule = field(init=False)
    takes_part: bool = field(init=False)
    """Whether other jobs consider it: it is not dropped, paused, or stopped by an error."""
    healthy: bool = field(init=False)
    """Whether its last iteration did not fail: other jobs wait only for healthy ones."""
    _ready: bool = field(init=False)

    def __post_init__(self) -> None:
        self.follow(self.job)

    def follow(self, row: Job) -> None:
        """Replace the row, and compute what follows from it."""
        self.job = row
        self.rule = TriggerRule.of(row.spec)
        self.takes_part = row.live and row.state is not JobState.ERROR and not row.spec.paused
        self.healthy = not row.status.failures
        self._ready = self.takes_part and row.state in RUNNABLE

    @property
    def busy(self) -> bool:
        """Whether it has an iteration, or its row is uncertain."""
        return self.iteration is not None or self.row_uncertain

    @property
    def held_ts(self) -> int | None:
        """The timestamp after which it needs the table's history; None if it needs none.

        The watermark in the log decides, because a restart has only that. A first iteration needs the history
        after its end. A job whose table is gone needs none.
        """
        if self.job.status.error_code == ErrorCode.TABLE_GONE:
            return None
        if self.job.watermark:
            return self.job.watermark
        return None if self.iteration is None else self.iteration.to_ts

    @property
    def idle(self) -> bool:
        """Whether an iteration may begin."""
        return self._ready and self.iteration is None and self.retry_at is None and not self.row_uncertain


class StartReason(Enum):
    """The rule by which an iteration begins."""

    FIRST = "first"
    SHARED = "shared"
    LAGGING = "lagging"
    OWN = "own"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An iteration to run if the table has changed. `to_ts` is None for: as far as can be read."""

    from_ts: int
    to_ts: int | None
    jobs: tuple[TrackedJob, ...]
    reason: StartReason


@dataclass(frozen=True, slots=True)
class Selection:
    """The candidates of a table, and the groups that wait for a job that is behind or still running."""

    candidates: tuple[Candidate, ...]
    held: tuple[TriggerGroup, ...] = ()

    @property
    def others_may_follow(self) -> bool:
        """Whether more jobs may have something to do once a lagging job has caught up."""
        return bool(self.held) or any(
            candidate.reason is StartReason.LAGGING for candidate in self.candidates
        )


def select(
    jobs: Iterable[TrackedJob],
    *,
    now_ts: int | None,
    impatient: Collection[TriggerGroup] = (),
    fast_s: float = 0,
) -> Selection:
    """Choose candidates among the jobs of one table.

    `now_ts` is the database's time; while it is None, periodic jobs wait. `impatient` groups have waited long
    enough for their lagging jobs. With `fast_s` only new jobs are chosen, and jobs whose trigger is faster
    than that.
    """
    new, own, groups = _divide_jobs(jobs, fast_s)
    chosen = [_first_candidate(job, groups) for job in new if job.idle]
    chosen += [
        Candidate(job.watermark, None, (job,), StartReason.OWN)
        for job in own
        if job.idle and _is_due(job, now_ts)
    ]
    held = []
    for group, members in groups.items():
        if fast_s and not group.faster_than(fast_s):
            continue
        top_ts = max(job.watermark for job in members)
        chosen += _catch_up_candidates(members, top_ts)
        leaders = tuple(
            job for job in members if job.watermark == top_ts and job.idle and _is_due(job, now_ts)
        )
        if leaders and group not in impatient and _must_wait(members, top_ts):
            held.append(group)
        elif leaders:
            chosen.append(Candidate(top_ts, None, leaders, StartReason.SHARED))
    return Selection(tuple(_join_candidates(chosen)), tuple(held))


def _divide_jobs(
    jobs: Iterable[TrackedJob], fast_s: float
) -> tuple[list[TrackedJob], list[TrackedJob], dict[TriggerGroup, list[TrackedJob]]]:
    """Divide the jobs that take part into new ones, independent ones, and groups that share iterations."""
    new: list[TrackedJob] = []
    own: list[TrackedJob] = []
    groups: dict[TriggerGroup, list[TrackedJob]] = {}
    for job in jobs:
        if not job.takes_part:
            continue
        if not job.watermark:
            new.append(job)
        elif job.rule.shares:
            groups.setdefault(job.rule.group, []).append(job)
        elif not fast_s or job.rule.group.faster_than(fast_s):
            own.append(job)
    return new, own, groups


def _first_candidate(job: TrackedJob, groups: dict[TriggerGroup, list[TrackedJob]]) -> Candidate:
    """Return the first iteration of a job.

    After a re-sync it never ends before what the target had: history after an earlier end may be gone.
    """
    others = groups.get(job.rule.group, ()) if job.rule.shares else ()
    top_ts = max((other.watermark for other in others), default=0)
    return Candidate(0, top_ts if top_ts > job.job.status.resync_ts else None, (job,), StartReason.FIRST)


def _is_due(job: TrackedJob, now_ts: int | None) -> bool:
    rule = job.rule
    if rule.periodic:
        return (
            now_ts is not None and physical_ms(now_ts) - physical_ms(job.watermark) >= rule.group.interval_ms
        )
    return job.triggered or not rule.custom


def _may_catch_up(job: TrackedJob) -> bool:
    return job.triggered or not job.rule.custom


def _catch_up_candidates(members: Sequence[TrackedJob], top_ts: int) -> list[Candidate]:
    """Choose the next of the jobs that are behind, in turn, so that each of them gets its iteration."""
    behind = [job for job in members if job.watermark < top_ts]
    if any(job.busy for job in behind):
        return []
    ready = [job for job in behind if job.idle and _may_catch_up(job)]
    if not ready:
        return []
    from_ts = min(ready, key=lambda job: job.turn).watermark
    together = tuple(job for job in ready if job.watermark == from_ts)
    return [Candidate(from_ts, top_ts, together, StartReason.LAGGING)]


def _must_wait(members: Iterable[TrackedJob], top_ts: int) -> bool:
    """Return whether a healthy job is not with the leaders now but will be."""
    return any(
        job.healthy and (job.busy or (job.watermark < top_ts and _may_catch_up(job))) for job in members
    )


def _join_candidates(candidates: Iterable[Candidate]) -> Iterable[Candidate]:
    """Join the candidates that share iterations and have the same range."""
    shared: dict[tuple[int, int | None], Candidate] = {}
    for candidate in candidates:
        if not candidate.jobs[0].rule.shares:
            yield candidate
            continue
        span = (candidate.from_ts, candidate.to_ts)
        same = shared.get(span)
        shared[span] = candidate if same is None else replace(same, jobs=same.jobs + candidate.jobs)
    yield from shared.values()


@dataclass(frozen=True, slots=True)
class HasChanges:
    """There are changes, or it is unknown whether there are."""

    to_ts: int


@dataclass(frozen=True, slots=True)
class NoChanges:
    """There are no changes up to this timestamp."""

    to_ts: int


def decide(candidate: Candidate, progress: ReadableRange) -> HasChanges | NoChanges | None:
    """Decide about a candidate; None: nothing can be read after its watermark, so it waits.

    The progress says nothing about changes before `oldest_ts`: an iteration from an earlier watermark runs,
    and finds out. A first iteration always runs; if history does not reach its end, it ends as far as can be
    read.
    """
    from_ts, to_ts = candidate.from_ts, candidate.to_ts
    if to_ts is None or (not from_ts and to_ts < progress.oldest_ts):
        to_ts = progress.readable_ts
    to_ts = min(to_ts, progress.readable_ts)
    if to_ts <= from_ts:
        return None
    if not from_ts or from_ts < progress.oldest_ts or progress.changed_ts > from_ts:
        return HasChanges(to_ts)
    return NoChanges(to_ts)


@dataclass(frozen=True, slots=True)
class PlannedIteration:
    """An iteration that should run: a candidate whose table has changed, or may have."""

    candidate: Candidate
    to_ts: int

    def divide(self, jobs_max: int) -> "list[PlannedIteration]":
        """Return the iteration as several of the same range, each with at most so many jobs."""
        jobs = self.candidate.jobs
        groups = [jobs[start : start + jobs_max] for start in range(0, len(jobs), jobs_max)]
        return [PlannedIteration(replace(self.candidate, jobs=group), self.to_ts) for group in groups]


class Plan(NamedTuple):
    """The iterations to run now."""

    iterations: list[PlannedIteration]
    raised: int
    """The number of watermarks that were raised because there were no changes."""


class TableJobs:
    """The jobs of a table, and since when groups that share have waited for one of their jobs."""

    def __init__(self, table_id: int, *, interval_s: float) -> None:
        """Track a table that is checked every `interval_s`; so long jobs wait for one that is behind."""
        self.table_id = table_id
        self._interval_s = interval_s
        self._jobs: dict[JobKey, TrackedJob] = {}
        self._fast: set[JobKey] = set()
        self._waiting_since: dict[TriggerGroup, float] = {}

    def __iter__(self) -> Iterator[TrackedJob]:
        return iter(self._jobs.values())

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def fast(self) -> bool:
        """Whether some jobs must be checked more often than the table."""
        return bool(self._fast)

    @property
    def idle(self) -> bool:
        """Whether an iteration may begin for some of the jobs."""
        return any(job.idle for job in self)

    def put(self, tracked: TrackedJob) -> None:
        """Add a job, or follow a change of its spec."""
        key = tracked.job.key
        self._jobs[key] = tracked
        self._fast.discard(key)
        if tracked.rule.group.faster_than(self._interval_s):
            self._fast.add(key)

    def remove(self, key: JobKey) -> None:
        """Remove a job that is dropped or gone."""
        self._jobs.pop(key, None)
        self._fast.discard(key)

    def plan(self, progress: ReadableRange, *, now_ts: int | None, now: float, fast: bool = False) -> Plan:
        """Raise the watermarks of jobs whose table has no changes; return the iterations of the others.

        A job that has caught up because its watermark was raised is considered again at once, together with
        the others. With `fast` only new jobs are considered, and jobs that must be checked more often.
        """
        raised = 0
        # Each round raises some job to the others, or to now, so that these rounds are enough.
        for _ in range(2 * len(self) + 1):
            selection = self._select(now_ts, now, fast=fast)
            plan = _sift_candidates(selection.candidates, progress)
            raised += plan.raised
            if not plan.raised or (not plan.iterations and not selection.others_may_follow):
                break
        return Plan(plan.iterations, raised)

    def _select(self, now_ts: int | None, now: float, *, fast: bool) -> Selection:
        waiting = self._waiting_since
        impatient = [group for group, since in waiting.items() if now - since >= self._interval_s]
        fast_s = self._interval_s if fast else 0
        selection = select(self, now_ts=now_ts, impatient=impatient, fast_s=fast_s)
        considered = [group for group in waiting if not fast or group.faster_than(fast_s)]
        for group in considered:
            if group not in selection.held:
                del waiting[group]
        for group in selection.held:
            waiting.setdefault(group, now)
        return selection

    def needed_ts(self, released: Collection[JobKey] = ()) -> int | None:
        """Return the timestamp after which the table's history is still needed; None if it is not.

        `released` jobs get none.
        """
        needed = (tracked.held_ts for tracked in self if tracked.job.key not in released)
        return min((ts for ts in needed if ts is not None), default=None)


def _sift_candidates(candidates: Iterable[Candidate], progress: ReadableRange) -> Plan:
    """Raise the watermarks of candidates without changes; return the others."""
    iterations, raised = [], 0
    for candidate in candidates:
        match decide(candidate, progress):
            case HasChanges(to_ts):
                iterations.append(PlannedIteration(candidate, to_ts))
            case NoChanges(to_ts):
                raised += len(candidate.jobs)
                for job in candidate.jobs:
                    job.watermark = to_ts
            case None:
                pass
    return Plan(iterations, raised)
