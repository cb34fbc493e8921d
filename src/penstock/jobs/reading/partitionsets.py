"""How far the changes of a partitioned table can be told row by row. Pure.

A partition that is dropped, truncated or exchanged takes its rows with it without a delete: only a snapshot
can tell what is left. One that is added begins empty, so that a range may go up to there, and the next one
begins with one partition more.
"""

from collections.abc import Iterable
from typing import NamedTuple

from penstock.errors import StaleRead
from penstock.eventstore.schemaversion import SchemaVersion


class PartitionRange(NamedTuple):
    """Changes up to `to_ts`, which are all in these physical tables."""

    to_ts: int
    ids: tuple[int, ...]


def partition_range(name: str, versions: Iterable[SchemaVersion], from_ts: int, to_ts: int) -> PartitionRange:
    """The longest range (from_ts, end] within `to_ts` that has one set of partitions.

    `versions` are those in force from `from_ts` to `to_ts`. Raises StaleRead when rows went with their
    partition in (from_ts, to_ts], or when it is not known what partitions there were at `from_ts`.
    """
    by_time = sorted(versions, key=lambda each: each.since_ts)
    before = [each for each in by_time if each.since_ts <= from_ts]
    after = [each for each in by_time if from_ts < each.since_ts <= to_ts]
    if not before:
        raise StaleRead(name, from_ts, oldest_ts=min((each.since_ts for each in after), default=to_ts))
    ids, end = before[-1].table.physical_ids, to_ts
    for version in after:
        now = version.table.physical_ids
        if not set(ids) <= set(now):
            raise StaleRead(name, from_ts, oldest_ts=version.since_ts)
        if end == to_ts and set(now) > set(ids):
            if version.since_ts > from_ts + 1:
                end = version.since_ts - 1
            else:
                ids = now
    return PartitionRange(end, ids)
