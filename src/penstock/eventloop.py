"""One event loop per process for blocking callers.

gRPC's asyncio runtime polls on behalf of a whole process, so every blocking facade (and an
embedded store started from blocking code) shares this loop instead of starting its own.

Work that runs beside other work: the first failure is kept and ends everything.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from penstock.clock import Clock

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
    """Tasks that belong together. Nothing is started after a failure or a stop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self.failure: BaseException | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it beside the others; if it fails, `ended` returns."""
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
        """Let `ended` return, with the failure if there is one; the first call counts."""
        if not self._ended.is_set():
            self.failure = error
            self._ended.set()

    async def ended(self) -> None:
        """Return once something has failed or `end` was called."""
        await self._ended.wait()

    async def stop(self) -> None:
        """Cancel what still runs and return when it has unwound."""
        self._ended.set()
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)


class WakeUp:
    """Tells one loop that something has changed. What is told while it works is not lost."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told = asyncio.Event()

    def tell(self) -> None:
        """Something has changed."""
        self._told.set()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Return when something has changed since the last return, or when time is up."""
        if not self._told.is_set():
            await (self._told.wait() if timeout_s is None else self._wait_for(timeout_s))
        self._told.clear()

    async def _wait_for(self, timeout_s: float) -> None:
        waits = [
            asyncio.ensure_future(self._told.wait()),
            asyncio.ensure_future(self._clock.sleep(timeout_s)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()


class Notifier:
    """Tells everybody who waits that something has changed."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def beat(self) -> None:
        """Something has changed."""
        self._next.set()
        self._next = asyncio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when a condition holds; it is looked at after every beat."""
        while not holds():
            await self._next.wait()


class ThreadRunner:
    """Blocking calls beside the event loop, so many at a time.

    A call that was cancelled is awaited nevertheless: when the caller goes on, nothing of it happens later.
    """

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it in a thread and give its result, or raise what it raised."""
        submitted = self._pool.submit(function, *args, **kwargs)
        called = asyncio.wrap_future(submitted)
        try:
            return await asyncio.shield(called)
        except asyncio.CancelledError:
            if not submitted.cancel():
                await asyncio.wait([called])
                called.exception()  # the caller has gone: a failure is told to nobody
            raise

    def close(self) -> None:
        """Start no more; what runs goes on to its end."""
        self._pool.shutdown(wait=False, cancel_futures=True)
