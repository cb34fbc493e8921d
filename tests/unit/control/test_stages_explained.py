"""What holds changes back, by what is known of each stage."""

import pytest

from penstock.changefeeds.model import ChangefeedState
from penstock.control.overview.explain import Explanation
from penstock.control.overview.facts import Facts, FeedFact, JobFact, TableFact
from penstock.control.overview.locks import HoldingLock
from penstock.control.overview.model import FlowStage, StageRow
from penstock.jobs.job import JobState
from support.overviews import ago, facts, feed, job, spool, table

LOCK = HoldingLock(ago(40), 7, "0x74")


def rows(found: Facts) -> dict[FlowStage, StageRow]:
    return {row.stage: row for row in Explanation(found).stages()}


def test_the_stages_come_in_the_order_of_the_flow_and_each_names_its_slowest() -> None:
    orders = table("shop.orders", 1.0, changed_s=50, flushed_s=76)
    found = facts(
        tables=(orders, table("shop.items", 0.2, id=8)),
        feeds=(feed("quick", 1.5), feed("slow", 9.0), feed("off", 900, state=ChangefeedState.STOPPED)),
        jobs=(job("shop.orders/a", 20, of=orders), job("shop.orders/b", 500, paused=True)),
    )
    assert [row.stage.value for row in Explanation(found).stages()] == [
        "commit", "capture", "store", "changefeeds", "jobs"
    ]  # fmt: skip
    assert {stage.value: row.lag_s for stage, row in rows(found).items()} == {
        "commit": 0.0,
        "capture": 1.0,
        "store": 76.0,
        "changefeeds": 9.0,
        "jobs": 1.0,  # its table has not changed since: it is as fresh as what can be read
    }
    assert rows(found)[FlowStage.CAPTURE].held_by is None
    stored = rows(found)[FlowStage.STORE].held_by
    assert stored is not None
    assert (stored.kind, stored.name) == ("table", "shop.orders")


def test_where_there_is_nothing_no_lag_is_made_up() -> None:
    assert [row.lag_s for row in Explanation(facts()).stages()] == [0.0, None, None, None, None]


def test_rows_that_wait_for_the_next_flush_are_as_they_should_be() -> None:
    waiting = table(lag_s=0.5, changed_s=1, flushed_s=70)
    row = rows(facts(tables=(waiting,)))[FlowStage.STORE]
    assert (row.lag_s, row.held_by) == (70.0, None)
    late = rows(facts(tables=(waiting,), flush_interval_s=5))[FlowStage.STORE].held_by
    assert late is not None
    assert late.detail.endswith("until the next flush writes them to objects")


def test_what_is_in_objects_counts_up_to_what_can_be_read_when_nothing_has_changed_since() -> None:
    idle = table(lag_s=0.5, changed_s=700, flushed_s=600)
    assert rows(facts(tables=(idle,)))[FlowStage.STORE].lag_s == 0.5


SLOW = table("shop.orders", 40.0)


@pytest.mark.parametrize(
    ("held", "kind", "name", "words"),
    [
        (table(lag_s=1.9), None, "", ""),
        (table(lag_s=None), "capture", "none", "no capture"),
        (table(lag_s=5, readable_ts=0), "capture", "capture-1", "still being read"),
        (SLOW, "lock", str(ago(40)), "began 40.0 s ago has locks on rows of shop.orders"),
        (table("shop.items", 40.0, id=8), "capture", "capture-1", "no lock was found"),
    ],
)
def test_a_table_is_held_by(held: TableFact, kind: str | None, name: str, words: str) -> None:
    found = Explanation(facts(tables=(SLOW, held), locks={7: LOCK})).explain_table(held)
    if kind is None:
        assert found is None
    else:
        assert found is not None
        assert (found.kind, found.name) == (kind, name)
        assert words in found.detail


@pytest.mark.parametrize(
    ("lock", "account", "words"),
    [
        (HoldingLock(ago(40), 7, "0x74"), None, "its primary key is in shop.orders"),
        (HoldingLock(ago(40), 31, "0x74"), None, "its primary key is in shop.parted"),
        (HoldingLock(ago(40), 99, "0x7499… (19 bytes)"), None, "its primary key is in 0x7499… (19 bytes)"),
        (HoldingLock(ago(40), None, "0x6d"), None, "its primary key is in 0x6d"),
        (HoldingLock(ago(40), 99, "0x7499…"), "tenant", "its primary key is in a table of another account"),
    ],
)
def test_the_primary_of_a_lock_is_named_by_its_table_and_to_tenants_only_if_it_is_theirs(
    lock: HoldingLock, account: str | None, words: str
) -> None:
    parted = table(
        "shop.parted", 0.1, id=30, extra={"partition": {"enable": True, "definitions": [{"id": 31}]}}
    )
    found = Explanation(facts(tables=(SLOW, parted), locks={7: lock}), account=account).explain_table(SLOW)
    assert found is not None
    assert found.detail.endswith(words)


@pytest.mark.parametrize(
    ("fact", "kind", "words"),
    [
        (feed(lag_s=1.5), None, ""),
        (feed(lag_s=900, state=ChangefeedState.STOPPED), None, ""),
        (feed(lag_s=900, state=ChangefeedState.FINISHED), None, ""),
        (
            feed(lag_s=0.1, state=ChangefeedState.FAILED, error="no room"),
            "changefeed",
            "failed and waits to be resumed: no room",
        ),
        (feed(lag_s=0.1, state=ChangefeedState.WARNING, error="busy"), "changefeed", "is retried: busy"),
        (feed(lag_s=9, run_by=""), "changefeed", "no process runs it"),
        (feed(lag_s=9, spool=spool(0.81)), "changefeed", "its spool is full"),
        (feed(lag_s=15, spool=spool(0.79), tables=["shop.items"]), None, ""),
        (feed(lag_s=15.1, spool=spool(0.79), tables=["shop.items"]), "changefeed", "or it is catching up"),
        (feed(lag_s=41), "lock", "has locks on rows of shop.orders"),
        (feed(lag_s=41, tables=["shop.items"]), "changefeed", "or it is catching up"),
        (feed(lag_s=41, tables=["shop.stock"]), "table", "captured up to 40.0 s ago"),
        (feed(lag_s=41, tables=["!shop.stock"]), "changefeed", "or it is catching up"),
        (feed(lag_s=90), "changefeed", "or it is catching up"),
    ],
)
def test_a_changefeed_is_held_by(fact: FeedFact, kind: str | None, words: str) -> None:
    tables = (SLOW, table("shop.items", 0.2, id=8), table("shop.stock", 40.0, id=9))
    found = Explanation(facts(tables=tables, feeds=(fact,), locks={7: LOCK})).explain_feed(fact)
    assert (None if found is None else found.kind) == kind
    assert found is None or words in found.detail


@pytest.mark.parametrize(
    ("fact", "kind", "words"),
    [
        (job(lag_s=0.5), None, ""),
        (job(lag_s=900, paused=True), None, ""),
        (job(lag_s=100, of=SLOW), "lock", "has locks on rows of shop.orders"),
        (job(lag_s=9, of=None), "table", "no capture"),
        (job(lag_s=500, of=table(changed_s=10), attended=False), "job", "no process runs jobs"),
        (job(lag_s=500, of=table(changed_s=10), state=JobState.RUNNING), "job", "under way"),
        (job(lag_s=14, of=table(changed_s=10), state=JobState.RUNNING), None, ""),
        (job(lag_s=14, of=table(changed_s=10), attended=False), "job", "no process runs jobs"),
        (
            job(lag_s=500, state=JobState.ERROR, error_code=10_000, error="gone", of=table(changed_s=9)),
            "job",
            "stopped by an error: gone",
        ),
        (
            job(lag_s=500, failures=3, error_code=1, error="busy", of=table(changed_s=9)),
            "job",
            "is retried: busy",
        ),
        (job(lag_s=None), "job", "has not started"),
    ],
)
def test_a_job_is_held_by(fact: JobFact, kind: str | None, words: str) -> None:
    found = Explanation(facts(tables=(SLOW,), jobs=(fact,), locks={7: LOCK})).explain_job(fact)
    assert (None if found is None else found.kind) == kind
    assert found is None or words in found.detail


def test_a_job_that_never_ran_has_no_lag_of_its_own() -> None:
    assert rows(facts(jobs=(job(lag_s=None),)))[FlowStage.JOBS].lag_s is None
