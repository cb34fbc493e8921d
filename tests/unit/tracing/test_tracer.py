"""Traces: what is sent, and that nobody is disturbed by it."""

import logging
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from penstock import metrics, tracing
from penstock.clock import SYSTEM, compose_ts
from penstock.settings import TracingSettings
from penstock.tracing.sampling import Sampling, Span, Stage
from penstock.tracing.tracer import Tracer
from support.rawbatches import raw
from support.tracereceiver import TraceReceiver

NOW_MS = 1_700_000_000_000
ALL = Sampling.of(7, 1.0)


def times(*physical: int) -> np.ndarray:
    return np.array([compose_ts(NOW_MS + each) for each in physical], np.uint64)


def counted(outcome: str) -> float:
    return metrics.TRACING_SPANS_TOTAL.labels(outcome)._value.get()


class Kept:
    """Implements Export; holds what comes while `open` is not set."""

    def __init__(self, error: str = "") -> None:
        self.error = error
        self.spans: list[Span] = []
        self.open = threading.Event()
        self.open.set()
        self.asked = threading.Event()

    def send(self, spans: Sequence[Span]) -> str:
        self.asked.set()
        self.open.wait(10)
        self.spans += spans
        return self.error

    def close(self) -> None:
        self.open.set()


@pytest.fixture
def receiver() -> Iterator[TraceReceiver]:
    with TraceReceiver() as running:
        yield running


def configured(receiver: TraceReceiver, **settings: object) -> tracing.TracingScope:
    given = TracingSettings(endpoint=receiver.endpoint, sample=1.0, **settings)
    return tracing.configure(given, cluster_id=7, service="capture", instance="a")


def test_without_an_endpoint_nothing_is_traced() -> None:
    with tracing.configure(TracingSettings(), cluster_id=1, service="jobs") as tracer:
        assert tracer is None
        assert tracing.current is None


def test_nothing_is_traced_of_a_share_of_nothing() -> None:
    settings = TracingSettings(endpoint="http://127.0.0.1:1/v1/traces", sample=0)
    with tracing.configure(settings, cluster_id=1, service="jobs") as tracer:
        assert tracer is None


def test_a_captured_transaction_has_a_commit_and_below_it_a_capture(receiver: TraceReceiver) -> None:
    start_ts, commit_ts = compose_ts(NOW_MS), compose_ts(NOW_MS + 30, 5)
    batch = raw([(commit_ts, start_ts, b"k1", b"secret", None), (commit_ts, start_ts, b"k2", None, b"x")])
    with configured(receiver, headers={"Authorization": "Bearer t"}) as tracer:
        assert tracer is tracing.current is not None
        tracer.record_capture(batch, lambda: "shop.items", table_id=99, place="1/16")
    assert tracing.current is None
    commit, capture = sorted(receiver.spans, key=lambda span: span.name != "commit")
    assert (commit.name, capture.name) == ("commit", "capture")
    assert commit.service == capture.service == "penstock-capture"
    assert commit.trace_id == capture.trace_id
    assert (commit.parent_id, capture.parent_id) == (b"", commit.span_id)
    assert (commit.start_ns, commit.end_ns) == (NOW_MS * 10**6, (NOW_MS + 30) * 10**6)
    assert capture.start_ns == commit.end_ns <= capture.end_ns
    assert capture.attributes == {
        "penstock.table": "shop.items",
        "penstock.table_id": 99,
        "penstock.commit_ts": commit_ts,
        "penstock.rows": 2,
    }
    assert receiver.headers[0]["authorization"] == "Bearer t"


def test_a_commit_is_told_once_however_many_batches_it_came_in() -> None:
    kept = Kept()
    tracer = Tracer(ALL, kept, clock=SYSTEM)
    commit_ts = compose_ts(NOW_MS)
    for place in ("1/16", "1/32"):
        tracer.record_capture(raw([(commit_ts, 1, b"k", b"x", None)]), str, table_id=9, place=place)
    tracer.close()
    assert [span.stage for span in kept.spans] == [Stage.COMMIT, Stage.CAPTURE, Stage.CAPTURE]
    assert len({span.span_id for span in kept.spans}) == 3


def test_the_stages_of_a_transaction_are_one_trace_whoever_tells_of_them() -> None:
    told = []
    for stage in (Stage.FLUSH, Stage.CHANGEFEED, Stage.JOB):
        kept = Kept()
        tracer = Tracer(Sampling.of(7, 1.0), kept, clock=SYSTEM)
        passage = tracer.start_recorder()
        passage.add(times(1, 1, 2).view(np.int64))
        passage.add_pairs([(int(times(2)[0]), 4)])
        passage.record_arrival(stage, key="k")
        tracer.close()
        told.append(kept.spans)
    for first, second, third in zip(*told, strict=True):
        assert first.trace_id == second.trace_id == third.trace_id
        assert first.parent_id == second.parent_id == third.parent_id
        assert len({first.span_id, second.span_id, third.span_id}) == 3
    assert [span.attributes["rows"] for span in told[0]] == [2, 5]


def test_a_clock_that_is_behind_makes_no_span_that_ends_before_it_begins() -> None:
    kept = Kept()
    tracer = Tracer(ALL, kept, clock=SYSTEM)
    passage = tracer.start_recorder()
    passage.add(np.array([compose_ts(SYSTEM.wall_ms() + 10**6)], np.uint64))
    passage.record_arrival(Stage.FLUSH, key="")
    tracer.close()
    assert [span.end_ms - span.start_ms for span in kept.spans] == [0]


def test_an_endpoint_that_refuses_is_warned_of_once_and_counted(
    receiver: TraceReceiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("penstock"), "propagate", True)
    receiver.status = 400
    before = counted("failed")
    with configured(receiver) as tracer:
        assert tracer is not None
        for number in range(3):
            tracer.record_arrival(Stage.FLUSH, ALL.pick(times(number)), {}, key=str(number))
            deadline = SYSTEM.monotonic() + 10
            while counted("failed") < before + number + 1:
                assert SYSTEM.monotonic() < deadline
                SYSTEM.pause(0.01)
    said = [record for record in caplog.records if "traces" in record.getMessage()]
    assert len(said) == 1
    assert counted("failed") == before + 3
    assert [record for record in caplog.records if record.name.startswith("opentelemetry")] == []


def test_an_endpoint_that_is_not_there_delays_nobody() -> None:
    settings = TracingSettings(endpoint="http://127.0.0.1:1/v1/traces", sample=1.0)
    before = counted("failed") + counted("dropped")
    began = SYSTEM.monotonic()
    with tracing.configure(settings, cluster_id=7, service="jobs") as tracer:
        assert tracer is not None
        tracer.record_arrival(Stage.JOB, ALL.pick(times(1, 2)), {}, key="")
        assert SYSTEM.monotonic() - began < 5
    assert SYSTEM.monotonic() - began < 15
    assert counted("failed") + counted("dropped") == before + 2


def test_more_than_can_be_sent_is_dropped_and_counted_and_the_same_are_kept_everywhere() -> None:
    kept = Kept()
    kept.open.clear()
    tracer = Tracer(ALL, kept, clock=SYSTEM, queued_max=10)
    before = counted("dropped")
    tracer.record_arrival(Stage.FLUSH, ALL.pick(times(0)), {}, key="")
    assert kept.asked.wait(10)
    many = times(*range(1, 101))
    tracer.record_arrival(Stage.FLUSH, ALL.pick(many), {}, key="")
    tracer.record_arrival(Stage.JOB, ALL.pick(many), {}, key="")
    assert counted("dropped") == before + 90 + 100
    kept.open.set()
    tracer.close()
    chances = sorted(ALL.chances(many).tolist())[-10:]
    sent = np.array([span.attributes["commit_ts"] for span in kept.spans[1:]], np.uint64)
    assert sorted(ALL.chances(sent).tolist()) == chances


def test_an_export_that_breaks_ends_nothing() -> None:
    class Broken(Kept):
        def send(self, spans: Sequence[Span]) -> str:
            raise ZeroDivisionError

    tracer = Tracer(ALL, Broken(), clock=SYSTEM)
    before = counted("failed")
    tracer.record_arrival(Stage.FLUSH, ALL.pick(times(1)), {}, key="")
    tracer.close()
    assert counted("failed") == before + 1
