"""Takes what arrives at the stages of the flow, and sends its spans from a thread of its own.

Whoever tells of an arrival never waits and never fails: when spans cannot be sent as fast as they come, or
not at all, they are counted and forgotten.
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
    """Where spans go."""

    def send(self, spans: Sequence[Span]) -> str:
        """Send spans; what went wrong, empty when nothing did. Takes a bounded time."""

    def close(self) -> None:
        """Send no more; what is being sent ends soon."""


class Tracer:
    """See the module. Thread-safe."""

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
        self._commits: OrderedDict[int, None] = OrderedDict()  # whose spans were sent, the newest last
        self._thread = threading.Thread(target=self._run, name="penstock-traces", daemon=True)
        self._thread.start()

    def passage(self, *, began_s_ago: float = 0) -> "StageRecorder":
        """To follow what passes by, from now, or from when the work began, until it arrives."""
        return StageRecorder(self, self._clock.wall_ms() - round(began_s_ago * 1000))

    def captured(self, raw: pa.RecordBatch, named: Callable[[], str], *, table_id: int, place: str) -> None:
        """A raw batch of a table is durable in the log, at a place; `named` tells the table's name."""
        commit_ts, start_ts = raw.column("commit_ts").to_numpy(), raw.column("start_ts").to_numpy()
        picked = self.sampling.pick(commit_ts, start_ts)
        if len(picked):
            attributes: dict[str, Value] = {"table_id": table_id}
            if name := named():
                attributes["table"] = name
            self.arrived(Stage.CAPTURE, picked, attributes, key=f"{table_id}/{place}")

    def arrived(
        self,
        stage: Stage,
        picked: SampledTransactions,
        attributes: Mapping[str, Value],
        *,
        key: str,
        began_ms: int | None = None,
    ) -> None:
        """Transactions have come to a stage just now."""
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
        """As many of its transactions as there is room for: those that the smallest share would have."""
        return replace(arrival, picked=self.sampling.within(arrival.picked, room))

    def _run(self) -> None:
        while arrivals := self._next():
            spans = self._spans(arrivals)
            while batch := list(islice(spans, _BATCH_SPANS)):
                self._send(batch)

    def _next(self) -> list[Arrival]:
        """Wait for arrivals, and a little for more; none: it is over."""
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
        """Whether a commit was not told of before; each of its tables, and of its batches, does so."""
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
        except Exception as failure:  # noqa: BLE001 - whatever it is, the flow goes on
            error = type(failure).__name__
        _count("failed" if error else "sent", len(spans))
        if error and not self._failing:
            facts = {"error": error}
            _log.warning("traces cannot be sent; until they can, they are only counted", extra=facts)
        self._failing = bool(error)


class StageRecorder:
    """Work on changes: which of them are traced is gathered as they pass, and told when they have arrived."""

    def __init__(self, tracer: Tracer, began_ms: int) -> None:
        self._tracer = tracer
        self._began_ms = began_ms
        self._picks = SampleFilter(tracer.sampling)

    def add(self, commit_ts: npt.NDArray[Any]) -> None:
        """Rows with these timestamps pass."""
        self._picks.add(commit_ts)

    def add_pairs(self, pairs: Iterable[tuple[int, int]]) -> None:
        """What was picked elsewhere passes: commit timestamps, and how many rows each has."""
        self._picks.add_pairs(pairs)

    def through(self, raw: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        """Raw batches, as they pass."""
        for batch in raw:
            self.add(batch.column("commit_ts").to_numpy())
            yield batch

    def arrived(self, stage: Stage, *, key: str, **attributes: Value) -> None:
        """All that has passed has come to a stage just now."""
        picked = self._picks.picked()
        _count("dropped", self._picks.dropped)
        self._tracer.arrived(stage, picked, attributes, key=key, began_ms=self._began_ms)


def _count(outcome: str, spans: int) -> None:
    if spans:
        metrics.TRACING_SPANS_TOTAL.labels(outcome).inc(spans)
