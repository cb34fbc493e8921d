"""Region events become batches and resolved timestamps, in the order that the contract needs."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable

import pyarrow as pa
import pytest

from penstock.clock import SYSTEM
from penstock.proto import cdcpb_pb2 as cdcpb
from penstock.sources.pipeline import SpanPipelineManager
from penstock.sources.tikv import subscription
from penstock.sources.tikv.processor import RegionEventProcessor
from penstock.sources.tikv.routing import FeedEnd, FeedEndReason
from penstock.sources.tikv.subscription import FeedPhase, RegionFeedState, SubscribedSpan
from support.feeds import a_feed, a_span, a_task
from support.recorder import Recorder

Row = cdcpb.Event.Row
INITIALIZED = Row(type=cdcpb.Event.INITIALIZED)


def committed(key: bytes, commit_ts: int) -> Row:
    return Row(
        type=cdcpb.Event.COMMITTED,
        key=key,
        start_ts=commit_ts - 1,
        commit_ts=commit_ts,
        value=b"v",
        op_type=Row.PUT,
    )


class Listener:
    def __init__(self) -> None:
        self.initialized: list[int] = []
        self.ended: list[RegionFeedState] = []
        self.failed: list[Exception] = []

    def scanned(self, state: RegionFeedState) -> None:
        self.initialized.append(state.region_id)

    def fail(self, span: SubscribedSpan, error: Exception) -> None:
        self.failed.append(error)


class Bench:
    def __init__(self, *, workers: int = 2, **pipeline: int) -> None:
        self.listener = Listener()
        self.pipeline = SpanPipelineManager(workers=1, **pipeline)
        self.processor = RegionEventProcessor(
            self.pipeline,
            on_scanned=self.listener.scanned,
            on_ended=self.listener.ended.append,
            on_failed=self.listener.fail,
            workers=workers,
            queue_size=4,
            queue_bytes=1 << 20,
            clock=SYSTEM,
        )

    def subscribe(self, recorder: Recorder, sub_id: int = 1, **span: float) -> SubscribedSpan:
        subscribed = a_span(sub_id, **span)
        self.pipeline.register(sub_id, recorder.consume, recorder.advance)
        return subscribed

    async def rows(self, state: RegionFeedState, *rows: Row) -> None:
        await self.processor.dispatch_entries(state, cdcpb.Event.Entries(entries=rows), 10)

    async def close(self) -> None:
        await asyncio.to_thread(self.pipeline.close)
        await self.processor.close()


@contextlib.asynccontextmanager
async def bench(**options: int) -> AsyncIterator[Bench]:
    made = Bench(**options)
    try:
        yield made
    finally:
        await made.close()


async def until(condition: Callable[[], bool]) -> None:
    deadline = SYSTEM.monotonic() + 5
    while not condition():
        assert SYSTEM.monotonic() < deadline, "it never came true"
        await SYSTEM.sleep(0.002)


def test_a_region_is_stopped_once_when_the_loop_and_its_worker_stop_it_at_the_same_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feed, stopped = a_feed(a_task(a_span())), list[bool]()
    other = threading.Thread(target=lambda: stopped.append(feed.stop(FeedEnd(FeedEndReason.CANCELLED))))

    class Switching:
        """The phases; between the look at one and the change to the next the other thread has its turn."""

        RUNNING = FeedPhase.RUNNING

        @property
        def STOPPED(self) -> FeedPhase:
            if other.ident is None:
                other.start()
                other.join(0.1)
            return FeedPhase.STOPPED

    monkeypatch.setattr(subscription, "FeedPhase", Switching())
    stopped.append(feed.stop(FeedEnd(FeedEndReason.STREAM_LOST)))
    other.join()
    assert sorted(stopped) == [False, True]
    assert feed.end == FeedEnd(FeedEndReason.STREAM_LOST)


async def test_rows_reach_the_consumer_before_the_timestamp_that_covers_them() -> None:
    recorder = Recorder()
    async with bench() as made:
        span = made.subscribe(recorder)
        feeds = [a_feed(a_task(span, 1, b"a", b"m")), a_feed(a_task(span, 2, b"m", b"z"))]
        for feed in feeds:
            await made.rows(feed, INITIALIZED)
        for ts in range(10, 200, 10):
            for feed, key in zip(feeds, (b"b", b"n"), strict=True):
                await made.rows(feed, committed(key, ts - 1))
            await made.processor.dispatch_resolved(span, feeds, ts)
        await until(lambda: recorder.resolved_ts == 190)
    assert not recorder.problems
    assert len(recorder.rows) == 38
    assert made.listener.initialized in ([1, 2], [2, 1])


async def test_only_initialized_regions_move_and_they_do_not_go_back() -> None:
    for initialized, last, told, expected in ((True, 9, 10, 10), (True, 11, 10, 11), (False, 8, 10, 8)):
        recorder = Recorder()
        async with bench(workers=1) as made:
            span = made.subscribe(recorder, start_ts=last)
            feed = a_feed(a_task(span))
            if initialized:
                await made.rows(feed, INITIALIZED)
            await made.processor.dispatch_resolved(span, [feed], told)
            shard = made.processor._shards[0]
            await until(lambda shard=shard: shard._bytes_in == shard._bytes_out)
        assert feed.task.locked.resolved_ts == expected
        assert recorder.resolved == ([expected] if initialized else [])


async def test_a_batch_of_resolved_timestamps_moves_every_region_and_tells_the_span_once() -> None:
    recorder = Recorder()
    async with bench(workers=1) as made:
        span = made.subscribe(recorder)
        bounds = [bytes([97 + n]) for n in range(11)]
        feeds = [a_feed(a_task(span, n, bounds[n], bounds[n + 1])) for n in range(10)]
        feeds.append(a_feed(a_task(span, 99, bounds[10], b"z")))
        for feed in feeds:
            await made.rows(feed, INITIALIZED)
        await made.processor.dispatch_resolved(span, feeds, 70)
        await until(lambda: recorder.resolved == [70])
    assert {feed.task.locked.resolved_ts for feed in feeds} == {70}


async def test_events_of_a_stopped_region_are_ignored_and_its_end_comes_after_what_was_before() -> None:
    recorder = Recorder()
    async with bench() as made:
        span = made.subscribe(recorder)
        feed = a_feed(a_task(span))
        await made.rows(feed, INITIALIZED, committed(b"b", 5))
        await until(lambda: len(recorder.rows) == 1)
        assert feed.stop(FeedEnd(FeedEndReason.NOT_LEADER))
        assert not feed.stop(FeedEnd(FeedEndReason.CONGESTED))
        await made.rows(feed, committed(b"c", 6))
        await made.processor.dispatch_resolved(span, [feed], 50)
        made.processor.dispatch_end(feed)
        await until(lambda: made.listener.ended == [feed])
    assert feed.phase is FeedPhase.REMOVED
    assert feed.end == FeedEnd(FeedEndReason.NOT_LEADER)
    assert len(recorder.rows) == 1
    assert feed.task.locked.resolved_ts == 1


async def test_a_broken_promise_fails_the_span_and_nothing_is_told_after_it() -> None:
    recorder = Recorder()
    async with bench(workers=1) as made:
        span = made.subscribe(recorder)
        feed = a_feed(a_task(span))
        await made.rows(feed, INITIALIZED)
        await made.processor.dispatch_resolved(span, [feed], 10)
        await until(lambda: recorder.resolved == [10])
        await made.rows(feed, committed(b"b", 10))
        await made.processor.dispatch_resolved(span, [feed], 20)
        await until(lambda: len(made.listener.failed) == 1 and made.listener.ended == [feed])
    assert "after it had resolved" in str(made.listener.failed[0])
    assert recorder.resolved == [10]


async def test_a_full_quota_stops_the_reading_of_the_stream_until_there_is_room() -> None:
    recorder = Recorder(hold=True)
    async with bench(workers=1, quota_bytes=1) as made:
        span = made.subscribe(recorder)
        feed = a_feed(a_task(span))
        received = 0

        async def receive() -> None:
            nonlocal received
            for ts in range(10, 300):
                await made.rows(feed, committed(b"b", ts))
                received += 1

        receiving = asyncio.create_task(receive())
        await until(lambda: len(recorder.held) == 1)
        await SYSTEM.sleep(0.05)
        held_back_at = received
        assert held_back_at < 290
        while not receiving.done():
            recorder.release()
            await SYSTEM.sleep(0.002)
        while len(recorder.rows) < 290:
            recorder.release()
            await SYSTEM.sleep(0.002)
        recorder.release()
        await until(lambda: made.pipeline.quota.used == 0)


async def test_a_span_that_is_cancelled_while_its_rows_wait_lets_the_worker_go_on() -> None:
    stuck, quick = Recorder(hold=True), Recorder()
    async with bench(workers=1, quota_bytes=1) as made:
        leaving, staying = made.subscribe(stuck, 1), made.subscribe(quick, 2)
        first, second = a_feed(a_task(leaving, 1)), a_feed(a_task(staying, 1))
        await made.rows(first, committed(b"b", 5))
        await until(lambda: len(stuck.held) == 1)
        await made.rows(first, committed(b"b", 6))
        await until(lambda: len(made.pipeline.quota._waiting) == 1)
        await made.rows(second, INITIALIZED, committed(b"b", 7))
        made.pipeline.cancel(1)
        stuck.release()
        await until(lambda: len(quick.rows) == 1)
    assert len(stuck.rows) == 1


async def test_rows_of_several_regions_of_a_span_share_a_batch() -> None:
    batches: list[pa.RecordBatch] = []
    async with bench(workers=1) as made:
        made.pipeline.register(1, lambda raw, finish: bool(batches.append(raw)), lambda ts: None)
        span = a_span(1)
        feeds = [a_feed(a_task(span, 1, b"a", b"m")), a_feed(a_task(span, 2, b"m", b"z"))]
        shard = made.processor._shards[0]
        for number in range(3):  # put without waiting for the thread, so that it finds them together
            for feed, key in zip(feeds, (b"b", b"n"), strict=True):
                entries = cdcpb.Event.Entries(entries=[committed(key, 10 + number)])
                shard.put_now(0, feed, entries.entries, 1)
        await until(lambda: sum(batch.num_rows for batch in batches) == 6)
    assert len(batches) < 6
