"""Targets that are to be filled anew while an iteration is under way."""

from penstock.clock import compose_ts, physical_ms
from penstock.jobs.iteration.iteration import Ready, reconcile
from penstock.jobs.log.transitions import resync_job, start_iteration, update_spec
from penstock.jobs.spec import JobSpec
from support.boardstage import ts_of
from support.jobdoubles import job_row


def _columns(*names: str) -> JobSpec:
    return JobSpec.parse({"detail": {"consumer": {"columns": list(names)}}})


def test_a_first_sync_that_went_further_than_the_log_says_does_not_undo_a_rebuild() -> None:
    # It was to end with the others, whose history was gone: it went to second 30 instead.
    running = start_iteration(0, ts_of(10), runner=1, at=1)(job_row("a"))
    assert reconcile(resync_job(running, upto_ts=ts_of(40)), 0, ts_of(30)) == Ready(0)
    other = update_spec(_columns("size"), interrupt=False, at=physical_ms(ts_of(40)))(running)
    assert reconcile(other, 0, ts_of(30)) == Ready(0)
    assert other.status.resync_ts == compose_ts(40_000)


def test_the_same_columns_in_another_order_are_no_reason_to_begin_anew() -> None:
    job = update_spec(_columns("size", "name"), interrupt=False, at=1)(job_row("a"))
    done = start_iteration(0, ts_of(10), runner=1, at=1)(job)
    same = update_spec(_columns("Name", "size"), interrupt=False, at=1)(done)
    assert (same.state, same.status) == (done.state, done.status)
