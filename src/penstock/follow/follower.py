"""A changefeed's source over the event store: objects on storage, rows of captures, DDLs of the cluster."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Self, TypeVar

from penstock.changes.limits import ReadLimit
from penstock.clock import SYSTEM, Clock
from penstock.errors import Unavailable
from penstock.eventstore.capture.lease import CaptureLease
from penstock.eventstore.history_holds import HistoryHolds
from penstock.eventstore.read.flight_client import FlightReader
from penstock.eventstore.read.partition import Partition, TableView
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.captures import CaptureReader, Captures
from penstock.follow.clusterhistory import ClusterHold
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.ddl_history import DdlHistory
from penstock.follow.holds import TTL_S, HoldPolicy
from penstock.follow.owners import live_captures
from penstock.follow.positions import Position
from penstock.follow.progress import ProgressReader
from penstock.follow.schema_subscription import MetaSubscription
from penstock.follow.slices import Slice, SliceRange, TableSpan, is_snapshot, plan_slice
from penstock.follow.source import ReadableRange
from penstock.follow.tablecuts import table_cuts
from penstock.kv.cluster_ref import ClusterRef
from penstock.object_storage import StorageRef
from penstock.settings import Settings, TlsSettings

T = TypeVar("T")

_PLANNING_THREADS = 16
_ASKING_THREADS = 16


class EventStoreSource:
    """Implements SliceSource. Open it with `open`; for one event loop.

    Planning and asking have threads of their own: slices that wait for a capture that is away do not keep
    the other tables from being looked at.
    """

    def __init__(
        self,
        feed_id: str,
        storage: StorageRef,
        *,
        now: Callable[[], int],
        leases: Callable[[], Sequence[CaptureLease]],
        connect: Callable[[str], CaptureReader],
        history: DdlHistory,
        subscription: MetaSubscription | None = None,
        cluster: ClusterHold | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._holder = f"changefeed-{feed_id}"
        self._storage = storage
        self._now = now
        self._history = history
        self._subscription = subscription
        self._cluster = cluster
        self._clock = clock
        self._planning = ThreadPoolExecutor(_PLANNING_THREADS, thread_name_prefix="penstock-slices")
        self._asking = ThreadPoolExecutor(_ASKING_THREADS, thread_name_prefix="penstock-captures")
        self._captures = Captures(leases, connect, self._asking, clock=clock)
        self._looks = ProgressReader(
            self._captures, storage, self._asking, gone_ts=history.gone_ts, clock=clock
        )
        self._looking = asyncio.Lock()
        self._looked_at: float | None = None
        self._holds = HoldPolicy()

    @classmethod
    async def open(
        cls,
        settings: Settings,
        feed_id: str,
        *,
        flight_tls: TlsSettings | None = None,
        clock: Clock = SYSTEM,
    ) -> Self:
        """Connect to the cluster, and begin to follow its DDLs. The event store is `settings.capture`'s.

        Raises Unavailable when somebody does not answer, Invalid when a setting cannot work.
        """
        token = await asyncio.to_thread(settings.capture.read_flight_token)
        client = await asyncio.to_thread(ClusterRef.of(settings).client)
        history = DdlHistory()
        cluster = await ClusterHold.connect(settings, feed_id, clock=clock)
        try:
            subscription = await MetaSubscription.begin(settings, history, clock=clock)
        except BaseException:
            await cluster.close()
            raise
        return cls(
            feed_id,
            StorageRef(settings.capture.storage, settings.capture.storage_options),
            now=client.timestamp,
            leases=partial(live_captures, client),
            connect=partial(FlightReader, tls=flight_tls, token=token),
            history=history,
            subscription=subscription,
            cluster=cluster,
            clock=clock,
        )

    def ddl_resolved_ts(self) -> int:
        """See SliceSource. Raises what ended the subscription of schemas."""
        if self._subscription is not None and self._subscription.failure is not None:
            raise self._subscription.failure
        return self._history.resolved_ts()

    def ddls(self, from_ts: int, to_ts: int) -> list[DdlEvent]:
        """See SliceSource."""
        return self._history.ddls(from_ts, to_ts)

    def tables(self, at_ts: int) -> list[SchemaVersion]:
        """See SliceSource."""
        return self._history.tables(at_ts)

    async def now_ts(self) -> int:
        """See SliceSource."""
        return await asyncio.to_thread(self._now)

    async def look(self, table_ids: Collection[int]) -> dict[int, ReadableRange]:
        """See SliceSource. Raises Invalid when a capture refuses the token."""
        async with self._looking:
            self._looked_at = self._clock.monotonic()
            return await asyncio.to_thread(self._looks.look, table_ids)

    async def next_slice(
        self,
        dispatcher: TableSpan,
        start: Position,
        upto_ts: int,
        limit: ReadLimit,
        *,
        begin: Position | None = None,
    ) -> Slice | None:
        """See SliceSource. Unavailable also says when nobody captures the table."""
        wanted = SliceRange(dispatcher, start, upto_ts, limit, snapshot=is_snapshot(start, begin))
        if upto_ts < wanted.schema_ts:
            return None
        schema = self._history.schema_of(dispatcher.table_id, wanted.schema_ts)
        return await self._read(schema, dispatcher.table_id, lambda view: plan_slice(view, schema, wanted))

    async def cuts(self, table_id: int, at_ts: int, rows: int) -> list[bytes]:
        """See SliceSource."""
        schema = self._history.schema_of(table_id, at_ts)
        return await self._read(schema, table_id, lambda view: table_cuts(view.partitions[0], at_ts, rows))

    async def _read(self, schema: SchemaVersion, table_id: int, work: Callable[[TableView], T]) -> T:
        """Do some planning with whoever has the newest rows of a table; again, if that was another one.

        A failure begins a search for the owner. A table without one begins none: its objects may be enough.
        """
        try:
            return await self._plan(work, schema, table_id)
        except Unavailable:
            await self._find_owners(self._clock.monotonic())
        try:
            return await self._plan(work, schema, table_id)
        except Unavailable as error:
            if await asyncio.to_thread(self._is_captured, table_id):
                raise
            raise Unavailable(
                f"table {schema.name} is not captured: no capture has it and {self._storage.url} has nothing"
                " of it; start a capture whose capture.tables name it"
            ) from error

    async def _plan(self, work: Callable[[TableView], T], schema: SchemaVersion, table_id: int) -> T:
        partition = Partition(self._storage, table_id, self._captures.owner(table_id))
        view = TableView(schema.name, (partition,), fixed=True)  # DDLs are told as such: see ADR 41
        return await asyncio.get_running_loop().run_in_executor(self._planning, work, view)

    async def _find_owners(self, since: float) -> None:
        """See who has which table, unless a search or a look has begun after `since`."""
        async with self._looking:
            if self._looked_at is None or self._looked_at <= since:
                self._looked_at = self._clock.monotonic()
                await asyncio.to_thread(self._captures.progress)

    def _is_captured(self, table_id: int) -> bool:
        if self._captures.owner(table_id) is not None:
            return True
        return Partition(self._storage, table_id).state().manifest.seq > 0

    async def hold(self, table_ids: Collection[int], ts: int) -> None:
        """See SliceSource. Holds outlive the changefeed by a day, and are written as seldom as that allows.

        DDLs up to `ts` are not asked for again.
        """
        if self._cluster is not None and ts > 0:
            await self._cluster.hold(ts)
        self._history.forget(ts)
        now = self._clock.monotonic()
        due = self._holds.due(dict.fromkeys(table_ids, ts), now) if ts > 0 else []
        watermarks = HistoryHolds(await asyncio.to_thread(self._storage.open), self._clock)

        def keep(table_id: int) -> None:
            watermarks.hold(table_id, self._holder, ts, ttl_s=TTL_S)
            self._holds.wrote(table_id, ts, now)

        await self._each(keep, due)

    async def release(self, table_ids: Collection[int]) -> None:
        """See SliceSource."""
        watermarks = HistoryHolds(await asyncio.to_thread(self._storage.open), self._clock)
        self._holds.forget(table_ids)
        await self._each(lambda table_id: watermarks.release(table_id, self._holder), table_ids)
        if self._cluster is not None and self._holds.empty:
            await self._cluster.release()

    async def _each(self, work: Callable[[int], None], table_ids: Collection[int]) -> None:
        """Do something for every table; raise the first failure when all are done."""
        loop = asyncio.get_running_loop()
        running = [loop.run_in_executor(self._asking, work, each) for each in table_ids]
        for failure in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(failure, BaseException):
                raise failure

    async def close(self) -> None:
        """See SliceSource. Holds stay, for the next run."""
        if self._subscription is not None:
            await self._subscription.close()
        if self._cluster is not None:
            await self._cluster.close()
        for pool in (self._planning, self._asking):
            pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._captures.close)
        for pool in (self._planning, self._asking):
            await asyncio.to_thread(pool.shutdown)
