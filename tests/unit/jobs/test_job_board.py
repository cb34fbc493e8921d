"""What the board does when rows and ends of iterations come in an unlucky order."""

import pytest

from penstock.jobs.job import ErrorCode, JobState
from support.boardstage import BoardStage, spec_of, ts_of


@pytest.fixture
def stage() -> BoardStage:
    """A job `a` whose second iteration runs."""
    made = BoardStage()
    made.now = 10.0
    made.commit()
    made.register("a")
    made.deliver()
    made.tick()
    made.end("a")
    made.now = 20.0
    made.commit()
    assert made.tick() == ["shared 10..20 a"]
    made.deliver()
    return made


def test_the_echo_of_a_cancellation_does_not_cancel_the_next_iteration(stage: BoardStage) -> None:
    stage.update("a", spec_of(["own"]), interrupt=True)
    canceled = stage.rows["a"]
    stage.end("a")  # is refused, before the board hears why
    stage.now = 22.0
    assert stage.hurry() == ["own 10..22 a"]  # the row was read again
    stage.board.apply([canceled])
    assert not stage.board.take_canceled()


def test_a_cancellation_that_is_news_ends_the_iteration(stage: BoardStage) -> None:
    stage.update("a", spec_of(["own"]), interrupt=True)
    stage.deliver()
    assert stage.board.take_canceled() == [stage.rows["a"].key]


def test_a_drop_ends_the_iteration_and_nothing_begins_any_more(stage: BoardStage) -> None:
    stage.drop("a")
    assert stage.board.take_canceled() == [stage.rows["a"].key]
    stage.end("a")
    stage.now = 100.0
    assert stage.tick() == []
    assert stage.rows["a"].state is JobState.CANCELED


def test_a_row_that_is_gone_for_a_moment_does_not_let_a_second_iteration_begin(stage: BoardStage) -> None:
    row = stage.rows["a"]
    stage.board.remove([row.key])
    stage.board.apply([row])
    stage.now = 30.0
    assert [each.busy for each in stage.board] == [True]
    assert stage.board.tables[1].plan(stage.look(1), now_ts=ts_of(30), now=30.0).iterations == []
    stage.end("a")
    stage.commit()
    assert stage.tick() == ["shared 20..30 a"]


def test_an_end_that_comes_after_the_next_runner_took_over_changes_nothing(stage: BoardStage) -> None:
    iteration = stage.running["a"]
    before = stage.rows["a"]
    stage.restart()
    stage.board.end(iteration.id, before.key, before, now=20.0)
    assert stage.tick() == ["shared 10..20 a"]


def test_history_is_not_kept_for_a_table_that_is_gone(stage: BoardStage) -> None:
    assert stage.board.list_needed_ts() == {1: ts_of(10)}
    stage.fail("a", ErrorCode.TABLE_GONE)
    assert stage.board.list_needed_ts() == {}
