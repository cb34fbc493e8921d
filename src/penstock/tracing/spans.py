"""The spans of a trace: one for each stage that a transaction has come to. Pure.

Each begins with the commit, so that its length is how late the stage was; `began` is when the work began.
The same arrival has the same ids whoever tells of it, and however often.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.clock import physical_ms
from penstock.tracing.sampling import Picked, Sampling

__all__ = ["Arrival", "Span", "Stage", "spans_of"]

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
    picked: Picked
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
