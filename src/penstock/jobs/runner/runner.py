"""The process that runs jobs: wait for the lease, run jobs while it is held, then start again."""

import logging
from collections.abc import Callable, Iterable

from penstock.clock import SYSTEM, Clock
from penstock.errors import Fenced, PenstockError
from penstock.follow.source import ScanSource
from penstock.jobs.iteration.consumer_run import AbandonedConsumers
from penstock.jobs.runner.board import JobBoard
from penstock.jobs.runner.lease_term import LeaseTerm, SideTask
from penstock.jobs.runner.seams import AcquireLease, OpenScheduler, RunnerFeed, RunnerLease, RunnerLog
from penstock.metrics import JOBS_RUNNER, JOBS_TAKEOVERS_TOTAL
from penstock.settings import JobsSettings

_WAIT_S = 1.0

_log = logging.getLogger(__name__)


class WornOut(PenstockError):
    """Too many consumers of this process were abandoned and have not returned; only its end ends them."""


def watch_abandoned(abandoned: AbandonedConsumers, *, clock: Clock = SYSTEM) -> SideTask:
    """Return the side task that ends the process, by WornOut, once too many are abandoned."""

    async def watch(board: JobBoard, _lease: RunnerLease) -> None:
        while not abandoned.worn_out:
            await clock.sleep(_WAIT_S)
            abandoned.accounts = frozenset(tracked.job.account for tracked in board)
        raise WornOut(
            f"more than {abandoned.most} consumers do not return (jobs.abandoned_max); the process ends to be"
            " rid of them: restart it, and check the targets of stalled jobs"
        )

    return watch


class JobRunner:
    """Runs the jobs of a cluster whenever no other process does, until it is cancelled.

    Any number of processes may have one: the others stand by. Whatever ends a term, except cancellation, is
    logged and followed by another try: all that counts is in the log and in the targets. WornOut is raised.
    """

    def __init__(
        self,
        settings: JobsSettings,
        *,
        acquire: AcquireLease,
        log: RunnerLog,
        feed: RunnerFeed,
        source: ScanSource,
        open_scheduler: OpenScheduler,
        side_tasks: Iterable[SideTask] = (),
        on_jobs: Callable[[], None] | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Make a runner; `side_tasks` run beside the iterations while the lease is held.

        `on_jobs` is called when this process begins to run jobs and there is one; maybe more than once.
        """
        self._settings = settings
        self._acquire = acquire
        self._log = log
        self._feed = feed
        self._source = source
        self._open_scheduler = open_scheduler
        self._side_tasks = tuple(side_tasks)
        self._on_jobs = on_jobs
        self._clock = clock
        self._last_reason = ""

    async def run(self) -> None:
        """Wait for the lease and run jobs, again and again."""
        while True:
            lease = await self._acquire_lease()
            if lease is not None:
                await self._run_term(lease)
            await self._clock.sleep(_WAIT_S)

    async def _acquire_lease(self) -> RunnerLease | None:
        """Try to become the one runner; return None while another process is."""
        try:
            lease = await self._acquire()
        except PenstockError as error:
            if self._last_reason != str(error):  # tried every second: log each reason once
                self._last_reason = str(error)
                _log.info("this process does not run jobs for now", extra={"reason": self._last_reason})
            return None
        self._last_reason = ""
        return lease

    async def _run_term(self, lease: RunnerLease) -> None:
        JOBS_RUNNER.set(1)
        JOBS_TAKEOVERS_TOTAL.inc()
        try:
            await LeaseTerm(
                self._settings,
                lease,
                self._log,
                self._feed,
                self._source,
                self._open_scheduler,
                side_tasks=self._side_tasks,
                on_jobs=self._on_jobs,
                clock=self._clock,
            ).run()
        except WornOut:
            raise
        except Fenced as error:
            _log.warning("another process runs the jobs now", extra={"reason": str(error)})
        except PenstockError as error:
            _log.error("running jobs failed; it starts again", extra={"error": str(error)})
        except Exception:  # noqa: BLE001 - whatever it was, the next term starts from what is in the log
            _log.exception("running jobs failed; it starts again")
        finally:
            JOBS_RUNNER.set(0)
            await self._give_up(lease)

    async def _give_up(self, lease: RunnerLease) -> None:
        try:
            await lease.give_up()
        except PenstockError as error:
            _log.warning("the runner's lease could not be given up; it expires", extra={"reason": str(error)})
