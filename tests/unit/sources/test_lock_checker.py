"""When locks are resolved because they hold a span back."""

import asyncio

import pytest

from penstock import metrics
from penstock.clock import compose_ts
from penstock.errors import Unavailable
from penstock.sources.tikv.lock_checker import AGAIN_AFTER_S, TASKS_MAX, LockChecker, resolve_target
from penstock.sources.tikv.subscription import SubscribedSpan
from penstock.testing.clock import ManualClock
from support.feeds import a_span, a_task

START_MS = 100_000


@pytest.mark.parametrize(
    ("initialized", "still_ms", "behind_ms", "wanted"),
    [
        (True, 4_000, 4_000, True),
        (False, 9_000, 9_000, False),
        (True, 3_999, 9_000, False),
        (True, 9_000, 3_999, False),
    ],
)
def test_locks_are_worth_it_when_an_initialized_span_stands_still_and_is_behind(
    initialized: bool, still_ms: int, behind_ms: int, wanted: bool
) -> None:
    target = resolve_target(
        compose_ts(START_MS), initialized=initialized, still_ms=still_ms, now_ms=START_MS + behind_ms
    )
    assert target == (compose_ts(START_MS + 4_000) if wanted else None)


class Checking:
    def __init__(self, *spans: SubscribedSpan) -> None:
        self.clock = ManualClock()
        self.now_ms = START_MS + 60_000
        self.resolved: list[tuple[int, bytes, bytes]] = []
        self.fails = False
        self.checker = LockChecker(lambda: spans, self._resolve, now_ms=lambda: self.now_ms, clock=self.clock)

    async def _resolve(self, ts: int, start: bytes, end: bytes) -> int:
        self.resolved.append((ts, start, end))
        if self.fails:
            raise Unavailable("busy")
        return 1

    async def round(self) -> list[tuple[int, bytes, bytes]]:
        """One look and the work that follows."""
        self.resolved.clear()
        self.checker.check()
        working = asyncio.create_task(self.checker._work())
        while self.checker._queue.qsize():
            await self.clock.sleep(0)
        await self.clock.sleep(0)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        return self.resolved


def a_slow_span() -> SubscribedSpan:
    span = a_span(start_ts=compose_ts(START_MS))
    span.moved_at = -60.0
    for number, (start, end) in enumerate([(b"a", b"m"), (b"m", b"z")]):
        span.initialize(a_task(span, number, start, end).locked)
    return span


async def test_only_the_regions_that_hold_the_span_back_are_resolved_and_not_again_at_once() -> None:
    span = a_slow_span()
    ahead = span.range_lock.locked_ranges()[1]
    ahead.resolved_ts = compose_ts(START_MS + 50_000)
    checking = Checking(span)
    once = [(compose_ts(START_MS + 4_000), b"a", b"m")]
    assert await checking.round() == once
    assert await checking.round() == []
    checking.clock.advance(AGAIN_AFTER_S)
    assert await checking.round() == once


async def test_a_region_that_moved_on_or_was_given_back_meanwhile_is_left_alone() -> None:
    span = a_slow_span()
    left, right = span.range_lock.locked_ranges()
    checking = Checking(span)
    checking.checker.check()
    left.resolved_ts = compose_ts(START_MS + 30_000)
    span.range_lock.unlock(right)
    assert await checking.round() == []


async def test_a_failure_to_resolve_does_not_end_the_checks() -> None:
    checking = Checking(a_slow_span())
    checking.fails = True
    assert len(await checking.round()) == 2
    checking.clock.advance(AGAIN_AFTER_S)
    assert len(await checking.round()) == 2


async def test_tasks_beyond_the_bound_are_dropped_and_counted() -> None:
    span = a_span(start_ts=compose_ts(START_MS))
    span.moved_at = -60.0
    bounds = [b"a%05d" % number for number in range(TASKS_MAX + 3)]
    for number in range(TASKS_MAX + 2):
        locked = a_task(span, number, bounds[number], bounds[number + 1]).locked
        span.initialize(locked)
    for start, end, _ in span.range_lock.holes():
        span.initialize(a_task(span, 5000 + len(start), start, end).locked)
    for part in span.range_lock.locked_ranges()[TASKS_MAX + 1 :]:
        part.resolved_ts = compose_ts(START_MS + 50_000)
    dropped = metrics.PULLER_RESOLVE_LOCK_DROPPED_TOTAL._value.get()
    checking = Checking(span)
    checking.checker.check()
    assert checking.checker._queue.qsize() == TASKS_MAX
    assert metrics.PULLER_RESOLVE_LOCK_DROPPED_TOTAL._value.get() == dropped + 1
