"""One event loop per process for blocking callers.

gRPC's asyncio runtime polls on behalf of a whole process, so every blocking facade (and an
embedded store started from blocking code) shares this loop instead of starting its own.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

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
