"""What may become of a job, as tables of before and after."""

from dataclasses import replace

import pytest

from penstock.jobs.job import ErrorCode, Job, JobId, JobKey, JobState, JobStatus
from penstock.jobs.log import transitions
from penstock.jobs.log.transitions import Transition
from penstock.jobs.spec import JobSpec

SPEC = JobSpec.parse({"detail": {"consumer": {"consumer": "delta", "options": {"uri": "file:///t"}}}})
GREEDY = JobSpec.parse({"trigger": {"job_type": "greedy"}})
IDLE = (JobState.COMPLETED, JobState.CANCELED, JobState.ERROR)


def job(state: JobState = JobState.COMPLETED, *, watermark: int = 100, **status: int | str) -> Job:
    known = {"lsn": 7, "runner": 1, "committed_ts": watermark, **status}
    return Job(
        key=JobKey(0, 5, "search", 1),
        id=JobId("shop", "orders", "search"),
        account="sys",
        spec=SPEC,
        state=state,
        watermark=watermark,
        status=JobStatus(**known),
        create_at=1_700_000_000_000,
    )


COUNTED: dict[str, Transition] = {
    "adopted": transitions.adopt_job(2),
    "pending": transitions.queue_iteration(100, 200, runner=1),
    "started": transitions.start_iteration(100, 200, runner=1, at=5),
    "completed": transitions.complete_iteration(200, at=5),
    "failed": transitions.fail_iteration(ErrorCode.TEMPORARY, "no answer", at=5),
    "failed for good": transitions.fail_iteration(ErrorCode.REFUSED, "no such option", at=5),
    "canceled": transitions.cancel_iteration(at=5),
    "resynced": transitions.resync_job,
    "interrupted": transitions.update_spec(GREEDY, interrupt=True, at=5),
    "dropped": transitions.drop_job(at=5),
}
QUIET: dict[str, Transition] = {
    "flushed": transitions.flush_watermark(300),
    "updated": transitions.update_spec(GREEDY, interrupt=False, at=5),
    "resumed": transitions.resume_job,
}


@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize("name", COUNTED)
def test_whoever_has_not_seen_it_is_stale(name: str, state: JobState) -> None:
    assert COUNTED[name](job(state)).status.lsn == 8


@pytest.mark.parametrize("state", [state for state in JobState if state is not JobState.ERROR])
@pytest.mark.parametrize("name", QUIET)
def test_these_leave_an_iteration_valid_that_is_under_way(name: str, state: JobState) -> None:
    before, after = job(state), QUIET[name](job(state))
    assert (after.status, after.state) == (before.status, before.state)


@pytest.mark.parametrize("name", {**COUNTED, **QUIET})
def test_none_changes_whose_job_it_is(name: str) -> None:
    before, after = job(), {**COUNTED, **QUIET}[name](job())
    assert (after.key, after.id, after.account, after.create_at) == (
        before.key,
        before.id,
        before.account,
        before.create_at,
    )
    assert (after.drop_at is None) == (name != "dropped")


@pytest.mark.parametrize("name", COUNTED)
def test_the_watermark_stays_where_it_is_but_at_the_end_of_an_iteration_and_for_a_new_beginning(
    name: str,
) -> None:
    expected = {"completed": 200, "resynced": 0}.get(name, 100)
    assert COUNTED[name](job(JobState.RUNNING)).watermark == expected


@pytest.mark.parametrize("name", [*COUNTED, *QUIET])
def test_the_spec_changes_by_an_update_alone(name: str) -> None:
    after = {**COUNTED, **QUIET}[name](job()).spec
    changed = {"interrupted": "greedy", "updated": "greedy"}.get(name, "default")
    assert after.job_type == changed
    assert after.detail == SPEC.detail, "what is empty in a new spec keeps its value"


def test_a_failure_leaves_the_next_iteration_to_begin_exactly_where_this_one_did() -> None:
    row = job()
    for _ in range(5):
        row = transitions.start_iteration(row.watermark, 200, runner=1, at=1)(row)
        row = transitions.fail_iteration(ErrorCode.TEMPORARY, "no answer", at=2)(row)
    assert row.watermark == 100, "not one tick is skipped"
    assert (row.status.failures, row.state) == (5, JobState.COMPLETED)
    row = transitions.complete_iteration(200, at=3)(row)
    assert (row.status.failures, row.status.error_code, row.status.error_msg) == (0, 0, "")


@pytest.mark.parametrize("code", ErrorCode)
def test_only_a_permanent_error_stops_a_job(code: ErrorCode) -> None:
    if code is ErrorCode.OK:
        with pytest.raises(AssertionError):
            transitions.fail_iteration(code, "", at=1)
        return
    state = transitions.fail_iteration(code, "because", at=1)(job(JobState.RUNNING)).state
    assert state is (JobState.ERROR if code >= 10_000 else JobState.COMPLETED)


def test_a_message_is_one_line_and_not_endless() -> None:
    said = transitions.fail_iteration(1, "two\n  lines" + "!" * 5000, at=1)(job()).status.error_msg
    assert said.startswith("two lines!")
    assert len(said) == 1000


@pytest.mark.parametrize("state", JobState)
def test_who_takes_over_finds_every_job_idle(state: JobState) -> None:
    before = job(state, from_ts=100, to_ts=200, failures=2)
    after = transitions.adopt_job(9)(before)
    assert after.state is (state if state in IDLE else JobState.COMPLETED)
    assert after == replace(before, state=after.state, status=replace(before.status, lsn=8, runner=9))


@pytest.mark.parametrize("state", JobState)
def test_an_interruption_cancels_what_is_queued_or_running(state: JobState) -> None:
    after = transitions.update_spec(GREEDY, interrupt=True, at=5)(job(state))
    assert after.state is (state if state in IDLE else JobState.CANCELED)


@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize("watermark", [0, 100])
def test_a_flush_raises_the_watermark_and_touches_nothing_else(state: JobState, watermark: int) -> None:
    before = job(state, watermark=watermark, from_ts=50, to_ts=100, error_code=1, error_msg="x")
    after = transitions.flush_watermark(300)(before)
    moved = watermark > 0 and state in IDLE
    assert after == replace(before, watermark=300 if moved else watermark)
    assert transitions.flush_watermark(after.watermark - 1)(after) == after, "a watermark never goes back"


def test_no_flush_takes_the_first_iteration_from_a_job() -> None:
    assert transitions.flush_watermark(300)(job(watermark=0)).watermark == 0


def test_what_the_target_has_is_told_from_what_had_no_changes() -> None:
    row = transitions.flush_watermark(300)(transitions.complete_iteration(200, at=1)(job()))
    assert (row.watermark, row.status.committed_ts) == (300, 200)


def test_what_a_target_has_from_before_a_new_beginning_does_not_count() -> None:
    running = transitions.start_iteration(100, 250, runner=1, at=1)(job())
    after = transitions.resync_job(running)
    assert (after.watermark, after.status.committed_ts, after.state) == (0, 0, JobState.CANCELED)
    assert after.status.resync_ts == 250, "the iteration under way may still commit up to there"
    again = transitions.resync_job(after)
    assert again.status.resync_ts == 250
    assert transitions.complete_iteration(400, at=2)(again).status.resync_ts == 250


def test_the_log_remembers_how_far_iterations_went() -> None:
    def begun(job: Job) -> int:
        return job.status.begun_ts

    waits = transitions.queue_iteration(100, 900, runner=1)(job())
    runs = transitions.start_iteration(100, 900, runner=1, at=1)(waits)
    assert (begun(waits), begun(runs)) == (0, 0), "the target has nothing of this one yet"
    shorter = transitions.queue_iteration(100, 300, runner=1)(transitions.cancel_iteration(at=2)(runs))
    assert begun(shorter) == 900, "the iteration that was given up may still commit"
    again = transitions.start_iteration(100, 300, runner=1, at=3)(shorter)
    assert begun(transitions.complete_iteration(300, at=4)(again)) == 900
    assert (
        begun(transitions.resync_job(transitions.start_iteration(100, 1000, runner=1, at=5)(again))) == 1000
    )
    again = transitions.queue_iteration(100, 400, runner=2)(
        transitions.queue_iteration(100, 2000, runner=1)(again)
    )
    assert begun(again) == 900, "of one that only waited the target has nothing"
    adopted = transitions.adopt_job(3)(transitions.start_iteration(100, 500, runner=2, at=6)(again))
    assert begun(transitions.queue_iteration(100, 400, runner=3)(adopted)) == 900
    assert (
        begun(transitions.queue_iteration(100, 400, runner=3)(replace(adopted, status=JobStatus(to_ts=950))))
        == 950
    ), "rows of an older version have no begun_ts"


@pytest.mark.parametrize("transition", [transitions.resume_job, transitions.resync_job])
def test_somebody_who_repairs_a_job_lets_it_go_on(transition: Transition) -> None:
    stopped = transitions.fail_iteration(ErrorCode.SCHEMA, "no", at=1)(job(JobState.RUNNING))
    after = transition(stopped)
    assert (after.state, after.status.error_code, after.status.failures) == (JobState.COMPLETED, 0, 0)
    assert after.status.lsn > stopped.status.lsn


def test_a_job_that_is_resumed_is_not_paused() -> None:
    paused = transitions.update_spec(JobSpec.parse({"trigger": {"paused": True}}), interrupt=False, at=1)(
        job()
    )
    assert paused.spec.paused
    assert not transitions.resume_job(paused).spec.paused


@pytest.mark.parametrize(("watermark", "from_ts"), [(100, 99), (0, 50)])
def test_an_iteration_that_would_repeat_or_skip_changes_is_our_own_mistake(
    watermark: int, from_ts: int
) -> None:
    with pytest.raises(AssertionError):
        transitions.start_iteration(from_ts, 200, runner=1, at=1)(job(watermark=watermark))
    with pytest.raises(AssertionError):
        transitions.complete_iteration(watermark - 1, at=1)(job(watermark=watermark))
