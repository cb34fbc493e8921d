"""Which iterations a table's jobs want: the rules of their triggers. Pure.

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

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from penstock.clock import physical_ms
from penstock.jobs.runner.tracked_job import TrackedJob, TriggerGroup


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
