"""Which file is due, why, and what is in it."""

from dataclasses import replace
from itertools import count

import pytest

from penstock.changefeeds.engines.engine import Chunk
from penstock.changefeeds.sinks.sink import DmlEvent, DrainMarker
from penstock.changefeeds.sinks.storage.buffers import Buffers, FileTask, FlushReason, SizeEstimator
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.slices import Position
from support.sinkparts import SCHEMA, dispatcher, slice_of

_numbers = count()


def chunk(nbytes: int, segment: int = 1) -> Chunk:
    return Chunk(segment, next(_numbers), Position(1), Position(2), 1, nbytes)


def buffers(file_size: int = 100, interval_s: float = 5.0, ratios: SizeEstimator | None = None) -> Buffers:
    return Buffers(file_size, interval_s, ratios or SizeEstimator(file_size))


def add(
    to: Buffers,
    number: int,
    *sizes: int,
    at: float = 0.0,
    schema: SchemaVersion = SCHEMA,
    segment: int = 1,
) -> DmlEvent:
    event = DmlEvent(slice_of(number, 5, sum(sizes), schema=schema))
    to.add(event, [chunk(size, segment) for size in sizes], at)
    return event


def marker(number: int) -> DrainMarker:
    return DrainMarker(dispatcher(number), 9, at=0.0)


def take(of: Buffers) -> list[FileTask]:
    tasks = of.take(1000, 1 << 40)
    for task in tasks:
        of.finish_begin(task.dispatcher.id)
    return tasks


def sizes(task: FileTask) -> list[int]:
    return [each.nbytes for each in task.chunks]


def test_a_file_is_due_when_it_has_its_size() -> None:
    held = buffers()
    add(held, 1, 60)
    assert take(held) == []
    add(held, 1, 40)
    (task,) = take(held)
    assert (sizes(task), task.reason) == ([60, 40], FlushReason.SIZE)


def test_a_file_stops_short_when_going_on_would_miss_the_size_by_more() -> None:
    held = buffers()
    add(held, 1, 90, 30)
    (task,) = take(held)
    assert (sizes(task), task.reason) == ([90], FlushReason.SIZE)


def test_a_file_goes_on_when_stopping_would_miss_the_size_by_more() -> None:
    held = buffers()
    add(held, 1, 80, 30)
    (task,) = take(held)
    assert sizes(task) == [80, 30]


def test_a_chunk_larger_than_a_file_is_a_file_by_itself() -> None:
    held = buffers()
    add(held, 1, 10, 500)
    (task,) = take(held)
    assert (sizes(task), task.reason) == ([10], FlushReason.SIZE)
    held.finish(task)
    (task,) = take(held)
    assert (sizes(task), task.reason) == ([500], FlushReason.SIZE)


def test_a_dispatcher_has_one_file_under_way() -> None:
    held = buffers()
    add(held, 1, 100, 100)
    (task,) = take(held)
    assert take(held) == []
    held.finish(task)
    assert len(take(held)) == 1


def test_dispatchers_that_are_due_take_turns() -> None:
    held = buffers()
    add(held, 1, 100, 100)
    add(held, 2, 100)
    (first,) = held.take(1, 1 << 40)
    held.finish_begin("1")
    held.finish(first)
    assert [held.take(1, 1 << 40)[0].dispatcher.id for _ in range(2)] == ["2", "1"]


def test_a_job_ends_with_the_file_that_fills_it() -> None:
    held = buffers()
    for number in range(5):
        add(held, number, 100)
    assert len(held.take(1000, 250)) == 3
    assert len(held.take(1, 1 << 40)) == 1


def test_a_file_is_due_at_the_end_of_the_interval_in_which_its_oldest_row_arrived() -> None:
    held = buffers()
    add(held, 1, 10, at=0.0)
    add(held, 1, 10, at=4.0)
    held.tick(4.9)
    assert take(held) == []
    assert held.next_deadline() == 5.0
    held.tick(5.0)
    (task,) = take(held)
    assert (sizes(task), task.reason) == ([10, 10], FlushReason.INTERVAL)
    add(held, 1, 10, at=6.0)
    held.finish(task)
    held.tick(9.9)
    assert take(held) == []
    held.tick(10.0)
    assert len(take(held)) == 1


@pytest.mark.parametrize("interval_s", [0.5, 5.0, 60.0, 600.0])
def test_quiet_dispatchers_are_due_together_whatever_the_interval_and_none_waits_longer(
    interval_s: float,
) -> None:
    held = buffers(file_size=1000, interval_s=interval_s)
    arrived = {number: interval_s * (7 + number / 100) for number in range(1, 100)}
    for number, at in arrived.items():
        add(held, number, 1, at=at)
    deadline = held.next_deadline()
    assert deadline == 8 * interval_s
    held.tick(deadline - 0.01)
    assert take(held) == []
    held.tick(deadline)
    assert len(take(held)) == len(arrived)
    assert all(deadline - at <= interval_s for at in arrived.values())


def test_a_dispatcher_of_the_next_interval_is_not_swept_along() -> None:
    held = buffers()
    add(held, 1, 10, at=4.9)
    add(held, 2, 10, at=5.0)
    held.tick(5.0)
    assert [task.dispatcher.id for task in take(held)] == ["1"]


def test_what_a_file_by_size_leaves_behind_has_the_age_of_its_own_rows() -> None:
    held = buffers()
    add(held, 1, 50, at=3.0)
    add(held, 1, 50, 20, at=6.0)
    (task,) = take(held)
    held.finish(task)
    held.tick(5.0)
    assert take(held) == []
    held.tick(10.0)
    (task,) = take(held)
    assert (sizes(task), task.reason) == ([20], FlushReason.INTERVAL)


def test_a_file_that_waits_for_its_turn_goes_on_collecting() -> None:
    held = buffers()
    add(held, 1, 10, at=0.0)
    held.tick(5.0)
    add(held, 1, 30, at=5.1)
    (task,) = take(held)
    assert sizes(task) == [10, 30]


def test_a_row_that_arrived_earlier_and_was_encoded_later_has_its_own_deadline() -> None:
    held = buffers()
    add(held, 1, 10, at=6.0)
    add(held, 2, 10, at=1.0)
    assert held.next_deadline() == 5.0


def test_a_marker_makes_its_dispatcher_due_and_no_other() -> None:
    held = buffers()
    add(held, 1, 10)
    add(held, 2, 10)
    drain = marker(1)
    assert not held.mark(drain, "1")
    (task,) = take(held)
    assert (task.dispatcher.id, task.reason) == ("1", FlushReason.DDL)
    assert task.waiting[-1] is drain


def test_a_marker_with_nothing_before_it_is_done() -> None:
    held = buffers()
    assert held.mark(marker(1), "1")
    assert held.active == 0


def test_a_marker_waits_for_the_file_under_way() -> None:
    held = buffers()
    event = add(held, 1, 100)
    (task,) = take(held)
    drain = marker(1)
    assert not held.mark(drain, "1")
    assert task.waiting == [event, drain]


def test_a_marker_comes_after_all_files_before_it() -> None:
    held = buffers()
    event = add(held, 1, 100, 100, 30)
    held.mark(marker(1), "1")
    reasons = []
    for _ in range(3):
        (task,) = take(held)
        reasons.append((task.reason, task.waiting))
        held.finish(task)
    assert [reason for reason, _ in reasons] == [FlushReason.SIZE, FlushReason.SIZE, FlushReason.DDL]
    assert [len(waiting) for _, waiting in reasons] == [0, 0, 2]
    assert reasons[2][1][0] is event
    assert held.active == 0


def test_a_file_does_not_go_across_a_marker() -> None:
    held = buffers()
    add(held, 1, 10)
    held.mark(marker(1), "1")
    later = add(held, 1, 10)
    (task,) = take(held)
    assert sizes(task) == [10]
    assert later not in task.waiting
    held.finish(task)
    assert take(held) == []  # nothing asks for the rest yet
    assert held.active == 1


def test_rows_of_two_versions_are_never_in_one_file() -> None:
    held = buffers()
    newer = replace(SCHEMA, since_ts=7, version=2)
    newest = replace(SCHEMA, since_ts=8, version=3)
    add(held, 1, 10)
    add(held, 1, 10, schema=newer)
    add(held, 1, 10, schema=newest)
    for schema in (SCHEMA, newer):
        (task,) = take(held)
        assert (task.schema, task.reason) == (schema, FlushReason.DDL)
        held.finish(task)
    assert take(held) == []


def test_a_version_after_a_marker_is_one_break_and_then_none() -> None:
    held = buffers()
    add(held, 1, 10)
    held.mark(marker(1), "1")
    add(held, 1, 10, schema=replace(SCHEMA, since_ts=7, version=2))
    (task,) = take(held)
    held.finish(task)
    assert take(held) == []


def test_close_makes_everything_due_now_and_later() -> None:
    held = buffers()
    add(held, 1, 90, 30)
    add(held, 2, 10)
    held.flush()
    tasks = take(held)
    assert [task.reason for task in tasks] == [FlushReason.SIZE, FlushReason.CLOSE]
    held.finish(tasks[0])
    assert [task.reason for task in take(held)] == [FlushReason.CLOSE]
    add(held, 3, 10)
    assert [task.reason for task in take(held)] == [FlushReason.CLOSE]


def test_a_full_spool_is_relieved_of_the_largest_files_first() -> None:
    held = buffers()
    for number, size in enumerate([10, 50, 30, 20]):
        add(held, number, size)
    assert held.resting_bytes == 110
    held.relieve(40)
    assert held.resting_bytes == 30
    tasks = take(held)
    assert [(sizes(task), task.reason) for task in tasks] == [
        ([50], FlushReason.QUOTA),
        ([30], FlushReason.QUOTA),
    ]


def test_relief_counts_what_is_due_already() -> None:
    held = buffers()
    add(held, 1, 100)
    add(held, 2, 10)
    held.relieve(20)
    assert [task.dispatcher.id for task in take(held)] == ["1"]


def test_a_segment_is_freed_by_writing_what_still_holds_it() -> None:
    held = buffers()
    add(held, 1, 10, segment=1)
    add(held, 2, 10, segment=2)
    held.unpin({1})
    assert [task.dispatcher.id for task in take(held)] == ["1"]


def test_a_dispatcher_is_active_from_its_first_chunk_to_its_last_file() -> None:
    held = buffers()
    assert held.active == 0
    add(held, 1, 100)
    assert held.active == 1
    (task,) = take(held)
    assert held.active == 1
    held.finish(task)
    assert held.active == 0


def test_what_a_dispatcher_has_in_no_file_is_dropped() -> None:
    held = buffers()
    add(held, 1, 100, 20)
    (task,) = take(held)
    drain = marker(1)
    held.mark(drain, "1")
    chunks, direct, waiting = held.drop("1")
    assert [each.nbytes for each in chunks] == [20]
    assert direct == (0, 0)
    assert waiting[-1] is drain
    assert held.is_writing("1")
    held.finish(task)
    assert held.active == 0
    assert take(held) == []


def test_a_dispatcher_that_was_due_is_dropped_too() -> None:
    held = buffers()
    add(held, 1, 100)
    held.drop("1")
    assert take(held) == []
    assert (held.active, held.resting_bytes) == (0, 0)
    held.tick(100.0)
    assert held.next_deadline() is None


def test_a_file_whose_bytes_shrink_takes_more_chunks() -> None:
    ratios = SizeEstimator(100)
    for _ in range(8):
        ratios.learn("1", 100, 25)
    held = buffers(ratios=ratios)
    add(held, 1, *[20] * 10)
    assert take(held) == []
    add(held, 1, *[20] * 11)
    (task,) = take(held)
    assert 380 <= task.nbytes <= 420


def test_a_version_that_comes_while_the_last_file_of_another_is_under_way_is_no_break() -> None:
    held = buffers()
    add(held, 1, 100)
    (task,) = take(held)
    add(held, 1, 10, schema=replace(SCHEMA, since_ts=7, version=2))
    held.finish(task)
    assert take(held) == []
