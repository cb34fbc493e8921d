"""The live jobs of one table: which iterations should run now. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from penstock.follow.source import ReadableRange
from penstock.jobs.job import ErrorCode
from penstock.jobs.jobid import JobKey
from penstock.jobs.runner.dirty import HasChanges, NoChanges, judge
from penstock.jobs.runner.tracked_job import TrackedJob, TriggerGroup
from penstock.jobs.runner.triggers import Candidate, Selection, select


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
