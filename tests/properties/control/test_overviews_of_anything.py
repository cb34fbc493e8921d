"""Whatever is known of a deployment can be told: with reasons, and to nobody what is not theirs."""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changefeeds.model import ChangefeedState
from penstock.control.overview.facts import SLOW_S, CaptureFact, Facts
from penstock.control.overview.locks import HoldingLock
from penstock.control.overview.model import Overview
from penstock.control.overview.overview import build_overview
from penstock.control.part_states import PartKind, PartState
from penstock.jobs.job import JobState
from support.campaign import examples
from support.overviews import ago, facts, feed, job, part, spool, table

ACCOUNTS = ("zoe", "quinn")
LAGS = st.floats(0, 5000, allow_nan=False)


@st.composite
def deployments(draw: st.DrawFn) -> Facts:
    tables = [
        table(
            f"{account}.t{place}",
            draw(st.none() | LAGS),
            id=place,
            account=account,
            made_s=draw(LAGS),
            wanted=draw(st.booleans()),
        )
        for place, account in enumerate(draw(st.lists(st.sampled_from(ACCOUNTS), max_size=4)), 1)
    ]
    locks = {
        each.id: HoldingLock(ago(draw(LAGS)), draw(st.none() | st.integers(1, 6)), "0x74")
        for each in tables
        if draw(st.booleans())
    }
    feeds = [
        feed(
            f"{account}-{place}",
            draw(LAGS),
            account=account,
            state=draw(st.sampled_from(ChangefeedState)),
            error=account,
            run_by=draw(st.sampled_from(["", "host"])),
            spool=draw(st.none() | st.floats(0, 2).map(spool)),
            tables=[f"{account}.*"],
        )
        for place, account in enumerate(draw(st.lists(st.sampled_from(ACCOUNTS), max_size=3)))
    ]
    jobs = [
        job(
            f"{each.name}/copy",
            draw(st.none() | LAGS),
            of=each if each.readable_ts else None,
            table_id=each.id,
            account=each.account,
            state=draw(st.sampled_from(JobState)),
            paused=draw(st.booleans()),
            failures=draw(st.integers(0, 2)),
            error=each.account,
            attended=draw(st.booleans()),
        )
        for each in tables
    ]
    parts = [part(kind=draw(st.sampled_from(PartKind)), state=draw(st.sampled_from(PartState)))]
    return facts(
        tables=tuple(tables),
        locks=locks,
        feeds=tuple(feeds),
        jobs=tuple(jobs),
        captures=draw(st.sampled_from([(), (CaptureFact("c", "addr"),), (CaptureFact("c", "addr", "no"),)])),
        parts=draw(st.sampled_from([None, tuple(parts)])),
        cluster_error=draw(st.sampled_from(["", "silent"])),
        unknown=draw(st.sampled_from([{}, {"jobs": "slow"}])),
    )


@settings(max_examples=examples(60), deadline=None)
@given(deployments(), st.integers(1, 3))
def test_everything_slow_is_explained_and_every_problem_has_a_remedy(found: Facts, limit: int) -> None:
    shown = build_overview(found, limit=limit)
    assert shown.healthy == (shown.totals.problems == 0)
    assert all(each.message and each.remedy and each.part for each in shown.problems)
    assert max(map(len, (shown.tables, shown.changefeeds, shown.jobs, shown.problems))) <= limit
    for each in shown.tables:
        assert (each.held_by is None) == (each.lag_s is not None and each.lag_s <= SLOW_S)
    for stage in shown.stages:
        assert stage.held_by is None or stage.lag_s is not None
    assert Overview.model_validate_json(shown.model_dump_json()) == shown


@settings(max_examples=examples(60), deadline=None)
@given(deployments())
def test_an_account_never_sees_the_name_of_another(found: Facts) -> None:
    for account, other in (ACCOUNTS, ACCOUNTS[::-1]):
        text = build_overview(found, account=account).model_dump_json()
        assert other not in text
        assert "127.0.0.1" not in text
