import pytest

from penstock.changefeeds.dispatcher import TableProgress
from penstock.changefeeds.sinks.sink import DmlEvent
from penstock.follow.slices import Position, Slice, TableSpan
from support.ddlevents import table_schema

SPEC = TableSpan("1", 1)


def event(start: Position, end: Position) -> DmlEvent:
    schema = table_schema(1)
    return DmlEvent(Slice(dispatcher=SPEC, schema=schema, start=start, end=end, parts=(), rows=1, nbytes=1))


def sent(progress: TableProgress, *ends: int) -> list[DmlEvent]:
    events = []
    for end in ends:
        events.append(event(progress.position, Position(end)))
        progress.add(events[-1])
    return events


def test_the_checkpoint_is_the_position_when_nothing_is_under_way() -> None:
    progress = TableProgress(Position(10))
    assert progress.checkpoint_ts == 10
    progress.skip_to(Position(20))
    progress.skip_to(Position(15))
    assert progress.checkpoint_ts == 20


def test_the_checkpoint_stays_before_the_first_slice_that_is_not_flushed() -> None:
    progress = TableProgress(Position(10))
    first, second, third = sent(progress, 20, 30, 40)
    assert progress.checkpoint_ts == 10
    assert progress.position == Position(40)
    second.post_flush()
    assert progress.checkpoint_ts == 10
    first.post_flush()
    assert progress.checkpoint_ts == 30
    assert not progress.flushed
    third.post_flush()
    assert progress.checkpoint_ts == 40
    assert progress.flushed


def test_an_early_wake_moves_nothing() -> None:
    progress = TableProgress(Position(10))
    (only,) = sent(progress, 20)
    only.post_enqueue()
    assert progress.checkpoint_ts == 10
    only.post_flush()
    only.post_flush()
    assert progress.checkpoint_ts == 20


def test_a_position_inside_a_commit_does_not_count_the_commit() -> None:
    progress = TableProgress(Position(10, b""))
    assert progress.checkpoint_ts == 9
    first = event(Position(10, b""), Position(10, b"m"))
    progress.add(first)
    second = event(Position(10, b"m"), Position(10))
    progress.add(second)
    first.post_flush()
    assert progress.checkpoint_ts == 9
    second.post_flush()
    assert progress.checkpoint_ts == 10


def test_skipping_does_not_hide_what_is_not_flushed() -> None:
    progress = TableProgress(Position(10))
    (only,) = sent(progress, 20)
    progress.skip_to(Position(50))
    assert progress.checkpoint_ts == 10
    only.post_flush()
    assert progress.checkpoint_ts == 50


def test_slices_with_a_gap_or_without_length_are_our_mistake() -> None:
    progress = TableProgress(Position(10))
    with pytest.raises(AssertionError):
        progress.add(event(Position(11), Position(12)))
    with pytest.raises(AssertionError):
        progress.add(event(Position(10), Position(10)))
