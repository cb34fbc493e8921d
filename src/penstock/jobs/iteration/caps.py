"""How much one iteration takes, so that a job that lags never becomes one endless transaction. Pure."""

from dataclasses import dataclass

from penstock.changes.limits import ReadLimit
from penstock.clock import compose_ts, physical_ms
from penstock.jobs.durations import parse_duration
from penstock.jobs.iteration.iteration import Iteration
from penstock.settings import JobsSettings


@dataclass(frozen=True, slots=True)
class Caps:
    """The end of an iteration at the latest, and how many changes it takes until then."""

    to_ts: int
    limit: ReadLimit


def caps_of(iteration: Iteration, settings: JobsSettings) -> Caps:
    """The narrowest of what its jobs want, each by its spec or else by the settings.

    A first sync is all rows at one timestamp: it is not divided.
    """
    if iteration.first:
        return Caps(iteration.to_ts, ReadLimit())
    details = [job.spec.detail for job in iteration.jobs]
    spans = [settings.span_s if each.span is None else parse_duration(each.span) for each in details]
    span_ms = max(1, round(min(spans) * 1000))
    return Caps(
        to_ts=min(iteration.to_ts, compose_ts(physical_ms(iteration.from_ts) + span_ms)),
        limit=ReadLimit(
            rows=min(each.rows_max or settings.rows_max for each in details),
            nbytes=min(each.bytes_max or settings.bytes_max for each in details),
        ),
    )
