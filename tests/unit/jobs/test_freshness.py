"""How fresh a target is, what it lacks and why."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.clock import compose_ts
from penstock.errors import Invalid, Unavailable
from penstock.eventstore.read.partition import Refusal
from penstock.follow.source import ReadableRange
from penstock.jobs.freshness import FreshnessReader, LagReason, freshness_of
from penstock.jobs.job import ErrorCode, Job, JobId, JobState
from penstock.jobs.log.transitions import (
    complete_iteration,
    drop_job,
    fail_iteration,
    queue_iteration,
    start_iteration,
)
from penstock.jobs.spec import JobSpec
from penstock.settings import JobsSettings
from penstock.testing.clock import ManualClock
from support.itemtables import item
from support.iterationbench import Bench, item_bench
from support.jobdoubles import WorldSource, job_row


def ts(second: float) -> int:
    return compose_ts(round(second * 1000))


JOB = job_row("j", watermark=ts(100), committed_ts=ts(100))
PAUSED = JobSpec.parse({"trigger": {"paused": True}})
REFUSAL = Refusal(7, "column a: type 200 is unknown; upgrade Penstock to read this table", ts(121))


@pytest.mark.parametrize(
    ("job", "look", "reason"),
    [
        (JOB, ReadableRange(ts(200), ts(100)), None),
        (JOB, ReadableRange(ts(200), ts(101)), LagReason.WAITING),
        (JOB, ReadableRange(ts(200), ts(90), ts(150)), LagReason.WAITING),
        (JOB, ReadableRange(ts(5000), ts(101)), LagReason.CATCHING_UP),
        (JOB, None, LagReason.NOT_CAPTURED),
        (
            queue_iteration(JOB.watermark, ts(200), runner=1)(JOB),
            ReadableRange(ts(200), ts(150)),
            LagReason.QUEUED,
        ),
        (
            start_iteration(JOB.watermark, ts(200), runner=1, at=1)(JOB),
            ReadableRange(ts(200), ts(150)),
            LagReason.RUNNING,
        ),
        (
            fail_iteration(ErrorCode.TEMPORARY, "no", at=1)(JOB),
            ReadableRange(ts(200), ts(150)),
            LagReason.RETRYING,
        ),
        (
            fail_iteration(ErrorCode.REFUSED, "never", at=1)(JOB),
            ReadableRange(ts(200), ts(150)),
            LagReason.ERROR,
        ),
        (fail_iteration(ErrorCode.REFUSED, "never", at=1)(JOB), ReadableRange(ts(200), ts(50)), None),
        (replace(JOB, spec=PAUSED), ReadableRange(ts(200), ts(150)), LagReason.PAUSED),
        (drop_job(at=1)(JOB), ReadableRange(ts(200), ts(50)), LagReason.DROPPED),
        (job_row("new"), ReadableRange(ts(200), 0), LagReason.NEVER_SYNCED),
        (JOB, ReadableRange(ts(120), ts(100), refusal=REFUSAL), LagReason.UNCAPTURABLE),
        (JOB, ReadableRange(ts(120), ts(110), refusal=REFUSAL), LagReason.UNCAPTURABLE),
        (JOB, ReadableRange(0, 0, refusal=REFUSAL), LagReason.UNCAPTURABLE),
        (job_row("new"), ReadableRange(0, 0, refusal=REFUSAL), LagReason.UNCAPTURABLE),
        (
            fail_iteration(ErrorCode.REFUSED, "never", at=1)(JOB),
            ReadableRange(ts(120), ts(110), refusal=REFUSAL),
            LagReason.ERROR,
        ),
        (
            replace(JOB, spec=PAUSED),
            ReadableRange(ts(120), ts(110), refusal=REFUSAL),
            LagReason.PAUSED,
        ),
    ],
)
def test_the_reason_says_what_is_between_the_target_and_the_source(
    job: Job, look: ReadableRange | None, reason: LagReason | None
) -> None:
    found = freshness_of(job, look, now_ts=ts(201), span_s=1800)
    assert found.reason is reason
    assert found.complete == (reason is None)


def test_a_quiet_table_keeps_its_target_fresh_though_the_watermark_in_the_log_is_old() -> None:
    found = freshness_of(JOB, ReadableRange(ts(9000), ts(100)), now_ts=ts(9001), span_s=1800)
    assert found.covers(ts(9000))
    assert found.lag_s == pytest.approx(1.0)
    assert str(found) == "complete, 1.0 s behind the database"


def test_a_target_that_lacks_changes_is_as_old_as_its_watermark_and_says_why() -> None:
    job = fail_iteration(ErrorCode.REFUSED, "the disk is full", at=1)(JOB)
    found = freshness_of(job, ReadableRange(ts(200), ts(150)), now_ts=ts(201), span_s=1800)
    assert not found.covers(ts(101))
    assert str(found) == "changes of the last 101.0 s are missing: error (the disk is full)"


def test_a_table_that_cannot_be_captured_is_the_reason_also_when_the_target_has_all_there_is() -> None:
    found = freshness_of(JOB, ReadableRange(ts(120), ts(100), refusal=REFUSAL), now_ts=ts(220), span_s=1800)
    assert (found.watermark, found.covers(ts(120)), found.covers(ts(121))) == (ts(120), True, False)
    assert str(found) == (
        "changes of the last 100.0 s are missing: cannot be captured"
        " (column a: type 200 is unknown; upgrade Penstock to read this table)"
    )


def test_nobody_running_jobs_is_a_reason() -> None:
    found = freshness_of(JOB, ReadableRange(ts(200), ts(150)), now_ts=ts(201), span_s=1800, attended=False)
    assert found.reason is LagReason.NO_RUNNER


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with item_bench(tmp_path) as made:
        yield made


class ExactSource(WorldSource):
    """Knows when its table changed last."""

    changed_ts = 0

    async def read_progress(self, table_ids: Collection[int]) -> dict[int, ReadableRange]:
        return {each: ReadableRange(self.world.ts, self.changed_ts) for each in table_ids}


class SwiftClock(ManualClock):
    """Sleeping takes no time of ours."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        await super().sleep(0)


class Asked:
    """A desk for one job, whose row the test changes."""

    def __init__(self, bench: Bench, job: Job) -> None:
        self.job = job
        self.source = ExactSource(bench.world)
        self.reads = 0
        self.desk = FreshnessReader(self.read, self.source, JobsSettings(), clock=SwiftClock())

    def read(self, job_id: JobId) -> Job:
        assert job_id == self.job.id
        self.reads += 1
        return self.job


async def test_coverage_counts_the_changes_that_are_missing_and_dates_the_oldest(bench: Bench) -> None:
    asked = Asked(bench, job_row("j", watermark=bench.world.ts))
    first_ts = bench.world.commit(item("integer", 1, "changed"))
    bench.world.commit(item("integer", 2, "changed"), delete=[(3,)])
    asked.source.changed_ts = bench.world.resolve()
    found = await asked.desk.coverage(asked.job.id)
    assert found.oldest_ts == first_ts
    assert found.missing >= 3
    assert 0 < found.share < 1
    assert found.freshness.reason is LagReason.WAITING


async def test_coverage_is_whole_when_nothing_is_missing_and_nothing_before_the_first_sync(
    bench: Bench,
) -> None:
    asked = Asked(bench, job_row("j", watermark=bench.world.ts))
    asked.source.changed_ts = bench.world.resolve()
    assert (await asked.desk.coverage(asked.job.id)).share == 1
    asked.job = job_row("j")
    found = await asked.desk.coverage(asked.job.id)
    assert (found.share, found.missing) == (0, found.rows)
    assert found.rows > 0


async def test_waiting_ends_when_the_watermark_is_there(bench: Bench) -> None:
    asked = Asked(bench, job_row("j", watermark=bench.world.ts))
    wanted_ts = bench.world.commit(item("integer", 1, "changed"))
    asked.source.changed_ts = bench.world.resolve()
    before = asked.job

    def read(_: JobId) -> Job:
        asked.reads += 1
        return before if asked.reads < 3 else complete_iteration(wanted_ts, at=1)(before)

    desk = FreshnessReader(read, asked.source, JobsSettings(), clock=SwiftClock())
    assert (await desk.wait_for(asked.job.id, wanted_ts)).covers(wanted_ts)
    assert asked.reads == 3


async def test_waiting_gives_up_with_the_reason(bench: Bench) -> None:
    asked = Asked(bench, job_row("j", watermark=bench.world.ts))
    wanted_ts = bench.world.commit(item("integer", 1, "changed"))
    asked.source.changed_ts = bench.world.resolve()
    with pytest.raises(Unavailable, match=r"after 3 s: changes .* are missing: waiting"):
        await asked.desk.wait_for(asked.job.id, wanted_ts, timeout_s=3)


@pytest.mark.parametrize("state", ["paused", "error"])
async def test_waiting_for_a_job_that_does_not_go_on_is_refused_at_once(bench: Bench, state: str) -> None:
    row = job_row("j", watermark=bench.world.ts)
    stopped = replace(row, spec=PAUSED) if state == "paused" else replace(row, state=JobState.ERROR)
    asked = Asked(bench, stopped)
    wanted_ts = bench.world.commit(item("integer", 1, "changed"))
    asked.source.changed_ts = bench.world.resolve()
    with pytest.raises(Invalid, match=f"{state}.*penstock job resume"):
        await asked.desk.wait_for(asked.job.id, wanted_ts)
    assert asked.reads == 1
