"""What a client knows of the safe point, and for how long it relies on it."""

import pytest

from penstock.clock import TS_MAX
from penstock.errors import Invalid, Unavailable
from penstock.kv.scope import SafePoint
from penstock.settings import KvSettings


class Scripted:
    """A placement driver and a clock in one."""

    def __init__(self) -> None:
        self.ts = 100
        self.asked = 0
        self.now = 0.0
        self.down = False

    async def get_gc_safe_point(self) -> int:
        self.asked += 1
        if self.down:
            raise Unavailable("no placement driver")
        return self.ts

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def safe_point(world: Scripted) -> SafePoint:
    return SafePoint(world, settings=KvSettings(safe_point_refresh_ms=1000), clock=world)


async def test_a_read_below_the_safe_point_is_refused_and_one_at_it_is_not() -> None:
    point = safe_point(Scripted())
    await point.check(100)
    with pytest.raises(Invalid, match="older than the safe point"):
        await point.check(99)


async def test_what_is_known_is_relied_on_for_twice_the_refresh_time() -> None:
    world = Scripted()
    point = safe_point(world)
    await point.check(100)
    world.ts, world.now = 200, 2.0
    await point.check(100)
    assert world.asked == 1
    world.now = 2.01
    with pytest.raises(Invalid):
        await point.check(100)


async def test_an_old_answer_is_not_relied_on_when_the_placement_driver_is_away() -> None:
    world = Scripted()
    point = safe_point(world)
    await point.check(100)
    world.down, world.now = True, 3.0
    with pytest.raises(Unavailable):
        await point.check(100)


async def test_the_newest_value_needs_no_safe_point() -> None:
    world = Scripted()
    world.down = True
    await safe_point(world).check(TS_MAX)
    assert world.asked == 0


async def test_who_publishes_waits_until_every_reader_must_know() -> None:
    world = Scripted()
    point, reader = safe_point(world), safe_point(world)
    await reader.check(100)
    world.ts = 300
    await point.wait_until_known(300)
    world.now += 0.01
    with pytest.raises(Invalid):
        await reader.check(299)
    with pytest.raises(Invalid):
        await point.check(299)
