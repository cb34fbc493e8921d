"""The overview of a deployment: what `penstock status`, the API and the pages show."""

import math
from collections.abc import Iterable
from dataclasses import replace

from penstock.clock import physical_ms
from penstock.control import job_views
from penstock.control.deployment import Deployment
from penstock.control.display import shown_ms, shown_ts
from penstock.control.overview.explain import Explanation, lag_of_job
from penstock.control.overview.facts import CaptureFact, Facts, FeedFact, JobFact, TableFact, behind_s
from penstock.control.overview.gather import Rates, unreached
from penstock.control.overview.model import (
    ChangefeedRow,
    JobRow,
    Overview,
    PartRow,
    TableRow,
    Totals,
)
from penstock.control.overview.problems import problems
from penstock.control.part_states import PartKind, PartState, PartStatus
from penstock.jobs.freshness import LagReason
from penstock.settings import Settings

__all__ = ["LIMIT", "overview", "overview_without_cluster", "told"]

LIMIT = 100
"""Rows of each list, where nobody says how many."""
_SEARCHED = frozenset({"fulltext", "vector"})


def overview(
    deployment: Deployment, rates: Rates, *, account: str | None = None, limit: int = LIMIT
) -> Overview:
    """How a deployment does, or what of it belongs to an account. Blocks, for a few seconds at most.

    Lists have up to `limit` rows. What does not answer is a problem in it, and never an error.
    """
    return told(rates.facts(deployment), account=account, limit=limit)


def overview_without_cluster(settings: Settings, error: str) -> Overview | None:
    """How the parts do that `penstock up` runs, while the cluster cannot be reached; None: it runs none."""
    facts = unreached(settings, error)
    return None if facts.parts is None else told(facts)


def told(facts: Facts, *, account: str | None = None, limit: int = LIMIT) -> Overview:
    """The overview of what is known; an account sees its own, and of parts only how they do. Pure."""
    seen = facts if account is None else _of_account(facts, account)
    explanation = Explanation(seen, account=account)
    found = list(problems(seen, explanation))
    return Overview(
        now_ts=seen.now_ts,
        now_time=shown_ms(physical_ms(seen.now_ts)),
        healthy=not found,
        problems=found[:limit],
        parts=_parts(seen),
        stages=explanation.stages(),
        tables=[_table(each, seen, explanation) for each in _slowest_tables(seen)[:limit]],
        changefeeds=[_feed(each, seen, explanation) for each in _slowest_feeds(seen)[:limit]],
        jobs=[_job(each, explanation) for each in _slowest_jobs(seen)[:limit]],
        indexes=[str(each.job.id) for each in seen.jobs if each.job.spec.consumer in _SEARCHED],
        totals=Totals(
            tables=len(seen.tables), changefeeds=len(seen.feeds), jobs=len(seen.jobs), problems=len(found)
        ),
    )


def _of_account(facts: Facts, account: str) -> Facts:
    """What an account may see: its own, and neither where nor as which process parts run."""
    hidden = "it does not answer"
    return replace(
        facts,
        tables=tuple(each for each in facts.tables if each.account == account),
        feeds=tuple(each for each in facts.feeds if each.feed.info.account == account),
        jobs=tuple(each for each in facts.jobs if each.job.account == account),
        runner="somebody" if facts.runner else "",
        captures=tuple(CaptureFact(each.id, "", hidden if each.error else "") for each in facts.captures),
        parts=None
        if facts.parts is None
        else tuple(replace(each, pid=None, addr=None, metrics_addr=None, error="") for each in facts.parts),
        cluster_error=facts.cluster_error and hidden,
        unknown=dict.fromkeys(facts.unknown, hidden),
        scarce={},
    )


def _slowest_tables(facts: Facts) -> list[TableFact]:
    return sorted(facts.tables, key=lambda each: (each.readable_ts, each.name))


def _slowest_feeds(facts: Facts) -> list[FeedFact]:
    return sorted(facts.feeds, key=lambda each: (each.feed.status.checkpoint_ts, each.feed.info.id))


def _slowest_jobs(facts: Facts) -> list[JobFact]:
    """Those that need somebody first, those that are paused last."""

    def place(fact: JobFact) -> tuple[bool, bool, float, str]:
        lag_s = lag_of_job(fact)
        paused = fact.freshness.reason is LagReason.PAUSED
        lag = math.inf if lag_s is None else lag_s
        return not fact.job.status.error_code, paused, -lag, str(fact.job.id)

    return sorted(facts.jobs, key=place)


def _parts(facts: Facts) -> list[PartRow]:
    """What `penstock up` runs, and whoever has a lease beside that."""
    known = facts.parts or ()
    addrs = {part.addr for part in known}
    rows = [_part(part) for part in known]
    rows += [
        PartRow(name=each.id, kind=PartKind.CAPTURE, state=PartState.RUNNING, addr=each.addr or None)
        for each in facts.captures
        if facts.parts is None or (each.addr not in addrs and not each.error)
    ]
    if facts.parts is None:
        if not facts.cluster_error:
            rows.insert(0, PartRow(name="store", kind=PartKind.STORE, state=PartState.RUNNING))
        owners: Iterable[str] = dict.fromkeys(each.run_by for each in facts.feeds if each.run_by)
        rows += [_leased(PartKind.CHANGEFEEDS, owner) for owner in owners]
        rows += [_leased(PartKind.JOBS, facts.runner)] if facts.runner else []
    return rows


def _leased(kind: PartKind, owner: str) -> PartRow:
    return PartRow(name=f"{kind.value} {owner}", kind=kind, state=PartState.RUNNING)


def _part(part: PartStatus) -> PartRow:
    return PartRow(
        name=part.name,
        kind=part.kind,
        state=part.state,
        pid=part.pid,
        restarts=part.restarts,
        since=shown_ms(part.since_ms) if part.since_ms else None,
        error=part.error,
        addr=part.addr,
    )


def _table(table: TableFact, facts: Facts, explanation: Explanation) -> TableRow:
    readable_ts = table.readable_ts or None
    return TableRow(
        table=table.name,
        table_id=table.id,
        readable_ts=readable_ts,
        readable_time=shown_ts(table.readable_ts),
        lag_s=None if readable_ts is None else round(behind_s(facts.now_ts, readable_ts), 3),
        changed_ts=table.changed_ts if readable_ts else None,
        captured=table.captured,
        held_by=explanation.table(table),
    )


def _feed(fact: FeedFact, facts: Facts, explanation: Explanation) -> ChangefeedRow:
    feed = fact.feed
    return ChangefeedRow(
        id=feed.info.id,
        account=feed.info.account,
        state=feed.state.value,
        checkpoint_ts=feed.status.checkpoint_ts,
        checkpoint_time=shown_ts(feed.status.checkpoint_ts) or "",
        lag_s=round(behind_s(facts.now_ts, feed.status.checkpoint_ts), 3),
        error=feed.status.error,
        spool=fact.spool,
        held_by=explanation.feed(fact),
    )


def _job(fact: JobFact, explanation: Explanation) -> JobRow:
    shown = job_views.summary(fact.job, fact.freshness, fact.verified)
    return JobRow(**{**shown, "account": fact.job.account, "held_by": explanation.job(fact)})
