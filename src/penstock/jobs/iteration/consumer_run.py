"""One consumer at work on its share of an iteration, in a thread of its own."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from penstock import metrics
from penstock.clock import Clock
from penstock.errors import Aborted, Fenced, Invalid
from penstock.jobs.consumer import Consumer, JobContext
from penstock.jobs.error_codes import SchemaRefused, failure_of
from penstock.jobs.iteration.ending import AttemptCount, OutcomeKind, RunOutcome
from penstock.jobs.iteration.reconciling import Ahead, reconcile
from penstock.jobs.iteration.retriever import JobRetriever, WatermarkLog
from penstock.jobs.iteration.shared_scan import SharedScan
from penstock.jobs.job import Job
from penstock.jobs.log.transitions import Transition
from penstock.jobs.schema_changes import check_names
from penstock.jobs.usage import Usage
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.jobs.iteration.spark_frame import SparkSession

_log = logging.getLogger(__name__)

GRACE_S = 10.0
"""How long a consumer that was canceled may take to end, before its job goes on without it."""


class IterationLog(WatermarkLog, Protocol):
    """Where the rows of jobs are. Blocks; thread-safe."""

    def transact(self, changes: Sequence[tuple[Job, Transition]]) -> list[Job | None]:
        """Apply transitions to rows as they were seen; None where one was stale. Raises Unavailable."""


@dataclass(frozen=True, slots=True)
class ConsumerServices:
    """What consumers need beside their changes."""

    log: IterationLog
    settings: Settings
    find: Callable[[str], type[Consumer]]
    spark: "Callable[[str], SparkSession] | None"
    clock: Clock
    grace_s: float = GRACE_S


class ConsumerRun:
    """A job's try. `ended` is called once: by its thread, or by whoever gives up waiting for that.

    `job` is the row as it was begun: whoever has changed it since fences this try.
    """

    def __init__(
        self,
        job: Job,
        attempt: AttemptCount,
        shared: SharedScan,
        workshop: ConsumerServices,
        scratch: Path,
        *,
        ended: "Callable[[ConsumerRun, RunOutcome], None]",
    ) -> None:
        self.job = job
        self.scratch = scratch
        self.give_up_at: float | None = None
        """When to wait no longer; None while nobody has canceled it."""
        self._attempt = attempt
        self._shared = shared
        self._workshop = workshop
        self._ended = ended
        self._began = workshop.clock.monotonic()
        self._retriever: JobRetriever | None = None
        self._state = threading.Lock()
        self._canceled = False
        self._over = False
        self.abandoned = False
        """Somebody has given up waiting for its thread."""
        self._thread = threading.Thread(
            target=self._run, name=f"penstock-job-{job.key.job_name}", daemon=True
        )

    @property
    def usage(self) -> Usage:
        """What it has used so far."""
        seconds = self._workshop.clock.monotonic() - self._began
        found = self._retriever
        if found is None:
            return Usage(task_seconds=seconds)
        return Usage(found.rows, found.nbytes, seconds - found.waited_s)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def cancel(self) -> None:
        """Let it end soon: its next look for changes raises Aborted."""
        with self._state:
            if self._canceled:
                return
            self._canceled = True
        self.give_up_at = self._workshop.clock.monotonic() + self._workshop.grace_s
        self._shared.leave(self.job.key)

    def abandon(self) -> None:
        """Wait no longer for a consumer that goes on although it was canceled: what it does does not count.

        Its target may take its commit all the same; the next iteration finds that there.
        """
        with self._state:
            if self._over:
                return
            self._over = self.abandoned = True
        metrics.JOBS_ABANDONED_CONSUMERS.inc()
        _log.warning(
            "a consumer does not end although its job was canceled; the job goes on without it",
            extra={"job": str(self.job.id), "consumer": self.job.spec.consumer},
        )
        if self._retriever is not None:
            self._retriever.end("the job was canceled, and its consumer given up")
        self._ended(self, self._attempt.canceled(at=self._workshop.clock.wall_ms()))

    def _run(self) -> None:
        ending = self._carry()
        with self._state:
            over, self._over = self._over, True
        if not over:
            self._ended(self, ending)
        elif self.abandoned:
            metrics.JOBS_ABANDONED_CONSUMERS.dec()
            _log.info("a consumer that was given up has ended", extra={"job": str(self.job.id)})

    def _carry(self) -> RunOutcome:
        """Bring the target to the end of the iteration."""
        try:
            try:
                ending = self._consume()
            finally:
                self._shared.leave(self.job.key)
        except BaseException as error:  # noqa: BLE001 - whatever a consumer raises is its job's error alone
            return self._failed(error)
        return ending

    def _consume(self) -> RunOutcome:
        context = self._context()
        consumer = self._workshop.find(context.info.consumer or "")(context)
        try:
            iteration = self._attempt.iteration
            found = reconcile(self.job, iteration.from_ts, consumer.committed_ts())
            if isinstance(found, Ahead):
                _log.info("the log follows the target", extra={"job": str(self.job.id), "ts": found.ts})
                return self._attempt.followed(found.ts, at=self._workshop.clock.wall_ms())
            if found.doubtful:
                self._check_row()
            self._check_canceled()
            scan = self._shared.scan()
            if scan.before is not None:
                check_names(scan.before.table, scan.schema.table, context.info.columns or ())
            try:
                consumer.check(scan.schema)
            except Invalid as error:
                raise SchemaRefused(str(error)) from error
            data = self._retriever = JobRetriever(
                self.job,
                found.from_ts,
                self._shared,
                self._workshop.log,
                self._workshop.clock,
                enter_pool=self._spark,
            )
            self._check_canceled()
            consumer.consume(data)
            if data.failure is not None:
                raise data.failure
            data.arrived()
            done = self._attempt.completed(data.to_ts, at=self._workshop.clock.wall_ms())
            return done if data.written is None else RunOutcome(OutcomeKind.COMPLETED, None)
        finally:
            self._close(consumer)

    def _failed(self, error: BaseException) -> RunOutcome:
        at = self._workshop.clock.wall_ms()
        if self._canceled:
            return self._attempt.canceled(at=at)
        cause = (self._retriever.failure if self._retriever is not None else None) or error
        return self._attempt.stopped(cause, at=at, by_source=self._shared.failed_by_source(cause))

    def _check_row(self) -> None:
        """Raise Fenced when another try has the job by now.

        While the row is this try's, no newer one has begun, and none has written what the target has.
        """
        if self._workshop.log.transact([(self.job, lambda job: job)]) == [None]:
            raise Fenced(f"job {self.job.id} was taken over by somebody else")

    def _check_canceled(self) -> None:
        if self._canceled:
            raise Aborted("the job was canceled")

    def _close(self, consumer: Consumer) -> None:
        try:
            consumer.close()
        except Exception as error:  # noqa: BLE001 - what it has done is durable, or failed before
            _log.warning(
                "a consumer could not be closed",
                extra={"job": str(self.job.id), "error": failure_of(error).message},
            )

    @property
    def written(self) -> Job | None:
        """The row as the consumer has written it itself."""
        return None if self._retriever is None else self._retriever.written

    def _context(self) -> JobContext:
        job, workshop = self.job, self._workshop
        return JobContext(
            id=job.id,
            key=job.key,
            account=job.account,
            info=job.spec.detail.consumer,
            settings=workshop.settings,
            scratch=self.scratch,
            spark=self._spark,
            clock=workshop.clock,
        )

    def _spark(self) -> "SparkSession":
        if self._workshop.spark is None:
            raise Invalid("there is no Spark here for this consumer; run jobs with a Spark session")
        return self._workshop.spark(self.job.account)
