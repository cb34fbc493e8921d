"""Following the job log: rows as they are committed, by a subscription to the keys of the log's table."""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa

from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid, Unavailable
from penstock.jobs.job import Job, JobKey
from penstock.jobs.log.job_log import JobLog
from penstock.jobs.log.job_rows import JobRows
from penstock.settings import Settings
from penstock.sources import KeySpan, SubscriptionClient

T = TypeVar("T")

_CHECK_S = 10.0
_RETRY_S = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogChange:
    """What was committed since the last change: the newest row of each job."""

    rows: tuple[Job, ...]
    removed: tuple[JobKey, ...] = ()
    """The keys of rows that were removed or are damaged."""
    whole: bool = False
    """Whether these are all rows of the log: any other row is gone."""


class LatestRows:
    """The newest row of each job that was not taken yet. Pure; not thread-safe.

    Invariant: each row is given once, and never after a newer row of the same job. The subscription may
    deliver changes again that lie above the resolved timestamp; those are dropped.
    """

    def __init__(self) -> None:
        self._given: dict[JobKey, int] = {}
        self._waiting: dict[JobKey, Job | None] = {}

    def put(self, key: JobKey, commit_ts: int, job: Job | None) -> bool:
        """Keep a change; None: the row is gone. Return whether it is new."""
        if commit_ts <= self._given.get(key, 0):
            return False
        self._given[key] = commit_ts
        self._waiting[key] = job
        return True

    def resolve(self, ts: int) -> None:
        """Forget what was given up to `ts`: those changes do not come again."""
        self._given = {key: at for key, at in self._given.items() if at > ts}

    def take(self) -> LogChange | None:
        """Return all rows that wait; None when there are none."""
        taken, self._waiting = self._waiting, {}
        if not taken:
            return None
        rows = tuple(job for job in taken.values() if job is not None)
        return LogChange(rows, tuple(key for key, job in taken.items() if job is None))


class LogFeed:
    """Yields the committed rows of the log, and all of them again whenever some may have been missed.

    That is when history is gone (the subscription was interrupted for longer than the store keeps it), when
    the subscription failed, or when the table was created again and has another id.
    """

    def __init__(self, log: JobLog, settings: Settings, *, clock: Clock = SYSTEM) -> None:
        self._log = log
        self._settings = settings
        self._clock = clock

    async def follow(self, ts: int) -> AsyncGenerator[LogChange, None]:
        """Yield what is committed after `ts`, until it is closed; wait while the store does not answer."""
        async with self._connect() as puller:
            rows = await self._retry_unavailable(partial(self._log.rows, ts))
            while True:
                if rows is not None:
                    async with self._subscribe(puller, rows, ts) as subscription:
                        while (change := await subscription.next()) is not None:
                            yield change
                        _log.warning("reading the whole job log again", extra={"reason": subscription.broken})
                rows = await self._retry_unavailable(self._log.ensure)
                ts, jobs = await self._retry_unavailable(self._log.read_all)
                yield LogChange(tuple(jobs), whole=True)

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[SubscriptionClient]:
        settings = self._settings
        while True:
            try:
                puller = await SubscriptionClient.connect(
                    settings.pd_addrs,
                    tls=settings.tls,
                    kv=settings.kv,
                    settings=settings.puller,
                    clock=self._clock,
                )
                break
            except Unavailable as error:
                await self._wait(error)
        try:
            yield puller
        finally:
            await puller.close()

    @asynccontextmanager
    async def _subscribe(
        self, puller: SubscriptionClient, rows: JobRows, ts: int
    ) -> "AsyncIterator[_LogSubscription]":
        subscription = _LogSubscription(rows, ts)
        sub_id = await puller.subscribe(
            KeySpan(rows.table.id, *rows.range),
            ts,
            subscription.consume,
            subscription.advance,
            on_failure=lambda error: subscription.end(f"its subscription failed: {error}"),
        )
        watching = asyncio.create_task(self._watch(subscription))
        try:
            yield subscription
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await puller.unsubscribe(sub_id)

    async def _watch(self, subscription: "_LogSubscription") -> None:
        """End the subscription when it may miss a change."""
        since_ts = subscription.resolved_ts
        while True:
            await self._clock.sleep(_CHECK_S)
            upto_ts = subscription.resolved_ts
            reason = await self._retry_unavailable(partial(self._why_broken, subscription.rows, since_ts))
            if reason:
                subscription.end(reason)
                return
            since_ts = upto_ts

    def _why_broken(self, rows: JobRows, since_ts: int) -> str:
        """Return why changes after `since_ts` may be missed; an empty text when they cannot.

        While the store can still be read at that timestamp, nothing after it was collected. So nothing was
        missed at any moment since then at which the subscription may have started again.
        """
        newest = self._log.rows()
        if newest is None or newest.table.id != rows.table.id:
            return "its table has another id"
        try:
            self._log.client.snapshot(since_ts).get(rows.range[0])
        except Invalid:
            return "its history is gone"
        return ""

    async def _retry_unavailable(self, work: Callable[[], T]) -> T:
        """Do blocking work in a thread; repeat it while the store does not answer."""
        while True:
            try:
                return await asyncio.to_thread(work)
            except Unavailable as error:
                await self._wait(error)

    async def _wait(self, error: Unavailable) -> None:
        _log.warning("the job log cannot be read", extra={"error": str(error)})
        await self._clock.sleep(_RETRY_S)


class _LogSubscription:
    """One subscription of the log's rows. Rows come in on threads of the puller and go out on the loop."""

    def __init__(self, rows: JobRows, ts: int) -> None:
        self.rows = rows
        self.resolved_ts = ts
        self.broken = ""
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._latest = LatestRows()
        self._news = asyncio.Event()

    def consume(self, raw: pa.RecordBatch, finish: Callable[[], None]) -> bool:
        """Keep changes. Always returns False: after a restart they are read again from the store."""
        del finish
        columns = (raw.column(name).to_pylist() for name in ("key", "commit_ts", "value"))
        changes = [
            (key, commit_ts, job)
            for place, commit_ts, value in zip(*columns, strict=True)
            for key, job in self.rows.read([(place, value)])
        ]
        with self._lock:
            news = [self._latest.put(*change) for change in changes]
        if any(news):
            self._loop.call_soon_threadsafe(self._news.set)
        return False

    def advance(self, ts: int) -> None:
        """Record that every change up to `ts` has been delivered."""
        with self._lock:
            self._latest.resolve(ts)
            self.resolved_ts = ts

    def end(self, reason: str) -> None:
        """Yield nothing more; called on the loop."""
        self.broken = self.broken or reason
        self._news.set()

    async def next(self) -> LogChange | None:
        """Wait for changes; return None once the subscription has ended."""
        while not self.broken:
            await self._news.wait()
            self._news.clear()
            with self._lock:
                change = self._latest.take()
            if change is not None and not self.broken:
                return change
        return None
