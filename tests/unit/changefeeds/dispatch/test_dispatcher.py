import pytest

from penstock.changefeeds.dispatcher import (
    Dispatcher,
    Dispatchers,
    DispatcherState,
    Drain,
    Horizon,
    Read,
    ReadPace,
)
from penstock.changefeeds.sinks.sink import DmlEvent
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


def paced(interval: int) -> ReadPace:
    return ReadPace(interval, flushes=True)


def read_everything(it: Dispatcher, upto: int, pace: ReadPace) -> DmlEvent:
    asked = it.next_step(Horizon(upto, upto), pace)
    assert isinstance(asked, Read)
    event = it.finish_read(asked, piece(asked.start, Position(upto)), pace=pace)
    assert event is not None
    it.wake()
    return event


def test_one_that_has_read_everything_waits_for_the_next_interval() -> None:
    it = Dispatcher(SPEC, Position(10))
    event = read_everything(it, 50, paced(1))
    assert event.flush
    event.post_flush()
    assert it.next_step(Horizon(60, 60), paced(1)) is None
    assert it.next_step(Horizon(60, 60), paced(2)) == Read(Position(50), 60)


def test_one_that_has_read_everything_waits_for_its_file() -> None:
    it = Dispatcher(SPEC, Position(10))
    event = read_everything(it, 50, paced(1))
    assert it.next_step(Horizon(60, 60), paced(2)) is None
    event.post_flush()
    assert it.next_step(Horizon(60, 60), paced(2)) == Read(Position(50), 60)


def test_where_the_spool_collects_files_it_does_not_wait_for_them() -> None:
    it = Dispatcher(SPEC, Position(10))
    event = read_everything(it, 50, ReadPace(1, flushes=False))
    assert not event.flush
    assert it.next_step(Horizon(60, 60), ReadPace(2, flushes=False)) == Read(Position(50), 60)


def test_one_that_is_behind_does_not_wait() -> None:
    it = Dispatcher(SPEC, Position(10))
    asked = it.next_step(Horizon(50, 50), paced(1))
    assert isinstance(asked, Read)
    event = it.finish_read(asked, piece(asked.start, Position(30)), pace=paced(1))
    assert event is not None
    assert not event.flush
    it.wake()
    assert it.next_step(Horizon(50, 50), paced(1)) == Read(Position(30), 50)


def test_a_ddl_does_not_wait_for_an_interval() -> None:
    it = Dispatcher(SPEC, Position(10))
    read_everything(it, 50, paced(1))
    assert it.next_step(Horizon(60, 60, ddl_ts=58), paced(1)) == Read(Position(50), 57)


def test_idle_dispatchers_that_wake_read_together_in_the_next_interval() -> None:
    all_of_them = Dispatchers()
    it = Dispatcher(SPEC, Position(10))
    all_of_them.add([it])
    read_everything(it, 50, paced(1)).post_flush()
    all_of_them.rest(it)
    assert all_of_them.wake(1, 55, paced(7)) == [it]
    assert it.next_step(Horizon(60, 60), paced(7)) is None
    assert it.next_step(Horizon(60, 60), paced(8)) == Read(Position(55), 60)


@pytest.mark.parametrize(
    ("flush_interval_s", "now", "expected"),
    [
        (2.0, 9.9, ReadPace(4, flushes=True)),
        (2.0, 10.0, ReadPace(5, flushes=True)),
        (5.0, 10.0, ReadPace(2, flushes=True)),
        (60.0, 14.9, ReadPace(2, flushes=False)),
    ],
)
def test_intervals_begin_at_the_same_moment_for_all(
    flush_interval_s: float, now: float, expected: ReadPace
) -> None:
    assert ReadPace.at(now, flush_interval_s) == expected
