"""Random interleavings of everything that can happen to the span pipeline, against a model.

The contract is checked at the moment `advance` is called: every batch that arrived before the
timestamp is persisted by then, and timestamps only grow. The model also knows who has to wait for
quota, and in which order they get it.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.sources.pipeline import SpanPipelineManager
from penstock.sources.quota import Cancelled
from support.campaign import examples

QUOTA = 30
SUBS = st.integers(1, 2)
RARELY = st.integers(0, 7).map(lambda drawn: drawn == 0)


@dataclass(eq=False)
class Batch:
    number: int
    weight: int
    sync: bool
    finish: Callable[[], None] | None = None
    persisted: bool = False

    def raw(self) -> pa.RecordBatch:
        return pa.record_batch({"key": pa.array([b"%d" % self.number], pa.binary())})


@dataclass(eq=False)
class Subscription:
    """One life of a subscription id: from register to unregister."""

    sub_id: int
    arrived: list[Batch] = field(default_factory=list)
    barriers: dict[int, int] = field(default_factory=dict)  # ts -> batches that arrived before it
    told: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    offered: dict[int, Batch] = field(default_factory=dict)
    cancelled: bool = False

    def consume(self, raw: pa.RecordBatch, finish: Callable[[], None], /) -> bool:
        batch = self.offered[int(raw["key"][0].as_py())]
        if batch.sync:
            batch.persisted = True
            return False
        batch.finish = finish
        return True

    def advance(self, ts: int) -> None:
        if self.told and ts <= self.told[-1]:
            self.problems.append(f"{ts} after {self.told[-1]}")
        if not all(batch.persisted for batch in self.arrived[: self.barriers[ts]]):
            self.problems.append(f"{ts} before its data was persisted")
        self.told.append(ts)

    def expected(self) -> int:
        """The highest timestamp whose data is persisted; 0 for none."""
        ready = [
            ts
            for ts, count in self.barriers.items()
            if all(batch.persisted for batch in self.arrived[:count])
        ]
        return max(ready, default=0)


@dataclass(eq=False)
class Enqueue:
    """A call of enqueue_data that has to wait for quota."""

    subscription: Subscription
    batch: Batch
    thread: threading.Thread
    outcome: list[str]


class SpanPipelineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pipeline = SpanPipelineManager(workers=2, queue_size=1000, quota_bytes=QUOTA)
        self.active: dict[int, Subscription] = {}
        self.ended: list[Subscription] = []
        self.used = 0
        self.waiting: list[Enqueue] = []
        self.last_ts = 0
        self.batches = 0

    def settle(self) -> None:
        for worker in self.pipeline._workers:
            worker.do(lambda: None)

    def admit(self) -> None:
        """Let those in, in order, that fit by now."""
        while self.waiting and (not self.used or self.used + self.waiting[0].batch.weight <= QUOTA):
            first = self.waiting.pop(0)
            first.thread.join(5)
            assert first.outcome == ["taken"]
            self.used += first.batch.weight
            first.subscription.arrived.append(first.batch)
            self.settle()
            if first.batch.persisted:
                self.used -= first.batch.weight

    def dismiss(self, subscription: Subscription) -> None:
        """Those who waited on behalf of a subscription that is refused have been told."""
        for waiter in [each for each in self.waiting if each.subscription is subscription]:
            waiter.thread.join(5)
            assert waiter.outcome == ["cancelled"]
            self.waiting.remove(waiter)
        self.admit()

    @rule(sub_id=SUBS)
    def register(self, sub_id: int) -> None:
        known = self.active.get(sub_id)
        if known is not None and not known.cancelled:
            self.pipeline.register(sub_id, known.consume, known.advance)
            return
        if known is not None:
            self.ended.append(known)
        self.active[sub_id] = fresh = Subscription(sub_id)
        self.pipeline.register(sub_id, fresh.consume, fresh.advance)

    @initialize()
    def begin(self) -> None:
        for sub_id in (1, 2):
            self.register(sub_id)

    @rule(sub_id=SUBS, only_cancelled=st.booleans(), really=RARELY)
    def leave(self, sub_id: int, only_cancelled: bool, really: bool) -> None:
        if not really:
            return
        if only_cancelled:
            self.settle()
            self.pipeline.cancel(sub_id)
            known = self.active.get(sub_id)
        else:
            self.pipeline.unregister(sub_id)
            known = self.active.pop(sub_id, None)
            if known is not None:
                self.ended.append(known)
        if known is not None:
            known.cancelled = True
            self.dismiss(known)

    @rule(sub_id=SUBS, weight=st.sampled_from([1, 1, 2, 3, 20, 45]), sync=RARELY)
    def data(self, sub_id: int, weight: int, sync: bool) -> None:
        known = self.active.get(sub_id)
        if known is None or known.cancelled:
            try:
                self.pipeline.enqueue_data(sub_id, Batch(0, weight, sync).raw(), weight)
            except Cancelled:
                return
            raise AssertionError("data of a subscription that is refused was taken")
        self.batches += 1
        batch = known.offered[self.batches] = Batch(self.batches, weight, sync)
        if not self.waiting and (not self.used or self.used + weight <= QUOTA):
            known.arrived.append(batch)
            self.pipeline.enqueue_data(sub_id, batch.raw(), weight)
            self.settle()
            self.used += 0 if sync else weight
            return
        self.wait_for_quota(known, batch)

    def wait_for_quota(self, known: Subscription, batch: Batch) -> None:
        outcome: list[str] = []

        def enqueue() -> None:
            try:
                self.pipeline.enqueue_data(known.sub_id, batch.raw(), batch.weight)
                outcome.append("taken")
            except Cancelled:
                outcome.append("cancelled")

        thread = threading.Thread(target=enqueue, daemon=True)
        before = len(self.pipeline.quota._waiting)
        thread.start()
        while len(self.pipeline.quota._waiting) == before:
            assert thread.is_alive(), "it did not wait"
        self.waiting.append(Enqueue(known, batch, thread, outcome))

    @rule(sub_id=SUBS, step=st.sampled_from([-1, 0, 1, 1, 2, 5]))
    def resolved(self, sub_id: int, step: int) -> None:
        ts = max(1, self.last_ts + step)
        known = self.active.get(sub_id)
        if known is None or known.cancelled:
            try:
                self.pipeline.enqueue_resolved(sub_id, ts)
            except Cancelled:
                return
            raise AssertionError("a timestamp of a subscription that is refused was taken")
        if any(each.subscription is known for each in self.waiting):
            return  # a region does not go on while its data waits
        self.last_ts = max(self.last_ts, ts)
        if ts > max(known.barriers, default=0):
            known.barriers[ts] = len(known.arrived)
        self.pipeline.enqueue_resolved(sub_id, ts)

    @precondition(lambda self: any(self.in_flight()))
    @rule(data=st.data(), twice=st.booleans())
    def persisted(self, data: st.DataObject, twice: bool) -> None:
        batch = data.draw(st.sampled_from(self.in_flight()))
        batch.persisted = True
        assert batch.finish is not None
        batch.finish()
        if twice:
            batch.finish()
        self.settle()
        self.used -= batch.weight
        self.admit()

    def in_flight(self) -> list[Batch]:
        lives = [*self.active.values(), *self.ended]
        return [b for life in lives for b in life.arrived if b.finish is not None and not b.persisted]

    @invariant()
    def the_contract_holds(self) -> None:
        self.settle()
        for life in [*self.active.values(), *self.ended]:
            assert life.problems == []
            if not life.cancelled:
                assert (life.told or [0])[-1] == life.expected()

    @invariant()
    def the_quota_is_what_the_model_says(self) -> None:
        assert self.pipeline.quota.used == self.used
        assert len(self.pipeline.quota._waiting) == len(self.waiting)

    def teardown(self) -> None:
        try:
            while batches := self.in_flight():
                for batch in batches:
                    batch.persisted = True
                    assert batch.finish is not None
                    batch.finish()
                    self.settle()
                    self.used -= batch.weight
                    self.admit()
            self.settle()
            assert not self.waiting
            assert (self.pipeline.quota.used, self.pipeline.quota.batches) == (0, 0)
            self.the_contract_holds()
        finally:
            self.pipeline.close()


TestSpanPipeline = SpanPipelineMachine.TestCase
TestSpanPipeline.settings = settings(
    max_examples=examples(100),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
