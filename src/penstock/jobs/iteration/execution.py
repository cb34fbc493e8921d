"""What executes iterations, and what it is made of."""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.clock import SYSTEM, Clock
from penstock.errors import PenstockError
from penstock.follow.source_2 import ScanSource
from penstock.jobs.consumer import Consumer
from penstock.jobs.consumers import find_consumer
from penstock.jobs.iteration.consumer_run import GRACE_S, ConsumerServices, IterationLog
from penstock.jobs.iteration.ending import AttemptCount
from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.iteration.iteration_run import IterationRun, IterationServices, OnEnd
from penstock.jobs.iteration.scratch import Scratch
from penstock.jobs.iteration.shared_scan import ScanConfig
from penstock.jobs.iteration.spark_frame import Frames
from penstock.jobs.job import Job
from penstock.jobs.jobid import JobKey
from penstock.jobs.log.transitions import canceled, pending
from penstock.jobs.usage import UsageMeter
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.jobs.iteration.spark_frame import SparkSession

_log = logging.getLogger(__name__)


class IterationRunner:
    """Executes iterations. Open it before the first attempt.

    `spark` gives the session, with the pool of an account set for the thread that asks; a consumer that
    needs neither it nor `frames` never does. `grace_s` is how long a canceled consumer is waited for.
    """

    def __init__(
        self,
        log: IterationLog,
        source: ScanSource,
        settings: Settings,
        *,
        frames: Frames | None = None,
        spark: "Callable[[str], SparkSession] | None" = None,
        find: Callable[[str], type[Consumer]] = find_consumer,
        usage: UsageMeter | None = None,
        grace_s: float = GRACE_S,
        clock: Clock = SYSTEM,
    ) -> None:
        self.usage = usage or UsageMeter(clock=clock)
        self._clock = clock
        self._tools = IterationServices(
            log=log,
            reading=ScanConfig(source, settings.jobs, frames, clock),
            workshop=ConsumerServices(log, settings, find, spark, clock, grace_s),
            usage=self.usage,
            scratch=Scratch(settings.jobs.data, clock=clock),
        )

    def open(self) -> None:
        """Make a place for scratch files; raise Invalid when there can be none."""
        self._tools.scratch.open()

    def attempt(self, iteration: Iteration, *, last: bool, on_end: OnEnd) -> IterationRun:
        """A try at an iteration, which does not begin yet; `last`: what fails is not tried again."""
        return IterationRun(self._tools, AttemptCount(iteration, last), on_end)

    def announce(self, iterations: Sequence[Iteration]) -> dict[JobKey, Job] | None:
        """Write that iterations wait for a worker; the rows of the jobs that nobody else has taken meanwhile.

        None: the log does not answer.
        """
        waits = [
            (job, pending(each.from_ts, each.to_ts, runner=job.status.runner))
            for each in iterations
            for job in each.jobs
        ]
        try:
            rows = self._tools.log.transact(waits)
        except PenstockError as error:
            _log.warning("that iterations wait cannot be written", extra={"error": str(error)})
            return None
        return {row.key: row for row in rows if row is not None}

    def cancel(self, jobs: Sequence[Job]) -> list[Job | None]:
        """Write that jobs that waited are canceled; what their rows are now, None where that is not known."""
        at = self._clock.wall_ms()
        try:
            return self._tools.log.transact([(job, canceled(at=at)) for job in jobs])
        except PenstockError as error:
            _log.warning("that jobs were canceled cannot be written", extra={"error": str(error)})
            return [None] * len(jobs)

    def close(self) -> None:
        """Keep what was used, and remove the scratch files."""
        self.usage.flush()
        self._tools.scratch.close()
