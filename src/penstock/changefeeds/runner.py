"""The process that runs changefeeds: takes those that nobody runs, and lets go of those that are stopped."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from penstock.changefeeds.changefeed import Changefeed
from penstock.changefeeds.commands import create_feed
from penstock.changefeeds.engines.engine import SinkEngine
from penstock.changefeeds.filters import TableFilter
from penstock.changefeeds.model import ChangefeedInfo, ChangefeedState
from penstock.changefeeds.resume import ChangefeedOptions
from penstock.changefeeds.sinks.storage.cleanup import FileCleanup
from penstock.changefeeds.sinks.storage.options import SinkOptions, sink_options
from penstock.changefeeds.sinks.storage.remote_files import RemoteFiles
from penstock.changefeeds.sinks.storage.sink import StorageSink
from penstock.changefeeds.store import ChangefeedStore, LeasedProgress
from penstock.clock import SYSTEM, Clock
from penstock.errors import Denied, Fenced, Invalid, PenstockError, Unavailable
from penstock.follow.follower import EventStoreSource
from penstock.settings import ChangefeedSettings, Settings, parse_changefeed

_LOOK_S = 1.0
# Of changefeeds that were kept before it was a setting.
_TTL_S = float(ChangefeedSettings.model_fields["lease_ttl_s"].default)

OpenEngine = Callable[[str, SinkOptions], SinkEngine]
"""Makes the engine of a changefeed; called once for each life of its sink."""

_log = logging.getLogger(__name__)


async def create_configured(
    feeds: ChangefeedStore, settings: Settings, *, now_ts: int, clock: Clock = SYSTEM
) -> None:
    """Create the changefeeds of the settings that are not there yet; those that are stay as they are."""
    there = {feed.info.id: feed.info for feed in await feeds.list()}
    for feed_id, wanted in settings.changefeeds.items():
        if feed_id not in there:
            await create_feed(feeds, feed_id, wanted, now_ts=now_ts, clock=clock)
        elif not _is_as_wanted(there[feed_id], wanted):
            _log.warning(
                "a changefeed has other settings than the file says; pause and update it to change them",
                extra={"changefeed": feed_id},
            )


def _is_as_wanted(kept: ChangefeedInfo, wanted: ChangefeedSettings) -> bool:
    """What was kept before a setting was invented has its default."""
    try:
        return parse_changefeed(dict(kept.settings), origin=f"changefeed {kept.id}") == wanted
    except Invalid:
        return False


class ChangefeedRunner:
    """Runs every changefeed that should run and that nobody else runs, until it is cancelled.

    `owner` is unique to this process. Whatever happens to one changefeed is kept as its state and leaves the
    others alone.
    """

    def __init__(
        self,
        settings: Settings,
        feeds: ChangefeedStore,
        open_engine: OpenEngine,
        *,
        owner: str,
        clock: Clock = SYSTEM,
    ) -> None:
        self._settings = settings
        self._feeds = feeds
        self._open_engine = open_engine
        self._owner = owner
        self._clock = clock
        self._running: dict[str, asyncio.Task[None]] = {}
        self._left: dict[str, str] = {}  # why others run them, as it was logged

    async def run(self, *, until_idle: bool = False) -> None:
        """Run them; with `until_idle` return once every one has finished, failed or is stopped."""
        try:
            while True:
                seen = await self._look()
                if until_idle and seen and not self._running:
                    return
                await self._clock.sleep(_LOOK_S)
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _look(self) -> bool:
        """Take those that should run and do not run here; whether they could be looked at."""
        for feed_id in [name for name, task in self._running.items() if task.done()]:
            self._ended(feed_id, self._running.pop(feed_id))
        try:
            found = await self._feeds.list()
        except Unavailable as error:
            _log.warning("the changefeeds cannot be listed", extra={"error": str(error)})
            return False
        for feed in found:
            if feed.runnable and feed.info.id not in self._running:
                running = _RunningFeed(
                    self._settings, self._feeds, self._open_engine, feed.info, self._owner, self._clock
                )
                self._running[feed.info.id] = asyncio.create_task(running.run())
        return True

    def _ended(self, feed_id: str, task: "asyncio.Task[None]") -> None:
        error = task.exception()
        left = self._left.pop(feed_id, "")
        if error is None:
            return
        if isinstance(error, Unavailable):  # somebody else runs it, or the store does not answer
            self._left[feed_id] = str(error)
            if left != str(error):  # it is tried again each time
                facts = {"changefeed": feed_id, "reason": str(error)}
                _log.info("a changefeed is left to others for now", extra=facts)
        else:
            facts = {"changefeed": feed_id, "error": str(error)}
            _log.error(
                "a changefeed ended",
                extra=facts,
                exc_info=None if isinstance(error, PenstockError) else error,
            )


class _RunningFeed:
    """One changefeed for as long as this process has its lease."""

    def __init__(
        self,
        settings: Settings,
        feeds: ChangefeedStore,
        open_engine: OpenEngine,
        info: ChangefeedInfo,
        owner: str,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._feeds = feeds
        self._open_engine = open_engine
        self._feed_id = info.id
        # what else is kept of it may be refused, which is said of a changefeed that one has
        self._ttl_s = float(info.settings.get("lease_ttl_s", _TTL_S))
        self._owner = owner
        self._clock = clock

    async def run(self) -> None:
        """Run it until it has ended, is stopped or changed, or the lease is lost. Raises what ended it."""
        lease = await self._feeds.acquire(self._feed_id, self._owner, ttl_s=self._ttl_s)
        try:
            info = (await lease.feed()).info
            await self._run(lease, info)
        finally:
            await lease.give_up()

    @asynccontextmanager
    async def _told(self, lease: LeasedProgress) -> AsyncIterator[None]:
        """Keep as the changefeed's state what keeps it from being opened."""
        try:
            yield
        except Exception as error:
            state = (
                ChangefeedState.WARNING if isinstance(error, Unavailable | Denied) else ChangefeedState.FAILED
            )
            await lease.keep_state(state, f"{type(error).__name__}: {error}")
            raise

    async def _run(self, lease: LeasedProgress, info: ChangefeedInfo) -> None:
        async with self._told(lease):
            wanted = parse_changefeed(dict(info.settings), origin=f"changefeed {info.id}")
            options = sink_options(wanted)
            carried = feed_options(info, wanted)
            target = options.target.open()
            source = await EventStoreSource.open(
                self._settings,
                info.id,
                flight_tls=self._settings.capture.flight_client_tls,
                clock=self._clock,
            )
        try:
            files = RemoteFiles(target, options, split=bool(wanted.split_rows), clock=self._clock)
            feed = Changefeed(
                info.id,
                carried,
                source=source,
                open_sink=lambda: self._open_sink(files, lease, options),
                files=files,
                progress=lease,
                clock=self._clock,
            )
            cleanup = FileCleanup(target, options, lambda: feed.checkpoint_ts, clock=self._clock)
            await self._drive(lease, info, feed, cleanup)
        finally:
            await source.close()

    def _open_sink(self, files: RemoteFiles, lease: LeasedProgress, options: SinkOptions) -> StorageSink:
        engine = self._open_engine(self._feed_id, options)
        return StorageSink(engine, files, lease, options, changefeed=self._feed_id, clock=self._clock)

    async def _drive(
        self, lease: LeasedProgress, info: ChangefeedInfo, feed: Changefeed, cleanup: FileCleanup
    ) -> None:
        """Run it beside whoever watches it, until one of both ends; the other is ended then."""
        running = asyncio.create_task(feed.run())
        watching = asyncio.create_task(self._watch(lease, info, feed))
        cleaning = asyncio.create_task(cleanup.run())
        try:
            await asyncio.wait((running, watching), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (running, watching, cleaning):
                task.cancel()
            await asyncio.gather(running, watching, cleaning, return_exceptions=True)
        if running.cancelled():
            watching.result()  # raises when the lease was lost
            return
        failure = running.exception()
        if not isinstance(failure, Fenced):
            await lease.keep_state(feed.state, feed.error)
        if failure is not None:
            raise failure

    async def _watch(self, lease: LeasedProgress, info: ChangefeedInfo, feed: Changefeed) -> None:
        """Keep the lease, and tell how the changefeed does; return when it is stopped or changed.

        Raises Fenced when the lease is lost. A store that does not answer is waited for: whoever takes the
        changefeed over meanwhile fences what this process would write.
        """
        told: tuple[ChangefeedState, str] | None = None  # what is kept is of an earlier run
        while True:
            await self._clock.sleep(self._ttl_s / 5)
            try:
                now = feed.state, feed.error
                await (lease.renew() if now == told else lease.keep_state(*now))
                told = now
                if (await lease.feed()).info != info:
                    return
            except Unavailable as error:
                _log.warning(
                    "a changefeed's lease cannot be renewed",
                    extra={"changefeed": self._feed_id, "error": str(error)},
                )


def feed_options(info: ChangefeedInfo, wanted: ChangefeedSettings) -> ChangefeedOptions:
    """What a changefeed carries, by what is kept of it."""
    return ChangefeedOptions(
        begin=info.begin,
        tables=TableFilter(wanted.tables),
        target_ts=wanted.target_ts,
        split_rows=wanted.split_rows,
    )
