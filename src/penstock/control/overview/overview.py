"""Builds the overview of a deployment that `penstock status`, the API and the pages show."""

import math
from collections.abc import Iterable
from dataclasses import replace

from penstock.clock import physical_ms
from penstock.control import job_views
from penstock.control.deployment import Deployment
from penstock.control.display import format_ms, format_ts
from penstock.control.overview.explain import Explanation, lag_of_job
from penstock.control.overview.facts import CaptureFact, Facts, FeedFact, JobFact, TableFact, behind_s
from penstock.control.overview.gather import FactsCache, facts_without_cluster
from penstock.control.overview.model import (
    ChangefeedRow,
    JobRow,
    Overview,
    PartRow,
    TableRefusal,
    TableRow,
    Totals,
)
from penstock.control.overview.problems import find_problems
from penstock.control.part_states import PartKind, PartState, PartStatus
from penstock.jobs.freshness import LagReason
from penstock.settings import Settings

__all__ = ["LIMIT", "build_overview", "overview_without_cluster", "read_overview"]

LIMIT = 100
"""Rows of each list, by default."""
_SEARCHABLE = frozenset({"fulltext", "vector"})


def read_overview(
    deployment: Deployment, cache: FactsCache, *, account: str | None = None, limit: int = LIMIT
) -> Overview:
    """Return the overview of a deployment, or of the part of it that belongs to an account.

    Blocks for a few seconds at most. Lists have up to `limit` rows. Whatever does not answer is a problem in
    the overview; it raises nothing.
    """
    return build_overview(cache.facts(deployment), account=account, limit=limit)


def overview_without_cluster(settings: Settings, error: str) -> Overview | None:
    """Return the overview of the parts of `penstock up` while the cluster cannot be reached.

    Returns None when `penstock up` does not run here.
    """
    facts = facts_without_cluster(settings, error)
    return None if facts.parts is None else build_overview(facts)


def build_overview(facts: Facts, *, account: str | None = None, limit: int = LIMIT) -> Overview:
    """Return the overview of facts. An account sees its own things, and only the states of parts. Pure."""
    visible = facts if account is None else _of_account(facts, account)
    explanation = Explanation(visible, account=account)
    problems = list(find_problems(visible, explanation))
    return Overview(
        now_ts=visible.now_ts,
        now_time=format_ms(physical_ms(visible.now_ts)),
        healthy=not problems,
        engine=visible.engine,
        engines=visible.engines,
        problems=problems[:limit],
        parts=_parts(visible),
        stages=explanation.stages(),
        tables=[_table(table, visible, explanation) for table in _slowest_tables(visible)[:limit]],
        changefeeds=[_feed(feed, visible, explanation) for feed in _slowest_feeds(visible)[:limit]],
        jobs=[_job(job, explanation) for job in _slowest_jobs(visible)[:limit]],
        indexes=[str(fact.job.id) for fact in visible.jobs if fact.job.spec.consumer in _SEARCHABLE],
        totals=Totals(
            tables=len(visible.tables),
            changefeeds=len(visible.feeds),
            jobs=len(visible.jobs),
            problems=len(problems),
        ),
    )


def _of_account(facts: Facts, account: str) -> Facts:
    """Return the facts that an account may see: its own, and no address or process of a part."""
    hidden = "it does not answer"
    return replace(
        facts,
        tables=tuple(table for table in facts.tables if table.account == account),
        feeds=tuple(
            replace(fact, to_owner=True) for fact in facts.feeds if fact.feed.info.account == account
        ),
        jobs=tuple(fact for fact in facts.jobs if fact.job.account == account),
        runner="(hidden)" if facts.runner else "",
        captures=tuple(
            CaptureFact(capture.id, "", hidden if capture.error else "") for capture in facts.captures
        ),
        parts=None
        if facts.parts is None
        else tuple(replace(part, pid=None, addr=None, metrics_addr=None, error="") for part in facts.parts),
        cluster_error=facts.cluster_error and hidden,
        unknown=dict.fromkeys(facts.unknown, hidden),
        low_disks={},
        abandoned=0,
        engines=None,
    )


def _slowest_tables(facts: Facts) -> list[TableFact]:
    return sorted(facts.tables, key=lambda table: (table.readable_ts, table.name))


def _slowest_feeds(facts: Facts) -> list[FeedFact]:
    return sorted(facts.feeds, key=lambda fact: (fact.feed.status.checkpoint_ts, fact.feed.info.id))


def _slowest_jobs(facts: Facts) -> list[JobFact]:
    """Return jobs with errors first and paused jobs last; between them, the largest lag first."""

    def rank(fact: JobFact) -> tuple[bool, bool, float, str]:
        lag_s = lag_of_job(fact)
        paused = fact.freshness.reason is LagReason.PAUSED
        lag = math.inf if lag_s is None else lag_s
        return not fact.job.status.error_code, paused, -lag, str(fact.job.id)

    return sorted(facts.jobs, key=rank)


def _parts(facts: Facts) -> list[PartRow]:
    """Return the parts of `penstock up`, and other processes with a live lease."""
    known = facts.parts or ()
    addrs = {part.addr for part in known}
    rows = [_part(part, facts) for part in known]
    rows += [
        PartRow(name=capture.id, kind=PartKind.CAPTURE, state=PartState.RUNNING, addr=capture.addr or None)
        for capture in facts.captures
        if facts.parts is None or (capture.addr not in addrs and not capture.error)
    ]
    if facts.parts is None:
        if not facts.cluster_error:
            rows.insert(0, PartRow(name="store", kind=PartKind.STORE, state=PartState.RUNNING))
        owners: Iterable[str] = dict.fromkeys(fact.run_by for fact in facts.feeds if fact.run_by)
        rows += [_owner_row(PartKind.CHANGEFEEDS, owner) for owner in owners]
        rows += [_owner_row(PartKind.JOBS, facts.runner)] if facts.runner else []
    return rows


def _owner_row(kind: PartKind, owner: str) -> PartRow:
    return PartRow(name=f"{kind.value} {owner}", kind=kind, state=PartState.RUNNING)


def _part(part: PartStatus, facts: Facts) -> PartRow:
    error, state = part.error, part.state
    if part.name in facts.without_spark:
        error, state = "its Spark session is lost; a new one is built", PartState.DEGRADED
    elif part.name in facts.without_executors:
        error, state = "its Spark jobs wait for executors", PartState.DEGRADED
    elif part.name in facts.starting_spark:
        state = PartState.STARTING_SPARK
    return PartRow(
        name=part.name,
        kind=part.kind,
        state=state,
        pid=part.pid,
        restarts=part.restarts,
        since=format_ms(part.since_ms) if part.since_ms else None,
        error=error,
        addr=part.addr,
    )


def _table(table: TableFact, facts: Facts, explanation: Explanation) -> TableRow:
    readable_ts = table.readable_ts or None
    return TableRow(
        table=table.name,
        table_id=table.id,
        readable_ts=readable_ts,
        readable_time=format_ts(table.readable_ts),
        lag_s=None if readable_ts is None else round(behind_s(facts.now_ts, readable_ts), 3),
        changed_ts=table.changed_ts if readable_ts else None,
        captured=table.captured and table.refusal is None,
        refusal=None
        if table.refusal is None
        else TableRefusal(
            reason=table.refusal.reason,
            since_ts=table.refusal.since_ts,
            since_time=format_ts(table.refusal.since_ts),
        ),
        held_by=explanation.explain_table(table),
    )


def _feed(fact: FeedFact, facts: Facts, explanation: Explanation) -> ChangefeedRow:
    feed = fact.feed
    return ChangefeedRow(
        id=fact.name,
        account=feed.info.account,
        state=feed.state.value,
        checkpoint_ts=feed.status.checkpoint_ts,
        checkpoint_time=format_ts(feed.status.checkpoint_ts) or "",
        lag_s=round(behind_s(facts.now_ts, feed.status.checkpoint_ts), 3),
        error=feed.status.error,
        warning=feed.status.warning,
        spool=fact.spool,
        held_by=explanation.explain_feed(fact),
    )


def _job(fact: JobFact, explanation: Explanation) -> JobRow:
    summary = job_views.job_summary(fact.job, fact.freshness, fact.verified)
    return JobRow(**{**summary, "account": fact.job.account, "held_by": explanation.explain_job(fact)})
