"""Which finished job made a change of a schema. Pure.

A job is recorded when it is finished: with the last of its changes, or in a transaction after it. Jobs of one
table run one after the other, so a change is made by the first of them that is recorded with or after it.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.tables.ddl_jobs import DdlJob


@dataclass(order=True, frozen=True, slots=True)
class RecordedDdl:
    """What is needed of a job, and the commit-ts of its record."""

    recorded_ts: int
    start_ts: int
    type: int
    query: str = field(repr=False)


class DdlJobs:
    """Jobs by the tables that they change; by the database, where they change none."""

    def __init__(self) -> None:
        self._by_id: dict[int, list[RecordedDdl]] = {}

    def add(self, job: DdlJob, recorded_ts: int) -> None:
        """Take a job; one that was cancelled made no change. Taking it again changes nothing."""
        if not job.succeeded:
            return
        made = RecordedDdl(recorded_ts, job.start_ts, int(job.type), job.query)
        for each in _changed_ids(job):
            known = self._by_id.setdefault(each, [])
            if made not in known:
                insort(known, made)

    def find(self, ids: Iterable[int], commit_ts: int, upto_ts: int) -> RecordedDdl | None:
        """The job of a change of some tables; None when it was not recorded by `upto_ts`.

        Every job that was recorded up to `upto_ts` must have been taken.
        """
        found = [
            job
            for each in ids
            for job in self._from(each, commit_ts)
            if job.start_ts < commit_ts and job.recorded_ts <= upto_ts
        ]
        return min(found, default=None)

    def _from(self, changed_id: int, ts: int) -> list[RecordedDdl]:
        known = self._by_id.get(changed_id, [])
        return known[bisect_left(known, ts, key=lambda job: job.recorded_ts) :]

    def forget(self, upto_ts: int) -> None:
        """No change up to `upto_ts` will be asked for."""
        left = {each: self._from(each, upto_ts + 1) for each in self._by_id}
        self._by_id = {each: jobs for each, jobs in left.items() if jobs}


def _changed_ids(job: DdlJob) -> set[int]:
    tables = {job.table_id, *(each.id for each in (job.table, *job.tables) if each is not None)}
    return (tables - {0}) or {job.database_id}
