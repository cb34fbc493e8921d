"""Why changes are where they are: which lock, table, capture, changefeed or job holds them back. Pure."""

from collections.abc import Iterable
from functools import cached_property
from typing import TypeVar

from penstock.changefeeds.filters import TableFilter
from penstock.changefeeds.model import ChangefeedState
from penstock.clock import physical_ms
from penstock.control.overview.facts import SLOW_S, Facts, FeedFact, JobFact, TableFact, behind_s
from penstock.control.overview.model import FlowStage, HeldBy, HolderKind, StageRow
from penstock.errors import Invalid
from penstock.jobs.freshness import LagReason

__all__ = ["Explanation", "lag_of_job"]

T = TypeVar("T")

PATIENT_S = 15.0
"""How far behind things are that do their usual work: they wait for an interval, or for enough to do."""
_TOGETHER_MS = 2_000
"""Who is no further than that ahead of another waits for it."""
_FAILED = {ChangefeedState.WARNING: "failed and tries again", ChangefeedState.FAILED: "failed and waits"}
_FOLLOWED = frozenset({ChangefeedState.NORMAL, ChangefeedState.WARNING, ChangefeedState.FAILED})

_REASONS = {
    LagReason.NEVER_SYNCED: "its first iteration has not begun yet",
    LagReason.ERROR: "it was stopped by an error",
    LagReason.RETRYING: "its last iteration failed and is tried again",
    LagReason.QUEUED: "its next iteration waits for a worker",
    LagReason.RUNNING: "an iteration is under way",
    LagReason.CATCHING_UP: "it catches up, an iteration at a time",
    LagReason.WAITING: "its trigger has not begun the next iteration yet",
    LagReason.NO_RUNNER: "no process runs jobs",
}

_AT_WORK = frozenset({LagReason.QUEUED, LagReason.RUNNING, LagReason.WAITING})


def lag_of_job(fact: JobFact) -> float | None:
    """How far a job's target is behind; None: it has nothing yet, or is not meant to go on."""
    if not fact.freshness.watermark or fact.freshness.reason in {LagReason.PAUSED, LagReason.DROPPED}:
        return None
    return fact.freshness.lag_s


class Explanation:
    """Explains the facts of one moment."""

    def __init__(self, facts: Facts, *, account: str | None = None) -> None:
        """`account`: whose facts they are; None: everybody's."""
        self._facts = facts
        self._account = account

    @cached_property
    def _names(self) -> dict[int, str]:
        """What tables and their partitions are called."""
        tables = self._facts.tables
        return {each: table.name for table in tables for each in (table.id, *table.schema.table.physical_ids)}

    @cached_property
    def _by_id(self) -> dict[int, TableFact]:
        return {table.id: table for table in self._facts.tables}

    @cached_property
    def _slow(self) -> list[TableFact]:
        """The tables that are behind, the slowest first."""
        readable = (table for table in self._facts.tables if table.readable_ts)
        slow = (table for table in readable if self._behind(table.readable_ts) > SLOW_S)
        return sorted(slow, key=lambda table: table.readable_ts)

    def _behind(self, ts: int) -> float:
        return behind_s(self._facts.now_ts, ts)

    # One of each.

    def table(self, table: TableFact) -> HeldBy | None:
        """What holds a table back; None: nothing does."""
        if not table.captured:
            return HeldBy(
                kind=HolderKind.CAPTURE, name="none", detail="no capture that answers has the table"
            )
        names = ", ".join(table.captures)
        if not table.readable_ts:
            detail = "the rows that the table had before are still being read"
            return HeldBy(kind=HolderKind.CAPTURE, name=names, detail=detail)
        if self._behind(table.readable_ts) <= SLOW_S:
            return None
        return self._lock(table) or HeldBy(
            kind=HolderKind.CAPTURE,
            name=names,
            detail="no lock was found: the capture catches up, or changes come faster than it takes them",
        )

    def _lock(self, table: TableFact) -> HeldBy | None:
        lock = self._facts.locks.get(table.id)
        if lock is None:
            return None
        where = self._names.get(lock.primary_table_id) if lock.primary_table_id is not None else None
        if where is None:
            where = lock.primary if self._account is None else "a table of somebody else"
        return HeldBy(
            kind=HolderKind.LOCK,
            name=str(lock.start_ts),
            detail=f"a transaction that began {lock.age_s(self._facts.now_ts):.1f} s ago has locked rows of"
            f" {table.name} and has not ended; its primary key is in {where}",
        )

    def feed(self, fact: FeedFact) -> HeldBy | None:
        """What holds a changefeed back; None: nothing does, or it is not meant to go on."""
        feed = fact.feed
        if feed.state not in _FOLLOWED:
            return None
        if feed.state is not ChangefeedState.NORMAL:
            return self._by_feed(fact, f"it {_FAILED[feed.state]}: {feed.status.error}")
        if self._behind(feed.status.checkpoint_ts) <= SLOW_S:
            return None
        if not fact.run_by:
            return self._by_feed(fact, "no process runs it")
        if fact.spool is not None and fact.spool.level > fact.spool.high:
            return self._by_feed(fact, "its spool is full: files are written slower than changes come")
        table = self._slow_table(fact)
        if table is not None:
            return self._by_table(table)
        if self._behind(feed.status.checkpoint_ts) <= PATIENT_S:
            return None
        return self._by_feed(fact, "its newest files are not written yet, or it catches up")

    def _by_feed(self, fact: FeedFact, detail: str) -> HeldBy:
        return HeldBy(kind=HolderKind.CHANGEFEED, name=fact.feed.info.id, detail=detail)

    def _slow_table(self, fact: FeedFact) -> TableFact | None:
        """The table that a changefeed waits for: the slowest that it carries, if that is no further."""
        upto_ms = physical_ms(fact.feed.status.checkpoint_ts) + _TOGETHER_MS
        near = [table for table in self._slow if physical_ms(table.readable_ts) <= upto_ms]
        if not near:
            return None
        try:
            carried = TableFilter(fact.feed.info.settings.get("tables", ("*.*",)))
        except Invalid:  # what it carries is its own affair
            return None
        return next((table for table in near if carried.takes(table.schema)), None)

    def _by_table(self, table: TableFact) -> HeldBy:
        """Who waits for a table waits for what holds that one back."""
        found = self.table(table)
        if found is not None and found.kind is HolderKind.LOCK:
            return found
        detail = f"it is captured up to {self._behind(table.readable_ts):.1f} s ago"
        return HeldBy(kind=HolderKind.TABLE, name=table.name, detail=detail)

    def job(self, fact: JobFact) -> HeldBy | None:
        """What holds a job back; None: nothing does, or it is not meant to go on."""
        reason = fact.freshness.reason
        if reason in {LagReason.PAUSED, LagReason.DROPPED}:
            return None
        table = self._by_id.get(fact.job.key.table_id)
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
        said = f": {fact.freshness.message}" if fact.freshness.message else ""
        return HeldBy(kind=HolderKind.JOB, name=str(fact.job.id), detail=_REASONS[reason] + said)

    # The way as a whole.

    def stages(self) -> list[StageRow]:
        """Each stage by the slowest that passes through it."""
        return [
            StageRow(stage=FlowStage.COMMIT, lag_s=0.0),
            self._stage(FlowStage.CAPTURE, *self._captured()),
            self._stage(FlowStage.STORE, *self._stored()),
            self._stage(FlowStage.CHANGEFEEDS, *self._fed()),
            self._stage(FlowStage.JOBS, *self._done()),
        ]

    def _stage(self, stage: FlowStage, lag_s: float | None, held_by: HeldBy | None) -> StageRow:
        feeds = None if self._account is None else {fact.feed.info.id for fact in self._facts.feeds}
        rate = self._facts.growth.rate(stage, feeds=feeds, account=self._account)
        return StageRow(
            stage=stage, lag_s=None if lag_s is None else round(lag_s, 3), rate=rate, held_by=held_by
        )

    def _captured(self) -> tuple[float | None, HeldBy | None]:
        table = _lowest((each.readable_ts, each) for each in self._facts.tables if each.readable_ts)
        return (None, None) if table is None else (self._behind(table.readable_ts), self.table(table))

    def _stored(self) -> tuple[float | None, HeldBy | None]:
        table = _lowest((each.stored_ts, each) for each in self._facts.tables if each.stored_ts)
        if table is None:
            return None, None
        lag_s = self._behind(table.stored_ts)
        if table.stored_ts == table.readable_ts:
            return lag_s, self.table(table)
        if lag_s <= self._facts.flush_interval_s + PATIENT_S:
            return lag_s, None
        detail = "its newest rows are in the capture's log, and become objects with its next flush"
        return lag_s, HeldBy(kind=HolderKind.TABLE, name=table.name, detail=detail)

    def _fed(self) -> tuple[float | None, HeldBy | None]:
        fact = _lowest(
            (each.feed.status.checkpoint_ts, each)
            for each in self._facts.feeds
            if each.feed.state in _FOLLOWED
        )
        return (
            (None, None) if fact is None else (self._behind(fact.feed.status.checkpoint_ts), self.feed(fact))
        )

    def _done(self) -> tuple[float | None, HeldBy | None]:
        fact = _lowest(
            (each.freshness.watermark, each) for each in self._facts.jobs if lag_of_job(each) is not None
        )
        return (None, None) if fact is None else (lag_of_job(fact), self.job(fact))


def _lowest(ranked: Iterable[tuple[int, T]]) -> T | None:
    """That of the lowest timestamp."""
    found = min(ranked, key=lambda pair: pair[0], default=None)
    return None if found is None else found[1]
