"""The rules of triggers as a table: the jobs of one table, and the iterations that they want.

A job is written `name:watermark`, then what is special about it:

    own        independent of the others             greedy     always, alone
    30s        periodic                              30s+share  periodic, shares
    ask        a custom trigger that says no         ask!       one that says yes
    busy       in an iteration                       rests      failed, not tried again yet
    failing    its last iteration failed             paused | error | dropped

An iteration is written `rule from..to jobs`; `now` is as far as can be read.
"""

import pytest

from penstock.clock import compose_ts
from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.job import Job, JobId, JobKey, JobState, JobStatus
from penstock.jobs.runner.tracked_job import Candidate, TrackedJob, select
from support.boardstage import seconds, spec_of

NOW_S = 1000


def standing(text: str, turn: int = 0) -> TrackedJob:
    head, *words = text.split()
    name, _, watermark = head.partition(":")
    job = Job(
        key=JobKey(1, 1, name, 1),
        id=JobId("shop", "orders", name),
        account="a",
        spec=spec_of(words),
        state=JobState.ERROR if "error" in words else JobState.COMPLETED,
        watermark=compose_ts(int(watermark) * 1000),
        status=JobStatus(failures=1 if {"failing", "rests"} & set(words) else 0),
        create_at=1,
        drop_at=1 if "dropped" in words else None,
    )
    it = TrackedJob(job, job.watermark, turn=turn)
    it.triggered = any(word.startswith("ask!") for word in words)
    it.retry_at = 1.0 if "rests" in words else None
    if "busy" in words:
        it.iteration = Iteration(
            id="i", table_id=1, from_ts=job.watermark, to_ts=job.watermark + 1, jobs=(job,)
        )
    return it


def written(candidate: Candidate) -> str:
    names = " ".join(each.job.key.job_name for each in candidate.jobs)
    return f"{candidate.reason.value} {seconds(candidate.from_ts)}..{seconds(candidate.to_ts)} {names}"


TABLE = {
    # New jobs.
    "a new job begins at once, to now": ("a:0", "first 0..now a"),
    "a new job goes to the others' watermark, and does not hold them": (
        "a:0, b:50, c:50",
        "first 0..50 a; shared 50..now b c",
    ),
    "it goes there also while they are busy": ("a:0, b:50 busy", "first 0..50 a"),
    "a new independent job goes to now": ("a:0 own, b:50", "first 0..now a; shared 50..now b"),
    "a new greedy job goes to now": ("a:0 greedy, b:50", "first 0..now a; shared 50..now b"),
    "it does not follow a job in error": ("a:0, b:50 error", "first 0..now a"),
    "it does not follow a paused job": ("a:0, b:50 paused", "first 0..now a"),
    "it does not follow a dropped job": ("a:0, b:50 dropped", "first 0..now a"),
    "it does not follow those who do not share with it": (
        "a:0, b:50 own, c:60 greedy, d:999 30s+share",
        "first 0..now a; own 50..now b; own 60..now c",
    ),
    "new jobs that come together share the scan": ("a:0, b:0, c:50", "shared 50..now c; first 0..50 a b"),
    "a new periodic job does not wait for its interval": ("a:0 30s", "first 0..now a"),
    "a new job with a custom trigger does not ask it": ("a:0 ask", "first 0..now a"),
    "a paused new job waits": ("a:0 paused", ""),
    "a new job that failed rests": ("a:0 rests, b:50", "shared 50..now b"),
    # Default jobs.
    "equal ones share": ("a:50, b:50, c:50", "shared 50..now a b c"),
    "one alone is shared by itself": ("a:50", "shared 50..now a"),
    "they wait while one of them runs": ("a:50, b:50 busy", ""),
    "they do not wait for a first iteration": ("a:50, b:0 busy", "shared 50..now a"),
    "one that lags catches up, and the others wait": ("a:50, b:70, c:70", "lagging 50..70 a"),
    "one of several that lag is chosen": ("a:50, b:60, c:70", "lagging 50..70 a"),
    "those at the same watermark are one scan": ("a:50, b:50, c:70", "lagging 50..70 a b"),
    "the next one waits while one catches up": ("a:50 busy, b:60, c:70", ""),
    "they do not wait for one in error": ("a:50 error, b:70, c:70", "shared 70..now b c"),
    "they do not wait for a paused one": ("a:50 paused, b:70", "shared 70..now b"),
    "they do not wait for a dropped one": ("a:50 dropped, b:70", "shared 70..now b"),
    "they do not wait for one that fails; it catches up by itself": (
        "a:50 failing, b:70",
        "lagging 50..70 a; shared 70..now b",
    ),
    "one that rests is not tried": ("a:50 rests, b:70", "shared 70..now b"),
    "nor do they wait for one that fails again": ("a:50 failing busy, b:70", "shared 70..now b"),
    "those that failed together go on together": ("a:50 failing, b:50 failing", "shared 50..now a b"),
    "the greatest watermark counts even if its job fails": ("a:50, b:70 rests", "lagging 50..70 a"),
    # Independent and greedy ones.
    "independent jobs are on their own": (
        "a:50 own, b:50 own, c:50",
        "own 50..now a; own 50..now b; shared 50..now c",
    ),
    "an independent one neither waits nor is waited for": ("a:50 own, b:70, c:70 busy", "own 50..now a"),
    "greedy jobs are on their own": ("a:50 greedy, b:50 greedy", "own 50..now a; own 50..now b"),
    "greedy jobs never share": ("a:50 greedy, b:60", "own 50..now a; shared 60..now b"),
    "one at a time for each": ("a:50 own busy, b:60 greedy busy", ""),
    # Periodic ones.
    "a periodic one waits for its interval": ("a:971 30s", ""),
    "and begins when it is over": ("a:970 30s", "own 970..now a"),
    "its interval is in the database's time": ("a:1500 30s", ""),
    "those of the same interval share": ("a:970 30s+share, b:970 30s+share", "shared 970..now a b"),
    "but not before it is over": ("a:980 30s+share, b:980 30s+share", ""),
    "one that lags does not wait for it": ("a:975 30s+share, b:980 30s+share", "lagging 975..980 a"),
    "those of other intervals do not": (
        "a:900 60s+share, b:960 30s+share",
        "shared 900..now a; shared 960..now b",
    ),
    "equal ranges of any who share are one scan": (
        "a:900 60s+share, b:900 30s+share, c:900",
        "shared 900..now a b c",
    ),
    # Custom triggers.
    "a custom trigger says when": ("a:50 ask, b:50 ask!", "own 50..now b"),
    "those with the same trigger may share": ("a:50 ask!+share, b:50 ask!+share", "shared 50..now a b"),
    "one whose trigger says no is not waited for": ("a:50 ask+share, b:70 ask!+share", "shared 70..now b"),
}


@pytest.mark.parametrize(("jobs", "expected"), TABLE.values(), ids=TABLE)
def test_the_jobs_of_a_table_want_what_the_rules_say(jobs: str, expected: str) -> None:
    chosen = select([standing(each) for each in jobs.split(", ")], now_ts=compose_ts(NOW_S * 1000))
    assert "; ".join(sorted(map(written, chosen.candidates))) == "; ".join(
        sorted(filter(None, expected.split("; ")))
    )


def test_leaders_that_waited_long_enough_go_on_beside_one_that_lags() -> None:
    jobs = [standing("a:50"), standing("b:70"), standing("c:70")]
    patient = select(jobs, now_ts=None)
    assert [written(each) for each in patient.candidates] == ["lagging 50..70 a"]
    impatient = select(jobs, now_ts=None, impatient=patient.held)
    assert [written(each) for each in impatient.candidates] == ["lagging 50..70 a", "shared 70..now b c"]


def test_those_that_lag_take_turns_so_that_none_starves() -> None:
    jobs = [standing("a:50", turn=9), standing("b:60", turn=8), standing("c:70")]
    assert [written(each) for each in select(jobs, now_ts=None).candidates] == ["lagging 60..70 b"]


def test_periodic_jobs_wait_when_the_time_of_the_database_is_not_known() -> None:
    jobs = [standing("a:50 30s"), standing("b:50 30s+share"), standing("c:50")]
    assert [written(each) for each in select(jobs, now_ts=None).candidates] == ["shared 50..now c"]


def test_a_fast_look_is_for_new_jobs_and_for_those_that_cannot_wait() -> None:
    texts = [
        "a:50",
        "b:50 greedy",
        "c:50 5s",
        "d:50 30s",
        "e:50 5s+share",
        "f:50 30s+share",
        "g:0",
        "h:50 own",
    ]
    chosen = select([standing(each) for each in texts], now_ts=compose_ts(NOW_S * 1000), fast_s=10)
    wanted = sorted(name for each in chosen.candidates for name in written(each).split()[2:])
    assert wanted == ["b", "c", "e", "g"]
