"""Which transactions are traced, and the ids of their traces: functions of their commit timestamps. Pure.

The choice is OpenTelemetry's for consistent probability: a trace counts when the low 56 bits of its id reach
a threshold. A collector that samples the same way keeps or drops whole traces.

The spans of a trace: one for each stage that a transaction has come to. Pure.

Each begins with the commit, so that its length is how late the stage was; `began` is when the work began.
The same arrival has the same ids whoever tells of it, and however often.
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
"""Transactions that wait for something at the same time, in one place."""

_RANDOM_BITS = 56
_RANDOM = (1 << _RANDOM_BITS) - 1


@dataclass(frozen=True, slots=True, eq=False)
class SampledTransactions:
    """Transactions that are traced, by commit timestamp, each once: how many rows each has here."""

    commit_ts: Times
    rows: npt.NDArray[np.int64]
    start_ts: Times | None = None
    """When each began; where that is known."""

    def __len__(self) -> int:
        return len(self.commit_ts)

    def take(self, places: npt.NDArray[np.intp]) -> "SampledTransactions":
        """Some of them."""
        start_ts = None if self.start_ts is None else self.start_ts[places]
        return SampledTransactions(self.commit_ts[places], self.rows[places], start_ts)

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """As plain values, to travel: commit timestamp and rows."""
        return tuple(zip(self.commit_ts.tolist(), self.rows.tolist(), strict=True))


_NOTHING = SampledTransactions(np.zeros(0, np.uint64), np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class Sampling:
    """Picks the same transactions in every process. Can be pickled."""

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
        """The transactions to trace among rows with these timestamps; in vectors."""
        times = commit_ts.view(np.uint64)
        chosen = np.flatnonzero(self.chances(times) >= self.threshold)
        if not len(chosen):  # which is most often so, and soon known
            return _NOTHING
        found, first, rows = np.unique(times[chosen], return_index=True, return_counts=True)
        starts = None if start_ts is None else start_ts.view(np.uint64)[chosen[first]]
        return SampledTransactions(found, rows, starts)

    def chances(self, commit_ts: Times) -> Times:
        """What is compared with the threshold: the higher, the rarer is a share that leaves it out."""
        return _mixed(commit_ts ^ np.uint64(self.low_salt)) & np.uint64(_RANDOM)

    def within(self, picked: SampledTransactions, count: int) -> SampledTransactions:
        """As many of them as that: those that the smallest share would have, for whoever has to choose."""
        if len(picked) <= count:
            return picked
        order = np.argsort(self.chances(picked.commit_ts))
        return picked.take(np.sort(order[len(picked) - count :]))

    def among(self, picked: SampledTransactions) -> SampledTransactions:
        """Those of them that this share has."""
        return picked.take(np.flatnonzero(self.chances(picked.commit_ts) >= self.threshold))

    def trace_ids(self, commit_ts: Times) -> list[int]:
        """The id of each transaction's trace; no two transactions of a cluster have the same."""
        high = _mixed(commit_ts ^ np.uint64(self.high_salt)).tolist()
        low = _mixed(commit_ts ^ np.uint64(self.low_salt)).tolist()
        return [above << 64 | below for above, below in zip(high, low, strict=True)]


class SampleFilter:
    """Gathers what passes by, batch after batch; of too many, those that the smallest share would have."""

    def __init__(self, sampling: Sampling, *, held_max: int = HELD_MAX) -> None:
        self.dropped = 0
        """Transactions that were too many."""
        self._sampling = sampling
        self._held_max = held_max
        self._parts: list[SampledTransactions] = []
        self._held = 0

    def add(self, commit_ts: npt.NDArray[Any]) -> None:
        """Rows with these timestamps have passed."""
        self._keep(self._sampling.pick(commit_ts))

    def add_pairs(self, pairs: Iterable[tuple[int, int]]) -> None:
        """What was picked elsewhere."""
        if given := list(pairs):
            times, rows = zip(*given, strict=True)
            self._keep(SampledTransactions(np.array(times, np.uint64), np.array(rows, np.int64)))

    def picked(self) -> SampledTransactions:
        """All that is held, each transaction once."""
        times = np.concatenate([each.commit_ts for each in self._parts] or [_NOTHING.commit_ts])
        rows = np.concatenate([each.rows for each in self._parts] or [_NOTHING.rows])
        found, places = np.unique(times, return_inverse=True)
        counts = np.zeros(len(found), np.int64)
        np.add.at(counts, places, rows)
        whole = SampledTransactions(found, counts)
        # What was dropped once may have come again, without its rows of before.
        return self._sampling.among(whole) if self.dropped else whole

    def _keep(self, picked: SampledTransactions) -> None:
        if not len(picked):
            return
        self._parts.append(picked)
        self._held += len(picked)
        if self._held <= 2 * self._held_max:
            return
        whole = self.picked()
        kept = self._sampling.within(whole, self._held_max)
        self.dropped += len(whole) - len(kept)
        self._sampling = replace(self._sampling, threshold=int(self._sampling.chances(kept.commit_ts).min()))
        self._parts, self._held = [kept], len(kept)


def _mixed(values: Times) -> Times:
    """The finalizer of splitmix64, in place: a bijection whose every bit depends on every bit."""
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


Value = str | int


class Stage(StrEnum):
    """How far a transaction has come."""

    COMMIT = "commit"
    """The transaction itself, from its beginning; the parent of all others."""
    CAPTURE = "capture"
    """Its changes are durable in the log of a capture."""
    FLUSH = "flush"
    """They are in objects that a manifest names."""
    CHANGEFEED = "changefeed"
    """They are in a file of a changefeed, with its index."""
    JOB = "job"
    """They are committed in the target of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Transactions that have come to a stage together. `key` tells it from others there: a file, a job."""

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
    """The spans of an arrival, in the order of commits; before one whose beginning is known, its commit's."""
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
    known = trace_id.to_bytes(16, "big") + f"{stage}\0{key}".encode()
    return int.from_bytes(hashlib.blake2b(known, digest_size=8).digest(), "big") or 1
