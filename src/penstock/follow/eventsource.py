"""Where jobs read, over the event store: objects on storage, rows of captures, schemas of the cluster."""

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
from penstock.eventstore.history_holds import HistoryHolds
from penstock.eventstore.read.flight_client import FlightReader
from penstock.eventstore.read.partition import Partition, TableView
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.captures import CaptureReader, Captures
from penstock.follow.cluster_tables import FollowedTables
from penstock.follow.holds import TTL_S, HoldPolicy
from penstock.follow.owners import live_captures
from penstock.follow.progress import ProgressReader
from penstock.follow.scans import change_wishes, scan_snapshot, scan_tail
from penstock.follow.schema_subscription import MetaSubscription
from penstock.follow.source import ReadableRange
from penstock.follow.source import ReadableRange as PhysicalLook
from penstock.follow.source_2 import TableScan
from penstock.kv import AsyncClient, Client
from penstock.object_storage import StorageRef
from penstock.settings import Settings, TlsSettings

T = TypeVar("T")

HOLDER = "jobs"
"""In whose name history is held: that of all runners, of which one works at a time."""
_ASKING_THREADS = 16
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
                watermarks.hold(physical_id, HOLDER, physical[physical_id], ttl_s=TTL_S)
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
