import pytest

from penstock.changefeeds.dispatcher import Dispatcher, DispatcherState, Drain, Horizon, Read
from penstock.follow.slices import Position, Slice, TableSpan
from support.ddlevents import table_schema

SPEC = TableSpan("1", 1)


def piece(start: Position, end: Position) -> Slice:
    return Slice(dispatcher=SPEC, schema=table_schema(1), start=start, end=end, parts=(), rows=1, nbytes=1)


def test_it_reads_what_changed_and_waits_until_it_is_woken() -> None:
    it = Dispatcher(SPEC, Position(10))
    asked = it.next_step(Horizon(50, 40))
    assert asked == Read(Position(10), 50)
    assert it.next_step(Horizon(50, 40)) is None
    event = it.finish_read(asked, piece(Position(10), Position(30)))
    assert it.state is DispatcherState.SENT
    assert it.next_step(Horizon(60, 55)) is None
    assert event is not None
    event.add_post_enqueue(it.wake)
    event.post_enqueue()
    event.post_enqueue()
    assert it.next_step(Horizon(60, 55)) == Read(Position(30), 60)


def test_it_moves_without_reading_where_nothing_changed() -> None:
    it = Dispatcher(SPEC, Position(10))
    assert it.next_step(Horizon(50, 10)) is None
    assert it.position == Position(50)
    assert it.progress.checkpoint_ts == 50


def test_a_read_without_changes_moves_it() -> None:
    it = Dispatcher(SPEC, Position(10))
    asked = it.next_step(Horizon(50, 40))
    assert isinstance(asked, Read)
    assert it.finish_read(asked, None) is None
    assert it.position == Position(50)
    assert it.state is DispatcherState.READY


def test_inside_a_snapshot_it_reads_although_nothing_changed() -> None:
    it = Dispatcher(SPEC, Position(10, b""))
    assert it.next_step(Horizon(9, 5)) is None
    assert it.next_step(Horizon(50, 5)) == Read(Position(10, b""), 50)


def test_it_stops_before_a_ddl_and_drains_when_it_is_there() -> None:
    it = Dispatcher(SPEC, Position(10))
    asked = it.next_step(Horizon(50, 50, ddl_ts=30))
    assert asked == Read(Position(10), 29)
    event = it.finish_read(asked, piece(Position(10), Position(29)))
    assert event is not None
    it.wake()
    assert it.next_step(Horizon(50, 50, ddl_ts=30)) == Drain(30)
    assert it.next_step(Horizon(50, 50, ddl_ts=30)) is None
    event.post_flush()
    it.finish_drain()
    assert it.state is DispatcherState.WAITING
    assert it.next_step(Horizon(50, 50)) is None
    it.pass_ddl()
    assert it.next_step(Horizon(50, 50)) == Read(Position(29), 50)


def test_it_does_not_drain_while_there_may_be_changes_before_the_ddl() -> None:
    it = Dispatcher(SPEC, Position(10))
    assert it.next_step(Horizon(20, 5, ddl_ts=30)) is None
    assert it.position == Position(20)
    assert it.state is DispatcherState.READY


def test_a_drain_that_left_something_behind_is_found_out() -> None:
    it = Dispatcher(SPEC, Position(10))
    asked = it.next_step(Horizon(50, 50, ddl_ts=30))
    assert isinstance(asked, Read)
    it.finish_read(asked, piece(Position(10), Position(29)))
    it.wake()
    assert it.next_step(Horizon(50, 50, ddl_ts=30)) == Drain(30)
    with pytest.raises(AssertionError, match="not everything"):
        it.finish_drain()


def test_a_slice_past_what_was_asked_for_is_found_out() -> None:
    it = Dispatcher(SPEC, Position(10))
    asked = it.next_step(Horizon(50, 50, ddl_ts=30))
    assert isinstance(asked, Read)
    with pytest.raises(AssertionError, match="past 29"):
        it.finish_read(asked, piece(Position(10), Position(30)))


@pytest.mark.parametrize("late", [Dispatcher.wake, Dispatcher.finish_drain, Dispatcher.pass_ddl])
def test_one_that_has_ended_stays_so(late) -> None:
    it = Dispatcher(SPEC, Position(10))
    it.end()
    late(it)
    assert it.state is DispatcherState.ENDED
    assert it.next_step(Horizon(50, 50)) is None
