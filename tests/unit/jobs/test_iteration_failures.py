"""Consumers that fail, and sources that do."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.changes.limits import ReadLimit
from penstock.errors import Corrupt, Invalid, StaleRead, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.source import TableScan
from penstock.jobs.consumer import Consumer, DataRetriever, DataType, JobContext
from penstock.jobs.job import JobState
from support.itemtables import item
from support.iterationbench import Bench, all_rows, item_bench
from support.jobdoubles import Copy, consumer_of, iteration_of, job_row


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with item_bench(tmp_path) as made:
        yield made


def test_a_consumer_that_fails_does_not_fail_its_siblings(bench: Bench) -> None:
    good = Copy()

    def refuse(_job: JobContext, _data: DataRetriever) -> None:
        raise Invalid("option uri is missing")

    def stumble(_job: JobContext, data: DataRetriever) -> None:
        data.next()
        raise RuntimeError("whatever")

    bench.consumers = {
        "good": good.consumer(),
        "refuse": consumer_of(refuse),
        "stumble": consumer_of(stumble),
    }
    again = bench.run(*(job_row(name, name) for name in bench.consumers))
    assert good.rows == bench.world.versions.at(bench.world.ts)
    assert bench.end("good").state is JobState.COMPLETED
    refused = bench.end("refuse")
    assert (refused.state, refused.status.error_code) == (JobState.ERROR, 10000)
    assert refused.status.error_msg == "option uri is missing"
    assert [job.key.job_name for job in again] == ["stumble"]
    assert again[0] == bench.log.row("stumble")
    assert (again[0].state, again[0].status.error_code) == (JobState.PENDING, 1)
    assert again[0].status.error_msg.startswith("RuntimeError (in test_iteration_failures.py:")
    assert "whatever" not in again[0].status.error_msg  # it may be a row's value
    assert "stumble" not in bench.ends


def test_a_retry_repeats_all_changes_for_those_that_failed_alone(bench: Bench) -> None:
    good, bad = Copy(), Copy()
    faults = iter([Unavailable("away")])

    def once(step: str) -> None:
        if step == "commit" and (error := next(faults, None)) is not None:
            raise error

    bench.consumers = {"good": good.consumer(), "bad": bad.consumer(once)}
    again = bench.run(job_row("good", "good"), job_row("bad", "bad"))
    scans = len(bench.source.opens)
    assert bench.repeat(iteration_of(*again, to_ts=bench.world.ts)) == []
    assert len(bench.source.opens) == scans + 1
    assert good.commits == bad.commits == [bench.world.ts]
    assert set(bench.ends) == {"bad"}
    assert bench.end("bad").status.error_code == 0


def test_the_last_try_leaves_with_its_error_and_its_watermark_untouched(bench: Bench) -> None:
    def fail(_job: JobContext, _data: DataRetriever) -> None:
        raise Unavailable("the target is away")

    bench.consumers = {"copy": consumer_of(fail)}
    assert bench.run(job_row("j"), last=True) == []
    row = bench.end("j")
    assert (row.state, row.watermark, row.status.error_code) == (JobState.COMPLETED, 0, 1)
    assert row.status.error_msg == "the target is away"


@pytest.mark.parametrize("where", ["scan", "open", "batch"])
def test_a_source_that_fails_fails_all_for_now(bench: Bench, where: str) -> None:
    def fault(step: str) -> None:
        if step == where:
            raise Unavailable("the capture is away")

    bench.source.fault = fault
    bench.consumers = {"a": Copy().consumer(), "b": Copy().consumer()}
    again = bench.run(job_row("a", "a"), job_row("b", "b"))
    assert {job.key.job_name for job in again} == {"a", "b"}
    assert {job.status.error_msg for job in again} == {"the capture is away"}


def test_a_consumer_that_hides_what_the_source_raised_has_not_completed(bench: Bench) -> None:
    def fault(step: str) -> None:
        if step == "batch":
            raise Unavailable("the capture is away")

    def swallow(_job: JobContext, data: DataRetriever) -> None:
        try:
            data.next()
        except Unavailable:
            return

    def disguise(_job: JobContext, data: DataRetriever) -> None:
        try:
            data.next()
        except Unavailable as error:
            raise Invalid("my own words") from error

    bench.source.fault = fault
    bench.consumers = {"swallow": consumer_of(swallow), "disguise": consumer_of(disguise)}
    again = bench.run(job_row("swallow", "swallow"), job_row("disguise", "disguise"))
    assert {job.status.error_msg for job in again} == {"the capture is away"}
    assert {job.watermark for job in again} == {0}


def test_a_damaged_source_needs_somebody(bench: Bench) -> None:
    def fault(step: str) -> None:
        if step == "open":
            raise Corrupt("object 7 is damaged")

    bench.source.fault = fault
    bench.consumers = {"copy": Copy().consumer()}
    bench.run(job_row("j"))
    assert (bench.end("j").state, bench.end("j").status.error_code) == (JobState.ERROR, 10000)


def test_a_first_sync_that_failed_begins_from_scratch(bench: Bench) -> None:
    rows: dict[int, str] = {}
    tries = []

    def consume(_job: JobContext, data: DataRetriever) -> None:
        assert data.data_type is DataType.SNAPSHOT
        rows.clear()
        tries.append(len(tries))
        if len(tries) == 1:
            rows[99] = "half of it"
            raise Unavailable("killed")
        rows.update({row["id"]: row["name"] for row in all_rows(data)})

    bench.consumers = {"copy": consumer_of(consume)}
    again = bench.run(job_row("j"))
    bench.world.commit(item("integer", 4, "newer"))
    bench.repeat(iteration_of(*again, to_ts=bench.world.resolve()))
    assert rows == {n: f"first {n}" for n in range(4)} | {4: "newer"}
    assert bench.end("j").watermark == bench.world.ts


def test_a_table_that_is_gone_is_told_with_what_to_do(bench: Bench) -> None:
    bench.source.gone_because = "table shop.items was truncated; rebuild the job"
    bench.consumers = {"copy": Copy().consumer()}
    bench.run(job_row("j"))
    row = bench.end("j")
    assert (row.state, row.status.error_code) == (JobState.ERROR, 10002)
    assert row.status.error_msg == "table shop.items was truncated; rebuild the job"


def test_a_schema_that_the_consumer_cannot_carry_is_told(bench: Bench) -> None:
    class Picky(Consumer):
        def check(self, schema: SchemaVersion) -> None:
            raise Invalid(f"table {schema.name} has no vector column")

        def consume(self, data: DataRetriever) -> None:
            raise AssertionError("it does not come so far")

    bench.consumers = {"copy": Picky}
    bench.run(job_row("j"))
    assert (bench.end("j").status.error_code, bench.end("j").state) == (10001, JobState.ERROR)


def test_an_unknown_consumer_and_wrong_options_need_somebody(bench: Bench) -> None:
    class Strict(Consumer):
        def __init__(self, job: JobContext) -> None:
            raise Invalid("option uri is missing")

        def consume(self, data: DataRetriever) -> None:
            raise AssertionError

    bench.consumers = {"strict": Strict}
    bench.run(job_row("a", "strict"), job_row("b", "nobody"))
    assert bench.end("a").status.error_msg == "option uri is missing"
    assert bench.end("b").status.error_msg == "there is no consumer 'nobody'"
    assert not bench.source.opens


def test_a_consumer_that_cannot_be_closed_has_completed_all_the_same(bench: Bench) -> None:
    class Sticky(Consumer):
        def consume(self, data: DataRetriever) -> None:
            all_rows(data)

        def close(self) -> None:
            raise OSError(5, "stuck")

    bench.consumers = {"copy": Sticky}
    bench.run(job_row("j"))
    assert bench.end("j").watermark == bench.world.ts


def _stale(bench: Bench, *, below: int) -> None:
    scan = bench.source.scan

    def checked(table_id: int, from_ts: int, to_ts: int, limit: ReadLimit) -> TableScan:
        if (from_ts or to_ts) < below:
            raise StaleRead("shop.items", from_ts or to_ts, oldest_ts=below)
        return scan(table_id, from_ts, to_ts, limit)

    bench.source.scan = checked  # type: ignore[method-assign] # history is collected


def test_a_tail_whose_history_is_gone_begins_with_all_rows_again(bench: Bench) -> None:
    copy = Copy()
    bench.consumers = {"copy": copy.consumer()}
    bench.run(job_row("j"))
    bench.world.commit(item("integer", 1, "changed"), delete=[(2,)])
    _stale(bench, below=bench.world.resolve())
    assert bench.run(bench.end("j"), from_ts=copy.ts) == []
    row = bench.end("j")
    assert (row.watermark, row.state) == (0, JobState.CANCELED)
    bench.run(row)
    assert bench.end("j").watermark == copy.ts == bench.world.ts
    assert copy.rows == bench.world.versions.at(bench.world.ts)


def test_a_first_sync_to_a_watermark_that_is_gone_goes_to_now_instead(bench: Bench) -> None:
    copy = Copy()
    bench.consumers = {"copy": copy.consumer()}
    others_ts = bench.world.ts
    bench.world.commit(item("integer", 1, "changed"))
    _stale(bench, below=bench.world.resolve())
    assert bench.run(job_row("j"), to_ts=others_ts) == []
    assert bench.end("j").watermark == copy.ts == bench.world.ts > others_ts


def test_a_table_that_one_account_lost_ends_the_jobs_of_that_account_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Copy()
    bench.consumers = {"kept": kept.consumer(), "lost": Copy().consumer()}
    reasons = {"ann": "the table does not belong to account ann any more"}
    monkeypatch.setattr(bench.source, "why_gone", lambda _table_id, account: reasons.get(account))
    assert bench.run(job_row("kept", "kept", account="bob"), job_row("lost", "lost", account="ann")) == []
    assert bench.end("kept").state is JobState.COMPLETED
    assert kept.rows == bench.world.versions.at(bench.world.ts)
    lost = bench.end("lost")
    assert (lost.state, lost.status.error_msg) == (JobState.ERROR, reasons["ann"])


def test_an_account_that_lost_the_table_within_the_range_ends_its_own_jobs_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose the table is was looked up when the iteration began, and may have changed in what it reads."""
    kept, seen, everything = Copy(), Copy(), Copy()
    bench.consumers = {"kept": kept.consumer(), "lost": seen.consumer(), "all": everything.consumer()}
    find = bench.source.scan

    def scan(*range_: Any) -> TableScan:
        return replace(find(*range_), accounts=frozenset({"bob"}))

    monkeypatch.setattr(bench.source, "scan", scan)
    jobs = [job_row("lost", "lost", account="ann"), job_row("kept", "kept", account="bob")]
    assert bench.run(*jobs, job_row("all", "all", account="sys")) == []
    for name, copy in (("kept", kept), ("all", everything)):
        assert (bench.end(name).state, bench.end(name).status.error_code) == (JobState.COMPLETED, 0)
        assert copy.rows == bench.world.versions.at(bench.world.ts)
    assert bench.end("lost").state is JobState.ERROR
    assert "belong" in bench.end("lost").status.error_msg
    assert seen.rows == {}
