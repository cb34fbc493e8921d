"""The process that runs changefeeds: it takes those that no process runs, until they are stopped.

A call of a target that never returns keeps its thread, and its place among the account's calls, for ever. So
a changefeed that is stopped meanwhile is abandoned: its lease is given up, and it may run again. What returns
later is fenced. An account of which too many do not return begins no other changefeed.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from penstock.changefeeds.changefeed import Changefeed
from penstock.changefeeds.commands import create_changefeed
from penstock.changefeeds.engines.engine import SinkEngine
from penstock.changefeeds.filters import TableFilter
from penstock.changefeeds.model import ChangefeedInfo, ChangefeedState
from penstock.changefeeds.resume import ChangefeedOptions
from penstock.changefeeds.sinks.storage.cleanup import FileCleanup
from penstock.changefeeds.sinks.storage.options import (
    SinkOptions,
    confined_sink_options,
    secrets_of_sink,
    sink_options,
)
from penstock.changefeeds.sinks.storage.remote_files import RemoteFiles
from penstock.changefeeds.sinks.storage.sink import StorageSink
from penstock.changefeeds.sinks.storage.spool import ItemBudget, ItemShare, SpoolAllowance
from penstock.changefeeds.store import ChangefeedStore, LeasedProgress
from penstock.clock import SYSTEM, Clock
from penstock.errors import Denied, Fenced, Invalid, PenstockError, Unavailable
from penstock.eventloop import AccountPlaces, Place, call_in_thread
from penstock.follow.follower import SliceFollower
from penstock.follow.holds import HeldHistory, choose_released, held_limits
from penstock.metrics import SINK_ABANDONED_CHANGEFEEDS, SINK_HELD_BYTES
from penstock.secret_references import UnresolvedReference
from penstock.settings import ChangefeedSettings, Settings, parse_changefeed
from penstock.shares import Shares

_POLL_S = 1.0
_HELD_LAG_S = 60.0  # one that is less behind holds back little
_MEASURE_S = 60.0
_GRACE_S = 300.0  # to write what was read when it is stopped; its lease may have gone to others before
_ABANDONED_MAX = 8  # of an account
# For changefeeds that were stored before the lease time was a setting.
_TTL_S = float(ChangefeedSettings.model_fields["lease_ttl_s"].default)

_THREADS = Shares.of(256)  # for calls of remotes, and for work of `engine: local`
_READS = Shares.of(256)  # reads of the event store that are under way, or wait for their follower's threads


@dataclass(frozen=True, slots=True)
class AccountLimits:
    """What the changefeeds of an account share in a process: threads, reads, bytes and items of spools."""

    thread: Place
    read: Place
    spools: SpoolAllowance | None
    open_items: Callable[[], ItemShare]
    abandoned: "set[asyncio.Task[None]]" = field(default_factory=set)
    """Runs that were ended, and of which a call has not returned."""

    def abandon(self, task: "asyncio.Task[None]") -> None:
        """Count a run until it returns."""
        self.abandoned.add(task)
        SINK_ABANDONED_CHANGEFEEDS.inc()
        task.add_done_callback(self._forget)

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self.abandoned.discard(task)
        SINK_ABANDONED_CHANGEFEEDS.dec()
        if not task.cancelled():
            task.exception()  # retrieved: whatever it was, it came too late

    def check_abandoned(self) -> None:
        """Raise Unavailable when too many runs of the account do not return."""
        if len(self.abandoned) >= _ABANDONED_MAX:
            raise Unavailable(
                f"{len(self.abandoned)} changefeeds of the account were ended, and their targets do not"
                " answer; this one begins when some do, or when its process is started again"
            )


@dataclass(frozen=True, slots=True)
class EngineOrder:
    """The engine that a changefeed of an account needs; each call of a remote holds a `place`."""

    changefeed_id: str
    account: str
    options: SinkOptions
    place: Place


OpenEngine = Callable[[EngineOrder], SinkEngine]
"""Opens the engine of a changefeed, on a thread, for each run: it may wait for Spark to start."""

_log = logging.getLogger(__name__)


async def create_configured_changefeeds(
    store: ChangefeedStore, settings: Settings, *, now_ts: int, clock: Clock = SYSTEM
) -> None:
    """Create the changefeeds of the settings that do not exist yet; leave the others as they are."""
    existing = {record.info.id: record.info for record in await store.list()}
    for changefeed_id, section in settings.changefeeds.items():
        if changefeed_id not in existing:
            await create_changefeed(store, changefeed_id, section, now_ts=now_ts, clock=clock)
        elif not _has_settings(existing[changefeed_id], section):
            _log.warning(
                "a changefeed has other settings than the file says; pause and update it to change them",
                extra={"changefeed": changefeed_id},
            )


def _has_settings(info: ChangefeedInfo, section: ChangefeedSettings) -> bool:
    """Return whether the stored settings are these; a setting that is newer than the row has its default."""
    try:
        stored = parse_changefeed(dict(info.settings), origin=f"changefeed {info.id}")
        plain = {"sink_uri": section.sink_uri, "storage_options": {}, "sink": {}}  # compared when resolved
        return stored.model_copy(update=plain) == section.model_copy(update=plain) and (
            sink_options(stored) == sink_options(section)
        )
    except (Invalid, UnresolvedReference):
        return False


class ChangefeedRunner:
    """Runs every changefeed that should run and that no other process runs, until it is cancelled.

    `owner` is unique to this process. `on_owned` is called each time that it takes a changefeed, before that
    is opened: what engines share can start meanwhile. What happens to one changefeed is stored as its state,
    and does not affect the others.
    """

    def __init__(
        self,
        settings: Settings,
        store: ChangefeedStore,
        open_engine: OpenEngine,
        *,
        owner: str,
        lag_s: float = _HELD_LAG_S,
        measure_s: float = _MEASURE_S,
        on_owned: Callable[[], None] | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Every `measure_s`, measure what changefeeds that are `lag_s` behind hold back."""
        self._settings = settings
        self._store = store
        self._open_engine = open_engine
        self._owner = owner
        self._lag_s = lag_s
        self._measure_s = measure_s
        self._on_owned = on_owned
        self._clock = clock
        self._running: dict[str, asyncio.Task[None]] = {}
        self._opened: dict[str, _RunningChangefeed] = {}
        self._left: dict[str, str] = {}  # why changefeeds were left to others, as it was logged
        self._threads = AccountPlaces(_THREADS)
        self._reads = AccountPlaces(_READS)
        self._items = ItemBudget()
        self._limits: dict[str, AccountLimits] = {}

    async def run(self, *, until_idle: bool = False) -> None:
        """Run the changefeeds; with `until_idle` return once each has finished, failed or is stopped."""
        limiting = asyncio.create_task(self._limit_holds())
        try:
            while True:
                listed = await self._start_runnable()
                if until_idle and listed and not self._running:
                    return
                await self._clock.sleep(_POLL_S)
        finally:
            tasks = [*self._running.values(), limiting]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _limit_holds(self) -> None:
        """Measure what accounts with a limit hold back, and give up the holds of those above it."""
        limits = held_limits(self._settings)
        released: frozenset[str] = frozenset()
        known: dict[str, HeldHistory[str]] = {}
        try:
            while limits:
                began = self._clock.monotonic()
                known = await self._measure(limits, known)
                for account in limits:
                    mine = (history.nbytes or 0 for history in known.values() if history.account == account)
                    SINK_HELD_BYTES.labels(account).set(sum(mine))
                before, released = released, choose_released(known.values(), limits)
                for changefeed_id in released - before:
                    _log.warning(
                        "history is not held for a changefeed any more: its account is above bytes_held_max,"
                        " or the history is gone; it fails if it does not catch up before that is collected",
                        extra={"changefeed": changefeed_id},
                    )
                await self._give_up(released)
                # Thousands of tables take a while: most of the time nothing is measured.
                await self._clock.sleep(max(self._measure_s, 10 * (self._clock.monotonic() - began)))
        finally:
            for account in limits:
                SINK_HELD_BYTES.remove(account)

    async def _measure(
        self, limits: Mapping[str, int], known: Mapping[str, HeldHistory[str]]
    ) -> dict[str, HeldHistory[str]]:
        """Return what each changefeed holds back; what cannot be read stays as it was known."""
        found: dict[str, HeldHistory[str]] = {}
        for changefeed_id, running in list(self._opened.items()):
            if running.source is None or running.account not in limits:
                continue
            try:
                nbytes = await running.source.measure_held(lag_s=self._lag_s)
            except PenstockError as error:
                nbytes = known[changefeed_id].nbytes if changefeed_id in known else 0
                facts = {"changefeed": changefeed_id, "error": str(error)}
                _log.warning("what a changefeed holds back cannot be measured now", extra=facts)
            found[changefeed_id] = HeldHistory(running.account, nbytes, frozenset({changefeed_id}))
        return found

    async def _give_up(self, released: frozenset[str]) -> None:
        for changefeed_id, running in list(self._opened.items()):
            if running.source is not None and running.over_quota != (changefeed_id in released):
                try:
                    await running.source.limit_holds(over_quota=changefeed_id in released)
                except PenstockError as error:  # the next round tries again
                    facts = {"changefeed": changefeed_id, "error": str(error)}
                    _log.warning("the holds of a changefeed cannot be changed now", extra=facts)
                else:
                    running.over_quota = changefeed_id in released

    async def _start_runnable(self) -> bool:
        """Start the changefeeds that should run and do not run here; return whether they could be listed."""
        for changefeed_id in [name for name, task in self._running.items() if task.done()]:
            self._opened.pop(changefeed_id)
            self._log_end(changefeed_id, self._running.pop(changefeed_id))
        try:
            records = await self._store.list()
        except Unavailable as error:
            _log.warning("the changefeeds cannot be listed", extra={"error": str(error)})
            return False
        for record in records:
            if record.runnable and record.info.id not in self._running:
                running = _RunningChangefeed(
                    self._settings,
                    self._store,
                    self._open_engine,
                    record.info,
                    self._limits_of(record.info.account),
                    self._owner,
                    self._on_owned,
                    self._clock,
                )
                self._opened[record.info.id] = running
                self._running[record.info.id] = asyncio.create_task(running.run())
        return True

    def _limits_of(self, account: str) -> AccountLimits:
        """Return what the account's changefeeds share; accounts are few, and so all of them are kept."""
        if account not in self._limits:
            nbytes = self._settings.api.spool_limits.get(account)
            self._limits[account] = AccountLimits(
                partial(self._threads.hold, account),
                partial(self._reads.hold, account),
                None if nbytes is None else SpoolAllowance(nbytes),
                partial(self._items.open, account),
            )
        return self._limits[account]

    def _log_end(self, changefeed_id: str, task: "asyncio.Task[None]") -> None:
        error = task.exception()
        left = self._left.pop(changefeed_id, "")
        if error is None:
            return
        if isinstance(error, Unavailable):  # another process runs it, or the store does not answer
            self._left[changefeed_id] = str(error)
            if left != str(error):  # each poll tries again: log a reason once
                facts = {"changefeed": changefeed_id, "reason": str(error)}
                _log.info("a changefeed is left to others for now", extra=facts)
        else:
            facts = {"changefeed": changefeed_id, "error": str(error)}
            _log.error(
                "a changefeed ended",
                extra=facts,
                exc_info=None if isinstance(error, PenstockError) else error,
            )


class _RunningChangefeed:
    """One changefeed for as long as this process has its lease."""

    def __init__(
        self,
        settings: Settings,
        store: ChangefeedStore,
        open_engine: OpenEngine,
        info: ChangefeedInfo,
        limits: AccountLimits,
        owner: str,
        on_owned: Callable[[], None] | None,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._store = store
        self._open_engine = open_engine
        self._changefeed_id = info.id
        self._limits = limits
        self.account = info.account
        self.source: SliceFollower | None = None
        """Reads its changes and holds their history; None while it is not open."""
        self.over_quota = False
        """Whether the source was told to hold nothing."""
        # The other settings are parsed under the lease: only its holder may store that they are invalid.
        self._ttl_s = float(info.settings.get("lease_ttl_s", _TTL_S))
        self._owner = owner
        self._on_owned = on_owned
        self._clock = clock

    async def run(self) -> None:
        """Run it until it ends, is stopped or changed, or the lease is lost; raise its failure."""
        lease = await self._store.acquire(self._changefeed_id, self._owner, ttl_s=self._ttl_s)
        try:
            if self._on_owned is not None:
                self._on_owned()
            info = (await lease.get_record()).info
            await self._run(lease, info)
        finally:
            await lease.give_up()

    @asynccontextmanager
    async def _store_failure(
        self, lease: LeasedProgress, mask: Callable[[str], str] = str
    ) -> AsyncIterator[None]:
        """Store a failure to open the changefeed as its state, without its secrets."""
        try:
            yield
        except Exception as error:
            state = (
                ChangefeedState.WARNING if isinstance(error, Unavailable | Denied) else ChangefeedState.FAILED
            )
            await lease.keep_state(state, f"{type(error).__name__}: {mask(str(error))}")
            raise

    async def _run(self, lease: LeasedProgress, info: ChangefeedInfo) -> None:
        async with self._store_failure(lease):
            settings = parse_changefeed(dict(info.settings), origin=f"changefeed {info.id}")
        with secrets_of_sink(settings).in_errors():
            await self._run_with(settings, lease, info)

    async def _run_with(
        self, settings: ChangefeedSettings, lease: LeasedProgress, info: ChangefeedInfo
    ) -> None:
        mask = secrets_of_sink(settings)
        async with self._store_failure(lease, mask):
            self._limits.check_abandoned()
            # A provider of secrets, or the file system of a tenant's target, may be slow.
            async with self._limits.thread():
                options = await call_in_thread(confined_sink_options, self._settings, info.account, settings)
            run_options = changefeed_options(info, settings, flush_interval_s=options.flush_interval_s)
            target = options.target.open()
            source = await SliceFollower.connect(
                self._settings,
                info.id,
                flight_tls=self._settings.capture.flight_client_tls,
                clock=self._clock,
            )
        self.source, self.over_quota = source, False
        try:
            files = RemoteFiles(target, options, split=bool(settings.split_rows), clock=self._clock)
            changefeed = Changefeed(
                info.id,
                run_options,
                source=source,
                open_sink=lambda: self._open_sink(files, lease, options),
                files=files,
                progress=lease,
                reading=self._limits.read,
                mask=mask,
                clock=self._clock,
            )
            cleanup = FileCleanup(target, options, lambda: changefeed.checkpoint_ts, clock=self._clock)
            await self._drive(lease, info, changefeed, cleanup)
        finally:
            self.source = None
            await source.close()

    async def _open_sink(
        self, files: RemoteFiles, lease: LeasedProgress, options: SinkOptions
    ) -> StorageSink:
        order = EngineOrder(self._changefeed_id, self.account, options, self._limits.thread)
        engine = await call_in_thread(self._open_engine, order)
        return StorageSink(
            engine,
            files,
            lease,
            options,
            changefeed=self._changefeed_id,
            allowance=self._limits.spools,
            items=self._limits.open_items(),
            place=self._limits.thread,
            clock=self._clock,
        )

    async def _drive(
        self, lease: LeasedProgress, info: ChangefeedInfo, changefeed: Changefeed, cleanup: FileCleanup
    ) -> None:
        """Run it and watch it until either task ends, then end the other."""
        running = asyncio.create_task(changefeed.run())
        watching = asyncio.create_task(self._watch(lease, info, changefeed))
        cleaning = asyncio.create_task(cleanup.run())
        try:
            await asyncio.wait((running, watching), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._end((running, watching, cleaning))
        if not running.done() or running.cancelled():
            if watching.done() and not watching.cancelled():
                watching.result()  # raises when the lease was lost
            return
        failure = running.exception()
        if not isinstance(failure, Fenced):
            await lease.keep_state(changefeed.state, changefeed.error, changefeed.warning)
        if failure is not None:
            raise failure

    async def _end(self, tasks: "Sequence[asyncio.Task[None]]") -> None:
        """Cancel tasks and wait for them; abandon those of which a call of the target does not return."""
        for task in tasks:
            task.cancel()
        _, pending = await asyncio.wait(tasks, timeout=_GRACE_S)
        for task in pending:
            self._limits.abandon(task)
        if pending:
            _log.warning(
                "a changefeed was ended, but a call of its target does not return; it keeps its thread",
                extra={"changefeed": self._changefeed_id},
            )

    async def _watch(self, lease: LeasedProgress, info: ChangefeedInfo, changefeed: Changefeed) -> None:
        """Renew the lease and store the changefeed's state; return when it is stopped or changed.

        Raises Fenced when the lease is lost. While the store does not answer it tries again: a process that
        takes the changefeed over meanwhile fences what this one would write.
        """
        stored: tuple[ChangefeedState, str, str] | None = None  # the state in the store is of an earlier run
        while True:
            await self._clock.sleep(self._ttl_s / 5)
            try:
                now = changefeed.state, changefeed.error, changefeed.warning
                await (lease.renew() if now == stored else lease.keep_state(*now))
                stored = now
                if (await lease.get_record()).info != info:
                    return
            except Unavailable as error:
                _log.warning(
                    "a changefeed's lease cannot be renewed",
                    extra={"changefeed": self._changefeed_id, "error": str(error)},
                )


def changefeed_options(
    info: ChangefeedInfo, settings: ChangefeedSettings, *, flush_interval_s: float = 0.0
) -> ChangefeedOptions:
    """Return what a stored changefeed replicates."""
    return ChangefeedOptions(
        begin=info.begin,
        tables=TableFilter(settings.tables, account=info.account),
        target_ts=settings.target_ts,
        split_rows=settings.split_rows,
        flush_interval_s=flush_interval_s,
        ignore_ineligible_table=settings.ignore_ineligible_table,
    )
