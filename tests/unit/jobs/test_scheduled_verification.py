"""Which target is compared next, and the duty that does it, with a clock that a test moves."""

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.clock import SYSTEM
from penstock.errors import Fenced, Invalid, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.api import check_spec
from penstock.jobs.error_codes import SchemaRefused
from penstock.jobs.job import Job, JobId, JobKey, JobState, JobStatus
from penstock.jobs.schema_changes import check_names
from penstock.jobs.spec import JobSpec
from penstock.metrics import JOBS_DIFFERENCES
from penstock.settings import Settings
from penstock.tables.define import define_table
from penstock.testing.clock import ManualClock
from penstock.verify.compare import Counts
from penstock.verify.results import LastVerification
from penstock.verify.schedule import ScheduledVerification, next_due
from penstock.verify.target import TargetVerifyReport

HOUR_MS = 3_600_000


def job(name: str, *, verify: str | None = "1h", created_ms: int = 0, **more: Any) -> Job:
    key = JobKey(account_id=0, table_id=5, job_name=name, job_id=1)
    given: dict[str, Any] = {
        "key": key,
        "id": JobId("shop", "items", name),
        "account": "sys",
        "spec": JobSpec.parse({"detail": {"verify": verify}}),
        "state": JobState.COMPLETED,
        "watermark": 10,
        "status": JobStatus(),
        "create_at": created_ms,
    }
    return Job(**(given | more))


def report(of: Job, **counts: int) -> TargetVerifyReport:
    return TargetVerifyReport(
        job=of.id, at_ts=10, source_rows=3, target_rows=3, counts=Counts(**counts), samples={}
    )


# Which is next.


def test_a_job_is_due_an_interval_after_its_last_comparison_or_its_registration() -> None:
    old, new = job("old"), job("new", created_ms=5 * HOUR_MS)
    assert next_due([old, new], {}) == (HOUR_MS, old)
    seen = {old.key: LastVerification(ended_ms=7 * HOUR_MS)}
    assert next_due([old, new], seen) == (6 * HOUR_MS, new)


@pytest.mark.parametrize(
    "idle",
    [
        job("unasked", verify=None),
        job("off", verify="never"),
        job("empty", watermark=0),
        job("broken", state=JobState.ERROR),
        job("gone", drop_at=1),
    ],
    ids=lambda each: each.key.job_name,
)
def test_jobs_that_do_not_want_it_or_have_nothing_to_compare_are_left_out(idle: Job) -> None:
    assert next_due([idle], {}) is None


def test_a_schedule_is_a_duration_or_never_and_the_newer_spec_counts() -> None:
    hourly = JobSpec.parse({"detail": {"verify": "1h"}})
    assert hourly.verify_s == 3600
    assert hourly.merge(JobSpec()).verify_s == 3600
    assert hourly.merge(JobSpec.parse({"detail": {"verify": "never"}})).verify_s is None
    for wrong in ("0s", "soon", "-1h"):
        with pytest.raises(Invalid, match=r"detail\.verify|is not a duration"):
            JobSpec.parse({"detail": {"verify": wrong}})


def test_a_target_that_nobody_can_read_is_not_put_on_a_schedule(tmp_path: Path) -> None:
    table = define_table("items", [("id", "bigint primary key")])
    schema = SchemaVersion(1, 1, table, "shop")
    told = {"consumer": {"consumer": "webhook", "options": {"url": "http://127.0.0.1:1/"}}}
    settings = Settings(jobs={"data": tmp_path})
    check_spec(JobId("shop", "items", "a"), JobSpec.parse({"detail": told}), schema, settings)
    spec = JobSpec.parse({"detail": {**told, "verify": "1h"}})
    with pytest.raises(Invalid, match=r"cannot be compared .* leave --verify out"):
        check_spec(JobId("shop", "items", "a"), spec, schema, settings)


def test_what_was_found_is_read_as_it_was_written_and_says_what_is_wrong() -> None:
    of = job("a")
    good = LastVerification.of(report(of), ended_ms=5)
    bad = LastVerification.of(report(of, missing=2, extra=1), ended_ms=5)
    failed = LastVerification(ended_ms=5, error="nobody answers")
    for each in (good, bad, failed):
        assert LastVerification.from_json(each.to_json()) == each
    assert (good.same, good.problem) == (True, "")
    assert bad.same is False
    assert "2 rows missing, 0 different, 1 extra" in bad.problem
    assert failed.same is None
    assert "nobody answers" in failed.problem
    assert LastVerification.from_json(b"[]") is None
    assert LastVerification.from_json(b'{"ended_ms": 1}') is None


def test_a_chosen_column_that_got_another_name_is_told_with_what_to_do() -> None:
    before = define_table("items", [("id", "bigint primary key"), ("name", "text"), ("price", "int")])
    name = before.column("name")
    columns = [replace(each, name="title") if each is name else each for each in before.columns]
    renamed = before.with_columns(columns)
    with pytest.raises(SchemaRefused, match=r"column name of table items is called title .* job update"):
        check_names(before, renamed, ["Name"])
    check_names(before, renamed, ["price"])
    check_names(before, renamed, [])
    dropped = before.with_columns([each for each in before.columns if each is not name])
    check_names(before, dropped, ["name"])


# The duty.


class Verifier:
    """A TargetVerification that finds what a test says, and VerificationResults kept in lists."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.jobs = {each.id: each for each in jobs}
        self.finds: dict[str, Callable[[Job, Callable[[], None]], TargetVerifyReport]] = {}
        self.known: dict[JobKey, LastVerification] = {}
        self.noted: list[tuple[str, bool | None, str]] = []
        self.lost = False

    def read(self, _keys: Iterable[JobKey]) -> dict[JobKey, LastVerification]:
        return dict(self.known)

    def verify(self, job_id: JobId, *, proceed: Callable[[], None]) -> TargetVerifyReport:
        of = self.jobs[job_id]
        return self.finds.get(of.key.job_name, lambda each, _: report(each))(of, proceed)

    def note(self, key: JobKey, last: LastVerification, *, epoch: int) -> None:
        assert epoch == 7
        if self.lost:
            raise Fenced("somebody else runs the jobs")
        self.noted.append((key.job_name, last.same, last.error))


class Stage:
    """A duty at work."""

    def __init__(self, *jobs: Job) -> None:
        self.clock = ManualClock()
        self.board = [SimpleNamespace(job=each) for each in jobs]
        self.lease = SimpleNamespace(epoch=7, lapsed=False)
        self.verifier = Verifier(jobs)
        verifier = cast("Any", self.verifier)
        self.duty = ScheduledVerification(
            cast("Any", self.board), cast("Any", self.lease), verifier, verifier, clock=self.clock
        )

    @asynccontextmanager
    async def running(self) -> Any:
        task = asyncio.create_task(self.duty.run())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, holds: Callable[[], bool], *, step_s: float = 0.0) -> None:
        deadline = SYSTEM.monotonic() + 30
        while not holds():
            assert SYSTEM.monotonic() < deadline, self.verifier.noted
            self.clock.advance(step_s)
            await SYSTEM.sleep(0.001)


def shown() -> dict[str, float]:
    (family,) = JOBS_DIFFERENCES.collect()
    return {each.labels["job"]: each.value for each in family.samples}


async def test_targets_are_compared_when_they_are_due_and_what_was_found_is_kept_and_shown() -> None:
    stage = Stage(job("a"), job("b", verify="2h"), job("quiet", verify=None))
    stage.verifier.finds["b"] = lambda each, _: report(each, missing=4)
    async with stage.running():
        stage.clock.advance(3500)
        await SYSTEM.sleep(0.01)
        assert not stage.verifier.noted
        await stage.until(lambda: len(stage.verifier.noted) == 3, step_s=60)
        assert sorted(stage.verifier.noted) == [("a", True, ""), ("a", True, ""), ("b", False, "")]
        assert shown() == {"shop.items/a": 0, "shop.items/b": 4}
        del stage.board[1]
        await stage.until(lambda: "shop.items/b" not in shown(), step_s=5)
    assert not shown()


async def test_what_was_found_before_counts_after_another_runner_took_over() -> None:
    stage = Stage(job("a"))
    stage.verifier.known[job("a").key] = LastVerification.of(report(job("a"), extra=1), ended_ms=HOUR_MS)
    async with stage.running():
        await stage.until(lambda: shown() == {"shop.items/a": 1})
        stage.clock.advance(HOUR_MS / 1000 + 60)
        await SYSTEM.sleep(0.01)
        assert not stage.verifier.noted
        await stage.until(lambda: bool(stage.verifier.noted), step_s=60)


async def test_a_comparison_that_fails_is_kept_as_that_and_tried_again_when_due() -> None:
    stage = Stage(job("a"), job("b"))

    def unanswered(_of: Job, _proceed: Callable[[], None]) -> TargetVerifyReport:
        raise Unavailable("the target does not answer")

    def broken(_of: Job, _proceed: Callable[[], None]) -> TargetVerifyReport:
        raise ValueError("row 17 is 'secret'")

    stage.verifier.finds |= {"a": unanswered, "b": broken}
    async with stage.running():
        await stage.until(lambda: len(stage.verifier.noted) == 4, step_s=60)
    assert stage.verifier.noted[:2] == [("a", None, "the target does not answer"), ("b", None, "ValueError")]


async def test_a_comparison_ends_soon_after_its_runner() -> None:
    stage = Stage(job("a"))
    begun, ended = threading.Event(), threading.Event()

    def long(_of: Job, proceed: Callable[[], None]) -> TargetVerifyReport:
        begun.set()
        try:
            while True:
                proceed()
                SYSTEM.pause(0.001)
        finally:
            ended.set()

    stage.verifier.finds["a"] = long
    async with stage.running():
        await stage.until(begun.is_set, step_s=60)
        assert not ended.is_set()
    assert ended.is_set()
    assert not stage.verifier.noted


async def test_a_target_that_never_answers_does_not_keep_others_from_being_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.verify.schedule._LOOK_S", 0.01)
    stage = Stage(job("a"), job("b"))
    asked: list[str] = []
    go_on = threading.Event()

    def deaf(of: Job, _proceed: Callable[[], None]) -> TargetVerifyReport:
        asked.append(of.key.job_name)
        assert go_on.wait(20)
        return report(of)

    stage.verifier.finds["a"] = deaf
    async with stage.running():
        await stage.until(lambda: [name for name, _, _ in stage.verifier.noted].count("b") >= 3, step_s=60)
        failed = [found for found in stage.verifier.noted if found[0] == "a"]
        assert len(failed) == 1
        assert "did not proceed" in failed[0][2]
        assert asked == ["a"], "it is not compared again while that has not returned"
        go_on.set()
        await stage.until(lambda: len(asked) >= 2, step_s=60)


async def test_nothing_is_compared_while_the_lease_may_be_lost_and_nothing_noted_after() -> None:
    stage = Stage(job("a"))
    stage.lease.lapsed = True
    async with stage.running() as task:
        stage.clock.advance(7200)
        await SYSTEM.sleep(0.01)
        assert not stage.verifier.noted
        stage.lease.lapsed, stage.verifier.lost = False, True
        await stage.until(lambda: shown() == {"shop.items/a": 0}, step_s=1)
        assert not stage.verifier.noted
        assert not task.done()
