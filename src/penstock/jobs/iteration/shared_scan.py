"""The changes of an iteration, read once for all of its jobs, when the first of them asks.

On Spark, rounds read them (`range_read`); with `engine: local` this process does.
"""

import logging
import shutil
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from penstock import eventloop, metrics
from penstock.changes.columns import choose_columns
from penstock.clock import SYSTEM, Clock
from penstock.columnar.spill_queue import SpillQueue
from penstock.errors import Aborted, Invalid, StaleRead, Unavailable
from penstock.follow.source import ScanSource, TableGone, TableScan
from penstock.jobs.error_codes import failure_of
from penstock.jobs.iteration.caps import caps_of
from penstock.jobs.iteration.fan_out import UNCOUNTED, FanOut, SpoolTotals
from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.iteration.ordering import BatchProjection, ConsumerBatch, iter_in_order, mark_last
from penstock.jobs.iteration.range_read import EarlyRead, RangeRead, RoundReader, union_columns
from penstock.jobs.iteration.spark_frame import Frames, SharedFrame
from penstock.jobs.job import Job, JobKey
from penstock.settings import JobsSettings

_log = logging.getLogger(__name__)

T = TypeVar("T")


class _Once(Generic[T]):
    """Makes a value when it is first needed; other callers wait, and all get the same value or error."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: list[T] = []
        self.failure: Exception | None = None

    def get(self) -> T:
        with self._lock:
            if self.failure is not None:
                raise self.failure
            if not self._made:
                try:
                    self._made.append(self._make())
                except Exception as error:
                    self.failure = error
                    raise
            return self._made[0]

    @property
    def made(self) -> T | None:
        """The value, or None before it was made."""
        return self._made[0] if self._made else None


@dataclass(frozen=True, slots=True)
class ScanConfig:
    """Where ranges are read, and how."""

    source: ScanSource
    settings: JobsSettings
    frames: Frames | None = None
    reader: RoundReader | None = None
    """Reads batches on Spark; None: this process reads them."""
    clock: Clock = SYSTEM
    spools: SpoolTotals = UNCOUNTED


class SharedScan:
    """One range for many jobs. Thread-safe; nothing is read before a consumer asks.

    An error of the source is raised to every job, and a table that was another account's to the jobs that
    may not read it; `is_source_error` tells these from an error of one job. `early` is what was read of the
    range before.
    """

    def __init__(
        self,
        config: ScanConfig,
        iteration: Iteration,
        jobs: Iterable[Job],
        scratch: Path,
        early: EarlyRead | None = None,
    ) -> None:
        self._config = config
        self._early = early
        self._range_read: RangeRead | None = None if early is None else early.read
        self._iteration = iteration
        self._jobs = tuple(jobs)
        self._scratch = scratch
        self._scan = _Once(self._find_scan)
        self._refusals: set[TableGone] = set()
        self._frame = _Once(self._open_frame)
        self._failure: Exception | None = None
        self._finished = False
        self._reader: threading.Thread | None = None
        self._starting = threading.Lock()
        self.read_seconds = 0.0
        settings = config.settings
        self._fanout: FanOut[ConsumerBatch] = FanOut(
            [job.key for job in self._jobs],
            batches_max=settings.consumer_batches,
            patience_s=settings.consumer_patience_s,
            spool_bytes=settings.spool_bytes,
            open_spool=lambda number: SpillQueue(
                scratch / f"spool-{self._number(number)}", ConsumerBatch._make
            ),
            account=iteration.account,
            totals=config.spools,
            clock=config.clock,
        )

    def scan(self, account: str) -> TableScan:
        """Return the range with its end fixed; raise the source's error to every caller.

        Raises TableGone when the table was not the account's in all of the range. Its jobs must not take
        batches then.
        """
        scan = self._scan.get()
        try:
            return scan.check_account(account)
        except TableGone as error:
            self._refusals.add(error)
            raise

    def take(self, key: JobKey) -> ConsumerBatch | None:
        """Return the next batch for a job, None after the last; the first call starts the reader.

        Raises the error of the source, CutOff when the consumer was too slow, Aborted when it was canceled,
        and Unavailable when its spool failed.
        """
        with self._starting:
            if self._reader is None:
                self._reader = threading.Thread(
                    target=self._read, name=f"penstock-scan-{self._iteration.table_id}", daemon=True
                )
                self._reader.start()
        return self._fanout.take(key)

    def frame(self, key: JobKey) -> SharedFrame:
        """Return the changes on executors for a job that has not left; raise Invalid without Spark."""
        self._fanout.check(key)
        return self._frame.get()

    @property
    def on_spark(self) -> bool:
        """Whether there is Spark."""
        return self._config.frames is not None

    @property
    def batches_taken(self) -> bool:
        """Whether a job has asked for batches."""
        return self._reader is not None

    def leave(self, key: JobKey, reason: Exception | None = None) -> None:
        """Give a job no more batches; its next call raises `reason`, by default that it was canceled."""
        self._fanout.close(key, reason)

    def is_source_error(self, error: BaseException) -> bool:
        """Return whether this is the error of the source."""
        return error in {self._failure, self._scan.failure, self._frame.failure, *self._refusals}

    def finish(self, wait_s: float) -> bool:
        """Release everything; return False when the reader does not end in time."""
        for job in self._jobs:
            self._fanout.close(job.key)
        self._finished = True
        if self._range_read is not None:
            self._range_read.close()
        if self._frame.made is not None:
            try:
                self._frame.made.release()
            except Exception as error:  # noqa: BLE001 - Spark releases it when the session ends
                _log.warning("a DataFrame could not be released", extra={"error": failure_of(error).message})
        if self._reader is None:
            return True
        self._reader.join(wait_s)
        return not self._reader.is_alive()

    def _find_scan(self) -> TableScan:
        if self._early is not None:
            return self._early.scan
        iteration, source = self._iteration, self._config.source
        caps = caps_of(iteration, self._config.settings)
        try:
            return source.scan(iteration.table_id, iteration.from_ts, caps.to_ts, caps.limit)
        except StaleRead:
            if not iteration.first:
                raise
        # History does not reach back to the watermark of the other jobs, where this first sync should end.
        # So it ends now instead, and the jobs meet later.
        return source.scan(iteration.table_id, 0, self._readable_ts(), caps.limit)

    def _readable_ts(self) -> int:
        table_id = self._iteration.table_id
        progress = eventloop.run(self._config.source.read_progress([table_id])).get(table_id)
        if progress is None:
            raise Unavailable(
                f"table {table_id} is not captured; start a capture whose capture.tables name it"
            )
        return progress.readable_ts

    def _columns(self) -> list[str] | None:
        return union_columns(self._scan.get(), self._jobs)

    def _open_frame(self) -> SharedFrame:
        if self._config.frames is None:
            raise Invalid("the consumer needs Spark; write `engine: spark` in the settings of the runner")
        metrics.JOBS_SCANS_TOTAL.labels("frame").inc()
        frame = self._config.frames.open(self._scan.get(), self._columns())
        if self._finished:  # the consumer that asked was abandoned: nothing else would release it
            frame.release()
            raise Aborted("the job was canceled")
        return frame

    def _read(self) -> None:
        began = self._config.clock.monotonic()
        try:
            self._give_batches()
        except Exception as error:  # noqa: BLE001 - it is raised to every consumer that asks for the next batch
            self._failure = error
            self._fanout.fail(error)
        finally:
            self._count_seconds(self._config.clock.monotonic() - began)

    def _count_seconds(self, seconds: float) -> None:
        """Count the time of the tasks that have read; without Spark that of the reader."""
        self.read_seconds = seconds if self._range_read is None else self._range_read.seconds

    def _give_batches(self) -> None:
        scan, columns = self._scan.get(), self._columns()
        projection = BatchProjection(
            scan.schema, choose_columns(scan.schema.table, columns).names, impossible_dates=True
        )
        metrics.JOBS_SCANS_TOTAL.labels("batches").inc()
        rows_read = metrics.ROWS_TOTAL.labels("read", "local" if self._config.reader is None else "spark")
        with closing(self._open_batches(scan, columns, projection)) as ordered:
            for batch in mark_last(ordered, projection.nothing):
                rows_read.inc(batch.rows)
                if not self._fanout.give(batch):
                    return
        self._fanout.end()

    def _open_batches(
        self, scan: TableScan, columns: list[str] | None, projection: BatchProjection
    ) -> Generator[ConsumerBatch, None, None]:
        reader = self._config.reader
        if reader is None:
            yield from self._read_here(scan, columns, projection)
            return
        if self._range_read is None:
            self._range_read = reader.begin(scan, columns, self._iteration.account)
        if self._finished:  # everybody has left while the range was planned
            self._range_read.close()
        yield from self._range_read.batches()

    def _read_here(
        self, scan: TableScan, columns: list[str] | None, projection: BatchProjection
    ) -> Iterator[ConsumerBatch]:
        scratch = self._scratch / "reader"
        try:
            with (
                self._config.source.open(scan, columns, impossible_dates=True) as handle,
                closing(iter_in_order(handle, projection, scratch)) as ordered,
            ):
                yield from ordered
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _number(self, key: object) -> int:
        return next(number for number, job in enumerate(self._jobs) if job.key == key)
