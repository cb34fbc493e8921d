"""Says what holds changes back: which lock, table, capture, changefeed or job. Pure."""

from collections.abc import Iterable
from functools import cached_property
from typing import TypeVar

from penstock.changefeeds.filters import TableFilter
from penstock.changefeeds.model import ChangefeedState
from penstock.clock import physical_ms
from penstock.control.display import format_ts
from penstock.control.overview.facts import SLOW_S, Facts, FeedFact, JobFact, TableFact, behind_s
from penstock.control.overview.model import FlowStage, HeldBy, HolderKind, StageRow
from penstock.errors import Invalid
from penstock.jobs.freshness import LagReason

__all__ = ["Explanation", "describe_refusal", "lag_of_job"]

T = TypeVar("T")

PATIENT_S = 15.0
"""A lag up to this is usual while a thing works: it waits for its interval, or for enough changes."""
_SAME_POSITION_MS = 2_000
"""A changefeed at most this far behind a table is taken to wait for that table."""
_FAILED = {
    ChangefeedState.WARNING: "failed and is retried",
    ChangefeedState.FAILED: "failed and waits to be resumed",
}
_FOLLOWED = frozenset({ChangefeedState.NORMAL, ChangefeedState.WARNING, ChangefeedState.FAILED})

_REASONS = {
    LagReason.NEVER_SYNCED: "its first iteration has not started yet",
    LagReason.ERROR: "it was stopped by an error",
    LagReason.RETRYING: "its last iteration failed and is retried",
    LagReason.QUEUED: "its next iteration waits for a worker",
    LagReason.RUNNING: "an iteration is under way",
    LagReason.CATCHING_UP: "it is catching up, one iteration at a time",
    LagReason.WAITING: "its trigger has not started the next iteration yet",
    LagReason.NO_RUNNER: "no process runs jobs",
}

_AT_WORK = frozenset({LagReason.QUEUED, LagReason.RUNNING, LagReason.WAITING})


def lag_of_job(fact: JobFact) -> float | None:
    """Return the lag of a job's target; None when the target is empty, or the job is paused or dropped."""
    if not fact.freshness.watermark or fact.freshness.reason in {LagReason.PAUSED, LagReason.DROPPED}:
        return None
    return fact.freshness.lag_s


def describe_refusal(table: TableFact) -> str:
    """Return since when and why a table cannot be captured, which its refusal must say."""
    assert table.refusal is not None, "the table has a refusal"
    since = format_ts(table.refusal.since_ts)
    return f"it cannot be captured{f' since {since}' if since else ''}: {table.refusal.reason}"


class Explanation:
    """Explains the facts of one moment."""

    def __init__(self, facts: Facts, *, account: str | None = None) -> None:
        """`account` owns the facts; None when they are those of all accounts."""
        self._facts = facts
        self._account = account

    @cached_property
    def _names(self) -> dict[int, str]:
        """The table name of each table id and partition id."""
        return {
            table_id: table.name
            for table in self._facts.tables
            for table_id in (table.id, *table.schema.table.physical_ids)
        }

    @cached_property
    def _by_id(self) -> dict[int, TableFact]:
        return {table.id: table for table in self._facts.tables}

    @cached_property
    def _slow(self) -> list[TableFact]:
        """The tables above `SLOW_S` of lag, the slowest first."""
        readable = (table for table in self._facts.tables if table.readable_ts)
        slow = (table for table in readable if self._behind(table.readable_ts) > SLOW_S)
        return sorted(slow, key=lambda table: table.readable_ts)

    def _behind(self, ts: int) -> float:
        return behind_s(self._facts.now_ts, ts)

    def explain_table(self, table: TableFact) -> HeldBy | None:
        """Return what holds a table back; None when nothing does."""
        if table.refusal is not None:
            return HeldBy(kind=HolderKind.CAPTURE, name="none", detail=describe_refusal(table))
        if not table.captured:
            return HeldBy(
                kind=HolderKind.CAPTURE, name="none", detail="no capture that answers has the table"
            )
        names = ", ".join(table.captures)
        if not table.readable_ts:
            detail = "the rows that the table had before its capture are still being read"
            return HeldBy(kind=HolderKind.CAPTURE, name=names, detail=detail)
        if self._behind(table.readable_ts) <= SLOW_S:
            return None
        return self._explain_lock(table) or HeldBy(
            kind=HolderKind.CAPTURE,
            name=names,
            detail="no lock was found: the capture is catching up, or changes come faster than it reads them",
        )

    def _explain_lock(self, table: TableFact) -> HeldBy | None:
        lock = self._facts.locks.get(table.id)
        if lock is None:
            return None
        where = self._names.get(lock.primary_table_id) if lock.primary_table_id is not None else None
        if where is None:
            where = lock.primary if self._account is None else "a table of another account"
        return HeldBy(
            kind=HolderKind.LOCK,
            name=str(lock.start_ts),
            detail=f"a transaction that began {lock.age_s(self._facts.now_ts):.1f} s ago has locks on rows of"
            f" {table.name} and has not ended; its primary key is in {where}",
        )

    def explain_feed(self, fact: FeedFact) -> HeldBy | None:
        """Return what holds a changefeed back; None when nothing does, or when it is stopped or finished."""
        feed = fact.feed
        if feed.state not in _FOLLOWED:
            return None
        if feed.state is not ChangefeedState.NORMAL:
            if not feed.status.error and feed.status.warning:
                return self._by_feed(fact, feed.status.warning)
            return self._by_feed(fact, f"it {_FAILED[feed.state]}: {feed.status.error}")
        if self._behind(feed.status.checkpoint_ts) <= SLOW_S:
            return None
        if not fact.run_by:
            return self._by_feed(fact, "no process runs it")
        if fact.spool is not None and fact.spool.level > fact.spool.high:
            return self._by_feed(fact, "its spool is full: it writes files more slowly than changes come")
        table = self._slow_table(fact)
        if table is not None:
            return self._by_table(table)
        if self._behind(feed.status.checkpoint_ts) <= PATIENT_S:
            return None
        return self._by_feed(fact, "its newest files are not written yet, or it is catching up")

    def _by_feed(self, fact: FeedFact, detail: str) -> HeldBy:
        return HeldBy(kind=HolderKind.CHANGEFEED, name=fact.name, detail=detail)

    def _slow_table(self, fact: FeedFact) -> TableFact | None:
        """Return the slowest table of a changefeed, if the changefeed is at that table's position."""
        upto_ms = physical_ms(fact.feed.status.checkpoint_ts) + _SAME_POSITION_MS
        near = [table for table in self._slow if physical_ms(table.readable_ts) <= upto_ms]
        if not near:
            return None
        try:
            info = fact.feed.info
            replicated = TableFilter(info.settings.get("tables", ("*.*",)), account=info.account)
        except Invalid:  # the changefeed itself reports a wrong filter
            return None
        return next((table for table in near if replicated.matches(table.schema)), None)

    def _by_table(self, table: TableFact) -> HeldBy:
        """Return the lock that holds the table back, or else the table itself."""
        holder = self.explain_table(table)
        if holder is not None and holder.kind is HolderKind.LOCK:
            return holder
        detail = f"it is captured up to {self._behind(table.readable_ts):.1f} s ago"
        return HeldBy(kind=HolderKind.TABLE, name=table.name, detail=detail)

    def explain_job(self, fact: JobFact) -> HeldBy | None:
        """Return what holds a job back; None when nothing does, or when it is paused or dropped."""
        reason = fact.freshness.reason
        if reason in {LagReason.PAUSED, LagReason.DROPPED}:
            return None
        table = self._by_id.get(fact.job.key.table_id)
        if reason is LagReason.UNCAPTURABLE:
            return HeldBy(
                kind=HolderKind.TABLE,
                name=f"{fact.job.id.database}.{fact.job.id.table}",
                detail=f"it cannot be captured: {fact.freshness.message}",
            )
        if reason is LagReason.NOT_CAPTURED:
            return HeldBy(
                kind=HolderKind.TABLE,
                name=f"{fact.job.id.database}.{fact.job.id.table}",
                detail="no capture that answers has the table",
            )
        lag_s = lag_of_job(fact)
        if lag_s is not None and lag_s <= SLOW_S:
            return None
        if reason is None:
            return None if table is None else self._by_table(table)
        if reason in _AT_WORK and lag_s is not None and lag_s <= PATIENT_S:
            return None
        message = f": {fact.freshness.message}" if fact.freshness.message else ""
        return HeldBy(kind=HolderKind.JOB, name=str(fact.job.id), detail=_REASONS[reason] + message)

    def stages(self) -> list[StageRow]:
        """Return each stage with the lag of the slowest table, changefeed or job in it."""
        return [
            StageRow(stage=FlowStage.COMMIT, lag_s=0.0),
            self._stage(FlowStage.CAPTURE, *self._capture_lag()),
            self._stage(FlowStage.STORE, *self._store_lag()),
            self._stage(FlowStage.CHANGEFEEDS, *self._feed_lag()),
            self._stage(FlowStage.JOBS, *self._job_lag()),
        ]

    def _stage(self, stage: FlowStage, lag_s: float | None, held_by: HeldBy | None) -> StageRow:
        feeds = None if self._account is None else {fact.feed.info.id for fact in self._facts.feeds}
        rate = self._facts.growth.rate(stage, feeds=feeds, account=self._account)
        return StageRow(
            stage=stage, lag_s=None if lag_s is None else round(lag_s, 3), rate=rate, held_by=held_by
        )

    def _capture_lag(self) -> tuple[float | None, HeldBy | None]:
        table = _lowest((table.readable_ts, table) for table in self._facts.tables if table.readable_ts)
        return (None, None) if table is None else (self._behind(table.readable_ts), self.explain_table(table))

    def _store_lag(self) -> tuple[float | None, HeldBy | None]:
        table = _lowest((table.stored_ts, table) for table in self._facts.tables if table.stored_ts)
        if table is None:
            return None, None
        lag_s = self._behind(table.stored_ts)
        if table.stored_ts == table.readable_ts:
            return lag_s, self.explain_table(table)
        if lag_s <= self._facts.flush_interval_s + PATIENT_S:
            return lag_s, None
        detail = "its newest rows are in the capture's log until the next flush writes them to objects"
        return lag_s, HeldBy(kind=HolderKind.TABLE, name=table.name, detail=detail)

    def _feed_lag(self) -> tuple[float | None, HeldBy | None]:
        fact = _lowest(
            (feed.feed.status.checkpoint_ts, feed)
            for feed in self._facts.feeds
            if feed.feed.state in _FOLLOWED
        )
        if fact is None:
            return None, None
        return self._behind(fact.feed.status.checkpoint_ts), self.explain_feed(fact)

    def _job_lag(self) -> tuple[float | None, HeldBy | None]:
        fact = _lowest(
            (job.freshness.watermark, job) for job in self._facts.jobs if lag_of_job(job) is not None
        )
        return (None, None) if fact is None else (lag_of_job(fact), self.explain_job(fact))


def _lowest(ranked: Iterable[tuple[int, T]]) -> T | None:
    """Return the item with the lowest timestamp; None when there is none."""
    lowest = min(ranked, key=lambda pair: pair[0], default=None)
    return None if lowest is None else lowest[1]
