"""A job in the memory of the runner: its row, how far it has come, and what it is busy with.

The live jobs of one table: which iterations should run now. Pure.

Which iterations have something to do: tables without changes only move the watermark. Pure.

Which iterations a table's jobs want: the rules of their triggers. Pure.

* A new job begins at once, with nothing: up to where those are with which it will share, else up to now.
* Default jobs share one iteration from their common watermark to now. One that is behind the others of its
  table catches up with them first, and only one at a time does (with those at the very same watermark: that
  is one scan). Meanwhile the others wait for it, but not for long, and not for one that fails.
* An independent job, and a greedy one, has iterations of its own.
* A periodic job begins when the database's time is its interval ahead of its watermark. Those of the same
  interval may share like default jobs do.
* A custom trigger is asked in place of the clock.

A job that is paused, dropped or stopped by an error takes no part: nobody waits for it, or for its watermark.
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
    """Jobs of a table that share iterations: those with the same trigger."""

    job_type: str
    interval_ms: int

    def faster_than(self, interval_s: float) -> bool:
        """Whether such jobs cannot wait for a look that comes every `interval_s`."""
        return self.job_type == GREEDY or 0 < self.interval_ms < interval_s * 1000


@dataclass(frozen=True, slots=True)
class Rule:
    """When a job runs, by its spec."""

    group: TriggerGroup
    """Those it shares iterations with, if it does."""
    shares: bool
    periodic: bool
    """Time decides."""
    custom: bool
    """A function of somebody else's decides."""

    @classmethod
    def of(cls, spec: JobSpec) -> "Rule":
        """Read it from a spec."""
        kind = spec.job_type
        periodic, custom = kind == PERIODIC, kind not in {DEFAULT, GREEDY, PERIODIC}
        timed = periodic or (custom and spec.trigger.schedule.interval is not None)
        group = TriggerGroup(kind, round(spec.interval_s * 1000) if timed else 0)
        return cls(group, spec.shares, periodic, custom)


@dataclass(slots=True, eq=False)
class TrackedJob:
    """One job. The board changes it; triggers only read it.

    Invariant: the table has no change in (job.watermark, watermark], so that an iteration from `watermark`
    skips none. What follows from the row alone is kept beside it: every look at a table asks for it.
    """

    job: Job
    watermark: int
    iteration: Iteration | None = None
    """What it takes part in and has not ended for it yet; there is never a second one."""
    unsure: bool = False
    """Its row is written or read again: until that is done, nothing begins."""
    rests_until: float | None = None
    """It failed lately and is not tried again before."""
    wanted: bool = False
    """What its custom trigger last said."""
    turn: int = 0
    """Grows with each of the board's iterations: who has the smaller one has waited longer."""
    chasing: bool = False
    """Its iteration brings it to where others are: they go on together as soon as it ends."""
    stumbles: int = 0
    """How often in a row nobody knows how its iteration ended, or its target was somebody else's."""
    rule: Rule = field(init=False)
    takes_part: bool = field(init=False)
    """Whether it is there for others: not dropped, paused, or stopped by an error."""
    sound: bool = field(init=False)
    """Whether its last iteration did not fail: only for such a one do others wait."""
    _waits: bool = field(init=False)

    def __post_init__(self) -> None:
        self.follow(self.job)

    def follow(self, row: Job) -> None:
        """Take over a row."""
        self.job = row
        self.rule = Rule.of(row.spec)
        self.takes_part = row.live and row.state is not JobState.ERROR and not row.spec.paused
        self.sound = not row.status.failures
        self._waits = self.takes_part and row.state in RUNNABLE

    @property
    def busy(self) -> bool:
        """Whether an iteration of it is under way, or its row is not certain."""
        return self.iteration is not None or self.unsure

    @property
    def idle(self) -> bool:
        """Whether an iteration may begin."""
        return self._waits and self.iteration is None and self.rests_until is None and not self.unsure


class Why(Enum):
    """By which rule an iteration is wanted."""

    FIRST = "first"
    SHARED = "shared"
    LAGGING = "lagging"
    OWN = "own"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An iteration that is wanted if the table has changed. `to_ts` is None for: as far as can be read."""

    from_ts: int
    to_ts: int | None
    jobs: tuple[TrackedJob, ...]
    why: Why


@dataclass(frozen=True, slots=True)
class Selection:
    """What a table's jobs want, and which groups wait for one that is behind or not done yet."""

    candidates: tuple[Candidate, ...]
    held: tuple[TriggerGroup, ...] = ()

    @property
    def open(self) -> bool:
        """Whether others may have something to do once a lagging job has caught up."""
        return bool(self.held) or any(each.why is Why.LAGGING for each in self.candidates)


def select(
    jobs: Iterable[TrackedJob],
    *,
    now_ts: int | None,
    impatient: Collection[TriggerGroup] = (),
    fast_s: float = 0,
) -> Selection:
    """Choose among the jobs of one table.

    `now_ts` is the database's time, None when it is not known: then periodic jobs wait. Groups that are
    `impatient` have waited long enough for their lagging ones. With `fast_s` only new jobs are chosen and
    those whose trigger is faster than that.
    """
    new, own, groups = _divided(jobs, fast_s)
    chosen = [_first(each, groups) for each in new if each.idle]
    chosen += [
        Candidate(each.watermark, None, (each,), Why.OWN) for each in own if each.idle and _due(each, now_ts)
    ]
    held = []
    for group, members in groups.items():
        if fast_s and not group.faster_than(fast_s):
            continue
        top_ts = max(each.watermark for each in members)
        chosen += _catching_up(members, top_ts)
        leaders = tuple(
            each for each in members if each.watermark == top_ts and each.idle and _due(each, now_ts)
        )
        if leaders and group not in impatient and _must_wait(members, top_ts):
            held.append(group)
        elif leaders:
            chosen.append(Candidate(top_ts, None, leaders, Why.SHARED))
    return Selection(tuple(_joined(chosen)), tuple(held))


def _divided(
    jobs: Iterable[TrackedJob], fast_s: float
) -> tuple[list[TrackedJob], list[TrackedJob], dict[TriggerGroup, list[TrackedJob]]]:
    """Those that take part: new ones, those on their own, and those that share."""
    new: list[TrackedJob] = []
    own: list[TrackedJob] = []
    groups: dict[TriggerGroup, list[TrackedJob]] = {}
    for each in jobs:
        if not each.takes_part:
            continue
        if not each.watermark:
            new.append(each)
        elif each.rule.shares:
            groups.setdefault(each.rule.group, []).append(each)
        elif not fast_s or each.rule.group.faster_than(fast_s):
            own.append(each)
    return new, own, groups


def _first(job: TrackedJob, groups: dict[TriggerGroup, list[TrackedJob]]) -> Candidate:
    """One that begins anew never ends before what it had: from there on history may be gone."""
    others = groups.get(job.rule.group, ()) if job.rule.shares else ()
    top_ts = max((each.watermark for each in others), default=0)
    return Candidate(0, top_ts if top_ts > job.job.status.resync_ts else None, (job,), Why.FIRST)


def _due(job: TrackedJob, now_ts: int | None) -> bool:
    rule = job.rule
    if rule.periodic:
        return (
            now_ts is not None and physical_ms(now_ts) - physical_ms(job.watermark) >= rule.group.interval_ms
        )
    return job.wanted or not rule.custom


def _may_catch_up(job: TrackedJob) -> bool:
    return job.wanted or not job.rule.custom


def _catching_up(members: Sequence[TrackedJob], top_ts: int) -> list[Candidate]:
    """The one that goes next of those behind, by turns, so that none keeps the others from it."""
    behind = [each for each in members if each.watermark < top_ts]
    if any(each.busy for each in behind):
        return []
    ready = [each for each in behind if each.idle and _may_catch_up(each)]
    if not ready:
        return []
    from_ts = min(ready, key=lambda each: each.turn).watermark
    together = tuple(each for each in ready if each.watermark == from_ts)
    return [Candidate(from_ts, top_ts, together, Why.LAGGING)]


def _must_wait(members: Iterable[TrackedJob], top_ts: int) -> bool:
    """Whether somebody sound is not with the leaders but will be."""
    return any(
        each.sound and (each.busy or (each.watermark < top_ts and _may_catch_up(each))) for each in members
    )


def _joined(candidates: Iterable[Candidate]) -> Iterable[Candidate]:
    """One candidate for all that share and want the same range."""
    shared: dict[tuple[int, int | None], Candidate] = {}
    for each in candidates:
        if not each.jobs[0].rule.shares:
            yield each
            continue
        wanted = (each.from_ts, each.to_ts)
        same = shared.get(wanted)
        shared[wanted] = each if same is None else replace(same, jobs=same.jobs + each.jobs)
    yield from shared.values()


@dataclass(frozen=True, slots=True)
class HasChanges:
    """There are changes, or nobody knows whether there are."""

    to_ts: int


@dataclass(frozen=True, slots=True)
class NoChanges:
    """There are none up to here."""

    to_ts: int


def judge(candidate: Candidate, look: ReadableRange) -> HasChanges | NoChanges | None:
    """What becomes of a candidate; None: nothing can be read beyond its watermark, so it waits.

    History is only asked where it reaches: with a watermark before `oldest_ts` the iteration runs, and finds
    out. A first iteration runs in any case; to a time that history does not reach, up to now instead.
    """
    from_ts, to_ts = candidate.from_ts, candidate.to_ts
    if to_ts is None or (not from_ts and to_ts < look.oldest_ts):
        to_ts = look.readable_ts
    to_ts = min(to_ts, look.readable_ts)
    if to_ts <= from_ts:
        return None
    if not from_ts or from_ts < look.oldest_ts or look.changed_ts > from_ts:
        return HasChanges(to_ts)
    return NoChanges(to_ts)


@dataclass(frozen=True, slots=True)
class Wanted:
    """An iteration that should run: a candidate whose table has changed, or may have."""

    candidate: Candidate
    to_ts: int


class Plan(NamedTuple):
    """What becomes of the jobs that are due."""

    wanted: list[Wanted]
    raised: int
    """How many watermarks were raised because there were no changes."""


class TableJobs:
    """Jobs of a table, and how long those that share have waited for one of theirs."""

    def __init__(self, table_id: int, *, interval_s: float) -> None:
        """The table is looked at every `interval_s`; so long others wait for a job that is behind."""
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
        """Whether some of them cannot wait for the next look."""
        return bool(self._fast)

    @property
    def idle(self) -> bool:
        """Whether an iteration may begin for some of them."""
        return any(each.idle for each in self)

    def put(self, standing: TrackedJob) -> None:
        """Add a job, or learn that its spec has changed."""
        key = standing.job.key
        self._jobs[key] = standing
        self._fast.discard(key)
        if standing.rule.group.faster_than(self._interval_s):
            self._fast.add(key)

    def remove(self, key: JobKey) -> None:
        """A job is dropped or gone."""
        self._jobs.pop(key, None)
        self._fast.discard(key)

    def plan(self, look: ReadableRange, *, now_ts: int | None, now: float, fast: bool = False) -> Plan:
        """Raise the watermarks of jobs whose table has no changes, and find the iterations of the others.

        Whoever has caught up by being raised is looked at again at once, together with the others. With
        `fast` only those are looked at that cannot wait, and new ones.
        """
        raised = 0
        for _ in range(2 * len(self) + 1):  # each round raises a job to the others, or to now
            selection = self._select(now_ts, now, fast=fast)
            plan = _sifted(selection.candidates, look)
            raised += plan.raised
            if not plan.raised or (not plan.wanted and not selection.open):
                break
        return Plan(plan.wanted, raised)

    def _select(self, now_ts: int | None, now: float, *, fast: bool) -> Selection:
        waiting = self._waiting_since
        impatient = [group for group, since in waiting.items() if now - since >= self._interval_s]
        fast_s = self._interval_s if fast else 0
        selection = select(self, now_ts=now_ts, impatient=impatient, fast_s=fast_s)
        asked = [each for each in waiting if not fast or each.faster_than(fast_s)]
        for group in asked:
            if group not in selection.held:
                del waiting[group]
        for group in selection.held:
            waiting.setdefault(group, now)
        return selection

    def needed_ts(self) -> int | None:
        """After when the table's history is still needed: by what is in the log, which is what a restart has.

        A first iteration needs what comes after its end. Jobs whose table is gone need nothing.
        """
        needed = []
        for each in self:
            if each.job.status.error_code == ErrorCode.TABLE_GONE:
                continue
            if each.job.watermark:
                needed.append(each.job.watermark)
            elif each.iteration is not None:
                needed.append(each.iteration.to_ts)
        return min(needed, default=None)


def _sifted(candidates: Iterable[Candidate], look: ReadableRange) -> Plan:
    """Raise the watermarks of those without changes."""
    wanted, raised = [], 0
    for candidate in candidates:
        match judge(candidate, look):
            case HasChanges(to_ts):
                wanted.append(Wanted(candidate, to_ts))
            case NoChanges(to_ts):
                raised += len(candidate.jobs)
                for each in candidate.jobs:
                    each.watermark = to_ts
            case None:
                pass
    return Plan(wanted, raised)
