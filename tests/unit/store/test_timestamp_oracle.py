import asyncio
from itertools import pairwise

import pytest

from penstock.clock import LOGICAL_MAX, SYSTEM, compose_ts, logical, physical_ms
from penstock.errors import Invalid, Unavailable
from penstock.store.engine import Engine, Mutation
from penstock.store.tso import WINDOW_MS, Ids, Timeline, Tso


class StillClock:
    """A clock whose wall time the test sets."""

    def __init__(self, wall: int) -> None:
        self.wall = wall

    def wall_ms(self) -> int:
        return self.wall

    def monotonic(self) -> float:
        return SYSTEM.monotonic()

    async def sleep(self, seconds: float) -> None:
        await SYSTEM.sleep(seconds)

    def pause(self, seconds: float) -> None:
        SYSTEM.pause(seconds)

    def random(self) -> float:
        return 0.5

    def unique_id(self) -> str:
        return "0" * 32


def test_a_run_of_timestamps_ends_at_the_answer() -> None:
    timeline = Timeline(physical=100, limit_ms=1000)
    first = timeline.take(5, 100)
    second = timeline.take(3, 100)
    assert (first, second) == (compose_ts(100, 5), compose_ts(100, 8))


def test_wall_time_moves_it_on_but_never_back() -> None:
    timeline = Timeline(physical=100, limit_ms=1000)
    timeline.take(5, 100)
    assert timeline.take(1, 250) == compose_ts(250, 1)
    assert timeline.take(1, 180) == compose_ts(250, 2)


def test_a_full_millisecond_flows_over_into_the_next() -> None:
    timeline = Timeline(physical=100, limit_ms=1000)
    assert timeline.take(LOGICAL_MAX, 100) == compose_ts(100, LOGICAL_MAX)
    assert timeline.take(2, 100) == compose_ts(101, 2)


def test_nothing_is_handed_out_past_the_limit() -> None:
    timeline = Timeline(physical=100, limit_ms=102)
    assert timeline.take(1, 101) == compose_ts(101, 1)
    assert timeline.take(1, 102) is None
    assert timeline.take(LOGICAL_MAX, 101) is None
    assert timeline.take(1, 101) == compose_ts(101, 2)


async def test_timestamps_grow_across_a_restart_even_if_the_clock_falls_back(engine: Engine) -> None:
    clock = StillClock(1_000_000)
    before = Tso(engine, clock=clock)
    handed = [await before.allocate(10) for _ in range(5)]
    assert handed == sorted(set(handed))
    assert before.latest() == handed[-1]
    await before.close()
    clock.wall = 900_000
    after = Tso(engine, clock=clock)
    assert await after.current() > handed[-1]
    assert physical_ms(after.latest()) <= 1_000_000 + 2 * WINDOW_MS


async def test_many_callers_at_once_share_no_timestamp(engine: Engine) -> None:
    tso = Tso(engine)
    ends = await asyncio.gather(*(tso.allocate(7) for _ in range(200)))
    taken = sorted(ends)
    assert all(later - earlier >= 7 for earlier, later in pairwise(taken))
    await tso.close()


async def test_too_many_at_once_are_refused(engine: Engine) -> None:
    tso = Tso(engine)
    for count in (0, LOGICAL_MAX + 1):
        with pytest.raises(Invalid, match="ask for 1 to"):
            await tso.allocate(count)
    assert logical(await tso.allocate(LOGICAL_MAX)) == LOGICAL_MAX
    await tso.close()


async def test_a_failing_disk_stops_the_oracle_instead_of_repeating_timestamps(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = StillClock(1_000_000)
    tso = Tso(engine, clock=clock)
    await tso.current()

    async def fail(_: list[Mutation]) -> None:
        raise Unavailable("the disk is gone")

    monkeypatch.setattr(engine, "write", fail)
    clock.wall += 10 * WINDOW_MS
    with pytest.raises(Unavailable, match="disk"):
        await tso.current()
    await tso.close()


async def test_nobody_gets_a_timestamp_whose_limit_is_not_durable_yet(engine: Engine) -> None:
    tso = Tso(engine, clock=StillClock(1_000_000))
    with engine._writing:
        asked = []
        for _ in range(3):
            asked.append(asyncio.ensure_future(tso.current()))
            for _ in range(10):
                await SYSTEM.sleep(0)
        assert not any(one.done() for one in asked)
    assert len(set(await asyncio.gather(*asked))) == 3
    await tso.close()


async def test_ids_are_never_handed_out_twice(engine: Engine) -> None:
    before = Ids(engine)
    used = {*range(first := await before.allocate(3), first + 3), await before.allocate()}
    used |= {await before.allocate() for _ in range(1500)}
    assert len(used) == 1504
    assert await Ids(engine).allocate() > max(used)
    with pytest.raises(Invalid):
        await before.allocate(0)
