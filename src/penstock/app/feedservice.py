"""`penstock changefeed run`: changefeeds in the foreground, on Spark."""

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from penstock.clock import SYSTEM
from penstock.eventloop import shared_loop
from penstock.kv import AsyncClient
from penstock.settings import Settings
from penstock.sink.feeds.kvfeedstore import Feeds
from penstock.sink.feeds.runner import FeedRunner, OpenEngine, create_configured
from penstock.spark.executorsettings import for_executors
from penstock.spark.session import build_session
from penstock.spark.sinkengine import spark_engines

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["serve"]


def serve(settings: Settings, *, until_idle: bool = False) -> None:
    """Run changefeeds until SIGTERM or SIGINT, then write what was read and stop.

    Those of the settings are created when they are not there. Prints one line of JSON when it is ready. With
    `until_idle` it also ends once every changefeed has finished, failed or is stopped.
    """
    shared = for_executors(settings)
    spark = build_session(shared, app_name="penstock-changefeeds")
    try:
        _run_until_signalled(_run(shared, spark_engines(spark), until_idle=until_idle))
    finally:
        spark.stop()


async def _run(settings: Settings, open_engine: OpenEngine, *, until_idle: bool) -> None:
    owner = f"{socket.gethostname()}-{os.getpid()}-{SYSTEM.unique_id()[:8]}"
    async with await AsyncClient.connect(settings.pd_addrs, tls=settings.tls, settings=settings.kv) as client:
        feeds = Feeds(client)
        await create_configured(feeds, settings, now_ts=await client.timestamp())
        with contextlib.suppress(BrokenPipeError):  # nobody has to read it
            print(json.dumps({"changefeeds": [each.info.id for each in await feeds.list()]}), flush=True)
        await FeedRunner(settings, feeds, open_engine, owner=owner).run(until_idle=until_idle)


def _run_until_signalled(work: Coroutine[Any, Any, None]) -> None:
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
