"""Which waiting iteration runs next: fair between accounts, then by priority, then by age. Pure."""

import sys
from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.job import Job, JobKey
from penstock.shares import UNLIMITED, Shares

QUANTUM_S = 0.01
"""The least time that an iteration costs its account, so that very short iterations take turns too."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """An iteration that waits. A smaller `number` came earlier; `failures` counts its tries so far.

    `since` is when it could have run first. `announced` says whether the log has it as waiting.
    """

    number: int
    iteration: Iteration
    since: float = 0.0
    failures: int = 0
    announced: bool = False

    @property
    def place(self) -> tuple[int, int]:
        """Its position among the waiting iterations of its account; the smallest is first."""
        return -self.iteration.priority, self.number


@dataclass(slots=True)
class _AccountQueue:
    """The state of an account. `served` is the time that its iterations took, divided by its weight.

    An account that had nothing waiting does not save up time: on its return `served` is raised to the
    others'.
    """

    weight: int
    served: float
    running: int = 0
    consumers: int = 0  # of its iterations that run
    places: list[tuple[int, int]] = field(default_factory=list)  # of its waiting iterations, sorted

    @property
    def idle(self) -> bool:
        return not self.running and not self.places


class FairQueue:
    """Iterations that wait for a worker, at most `waiting_max`, and those that wait for their next try.

    An account that has fewer workers than others, relative to its weight, comes first; of equal ones the one
    that has been served less. So an account with a thousand iterations does not delay another's only one by
    more than what runs already; `shares` says what may run beside that. The iterations of an account that run
    have at most `consumers_max` consumers, each a thread; one iteration may have more. A job is in the queue
    at most once.
    """

    def __init__(
        self,
        waiting_max: int,
        weights: Mapping[str, int] | None = None,
        shares: Shares = UNLIMITED,
        *,
        consumers_max: int = sys.maxsize,
    ) -> None:
        self._waiting_max = waiting_max
        self._consumers_max = consumers_max
        self._weights = dict(weights or {})
        self._shares = shares
        self._accounts: dict[str, _AccountQueue] = {}
        self._ready: dict[int, Waiting] = {}
        self._parked: list[tuple[float, int]] = []  # time and number of those that wait for a retry, sorted
        self._later: dict[int, Waiting] = {}  # those that cannot be taken now: parked, or held
        self._numbers: dict[JobKey, int] = {}
        self._last_number = 0
        self._passed = 0.0  # the smallest `served` of active accounts at the last `take`

    def __len__(self) -> int:
        return len(self._ready) + len(self._later)

    def offer(self, iteration: Iteration, now: float = 0.0) -> Waiting | None:
        """Let an iteration wait with all of its jobs; return None when too many wait already.

        An account of which none waits is not refused: another account may be what fills the queue.
        """
        if len(self) >= self._waiting_max and self._has_waiting(iteration.account):
            return None
        self._last_number += 1
        waiting = Waiting(self._last_number, iteration, now)
        self._admit(waiting)
        return waiting

    def retry(self, waiting: Waiting, at: float) -> None:
        """Let an iteration that was taken wait again, from `at` on at its old position."""
        self._remember(waiting)
        self._later[waiting.number] = waiting
        insort(self._parked, (at, waiting.number))

    def release_due(self, now: float) -> float | None:
        """Let parked iterations be taken whose time has come; return when the next one's comes."""
        while self._parked and self._parked[0][0] <= now:
            at, number = self._parked.pop(0)
            self._admit(replace(self._later.pop(number), since=at))
        return self._parked[0][0] if self._parked else None

    def hold_unannounced(self, before: float) -> list[Waiting]:
        """Return those that have waited since `before` unannounced; they are not taken until `announce`."""
        found = [
            waiting for waiting in self._ready.values() if not waiting.announced and waiting.since <= before
        ]
        for waiting in found:
            self._withdraw(waiting)
            self._later[waiting.number] = waiting
        return found

    def announce(self, number: int, rows: Mapping[JobKey, Job] | None) -> None:
        """Let a held iteration be taken again, with its jobs as the log has them now.

        Jobs without a row are removed. None: the log does not answer, and nothing changes.
        """
        waiting = self._later.pop(number, None)
        if waiting is None:
            return  # all of its jobs were removed
        if rows is not None:
            jobs = waiting.iteration.jobs
            for job in jobs:
                if job.key not in rows:
                    del self._numbers[job.key]
            known = tuple(rows[job.key] for job in jobs if job.key in rows)
            waiting = replace(waiting, announced=True, iteration=replace(waiting.iteration, jobs=known))
        if waiting.iteration.jobs:
            self._admit(waiting)

    def take(self) -> Waiting | None:
        """Return the next iteration that may run, or None; call `finish` when it has run."""
        active = [account for account in self._accounts.values() if not account.idle]
        total = sum(account.running for account in active)
        ready = [
            account
            for account in active
            if account.places
            and self._shares.allow(account.running, total, alone=len(active) == 1)
            and self._has_room(account)
        ]
        if not ready:
            return None
        self._passed = max(self._passed, min(account.served for account in active))
        first = min(ready, key=_turn)
        first.running += 1
        taken = self._ready.pop(first.places.pop(0)[1])
        first.consumers += len(taken.iteration.jobs)
        self._forget(taken)
        return taken

    def _has_room(self, account: _AccountQueue) -> bool:
        """Return whether the consumers of an account's next iteration may run beside its others."""
        wanted = len(self._ready[account.places[0][1]].iteration.jobs)
        return not account.running or account.consumers + wanted <= self._consumers_max

    def finish(self, account_name: str, seconds: float, *, consumers: int = 1) -> None:
        """Record that an iteration of the account has given its worker back after so many seconds."""
        account = self._accounts[account_name]
        account.running -= 1
        account.consumers -= consumers
        account.served += max(seconds, QUANTUM_S) / account.weight
        for name, other in list(self._accounts.items()):
            if other.idle and other.served <= self._passed:
                del self._accounts[name]

    def remove(self, key: JobKey) -> Job | None:
        """Remove one job and return it; the others of its iteration keep waiting. None: it does not wait."""
        number = self._numbers.get(key)
        if number is None:
            return None
        waiting = self._ready.get(number) or self._later[number]
        iteration = waiting.iteration
        removed = next(job for job in iteration.jobs if job.key == key)
        left = replace(iteration, jobs=tuple(job for job in iteration.jobs if job.key != key))
        del self._numbers[key]
        if number in self._ready:
            self._withdraw(waiting)
            if left.jobs:
                self._admit(replace(waiting, iteration=left))
        elif left.jobs:
            self._later[number] = replace(waiting, iteration=left)
        else:
            del self._later[number]
            self._parked = [(at, parked) for at, parked in self._parked if parked != number]
        return removed

    def _has_waiting(self, account: str) -> bool:
        everything = chain(self._ready.values(), self._later.values())
        return any(waiting.iteration.account == account for waiting in everything)

    def _admit(self, waiting: Waiting) -> None:
        name = waiting.iteration.account
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = _AccountQueue(self._weights.get(name, 1), self._passed)
        elif account.idle:
            account.served = max(account.served, self._passed)
        insort(account.places, waiting.place)
        self._ready[waiting.number] = waiting
        self._remember(waiting)

    def _withdraw(self, waiting: Waiting) -> None:
        self._accounts[waiting.iteration.account].places.remove(waiting.place)
        del self._ready[waiting.number]

    def _remember(self, waiting: Waiting) -> None:
        for job in waiting.iteration.jobs:
            known = self._numbers.setdefault(job.key, waiting.number)
            assert known == waiting.number, "a job waits in one iteration at a time"

    def _forget(self, waiting: Waiting) -> None:
        for job in waiting.iteration.jobs:
            del self._numbers[job.key]


def _turn(account: _AccountQueue) -> tuple[float, float, int]:
    """Return the sort key of an account; the account with the smallest is next."""
    return account.running / account.weight, account.served, account.places[0][1]
