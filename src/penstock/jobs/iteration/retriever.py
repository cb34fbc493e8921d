"""What a consumer is given: the changes of its iteration, in its own columns."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from penstock import tracing
from penstock.changes.columns import DELETED, chosen_columns, key_names, with_commit_ts
from penstock.clock import Clock
from penstock.errors import Fenced, Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import COMMIT_TS
from penstock.jobs.consumer import DataType, Retrieved
from penstock.jobs.iteration.shared_scan import SharedScan
from penstock.jobs.iteration.spark_frame import quoted
from penstock.jobs.job import Job
from penstock.jobs.jobid import JobKey
from penstock.jobs.log.transitions import Transition, completed
from penstock.kv import Transaction

if TYPE_CHECKING:
    from penstock.jobs.iteration.spark_frame import DataFrame


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
