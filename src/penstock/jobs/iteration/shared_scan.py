"""The changes of an iteration, read once for all of its jobs, when the first of them asks.

How much one iteration takes, so that a job that lags never becomes one endless transaction. Pure.
"""

import logging
import shutil
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from penstock import eventloop, metrics
from penstock.changes.columns import choose_columns, key_names
from penstock.changes.limits import ReadLimit
from penstock.clock import SYSTEM, Clock, compose_ts, physical_ms
from penstock.columnar.spill_queue import SpillQueue
from penstock.durations import parse_duration
from penstock.errors import Aborted, Invalid, StaleRead, Unavailable
from penstock.follow.source import ScanSource, TableScan
from penstock.jobs.error_codes import failure_of
from penstock.jobs.iteration.fan_out import FanOut
from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.iteration.ordering import ConsumerBatch, BatchProjection, mark_last, iter_in_order
from penstock.jobs.iteration.spark_frame import Frames, SharedFrame
from penstock.jobs.job import Job, JobKey
from penstock.settings import JobsSettings


@dataclass(frozen=True, slots=True)
class Caps:
    """The end of an iteration at the latest, and how many changes it takes until then."""

    to_ts: int
    limit: ReadLimit


def caps_of(iteration: Iteration, settings: JobsSettings) -> Caps:
    """The narrowest of what its jobs want, each by its spec or else by the settings.

    A first sync is all rows at one timestamp: it is not divided.
    """
    if iteration.first:
        return Caps(iteration.to_ts, ReadLimit())
    details = [job.spec.detail for job in iteration.jobs]
    spans = [settings.span_s if each.span is None else parse_duration(each.span) for each in details]
    span_ms = max(1, round(min(spans) * 1000))
    return Caps(
        to_ts=min(iteration.to_ts, compose_ts(physical_ms(iteration.from_ts) + span_ms)),
        limit=ReadLimit(
            rows=min(each.rows_max or settings.rows_max for each in details),
            nbytes=min(each.bytes_max or settings.bytes_max for each in details),
        ),
    )


_log = logging.getLogger(__name__)

T = TypeVar("T")


class _Once(Generic[T]):
    """Makes a value when it is first asked for; others wait, and all get the same, or the same error."""

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
        """What was made so far."""
        return self._made[0] if self._made else None


@dataclass(frozen=True, slots=True)
class ScanConfig:
    """Where ranges are read, and how."""

    source: ScanSource
    settings: JobsSettings
    frames: Frames | None = None
    clock: Clock = SYSTEM


class SharedScan:
    """One range for many jobs. Thread-safe, and nothing is read before somebody asks.

    What the source raises is raised to everyone; `failed_by_source` tells it from what concerns one job.
    """

    def __init__(self, reading: ScanConfig, iteration: Iteration, jobs: Iterable[Job], scratch: Path) -> None:
        self._reading = reading
        self._iteration = iteration
        self._jobs = tuple(jobs)
        self._scratch = scratch
        self._scan = _Once(self._fix)
        self._frame = _Once(self._open_frame)
        self._failure: Exception | None = None
        self._finished = False
        self._reader: threading.Thread | None = None
        self._starting = threading.Lock()
        self.read_seconds = 0.0
        settings = reading.settings
        self._fanout: FanOut[ConsumerBatch] = FanOut(
            [job.key for job in self._jobs],
            pieces_max=settings.consumer_batches,
            patience_s=settings.consumer_patience_s,
            spool_bytes=settings.spool_bytes,
            open_spool=lambda number: SpillQueue(
                scratch / f"spool-{self._number(number)}", ConsumerBatch._make
            ),
            clock=reading.clock,
        )

    def scan(self) -> TableScan:
        """The range with its end fixed. Raises what the source raises, to all who ask."""
        return self._scan.get()

    def take(self, key: JobKey) -> ConsumerBatch | None:
        """The next piece for a job; see FanOut. The first who asks starts the reader."""
        with self._starting:
            if self._reader is None:
                self._reader = threading.Thread(
                    target=self._read, name=f"penstock-scan-{self._iteration.table_id}", daemon=True
                )
                self._reader.start()
        return self._fanout.take(key)

    def frame(self, key: JobKey) -> SharedFrame:
        """The changes on executors, for a job that has not left. Raises Invalid where there is no Spark."""
        self._fanout.check(key)
        return self._frame.get()

    @property
    def on_executors(self) -> bool:
        """Whether there are so many changes that executors should have them."""
        return self._reading.frames is not None and self.scan().rows >= self._reading.settings.spark_rows

    def leave(self, key: JobKey, reason: Exception | None = None) -> None:
        """A job wants no more pieces; who still asks for it is told the reason, or that it was canceled."""
        self._fanout.close(key, reason)

    def failed_by_source(self, error: BaseException) -> bool:
        """Whether it is what the source failed with."""
        return error in {self._failure, self._scan.failure, self._frame.failure}

    def finish(self, wait_s: float) -> bool:
        """Let go of everything; False when the reader does not end in time."""
        for job in self._jobs:
            self._fanout.close(job.key)
        self._finished = True
        if self._frame.made is not None:
            try:
                self._frame.made.release()
            except Exception as error:  # noqa: BLE001 - Spark lets go of it by itself when it ends
                _log.warning("a DataFrame could not be released", extra={"error": failure_of(error).message})
        if self._reader is None:
            return True
        self._reader.join(wait_s)
        return not self._reader.is_alive()

    def _fix(self) -> TableScan:
        iteration, source = self._iteration, self._reading.source
        caps = caps_of(iteration, self._reading.settings)
        try:
            return source.scan(iteration.table_id, iteration.from_ts, caps.to_ts, caps.limit)
        except StaleRead:
            if not iteration.first:
                raise
        # The others' watermark is older than what is kept: this one begins with now, and they meet later.
        return source.scan(iteration.table_id, 0, self._readable_ts(), caps.limit)

    def _readable_ts(self) -> int:
        table_id = self._iteration.table_id
        look = eventloop.run(self._reading.source.read_progress([table_id])).get(table_id)
        if look is None:
            raise Unavailable(
                f"table {table_id} is not captured; start a capture whose capture.tables name it"
            )
        return look.readable_ts

    def _columns(self) -> list[str] | None:
        """The columns that any of the jobs wants, beside the key's; None: all."""
        table = self.scan().schema.table
        chosen = [job.spec.detail.consumer.columns for job in self._jobs]
        if any(each is None for each in chosen):
            return None
        names = {name for each in chosen for name in each or ()}
        keys = key_names(table)
        return [name for name in choose_columns(table, names).names if name not in keys]

    def _open_frame(self) -> SharedFrame:
        if self._reading.frames is None:
            raise Invalid("there is no Spark here for this consumer; run jobs with a Spark session")
        metrics.JOBS_SCANS_TOTAL.labels("frame").inc()
        frame = self._reading.frames.open(self.scan(), self._columns())
        if self._finished:  # whoever asked was given up meanwhile, and nobody else would let go of it
            frame.release()
            raise Aborted("the job was canceled")
        return frame

    def _read(self) -> None:
        began = self._reading.clock.monotonic()
        try:
            self._give_all()
        except Exception as error:  # noqa: BLE001 - whoever asks for the next piece raises it
            self._failure = error
            self._fanout.fail(error)
        finally:
            self.read_seconds = self._reading.clock.monotonic() - began

    def _give_all(self) -> None:
        scan, columns = self.scan(), self._columns()
        projection = BatchProjection(scan.schema, choose_columns(scan.schema.table, columns).names)
        metrics.JOBS_SCANS_TOTAL.labels("batches").inc()
        kept = self._scratch / "reader"
        try:
            with (
                self._reading.source.open(scan, columns) as handle,
                closing(iter_in_order(handle, projection, kept)) as ordered,
            ):
                for piece in mark_last(ordered, projection.nothing):
                    if not self._fanout.give(piece):
                        return
            self._fanout.end()
        finally:
            shutil.rmtree(kept, ignore_errors=True)

    def _number(self, key: object) -> int:
        return next(number for number, job in enumerate(self._jobs) if job.key == key)
