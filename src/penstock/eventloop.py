"""The one event loop of a process for blocking callers, and tasks, wake-ups and threads on any loop.

gRPC's asyncio runtime polls on behalf of a whole process, so every blocking facade (and an
embedded store started from blocking code) shares this loop instead of starting its own.
"""

import asyncio
import os
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, ParamSpec, TypeVar

from penstock.clock import Clock
from penstock.shares import Shares

T = TypeVar("T")

_lock = threading.Lock()
_state: tuple[int, asyncio.AbstractEventLoop] | None = None


def shared_loop() -> asyncio.AbstractEventLoop:
    """Return the process's loop, starting its thread on first use (and again after a fork)."""
    global _state  # noqa: PLW0603 - one loop per process is the point
    with _lock:
        if _state is None or _state[0] != os.getpid():
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="penstock-io", daemon=True).start()
            _state = (os.getpid(), loop)
        return _state[1]


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the shared loop and wait for its result.

    An interrupt (Ctrl-C) cancels the coroutine and waits until it has unwound.
    """
    loop = shared_loop()
    assert threading.current_thread().name != "penstock-io", (
        "a blocking call on the loop would wait for itself"
    )
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise
    except CancelledError as error:
        raise asyncio.CancelledError from error


P = ParamSpec("P")
R = TypeVar("R")


class TaskScope:
    """Tasks that belong together: the first failure is kept and ends all. After it nothing is started."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self.failure: BaseException | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work beside the other tasks; if it fails, `wait` returns."""
        if self._ended.is_set():
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._settle)

    def _settle(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.end(error)

    def end(self, error: BaseException | None = None) -> None:
        """Let `wait` return, and keep the failure if there is one; the first call counts."""
        if not self._ended.is_set():
            self.failure = error
            self._ended.set()

    async def wait(self) -> None:
        """Wait until a task has failed or `end` was called."""
        await self._ended.wait()

    async def stop(self) -> None:
        """Cancel the running tasks and wait until they have unwound."""
        self._ended.set()
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)


class WakeUp:
    """Wakes one loop when something has changed. A notification while the loop works is not lost."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._notified = asyncio.Event()

    def notify(self) -> None:
        """Let `wait` return, now or at its next call."""
        self._notified.set()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until `notify` was called since the last return, or until the timeout."""
        if not self._notified.is_set():
            await (self._notified.wait() if timeout_s is None else self._wait_for(timeout_s))
        self._notified.clear()

    async def _wait_for(self, timeout_s: float) -> None:
        waits = [
            asyncio.ensure_future(self._notified.wait()),
            asyncio.ensure_future(self._clock.sleep(timeout_s)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


class Notifier:
    """Wakes all waiting tasks when something has changed."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify_all(self) -> None:
        """Let every task in `wait_for` check its condition again."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; it is checked after every `notify_all`."""
        while not condition():
            await self._next.wait()


async def call_in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking call in a thread of its own; for calls of targets, which may take very long.

    The pool of `asyncio.to_thread` is small and is everybody's: the targets of one account could fill it.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="penstock-call")
    called = pool.submit(function, *args, **kwargs)
    pool.shutdown(wait=False)
    return await asyncio.wrap_future(called)


Place = Callable[[], AbstractAsyncContextManager[None]]
"""Holds one of the places of an account during a block."""


class AccountPlaces:
    """Places that the tasks of accounts hold for a while, by `shares`; others wait. For one event loop.

    When a place is free, the account that holds the fewest is first.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def enter(
        self, account: str, *, wait_s: float | None = None, waiting_max: int | None = None
    ) -> None:
        """Wait for a place; call `leave` in the end.

        Raises TimeoutError when none comes within `wait_s`, or more than `waiting_max` of the account wait.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(account, deque())
        waiting.append(turn)
        self._give()
        try:
            if not turn.done() and (waiting_max is None or len(waiting) <= waiting_max):
                async with asyncio.timeout(wait_s):
                    await turn
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if not self._withdraw(account, turn):
                self.leave(account)
            raise
        if self._withdraw(account, turn):
            raise TimeoutError

    def leave(self, account: str) -> None:
        """Give a place back."""
        self._held[account] -= 1
        if not self._held[account]:
            del self._held[account]
        self._give()

    @asynccontextmanager
    async def hold(self, account: str) -> AsyncIterator[None]:
        """Hold a place during the block."""
        await self.enter(account)
        try:
            yield
        finally:
            self.leave(account)

    def _withdraw(self, account: str, turn: "asyncio.Future[None]") -> bool:
        """Let a task wait no longer; return False when it has a place already."""
        if turn.done() and not turn.cancelled():
            return False
        waiting = self._waiting[account]
        waiting.remove(turn)
        if not waiting:
            del self._waiting[account]
        return True

    def _give(self) -> None:
        while True:
            total, alone = self._held.total(), len(self._held.keys() | self._waiting.keys()) == 1
            ready = [
                account
                for account, turns in self._waiting.items()
                if self._shares.allow(self._held[account], total, alone=alone)
                and any(not turn.cancelled() for turn in turns)
            ]
            if not ready:
                return
            account = min(ready, key=self._held.__getitem__)
            self._held[account] += 1
            turns = self._waiting[account]
            first = next(turn for turn in turns if not turn.cancelled())
            turns.remove(first)
            if not turns:
                del self._waiting[account]
            first.set_result(None)


class ThreadRunner:
    """Runs blocking calls beside the event loop, at most `count` at a time.

    With `place`, each call holds one of the places of its account too.

    A cancelled call is awaited nevertheless: when the caller continues, nothing of the call happens later.
    """

    def __init__(self, count: int, name: str, *, place: Place | None = None) -> None:
        self._place: Place = place or nullcontext
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function in a thread; return its result, or raise what it raised."""
        async with self._place():
            return await self._call(function, *args, **kwargs)

    async def _call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        submitted = self._pool.submit(function, *args, **kwargs)
        called = asyncio.wrap_future(submitted)
        try:
            return await asyncio.shield(called)
        except asyncio.CancelledError:
            if not submitted.cancel():
                await asyncio.wait([called])
                called.exception()  # retrieved, or asyncio would log it: the caller was cancelled
            raise

    def close(self) -> None:
        """Start no more calls; running ones continue to their end."""
        self._pool.shutdown(wait=False, cancel_futures=True)
