"""The metrics of one changefeed's sink."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Gauge

from penstock import metrics
from penstock.changefeeds.sinks.storage.buffers import FlushReason

_STAGES = ("encode", "place", "begin", "write", "release", "ddl", "checkpoint", "sweep")
_SPOOL_MARKS = ("quota", "high", "low")


class SinkMetrics:
    """Sets and observes the metrics of a sink; `forget` removes the changefeed from the process's gauges."""

    def __init__(self, changefeed: str) -> None:
        self.changefeed = changefeed
        self._spool_bytes = metrics.SINK_SPOOL_BYTES.labels(changefeed)
        self._spool_items = metrics.SINK_SPOOL_ITEMS.labels(changefeed)
        self._retained_bytes = metrics.SINK_SPOOL_RETAINED_BYTES.labels(changefeed)
        self._spool_marks = {
            mark: metrics.SINK_SPOOL_MARK_BYTES.labels(changefeed, mark) for mark in _SPOOL_MARKS
        }
        self._queued_items = metrics.SINK_QUEUED_ITEMS.labels(changefeed)
        self._active = metrics.SINK_ACTIVE_DISPATCHERS.labels(changefeed)
        self._oldest_age = metrics.SINK_OLDEST_UNFLUSHED_AGE_SECONDS.labels(changefeed)
        self.wakes = metrics.SINK_WAKE_CALLS_TOTAL.labels(changefeed)
        self.suppressed = metrics.SINK_WAKE_SUPPRESSED_TOTAL.labels(changefeed)
        self.encode_seconds = metrics.SINK_ENCODE_DURATION_SECONDS.labels(changefeed)
        self._sizes = metrics.SINK_FLUSH_FILE_SIZE_BYTES.labels(changefeed)
        self._files = metrics.SINK_FILES_TOTAL.labels(changefeed)
        self._rows = metrics.SINK_ROWS_TOTAL.labels(changefeed)
        self._bytes = metrics.SINK_BYTES_TOTAL.labels(changefeed)
        self._stale_rows = metrics.SINK_STALE_ROWS_TOTAL.labels(changefeed)
        self._drain = metrics.SINK_DDL_DRAIN_DURATION_SECONDS.labels(changefeed)
        self._drain_encode = metrics.SINK_DDL_DRAIN_WAIT_ENCODE_SECONDS.labels(changefeed)
        self._drain_remote = metrics.SINK_DDL_DRAIN_WAIT_REMOTE_SECONDS.labels(changefeed)
        self._counts = {
            reason: metrics.SINK_FLUSH_COUNT.labels(changefeed, reason.value) for reason in FlushReason
        }
        self._durations = {
            reason: metrics.SINK_FLUSH_DURATION_SECONDS.labels(changefeed, reason.value)
            for reason in FlushReason
        }
        self._errors = {stage: metrics.SINK_ERRORS_TOTAL.labels(changefeed, stage) for stage in _STAGES}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count an exception that the block raises as an error of the stage."""
        try:
            yield
        except Exception:
            self._errors[name].inc()
            raise

    def set_marks(self, *, quota: int, high: int, low: int) -> None:
        """Set the quota and the two marks of the spool, in bytes."""
        for mark, nbytes in zip(_SPOOL_MARKS, (quota, high, low), strict=True):
            self._spool_marks[mark].set(nbytes)

    def set_levels(self, *, queued: int, nbytes: int, items: int, retained_bytes: int, active: int) -> None:
        """Set how full the queues, the spool and the set of active dispatchers are."""
        self._queued_items.set(queued)
        self._spool_bytes.set(nbytes)
        self._spool_items.set(items)
        self._retained_bytes.set(retained_bytes)
        self._active.set(active)

    def set_oldest_age(self, age_s: float) -> None:
        """Set how long the oldest event has been in the sink."""
        self._oldest_age.set(age_s)

    def observe_flush(self, reason: FlushReason, rows: int, nbytes: int, seconds: float) -> None:
        """Observe a file that is on the remote."""
        self._counts[reason].inc()
        self._durations[reason].observe(seconds)
        self._sizes.observe(nbytes)
        self._files.inc()
        self._rows.inc(rows)
        self._bytes.inc(nbytes)

    def observe_failure(self, seconds: float) -> None:
        """Observe a file that could not be written."""
        self._counts[FlushReason.ERROR].inc()
        self._durations[FlushReason.ERROR].observe(seconds)
        self._errors["write"].inc()

    def count_stale(self, rows: int) -> None:
        """Count the rows of a file that was skipped as stale."""
        self._stale_rows.inc(rows)

    def observe_drain(self, encode_s: float, remote_s: float) -> None:
        """Observe how long encoding, and then writing, took until a drain marker was acknowledged."""
        self._drain.observe(encode_s + remote_s)
        self._drain_encode.observe(encode_s)
        self._drain_remote.observe(remote_s)

    def forget(self) -> None:
        """Remove the gauges of a sink that has ended; its counters stay."""
        gauges: tuple[Gauge, ...] = (
            metrics.SINK_SPOOL_BYTES,
            metrics.SINK_SPOOL_ITEMS,
            metrics.SINK_SPOOL_RETAINED_BYTES,
            metrics.SINK_QUEUED_ITEMS,
            metrics.SINK_ACTIVE_DISPATCHERS,
            metrics.SINK_OLDEST_UNFLUSHED_AGE_SECONDS,
        )
        for gauge in gauges:
            gauge.remove(self.changefeed)
        for mark in _SPOOL_MARKS:
            metrics.SINK_SPOOL_MARK_BYTES.remove(self.changefeed, mark)
