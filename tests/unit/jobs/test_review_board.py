"""Rows that are not what the board knows: of a log that was made anew, and of a runner that is newer."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from penstock.jobs.job import Job, JobKey, JobState
from penstock.jobs.log.transitions import Transition, adopt_job, start_iteration
from penstock.jobs.runner.board import JobBoard
from penstock.jobs.runner.board_log import BoardLog
from support.boardstage import BoardStage, ts_of
from support.jobdoubles import job_row


def _board() -> JobBoard:
    return JobBoard(interval_s=10, retry_delay_s=lambda _failures: 1.0)


def test_a_job_of_a_log_that_was_made_anew_is_not_an_echo_of_the_one_that_had_its_key() -> None:
    board, old = _board(), replace(job_row("a", watermark=ts_of(9)), create_at=1)
    board.apply([start_iteration(ts_of(9), ts_of(10), runner=1, at=1)(adopt_job(1)(old))])
    new = replace(job_row("a"), create_at=2)  # the same key; nobody has changed it yet
    board.replace([new])
    found = board.get(new.key)
    assert found is not None
    assert (found.job, found.watermark) == (new, 0)


def test_the_iteration_of_a_job_whose_log_was_made_anew_is_ended() -> None:
    stage = BoardStage()
    stage.commit()
    stage.now = 10
    stage.register("a")
    stage.deliver()
    assert stage.tick() == ["first 0..10 a"]
    new = replace(stage.rows["a"], create_at=99, state=JobState.COMPLETED)
    stage.board.replace([replace(new, status=replace(new.status, lsn=0))])
    assert stage.board.take_canceled() == [new.key]
    standing = stage.board.get(new.key)
    assert standing is not None
    assert standing.busy, "the one before has not ended yet"


def test_a_job_whose_target_fences_it_again_and_again_rests_longer_each_time() -> None:
    stage = BoardStage()
    stage.commit()
    stage.now = 10
    stage.register("a")
    stage.deliver()
    assert stage.hurry() == ["first 0..10 a"]
    for delay_s in (1, 2, 4):
        stage.cancel("a")
        stage.now += delay_s - 0.1
        assert stage.hurry() == []
        stage.now += 0.1
        assert stage.hurry() == [f"first 0..{stage.now:g} a"]
    stage.end("a")
    stage.now += 10
    stage.commit()
    (begun,) = stage.tick()
    assert begun.startswith("shared"), "all of it is forgotten once it has succeeded"
    stage.cancel("a")
    stage.now += 1
    (again,) = stage.hurry()
    assert again.startswith("shared")


class _Log:
    """Takes whatever is written."""

    def __init__(self, *rows: Job) -> None:
        self.rows = {row.key: row for row in rows}

    def ensure(self) -> object:
        return None

    def read_all(self) -> tuple[int, list[Job]]:
        return 1, list(self.rows.values())

    def read(self, keys: Iterable[JobKey]) -> list[Job]:
        return [self.rows[key] for key in keys]

    def transact(self, changes: Sequence[tuple[Job, Transition]]) -> list[Job | None]:
        for job, transition in changes:
            self.rows[job.key] = transition(self.rows[job.key])
        return [self.rows[job.key] for job, _ in changes]

    def flush_watermarks(self, raised: Sequence[tuple[Job, int]]) -> list[Job | None]:
        raise NotImplementedError

    def collect(self, dropped_ttl_s: float) -> int:
        raise NotImplementedError


async def test_a_runner_that_was_overtaken_leaves_the_iterations_of_the_newer_one_alone() -> None:
    log, board = _Log(job_row("a"), job_row("b")), _board()
    elder = BoardLog(board, log, epoch=4)
    await elder.take_over()
    # It sleeps; the next one takes over and begins, and it hears of that before it hears that it is fenced.
    for row in list(log.rows.values()):
        log.rows[row.key] = start_iteration(0, ts_of(10), runner=5, at=1)(adopt_job(5)(row))
    board.apply(log.rows.values())
    await elder.settle()
    assert {row.state for row in log.rows.values()} == {JobState.RUNNING}
    assert {row.status.runner for row in log.rows.values()} == {5}


async def test_a_runner_adopts_what_one_before_it_was_busy_with() -> None:
    log, board = _Log(job_row("a")), _board()
    younger = BoardLog(board, log, epoch=5)
    await younger.take_over()
    (row,) = log.rows.values()
    log.rows[row.key] = start_iteration(0, ts_of(10), runner=4, at=1)(row)
    board.apply(log.rows.values())
    await younger.settle()
    assert (log.rows[row.key].state, log.rows[row.key].status.runner) == (JobState.COMPLETED, 5)
