"""The seams of the runner: log, feed, lease and scheduler, which simulations replace."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.job import Job, JobKey
from penstock.jobs.log.transitions import Transition

if TYPE_CHECKING:
    from penstock.jobs.log.log_feed import LogChange

OnEnd = Callable[[str, JobKey, Job | None], None]
"""Called by the scheduler, from any thread, once for each job of an accepted iteration: when the iteration
has ended for the job, with the row that was written then; None when it is unknown what the log has."""


class RunnerLog(Protocol):
    """The job log, as the runner uses it. Blocks; every method may raise Unavailable."""

    def ensure(self) -> object:
        """Create the table if it does not exist."""

    def read_all(self) -> tuple[int, list[Job]]:
        """Return every row, also of dropped jobs, and the timestamp of this state."""

    def read(self, keys: Iterable[JobKey]) -> list[Job]:
        """Return those of the rows that exist."""

    def transact(self, changes: Sequence[tuple[Job, Transition]]) -> list[Job | None]:
        """Change rows as they were seen; return None for each that another writer has changed."""

    def flush_watermarks(self, raised: Sequence[tuple[Job, int]]) -> list[Job | None]:
        """Write watermarks, and nothing else of a row."""

    def collect(self, dropped_ttl_s: float) -> int:
        """Remove rows that were dropped `dropped_ttl_s` ago; return how many."""


class RunnerFeed(Protocol):
    """The committed changes of the log."""

    def follow(self, ts: int) -> "AsyncGenerator[LogChange, None]":
        """Yield what is committed after a timestamp, at least once; a row's last change comes last."""


class RunnerLease(Protocol):
    """The right to be the one runner."""

    @property
    def epoch(self) -> int:
        """A number greater than the epochs of all former holders."""

    @property
    def lapsed(self) -> bool:
        """Whether another process may have the lease by now: begin nothing."""

    async def renew(self) -> None:
        """Keep the lease; raise Fenced when another process has it."""

    async def give_up(self) -> None:
        """Let another process have the lease at once."""


class RunnerScheduler(Protocol):
    """Executes iterations."""

    def submit(self, iteration: Iteration) -> bool:
        """Accept an iteration and return True, or return False when there is no room. Does not block."""

    def cancel(self, key: JobKey) -> bool:
        """End a job's iteration, but not its siblings'; return whether there was one. Does not block."""

    async def close(self) -> None:
        """End all iterations, and wait."""


AcquireLease = Callable[[], Awaitable[RunnerLease]]
"""Become the one runner; raise Unavailable while another process is."""
OpenScheduler = Callable[[OnEnd], RunnerScheduler]
"""Make the scheduler for the time that one lease is held."""
