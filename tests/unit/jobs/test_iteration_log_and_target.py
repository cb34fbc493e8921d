"""The log, the target, and who is right."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import Fenced, Unavailable
from penstock.jobs.consumer import DataRetriever, JobContext
from penstock.jobs.job import JobState
from penstock.jobs.log.transitions import cancel_iteration, resync_job, update_spec
from penstock.jobs.spec import JobSpec
from support.itemtables import item
from support.iterationbench import Bench, all_rows, item_bench
from support.jobdoubles import Copy, MemoryTxn, consumer_of, iteration_of, job_row


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with item_bench(tmp_path) as made:
        yield made


def test_the_log_follows_a_target_that_has_come_further_without_a_scan(bench: Bench) -> None:
    copy = Copy(ts=500)
    bench.consumers = {"copy": copy.consumer()}
    bench.run(job_row("j", watermark=100, committed_ts=100, begun_ts=500), from_ts=100)
    row = bench.end("j")
    assert (row.watermark, row.status.committed_ts, row.state) == (500, 500, JobState.COMPLETED)
    assert not bench.source.scans
    assert not bench.source.opens


def test_a_sibling_of_one_that_is_ahead_goes_on(bench: Bench) -> None:
    ahead, copy = Copy(ts=bench.world.ts + 999), Copy(ts=7)
    bench.consumers = {"ahead": ahead.consumer(), "copy": copy.consumer()}
    from_ts = bench.world.ts
    bench.world.commit(item("integer", 1, "changed"))
    jobs = [job_row(name, name, watermark=7, committed_ts=7, begun_ts=ahead.ts) for name in ("ahead", "copy")]
    bench.run(*jobs, from_ts=from_ts)
    assert bench.end("ahead").watermark == ahead.ts
    assert bench.end("copy").watermark == copy.ts == bench.world.ts


def test_a_quiet_stretch_is_no_difference_between_log_and_target(bench: Bench) -> None:
    copy = Copy()
    bench.consumers = {"copy": copy.consumer()}
    bench.run(job_row("j"))
    from_ts = bench.world.tick(1000)  # nothing has changed up to here: only the watermark in memory moves
    bench.world.commit(item("integer", 9, "new"))
    bench.run(bench.end("j"), from_ts=from_ts)
    assert bench.source.scans[-1].from_ts == from_ts
    assert copy.rows == bench.world.versions.at(bench.world.ts)
    assert bench.end("j").watermark == copy.ts


def test_a_target_behind_the_log_needs_somebody(bench: Bench) -> None:
    bench.consumers = {"copy": Copy(ts=50).consumer()}
    bench.run(job_row("j", watermark=100, committed_ts=100), from_ts=100)
    assert (bench.end("j").status.error_code, bench.end("j").watermark) == (10003, 100)


@pytest.mark.parametrize("future", [1 << 62, 10**30])
def test_a_target_in_the_future_needs_somebody_and_a_rebuild_fills_it(bench: Bench, future: int) -> None:
    copy = Copy()
    bench.consumers = {"copy": copy.consumer()}
    bench.run(job_row("j"))
    done = bench.end("j")
    copy.ts = future
    bench.world.commit(item("integer", 9, "new"))
    bench.run(done, from_ts=done.watermark)
    row = bench.end("j")
    assert (row.state, row.status.error_code, row.watermark) == (JobState.ERROR, 10003, done.watermark)
    assert "in the future" in row.status.error_msg
    assert "penstock job repair" in row.status.error_msg
    bench.run(resync_job(row, upto_ts=bench.world.ts))
    assert bench.end("j").watermark == copy.ts == bench.world.ts
    assert copy.rows == bench.world.versions.at(bench.world.ts)


def test_a_source_that_was_restored_from_a_backup_does_not_follow_its_target(bench: Bench) -> None:
    copy = Copy()
    bench.consumers = {"copy": copy.consumer()}
    bench.run(job_row("j"))
    backup = bench.end("j")
    rows = dict(copy.rows)
    copy.rows[(77,)] = {"id": 77, "name": "committed after the backup, and lost with the source"}
    copy.ts = bench.world.tick(10)
    bench.world.commit(item("integer", 9, "new"))  # the restored source goes on, later than its target
    bench.run(backup, from_ts=backup.watermark)
    row = bench.end("j")
    assert (row.status.error_code, row.watermark) == (10003, backup.watermark)
    assert "restored from a backup" in row.status.error_msg
    assert copy.rows.keys() == rows.keys() | {(77,)}, "nothing is written on top of it"
    bench.run(resync_job(row))
    assert copy.rows == bench.world.versions.at(bench.world.ts)


def test_a_job_that_is_registered_anew_after_a_restore_fills_a_target_that_knows_its_id(
    bench: Bench,
) -> None:
    copy = Copy(rows={(77,): {"id": 77, "name": "lost"}}, ts=bench.world.ts - 1)
    bench.consumers = {"copy": copy.consumer()}
    bench.run(job_row("j"))
    assert bench.end("j").watermark == copy.ts == bench.world.ts
    assert copy.rows == bench.world.versions.at(bench.world.ts)


def test_a_runner_that_was_overtaken_before_it_looked_at_the_target_leaves_it(bench: Bench) -> None:
    copy = Copy()

    def overtaken(step: str) -> None:
        if step == "committed_ts" and not copy.ts:
            bench.log.touch("j", lambda job: job.with_status(runner=9))
            copy.ts, copy.rows = bench.world.ts + 500, {(1,): {"id": 1, "name": "newer"}}

    bench.consumers = {"copy": copy.consumer(overtaken)}
    assert bench.run(job_row("j")) == []
    assert (copy.ts, len(copy.rows)) == (bench.world.ts + 500, 1)
    assert bench.ends == {"j": None}


def test_a_target_that_fences_ends_the_try_without_an_error(bench: Bench) -> None:
    copy = Copy()

    def other_try(step: str) -> None:
        if step == "commit":
            copy.ts = bench.world.ts

    bench.consumers = {"copy": copy.consumer(other_try)}
    assert bench.run(job_row("j")) == []
    row = bench.end("j")
    assert (row.state, row.status.error_code, row.watermark) == (JobState.CANCELED, 0, 0)
    bench.run(row)
    assert bench.end("j").watermark == copy.ts


def test_a_row_that_has_moved_is_somebody_elses(bench: Bench) -> None:
    bench.consumers = {"a": Copy().consumer(), "b": Copy().consumer()}
    seen = job_row("a", "a")
    mine = job_row("b", "b")
    bench.log.rows = {seen.key: seen.with_status(runner=9), mine.key: mine}
    before = bench.log.row("a")
    bench.repeat(iteration_of(seen, mine, to_ts=bench.world.ts))
    assert bench.ends["a"] is None
    assert bench.log.row("a") == before
    assert bench.end("b").watermark == bench.world.ts


def test_a_row_that_moves_meanwhile_is_not_written(bench: Bench) -> None:
    def taken_over(step: str) -> None:
        if step == "committed":
            bench.log.touch("j", lambda job: job.with_status(runner=9))

    bench.consumers = {"copy": Copy().consumer(taken_over)}
    assert bench.run(job_row("j")) == []
    assert bench.ends == {"j": None}
    assert bench.log.row("j").watermark == 0


def test_a_new_spec_meanwhile_stays(bench: Bench) -> None:
    newer = JobSpec.parse({"detail": {"priority": 9}})

    def update(step: str) -> None:
        if step == "committed":
            bench.log.touch("j", update_spec(newer, interrupt=False, at=5))

    bench.consumers = {"copy": Copy().consumer(update)}
    bench.run(job_row("j"))
    assert bench.end("j").spec.priority == 9
    assert bench.end("j").watermark == bench.world.ts


def test_rows_and_watermark_are_one_transaction_where_the_consumer_says_so(bench: Bench) -> None:
    rows: dict[int, str] = {}

    def consume(_job: JobContext, data: DataRetriever) -> None:
        txn = MemoryTxn()
        found = {row["id"]: row["name"] for row in all_rows(data)}
        txn.add(lambda: lambda: rows.update(found))
        data.update_watermark(txn)  # type: ignore[arg-type] # what the log in memory takes
        txn.commit()

    bench.consumers = {"copy": consumer_of(consume)}
    bench.run(job_row("j"))
    assert len(rows) == 5
    assert bench.end("j").watermark == bench.world.ts
    assert bench.log.states("j") == [JobState.RUNNING, JobState.COMPLETED]  # and nothing after that


def test_neither_rows_nor_watermark_are_written_once_the_row_has_moved(bench: Bench) -> None:
    rows: dict[int, str] = {}
    raised: list[Exception] = []

    def consume(_job: JobContext, data: DataRetriever) -> None:
        txn = MemoryTxn()
        txn.add(lambda: lambda: rows.update({1: "written"}))
        bench.log.touch("j", cancel_iteration(at=1))
        try:
            data.update_watermark(txn)  # type: ignore[arg-type] # what the log in memory takes
        except Fenced as error:
            raised.append(error)
            raise

    bench.consumers = {"copy": consumer_of(consume)}
    assert bench.run(job_row("j")) == []
    assert raised
    assert not rows
    assert bench.ends == {"j": None}
    assert bench.log.row("j").watermark == 0


def test_a_failure_after_its_own_commit_leaves_the_row_as_committed(bench: Bench) -> None:
    def consume(_job: JobContext, data: DataRetriever) -> None:
        txn = MemoryTxn()
        data.update_watermark(txn)  # type: ignore[arg-type] # what the log in memory takes
        txn.commit()
        raise Unavailable("the answer got lost")

    bench.consumers = {"copy": consumer_of(consume)}
    assert bench.run(job_row("j")) == []
    assert bench.ends == {"j": None}
    assert (bench.log.row("j").watermark, bench.log.row("j").state) == (bench.world.ts, JobState.COMPLETED)


@pytest.mark.parametrize("number", [1, 2])
def test_a_log_that_does_not_answer_is_tried_again_and_nothing_happens_twice(
    bench: Bench, number: int
) -> None:
    copy, calls = Copy(), []

    def fault(step: str) -> None:
        calls.append(step)
        if len(calls) == number:
            raise Unavailable("the store is away")

    bench.log.fault = fault
    bench.consumers = {"copy": copy.consumer()}
    job = job_row("j")
    again = bench.run(job)
    assert [each.key for each in again] == [job.key]
    assert bench.ends == {}
    bench.repeat(iteration_of(*again, to_ts=bench.world.ts))
    assert bench.end("j").watermark == copy.ts == bench.world.ts
    assert copy.commits == [bench.world.ts]


def test_a_log_that_does_not_answer_to_the_last_leaves_the_row_unknown(bench: Bench) -> None:
    def fault(_step: str) -> None:
        raise Unavailable("the store is away")

    bench.log.fault = fault
    bench.consumers = {"copy": Copy().consumer()}
    assert bench.run(job_row("j"), last=True) == []
    assert bench.ends == {"j": None}
