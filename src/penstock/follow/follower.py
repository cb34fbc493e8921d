"""A changefeed's source over the event store: objects on storage, rows of captures, DDLs of the cluster.

Where jobs read, over the event store: objects on storage, rows of captures, schemas of the cluster.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Self, TypeVar

from penstock.changes import ChangesHandle, collect_changes
from penstock.changes.limits import ReadLimit
from penstock.clock import SYSTEM, Clock
from penstock.errors import Unavailable
from penstock.eventstore.capture.lease import CaptureLease
from penstock.eventstore.history_holds import HOLD_TTL_S, HistoryHolds
from penstock.eventstore.read.flight_client import FlightReader
from penstock.eventstore.read.partition import Partition, TableView
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.captures import CaptureReader, Captures, live_captures
from penstock.follow.cluster_tables import FollowedTables
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.ddl_history import DdlHistory
from penstock.follow.holds import ClusterHold, HoldPolicy
from penstock.follow.progress import ProgressReader
from penstock.follow.scans import change_wishes, scan_snapshot, scan_tail
from penstock.follow.schema_subscription import MetaSubscription
from penstock.follow.slices import Position, Slice, SliceRange, TableSpan, is_snapshot, plan_slice, table_cuts
from penstock.follow.source import ReadableRange, TableScan
from penstock.follow.source import ReadableRange as PhysicalLook
from penstock.kv import AsyncClient, Client
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
            watermarks.hold(table_id, self._holder, ts, ttl_s=HOLD_TTL_S)
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


HOLDER = "jobs"
"""In whose name history is held: that of all runners, of which one works at a time."""
_SETTLE_S = 0.02


class EventStoreJobSource:
    """Implements ScanSource. A context; `look`, `hold` and `close` are for one event loop.

    The cluster's garbage collection is not held back, however far a job is behind: rows and the schemas of
    their time come from the event store, where holds keep them.
    """

    def __init__(
        self,
        storage: StorageRef,
        *,
        now: Callable[[], Awaitable[int]],
        leases: Callable[[], Sequence[CaptureLease]],
        connect: Callable[[str], CaptureReader],
        tables: FollowedTables,
        clock: Clock = SYSTEM,
    ) -> None:
        self._storage = storage
        self._now = now
        self._tables = tables
        self._clock = clock
        self._asking = ThreadPoolExecutor(_ASKING_THREADS, thread_name_prefix="penstock-captures")
        self._captures = Captures(leases, connect, self._asking, clock=clock)
        self._looks = ProgressReader(self._captures, storage, self._asking, clock=clock)
        self._looking = asyncio.Lock()
        self._finding = threading.Lock()
        self._found_at: float | None = None
        self._holding = asyncio.Lock()
        self._holds = HoldPolicy()

    @classmethod
    async def connect(
        cls,
        settings: Settings,
        client: AsyncClient,
        *,
        flight_tls: TlsSettings | None = None,
        clock: Clock = SYSTEM,
    ) -> Self:
        """Begin to follow the schemas of the client's cluster. The event store is `settings.capture`'s.

        Raises Unavailable when somebody does not answer, Invalid when a setting cannot work.
        """
        token = await asyncio.to_thread(settings.capture.read_flight_token)
        tables = FollowedTables(partial(MetaSubscription.begin, settings, clock=clock), clock=clock)
        await tables.start()
        return cls(
            StorageRef(settings.capture.storage, settings.capture.storage_options),
            now=client.timestamp,
            leases=partial(live_captures, Client(client)),
            connect=partial(FlightReader, tls=flight_tls, token=token),
            tables=tables,
            clock=clock,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def settle(self, timeout_s: float) -> bool:
        """Wait until the cluster's tables are known, which they are not at once; False: it took too long."""
        deadline = self._clock.monotonic() + timeout_s
        while not self._tables.now(())[0]:
            if self._clock.monotonic() >= deadline:
                return False
            await self._clock.sleep(_SETTLE_S)
        return True

    async def now_ts(self) -> int:
        """See ScanSource."""
        return await self._now()

    # How far tables have come.

    async def look(self, table_ids: Collection[int]) -> dict[int, ReadableRange]:
        """See ScanSource. Asks each capture once. Raises Invalid when one refuses the token."""
        async with self._looking:
            await self._tables.start()
            return await asyncio.to_thread(self._look, table_ids)

    def _look(self, table_ids: Collection[int]) -> dict[int, ReadableRange]:
        known_ts, tables = self._tables.now(table_ids)  # first: what is said later is true of these
        looks = self._looks.look({each for table in tables.values() for each in table.table.physical_ids})
        found: dict[int, ReadableRange] = {}
        for table_id, schema in tables.items():
            parts = [looks.get(each) for each in schema.table.physical_ids]
            if parts and all(parts):
                found[table_id] = _whole([each for each in parts if each], schema, known_ts)
        return {table_id: look for table_id, look in found.items() if look.readable_ts}

    def gone(self, table_id: int) -> str | None:
        """See ScanSource."""
        return self._tables.gone(table_id)

    # Ranges.

    def scan(
        self, table_id: int, from_ts: int, to_ts: int, limit: ReadLimit, *, named: bool = False
    ) -> TableScan:
        """See ScanSource. Raises TableGone when the table is."""
        schema = self._tables.at(table_id, to_ts)

        def fixed() -> TableScan:
            ids = schema.table.physical_ids
            view = TableView(schema.name, self._partitions(ids), table_id=table_id, named=named)
            return scan_tail(view, from_ts, to_ts, limit) if from_ts else scan_snapshot(view, to_ts)

        return self._tried(schema, fixed)

    def open(self, scan: TableScan, columns: Collection[str] | None) -> ChangesHandle:
        """See ScanSource. Deletes of rows that come back in the same commit are left out.

        What a batch lacks of the columns was added after it. Some rows may be deleted that were never given:
        whoever has applied some of a range may be given another one from the same start.
        """

        def opened() -> ChangesHandle:
            ids = [each.table_id for each in scan.view.partitions]
            view = replace(scan.view, partitions=self._partitions(ids))
            wishes = change_wishes(view, scan, columns)
            return collect_changes(view, scan.from_ts, scan.to_ts, **wishes)

        return self._tried(scan.schema, opened)

    def _partitions(self, physical_ids: Iterable[int]) -> tuple[Partition, ...]:
        return tuple(Partition(self._storage, each, self._captures.owner(each)) for each in physical_ids)

    def _tried(self, schema: SchemaVersion, work: Callable[[], T]) -> T:
        """Do something with whoever has the newest rows of a table; again, if that was another one."""
        began = self._clock.monotonic()
        if any(self._captures.owner(each) is None for each in schema.table.physical_ids):
            self._find_owners(began)
        try:
            return work()
        except Unavailable:
            self._find_owners(self._clock.monotonic())
        try:
            return work()
        except Unavailable as error:
            if all(map(self._is_captured, schema.table.physical_ids)):
                raise
            raise Unavailable(
                f"table {schema.name} is not captured: no capture has it and {self._storage.url} has nothing"
                " of it; start a capture whose capture.tables name it"
            ) from error

    def _find_owners(self, since: float) -> None:
        """See who has which table, unless somebody has after `since`."""
        with self._finding:
            if self._found_at is None or self._found_at <= since:
                self._found_at = self._clock.monotonic()
                self._captures.progress()

    def _is_captured(self, physical_id: int) -> bool:
        if self._captures.owner(physical_id) is not None:
            return True
        return Partition(self._storage, physical_id).state().manifest.seq > 0

    # History.

    async def hold(self, needed: Mapping[int, int]) -> None:
        """See ScanSource. Holds outlive the runner by a day, and are written as seldom as that allows.

        Raises Unavailable also while it is not known where the rows of the tables are.
        """
        async with self._holding:
            physical: dict[int, int] = {}
            for table_id, ts in needed.items():
                for each in self._tables.physical_ids(table_id, ts):
                    physical[each] = min(ts, physical.get(each, ts))
            physical = {each: ts for each, ts in physical.items() if ts > 0}
            now = self._clock.monotonic()
            watermarks = HistoryHolds(await asyncio.to_thread(self._storage.open), self._clock)

            def keep(physical_id: int) -> None:
                watermarks.hold(physical_id, HOLDER, physical[physical_id], ttl_s=HOLD_TTL_S)
                self._holds.wrote(physical_id, physical[physical_id], now)

            def release(physical_id: int) -> None:
                watermarks.release(physical_id, HOLDER)
                self._holds.forget([physical_id])

            await self._each(keep, self._holds.due(physical, now))
            await self._each(release, self._holds.tables - physical.keys())
            if physical:
                self._tables.forget(min(physical.values()), needed.keys())

    async def _each(self, work: Callable[[int], None], physical_ids: Collection[int]) -> None:
        """Do something for every table; raise the first failure when all are done."""
        loop = asyncio.get_running_loop()
        running = [loop.run_in_executor(self._asking, work, each) for each in physical_ids]
        for failure in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(failure, BaseException):
                raise failure

    async def close(self) -> None:
        """See ScanSource. Holds stay, for the next runner."""
        await self._tables.close()
        self._asking.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._captures.close)
        await asyncio.to_thread(self._asking.shutdown)


def _whole(parts: Sequence[PhysicalLook], schema: SchemaVersion, known_ts: int) -> ReadableRange:
    """How far a table of several parts has come. Another schema counts as a change: targets follow it."""
    readable_ts = min(known_ts, *(each.readable_ts for each in parts))
    changed_ts = max(schema.since_ts, *(each.changed_ts for each in parts))
    return ReadableRange(readable_ts, min(readable_ts, changed_ts), max(each.oldest_ts for each in parts))
