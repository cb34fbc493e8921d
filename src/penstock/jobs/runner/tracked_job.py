"""A job in the memory of the runner: its row, how far it has come, and what it is busy with."""

from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.job import Job, JobState
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
