"""Which transactions are traced, and the ids and spans of their traces. Pure functions of commit timestamps.

The choice follows OpenTelemetry's consistent probability sampling: a trace is kept when the low 56 bits of
its id reach a threshold. A collector that samples the same way keeps or drops whole traces.

A trace has one span for each stage that its transaction has reached. Each span begins with the commit, so
that its length is the lag of the stage; `began` is when the work of the stage began. A repeated arrival has
the same ids, whichever process reports it.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.clock import physical_ms

__all__ = [
    "HELD_MAX",
    "Arrival",
    "SampleFilter",
    "SampledTransactions",
    "Sampling",
    "Span",
    "Stage",
    "Times",
    "Value",
    "spans_of",
]


Times = npt.NDArray[np.uint64]

HELD_MAX = 16_384
"""Traced transactions that one recorder, or the queue of the tracer, may hold."""

_RANDOM_BITS = 56
_RANDOM = (1 << _RANDOM_BITS) - 1


@dataclass(frozen=True, slots=True, eq=False)
class SampledTransactions:
    """Traced transactions, each once, with the number of rows that each has here."""

    commit_ts: Times
    rows: npt.NDArray[np.int64]
    start_ts: Times | None = None
    """Start timestamps, when they are known."""

    def __len__(self) -> int:
        return len(self.commit_ts)

    def take(self, places: npt.NDArray[np.intp]) -> "SampledTransactions":
        """Return the transactions at these places."""
        start_ts = None if self.start_ts is None else self.start_ts[places]
        return SampledTransactions(self.commit_ts[places], self.rows[places], start_ts)

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Return pairs of commit timestamp and rows: plain values that can be sent to other processes."""
        return tuple(zip(self.commit_ts.tolist(), self.rows.tolist(), strict=True))


_NOTHING = SampledTransactions(np.zeros(0, np.uint64), np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class Sampling:
    """Picks the same transactions in every process. Instances can be pickled."""

    high_salt: int
    low_salt: int
    threshold: int

    @classmethod
    def of(cls, cluster_id: int, share: float) -> "Sampling":
        """Pick a share of a cluster's transactions, from 0 (none) to 1 (all)."""
        salts = hashlib.blake2b(
            cluster_id.to_bytes(8, "big"), digest_size=16, person=b"penstock-traces"
        ).digest()
        threshold = round((1 - share) * (1 << _RANDOM_BITS))
        return cls(int.from_bytes(salts[:8], "big"), int.from_bytes(salts[8:], "big"), threshold)

    def pick(
        self, commit_ts: npt.NDArray[Any], start_ts: npt.NDArray[Any] | None = None
    ) -> SampledTransactions:
        """Return the transactions to trace among rows with these timestamps. Vectorized."""
        times = commit_ts.view(np.uint64)
        chosen = np.flatnonzero(self.chances(times) >= self.threshold)
        if not len(chosen):  # the common case, and a cheap one
            return _NOTHING
        found, first, rows = np.unique(times[chosen], return_index=True, return_counts=True)
        starts = None if start_ts is None else start_ts.view(np.uint64)[chosen[first]]
        return SampledTransactions(found, rows, starts)

    def chances(self, commit_ts: Times) -> Times:
        """Return the numbers that are compared with the threshold: those at or above it are traced."""
        return _mix(commit_ts ^ np.uint64(self.low_salt)) & np.uint64(_RANDOM)

    def limit(self, picked: SampledTransactions, count: int) -> SampledTransactions:
        """Return at most `count` of the transactions: those that the smallest share would still pick."""
        if len(picked) <= count:
            return picked
        order = np.argsort(self.chances(picked.commit_ts))
        return picked.take(np.sort(order[len(picked) - count :]))

    def keep_sampled(self, picked: SampledTransactions) -> SampledTransactions:
        """Return those of the transactions that this share picks."""
        return picked.take(np.flatnonzero(self.chances(picked.commit_ts) >= self.threshold))

    def trace_ids(self, commit_ts: Times) -> list[int]:
        """Return the trace id of each transaction; no two transactions of a cluster share one."""
        high = _mix(commit_ts ^ np.uint64(self.high_salt)).tolist()
        low = _mix(commit_ts ^ np.uint64(self.low_salt)).tolist()
        # The low half is what `chances` takes its 56 bits from, so that collectors decide the same way.
        return [upper << 64 | lower for upper, lower in zip(high, low, strict=True)]


class SampleFilter:
    """Gathers the traced transactions of many batches; of too many, those of the smallest share."""

    def __init__(self, sampling: Sampling, *, held_max: int = HELD_MAX) -> None:
        self.dropped = 0
        """Transactions dropped because there were too many."""
        self._sampling = sampling
        self._held_max = held_max
        self._parts: list[SampledTransactions] = []
        self._held = 0

    def add(self, commit_ts: npt.NDArray[Any]) -> None:
        """Pick among rows with these timestamps."""
        self._keep(self._sampling.pick(commit_ts))

    def add_pairs(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Add transactions that another process picked: pairs of commit timestamp and rows."""
        if listed := list(pairs):
            times, rows = zip(*listed, strict=True)
            self._keep(SampledTransactions(np.array(times, np.uint64), np.array(rows, np.int64)))

    def transactions(self) -> SampledTransactions:
        """Return all transactions held, each once."""
        times = np.concatenate([part.commit_ts for part in self._parts] or [_NOTHING.commit_ts])
        rows = np.concatenate([part.rows for part in self._parts] or [_NOTHING.rows])
        found, places = np.unique(times, return_inverse=True)
        counts = np.zeros(len(found), np.int64)
        np.add.at(counts, places, rows)
        whole = SampledTransactions(found, counts)
        # A transaction that was dropped may have come again, and then its earlier rows are missing.
        return self._sampling.keep_sampled(whole) if self.dropped else whole

    def _keep(self, picked: SampledTransactions) -> None:
        if not len(picked):
            return
        self._parts.append(picked)
        self._held += len(picked)
        if self._held <= 2 * self._held_max:
            return
        whole = self.transactions()
        kept = self._sampling.limit(whole, self._held_max)
        self.dropped += len(whole) - len(kept)
        self._sampling = replace(self._sampling, threshold=int(self._sampling.chances(kept.commit_ts).min()))
        self._parts, self._held = [kept], len(kept)


def _mix(values: Times) -> Times:
    """Apply the finalizer of splitmix64 in place: a bijection in which every bit depends on every bit."""
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


Value = str | int


class Stage(StrEnum):
    """The stages of the flow that a transaction reaches."""

    COMMIT = "commit"
    """The transaction itself, from its start to its commit; the parent of all other spans."""
    CAPTURE = "capture"
    """Its changes are durable in the log of a capture."""
    FLUSH = "flush"
    """Its changes are in objects that a manifest names."""
    CHANGEFEED = "changefeed"
    """Its changes are in a file of a changefeed, and the index file names it."""
    JOB = "job"
    """Its changes are committed in the target of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Transactions that reached a stage together. `key` names what reached it: a file, a job."""

    stage: Stage
    picked: SampledTransactions
    at_ms: int
    key: str
    began_ms: int | None = None
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One transaction at one stage."""

    stage: Stage
    trace_id: int
    span_id: int
    parent_id: int | None
    start_ms: int
    end_ms: int
    began_ms: int | None
    attributes: Mapping[str, Value]


def spans_of(arrival: Arrival, sampling: Sampling) -> Iterator[Span]:
    """Yield the spans of an arrival in commit order, after a commit's own span when its start is known."""
    picked = arrival.picked
    starts = [None] * len(picked) if picked.start_ts is None else picked.start_ts.tolist()
    columns = (sampling.trace_ids(picked.commit_ts), picked.commit_ts.tolist(), picked.rows.tolist(), starts)
    for trace_id, commit_ts, rows, start_ts in zip(*columns, strict=True):
        root = _span_id(trace_id, Stage.COMMIT)
        committed_ms = physical_ms(commit_ts)
        if start_ts is not None:
            yield Span(
                stage=Stage.COMMIT,
                trace_id=trace_id,
                span_id=root,
                parent_id=None,
                start_ms=physical_ms(start_ts),
                end_ms=committed_ms,
                began_ms=None,
                attributes={"start_ts": start_ts, "commit_ts": commit_ts},
            )
        yield Span(
            stage=arrival.stage,
            trace_id=trace_id,
            span_id=_span_id(trace_id, arrival.stage, arrival.key),
            parent_id=root,
            start_ms=committed_ms,
            end_ms=max(arrival.at_ms, committed_ms),  # clocks of machines differ
            began_ms=arrival.began_ms,
            attributes={**arrival.attributes, "commit_ts": commit_ts, "rows": rows},
        )


def _span_id(trace_id: int, stage: Stage, key: str = "") -> int:
    named = trace_id.to_bytes(16, "big") + f"{stage}\0{key}".encode()
    return int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "big") or 1  # 0 is no valid id
