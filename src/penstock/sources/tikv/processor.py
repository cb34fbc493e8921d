"""Turns region events into data batches and resolved timestamps of spans.

Every region belongs to one worker thread, which keeps the order of its events: rows are in the
pipeline before the region's resolved timestamp moves, and so before the span's can.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

from penstock import metrics
from penstock.clock import Clock
from penstock.errors import Corrupt
from penstock.proto import cdcpb_pb2 as cdcpb
from penstock.sources.pipeline import SpanPipelineManager
from penstock.sources.quota import Cancelled
from penstock.sources.raw_batch import RawColumns
from penstock.sources.tikv.routing import FeedEnd, FeedEndReason
from penstock.sources.tikv.subscription import FeedPhase, RegionFeedState, SubscribedSpan

__all__ = ["RegionEventProcessor"]

_ENTRIES, _RESOLVED, _END, _STOP = range(4)
_CHUNK = 64  # events handled between two flushes
_RESOLVED_BYTES = 64  # of a region in a batch of resolved timestamps

Item = tuple[int, Any, Any, int]
OnFeed = Callable[[RegionFeedState], None]


class RegionEventProcessor:
    """Shards events by region over worker threads; used from one event loop.

    The `dispatch_*` coroutines wait while the queue of a shard is full, so that the stream behind
    them is not read further. On the event loop are called: `on_scanned(state)` when the incremental scan
    of a region has ended, `on_ended(state)` when a region is not followed any more and all its earlier
    events are handled, `on_failed(span, error)` when a span cannot go on.
    """

    def __init__(
        self,
        pipeline: SpanPipelineManager,
        *,
        on_scanned: OnFeed,
        on_ended: OnFeed,
        on_failed: Callable[[SubscribedSpan, Exception], None],
        workers: int,
        queue_size: int,
        queue_bytes: int,
        clock: Clock,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._shards = [
            _Shard(
                number,
                pipeline,
                loop,
                clock,
                on_scanned=on_scanned,
                on_ended=on_ended,
                on_failed=on_failed,
                size=queue_size,
                size_bytes=queue_bytes // workers,
            )
            for number in range(workers)
        ]

    async def dispatch_entries(self, state: RegionFeedState, entries: cdcpb.Event.Entries, size: int) -> None:
        """Handle the rows of a region, which take `size` bytes."""
        await self._shard(state).put(_ENTRIES, state, entries.entries, size)

    async def dispatch_resolved(
        self, span: SubscribedSpan, states: Sequence[RegionFeedState], ts: int
    ) -> None:
        """Handle a resolved timestamp of some regions of a span."""
        if len(states) == 1 or len(self._shards) == 1:
            await self._shard(states[0]).put(_RESOLVED, (span, ts), states, _RESOLVED_BYTES * len(states))
            return
        by_shard: dict[_Shard, list[RegionFeedState]] = {}
        for state in states:
            by_shard.setdefault(self._shard(state), []).append(state)
        for shard, some in by_shard.items():
            await shard.put(_RESOLVED, (span, ts), some, _RESOLVED_BYTES * len(some))

    def dispatch_end(self, state: RegionFeedState) -> None:
        """Finish a stopped region after its earlier events; never waits."""
        self._shard(state).put_now(_END, state, None, 0)

    async def close(self) -> None:
        """End the workers; what is queued is dropped. The pipeline must be closed or be taking data."""
        for shard in self._shards:
            shard.put_now(_STOP, None, None, 0)
        await asyncio.gather(*(asyncio.to_thread(shard.join) for shard in self._shards))

    def _shard(self, state: RegionFeedState) -> "_Shard":
        return self._shards[state.task.meta.id % len(self._shards)]


class _Shard:
    """One worker thread. Each of the counters of bytes in and bytes out has one writer."""

    def __init__(
        self,
        number: int,
        pipeline: SpanPipelineManager,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        *,
        on_scanned: OnFeed,
        on_ended: OnFeed,
        on_failed: Callable[[SubscribedSpan, Exception], None],
        size: int,
        size_bytes: int,
    ) -> None:
        self._pipeline = pipeline
        self._on_scanned = on_scanned
        self._on_ended = on_ended
        self._on_failed = on_failed
        self._loop = loop
        self._clock = clock
        self._size = size
        self._size_bytes = size_bytes
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self._bytes_in = 0  # written by the loop
        self._bytes_out = 0  # written by the thread
        self._waiting = False
        self._room = asyncio.Event()
        self._columns: dict[SubscribedSpan, RawColumns] = {}
        self._thread = threading.Thread(target=self._run, name=f"penstock-regions-{number}", daemon=True)
        self._thread.start()

    async def put(self, kind: int, what: Any, payload: Any, size: int) -> None:
        self.put_now(kind, what, payload, size)
        while self._is_full(1.0):
            self._room.clear()
            self._waiting = True
            if self._is_full(1.0):  # else the thread made room before it saw that we wait
                await self._room.wait()

    def put_now(self, kind: int, what: Any, payload: Any, size: int) -> None:
        self._bytes_in += size
        self._queue.put((kind, what, payload, size))

    def join(self) -> None:
        self._thread.join()

    def _is_full(self, part: float) -> bool:
        queued = self._bytes_in - self._bytes_out
        return self._queue.qsize() >= self._size * part or queued >= self._size_bytes * part

    def _run(self) -> None:
        queue = self._queue
        running = True
        while running:
            first = queue.get()
            more = min(queue.qsize(), _CHUNK)
            events = [first, *[queue.get() for _ in range(more)]]
            running = self._handle(events)
            self._bytes_out += sum(event[3] for event in events)
            if self._waiting and not self._is_full(0.5):
                self._waiting = False
                self._call_on_loop(self._room.set)

    def _handle(self, events: list[Item]) -> bool:
        running = True
        rows = 0
        for kind, what, payload, _ in events:
            if kind == _ENTRIES:
                rows += len(payload)
                self._handle_entries(what, payload)
            elif kind == _RESOLVED:
                span, ts = what
                self._handle_resolved(span, ts, payload)
            elif kind == _END:
                self._handle_end(what)
            else:
                running = False
        for span in list(self._columns):
            self._flush(span)
        if rows:
            metrics.PULLER_EVENTS_TOTAL.labels("entries").inc(rows)
        return running

    def _handle_entries(self, state: RegionFeedState, rows: Any) -> None:
        if state.phase is not FeedPhase.RUNNING:
            return
        span = state.task.span
        columns = self._columns.get(span)
        if columns is None:
            columns = self._columns[span] = RawColumns(partial(self._pipeline.enqueue_data, span.sub_id))
        locked = state.task.locked
        try:
            initialized = state.reader.read(rows, locked.resolved_ts, columns)
        except Cancelled:
            return  # the span is being unsubscribed
        except Corrupt as error:
            # Rows are missing from here on: the region must not advance the span.
            self._pipeline.cancel(span.sub_id)
            self._call_on_loop(self._on_failed, span, error)
            if state.stop(FeedEnd(FeedEndReason.CANCELLED)):
                self._handle_end(state)
            return
        if initialized:
            span.initialize(locked)
            self._call_on_loop(self._on_scanned, state)

    def _handle_resolved(self, span: SubscribedSpan, ts: int, states: Sequence[RegionFeedState]) -> None:
        if not self._flush(span):
            return
        for state in states:
            if state.phase is FeedPhase.RUNNING:
                span.raise_resolved(state.task.locked, ts)
        advanced = span.advance(self._clock.monotonic())
        if advanced is None:
            return
        try:
            self._pipeline.enqueue_resolved(span.sub_id, advanced)
        except Cancelled:
            return  # the span is being unsubscribed

    def _handle_end(self, state: RegionFeedState) -> None:
        assert state.phase is FeedPhase.STOPPED
        self._flush(state.task.span)
        state.phase = FeedPhase.REMOVED
        state.reader.matcher.close()
        self._call_on_loop(self._on_ended, state)

    def _flush(self, span: SubscribedSpan) -> bool:
        """Hand over the rows of a span; return False when it is cancelled."""
        columns = self._columns.pop(span, None)
        if columns is None:
            return True
        try:
            columns.flush()
        except Cancelled:
            return False
        return True

    def _call_on_loop(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop is closed: there is nobody left to call
            return
