import asyncio

import pytest

from penstock.clock import SYSTEM
from penstock.store.scheduler import Latches


async def spin() -> None:
    for _ in range(5):
        await SYSTEM.sleep(0)


async def test_a_key_is_held_by_one_at_a_time_in_order_of_arrival() -> None:
    latches = Latches()
    order: list[int] = []
    first = await latches.acquire([b"a"])

    async def hold(number: int) -> None:
        ticket = await latches.acquire([b"a"])
        order.append(number)
        await spin()
        ticket.release()

    waiting = [asyncio.ensure_future(hold(number)) for number in range(3)]
    await spin()
    assert order == []
    first.release()
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2]
    assert latches.is_free()


async def test_disjoint_keys_do_not_wait_for_each_other() -> None:
    latches = Latches()
    one = await latches.acquire([b"a", b"b"])
    two = await asyncio.wait_for(latches.acquire([b"c"]), 1)
    one.release()
    two.release()
    assert latches.is_free()


async def test_crossed_orders_of_keys_cannot_block_each_other() -> None:
    latches = Latches()
    done = 0

    async def hold(keys: list[bytes]) -> None:
        nonlocal done
        for _ in range(20):
            ticket = await latches.acquire(keys)
            await spin()
            ticket.release()
            done += 1

    await asyncio.wait_for(
        asyncio.gather(hold([b"a", b"b"]), hold([b"b", b"a"]), hold([b"b", b"c", b"a"]), hold([b"c", b"c"])),
        10,
    )
    assert done == 80
    assert latches.is_free()


async def test_a_cancelled_wait_gives_its_place_up() -> None:
    latches = Latches()
    first = await latches.acquire([b"a"])
    second = asyncio.ensure_future(latches.acquire([b"a", b"b"]))
    third = asyncio.ensure_future(latches.acquire([b"b"]))
    await spin()
    assert not third.done()
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    (await asyncio.wait_for(third, 1)).release()
    first.release()
    assert latches.is_free()
