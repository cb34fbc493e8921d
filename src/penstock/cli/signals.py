"""Services in the foreground: they run until a signal asks them to end."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from penstock.eventloop import shared_loop

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["run_until_signalled"]


def run_until_signalled(work: Coroutine[Any, Any, None]) -> None:
    """Run it to its end. A signal cancels it, and it may take its time to end; the next cancels that too."""
    started: Future[asyncio.Task[None]] = Future()

    async def run() -> None:
        task = asyncio.create_task(work)
        started.set_result(task)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    loop = shared_loop()
    running = asyncio.run_coroutine_threadsafe(run(), loop)
    task = started.result()
    with _on_signals(lambda: loop.call_soon_threadsafe(task.cancel)):
        running.result()


@contextlib.contextmanager
def _on_signals(call: Callable[[], object]) -> Iterator[None]:
    def handle(_number: int, _frame: "FrameType | None") -> None:
        call()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
