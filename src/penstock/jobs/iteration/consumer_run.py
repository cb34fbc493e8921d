"""One consumer of an iteration: it runs in a thread of its own, and retrieves the changes in its columns."""

import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from penstock import metrics, tracing
from penstock.changes.columns import (
    choose_columns,
    own_columns,
    own_key_names,
    with_commit_ts,
)
from penstock.clock import Clock
from penstock.errors import Aborted, Fenced, Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import COMMIT_TS
from penstock.jobs.consumer import (
    Consumer,
    DataType,
    JobContext,
    Retrieved,
    keeps_impossible_dates,
    open_consumer,
    resolve_info,
    secrets_of,
)
from penstock.jobs.error_codes import SchemaRefused, Stalled, TooManyAbandoned, failure_of
from penstock.jobs.iteration.iteration import Ahead, OutcomeKind, OutcomePolicy, RunOutcome, reconcile
from penstock.jobs.iteration.shared_scan import SharedScan
from penstock.jobs.iteration.spark_frame import own_frame
from penstock.jobs.job import Job, JobKey
from penstock.jobs.log.transitions import Transition, complete_iteration
from penstock.jobs.schema_changes import check_names
from penstock.jobs.usage import Usage
from penstock.kv import Transaction
from penstock.settings import Settings
from penstock.tables.impossible_dates import hide, log_columns
from penstock.targets import TenantTargets

if TYPE_CHECKING:
    from penstock.jobs.iteration.spark_frame import DataFrame, SparkSession
    from penstock.spark.labels import JobProgress

_log = logging.getLogger(__name__)

GRACE_S = 10.0
"""How long a canceled consumer may take to end before its job continues without it."""


class IterationLog(Protocol):
    """The rows of jobs, as iterations change them. Blocks; thread-safe."""

    def transact(self, changes: Sequence[tuple[Job, Transition]]) -> list[Job | None]:
        """Apply transitions to rows as they were seen; return None for stale ones. Raises Unavailable."""

    def change(self, txn: Transaction, key: JobKey, lsn: int | None, transition: Transition) -> Job:
        """Apply a transition in a consumer's own transaction; raise Fenced when the row has another lsn."""


class AbandonedConsumers:
    """Counts the consumers of this process that were abandoned and have not returned, by account.

    Thread-safe. While there are other accounts, nothing of an account begins once it has more than a quarter
    of `most`, until they return. So one account cannot make the process end, which interrupts all jobs.
    """

    def __init__(self, most: int = sys.maxsize) -> None:
        self.most = most
        self.accounts: frozenset[str] = frozenset()
        """The accounts that have jobs, as far as it is known."""
        self._part = max(1, most // 4)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, account: str, number: int) -> None:
        """Count one more, or one less."""
        with self._lock:
            self._counts[account] += number
            metrics.JOBS_ABANDONED_CONSUMERS.inc(number)

    @property
    def count(self) -> int:
        """How many there are."""
        with self._lock:
            return self._counts.total()

    @property
    def worn_out(self) -> bool:
        """Whether there are more than `most`; of an account with a part, its part counts."""
        with self._lock:
            counted = (
                count if self._is_alone(account) else min(count, self._part)
                for account, count in self._counts.items()
            )
            return sum(counted) > self.most

    def check(self, account: str) -> None:
        """Raise TooManyAbandoned when an account has more than its part."""
        with self._lock:
            count = self._counts[account]
            if count > self._part and not self._is_alone(account):
                raise TooManyAbandoned(
                    f"{count} consumers of the account do not return, more than a quarter of"
                    " jobs.abandoned_max; nothing of it begins until they do: check the targets of its"
                    " stalled jobs, or restart the process that runs jobs"
                )

    def _is_alone(self, account: str) -> bool:
        return not self.accounts - {account}


@dataclass(frozen=True, slots=True)
class ConsumerServices:
    """What consumers need beside their changes."""

    log: IterationLog
    settings: Settings
    find: Callable[[str], type[Consumer]] | None
    """Finds the class of a consumer's name; None: among those that the settings allow."""
    spark: "Callable[[str], SparkSession] | None"
    clock: Clock
    abandoned: AbandonedConsumers
    grace_s: float = GRACE_S


class ConsumerRun:
    """One run of a job's consumer. `ended` is called once: by its thread, or by the caller of `abandon`.

    `returned` is called when the thread of an abandoned run ends after all. `job` is the row as it was begun:
    any change of it since then fences this run.
    """

    def __init__(
        self,
        job: Job,
        outcomes: OutcomePolicy,
        shared: SharedScan,
        services: ConsumerServices,
        scratch: Path,
        *,
        ended: "Callable[[ConsumerRun, RunOutcome], None]",
        returned: "Callable[[ConsumerRun], None]",
    ) -> None:
        self.job = job
        self.scratch = scratch
        self.give_up_at: float | None = None
        """When to stop waiting for the thread; None while the run is not canceled."""
        self._outcomes = outcomes
        self._shared = shared
        self._services = services
        self._ended = ended
        self._returned = returned
        self._began = self._progress_at = services.clock.monotonic()
        self._consumer: Consumer | None = None
        self._retriever: JobRetriever | None = None
        self._state = threading.Lock()
        self._canceled = False
        self._stalled: Stalled | None = None
        self._over = False
        self._tag = f"penstock-{services.clock.unique_id()}"
        self._session: SparkSession | None = None
        self._on_executors: JobProgress | None = None  # as it was when this was last asked for
        self.abandoned = False
        """Whether the job continues without its thread."""
        self._thread = threading.Thread(
            target=self._run, name=f"penstock-job-{job.key.job_name}", daemon=True
        )

    @property
    def usage(self) -> Usage:
        """What the run has used so far."""
        seconds = self._services.clock.monotonic() - self._began
        found = self._retriever
        if found is None:
            return Usage(task_seconds=seconds)
        return Usage(found.rows, found.nbytes, seconds - found.waited_s)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def cancel(self) -> None:
        """Let the run end soon: the consumer's next call for changes raises Aborted."""
        with self._state:
            if self._canceled:
                return
            self._canceled = True
        self._interrupt()

    @property
    def stalls_at(self) -> float | None:
        """When to look whether the run makes progress; None when it is to end anyway."""
        if self._canceled or self._stalled is not None:
            return None
        now, limit_s = self._services.clock.monotonic(), self._stall_s
        found = self._retriever
        # A consumer that waits for changes waits for the source and for its siblings, not for its target.
        excused = found is not None and found.waiting
        return (now if excused else self._progress_at) + limit_s

    @property
    def _stall_s(self) -> float:
        patience = 1 if self._consumer is None else self._consumer.patience
        return self._services.settings.jobs.stall_s * patience

    def stall(self) -> None:
        """End a run that makes no progress, unless executors do; it counts as failed, and is retried as such.

        What executors do is asked for only now, so a run on them ends after once to twice its time.
        """
        if self._over or self._executors_progress():
            return
        self._stalled = Stalled(
            "the consumer took no changes, its target acknowledged nothing and no Spark task of it completed"
            f" for {self._stall_s:g} s (jobs.stall_s); check the target"
        )
        metrics.JOBS_STALLED_TOTAL.inc()
        self._interrupt()

    def _executors_progress(self) -> bool:
        """Return whether tasks have completed since the last call, wait for cores, or cannot be asked for."""
        session, found = self._session, self._retriever
        if session is None or found is None or not found.on_executors:
            return False
        from penstock.spark.labels import read_progress

        before, self._on_executors = self._on_executors, read_progress(session, self._tag)
        if self._on_executors is None or self._on_executors.waits_for_cores or self._on_executors != before:
            self._note_progress()
            return True
        return False

    def _interrupt(self) -> None:
        self.give_up_at = self._services.clock.monotonic() + self._services.grace_s
        self._shared.leave(self.job.key)
        if self._session is not None:
            from penstock.spark.labels import interrupt_jobs

            threading.Thread(target=interrupt_jobs, args=(self._session, self._tag), daemon=True).start()
        consumer = self._consumer
        if consumer is None:
            return
        try:
            consumer.interrupt()
        except Exception as error:  # noqa: BLE001 - the code is the consumer's; it is abandoned then
            _log.warning(
                "a consumer could not be interrupted",
                extra={"job": str(self.job.id), "error": failure_of(error, self._mask).message},
            )

    def _note_progress(self) -> None:
        self._progress_at = self._services.clock.monotonic()

    def abandon(self) -> None:
        """Stop waiting for a consumer that continues although it was canceled; what it does does not count.

        Its target may accept its commit all the same; the next iteration finds that in the target.
        """
        with self._state:
            if self._over:
                return
            self._over = self.abandoned = True
        self._services.abandoned.add(self.job.account, 1)
        _log.warning(
            "a canceled consumer does not end; its job continues without it",
            extra={"job": str(self.job.id), "consumer": self.job.spec.consumer},
        )
        if self._retriever is not None:
            self._retriever.end("the job was canceled, and its consumer was abandoned")
        self._ended(self, self._decide_end())

    def _decide_end(self) -> RunOutcome:
        """Return the outcome of a run that was made to end."""
        at = self._services.clock.wall_ms()
        if self._canceled or self._stalled is None:
            return self._outcomes.cancel(at=at)
        return self._outcomes.fail(self._stalled, at=at, by_source=False)

    def _run(self) -> None:
        outcome = self._run_consumer()
        with self._state:
            over, self._over = self._over, True
        if not over:
            self._ended(self, outcome)
        elif self.abandoned:
            self._services.abandoned.add(self.job.account, -1)
            _log.info("an abandoned consumer has ended", extra={"job": str(self.job.id)})
            self._returned(self)

    def _run_consumer(self) -> RunOutcome:
        """Bring the target to the end of the iteration."""
        try:
            try:
                outcome = self._consume()
            finally:
                self._shared.leave(self.job.key)
        except BaseException as error:  # noqa: BLE001 - whatever a consumer raises is its job's error alone
            return self._decide_failure(error)
        return outcome

    def _consume(self) -> RunOutcome:
        context = self._context()
        consumer = self._consumer = open_consumer(context, self._services.find)
        try:
            self._check_canceled()
            iteration = self._outcomes.iteration
            found = reconcile(self.job, iteration.from_ts, consumer.committed_ts())
            if isinstance(found, Ahead):
                _log.info("the log follows the target", extra={"job": str(self.job.id), "ts": found.ts})
                return self._outcomes.follow_target(found.ts, at=self._services.clock.wall_ms())
            if found.doubtful:
                self._check_row()
            self._check_canceled()
            scan = self._shared.scan(self.job.account)
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
                self._services.log,
                self._services.clock,
                enter_pool=self._spark,
                progressed=self._note_progress,
            )
            self._check_canceled()
            consumer.consume(data)
            if data.failure is not None:
                raise data.failure
            data.count_consumed()
            data.record_arrival()
            done = self._outcomes.complete(data.to_ts, at=self._services.clock.wall_ms())
            return done if data.written is None else RunOutcome(OutcomeKind.COMPLETED, None)
        finally:
            self._close(consumer)

    def _decide_failure(self, error: BaseException) -> RunOutcome:
        if self._canceled or self._stalled is not None:
            return self._decide_end()
        at = self._services.clock.wall_ms()
        cause = (self._retriever.failure if self._retriever is not None else None) or error
        return self._outcomes.fail(
            cause,
            at=at,
            by_source=self._shared.is_source_error(cause),
            mask=self._mask,
        )

    def _mask(self, message: str) -> str:
        """Return a message without the secrets of the job: a target may repeat them."""
        secrets = secrets_of(self.job.spec.detail.consumer, self._services.settings.jobs.allowed_code)
        return secrets(message)

    def _check_row(self) -> None:
        """Raise Fenced when another run has the job by now.

        While this run owns the row, no newer run has begun, and none has written what the target has.
        """
        if self._services.log.transact([(self.job, lambda job: job)]) == [None]:
            raise Fenced(f"job {self.job.id} was taken over by another process")

    def _check_canceled(self) -> None:
        if self._canceled or self._stalled is not None:
            raise Aborted("the job was canceled")

    def _close(self, consumer: Consumer) -> None:
        try:
            consumer.close()
        except Exception as error:  # noqa: BLE001 - what it has done is durable, or failed before
            _log.warning(
                "a consumer could not be closed",
                extra={"job": str(self.job.id), "error": failure_of(error, self._mask).message},
            )

    @property
    def written(self) -> Job | None:
        """The row as the consumer has written it itself."""
        return None if self._retriever is None else self._retriever.written

    def _context(self) -> JobContext:
        job, services = self.job, self._services
        tenant = TenantTargets.of(services.settings, job.account, recorded=job.confined)
        return JobContext(
            id=job.id,
            key=job.key,
            account=job.account,
            info=resolve_info(job.spec.detail.consumer, tenant),
            settings=services.settings,
            scratch=self.scratch,
            spark=self._spark,
            tenant=tenant,
            clock=services.clock,
            progressed=self._note_progress,
        )

    def _spark(self) -> "SparkSession":
        if self._services.spark is None:
            raise Invalid("the consumer needs Spark; write `engine: spark` in the settings of the runner")
        from penstock.spark.labels import label_thread

        spark = self._services.spark(self.job.account)
        label_thread(spark, f"job {self.job.id}", tag=self._tag)
        self._session = spark
        return spark


class JobRetriever:
    """The DataRetriever of one run of a job; `job` is its row as it was begun."""

    def __init__(
        self,
        job: Job,
        from_ts: int,
        shared: SharedScan,
        log: IterationLog,
        clock: Clock,
        *,
        enter_pool: Callable[[], object],
        progressed: Callable[[], None],
    ) -> None:
        self._job = job
        self._from_ts = from_ts
        self._shared = shared
        self._log = log
        self._clock = clock
        self._enter_pool = enter_pool
        self._note_progress = progressed
        self._scan = shared.scan(job.account)
        table, chosen = self._scan.schema.table, job.spec.detail.consumer.columns
        self._columns = own_columns(table, chosen)
        self._keys = own_key_names(table)
        self._read_names = with_commit_ts(choose_columns(table, chosen)).names
        self._names = with_commit_ts(self._columns).names
        self._end_of_data: Retrieved | None = None
        self._frame: DataFrame | None = None
        self._ended: str = ""
        self._recorder: tracing.StageRecorder | None = None
        # The rows of a snapshot were committed long ago: there is nothing to trace.
        if tracing.current is not None and not self._scan.snapshot:
            self._recorder = tracing.current.start_recorder()
        self._frame_rows = 0
        self.rows = 0
        self.nbytes = 0
        self.waiting = False
        """Whether the consumer waits for changes now."""
        self.waited_s = 0.0
        """How long the consumer has waited for changes; that is not its own work."""
        self.failure: Exception | None = None
        """What kept changes from being read. It is the error of the run, whatever the consumer does with it.
        """
        self.written: Job | None = None
        """The row as the consumer wrote it, in a transaction that the consumer says it has committed."""

    @property
    def data_type(self) -> DataType:
        """SNAPSHOT if the scan reads all rows, else TAIL."""
        return DataType.SNAPSHOT if self._scan.snapshot else DataType.TAIL

    @property
    def from_ts(self) -> int:
        """The watermark of the target; nothing has changed between it and the start of the iteration."""
        return self._from_ts

    @property
    def to_ts(self) -> int:
        """The end of the scan."""
        return self._scan.to_ts

    @property
    def schema(self) -> SchemaVersion:
        """The table at the end of the scan, with all its columns."""
        return self._scan.schema

    @property
    def columns(self) -> pa.Schema:
        """The columns that the job selects; the primary key's come first."""
        return self._columns

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row: the primary key, or `_handle`."""
        return self._keys

    @property
    def on_spark(self) -> bool:
        """Whether there is Spark, so that `dataframe` works."""
        return self._shared.on_spark

    @property
    def large(self) -> bool:
        """The same as `on_spark`."""
        return self.on_spark

    @property
    def on_executors(self) -> bool:
        """Whether the changes were taken as a DataFrame."""
        return self._frame is not None

    def next(self) -> Retrieved:
        """Return the next changes in the job's columns; after the last ones, the empty end every time."""
        if self._end_of_data is not None:
            return self._end_of_data
        asked_at = self._clock.monotonic()
        self.waiting = True
        try:
            batch = self._shared.take(self._job.key)
        except Exception as error:
            self.failure = error
            raise
        finally:
            self.waited_s += self._clock.monotonic() - asked_at
            self._note_progress()
            self.waiting = False
        assert batch is not None, "the last batch says that it is the last"
        self.rows += batch.rows
        if self._recorder is not None:
            self._recorder.add(batch.inserts.column(COMMIT_TS).to_numpy())
            self._recorder.add(batch.deletes.column(COMMIT_TS).to_numpy())
        inserts = self._hide_dates(batch.inserts.select(self._read_names)).rename_columns(self._names)
        deletes = self._hide_dates(batch.deletes).rename_columns([*self._keys, self._names[-1]])
        self.nbytes += inserts.nbytes + deletes.nbytes
        if batch.last:
            self.failure = None  # of a DataFrame that could not be made: the batches brought everything
            self._end_of_data = Retrieved(inserts.slice(0, 0), deletes.slice(0, 0), no_more_data=True)
        return Retrieved(inserts, deletes, batch.last)

    def _hide_dates(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with null for dates that no calendar has, unless the target has such dates."""
        if keeps_impossible_dates(self._job.spec.detail.consumer):
            return rows
        shown, columns = hide(rows)
        if columns:
            metrics.CHANGES_HIDDEN_DATES_TOTAL.inc()
            log_columns(self._scan.schema.name, columns)
        return shown

    def dataframe(self) -> "DataFrame":
        """Return all changes, in the job's columns, out of the DataFrame that the iteration shares."""
        if self._frame is None:
            self._frame = self._take_frame()
        return self._frame

    def _take_frame(self) -> "DataFrame":
        self.waiting = True  # for the executors that read it
        try:
            self._enter_pool()
            shared = self._shared.frame(self._job.key)
        except Exception as error:
            self.failure = error
            raise
        finally:
            self._note_progress()
            self.waiting = False
        self._shared.leave(self._job.key, Invalid("the changes were taken as a DataFrame already"))
        self._frame_rows = shared.rows
        self.rows, self.nbytes = self._scan.rows, self._scan.nbytes
        if self._recorder is not None:
            self._recorder.add_pairs(shared.traced)
        chosen = self._job.spec.detail.consumer.columns
        return own_frame(shared.dataframe, self._scan.schema.table, chosen)

    def update_watermark(self, txn: Transaction) -> None:
        """Write the job's row in the consumer's transaction; raise Fenced when the run has lost the job."""
        if self._ended:
            raise Fenced(self._ended)
        at = self._clock.wall_ms()
        self.written = self._log.change(
            txn, self._job.key, self._job.status.lsn, complete_iteration(self.to_ts, at=at)
        )

    def count_consumed(self) -> None:
        """Count the rows that the target has by now, by who worked on them."""
        if self.on_executors:
            metrics.ROWS_TOTAL.labels("consume", "spark").inc(self._frame_rows)
        else:
            metrics.ROWS_TOTAL.labels("consume", "local").inc(self.rows)

    def record_arrival(self) -> None:
        """Record for traced transactions that the target has what was retrieved."""
        if self._recorder is None:
            return
        self._recorder.record_arrival(
            tracing.Stage.JOB,
            key=self._job.key.owner,
            table_id=self._job.key.table_id,
            table=self._scan.schema.name,
            job=str(self._job.id),
            consumer=self._job.spec.consumer,
        )

    def end(self, why: str) -> None:
        """Ignore whatever the consumer does from now on; `why` is the message of the Fenced that it gets."""
        self._ended = why
        self._shared.leave(self._job.key)
