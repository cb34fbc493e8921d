"""What becomes of a job at the end of a try, as a table; and what is kept of errors."""

from dataclasses import replace

import pytest

from penstock.errors import Aborted, Corrupt, Denied, Fenced, Invalid, KeyExists, StaleRead, Unavailable
from penstock.follow.source import TableGone
from penstock.jobs.error_codes import CutOff, SchemaRefused, TargetDiffers, failure_of
from penstock.jobs.iteration.caps import caps_of
from penstock.jobs.iteration.iteration import Ahead, OutcomeKind, OutcomePolicy, Ready, reconcile
from penstock.jobs.job import ErrorCode, Job, JobState
from penstock.jobs.log.transitions import start_iteration
from penstock.jobs.scheduler.scheduler import retry_policy
from penstock.settings import JobsSettings
from support.jobdoubles import iteration_of, job_row

STALE = StaleRead("shop.items", 5, oldest_ts=9)
C, E, X, P = JobState.COMPLETED, JobState.ERROR, JobState.CANCELED, JobState.PENDING


def _running(watermark: int = 100) -> Job:
    job = replace(job_row("j", watermark=watermark), watermark=watermark)
    return start_iteration(watermark, 200, runner=7, at=1)(job)


@pytest.mark.parametrize(
    ("error", "first", "last", "by_source", "kind", "state", "code", "watermark"),
    [
        (Unavailable("away"), False, False, False, OutcomeKind.RETRIED, P, 1, 100),
        (Unavailable("away"), False, True, False, OutcomeKind.FAILED, C, 1, 100),
        (Unavailable("away"), True, False, True, OutcomeKind.RETRIED, P, 1, 0),
        (ValueError("odd"), False, False, False, OutcomeKind.RETRIED, P, 1, 100),
        (SystemExit(3), False, True, False, OutcomeKind.FAILED, C, 1, 100),
        (Aborted("rolled back"), False, False, False, OutcomeKind.RETRIED, P, 1, 100),
        (CutOff("slow"), False, False, False, OutcomeKind.FAILED, C, 2, 100),
        (Invalid("no"), False, False, False, OutcomeKind.PERMANENT, E, 10000, 100),
        (Denied("403"), False, False, False, OutcomeKind.RETRIED, P, 1, 100),  # replaced, or accepted again
        (KeyExists(b"k"), False, False, False, OutcomeKind.PERMANENT, E, 10000, 100),
        (Corrupt("bad"), False, False, True, OutcomeKind.PERMANENT, E, 10000, 100),
        (SchemaRefused("no"), False, False, False, OutcomeKind.PERMANENT, E, 10001, 100),
        (TableGone("no"), False, False, False, OutcomeKind.PERMANENT, E, 10002, 100),
        (TargetDiffers("no"), False, False, False, OutcomeKind.PERMANENT, E, 10003, 100),
        (STALE, False, False, True, OutcomeKind.RESYNCED, X, 0, 0),
        (STALE, False, False, False, OutcomeKind.RETRIED, P, 1, 100),  # of something that the consumer reads
        (STALE, True, False, True, OutcomeKind.RETRIED, P, 1, 0),
        (Fenced("newer"), False, False, False, OutcomeKind.FENCED, X, 0, 100),
    ],
)
def test_an_error_decides_how_a_job_goes_on(
    error: BaseException,
    first: bool,
    last: bool,
    by_source: bool,
    kind: OutcomeKind,
    state: JobState,
    code: int,
    watermark: int,
) -> None:
    job = _running(0 if first else 100)
    iteration = iteration_of(job, from_ts=job.watermark, to_ts=200)
    outcome = OutcomePolicy(iteration, last).fail(error, at=9, by_source=by_source)
    assert outcome.transition is not None
    row = outcome.transition(job)
    assert (outcome.kind, row.state, row.status.error_code, row.watermark) == (kind, state, code, watermark)
    assert row.status.lsn > job.status.lsn


def test_success_moves_the_watermark_to_the_end_and_clears_the_error() -> None:
    job = _running()
    job = replace(job, status=replace(job.status, error_code=1, error_msg="before", failures=3))
    outcome = OutcomePolicy(iteration_of(job, from_ts=100, to_ts=200), last=True).complete(180, at=9)
    assert outcome.transition is not None
    row = outcome.transition(job)
    assert (row.watermark, row.state, row.status.committed_ts) == (180, C, 180)
    assert (row.status.error_code, row.status.failures) == (0, 0)


def test_a_retry_keeps_the_error_to_be_seen_while_it_waits() -> None:
    job = _running()
    outcome = OutcomePolicy(iteration_of(job, from_ts=100, to_ts=200), last=False).fail(
        Unavailable("the target is away"), at=9, by_source=False
    )
    assert outcome.transition is not None
    row = outcome.transition(job)
    assert (row.state, row.status.error_msg, row.status.failures) == (P, "the target is away", 1)
    assert (row.status.from_ts, row.status.to_ts, row.status.runner) == (100, 200, 7)


class _Diagnosis:
    def __init__(self, **facts: str) -> None:
        self.__dict__.update(facts)


class _DatabaseError(Exception):
    def __init__(self, sqlstate: str, **facts: str) -> None:
        super().__init__("DETAIL: Key (name)=(Secret Person) already exists")
        self.sqlstate = sqlstate
        self.diag = _Diagnosis(**facts)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (Unavailable("the store\n is   away"), "the store is away"),
        (ValueError("Secret Person"), "ValueError (in unknown code)"),
        (
            OSError(28, "No space left on device", "/data/Secret"),
            "OSError: No space left on device (in unknown code)",
        ),
        (
            _DatabaseError(
                "23505", message_primary="Secret Person", constraint_name="items_pkey", table_name="items"
            ),
            "_DatabaseError: SQLSTATE 23505 items_pkey items (in unknown code)",
        ),
        (
            _DatabaseError("22P02", message_primary='invalid input: "Secret Person"'),
            "_DatabaseError: SQLSTATE 22P02 (in unknown code)",
        ),
        (
            _DatabaseError("57P01", message_primary="terminating connection"),
            "_DatabaseError: terminating connection (SQLSTATE 57P01) (in unknown code)",
        ),
    ],
)
def test_messages_show_no_values_of_rows(error: Exception, shown: str) -> None:
    assert failure_of(error).message == shown


def test_a_foreign_error_is_told_with_the_line_that_raised_it() -> None:
    try:
        {}["missing"]
    except KeyError as error:
        message = failure_of(error).message
    assert message.startswith("KeyError (in test_iteration_endings.py:")


def test_a_message_is_not_endless() -> None:
    assert len(failure_of(Unavailable("x" * 100_000)).message) <= 1000


@pytest.mark.parametrize(
    ("committed", "resynced", "from_ts", "target", "found"),
    [
        (100, 0, 100, None, Ready(100)),  # the log alone knows
        (100, 0, 100, 100, Ready(100)),
        (100, 0, 150, 100, Ready(100)),  # nothing changed up to 150: the target's own watermark counts
        (100, 0, 150, 120, Ready(120)),
        (100, 0, 150, 150, Ready(150)),
        (100, 0, 150, 180, Ahead(180)),  # it was committed, and the log not written
        (0, 0, 0, 0, Ready(0)),
        (0, 0, 0, None, Ready(0)),
        (0, 0, 0, 80, Ahead(80)),  # a first sync was committed, and the log not written
        (0, 90, 0, 90, Ready(0)),  # a re-sync takes the place of what is there
        (0, 90, 0, 60, Ready(0)),
        (0, 90, 0, 95, Ahead(95)),  # that re-sync was committed
        (120, 90, 120, 130, Ahead(130)),
    ],
)
def test_the_log_follows_the_target(
    committed: int, resynced: int, from_ts: int, target: int | None, found: Ready | Ahead
) -> None:
    job = job_row("j", watermark=from_ts, committed_ts=committed, resync_ts=resynced, begun_ts=180)
    assert reconcile(job, from_ts, target) == found


@pytest.mark.parametrize("target", [0, 99])
def test_a_target_behind_the_log_needs_somebody(target: int) -> None:
    job = job_row("j", watermark=120, committed_ts=100)
    with pytest.raises(TargetDiffers, match="penstock job repair"):
        reconcile(job, 120, target)


@pytest.mark.parametrize("target", [201, 1 << 62, 10**30])
def test_a_target_that_has_more_than_it_was_sent_needs_somebody(target: int) -> None:
    job = job_row("j", watermark=120, committed_ts=100, begun_ts=200)
    assert reconcile(job, 120, 200) == Ahead(200)
    with pytest.raises(TargetDiffers, match=rf"at {target}.*after 200.*penstock job repair"):
        reconcile(job, 120, target)


@pytest.mark.parametrize("resynced", [0, 300])
def test_a_first_sync_replaces_a_target_that_has_more_than_it_was_sent_if_the_log_agrees(
    resynced: int,
) -> None:
    job = job_row("j", resync_ts=resynced, begun_ts=200)
    assert reconcile(job, 0, 1 << 62) == Ready(0, doubtful=True)


def test_a_first_sync_has_no_cap() -> None:
    caps = caps_of(iteration_of(job_row("j", detail={"rows_max": 5}), to_ts=1 << 60), JobsSettings())
    assert (caps.to_ts, bool(caps.limit)) == (1 << 60, False)


def test_the_narrowest_cap_of_the_jobs_and_the_settings_counts() -> None:
    from_ts = 1000 << 18
    jobs = [
        job_row("a", detail={"rows_max": 500}),
        job_row("b", detail={"bytes_max": 9_000, "span": "2s"}),
        job_row("c"),
    ]
    caps = caps_of(
        iteration_of(*jobs, from_ts=from_ts, to_ts=1 << 60),
        JobsSettings(rows_max=700, bytes_max=10_000, span_s=60),
    )
    assert (caps.limit.rows, caps.limit.nbytes, caps.to_ts) == (500, 9_000, 3000 << 18)


def test_a_span_never_reaches_beyond_what_is_wanted() -> None:
    caps = caps_of(iteration_of(job_row("a"), from_ts=5 << 18, to_ts=6 << 18), JobsSettings())
    assert caps.to_ts == 6 << 18


def test_waits_double_up_to_a_minute_and_end_with_the_attempts() -> None:
    retrying = retry_policy(JobsSettings(attempts=4, backoff_s=10))
    assert [retrying.delay_s(failures, 1.0) for failures in (1, 2, 3, 4, 5000)] == [10, 20, 40, 60, 60]
    assert [retrying.delay_s(1, chance) for chance in (0.0, 0.5)] == [5, 7.5]
    assert [retrying.is_last(failures) for failures in (0, 1, 2, 3)] == [False, False, False, True]
    assert retry_policy(JobsSettings(attempts=1)).is_last(0)


def test_codes_below_ten_thousand_are_tried_again() -> None:
    assert not ErrorCode.CUT_OFF.permanent
    assert ErrorCode.REFUSED.permanent
