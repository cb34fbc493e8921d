"""The queue against a plain list: nothing is lost or doubled, the bound holds, and nobody starves."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.job import JobKey
from penstock.jobs.scheduler.fair_queue import FairQueue, Waiting
from support.campaign import examples
from support.jobdoubles import iteration_of, job_row

WAITING_MAX = 12
ACCOUNTS = ("a", "b", "c")


class QueueMachine(RuleBasedStateMachine):
    """One worker that takes a second for each iteration; accounts of the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = FairQueue(WAITING_MAX)
        self.now = 0.0
        self.made = 0
        self.ready: dict[JobKey, Iteration] = {}
        self.parked: dict[JobKey, float] = {}
        self.since: dict[str, Counter[str]] = {}  # whom others overtook, while an account waited
        self.last: Waiting | None = None

    @rule(account=st.sampled_from(ACCOUNTS), priority=st.integers(-2, 2), jobs=st.integers(1, 3))
    def offer(self, account: str, priority: int, jobs: int) -> None:
        self.made += 1
        rows = [
            job_row(f"j{self.made}-{number}", account=account, detail={"priority": priority})
            for number in range(jobs)
        ]
        iteration = iteration_of(*rows, to_ts=9)
        waits = [*self.queue._ready.values(), *self.queue._later.values()]
        first = all(each.iteration.account != account for each in waits)
        full = len(self.queue) >= WAITING_MAX and not first
        assert (self.queue.offer(iteration, self.now) is None) == full
        if not full:
            self.ready |= {job.key: iteration for job in rows}

    @rule(again=st.booleans(), wait=st.integers(0, 4))
    def work(self, again: bool, wait: int) -> None:
        taken = self.queue.take()
        assert (taken is None) == (not self.ready)
        if taken is None:
            return
        account = taken.iteration.account
        mine = [each for each in self.ready.values() if each.account == account]
        assert taken.iteration.priority == max(self._left(each) for each in mine)
        for job in taken.iteration.jobs:
            del self.ready[job.key]
        waiting = {each.account for each in self.ready.values()} - {account}
        self.since = {name: self.since.get(name, Counter()) for name in waiting}
        for counts in self.since.values():
            counts[account] += 1
            assert counts[account] <= 2, "an account that waits is overtaken again and again"
        self.queue.finish(account, 1.0)
        self.now += 1
        if again:
            self.queue.retry(taken, self.now + wait)
            self.parked |= {job.key: self.now + wait for job in taken.iteration.jobs}
            self.last = taken

    def _left(self, iteration: Iteration) -> int:
        return max(job.spec.priority for job in iteration.jobs if job.key in self.ready)

    @rule()
    def ripen(self) -> None:
        due = self.queue.release_due(self.now)
        ripe = [key for key, at in self.parked.items() if at <= self.now]
        for key in ripe:
            del self.parked[key]
            self.ready[key] = iteration_of(job_row(key.job_name), to_ts=9)
        assert due == min(self.parked.values(), default=None)
        self._know()

    def _know(self) -> None:
        """What ripened is as it was: learn of its account and priority from the queue."""
        for waiting in self.queue._ready.values():
            for job in waiting.iteration.jobs:
                self.ready[job.key] = waiting.iteration

    @rule(known=st.booleans())
    def announce(self, known: bool) -> None:
        for held in self.queue.hold_unannounced(self.now):
            rows = {job.key: job for job in held.iteration.jobs}
            self.queue.announce(held.number, rows if known else None)
        assert not known or self.queue.hold_unannounced(self.now) == []

    @precondition(lambda self: self.ready or self.parked)
    @rule(which=st.integers(0, 100))
    def remove(self, which: int) -> None:
        known = sorted([*self.ready, *self.parked])
        key = known[which % len(known)]
        removed = self.queue.remove(key)
        assert removed is not None
        assert removed.key == key
        self.ready.pop(key, None)
        self.parked.pop(key, None)
        assert self.queue.remove(key) is None

    @invariant()
    def counts_agree(self) -> None:
        waiting = [*self.queue._ready.values(), *self.queue._later.values()]
        assert len(waiting) == len(self.queue)
        keys = [job.key for each in waiting for job in each.iteration.jobs]
        assert sorted(keys) == sorted([*self.ready, *self.parked])


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=examples(60), stateful_step_count=60, deadline=None)
