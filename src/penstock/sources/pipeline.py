"""The span pipeline: hands data batches and resolved timestamps of every subscription to its consumer.

For each subscription `advance_resolved_ts(ts)` is called only after every batch that arrived before
that timestamp is persisted, in whatever order the consumer's callbacks come. There is no order
across subscriptions.
"""

import logging
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa
from prometheus_client import Gauge

from penstock import clock as clocks
from penstock import metrics
from penstock.clock import Clock
from penstock.sources.quota import Cancelled, InflightQuota
from penstock.sources.raw_batch import BATCH_BYTES
from penstock.sources.spanworker import (
    DATA,
    RESOLVED,
    AdvanceResolvedTs,
    ConsumeKvEvents,
    SpanState,
    SpanWorker,
)

__all__ = ["AdvanceResolvedTs", "Cancelled", "ConsumeKvEvents", "SpanPipelineManager"]


_log = logging.getLogger(__name__)


class SpanPipelineManager:
    """Routes every subscription to one of N worker threads, which alone touches its state.

    `on_failure(sub_id, error)` is told, on a worker, when a consumer's callback raised: the
    subscription is cancelled then, and its resolved timestamp does not move any more.
    """

    def __init__(
        self,
        *,
        workers: int,
        queue_size: int = 4096,
        quota_bytes: int = 1 << 30,
        on_failure: Callable[[int, Exception], None] | None = None,
        clock: Clock = clocks.SYSTEM,
    ) -> None:
        assert workers > 0
        assert queue_size > 0
        self.quota = InflightQuota(quota_bytes)
        self._clock = clock
        self._spans: dict[int, SpanState] = {}
        self._closed = False
        on_failure = on_failure or _log_failure
        self._workers = [SpanWorker(n, queue_size, self.quota, on_failure) for n in range(workers)]
        _LIVE.add(self)

    def register(self, sub_id: int, consume: ConsumeKvEvents, advance: AdvanceResolvedTs) -> None:
        """Begin a subscription; its worker knows of it on return.

        A subscription that is registered already goes on with the new callbacks.
        Raises Cancelled when the pipeline is closed.
        """
        worker = self._workers[sub_id % len(self._workers)]

        def begin() -> None:
            span = self._spans.get(sub_id)
            if span is None or span.cancelled:
                self._spans[sub_id] = SpanState(sub_id, worker, consume, advance)
            else:
                span.consume, span.advance = consume, advance

        self._check_open()
        worker.do(begin)

    def unregister(self, sub_id: int) -> None:
        """End a subscription; no callback of it runs after the return.

        What it had queued is discarded, and whoever waits to enqueue for it gets Cancelled. Its
        batches in flight stay accounted for until their `finish` calls.
        """
        span = self._spans.pop(sub_id, None)
        if span is None:
            return
        self.quota.cancel(span)
        span.worker.wake_producers()
        with suppress(Cancelled):  # a worker that has ended runs nothing
            span.worker.do(lambda: None)  # a callback that was running has ended

    def cancel(self, sub_id: int) -> None:
        """Refuse further data of a subscription: enqueueing raises Cancelled, also for those who wait now."""
        span = self._spans.get(sub_id)
        if span is not None:
            self.quota.cancel(span)
            span.worker.wake_producers()

    def enqueue_data(self, sub_id: int, raw: pa.RecordBatch, weight: int = 0) -> None:
        """Hand over a batch; wait while the quota is used up or the worker's queue is full.

        `weight` is what the batch counts for, where the caller knows it; else its size decides.
        Raises Cancelled when the batch was not taken. An empty batch is ignored.
        """
        if not raw.num_rows:
            return
        span = self._spans.get(sub_id)
        if span is None:
            raise Cancelled
        if not weight:
            weight = raw.nbytes + BATCH_BYTES
        if not self.quota.try_acquire(weight, span):
            self._wait_for_quota(weight, span)
        worker = span.worker
        if worker.queue.qsize() >= worker.queue_size:
            try:
                worker.wait_for_room(span)
            except Cancelled:
                self.quota.release(weight)
                raise
        worker.queue.put((DATA, span, raw, weight))
        if self._closed:  # the worker may have gone before it came to this batch
            raise Cancelled

    def _wait_for_quota(self, weight: int, span: SpanState) -> None:
        asked_at = self._clock.monotonic()
        self.quota.acquire(weight, span)
        metrics.SPAN_PIPELINE_QUOTA_ACQUIRE_DURATION_SECONDS.observe(self._clock.monotonic() - asked_at)

    def enqueue_resolved(self, sub_id: int, ts: int) -> None:
        """Hand over a resolved timestamp; wait while the worker's queue is full.

        Raises Cancelled when it was not taken. A timestamp of 0 is ignored.
        """
        if not ts:
            return
        self._check_open()
        span = self._spans.get(sub_id)
        if span is None or span.cancelled:
            raise Cancelled
        worker = span.worker
        if worker.queue.qsize() >= worker.queue_size:
            worker.wait_for_room(span)
        worker.queue.put((RESOLVED, span, None, ts))

    def close(self) -> None:
        """Take nothing more, hand over what was taken, and end the workers."""
        if self._closed:
            return
        self._closed = True
        self.quota.close()
        for worker in self._workers:
            worker.stop()
        for worker in self._workers:
            worker.join()
        _LIVE.discard(self)

    @property
    def active_subscriptions(self) -> int:
        """Subscriptions that are registered."""
        return len(self._spans)

    @property
    def pending_barriers(self) -> int:
        """Resolved timestamps that wait for data to be persisted."""
        return sum(span.barriers.waiting for span in list(self._spans.values()))

    def _check_open(self) -> None:
        if self._closed:
            raise Cancelled


def _log_failure(sub_id: int, error: Exception) -> None:
    _log.error("a consumer failed; its subscription is cancelled", extra={"sub_id": sub_id}, exc_info=error)


_LIVE: set[SpanPipelineManager] = set()


def _measure(gauge: Gauge, read: Callable[[SpanPipelineManager], int]) -> None:
    # Read when somebody looks, so that counting costs the pipeline nothing.
    gauge.set_function(lambda: sum(read(manager) for manager in tuple(_LIVE)))


_measure(metrics.SPAN_PIPELINE_INFLIGHT_BYTES, lambda manager: manager.quota.used)
_measure(metrics.SPAN_PIPELINE_INFLIGHT_BATCHES, lambda manager: manager.quota.batches)
_measure(metrics.SPAN_PIPELINE_PENDING_RESOLVED_BARRIERS, lambda manager: manager.pending_barriers)
_measure(metrics.SPAN_PIPELINE_ACTIVE_SUBSCRIPTIONS, lambda manager: manager.active_subscriptions)
