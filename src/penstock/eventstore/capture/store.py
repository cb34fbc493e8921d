"""The event store: the log, the tables over it, and the flushes that move their rows into objects."""

import logging
import shutil
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa

from penstock import metrics
from penstock.clock import SYSTEM, TS_MAX, Clock, physical_ms
from penstock.errors import PenstockError, Unavailable
from penstock.eventstore.log.frames import Frame, FrameKind, decode_rows
from penstock.eventstore.log.rows import commit_bounds, select_between
from penstock.eventstore.log.segments import Fit, LogLocation
from penstock.eventstore.log.table_log import LoggedBatch, MemoryBudget, TableBacklog, TableLog
from penstock.eventstore.log.wal import Wal
from penstock.eventstore.manifest import ManifestState
from penstock.eventstore.manifest_log import Ownership
from penstock.eventstore.objects.build import Build, Schemas
from penstock.eventstore.objects.flush import Flusher, FlushPolicy, OwnedTable
from penstock.eventstore.objects.primary_key_index import PrimaryKeyIndex
from penstock.eventstore.upkeep.merge import MergeOutput, MergePlan, check_output
from penstock.eventstore.upkeep.upkeep import Upkeep
from penstock.object_storage import ObjectStorage
from penstock.settings import CaptureSettings
from penstock.tables.decoding.decoder import RowDecoder

_log = logging.getLogger(__name__)

_TICK_S = 0.2


class EventStore:
    """Takes raw batches of many tables, keeps them durable, and flushes them. Thread-safe.

    After a crash at any moment, `start` finds everything that was acknowledged, and each table says from
    where its subscription goes on; repeated deliveries are recognised. With `holds_rewrites` a table cannot
    be read past the rewrite of a column until its values are stored; with `holds_first_scans` a table without
    objects cannot be read before `finish_first_scan`. `on_fenced` is called with a table that a newer owner
    has taken, `on_refused` with one that was given up because its rows cannot be kept, `on_failure` with an
    error that ends the store. All are called on a thread of the store and must not block.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        storage: ObjectStorage,
        *,
        decoder: RowDecoder,
        schemas: Schemas,
        clock: Clock = SYSTEM,
        holds_rewrites: bool = False,
        holds_first_scans: bool = False,
        on_fenced: Callable[[int], None] = lambda _: None,
        on_refused: Callable[[int, PenstockError], None] = lambda _, __: None,
        on_failure: Callable[[PenstockError], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._storage = storage
        self._clock = clock
        self._holds_rewrites = holds_rewrites
        self._holds_first_scans = holds_first_scans
        self._on_fenced = on_fenced
        self._on_refused = on_refused
        self._on_failure = on_failure
        self._writer = f"{settings.id}/{clock.unique_id()[:12]}"
        self.schemas = schemas
        scratch = settings.data / "scratch"
        self._flusher = Flusher(
            Build(storage, decoder, scratch, clock),
            schemas,
            settings.sort_bytes,
            settings.large_txn_bytes,
            clock,
            on_fenced=self._drop_fenced,
            on_refused=self._drop_refused,
            on_failure=self._fail,
        )
        self._wal = Wal(
            settings.data / "wal",
            segment_bytes=settings.wal_segment_bytes,
            queue_bytes=settings.wal_queue_bytes,
            on_failure=self._fail,
            clock=clock,
        )
        self._index: PrimaryKeyIndex | None = (
            None  # opened by `start`, after the log, whose lock keeps other processes out
        )
        self._memory = MemoryBudget(settings.memory_bytes)
        self._policy = FlushPolicy(
            flush_bytes=settings.flush_bytes,
            flush_interval_s=settings.flush_interval_s,
            idle_flush_interval_s=settings.idle_flush_interval_s,
            memory_bytes=settings.memory_bytes,
            wal_bytes=settings.wal_bytes,
        )
        self._upkeep = Upkeep(
            settings.upkeep,
            storage,
            scratch=scratch,
            sort_bytes=settings.sort_bytes,
            tables=self._all_owned,
            on_fenced=self._drop_fenced,
            clock=clock,
        )
        self._tables: dict[int, OwnedTable] = {}
        self._recovered: dict[int, list[LoggedBatch]] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._relief = threading.Condition()
        self._crowded = False
        self._yielding = False
        self._stopping = False
        self._closed = False
        self._failure: PenstockError | None = None
        self._pool = ThreadPoolExecutor(settings.flush_threads, thread_name_prefix="penstock-flush")
        self._scheduler = threading.Thread(target=self._schedule, name="penstock-flushes", daemon=True)

    def start(self) -> None:
        """Replay the log and begin to flush.

        Raises Corrupt when the log is damaged, Invalid when its folder cannot be used.
        """
        self._wal.start(self._replay)
        self._index = PrimaryKeyIndex(self._settings.data / "index", clock=self._clock)
        shutil.rmtree(
            self._settings.data / "scratch", ignore_errors=True
        )  # left by a process that was killed
        self._scheduler.start()
        self._upkeep.start()

    def _replay(self, frame: Frame, place: LogLocation) -> None:
        if frame.kind is FrameKind.FORGET:
            self._recovered.pop(frame.table_id, None)
            return
        batch = decode_rows(frame)
        held = LoggedBatch.of(place, batch, commit_bounds(batch), self._clock.monotonic(), in_memory=False)
        self._recovered.setdefault(frame.table_id, []).append(held)
        self._wal.keep(place, frame.table_id, held.max_ts)

    def recovered_tables(self) -> set[int]:
        """Return the tables of which the log still holds something, not opened since the start."""
        with self._lock:
            return (set(self._recovered) | set(self._wal.resolved_by_table())) - set(self._tables)

    def open_table(self, table_id: int) -> TableLog:
        """Become a table's owner; every other owner is fenced. Blocks on storage.

        The subscription starts from the result's `resolved_ts`.
        """
        with self._lock:
            if table_id in self._tables:
                return self._tables[table_id].rows
        ownership = Ownership(self._storage, table_id, writer=self._writer, clock=self._clock)
        flushed_ts = ownership.state.flushed_ts
        self._join_log(table_id, ownership.state)
        assert self._index is not None, "start first"
        index = self._index.table(table_id, self._storage)
        with self._lock:
            table = TableLog(
                table_id,
                wal=self._wal,
                memory=self._memory,
                clock=self._clock,
                flushed_ts=flushed_ts,
                resolved_ts=self._wal.cover(table_id).resolved_ts,
                changed_ts=ownership.state.changed_ts,
                rewritten_ts=max(flushed_ts, ownership.state.oldest_ts) if self._holds_rewrites else TS_MAX,
                begun_ts=self._begun_ts(table_id, ownership.state) if self._holds_rewrites else TS_MAX,
                incomplete=self._holds_first_scans and not flushed_ts,
                recovered=self._recovered.pop(table_id, ()),
                admit=self._admit,
                on_advance=self._wake_if_due,
                name=partial(self._name_of, table_id),
            )
            self._tables[table_id] = OwnedTable(table, ownership, index)
        self._wal.mark_flushed(table_id, flushed_ts)
        return table

    def _begun_ts(self, table_id: int, state: ManifestState) -> int:
        """Return a timestamp up to which the captured changes are complete, whatever happened to the cluster.

        The first scan of a table without changes comes now. How old the log is nobody knows; its objects do.
        """
        fresh = not max(state.flushed_ts, self._wal.cover(table_id).resolved_ts)
        return self.schemas.resolved_ts() if fresh else max(state.flushed_ts, state.oldest_ts)

    def _join_log(self, table_id: int, state: ManifestState) -> None:
        """Make the log hold only changes of a table that follow its objects and can be read."""
        flushed_ts = state.flushed_ts
        cover = self._wal.cover(table_id)
        fit = cover.fit_to(flushed_ts)
        if fit is Fit.GAP:
            _log.warning(
                "storage is older than the log; changes are pulled again",
                extra={"table_id": table_id, "from_ts": flushed_ts, "to_ts": cover.cut_ts},
            )
            self._void(table_id)  # else a later start would trust its resolved-ts
        elif not max(flushed_ts, cover.resolved_ts):
            # Rows of a first scan that did not end. The scan is repeated. Deletes of some of these rows may
            # be collected by now, so the rows must not stay.
            self._void(table_id)
        elif self._has_outlived_schemas(table_id, state):
            _log.warning(
                "the log is older than the schemas that are known; changes are pulled again",
                extra={"table_id": table_id, "from_ts": flushed_ts, "to_ts": cover.resolved_ts},
            )
            self._void(table_id)
            fit = Fit.ENDS
        if fit is not Fit.JOINS:
            self._wal.begin(table_id, flushed_ts)

    def _void(self, table_id: int) -> None:
        """Void everything that the log has of a table that is not owned."""
        with self._lock:
            known = (
                self._recovered.pop(table_id, None) is not None or table_id in self._wal.resolved_by_table()
            )
        if known:
            self._wal.forget(table_id)

    def _has_outlived_schemas(self, table_id: int, state: ManifestState) -> bool:
        """Return whether the log has changes that are older than every known schema of their table.

        The cluster has collected their own schemas. Read with a later one they would lose columns, or gain
        some.
        """
        with self._lock:
            recovered = self._recovered.get(table_id, [])
        if not recovered:
            return False
        try:
            oldest = self.schemas.versions(table_id, state.flushed_ts, self.schemas.resolved_ts())[0]
        except Unavailable:  # no table without a schema is read or flushed
            return False
        if (
            oldest.since_ts <= max(state.flushed_ts, state.oldest_ts) + 1
        ):  # older changes cannot be read anyway
            return False
        batches = (self._wal.load(held.place) for held in recovered)
        return any(select_between(batch, state.flushed_ts, oldest.since_ts - 1).num_rows for batch in batches)

    def close_table(self, table_id: int, *, flush: bool = True) -> None:
        """Give a table up: flush its resolved rows and forget the rest, which its next owner pulls again."""
        with self._lock:
            table = self._tables.get(table_id)
        if table is not None:
            with table.flushing:
                if flush:
                    self._flusher.flush(table)
                table.rows.disown()
        assert self._index is not None, "start first"
        self._index.forget(table_id)
        with self._lock:
            self._tables.pop(table_id, None)
            self._recovered.pop(table_id, None)
        self._wal.forget(table_id)

    def tables(self) -> dict[int, TableLog]:
        """Return the tables that are owned, by id."""
        with self._lock:
            return {table_id: table.rows for table_id, table in self._tables.items()}

    def rows(self, table_id: int) -> TableLog:
        """Return the rows of an owned table; raise Unavailable when it is not owned here."""
        return self._find_owned(table_id).rows

    def ownership(self, table_id: int) -> Ownership:
        """Return the manifest of an owned table; raise Unavailable when it is not owned here."""
        return self._find_owned(table_id).ownership

    def readable_ts(self, table_id: int) -> int:
        """Return how far a table can be read: up to its resolved-ts, and no further than its schemas allow.

        A table that ended can be read past its end once its manifest says that it ended. Until then readers,
        who look there, would take it for the table that has the name.
        """
        rows = self._find_owned(table_id).rows
        flushed_ts, complete_ts = rows.flushed_ts, self._complete_ts(rows)
        ends = self.schemas.ends(table_id, flushed_ts, complete_ts)
        return max(flushed_ts, ends[0] - 1 if ends else complete_ts)

    def ended_tables(self) -> list[int]:
        """Return the tables that ended and are complete up to then, but whose manifests do not say so.

        A flush records the end.
        """
        return [
            table_id
            for table_id, rows in self.tables().items()
            if self.schemas.ends(table_id, rows.flushed_ts, self._complete_ts(rows))
        ]

    def _complete_ts(self, rows: TableLog) -> int:
        """Return how far a flush would reach."""
        return min(rows.resolved_ts, self._flusher.storable_ts(rows))

    def find_flashback(self, table_id: int) -> int:
        """Return the FLASHBACK CLUSTER past which a table cannot be captured; 0 without one."""
        return self.schemas.flashback(table_id, self._find_owned(table_id).rows.begun_ts)

    def find_rewrite(self, table_id: int) -> int:
        """Return the first rewrite whose values are not stored, when every change up to it is; else 0.

        A rewrite before the history of the table holds nothing back.
        """
        table = self._find_owned(table_id)
        table.rows.finish_rewrite(table.ownership.state.oldest_ts)
        pending = self._flusher.find_rewrite(table.rows)
        return pending if pending <= table.rows.resolved_ts else 0

    def read_unflushed(
        self, table_id: int, from_ts: int, to_ts: int
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the raw changes in (from_ts, to_ts] that are held, in order and once; close it after use."""
        return self._flusher.changes(self._find_owned(table_id).rows, from_ts, to_ts)

    def flush(self, table_id: int) -> bool:
        """Flush a table now; return whether its manifest holds everything that is readable."""
        return self._flush(self._find_owned(table_id))

    def _flush(self, table: OwnedTable) -> bool:
        with table.flushing:
            return self._flusher.flush(table)

    def record_fact(self, table_id: int, fact: Mapping[str, Any]) -> None:
        """Add a fact to the manifest of an owned table, for ever; adding it twice changes nothing.

        Raises Unavailable when storage does not answer, Fenced when the table has a newer owner.
        """
        table = self._find_owned(table_id)
        with table.flushing:
            if fact not in table.ownership.settle().facts:
                state = table.ownership.commit(facts=[fact])
                table.rows.raise_changed_ts(state.changed_ts)

    def merge(self, table_id: int) -> int:
        """Merge a table's objects until none are left to merge; return how many merges that took.

        Raises Unavailable when storage does not answer, Fenced when the table has a newer owner, Corrupt when
        an object is damaged.
        """
        return self._upkeep.merge(self._find_owned(table_id))

    def plan_merges(self, table_id: int, plans_max: int) -> list[MergePlan]:
        """Plan merges of a table for others to write; `commit_merge` commits the results in any order."""
        return self._upkeep.plan_merges(self._find_owned(table_id), plans_max)

    def commit_merge(self, table_id: int, plan: MergePlan, output: MergeOutput) -> bool:
        """Commit a merge that was written elsewhere; return False when an input left the table meanwhile.

        The objects of a merge that is not committed are deleted later. After Unavailable the commit may have
        happened: call it again. Raises Fenced when the table has a newer owner, Invalid when rows are
        missing.
        """
        table = self._find_owned(table_id)
        known = table.ownership.state.objects
        if all(
            info.id in known for info in (*plan.data, *plan.deleting)
        ):  # else they may be collected, and cannot be counted
            check_output(plan, output, self._storage)
        return self._upkeep.commit(table, plan, output)

    def collect(self, table_id: int) -> int:
        """Collect a table's garbage now; return how many files were deleted.

        Raises Unavailable, Fenced, and Corrupt when a file is damaged that says what is needed.
        """
        return self._upkeep.collect(self._find_owned(table_id))

    def stop_holding_back(self) -> None:
        """Take rows however full the disk is, from now on, so that subscriptions can end without waiting.

        Call it before the subscriptions end, and `close` after.
        """
        with self._relief:
            self._yielding = True
            self._relief.notify_all()

    def close(self, *, flush: bool = True) -> None:
        """Stop; with `flush` flush every table first. Unflushed changes stay in the log.

        Closing twice is fine.
        """
        self._stopping = True
        self._wake.set()
        self.stop_holding_back()
        self._upkeep.stop()
        if self._scheduler.is_alive():
            self._scheduler.join()
        try:
            if flush and self._failure is None and not self._closed:
                list(self._pool.map(self._flush, self._all_owned().values()))
        finally:
            self._closed = True
            self._pool.shutdown()
            if self._index is not None:
                self._index.close()
            self._wal.close()

    def _find_owned(self, table_id: int) -> OwnedTable:
        with self._lock:
            table = self._tables.get(table_id)
        if table is None:
            raise Unavailable(f"table {table_id} is not captured here; ask its owner")
        return table

    def _all_owned(self) -> dict[int, OwnedTable]:
        with self._lock:
            return dict(self._tables)

    def _name_of(self, table_id: int) -> str:
        """Return a table's name, for people; empty while it is not known."""
        ts = self.schemas.resolved_ts()
        try:
            return self.schemas.versions(table_id, ts, ts)[-1].name
        except Unavailable:
            return ""

    def _admit(self) -> None:
        """Hold new rows back while the disk is full and flushes can free it."""
        if self._failure is not None:
            raise Unavailable(f"the event store has failed ({self._failure}); restart it") from self._failure
        if not self._crowded:
            return
        with self._relief:
            self._relief.wait_for(lambda: not self._crowded or self._yielding or self._failure is not None)

    def _wake_if_due(self) -> None:
        if self._memory.used_bytes >= self._settings.flush_bytes:
            self._wake.set()

    def _schedule(self) -> None:
        try:
            while not self._stopping and self._failure is None:
                self._wake.wait(_TICK_S)
                self._wake.clear()
                self._flush_due()
        except Exception as error:
            self._fail(PenstockError(f"flushes cannot be planned ({type(error).__name__})"))
            raise

    def _flush_due(self) -> None:
        backlogs = self._backlogs()
        wal_bytes = self._wal.disk_bytes
        with self._relief:
            self._crowded = self._policy.must_wait(backlogs, wal_bytes=wal_bytes)
            self._relief.notify_all()
        now = self._clock.monotonic()
        for table_id in self._policy.choose(backlogs, now=now, wal_bytes=wal_bytes):
            self._submit(table_id, now)

    def _backlogs(self) -> list[TableBacklog]:
        with self._lock:
            tables = list(self._tables.values())
        self._measure_lag(tables)
        return [table.rows.measure_backlog(self._flusher.storable_ts(table.rows)) for table in tables]

    def _measure_lag(self, tables: Iterable[OwnedTable]) -> None:
        slowest = min((table.rows.resolved_ts for table in tables), default=None)
        if slowest is not None:
            lag_ms = self._clock.wall_ms() - physical_ms(slowest)
            metrics.EVENTSTORE_RESOLVED_LAG_SECONDS.set(max(0, lag_ms) / 1000)

    def _submit(self, table_id: int, now: float) -> None:
        with self._lock:
            table = self._tables.get(table_id)
        if table is None or now < table.retry_at or not table.flushing.acquire(blocking=False):
            return

        def work() -> None:
            try:
                self._flusher.flush(table)
            finally:
                table.flushing.release()
                self._wake.set()

        self._pool.submit(work)

    def _drop_fenced(self, table: OwnedTable) -> None:
        if self._drop(table):
            self._on_fenced(table.rows.table_id)

    def _drop_refused(self, table: OwnedTable, error: PenstockError) -> None:
        if self._drop(table):
            self._on_refused(table.rows.table_id, error)

    def _drop(self, table: OwnedTable) -> bool:
        """Stop owning a table; return False when it was given up, or opened again, meanwhile."""
        with self._lock:
            if self._tables.get(table.rows.table_id) is not table:
                return False
            self._wal.forget(table.rows.table_id)  # its rows are dropped: its next owner pulls them again
            del self._tables[table.rows.table_id]
        return True

    def _fail(self, error: PenstockError) -> None:
        """End the store: it accepts nothing more. Acknowledged changes are in the log."""
        if self._failure is not None:
            return
        self._failure = error
        _log.error("the event store has failed", extra={"reason": str(error)})
        with self._relief:
            self._relief.notify_all()
        self._wake.set()
        self._on_failure(error)
