"""How many requests of an account are worked on at a time, and what becomes of the others."""

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.api.middleware import ConcurrencyLimit
from penstock.api.security import Caller
from penstock.clock import SYSTEM
from penstock.shares import Shares


class Hanging:
    """An application whose requests end when `release` is set; it counts those that it works on."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.running: list[str] = []

    async def __call__(self, scope: Any, _receive: Any, send: Any) -> None:
        caller = scope["state"]["caller"]
        self.running.append(caller.name if caller else "nobody")
        await self.release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})


def _ask(limit: ConcurrencyLimit, account: str | None) -> "asyncio.Task[int]":
    async def ask() -> int:
        statuses: list[int] = []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        caller = None if account is None else Caller(account, admin=False)
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "state": {"caller": caller}}
        await limit(scope, asyncio.Event().wait, send)
        return statuses[0]

    return asyncio.create_task(ask())


async def _until(holds: Callable[[], bool]) -> None:
    deadline = SYSTEM.monotonic() + 30
    while not holds():
        assert SYSTEM.monotonic() < deadline
        await SYSTEM.sleep(0.001)


async def test_an_account_alone_gets_all_places_and_another_still_gets_one() -> None:
    app = Hanging()
    limit = ConcurrencyLimit(app, shares=Shares.of(4), wait_s=30)
    mine = [_ask(limit, "ann") for _ in range(9)]
    await _until(lambda: len(app.running) == 4)
    other = [_ask(limit, "bob") for _ in range(2)]
    await _until(lambda: "bob" in app.running)
    assert (app.running.count("ann"), app.running.count("bob")) == (4, 1)
    app.release.set()
    assert await asyncio.gather(*mine, *other) == [200] * 11


async def test_requests_that_wait_too_long_are_refused_and_free_their_places() -> None:
    app = Hanging()
    limit = ConcurrencyLimit(app, shares=Shares.of(1), wait_s=0.01)
    first = _ask(limit, "ann")
    await _until(lambda: app.running == ["ann"])
    assert await asyncio.gather(*(_ask(limit, "ann") for _ in range(3))) == [503] * 3
    app.release.set()
    assert await first == 200
    assert await _ask(limit, "ann") == 200


async def test_only_some_requests_of_an_account_may_wait() -> None:
    app = Hanging()
    limit = ConcurrencyLimit(app, shares=Shares.of(1), wait_s=30)
    asked = [_ask(limit, "ann") for _ in range(20)]
    await _until(lambda: sum(task.done() for task in asked) == 15)
    app.release.set()
    assert sorted(await asyncio.gather(*asked)) == [200] * 5 + [503] * 15


async def test_a_request_that_is_cancelled_gives_its_place_back() -> None:
    app = Hanging()
    limit = ConcurrencyLimit(app, shares=Shares.of(1), wait_s=30)
    first, waiting, last = (_ask(limit, "ann") for _ in range(3))
    await _until(lambda: app.running == ["ann"])
    waiting.cancel()
    first.cancel()
    await _until(lambda: len(app.running) == 2)
    app.release.set()
    assert await last == 200
    assert await _ask(limit, "ann") == 200


async def test_requests_without_a_token_hold_no_place() -> None:
    app = Hanging()
    limit = ConcurrencyLimit(app, shares=Shares.of(1), wait_s=30)
    asked = [_ask(limit, None) for _ in range(3)]
    await _until(lambda: app.running == ["nobody"] * 3)
    app.release.set()
    assert await asyncio.gather(*asked) == [200] * 3
