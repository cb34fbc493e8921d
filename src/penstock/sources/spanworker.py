"""One worker of the span pipeline: a thread, its queue, and the spans that are routed to it."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import MethodType
from typing import Any, Protocol

import pyarrow as pa

from penstock import metrics
from penstock.sources.barriers import Barriers, PlacedBarrier
from penstock.sources.quota import Cancelled, InflightQuota, QuotaOwner

__all__ = ["DATA", "RESOLVED", "AdvanceResolvedTs", "ConsumeKvEvents", "SpanState", "SpanWorker"]

DATA, RESOLVED, _PERSISTED, _TASK, _STOP = range(5)
_CHUNK = 256  # events handled between two looks at the quota and at waiting producers


class ConsumeKvEvents(Protocol):
    """Takes a raw batch.

    True: it is accepted, and `finish` is called once it is persisted, from any thread and in any
    order among batches. False: it was persisted before the call returned, and `finish` is not called.
    Called on a pipeline worker, one batch of a subscription at a time.
    """

    def __call__(self, raw: pa.RecordBatch, finish: Callable[[], None], /) -> bool: ...


AdvanceResolvedTs = Callable[[int], None]


class SpanState(QuotaOwner):
    """A subscription in the pipeline. Only its worker touches it, but for `cancelled`."""

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
        self._low = queue_size // 2  # producers that found the queue full go on from here, not one by one
        self._quota = quota
        self._on_failure = on_failure
        self._room = threading.Condition()
        self._producers_waiting = 0
        self._stopping = False
        self._dropped = 0  # resolved timestamps, since the last report
        self._thread = threading.Thread(target=self._run, name=f"penstock-span-{number}", daemon=True)
        self._thread.start()

    def do(self, task: Callable[[], None]) -> None:
        """Run a task on the worker, after what is queued, and wait for it; at once when already there."""
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
        """Let those who wait for room look again."""
        with self._room:
            self._room.notify_all()

    def stop(self) -> None:
        """End after what is queued now."""
        self._stopping = True
        self.wake_producers()
        self.queue.put((_STOP, None, None, 0))

    def join(self) -> None:
        """Wait until the worker has ended; it must have been told to stop."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        queue = self.queue
        running = True
        while running:
            first = queue.get()
            more = min(queue.qsize(), _CHUNK)  # only this thread takes, so as many are there
            running = self._handle([first, *[queue.get() for _ in range(more)]])
            if self._producers_waiting and queue.qsize() <= self._low:
                self.wake_producers()

    def _handle(self, events: list[tuple[int, Any, Any, int]]) -> bool:
        """Handle some events; return whether the worker goes on."""
        running = True
        released = batches = 0
        put = self.queue.put
        for kind, span, item, number in events:
            if kind == _PERSISTED:
                barriers = span.barriers
                if barriers.persisted(number):  # else it was told before
                    released += item
                    batches += 1
                    if barriers.acked_seq >= barriers.next_wait_seq:
                        self._tell(span)
            elif kind == DATA:
                if span.cancelled:
                    released += number
                    batches += 1
                    continue
                seq = span.barriers.data()
                try:
                    if span.consume(item, MethodType(put, (_PERSISTED, span, number, seq))):
                        continue
                except Exception as error:  # noqa: BLE001 - a consumer's failure ends its span, not the worker
                    self._fail(span, error)
                if span.barriers.persisted(seq):
                    released += number
                    batches += 1
                    self._tell(span)
            elif kind == RESOLVED:
                if span.barriers.resolved(number) is not PlacedBarrier.NEW:
                    self._dropped += 1
                self._tell(span)
            else:
                self._quota.release(released, batches)  # whoever waits for the task sees all that was before
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

    def _tell(self, span: SpanState) -> None:
        """Tell the resolved timestamps whose data is persisted."""
        barriers = span.barriers
        while not span.cancelled and (ts := barriers.next_ready()) is not None:
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
            metrics.SPAN_PIPELINE_QUOTA_ACQUIRE_DURATION_SECONDS.observe_many(0, unwaited)
