"""Changes of an event store that grows: objects on storage, the newest rows from captures, schemas of the
cluster.

`EventStoreFollower` is what both readers share. It asks the capture that owns a table; when that fails, it
finds the owners again and tries once more; when that fails too, it says whether the table is captured at all.
`SliceFollower` adds what changefeeds need, `ScanFollower` what jobs need.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Self, TypeVar

from penstock.changes import ChangesHandle, collect_changes
from penstock.changes.collect import SIDES
from penstock.changes.limits import ReadLimit
from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.errors import StaleRead, Unavailable
from penstock.eventstore.capture.lease import CaptureLease
from penstock.eventstore.history_holds import HOLD_TTL_S, HistoryHolds
from penstock.eventstore.read.flight_client import FlightReader
from penstock.eventstore.read.partition import Partition, Refusal, TableView
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.captures import CaptureReader, Captures, live_captures
from penstock.follow.cluster_tables import FollowedTables
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.ddl_history import DdlHistory
from penstock.follow.holds import ClusterHold, HoldPolicy
from penstock.follow.progress import ProgressReader
from penstock.follow.scans import change_options, scan_snapshot, scan_tail
from penstock.follow.schema_subscription import MetaSubscription
from penstock.follow.slices import (
    ANY_SIZE,
    Position,
    Slice,
    SliceRange,
    SliceSize,
    TableSpan,
    is_snapshot,
    plan_slice,
    table_split_points,
)
from penstock.follow.source import ReadableRange, TableScan
from penstock.kv import AsyncClient, Client
from penstock.kv.cluster_ref import ClusterRef
from penstock.object_storage import StorageRef
from penstock.settings import Settings, TlsSettings
from penstock.tables.accounts import SYSTEM_ACCOUNT

T = TypeVar("T")
Partitions = tuple[Partition, ...]

JOBS_HOLDER = "jobs"
"""In whose name the history of jobs is held: that of all runners, of which one works at a time."""
_PLANNING_THREADS = 16
_ASKING_THREADS = 16
_SETTLE_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class EventStoreAccess:
    """How to reach an event store: its objects, its captures, and the clock of its cluster."""

    storage: StorageRef
    now: Callable[[], Awaitable[int]]
    leases: Callable[[], Sequence[CaptureLease]]
    connect: Callable[[str], CaptureReader]

    @classmethod
    def of(
        cls, settings: Settings, client: Client, now: Callable[[], Awaitable[int]], tls: TlsSettings | None
    ) -> Self:
        """Return the access to the event store of `settings.capture`. Blocks: it reads the token's file."""
        token = settings.capture.read_flight_token()
        storage = StorageRef(settings.capture.storage, settings.capture.storage_options)
        leases = partial(live_captures, client)
        return cls(storage, now, leases, partial(FlightReader, tls=tls, token=token))


class EventStoreFollower:
    """Reads physical tables of an event store, and holds their history in the name of `holder`.

    Coroutines are for one event loop. One thread asks all captures, for progress or to find owners; reads
    have other threads, so that a capture that does not answer them delays neither.
    """

    def __init__(
        self,
        holder: str,
        access: EventStoreAccess,
        *,
        gone_ts: Callable[[int], int | None] = lambda _: None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._holder = holder
        self._storage = access.storage
        self._now = access.now
        self._clock = clock
        self._asking = ThreadPoolExecutor(_ASKING_THREADS, thread_name_prefix="penstock-captures")
        self._searching = ThreadPoolExecutor(1, thread_name_prefix="penstock-owners")
        self._search_lock = threading.Lock()
        self._next_search: Future[object] | None = None
        self._captures = Captures(access.leases, access.connect, self._asking, clock=clock)
        self._progress = ProgressReader(
            self._captures, self._storage, self._asking, gone_ts=gone_ts, clock=clock
        )
        self._policy = HoldPolicy()

    async def now_ts(self) -> int:
        """Return a timestamp of the database."""
        return await self._now()

    async def _search(self, work: Callable[[Collection[int]], T], table_ids: Collection[int]) -> T:
        """Run work that asks all captures, after the search that runs now."""
        return await asyncio.get_running_loop().run_in_executor(self._searching, work, table_ids)

    # Reading from the owner.

    def _partitions(self, physical_ids: Iterable[int]) -> Partitions:
        return tuple(
            Partition(self._storage, table_id, self._captures.owner(table_id)) for table_id in physical_ids
        )

    def _find_owners(self) -> Future[object]:
        """Begin to ask all captures who owns which table; return a future that is done when all answered.

        Reads that fail together share a search: a call joins the one that has not begun yet. A search that
        runs already may have begun before the failure, so it does not count. Only failures search. A table
        without an owner does not, because its objects may be enough.
        """
        with self._search_lock:
            search = self._next_search
            if search is None or search.running() or search.done():
                search = self._next_search = self._searching.submit(self._captures.progress)
            return search

    def _read_again(
        self, schema: SchemaVersion, physical_ids: Collection[int], work: Callable[[Partitions], T]
    ) -> T:
        """Do the work with the owners that were found; explain a failure of a table that is not captured."""
        try:
            return work(self._partitions(physical_ids))
        except Unavailable as error:
            refusals = self._captures.refusals()
            refusal = next((refusals[table_id] for table_id in physical_ids if table_id in refusals), None)
            if refusal is not None:
                raise Unavailable(f"table {schema.name} cannot be captured: {refusal.reason}") from error
            if all(map(self._is_captured, physical_ids)):
                raise
            raise Unavailable(
                f"table {schema.name} is not captured: no capture has it and {self._storage.url} has nothing"
                " of it; start a capture whose capture.tables name it"
            ) from error

    def _is_captured(self, physical_id: int) -> bool:
        if self._captures.owner(physical_id) is not None:
            return True
        return Partition(self._storage, physical_id).state().manifest.seq > 0

    # Holding history on storage.

    async def _write_holds(self, needed: Mapping[int, int], released: Collection[int] = ()) -> None:
        """Hold physical tables after their timestamps, where the policy says it is due; release others."""
        now = self._clock.monotonic()
        holds = HistoryHolds(await asyncio.to_thread(self._storage.open), self._clock)

        def write(physical_id: int) -> None:
            holds.hold(physical_id, self._holder, needed[physical_id], ttl_s=HOLD_TTL_S)
            self._policy.record(physical_id, needed[physical_id], now)

        def release(physical_id: int) -> None:
            holds.release(physical_id, self._holder)
            self._policy.forget([physical_id])

        await self._for_each(write, self._policy.tables_due(needed, now))
        await self._for_each(release, released)

    async def _for_each(self, work: Callable[[int], None], physical_ids: Collection[int]) -> None:
        """Do something for every table; raise the first failure when all are done."""
        loop = asyncio.get_running_loop()
        running = [loop.run_in_executor(self._asking, work, table_id) for table_id in physical_ids]
        for failure in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(failure, BaseException):
                raise failure

    async def _close_pools(self, *pools: ThreadPoolExecutor) -> None:
        """End the threads of these pools and of the follower; end the connections to captures."""
        pools = (*pools, self._searching, self._asking)
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._captures.close)  # which also ends calls that wait for an answer
        for pool in pools:
            await asyncio.to_thread(pool.shutdown)


class SliceFollower(EventStoreFollower):
    """Implements SliceSource for one changefeed. Open it with `connect`.

    The cluster's garbage collection is held back with the changefeed's history: DDLs come from the cluster.
    """

    def __init__(
        self,
        feed_id: str,
        access: EventStoreAccess,
        history: DdlHistory,
        *,
        subscription: MetaSubscription | None = None,
        cluster: ClusterHold | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        super().__init__(f"changefeed-{feed_id}", access, gone_ts=history.gone_ts, clock=clock)
        self._history = history
        self._subscription = subscription
        self._cluster = cluster
        self._planning = ThreadPoolExecutor(_PLANNING_THREADS, thread_name_prefix="penstock-slices")
        self._needed: dict[int, int] = {}
        self._over_quota = False
        self._holding = asyncio.Lock()

    @classmethod
    async def connect(
        cls, settings: Settings, feed_id: str, *, flight_tls: TlsSettings | None = None, clock: Clock = SYSTEM
    ) -> Self:
        """Connect to the cluster and begin to follow its DDLs. The event store is that of `settings.capture`.

        Raises Unavailable when the cluster does not answer, Invalid when a setting cannot work.
        """
        client = await asyncio.to_thread(ClusterRef.of(settings).client)
        now = partial(asyncio.to_thread, client.timestamp)
        access = await asyncio.to_thread(EventStoreAccess.of, settings, client, now, flight_tls)
        history = DdlHistory()
        cluster = await ClusterHold.connect(settings, feed_id, clock=clock)
        try:
            subscription = await MetaSubscription.begin(settings, history, clock=clock)
        except BaseException:
            await cluster.close()
            raise
        return cls(feed_id, access, history, subscription=subscription, cluster=cluster, clock=clock)

    def ddl_resolved_ts(self) -> int:
        """Return the timestamp up to which every DDL is known; raise what ended the subscription."""
        if self._subscription is not None and self._subscription.failure is not None:
            raise self._subscription.failure
        return self._history.resolved_ts()

    def ddls(self, from_ts: int, to_ts: int) -> list[DdlEvent]:
        """Return the DDLs in (from_ts, to_ts], in order; raise Unavailable when some are not known yet."""
        return self._history.ddls(from_ts, to_ts)

    def tables(self, at_ts: int) -> list[SchemaVersion]:
        """Return the tables that exist at `at_ts`, by id; raise Unavailable when that is not known yet."""
        return self._history.tables(at_ts)

    def unreadable(self, at_ts: int) -> list[SchemaVersion]:
        """Return the tables whose descriptions at `at_ts` cannot be read, each since that is so."""
        return list(self._history.unreadable(at_ts).values())

    async def read_progress(self, table_ids: Collection[int]) -> dict[int, ReadableRange]:
        """Return how far physical tables can be read. Asks each capture once.

        A dropped table that has no rows anywhere counts as read to its end. Raises Invalid when a capture
        refuses the token.
        """
        return await self._search(self._progress.read_progress, table_ids)

    async def next_slice(
        self,
        dispatcher: TableSpan,
        start: Position,
        upto_ts: int,
        limit: ReadLimit,
        *,
        begin: Position | None = None,
        size: SliceSize = ANY_SIZE,
    ) -> Slice | None:
        """Return the changes after `start`, within the limit and up to `upto_ts`; None when there are none.

        Raises StaleRead when the history is gone, Unavailable also when the table is not captured.
        """
        wanted = SliceRange(dispatcher, start, upto_ts, limit, snapshot=is_snapshot(start, begin), size=size)
        if upto_ts < wanted.schema_ts:
            return None
        schema = self._history.schema_of(dispatcher.table_id, wanted.schema_ts)

        def plan(partitions: Partitions) -> Slice | None:
            view = TableView(schema.name, partitions, fixed=True)  # DDLs come as events of their own: ADR 41
            return plan_slice(view, schema, wanted)

        return await self._plan(schema, dispatcher.table_id, plan)

    async def split_points(self, table_id: int, at_ts: int, rows: int) -> list[bytes]:
        """Return handles that split a physical table into parts of about `rows` rows; none if it is small."""
        schema = self._history.schema_of(table_id, at_ts)
        return await self._plan(
            schema, table_id, lambda partitions: table_split_points(partitions[0], at_ts, rows)
        )

    async def _plan(self, schema: SchemaVersion, table_id: int, work: Callable[[Partitions], T]) -> T:
        """Do the work on a thread for planning; when it fails, find the owners and do it once more.

        No thread for planning waits for the search, and a caller that is cancelled does not end it for
        others.
        """
        in_pool = partial(asyncio.get_running_loop().run_in_executor, self._planning)
        try:
            return await in_pool(lambda: work(self._partitions([table_id])))
        except Unavailable:
            await asyncio.shield(asyncio.wrap_future(self._find_owners()))
        return await in_pool(lambda: self._read_again(schema, [table_id], work))

    async def hold(self, table_ids: Collection[int], ts: int) -> None:
        """Keep the history of tables after `ts`, on storage and in the cluster; forget the DDLs up to `ts`.

        Holds outlive the changefeed by a day, and are written as seldom as that allows.
        """
        if self._cluster is not None and ts > 0:
            await self._cluster.hold(ts)
        self._history.forget(ts)
        async with self._holding:
            self._needed = dict.fromkeys(table_ids, ts) if ts > 0 else {}
            await self._write_needed()

    async def release(self, table_ids: Collection[int]) -> None:
        """Release what the changefeed holds of these tables; with the last one, the cluster's collection."""
        async with self._holding:
            await self._write_holds({}, released=table_ids)
            for table_id in table_ids:
                self._needed.pop(table_id, None)
        if self._cluster is not None and not self._needed:
            await self._cluster.release()

    async def limit_holds(self, *, over_quota: bool) -> None:
        """Hold nothing on storage while the changefeed's account is over its quota; hold again afterwards.

        The cluster's collection is held back all the same: the changefeed could not go on without its DDLs.
        """
        async with self._holding:
            self._over_quota = over_quota
            await self._write_needed()

    async def _write_needed(self) -> None:
        if self._over_quota:
            await self._write_holds({}, released=self._policy.tables)
        else:
            await self._write_holds(self._needed)

    async def measure_held(self, *, lag_s: float) -> int | None:
        """Return about how many bytes of objects the changefeed needs, if it is `lag_s` behind; else 0.

        None: a part of its history is gone. Raises Unavailable when storage does not answer.
        """
        late_ms = self._clock.wall_ms() - int(lag_s * 1000)
        needed = {table_id: ts for table_id, ts in self._needed.items() if physical_ms(ts) <= late_ms}
        return await asyncio.to_thread(self._measure, needed) if needed else 0

    def _measure(self, needed: Mapping[int, int]) -> int | None:
        nbytes = 0
        for table_id, ts in needed.items():
            state = Partition(self._storage, table_id).state(from_ts=ts)
            if ts >= state.flushed_ts:
                continue  # objects have nothing that it needs
            try:
                state.check_history(ts)
            except StaleRead:
                return None
            sides = (state.change_objects(side, ts, state.flushed_ts) for side in SIDES)
            nbytes += sum(info.size_bytes for objects in sides for info in objects)
        return nbytes

    async def close(self) -> None:
        """Close connections and threads; holds stay for the next run."""
        if self._subscription is not None:
            await self._subscription.close()
        if self._cluster is not None:
            await self._cluster.close()
        await self._close_pools(self._planning)


class ScanFollower(EventStoreFollower):
    """Implements ScanSource for all jobs of a process. A context; open it with `connect`.

    Scans run on the threads of their callers. The cluster's garbage collection is not held back, however far
    a job is behind: rows and the schemas of their time come from the event store, where holds keep them.
    """

    def __init__(self, access: EventStoreAccess, tables: FollowedTables, *, clock: Clock = SYSTEM) -> None:
        super().__init__(JOBS_HOLDER, access, clock=clock)
        self._tables = tables
        self._holding = asyncio.Lock()

    @classmethod
    async def connect(
        cls,
        settings: Settings,
        client: AsyncClient,
        *,
        flight_tls: TlsSettings | None = None,
        clock: Clock = SYSTEM,
    ) -> Self:
        """Begin to follow the schemas of the client's cluster. The event store is that of `settings.capture`.

        Raises Unavailable when the cluster does not answer, Invalid when a setting cannot work.
        """
        access = await asyncio.to_thread(
            EventStoreAccess.of, settings, Client(client), client.timestamp, flight_tls
        )
        tables = FollowedTables(partial(MetaSubscription.begin, settings, clock=clock), clock=clock)
        await tables.start()
        return cls(access, tables, clock=clock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def settle(self, timeout_s: float) -> bool:
        """Wait until the cluster's tables are known; return False when that takes longer than `timeout_s`."""
        deadline = self._clock.monotonic() + timeout_s
        while not self._tables.now(())[0]:
            if self._clock.monotonic() >= deadline:
                return False
            await self._clock.sleep(_SETTLE_POLL_S)
        return True

    async def read_progress(self, table_ids: Collection[int]) -> dict[int, ReadableRange]:
        """Return how far tables can be read; those not captured yet are left out. Asks each capture once.

        A table is as far as the last of its partitions; one that cannot be captured says why. Raises Invalid
        when a capture refuses the token.
        """
        await self._tables.start()
        return await self._search(self._read_progress, table_ids)

    def _read_progress(self, table_ids: Collection[int]) -> dict[int, ReadableRange]:
        known_ts, tables = self._tables.now(
            table_ids
        )  # before the progress, which is then true of these tables
        progress = self._progress.read_progress(
            {physical_id for schema in tables.values() for physical_id in schema.table.physical_ids}
        )
        found: dict[int, ReadableRange] = {}
        for table_id, schema in tables.items():
            physical_ids = schema.table.physical_ids
            partitions = [progress[physical_id] for physical_id in physical_ids if physical_id in progress]
            if partitions and len(partitions) == len(physical_ids):
                found[table_id] = _table_range(partitions, schema, known_ts)
        for table_id, schema in self._tables.unreadable(table_ids).items():
            refusal = Refusal(table_id, schema.table.unreadable, schema.since_ts)
            found[table_id] = replace(found.get(table_id, ReadableRange(0, 0)), refusal=refusal)
        return {table_id: table for table_id, table in found.items() if table.readable_ts or table.refusal}

    def why_gone(self, table_id: int, account: str = SYSTEM_ACCOUNT.name) -> str | None:
        """Return what became of a table that does not exist any more, and the remedy; None when it exists.

        A table that went to another account is gone for an account other than `sys`.
        """
        return self._tables.why_gone(table_id, account)

    def scan(
        self, table_id: int, from_ts: int, to_ts: int, limit: ReadLimit, *, named: bool = False
    ) -> TableScan:
        """Fix the range (from_ts, to_ts] within the limit, or the snapshot at `to_ts` when `from_ts` is 0.

        Raises TableGone when the table does not exist any more.
        """
        schema = self._tables.at(table_id, to_ts)

        def fix(partitions: Partitions) -> TableScan:
            view = TableView(schema.name, partitions, table_id=table_id, named=named)
            return scan_tail(view, from_ts, to_ts, limit) if from_ts else scan_snapshot(view, to_ts)

        found = self._read(schema, schema.table.physical_ids, fix)
        return replace(found, accounts=self._tables.accounts(table_id, found.from_ts or found.to_ts))

    def open(
        self, scan: TableScan, columns: Collection[str] | None, *, impossible_dates: bool = False
    ) -> ChangesHandle:
        """Open the coalesced changes of a scan, without deletes of rows that come back in the same commit.

        A batch that does not have one of the columns is older than the column. A delete may concern a row
        that was never inserted: a caller that has applied a part of a range may get another range from the
        same start.
        """

        def collect(partitions: Partitions) -> ChangesHandle:
            view = replace(scan.view, partitions=partitions)
            options = change_options(view, scan, columns)
            options["impossible_dates"] = impossible_dates
            return collect_changes(view, scan.from_ts, scan.to_ts, **options)

        return self._read(scan.schema, [part.table_id for part in scan.view.partitions], collect)

    def _read(
        self, schema: SchemaVersion, physical_ids: Collection[int], work: Callable[[Partitions], T]
    ) -> T:
        """Do the work with the owners of the tables; when it fails, find the owners and do it once more."""
        try:
            return work(self._partitions(physical_ids))
        except Unavailable:
            self._find_owners().result()
        return self._read_again(schema, physical_ids, work)

    async def hold(self, needed: Mapping[int, int]) -> None:
        """Keep the history of tables after their timestamps, on storage; release what is not named.

        Holds outlive the runner by a day, and are written as seldom as that allows. Raises Unavailable also
        while the partitions of the tables are not known.
        """
        async with self._holding:
            physical: dict[int, int] = {}
            for table_id, ts in needed.items():
                for physical_id in self._tables.physical_ids(table_id, ts):
                    physical[physical_id] = min(ts, physical.get(physical_id, ts))
            physical = {physical_id: ts for physical_id, ts in physical.items() if ts > 0}
            await self._write_holds(physical, released=self._policy.tables - physical.keys())
            if physical:
                self._tables.forget(min(physical.values()), needed.keys())

    async def close(self) -> None:
        """Close connections and threads; holds stay for the next runner."""
        await self._tables.close()
        await self._close_pools()


def _table_range(partitions: Sequence[ReadableRange], schema: SchemaVersion, known_ts: int) -> ReadableRange:
    """Return how far all partitions of a table can be read, up to `known_ts`, the end of what schemas are
    known.

    A new schema counts as a change, because targets follow it.
    """
    readable_ts = min(known_ts, *(partition.readable_ts for partition in partitions))
    changed_ts = max(schema.since_ts, *(partition.changed_ts for partition in partitions))
    oldest_ts = max(partition.oldest_ts for partition in partitions)
    refusals = [partition.refusal for partition in partitions if partition.refusal is not None]
    refusal = min(refusals, key=lambda refusal: refusal.since_ts, default=None)
    uncaptured = any(partition.uncaptured for partition in partitions)
    return ReadableRange(readable_ts, min(readable_ts, changed_ts), oldest_ts, refusal, uncaptured)
