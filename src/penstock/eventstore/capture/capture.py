"""A capture: subscriptions, event store and Flight service of the tables that this process owns."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.clock import SYSTEM, Clock, compose_ts, physical_ms
from penstock.durable_files import make_data_directory, replace_file
from penstock.errors import Conflict, Corrupt, Denied, Invalid, PenstockError, Unavailable, Undetermined
from penstock.eventstore import paths
from penstock.eventstore.capture import tables as sharing
from penstock.eventstore.capture.flight_server import FlightAccess
from penstock.eventstore.capture.flight_service import FlightService
from penstock.eventstore.capture.lease import CaptureLease, CaptureMembership
from penstock.eventstore.capture.reader import Reader
from penstock.eventstore.capture.safe_point import ServiceSafePoint
from penstock.eventstore.capture.store import EventStore
from penstock.eventstore.capture.tables import TableNames
from penstock.eventstore.history_holds import HOLD_TTL_S
from penstock.eventstore.log.table_log import TableLog
from penstock.eventstore.manifest import BEGUN
from penstock.eventstore.read.partition import Refusal
from penstock.eventstore.schema_history import META_RANGE, CapturedTable, SchemaHistory
from penstock.eventstore.upkeep.load import is_load_in_progress
from penstock.kv import AsyncClient
from penstock.kv.pd import PdClient
from penstock.kv.scanning import Page
from penstock.kv.snapshot import AsyncSnapshot
from penstock.object_storage import ObjectStorage, StorageRef
from penstock.settings import CaptureSettings, Settings
from penstock.sources import KeySpan, SubscriptionClient
from penstock.tables.decoding.decoder import TidbRowDecoder
from penstock.tables.keys import record_range
from penstock.tables.raw import RAW_SCHEMA, Op

_log = logging.getLogger(__name__)

_FIRST_TS = 1  # a subscription from here delivers everything that the cluster still has
_ROUND_S = 0.5
_RENEWALS_PER_TTL = 3
_DROPPED_KEPT_MS = 10 * 60 * 1000  # the owner of a table that was dropped so long ago has flushed it
_SAFE_POINT_EVERY_S = 10.0
_LOOK_EVERY_S = 10.0
_SCHEMA_WAIT_S = 60.0
_OPENED_AT_ONCE = 16
_BACKFILL_BYTES = 4 * 1024 * 1024  # of rows that are made durable at once
_COMPARED_KEYS = 1 << 20  # that are compared with the log at once
_FETCHED_KEYS = 4096  # whose rows are read at once
_FIRST_SCAN_ROUND_S = 0.1
_FIRST_SCANS_MAX = 4  # tables that are compared at once


@dataclass(slots=True)
class _Clients:
    """The clients of the cluster."""

    kv: AsyncClient
    pd: PdClient
    puller: SubscriptionClient
    _closing: AsyncExitStack

    @classmethod
    async def connect(cls, settings: Settings, clock: Clock) -> "_Clients":
        addrs, tls = settings.pd_addrs, settings.tls
        async with AsyncExitStack() as stack:
            kv = await AsyncClient.connect(addrs, tls=tls, settings=settings.kv, clock=clock)
            stack.push_async_callback(kv.close)
            pd = await PdClient.connect(addrs, tls=tls, settings=settings.kv, clock=clock)
            stack.push_async_callback(pd.close)
            puller = await SubscriptionClient.connect(
                addrs, tls=tls, kv=settings.kv, settings=settings.puller, clock=clock
            )
            stack.push_async_callback(puller.close)
            return cls(kv, pd, puller, stack.pop_all())

    async def close(self) -> None:
        await self._closing.aclose()


class _LeftOut(NamedTuple):
    """A table that is not captured, as it was when that was decided; it is considered again once it changes.

    A table whose history is lost is captured again when its folder is removed from storage. A table that has
    ended has no refusal.
    """

    table: CapturedTable
    lost: bool = False
    refusal: Refusal | None = None
    flashback: bool = False  # a FLASHBACK CLUSTER is the reason; it may be cancelled yet


class Capture:
    """Captures tables until `stop`, or until `failed` is set: an error after which this process cannot go on.

    Start it with `Capture.start`. Tables come and go with the schema and with the other captures; each is
    captured from the timestamp up to which its manifest, or this capture's own log, is complete. A defect of
    one table costs that table only: it is left out, and the others go on.
    """

    def __init__(
        self,
        settings: Settings,
        clients: _Clients,
        storage: ObjectStorage,
        data_id: str,
        access: FlightAccess,
        clock: Clock,
    ) -> None:
        self._settings: CaptureSettings = settings.capture
        self._clients = clients
        self._storage = storage
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self.schemas = SchemaHistory()
        decoder = TidbRowDecoder()
        self.store = EventStore(
            self._settings,
            storage,
            decoder=decoder,
            schemas=self.schemas,
            clock=clock,
            holds_rewrites=True,
            holds_first_scans=True,
            on_fenced=lambda table_id: self._call_soon(self._drop_lost, table_id),
            on_refused=lambda table_id, error: self._call_soon(self._refuse, table_id, error),
            on_failure=lambda error: self._call_soon(self._fail, error),
        )
        self._reader = Reader(self.store, storage, decoder)
        self._leases = CaptureMembership(
            clients.kv,
            capture_id=self._settings.id,
            data_id=data_id,
            ttl_s=self._settings.lease_ttl_s,
        )
        self._safe_point = ServiceSafePoint(clients.pd, self._settings.id)
        self._access = access
        self._flight: FlightService | None = None
        self._names = TableNames(storage, self.store, self.schemas)
        self._subscriptions: dict[int, int] = {}  # table -> subscription
        self._loading: set[int] = set()  # tables whose first snapshot is being loaded; logged once
        self._left_out: dict[int, _LeftOut] = {}
        self._held_until: tuple[float, int] = (0.0, 0)  # by the monotonic clock, and by the wall clock
        self._live: Mapping[str, CaptureLease] = {}
        self._rounds: list[asyncio.Task[None]] = []
        self._forgetting: dict[int, asyncio.Task[None]] = {}  # lost tables, until they are closed
        self._unchecked: set[int] = set()  # tables whose first scan may leave out rows
        self._checking: dict[int, asyncio.Task[None]] = {}

    @property
    def cluster_id(self) -> int:
        """The cluster whose changes it captures."""
        return self._clients.kv.cluster_id

    @classmethod
    async def start(cls, settings: Settings, *, clock: Clock = SYSTEM) -> "Capture":
        """Connect, recover, and begin to capture.

        Raises Unavailable when the cluster or storage does not answer, Invalid when a setting cannot work,
        Corrupt when the log is damaged.
        """
        access = await asyncio.to_thread(FlightAccess.of, settings.capture)
        storage = await asyncio.to_thread(
            StorageRef(settings.capture.storage, settings.capture.storage_options).open
        )
        await asyncio.to_thread(storage.keep_private)
        data_id = await asyncio.to_thread(_data_id, settings.capture.data, clock)
        clients = await _Clients.connect(settings, clock)
        capture = cls(settings, clients, storage, data_id, access, clock)
        try:
            await capture._begin()
        except BaseException:
            await capture.stop(flush=False)
            raise
        return capture

    @property
    def flight_addr(self) -> str:
        """The address at which the Flight service listens."""
        assert self._flight is not None, "not started"
        return self._flight.addr

    @property
    def advertised_addr(self) -> str:
        """The address at which others reach the Flight service, as in this capture's lease."""
        host, _, port = (self._settings.flight_advertise_addr or self.flight_addr).rpartition(":")
        return f"{host}:{port if int(port) else self.flight_addr.rpartition(':')[2]}"

    @property
    def tables(self) -> set[int]:
        """The tables that are captured here now."""
        return set(self._subscriptions)

    def refusals(self) -> list[Refusal]:
        """Return the tables of this capture that it cannot capture, and why. Callable from any thread."""
        left_out = list(self._left_out.items())
        return [
            left.refusal
            for table_id, left in left_out
            if left.refusal is not None and self._is_mine(table_id)
        ]

    async def stop(self, *, flush: bool = True) -> None:
        """Stop pulling, flush complete changes, give up the tables. Stopping twice is fine."""
        self.store.stop_holding_back()  # else a subscription that waits for a flush could not end
        for task in self._rounds:
            task.cancel()
        for check in self._checking.values():
            check.cancel()
        work = (*self._rounds, *self._forgetting.values(), *self._checking.values())
        await asyncio.gather(*work, return_exceptions=True)
        self._rounds = []
        await asyncio.gather(
            *(self._clients.puller.unsubscribe(subscription) for subscription in self._subscriptions.values())
        )
        self._subscriptions = {}
        if self._flight is not None:
            await asyncio.to_thread(self._flight.close)
            self._flight = None
        await asyncio.to_thread(self.store.close, flush=flush)
        if flush:
            await self._give_up_lease()
        await self._clients.close()

    async def _give_up_lease(self) -> None:
        try:
            await self._leases.give_up()
        except PenstockError as error:
            _log.warning("the lease was not given up; it will run out", extra={"reason": str(error)})

    async def _begin(self) -> None:
        await asyncio.to_thread(self.store.start)
        await self._clients.puller.subscribe(
            KeySpan(0, *META_RANGE),
            _FIRST_TS,
            self.schemas.consume_kv_events,
            self.schemas.advance_resolved_ts,
            on_failure=self._subscription_failed,
        )
        await self._wait_for_schemas()
        await asyncio.to_thread(self._names.start)
        self._flight = await asyncio.to_thread(
            FlightService,
            self._settings.flight_addr,
            self.store,
            self._reader,
            self._access,
            refusals=self.refusals,
            captured=self._settings.tables,
        )
        self._live = await self._leases.renew(self.advertised_addr)
        await self._share_tables()
        await self._remove_uninvited()
        await self._hold_back_gc()
        every = self._settings.lease_ttl_s / _RENEWALS_PER_TTL
        self._rounds = [
            asyncio.create_task(self._repeat(_ROUND_S, self._share_tables), name="penstock-capture-share"),
            asyncio.create_task(
                self._repeat(_ROUND_S, self._store_rewritten_rows), name="penstock-capture-rewrites"
            ),
            asyncio.create_task(
                self._repeat(_FIRST_SCAN_ROUND_S, self._check_first_scans),
                name="penstock-capture-first-scans",
            ),
            asyncio.create_task(self._repeat(every, self._renew), name="penstock-capture-lease"),
            asyncio.create_task(
                self._repeat(_SAFE_POINT_EVERY_S, self._hold_back_gc), name="penstock-capture-gc"
            ),
            asyncio.create_task(
                self._repeat(_LOOK_EVERY_S, self._revisit_tables), name="penstock-capture-look"
            ),
        ]

    async def _wait_for_schemas(self) -> None:
        """Wait until every present schema is known, so that no table is missed."""
        now_ts = await self._clients.kv.timestamp()
        deadline = self._clock.monotonic() + _SCHEMA_WAIT_S
        while self.schemas.resolved_ts() < now_ts:
            if self.failed.done():
                await self.failed
            if self._clock.monotonic() > deadline:
                raise Unavailable("the cluster's schemas did not arrive within a minute; check its stores")
            await self._clock.sleep(0.02)

    async def _repeat(self, every_s: float, work: Callable[[], Awaitable[object]]) -> None:
        """Repeat some work for ever; log temporary errors, and end the capture on others."""
        while True:
            await self._clock.sleep(every_s)
            try:
                await work()
            except (Conflict, Denied, Unavailable, Undetermined) as error:
                _log.warning(
                    "background work of the capture failed; it will be tried again",
                    extra={"reason": str(error)},
                )
            except PenstockError as error:
                self._fail(error)
                return

    async def _renew(self) -> None:
        self._live = await self._leases.renew(self.advertised_addr)

    async def _share_tables(self) -> None:
        """Take the tables that belong to this capture, give up those that do not."""
        known = {table.physical_id: table for table in self._list_candidates()}
        for table in known.values():
            if table.refused and table.physical_id in self._subscriptions and self._has_all(table):
                await self._leave_out(table, table.refused, since_ts=self._refused_ts(table))
            elif table.physical_id in self._subscriptions and table.physical_id in self.store.tables():
                await self._check_flashback(table)
        self._left_out = {
            table_id: left_out
            for table_id, left_out in self._left_out.items()
            if known.get(table_id) == left_out.table
        }
        mine = {table_id for table_id in known if self._is_mine(table_id) and table_id not in self._left_out}
        for table_id in set(self._subscriptions) - mine:
            await self._close_table(table_id)
        await asyncio.to_thread(self._names.mark, list(self._subscriptions))
        for table_id in self.store.ended_tables():
            await asyncio.to_thread(self.store.flush, table_id)
        kept = self.store.recovered_tables().union(self.store.tables())  # some were never subscribed
        for table_id in kept.difference(mine, self._subscriptions, self._forgetting):
            await asyncio.to_thread(self.store.close_table, table_id, flush=False)
        missing = sorted(mine.difference(self._subscriptions, self._forgetting))
        for start in range(0, len(missing), _OPENED_AT_ONCE):
            taking = (
                self._take_table(known[table_id]) for table_id in missing[start : start + _OPENED_AT_ONCE]
            )
            failures = [
                failure for failure in await asyncio.gather(*taking, return_exceptions=True) if failure
            ]
            if failures:
                raise failures[0]

    def _is_mine(self, table_id: int) -> bool:
        return sharing.owner_of(table_id, self._live) == self._settings.id

    def _list_candidates(self) -> list[CapturedTable]:
        """Return the tables that exist, and those dropped whose rows may not all be flushed."""
        recent = compose_ts(max(0, physical_ms(self.schemas.resolved_ts()) - _DROPPED_KEPT_MS))
        recovered = self.store.recovered_tables()
        owned = self.store.tables()
        chosen = []
        for table in self.schemas.tables_ever():
            rows = owned.get(table.physical_id)
            finished = rows is not None and rows.flushed_ts >= table.dropped_ts
            left = table.physical_id in recovered or self._names.is_unended(table.physical_id)
            long_gone = table.dropped_ts <= recent and rows is None and not left
            if table.dropped_ts and (finished or long_gone):
                continue
            if sharing.matches_patterns(table.database, table.table.name, self._settings.tables):
                chosen.append(table)
        return chosen

    async def _take_table(self, table: CapturedTable) -> None:
        if table.refused and not await asyncio.to_thread(self._names.is_marked, table.physical_id):
            # It was never captured, so it needs no manifest.
            self._record_left_out(table, table.refused, since_ts=self._refused_ts(table))
            return
        if await asyncio.to_thread(is_load_in_progress, self._storage, table.physical_id):
            self._wait_for_load(table)
            return
        self._loading.discard(table.physical_id)
        try:
            rows = await asyncio.to_thread(self.store.open_table, table.physical_id)
        except Corrupt as error:
            await self._leave_out(table, str(error), since_ts=self.schemas.resolved_ts(), flush=False)
            return
        await asyncio.to_thread(self._names.mark, [table.physical_id])
        if table.dropped_ts and (table.refused or rows.flushed_ts >= table.dropped_ts):
            await asyncio.to_thread(self._names.end, table)
            await asyncio.to_thread(self.store.close_table, table.physical_id)
            self._left_out[table.physical_id] = _LeftOut(table)
            return
        if table.refused and self._has_all(table):  # the log may have changes from before, which are flushed
            await self._leave_out(table, table.refused, since_ts=self._refused_ts(table))
            return
        if await self._check_flashback(table) or await self._check_history(table, rows.resolved_ts):
            return
        self._subscriptions[table.physical_id] = await self._clients.puller.subscribe(
            KeySpan(table.physical_id, *record_range(table.physical_id)),
            max(_FIRST_TS, rows.resolved_ts),
            rows.consume_kv_events,
            partial(self._advance, rows),
            on_failure=self._subscription_failed,
        )
        if rows.disowned:  # it was lost before there was a subscription to end
            self._drop_lost(table.physical_id)
            return
        if rows.incomplete:
            self._unchecked.add(table.physical_id)
        _log.info(
            "capturing",
            extra={"table": f"{table.database}.{table.table.name}", "table_id": table.physical_id,
                   "from_ts": rows.resolved_ts},
        )  # fmt: skip

    def _wait_for_load(self, table: CapturedTable) -> None:
        """Leave a table to the load of its first snapshot; a later round takes it."""
        if table.physical_id not in self._loading:
            self._loading.add(table.physical_id)
            _log.info(
                "waiting for the load of a table",
                extra={"table": f"{table.database}.{table.table.name}", "table_id": table.physical_id},
            )

    async def _check_flashback(self, table: CapturedTable) -> bool:
        """Leave a table out whose rows a FLASHBACK CLUSTER takes back; return whether that is so.

        No change stands for such a row, and TiKV may not send it.
        """
        ts = self.store.find_flashback(table.physical_id)
        if not ts:
            return False
        reason = (
            f"FLASHBACK CLUSTER takes rows back from {ts} on, which are not captured; rebuild targets of the"
            " table, and begin changefeeds of it anew in new directories"
        )
        await self._leave_out(table, reason, since_ts=ts, lost=True)
        self._left_out[table.physical_id] = self._left_out[table.physical_id]._replace(flashback=True)
        return True

    async def _check_history(self, table: CapturedTable, resolved_ts: int) -> bool:
        """Hold back collection for a table; leave it out when changes after its `resolved_ts` may be gone.

        Returns whether it was left out. Deletions among the missing changes would never be known. A table
        that is captured for the first time has no such gap; its history begins where the cluster's does, or
        where the table was created, unless nobody knows until when another table had its name.
        """
        collected_ts = await self._hold_back_gc()
        if not resolved_ts and (
            self._creation_ts(table.physical_id) <= collected_ts
            or await asyncio.to_thread(self._names.follows_lost_end, table.physical_id)
        ):
            begun = {"kind": BEGUN, "ts": collected_ts}  # earlier history is incomplete
            await asyncio.to_thread(self.store.record_fact, table.physical_id, begun)
        if not 0 < resolved_ts < collected_ts:
            return False
        reason = _describe_gap(resolved_ts, collected_ts)
        await self._leave_out(table, reason, since_ts=resolved_ts + 1, lost=True)
        return True

    def _creation_ts(self, table_id: int) -> int:
        """Return when a table, or partition, was created, or later if the cluster has collected that.

        Nothing is missing of a table that was created after a collection.
        """
        return self.schemas.versions(table_id, 0, self.schemas.resolved_ts())[0].since_ts

    def _advance(self, rows: TableLog, ts: int) -> None:
        """Take a resolved-ts while history is held.

        A capture that slept for longer than its safe point lasts goes on where its subscriptions were, below
        what was collected meanwhile. Nothing counts as complete then until `_hold_back_gc` has checked.
        """
        monotonic_s, wall_ms = self._held_until
        holds = self._clock.monotonic() < monotonic_s and self._clock.wall_ms() < wall_ms
        if holds and rows.table_id in self._subscriptions:
            rows.advance_resolved_ts(ts)

    def _refused_ts(self, table: CapturedTable) -> int:
        """Return since when the schema of a refused table is one whose rows cannot be kept."""
        return self.schemas.storable_ts(table.physical_id) + 1

    def _has_all(self, table: CapturedTable) -> bool:
        """Return whether every change is here that a refused table had before its schema was refused."""
        rows = self.store.tables().get(table.physical_id)
        return rows is None or rows.resolved_ts + 1 >= self._refused_ts(table)

    async def _leave_out(
        self, table: CapturedTable, reason: str, *, since_ts: int, lost: bool = False, flush: bool = True
    ) -> None:
        """Give a table up until something about it changes. When that fails, the next round repeats it."""
        table_id = table.physical_id
        subscription = self._subscriptions.pop(table_id, None)
        if subscription is not None:
            await self._clients.puller.unsubscribe(subscription)
        if table_id in self.store.tables():
            await asyncio.to_thread(self._names.end, table)
        await asyncio.to_thread(self.store.close_table, table_id, flush=flush)
        self._record_left_out(table, reason, since_ts=since_ts, lost=lost)

    def _record_left_out(
        self, table: CapturedTable, reason: str, *, since_ts: int, lost: bool = False
    ) -> None:
        """Remember that a table is left out, tell it to readers, and log it once."""
        if lost:
            reason += "; remove its folder from storage to capture it again"
        refusal = Refusal(table.physical_id, reason, since_ts)
        self._left_out[table.physical_id] = _LeftOut(table, lost, refusal)
        _log.error(
            "table left out: its history is lost" if lost else "table left out",
            extra={
                "table": f"{table.database}.{table.table.name}",
                "table_id": table.physical_id,
                "reason": reason,
            },
        )

    def _refuse(self, table_id: int, error: PenstockError) -> None:
        """Drop a table that the store gave up because its rows cannot be kept."""
        table = self._find_table(table_id)
        if table is not None:
            rows = self.store.tables().get(table_id)
            since_ts = self.schemas.resolved_ts() if rows is None else rows.flushed_ts + 1
            self._record_left_out(table, str(error), since_ts=since_ts)
        self._drop_lost(table_id)

    def _find_table(self, table_id: int) -> CapturedTable | None:
        return next((table for table in self.schemas.tables_ever() if table.physical_id == table_id), None)

    async def _revisit_tables(self) -> None:
        """Find lost tables whose folder was removed, and end tables that the cluster has forgotten.

        Another capture, of an earlier release, may still have captured the job log.
        """
        await self._remove_uninvited()
        for table_id, left_out in list(self._left_out.items()):
            refusal = left_out.refusal
            cancelled = (
                left_out.flashback
                and refusal is not None
                and self.schemas.flashback(table_id, refusal.since_ts - 1) != refusal.since_ts
            )
            if cancelled or (left_out.lost and await asyncio.to_thread(self._is_removed, table_id)):
                self._left_out.pop(table_id, None)
        forgotten = [
            table_id
            for table_id, names in self._names.forgotten.items()
            if self._is_mine(table_id)
            and any(sharing.matches_patterns(*name, self._settings.tables) for name in names)
        ]
        for table_id in forgotten:
            await asyncio.to_thread(self._names.end_forgotten, table_id)

    async def _remove_uninvited(self) -> None:
        """Remove what an earlier release captured of the job log through a wildcard.

        Its rows held the options of jobs, with their secrets. When storage refuses, it is tried again.
        """
        for table_id in filter(self._is_mine, self._names.find_uninvited(self._settings.tables)):
            try:
                await asyncio.to_thread(self._names.remove, table_id)
            except (Denied, Unavailable) as error:
                _log.warning(
                    "the captured job log is not removed from storage yet", extra={"reason": str(error)}
                )
            else:
                _log.info("removed the captured job log from storage", extra={"table_id": table_id})

    def _is_removed(self, table_id: int) -> bool:
        """Return whether nothing is left of a table's folder but history holds, which readers write any time.

        Before that, somebody who removes the folder could remove new files with it.
        """
        root = paths.table_root(table_id)
        if self._storage.names(paths.manifest_folder(root)):
            return False
        return all(name.startswith(paths.history_hold_folder(root)) for name in self._storage.names(root))

    async def _close_table(self, table_id: int) -> None:
        table = self._find_table(table_id)
        rows = self.store.tables().get(table_id)
        if table is not None and rows is not None and rows.flushed_ts >= table.dropped_ts:
            await asyncio.to_thread(self._names.end, table)
        await self._clients.puller.unsubscribe(self._subscriptions.pop(table_id))
        await asyncio.to_thread(self.store.close_table, table_id)
        _log.info("table given up", extra={"table_id": table_id})

    async def _hold_back_gc(self) -> int:
        """Keep the history that may have to be pulled again if this machine is lost.

        Returns the timestamp below which history may be gone. A table that is not complete up to there is
        left out: its subscription may start again at any moment, and would miss changes then.
        """
        until = (
            self._clock.monotonic() + HOLD_TTL_S,
            self._clock.wall_ms() + HOLD_TTL_S * 1000,
        )
        found = await self._safe_point.hold(self._needed_ts)
        collected_ts = await self._safe_point.read_published_ts()
        if found is None:
            return collected_ts
        needed_ts, held_ts = found
        if held_ts > needed_ts:
            collected_ts = max(collected_ts, held_ts)
        if held_ts > needed_ts > _FIRST_TS:
            _log.warning(
                "the cluster has collected history that would be needed if this machine were lost",
                extra={"needed_ts": needed_ts, "safe_point": held_ts},
            )
        if collected_ts > needed_ts:
            for table_id, resolved_ts in self._incomplete_tables(collected_ts).items():
                await self._give_up(table_id, resolved_ts, collected_ts)
        self._held_until = until
        return collected_ts

    def _incomplete_tables(self, ts: int) -> dict[int, int]:
        """Return the captured tables that are complete up to less than `ts`, and up to where.

        One that was never complete counts from where it was begun, or created.
        """
        found = {}
        for table_id, rows in self.store.tables().items():
            if table_id in self._subscriptions:
                oldest_ts = self.store.ownership(table_id).state.oldest_ts
                complete_ts = rows.resolved_ts or max(oldest_ts, self._creation_ts(table_id))
                if complete_ts < ts:
                    found[table_id] = rows.resolved_ts
        return found

    async def _give_up(self, table_id: int, resolved_ts: int, collected_ts: int) -> None:
        """End the subscription of a table that may miss changes, unless that has been done."""
        table = self._find_table(table_id)
        if table_id not in self._subscriptions:
            return
        if table is None or not resolved_ts:  # its first scan did not end: the next round starts it again
            self._drop_lost(table_id)
            return
        reason = _describe_gap(resolved_ts, collected_ts)
        leaving = self._leave_out(table, reason, since_ts=resolved_ts + 1, lost=True)
        await self._run_apart(table_id, leaving)

    async def _store_rewritten_rows(self) -> None:
        """Read the tables again in which a rewritten column takes the place of another, as of that moment.

        TiKV does not send the updates by which TiDB writes the new values. Until they are stored, the table
        cannot be read past the rewrite. After a crash it is read again, unless its rows are in objects.
        """
        for table_id in list(self._subscriptions):
            rows = self.store.tables().get(table_id)
            ts = 0 if rows is None else self.store.find_rewrite(table_id)
            if rows is None or not ts:
                continue
            started = self._clock.monotonic()
            try:
                count = await store_rows_at(self._clients.kv.snapshot(ts), rows, ts)
            except Invalid as error:  # the cluster has collected the rows of that time
                table = self._find_table(table_id)
                if table is not None:
                    await self._leave_out(table, str(error), since_ts=ts, lost=True)
                continue
            rows.finish_rewrite(ts)
            _log.info(
                "stored the values of a rewritten column",
                extra={"table_id": table_id, "ts": ts, "rows": count,
                       "seconds": round(self._clock.monotonic() - started, 3)},
            )  # fmt: skip

    async def _check_first_scans(self) -> None:
        """Complete tables whose first scan has ended, a few at once.

        TiKV leaves rows out of it that a MODIFY COLUMN or an import of TiDB Lightning wrote last. Where older
        versions of such a row are collected, the scan has nothing of the row.
        """
        for table_id in list(self._unchecked.difference(self._checking)):
            rows = self.store.tables().get(table_id)
            if rows is None or table_id not in self._subscriptions or not rows.incomplete:
                self._unchecked.discard(table_id)
            elif rows.resolved_ts and len(self._checking) < _FIRST_SCANS_MAX:
                check = asyncio.create_task(
                    self._complete_first_scan(rows), name="penstock-capture-first-scan"
                )
                self._checking[table_id] = check
                check.add_done_callback(partial(self._end_check, table_id))

    def _end_check(self, table_id: int, _check: asyncio.Task[None]) -> None:
        del self._checking[table_id]

    async def _complete_first_scan(self, rows: TableLog) -> None:
        """Store the rows of a table that its first scan left out; a later round tries again what failed.

        A row that was there where the history of the table begins is stored there, any other one as of now.
        """
        ts, started = rows.resolved_ts, self._clock.monotonic()
        facts: dict[str, object] = {"table_id": rows.table_id, "ts": ts}
        try:
            known, missing = await compare_rows_at(self._clients.kv.snapshot, rows, ts)
            for missing_at in (self.store.ownership(rows.table_id).state.oldest_ts, ts):
                if missing and missing_at:
                    await compare_rows_at(self._clients.kv.snapshot, rows, missing_at, store=True)
        except (Invalid, Unavailable, Undetermined) as error:  # the rows of that time may be collected by now
            _log.warning(
                "the first scan of a table cannot be checked now", extra={**facts, "reason": str(error)}
            )
            return
        except PenstockError as error:
            self._fail(error)
            return
        rows.finish_first_scan()
        facts |= {"rows": known, "seconds": round(self._clock.monotonic() - started, 3)}
        if missing:
            _log.warning("stored rows that a first scan left out", extra={**facts, "missing": missing})
        else:
            _log.info("the first scan of a table is complete", extra=facts)

    def _needed_ts(self) -> int | None:
        flushed = [max(_FIRST_TS, rows.flushed_ts) for rows in self.store.tables().values()]
        return min(flushed, default=None)

    def _drop_lost(self, table_id: int) -> None:
        """Close a table that has a newer owner; the next round takes it back if it belongs here after all."""
        subscription = self._subscriptions.pop(table_id, None)
        if subscription is not None:
            self._run_apart(table_id, self._forget(table_id, subscription))

    def _run_apart(self, table_id: int, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Give a table up beside the rounds, which leave it alone until that is done."""
        task = asyncio.create_task(work, name="penstock-capture-forget")
        self._forgetting[table_id] = task
        task.add_done_callback(lambda _: self._forgetting.pop(table_id))
        return task

    async def _forget(self, table_id: int, subscription: int) -> None:
        await self._clients.puller.unsubscribe(subscription)
        await asyncio.to_thread(self.store.close_table, table_id, flush=False)

    def _subscription_failed(self, error: Exception) -> None:
        self._fail(
            error if isinstance(error, PenstockError) else PenstockError(f"a subscription failed: {error!r}")
        )

    def _call_soon(self, work: Callable[..., None], *given: object) -> None:
        self._loop.call_soon_threadsafe(work, *given)

    def _fail(self, error: PenstockError) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)


def _describe_gap(from_ts: int, to_ts: int) -> str:
    return f"the cluster has collected changes from {from_ts} to {to_ts}"


def _data_id(data: Path, clock: Clock) -> str:
    """Return a name for this data directory that stays with it; create it if there is none."""
    path = data / "id"
    try:
        make_data_directory(data)
        if (
            not path.exists() or not path.read_bytes()
        ):  # empty: an older version lost power while it wrote the file
            replace_file(path, clock.unique_id().encode("ascii"))
        return path.read_text(encoding="ascii")
    except OSError as error:
        raise Invalid(
            f"data directory {data} cannot be used ({error.strerror}); check capture.data"
        ) from error


async def store_rows_at(snapshot: AsyncSnapshot, rows: TableLog, ts: int) -> int:
    """Store every row that a physical table has at `ts`, as an update that changes nothing for readers.

    Rows that transactions committed at `ts` are left out: they are stored already, with all their values.
    Takes the memory of a few pages. Returns how many rows were stored, once they are on the disk. Raises
    Invalid when the cluster has collected the rows of that time, Unavailable when it does not answer.
    """
    loop, stored = asyncio.get_running_loop(), 0
    held = await asyncio.to_thread(lambda: list(rows.load(rows.list_held(ts - 1, ts), ts - 1, ts)))
    taken = pa.chunked_array([_keys_of_others(batch) for batch in held], pa.binary()).combine_chunks()
    pages: Page = []
    size = 0
    async for page in snapshot.scan_pages(*record_range(rows.table_id)):
        pages += page
        size += sum(len(key) + len(value) for key, value in page)
        if size >= _BACKFILL_BYTES:
            stored += await _store_pages(loop, rows, pages, taken, ts)
            pages, size = [], 0
    return stored + await _store_pages(loop, rows, pages, taken, ts)


async def compare_rows_at(
    read_at: Callable[[int], AsyncSnapshot], rows: TableLog, ts: int, *, store: bool = False
) -> tuple[int, int]:
    """Return how many rows a physical table has at `ts`, and how many of them no change up to then made.

    With `store` the latter are stored, on the disk when it returns; they are no changes for readers. Reads
    the keys of the table, and the values of what it stores. Takes the memory of a million keys. Raises
    Invalid when the cluster has collected the rows of that time, Unavailable when it does not answer.
    """
    loop, known, missed = asyncio.get_running_loop(), 0, 0
    keys: list[bytes] = []

    async def compare() -> int:
        missing = await asyncio.to_thread(_find_missing, rows, keys, ts)
        for start in range(0, len(missing) if store else 0, _FETCHED_KEYS):
            found = await read_at(ts).batch_get(missing[start : start + _FETCHED_KEYS])
            await _store_raw(loop, rows, _inserts(found, ts))
        return len(missing)

    async for page in read_at(ts).scan_pages(*record_range(rows.table_id), key_only=True):
        keys += [key for key, _ in page]
        if len(keys) >= _COMPARED_KEYS:
            known, missed = known + len(keys), missed + await compare()
            keys = []
    return known + len(keys), missed + (await compare() if keys else 0)


def _find_missing(rows: TableLog, keys: list[bytes], ts: int) -> list[bytes]:
    """Return those of a range's keys that no row has by the changes up to `ts` that are held."""
    names = ["key", "commit_ts", "start_ts", "op"]
    parts = []
    for batch in rows.load(rows.list_held(0, ts), 0, ts):
        held = batch.column("key")
        inside = pc.and_(pc.greater_equal(held, keys[0]), pc.less_equal(held, keys[-1]))
        parts.append(batch.select(names).filter(inside))
    schema = pa.schema([RAW_SCHEMA.field(name) for name in names])
    changes = pa.Table.from_batches(parts, schema).sort_by(
        [("commit_ts", "ascending"), ("start_ts", "ascending")]
    )
    last = changes.group_by("key", use_threads=False).aggregate([("op", "last")])
    live = last.filter(pc.equal(last.column("op_last"), int(Op.PUT))).column("key")
    wanted = pa.array(keys, pa.binary())
    missing: list[bytes] = wanted.filter(pc.invert(pc.is_in(wanted, value_set=live))).to_pylist()
    return missing


def _inserts(found: Mapping[bytes, bytes], ts: int) -> pa.RecordBatch:
    """Return rows as inserts by a transaction that starts when it commits, which no change of others does."""
    times = pa.repeat(pa.scalar(ts, pa.uint64()), len(found))
    ops = pa.repeat(pa.scalar(Op.PUT, pa.uint8()), len(found))
    keys, values = (pa.array(list(each), pa.binary()) for each in (found.keys(), found.values()))
    return pa.RecordBatch.from_arrays(
        [ops, times, times, keys, values, pa.nulls(len(found), pa.binary())], schema=RAW_SCHEMA
    )


def _keys_of_others(batch: pa.RecordBatch) -> pa.Array:
    """Return the keys that transactions of the cluster wrote; a capture's own rows start when they commit."""
    own = pc.equal(batch.column("start_ts"), batch.column("commit_ts"))
    return batch.column("key").filter(pc.invert(own))


async def _store_pages(
    loop: asyncio.AbstractEventLoop, rows: TableLog, page: Page, taken: pa.Array, ts: int
) -> int:
    keys = pa.array([key for key, _ in page], pa.binary())
    values = pa.array([value for _, value in page], pa.binary())
    times = pa.repeat(pa.scalar(ts, pa.uint64()), len(page))
    ops = pa.repeat(pa.scalar(Op.PUT, pa.uint8()), len(page))
    batch = pa.RecordBatch.from_arrays([ops, times, times, keys, values, values], schema=RAW_SCHEMA)
    batch = batch.filter(pc.invert(pc.is_in(keys, value_set=taken)))
    await _store_raw(loop, rows, batch)
    return int(batch.num_rows)


async def _store_raw(loop: asyncio.AbstractEventLoop, rows: TableLog, batch: pa.RecordBatch) -> None:
    """Store rows that were read from the cluster; return when they are on the disk."""
    durable = asyncio.Event()

    def finish() -> None:
        loop.call_soon_threadsafe(durable.set)

    if await asyncio.to_thread(rows.store_backfill, batch, finish):
        await durable.wait()
