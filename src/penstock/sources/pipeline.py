"""The span pipeline: hands data batches and resolved timestamps of every subscription to its consumer.

For each subscription `advance_resolved_ts(ts)` is called only after every batch that arrived before
that timestamp is persisted, in whatever order the consumer's callbacks come. There is no order
across subscriptions. `SpanWorker` is one thread with its queue and the spans that are routed to it.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from types import MethodType
from typing import Any, Protocol

import pyarrow as pa
from prometheus_client import Gauge

from penstock import clock as clocks
from penstock import metrics
from penstock.clock import Clock
from penstock.sources.barriers import Barriers, PlacedBarrier
from penstock.sources.quota import Cancelled, InflightQuota, QuotaOwner
from penstock.sources.raw_batch import BATCH_BYTES

__all__ = [
    "DATA",
    "RESOLVED",
    "AdvanceResolvedTs",
    "ConsumeKvEvents",
    "SpanPipelineManager",
    "SpanState",
    "SpanWorker",
]


DATA, RESOLVED, _PERSISTED, _TASK, _STOP = range(5)
_CHUNK = 256  # events handled before quota is released and waiting producers are woken


class ConsumeKvEvents(Protocol):
    """Takes a raw batch.

    Returns True when it accepts the batch; it then calls `finish` once the batch is persisted, from any
    thread and in any order among batches. Returns False when it persisted the batch before the return;
    `finish` is then not called. Runs on a pipeline worker, one batch of a subscription at a time.
    """

    def __call__(self, raw: pa.RecordBatch, finish: Callable[[], None], /) -> bool: ...


AdvanceResolvedTs = Callable[[int], None]


class SpanState(QuotaOwner):
    """A subscription in the pipeline. Only its worker touches it, except for `cancelled`."""

    __slots__ = ("advance", "barriers", "consume", "sub_id", "worker")

    def __init__(
        self, sub_id: int, worker: "SpanWorker", consume: ConsumeKvEvents, advance: AdvanceResolvedTs
    ) -> None:
        super().__init__()
        self.sub_id = sub_id
        self.worker = worker
        self.consume = consume
        self.advance = advance
        self.barriers = Barriers()


class SpanWorker:
    """Handles the events of its spans in the order of the queue.

    The queue itself has no bound, so that `finish` never waits, not even on this very thread;
    producers ask for room first (`wait_for_room`). What `finish` adds is bounded by the batches in
    flight, and so by the quota.
    """

    def __init__(
        self, number: int, queue_size: int, quota: InflightQuota, on_failure: Callable[[int, Exception], None]
    ) -> None:
        self.queue: SimpleQueue[tuple[int, Any, Any, int]] = SimpleQueue()
        self.queue_size = queue_size
        self._low = queue_size // 2  # waiting producers are woken together at this length, not one by one
        self._quota = quota
        self._on_failure = on_failure
        self._room = threading.Condition()
        self._producers_waiting = 0
        self._stopping = False
        self._dropped = 0  # resolved timestamps, since the last report
        self._thread = threading.Thread(target=self._run, name=f"penstock-span-{number}", daemon=True)
        self._thread.start()

    def do(self, task: Callable[[], None]) -> None:
        """Run a task on the worker after what is queued, and wait for it; at once on the worker itself."""
        if threading.current_thread() is self._thread:
            task()
            return
        done = threading.Event()
        self.queue.put((_TASK, task, done, 0))
        while not done.wait(timeout=1):
            if not self._thread.is_alive():
                raise Cancelled

    def wait_for_room(self, owner: QuotaOwner) -> None:
        """Wait until the queue has room; raise Cancelled when the owner is cancelled or the worker stops.

        On the worker's own thread nobody else could make room: it returns at once.
        """
        if threading.current_thread() is self._thread:
            return
        with self._room:
            self._producers_waiting += 1
            try:
                while self.queue.qsize() >= self.queue_size:
                    if owner.cancelled or self._stopping:
                        raise Cancelled
                    self._room.wait()
            finally:
                self._producers_waiting -= 1

    def wake_producers(self) -> None:
        """Wake the producers that wait for room: they check again."""
        with self._room:
            self._room.notify_all()

    def stop(self) -> None:
        """End after what is queued now."""
        self._stopping = True
        self.wake_producers()
        self.queue.put((_STOP, None, None, 0))

    def join(self) -> None:
        """Wait until the worker has ended. Call `stop` first."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        queue = self.queue
        running = True
        while running:
            first = queue.get()
            more = min(queue.qsize(), _CHUNK)  # only this thread takes events, so that many are there
            running = self._handle([first, *[queue.get() for _ in range(more)]])
            if self._producers_waiting and queue.qsize() <= self._low:
                self.wake_producers()

    def _handle(self, events: list[tuple[int, Any, Any, int]]) -> bool:
        """Handle events; return False when one of them stops the worker."""
        running = True
        released = batches = 0
        put = self.queue.put
        for kind, span, item, number in events:
            if kind == _PERSISTED:
                barriers = span.barriers
                if barriers.mark_persisted(number):  # else `finish` was called twice
                    released += item
                    batches += 1
                    if barriers.acked_seq >= barriers.next_wait_seq:
                        self._advance(span)
            elif kind == DATA:
                if span.cancelled:
                    released += number
                    batches += 1
                    continue
                seq = span.barriers.add_data()
                try:
                    # `finish` puts the event (_PERSISTED, ...) into the queue: MethodType binds it as the
                    # only argument, and costs less for each batch than a closure or a partial.
                    if span.consume(item, MethodType(put, (_PERSISTED, span, number, seq))):
                        continue
                except Exception as error:  # noqa: BLE001 - a consumer's failure ends its span, not the worker
                    self._fail(span, error)
                if span.barriers.mark_persisted(seq):
                    released += number
                    batches += 1
                    self._advance(span)
            elif kind == RESOLVED:
                if span.barriers.add_resolved(number) is not PlacedBarrier.NEW:
                    self._dropped += 1
                self._advance(span)
            else:
                self._quota.release(released, batches)  # the caller of the task sees all that was before it
                released = batches = 0
                running = running and self._control(kind, span, item)
        if batches:
            self._quota.release(released, batches)
        self._report()
        return running

    def _control(self, kind: int, task: Callable[[], None], done: threading.Event) -> bool:
        if kind == _STOP:
            return False
        task()
        done.set()
        return True

    def _advance(self, span: SpanState) -> None:
        """Pass on the resolved timestamps whose data is persisted."""
        barriers = span.barriers
        while not span.cancelled and (ts := barriers.take_ready()) is not None:
            try:
                span.advance(ts)
            except Exception as error:  # noqa: BLE001 - as in consume
                self._fail(span, error)
        if barriers.compactions:
            metrics.SPAN_PIPELINE_RESOLVED_BARRIER_COMPACTION_TOTAL.inc(barriers.compactions)
            barriers.compactions = 0

    def _fail(self, span: SpanState, error: Exception) -> None:
        self._quota.cancel(span)
        self.wake_producers()
        self._on_failure(span.sub_id, error)

    def _report(self) -> None:
        if self._dropped:
            metrics.SPAN_PIPELINE_RESOLVED_BARRIER_DROPPED_TOTAL.inc(self._dropped)
            self._dropped = 0
        unwaited = self._quota.take_unwaited()
        if unwaited:
            metrics.SPAN_PIPELINE_QUOTA_ACQUIRE_DURATION_SECONDS.observe_zeros(unwaited)


_log = logging.getLogger(__name__)


class SpanPipelineManager:
    """Routes every subscription to one of N worker threads, which alone touches its state.

    `on_failure(sub_id, error)` is called on a worker when a consumer's callback raised: the
    subscription is cancelled, and its resolved timestamp stays.
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

        What it had queued is discarded, and producers that wait to enqueue for it get Cancelled. Its
        batches in flight hold their quota until their `finish` calls.
        """
        span = self._spans.pop(sub_id, None)
        if span is None:
            return
        self.quota.cancel(span)
        span.worker.wake_producers()
        with suppress(Cancelled):  # a worker that has ended runs nothing
            span.worker.do(lambda: None)  # a callback that was running has ended

    def cancel(self, sub_id: int) -> None:
        """Refuse data of a subscription: enqueueing raises Cancelled, also for producers that wait."""
        span = self._spans.get(sub_id)
        if span is not None:
            self.quota.cancel(span)
            span.worker.wake_producers()

    def enqueue_data(self, sub_id: int, raw: pa.RecordBatch, weight: int = 0) -> None:
        """Hand over a batch; wait while the quota is used up or the worker's queue is full.

        `weight` is what the batch counts for; without it the size of the batch counts.
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
        """Refuse new data, hand over what is queued, and end the workers."""
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
    # Computed when metrics are read, so that counting costs the pipeline nothing.
    gauge.set_function(lambda: sum(read(manager) for manager in tuple(_LIVE)))


_measure(metrics.SPAN_PIPELINE_INFLIGHT_BYTES, lambda manager: manager.quota.used)
_measure(metrics.SPAN_PIPELINE_INFLIGHT_BATCHES, lambda manager: manager.quota.batches)
_measure(metrics.SPAN_PIPELINE_PENDING_RESOLVED_BARRIERS, lambda manager: manager.pending_barriers)
_measure(metrics.SPAN_PIPELINE_ACTIVE_SUBSCRIPTIONS, lambda manager: manager.active_subscriptions)
