"""Tasks of a client: those that go on after the call that started them, and those that run side by side.

Work in the background is tracked, logged when it fails, and bounded at close. `run_all` raises one error and
leaves nothing running.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from penstock.errors import PenstockError

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Background:
    """Holds the running tasks of a client.

    `close` waits for them within a bound, so that the locks of a committed transaction are gone
    when its client is closed. It cancels what is left; readers resolve those locks when they meet them.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._helpers: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T | None]:
        """Run the work; a Penstock error ends it with a log line and the result None."""
        task = asyncio.get_running_loop().create_task(self._run(work, name), name=f"penstock-kv-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def assist(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run work whose result nobody may need any more; `close` cancels it at once. It must not raise."""
        task = asyncio.get_running_loop().create_task(work, name=f"penstock-kv-{name}")
        self._helpers.add(task)
        task.add_done_callback(self._helpers.discard)
        return task

    async def _run(self, work: Coroutine[Any, Any, T], name: str) -> T | None:
        try:
            return await work
        except PenstockError as error:
            _log.warning("background work failed", extra={"work": name, "error": str(error)})
            return None

    async def close(self, timeout_s: float) -> None:
        """Cancel helpers, wait for the tasks up to a bound, then cancel what is left."""
        for task in self._helpers:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)
        for task in self._tasks:
            task.cancel()
        left = self._tasks | self._helpers
        if left:
            await asyncio.gather(*left, return_exceptions=True)


async def run_all(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results in order; the first error cancels the rest, waits for them and is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        await abandon(tasks)
        raise


async def abandon(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until they have unwound, whatever they raise."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
