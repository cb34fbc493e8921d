"""Running coroutines side by side, with one error coming out and nothing left behind."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


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
