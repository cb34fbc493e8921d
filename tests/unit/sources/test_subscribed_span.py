"""When a span's resolved timestamp is told."""

from support.feeds import a_span, a_task


def test_the_start_is_told_once_and_only_when_every_part_is_initialized() -> None:
    span = a_span(start_ts=50)
    left, right = a_task(span, 1, b"a", b"m").locked, a_task(span, 2, b"m", b"z").locked
    span.initialize(left)
    assert span.advance(0.0) is None
    span.initialize(right)
    assert span.advance(0.0) == 50
    assert span.advance(0.0) is None


def test_the_span_is_as_far_as_its_slowest_part() -> None:
    span = a_span(start_ts=1)
    left, right = a_task(span, 1, b"a", b"m").locked, a_task(span, 2, b"m", b"z").locked
    for part in (left, right):
        span.initialize(part)
    span.raise_resolved(left, 10)
    assert span.advance(0.0) == 1
    span.raise_resolved(right, 7)
    assert span.advance(0.0) == 7
    span.raise_resolved(right, 12)
    assert span.advance(0.0) == 10


def test_a_part_ignores_timestamps_before_its_scan_has_ended_and_those_that_go_back() -> None:
    span = a_span(start_ts=1)
    part = a_task(span).locked
    span.raise_resolved(part, 8)
    assert part.resolved_ts == 1
    span.initialize(part)
    span.raise_resolved(part, 10)
    span.raise_resolved(part, 9)
    assert part.resolved_ts == 10
    assert span.advance(0.0) == 10


def test_with_an_interval_every_part_is_looked_at_but_not_more_often() -> None:
    span = a_span(start_ts=1, interval_s=0.1)
    left, right = a_task(span, 1, b"a", b"m").locked, a_task(span, 2, b"m", b"z").locked
    for part in (left, right):
        span.initialize(part)
        span.range_lock.update(part, 300)
    assert span.range_lock.heap_min_ts() == 300
    right.resolved_ts = 200  # the heap does not know
    assert span.advance(0.0) == 200
    span.raise_resolved(right, 250)
    assert span.advance(0.05) is None
    assert span.advance(0.11) == 250


def test_the_time_of_the_last_move_is_kept() -> None:
    span = a_span(start_ts=1)
    part = a_task(span).locked
    span.initialize(part)
    assert span.advance(3.0) == 1
    assert span.moved_at == 3.0
    assert span.advance(4.0) is None
    assert span.moved_at == 3.0
