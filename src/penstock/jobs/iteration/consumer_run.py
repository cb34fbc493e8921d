"""One consumer at work on its share of an iteration, in a thread of its own.

What a consumer is given: the changes of its iteration, in its own columns.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from penstock import metrics, tracing
from penstock.changes.columns import DELETED, chosen_columns, key_names, with_commit_ts
from penstock.clock import Clock
from penstock.errors import Aborted, Fenced, Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import COMMIT_TS
from penstock.jobs.consumer import Consumer, DataType, JobContext, Retrieved
from penstock.jobs.error_codes import SchemaRefused, failure_of
from penstock.jobs.iteration.iteration import Ahead, AttemptCount, OutcomeKind, RunOutcome, reconcile
from penstock.jobs.iteration.shared_scan import SharedScan
from penstock.jobs.iteration.spark_frame import quoted
from penstock.jobs.job import Job, JobKey
from penstock.jobs.log.transitions import Transition, completed
from penstock.jobs.schema_changes import check_names
from penstock.jobs.usage import Usage
from penstock.kv import Transaction
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.jobs.iteration.spark_frame import DataFrame, SparkSession


class WatermarkLog(Protocol):
    """What writes a watermark in a consumer's own transaction."""

    def change(self, txn: Transaction, key: JobKey, lsn: int | None, transition: Transition) -> Job:
        """Apply a transition in the transaction; Fenced when the row has another lsn."""


class JobRetriever:
    """Implements DataRetriever for one try of a job; `job` is its row as it was begun."""

    def __init__(
        self,
        job: Job,
        from_ts: int,
        shared: SharedScan,
        log: WatermarkLog,
        clock: Clock,
        *,
        enter_pool: Callable[[], object],
    ) -> None:
        self._job = job
        self._from_ts = from_ts
        self._shared = shared
        self._log = log
        self._clock = clock
        self._enter_pool = enter_pool
        self._scan = shared.scan()
        self._columns = chosen_columns(self._scan.schema.table, job.spec.detail.consumer.columns)
        self._keys = key_names(self._scan.schema.table)
        self._names = with_commit_ts(self._columns).names
        self._nothing: Retrieved | None = None
        self._frame: DataFrame | None = None
        self._ended: str = ""
        self._passage: tracing.StageRecorder | None = None
        if (
            tracing.current is not None and not self._scan.snapshot
        ):  # a snapshot's rows were committed long ago
            self._passage = tracing.current.passage()
        self.rows = 0
        self.nbytes = 0
        self.waited_s = 0.0
        """How long the consumer has waited for changes: that is no work of its own."""
        self.failure: Exception | None = None
        """What kept changes from being read: it counts, whatever the consumer makes of it."""
        self.written: Job | None = None
        """The row as the consumer has written it, in a transaction that it says it has committed."""

    @property
    def data_type(self) -> DataType:
        """See DataRetriever."""
        return DataType.SNAPSHOT if self._scan.snapshot else DataType.TAIL

    @property
    def from_ts(self) -> int:
        """See DataRetriever: what the target has, where nothing has changed since up to the iteration's."""
        return self._from_ts

    @property
    def to_ts(self) -> int:
        """See DataRetriever."""
        return self._scan.to_ts

    @property
    def schema(self) -> SchemaVersion:
        """See DataRetriever."""
        return self._scan.schema

    @property
    def columns(self) -> pa.Schema:
        """See DataRetriever."""
        return self._columns

    @property
    def keys(self) -> tuple[str, ...]:
        """See DataRetriever."""
        return self._keys

    @property
    def large(self) -> bool:
        """See DataRetriever."""
        return self._shared.on_executors

    def next(self) -> Retrieved:
        """See DataRetriever. Once there is no more data, it says so again."""
        if self._nothing is not None:
            return self._nothing
        asked_at = self._clock.monotonic()
        try:
            piece = self._shared.take(self._job.key)
        except Exception as error:
            self.failure = error
            raise
        finally:
            self.waited_s += self._clock.monotonic() - asked_at
        assert piece is not None, "the last piece says that it is"
        self.rows += piece.rows
        if self._passage is not None:
            self._passage.add(piece.inserts.column(COMMIT_TS).to_numpy())
            self._passage.add(piece.deletes.column(COMMIT_TS).to_numpy())
        inserts = piece.inserts.select(self._names)
        self.nbytes += inserts.nbytes + piece.deletes.nbytes
        if piece.last:
            self.failure = None  # of a DataFrame that there was none: it has everything all the same
            self._nothing = Retrieved(inserts.slice(0, 0), piece.deletes.slice(0, 0), no_more_data=True)
        return Retrieved(inserts, piece.deletes, piece.last)

    def dataframe(self) -> "DataFrame":
        """See DataRetriever."""
        if self._frame is None:
            self._frame = self._taken()
        return self._frame

    def _taken(self) -> "DataFrame":
        try:
            self._enter_pool()
            shared = self._shared.frame(self._job.key)
        except Exception as error:
            self.failure = error
            raise
        self._shared.leave(self._job.key, Invalid("the changes were taken as a DataFrame already"))
        self.rows, self.nbytes = self._scan.rows, self._scan.nbytes
        if self._passage is not None:
            self._passage.add_pairs(shared.traced)
        return shared.dataframe.select(*map(quoted, (*self._columns.names, COMMIT_TS, DELETED)))

    def update_watermark(self, txn: Transaction) -> None:
        """See DataRetriever."""
        if self._ended:
            raise Fenced(self._ended)
        at = self._clock.wall_ms()
        self.written = self._log.change(
            txn, self._job.key, self._job.status.lsn, completed(self.to_ts, at=at)
        )

    def arrived(self) -> None:
        """The target has what was retrieved: tell of it where that is traced."""
        if self._passage is None:
            return
        self._passage.arrived(
            tracing.Stage.JOB,
            key=self._job.key.owner,
            table_id=self._job.key.table_id,
            table=self._scan.schema.name,
            job=str(self._job.id),
            consumer=self._job.spec.consumer,
        )

    def end(self, why: str) -> None:
        """Nothing that the consumer does from now on counts."""
        self._ended = why
        self._shared.leave(self._job.key)


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
