"""Records the arrival of transactions at the stages of the flow, and sends their spans from a thread.

Recording never waits and never fails: spans that cannot be sent, or not fast enough, are counted and dropped.
"""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol

import numpy.typing as npt
import pyarrow as pa

from penstock import metrics
from penstock.clock import Clock
from penstock.tracing.sampling import (
    HELD_MAX,
    Arrival,
    SampledTransactions,
    SampleFilter,
    Sampling,
    Span,
    Stage,
    Value,
    spans_of,
)

__all__ = ["Export", "StageRecorder", "Tracer"]

_log = logging.getLogger(__name__)

_BATCH_SPANS = 512
_LINGER_S = 0.5
_CLOSE_S = 5.0
_COMMITS_KNOWN = 4_096


class Export(Protocol):
    """The receiver of spans."""

    def send(self, spans: Sequence[Span]) -> str:
        """Send spans in bounded time; return the error, or an empty text on success."""

    def close(self) -> None:
        """Send no more; a running `send` ends soon."""


class Tracer:
    """Queues arrivals and sends their spans from its own thread. Thread-safe."""

    def __init__(
        self, sampling: Sampling, export: Export, *, clock: Clock, queued_max: int = HELD_MAX
    ) -> None:
        self.sampling = sampling
        self._export = export
        self._clock = clock
        self._queued_max = queued_max
        self._lock = threading.Condition()
        self._queue: deque[Arrival] = deque()
        self._queued = 0
        self._closing = False
        self._given_up = False
        self._failing = False
        self._commits: OrderedDict[int, None] = OrderedDict()
        """Traces whose commit span was sent, the newest last."""
        self._thread = threading.Thread(target=self._run, name="penstock-traces", daemon=True)
        self._thread.start()

    def start_recorder(self, *, began_s_ago: float = 0) -> "StageRecorder":
        """Return a recorder for work that begins now, or began so many seconds ago."""
        return StageRecorder(self, self._clock.wall_ms() - round(began_s_ago * 1000))

    def record_capture(
        self, raw: pa.RecordBatch, table_name: Callable[[], str], *, table_id: int, place: str
    ) -> None:
        """Record that a raw batch of a table is durable at a place of the log."""
        commit_ts, start_ts = raw.column("commit_ts").to_numpy(), raw.column("start_ts").to_numpy()
        picked = self.sampling.pick(commit_ts, start_ts)
        if len(picked):
            attributes: dict[str, Value] = {"table_id": table_id}
            if name := table_name():
                attributes["table"] = name
            self.record_arrival(Stage.CAPTURE, picked, attributes, key=f"{table_id}/{place}")

    def record_arrival(
        self,
        stage: Stage,
        picked: SampledTransactions,
        attributes: Mapping[str, Value],
        *,
        key: str,
        began_ms: int | None = None,
    ) -> None:
        """Record that transactions reached a stage just now."""
        if not len(picked):
            return
        arrival = Arrival(
            stage=stage,
            picked=picked,
            at_ms=self._clock.wall_ms(),
            key=key,
            began_ms=began_ms,
            attributes=attributes,
        )
        with self._lock:
            room = 0 if self._closing else self._queued_max - self._queued
            kept = self._within(arrival, room)
            if len(kept.picked):
                self._queue.append(kept)
                self._queued += len(kept.picked)
                self._lock.notify_all()
        _count("dropped", len(picked) - len(kept.picked))

    def close(self) -> None:
        """Send what is queued, for a few seconds at most, then end."""
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        self._thread.join(_CLOSE_S)
        self._given_up = True
        self._export.close()
        self._thread.join(_CLOSE_S)

    def _within(self, arrival: Arrival, room: int) -> Arrival:
        """Limit an arrival to the room of the queue; keep those that the smallest share would pick."""
        return replace(arrival, picked=self.sampling.limit(arrival.picked, room))

    def _run(self) -> None:
        while arrivals := self._next():
            spans = self._spans(arrivals)
            while batch := list(islice(spans, _BATCH_SPANS)):
                self._send(batch)

    def _next(self) -> list[Arrival]:
        """Wait for arrivals, and a little for more of them; return none when the tracer is closed."""
        with self._lock:
            self._lock.wait_for(lambda: self._queue or self._closing)
            self._lock.wait_for(lambda: self._queued >= _BATCH_SPANS or self._closing, _LINGER_S)
            arrivals = list(self._queue)
            self._queue.clear()
            self._queued = 0
            return arrivals

    def _spans(self, arrivals: Sequence[Arrival]) -> Iterator[Span]:
        for arrival in arrivals:
            for span in spans_of(arrival, self.sampling):
                if span.stage is not Stage.COMMIT or self._is_new(span):
                    yield span

    def _is_new(self, commit: Span) -> bool:
        """Return whether a commit span was not sent yet. Each table and batch of a commit brings one."""
        known = commit.trace_id in self._commits
        self._commits[commit.trace_id] = None
        self._commits.move_to_end(commit.trace_id)
        if len(self._commits) > _COMMITS_KNOWN:
            self._commits.popitem(last=False)
        return not known

    def _send(self, spans: Sequence[Span]) -> None:
        if self._given_up:
            _count("dropped", len(spans))
            return
        try:
            error = self._export.send(spans)
        except Exception as failure:  # noqa: BLE001 - a failing export must not stop the flow
            error = type(failure).__name__
        _count("failed" if error else "sent", len(spans))
        if error and not self._failing:
            facts = {"error": error}
            _log.warning("traces cannot be sent; their spans are dropped and counted", extra=facts)
        self._failing = bool(error)


class StageRecorder:
    """Gathers the traced transactions of one piece of work, and records their arrival when it is done."""

    def __init__(self, tracer: Tracer, began_ms: int) -> None:
        self._tracer = tracer
        self._began_ms = began_ms
        self._picks = SampleFilter(tracer.sampling)

    def add(self, commit_ts: npt.NDArray[Any]) -> None:
        """Add rows with these timestamps to the work."""
        self._picks.add(commit_ts)

    def add_pairs(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Add transactions that another process picked: pairs of commit timestamp and rows."""
        self._picks.add_pairs(pairs)

    def pass_through(self, raw: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        """Yield raw batches unchanged and add their rows to the work."""
        for batch in raw:
            self.add(batch.column("commit_ts").to_numpy())
            yield batch

    def record_arrival(self, stage: Stage, *, key: str, **attributes: Value) -> None:
        """Record that everything added so far reached a stage just now."""
        picked = self._picks.transactions()
        _count("dropped", self._picks.dropped)
        self._tracer.record_arrival(stage, picked, attributes, key=key, began_ms=self._began_ms)


def _count(outcome: str, spans: int) -> None:
    if spans:
        metrics.TRACING_SPANS_TOTAL.labels(outcome).inc(spans)
