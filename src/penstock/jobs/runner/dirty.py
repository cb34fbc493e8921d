"""Which iterations have something to do: tables without changes only move the watermark. Pure."""

from dataclasses import dataclass

from penstock.follow.source import ReadableRange
from penstock.jobs.runner.triggers import Candidate


@dataclass(frozen=True, slots=True)
class HasChanges:
    """There are changes, or nobody knows whether there are."""

    to_ts: int


@dataclass(frozen=True, slots=True)
class NoChanges:
    """There are none up to here."""

    to_ts: int


def judge(candidate: Candidate, look: ReadableRange) -> HasChanges | NoChanges | None:
    """What becomes of a candidate; None: nothing can be read beyond its watermark, so it waits.

    History is only asked where it reaches: with a watermark before `oldest_ts` the iteration runs, and finds
    out. A first iteration runs in any case; to a time that history does not reach, up to now instead.
    """
    from_ts, to_ts = candidate.from_ts, candidate.to_ts
    if to_ts is None or (not from_ts and to_ts < look.oldest_ts):
        to_ts = look.readable_ts
    to_ts = min(to_ts, look.readable_ts)
    if to_ts <= from_ts:
        return None
    if not from_ts or from_ts < look.oldest_ts or look.changed_ts > from_ts:
        return HasChanges(to_ts)
    return NoChanges(to_ts)
