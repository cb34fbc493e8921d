"""How much one iteration reads: a job that lags never becomes one endless transaction. Pure."""

from dataclasses import dataclass

from penstock.changes.limits import ReadLimit
from penstock.clock import compose_ts, physical_ms
from penstock.durations import parse_duration
from penstock.jobs.iteration.iteration import Iteration
from penstock.settings import JobsSettings


@dataclass(frozen=True, slots=True)
class Caps:
    """The latest end of an iteration, and how many changes it reads until then."""

    to_ts: int
    limit: ReadLimit


def caps_of(iteration: Iteration, settings: JobsSettings) -> Caps:
    """Return the narrowest caps of the iteration's jobs, each from its spec or else from the settings.

    A first sync is all rows at one timestamp: it is not divided.
    """
    if iteration.first:
        return Caps(iteration.to_ts, ReadLimit())
    details = [job.spec.detail for job in iteration.jobs]
    spans = [settings.span_s if detail.span is None else parse_duration(detail.span) for detail in details]
    span_ms = max(1, round(min(spans) * 1000))
    return Caps(
        to_ts=min(iteration.to_ts, compose_ts(physical_ms(iteration.from_ts) + span_ms)),
        limit=ReadLimit(
            rows=min(detail.rows_max or settings.rows_max for detail in details),
            nbytes=min(detail.bytes_max or settings.bytes_max for detail in details),
        ),
    )
