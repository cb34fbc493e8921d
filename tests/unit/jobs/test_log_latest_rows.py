"""The newest row of each job, from changes that may come twice and late."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.jobs.job import JobKey
from penstock.jobs.log.log_feed import LatestRows, LogChange

A, B = (JobKey(0, 5, name, 1) for name in "ab")


def taken(rows: LatestRows) -> tuple[JobKey, ...]:
    change = rows.take()
    return () if change is None else change.removed


def test_nothing_is_taken_twice() -> None:
    rows = LatestRows()
    assert rows.put(A, 10, None)
    assert rows.put(B, 11, None)
    assert rows.take() == LogChange((), (A, B))
    assert rows.take() is None


def test_what_comes_again_after_a_newer_one_is_no_news() -> None:
    rows = LatestRows()
    rows.put(A, 10, None)
    assert taken(rows) == (A,)
    assert not rows.put(A, 10, None)
    assert not rows.put(A, 9, None), "an older one would bring back what is no more"
    assert rows.take() is None
    assert rows.put(A, 11, None)


def test_what_is_resolved_is_forgotten() -> None:
    rows = LatestRows()
    for commit_ts in range(1, 100):
        rows.put(JobKey(0, 5, f"j{commit_ts}", 1), commit_ts, None)
    rows.resolve(90)
    assert len(rows._given) == 9
    assert len(taken(rows)) == 99, "it waits still"


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(1, 8), st.booleans()), max_size=30))
def test_what_is_given_of_a_job_never_goes_back(steps: list[tuple[JobKey, int, bool]]) -> None:
    rows, newest = LatestRows(), {A: 0, B: 0}
    for key, commit_ts, take in steps:
        assert rows.put(key, commit_ts, None) == (commit_ts > newest[key])
        newest[key] = max(newest[key], commit_ts)
        if take:
            rows.take()
