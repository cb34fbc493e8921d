"""What the runner works with: the log and its feed, the lease, and the scheduler."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.job import Job, JobKey
from penstock.jobs.log.transitions import Transition

if TYPE_CHECKING:
    from penstock.jobs.log.log_feed import LogChange

OnEnd = Callable[[str, JobKey, Job | None], None]
"""Called by the scheduler, from any thread, once for each job of an iteration that it has accepted: when that
has ended for the job, with the row that was written then; None when nobody knows what the log has."""


class RunnerLog(Protocol):
    """The job log. Blocks; every method may raise Unavailable. See penstock.jobs.log.job_log."""

    def ensure(self) -> object:
        """Make the table if it is not there."""

    def read_all(self) -> tuple[int, list[Job]]:
        """Every row, also of dropped jobs, and the timestamp at which they are like this."""

    def read(self, keys: Iterable[JobKey]) -> list[Job]:
        """The rows of these keys that there are."""

    def transact(self, changes: Sequence[tuple[Job, Transition]]) -> list[Job | None]:
        """Change rows as they were seen; None for each that somebody else has changed."""

    def flush_watermarks(self, raised: Sequence[tuple[Job, int]]) -> list[Job | None]:
        """Write watermarks, and nothing else of a row."""

    def collect(self, dropped_ttl_s: float) -> int:
        """Remove rows that were dropped so long ago; return how many."""


class RunnerFeed(Protocol):
    """What becomes of the log."""

    def follow(self, ts: int) -> "AsyncGenerator[LogChange, None]":
        """Everything that is committed after a timestamp, at least once, each row's last change last."""


class RunnerLease(Protocol):
    """The right to be the one runner."""

    @property
    def epoch(self) -> int:
        """Greater than that of all who had it before."""

    @property
    def lapsed(self) -> bool:
        """Whether somebody else may have it by now: begin nothing."""

    async def renew(self) -> None:
        """Keep it; raise Fenced when somebody else has it."""

    async def give_up(self) -> None:
        """Let another one have it at once."""


class RunnerScheduler(Protocol):
    """Executes iterations."""

    def submit(self, iteration: Iteration) -> bool:
        """Accept an iteration whole, or not at all: there is no room. Does not block."""

    def cancel(self, key: JobKey) -> bool:
        """End a job's iteration, without its siblings; whether there was one. Does not block."""

    async def close(self) -> None:
        """End all of them, and wait."""


AcquireLease = Callable[[], Awaitable[RunnerLease]]
"""Become the one runner; raise Unavailable while somebody else is."""
OpenScheduler = Callable[[OnEnd], RunnerScheduler]
"""Make the scheduler for the time that one lease is held."""
