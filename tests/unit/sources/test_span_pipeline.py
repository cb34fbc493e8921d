"""The pipeline with its real threads, and consumers that persist when they are told to."""

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from penstock import metrics
from penstock.clock import SYSTEM
from penstock.sources.pipeline import SpanPipelineManager
from penstock.sources.quota import Cancelled
from penstock.sources.raw_batch import BATCH_BYTES

BATCH = pa.record_batch({"key": pa.array([b"k"], pa.binary())})


class Consumer:
    """Holds every `finish` until a test calls it."""

    def __init__(self) -> None:
        self.finish: list[Callable[[], None]] = []
        self.told: list[int] = []

    def consume(self, raw: pa.RecordBatch, finish: Callable[[], None], /) -> bool:
        self.finish.append(finish)
        return True

    def advance(self, ts: int) -> None:
        self.told.append(ts)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = SYSTEM.monotonic() + 5
    while not condition():
        assert SYSTEM.monotonic() < deadline, "it never came true"
        SYSTEM.pause(0.001)


def settled(pipeline: SpanPipelineManager) -> None:
    """Wait until the workers have handled what was queued before."""
    for worker in pipeline._workers:
        worker.do(lambda: None)


@pytest.fixture
def pipeline() -> Iterator[SpanPipelineManager]:
    pipeline = SpanPipelineManager(workers=2)
    yield pipeline
    pipeline.close()


def test_a_resolved_timestamp_waits_for_callbacks_that_come_in_any_order(
    pipeline: SpanPipelineManager,
) -> None:
    consumer = Consumer()
    pipeline.register(1, consumer.consume, consumer.advance)
    for _ in range(3):
        pipeline.enqueue_data(1, BATCH)
    pipeline.enqueue_resolved(1, 100)
    settled(pipeline)
    consumer.finish[1]()
    consumer.finish[2]()
    settled(pipeline)
    assert consumer.told == []
    consumer.finish[0]()
    settled(pipeline)
    assert consumer.told == [100]
    assert pipeline.quota.used == 0


def test_resolved_timestamps_for_the_same_data_are_told_once(pipeline: SpanPipelineManager) -> None:
    consumer = Consumer()
    dropped = metrics.SPAN_PIPELINE_RESOLVED_BARRIER_DROPPED_TOTAL._value.get()
    pipeline.register(1, consumer.consume, consumer.advance)
    pipeline.enqueue_data(1, BATCH)
    for ts in (10, 12, 11):
        pipeline.enqueue_resolved(1, ts)
    settled(pipeline)
    assert pipeline.pending_barriers == 1
    consumer.finish[0]()
    settled(pipeline)
    assert consumer.told == [12]
    assert metrics.SPAN_PIPELINE_RESOLVED_BARRIER_DROPPED_TOTAL._value.get() == dropped + 2


@pytest.mark.parametrize("other", [2, 3], ids=["on another worker", "on the same worker"])
def test_subscriptions_do_not_wait_for_each_other(pipeline: SpanPipelineManager, other: int) -> None:
    stuck, quick = Consumer(), Consumer()
    pipeline.register(1, stuck.consume, stuck.advance)
    pipeline.register(other, quick.consume, quick.advance)
    for sub_id in (1, other):
        pipeline.enqueue_data(sub_id, BATCH)
        pipeline.enqueue_resolved(sub_id, 200)
    settled(pipeline)
    quick.finish[0]()
    settled(pipeline)
    assert (quick.told, stuck.told) == ([200], [])


def test_a_batch_persisted_on_return_needs_no_callback(pipeline: SpanPipelineManager) -> None:
    told: list[int] = []
    pipeline.register(1, lambda raw, finish: False, told.append)
    pipeline.enqueue_data(1, BATCH)
    pipeline.enqueue_resolved(1, 5)
    settled(pipeline)
    assert told == [5]
    assert pipeline.quota.used == 0


def test_a_finish_called_twice_or_for_a_batch_persisted_on_return_is_harmless(
    pipeline: SpanPipelineManager,
) -> None:
    kept: list[Callable[[], None]] = []
    answers = iter([True, False])

    def consume(raw: pa.RecordBatch, finish: Callable[[], None], /) -> bool:
        kept.append(finish)
        return next(answers)

    pipeline.register(1, consume, lambda ts: None)
    pipeline.enqueue_data(1, BATCH)
    pipeline.enqueue_data(1, BATCH)
    settled(pipeline)
    for finish in kept * 2:
        finish()
    settled(pipeline)
    assert (pipeline.quota.used, pipeline.quota.batches) == (0, 0)


def test_a_late_lower_timestamp_of_a_racing_worker_is_not_told(pipeline: SpanPipelineManager) -> None:
    consumer = Consumer()
    pipeline.register(1, consumer.consume, consumer.advance)
    pipeline.enqueue_resolved(1, 20)
    pipeline.enqueue_data(1, BATCH)
    pipeline.enqueue_resolved(1, 15)
    settled(pipeline)
    consumer.finish[0]()
    settled(pipeline)
    assert consumer.told == [20]


def test_timestamps_told_by_racing_threads_only_grow(pipeline: SpanPipelineManager) -> None:
    told: list[int] = []
    pipeline.register(1, lambda raw, finish: False, told.append)

    def race(first: int) -> None:
        for ts in range(first, 2000, 2):
            pipeline.enqueue_resolved(1, ts)
            if ts % 7 == 0:
                pipeline.enqueue_data(1, BATCH)

    threads = [threading.Thread(target=race, args=(first,)) for first in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    settled(pipeline)
    assert told == sorted(set(told))
    assert told[-1] == 1999


def test_finish_on_the_worker_itself_does_not_block_on_a_full_queue() -> None:
    pipeline = SpanPipelineManager(workers=1, queue_size=2)
    told: list[int] = []
    entered, go_on = threading.Event(), threading.Event()

    def consume(raw: pa.RecordBatch, finish: Callable[[], None], /) -> bool:
        entered.set()
        go_on.wait(5)
        finish()
        return True

    pipeline.register(1, consume, told.append)
    pipeline.enqueue_data(1, BATCH)
    entered.wait(5)
    pipeline.enqueue_data(1, BATCH)
    pipeline.enqueue_resolved(1, 7)
    assert pipeline._workers[0].queue.qsize() >= 2, "the queue is full"
    go_on.set()
    eventually(lambda: told == [7])
    pipeline.close()
    assert pipeline.quota.used == 0


def test_a_producer_waits_while_the_queue_is_full_and_goes_on_after() -> None:
    pipeline = SpanPipelineManager(workers=1, queue_size=2)
    go_on = threading.Event()
    seen: list[int] = []

    def consume(raw: pa.RecordBatch, finish: Callable[[], None], /) -> bool:
        go_on.wait(5)
        seen.append(1)
        return False

    pipeline.register(1, consume, lambda ts: None)
    producer = threading.Thread(target=lambda: [pipeline.enqueue_data(1, BATCH) for _ in range(10)])
    producer.start()
    eventually(lambda: pipeline._workers[0]._producers_waiting == 1)
    assert len(seen) == 0
    go_on.set()
    producer.join(5)
    eventually(lambda: len(seen) == 10)
    pipeline.close()


def test_the_quota_holds_producers_back_until_batches_are_persisted() -> None:
    pipeline = SpanPipelineManager(workers=1, quota_bytes=2 * BATCH_BYTES + 1000)
    consumer = Consumer()
    pipeline.register(1, consumer.consume, consumer.advance)
    producer = threading.Thread(target=lambda: [pipeline.enqueue_data(1, BATCH) for _ in range(3)])
    producer.start()
    eventually(lambda: len(consumer.finish) == 2 and len(pipeline.quota._waiting) == 1)
    consumer.finish[1]()
    producer.join(5)
    eventually(lambda: len(consumer.finish) == 3)
    pipeline.close()


def test_a_batch_heavier_than_the_quota_passes_alone_instead_of_blocking_for_ever() -> None:
    pipeline = SpanPipelineManager(workers=1, quota_bytes=10)
    consumer = Consumer()
    pipeline.register(1, consumer.consume, consumer.advance)
    pipeline.enqueue_data(1, BATCH)
    pipeline.enqueue_resolved(1, 3)
    settled(pipeline)
    consumer.finish[0]()
    settled(pipeline)
    assert consumer.told == [3]
    assert pipeline.quota.used == 0
    pipeline.close()


@pytest.mark.parametrize("how", ["cancel", "unregister", "close"])
def test_an_enqueue_that_waits_raises_when_it_is_cancelled(how: str) -> None:
    pipeline = SpanPipelineManager(workers=1, quota_bytes=10)
    consumer = Consumer()
    pipeline.register(1, consumer.consume, consumer.advance)
    pipeline.enqueue_data(1, BATCH)
    outcome: list[str] = []

    def enqueue() -> None:
        try:
            pipeline.enqueue_data(1, BATCH)
        except Cancelled:
            outcome.append("cancelled")

    waiting = threading.Thread(target=enqueue)
    waiting.start()
    eventually(lambda: len(pipeline.quota._waiting) == 1)
    {
        "cancel": lambda: pipeline.cancel(1),
        "unregister": lambda: pipeline.unregister(1),
        "close": pipeline.close,
    }[how]()
    waiting.join(5)
    assert outcome == ["cancelled"]
    with pytest.raises(Cancelled):
        pipeline.enqueue_data(1, BATCH)
    with pytest.raises(Cancelled):
        pipeline.enqueue_resolved(1, 9)
    pipeline.close()


def test_an_enqueue_that_waits_for_room_raises_when_it_is_cancelled_and_gives_its_quota_back() -> None:
    pipeline = SpanPipelineManager(workers=1, queue_size=1)
    go_on = threading.Event()
    outcome: list[str] = []

    def consume(raw: pa.RecordBatch, finish: Callable[[], None], /) -> bool:
        go_on.wait(5)
        return False

    def enqueue() -> None:
        try:
            while True:
                pipeline.enqueue_data(1, BATCH)
        except Cancelled:
            outcome.append("cancelled")

    pipeline.register(1, consume, lambda ts: None)
    waiting = threading.Thread(target=enqueue)
    waiting.start()
    eventually(lambda: pipeline._workers[0]._producers_waiting == 1)
    pipeline.cancel(1)
    waiting.join(5)
    assert outcome == ["cancelled"]
    go_on.set()
    settled(pipeline)
    assert pipeline.quota.used == 0
    pipeline.close()


def test_unregistering_keeps_account_until_the_last_callback(pipeline: SpanPipelineManager) -> None:
    consumer = Consumer()
    pipeline.register(1, consumer.consume, consumer.advance)
    pipeline.enqueue_data(1, BATCH)
    pipeline.enqueue_data(1, BATCH)
    pipeline.enqueue_resolved(1, 5)
    settled(pipeline)
    pipeline.unregister(1)
    assert pipeline.active_subscriptions == 0
    assert pipeline.quota.batches == 2
    for finish in consumer.finish:
        finish()
    settled(pipeline)
    assert (pipeline.quota.used, pipeline.quota.batches, consumer.told) == (0, 0, [])


def test_callbacks_of_an_ended_subscription_do_not_count_for_its_successor(
    pipeline: SpanPipelineManager,
) -> None:
    before, after = Consumer(), Consumer()
    pipeline.register(1, before.consume, before.advance)
    pipeline.enqueue_data(1, BATCH)
    settled(pipeline)
    pipeline.unregister(1)
    pipeline.register(1, after.consume, after.advance)
    pipeline.enqueue_data(1, BATCH)
    pipeline.enqueue_resolved(1, 5)
    settled(pipeline)
    before.finish[0]()
    settled(pipeline)
    assert after.told == []
    after.finish[0]()
    settled(pipeline)
    assert after.told == [5]


def test_registering_again_exchanges_the_callbacks_and_keeps_the_order(
    pipeline: SpanPipelineManager,
) -> None:
    before, after = Consumer(), Consumer()
    pipeline.register(1, before.consume, before.advance)
    pipeline.enqueue_data(1, BATCH)
    pipeline.register(1, after.consume, after.advance)
    pipeline.enqueue_resolved(1, 5)
    settled(pipeline)
    assert (before.told, after.told) == ([], [])
    before.finish[0]()
    settled(pipeline)
    assert (before.told, after.told) == ([], [5])


def test_a_subscription_can_end_itself_in_a_callback(pipeline: SpanPipelineManager) -> None:
    told: list[int] = []

    def advance(ts: int) -> None:
        told.append(ts)
        pipeline.unregister(1)

    pipeline.register(1, lambda raw, finish: False, advance)
    pipeline.enqueue_resolved(1, 1)
    eventually(lambda: told == [1])
    eventually(lambda: pipeline.active_subscriptions == 0)
    with pytest.raises(Cancelled):
        pipeline.enqueue_resolved(1, 2)
    settled(pipeline)
    assert told == [1]


def test_nothing_is_known_of_a_subscription_that_was_never_registered(pipeline: SpanPipelineManager) -> None:
    with pytest.raises(Cancelled):
        pipeline.enqueue_data(9, BATCH)
    with pytest.raises(Cancelled):
        pipeline.enqueue_resolved(9, 1)
    pipeline.unregister(9)
    pipeline.cancel(9)
    assert pipeline.quota.used == 0


def test_empty_batches_and_a_timestamp_of_zero_are_ignored(pipeline: SpanPipelineManager) -> None:
    consumer = Consumer()
    pipeline.register(1, consumer.consume, consumer.advance)
    pipeline.enqueue_data(1, BATCH.slice(0, 0))
    pipeline.enqueue_resolved(1, 0)
    settled(pipeline)
    assert (consumer.finish, consumer.told) == ([], [])


def test_closing_hands_over_what_was_taken_and_takes_no_more() -> None:
    pipeline = SpanPipelineManager(workers=1)
    consumer = Consumer()
    pipeline.register(1, consumer.consume, consumer.advance)
    for _ in range(100):
        pipeline.enqueue_data(1, BATCH)
    pipeline.close()
    pipeline.close()
    assert len(consumer.finish) == 100
    with pytest.raises(Cancelled):
        pipeline.enqueue_data(1, BATCH)
    with pytest.raises(Cancelled):
        pipeline.register(2, consumer.consume, consumer.advance)
    for finish in consumer.finish:
        finish()


@pytest.mark.parametrize("where", ["consume", "advance"])
def test_a_callback_that_raises_ends_its_subscription_only(where: str) -> None:
    failed: list[tuple[int, str]] = []
    pipeline = SpanPipelineManager(
        workers=1, on_failure=lambda sub_id, error: failed.append((sub_id, str(error)))
    )
    bystander = Consumer()

    def consume(raw: pa.RecordBatch, finish: Callable[[], None], /) -> bool:
        if where == "consume":
            raise ValueError("broken")
        return False

    def advance(ts: int) -> None:
        raise ValueError("broken")

    pipeline.register(1, consume, advance)
    pipeline.register(2, bystander.consume, bystander.advance)
    pipeline.enqueue_data(1, BATCH)
    pipeline.enqueue_resolved(1, 5)
    pipeline.enqueue_resolved(2, 6)
    settled(pipeline)
    assert failed == [(1, "broken")]
    assert bystander.told == [6]
    assert pipeline.quota.used == 0
    with pytest.raises(Cancelled):
        pipeline.enqueue_data(1, BATCH)
    pipeline.close()


def test_the_gauges_show_what_is_in_flight(pipeline: SpanPipelineManager) -> None:
    def read(gauge: object) -> float:
        return gauge.collect()[0].samples[0].value

    consumer = Consumer()
    before = [
        read(gauge)
        for gauge in (
            metrics.SPAN_PIPELINE_INFLIGHT_BYTES,
            metrics.SPAN_PIPELINE_INFLIGHT_BATCHES,
            metrics.SPAN_PIPELINE_PENDING_RESOLVED_BARRIERS,
            metrics.SPAN_PIPELINE_ACTIVE_SUBSCRIPTIONS,
        )
    ]
    pipeline.register(1, consumer.consume, consumer.advance)
    pipeline.enqueue_data(1, BATCH, weight=123)
    pipeline.enqueue_resolved(1, 5)
    settled(pipeline)
    assert read(metrics.SPAN_PIPELINE_INFLIGHT_BYTES) == before[0] + 123
    assert read(metrics.SPAN_PIPELINE_INFLIGHT_BATCHES) == before[1] + 1
    assert read(metrics.SPAN_PIPELINE_PENDING_RESOLVED_BARRIERS) == before[2] + 1
    assert read(metrics.SPAN_PIPELINE_ACTIVE_SUBSCRIPTIONS) == before[3] + 1


def test_every_batch_is_in_the_histogram_of_waits_for_quota() -> None:
    histogram = metrics.SPAN_PIPELINE_QUOTA_ACQUIRE_DURATION_SECONDS

    def count() -> float:
        return next(s.value for s in histogram.collect()[0].samples if s.name.endswith("_count"))

    pipeline = SpanPipelineManager(workers=1, quota_bytes=10)
    consumer = Consumer()
    pipeline.register(1, consumer.consume, consumer.advance)
    before = count()
    pipeline.enqueue_data(1, BATCH)
    second = threading.Thread(target=pipeline.enqueue_data, args=(1, BATCH))
    second.start()
    eventually(lambda: len(pipeline.quota._waiting) == 1 and len(consumer.finish) == 1)
    consumer.finish[0]()
    second.join(5)
    settled(pipeline)
    pipeline.close()
    assert count() == before + 2
