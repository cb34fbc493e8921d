"""The flush of a table: how rows that are complete become objects of its manifest, and when.

`Flusher` moves the rows. `FlushPolicy` decides which tables to flush; it has no clock and no thread.
"""

import logging
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any

import pyarrow as pa

from penstock import metrics, tracing
from penstock.clock import TS_MAX, Clock
from penstock.errors import Denied, Fenced, Invalid, PenstockError, Unavailable
from penstock.eventstore.log.rows import cut_chunks, sort_changes
from penstock.eventstore.log.table_log import TableBacklog, TableLog
from penstock.eventstore.manifest import Archive, ManifestState, ObjectInfo, Removal, dropped_fact
from penstock.eventstore.manifest_log import Ownership
from penstock.eventstore.objects.build import Build, Built, Schemas
from penstock.eventstore.objects.primary_key_index import TableIndex
from penstock.eventstore.objects.row_ids import Moves
from penstock.eventstore.schema_version import SchemaVersion
from penstock.retry import BackoffPolicy

_log = logging.getLogger(__name__)

_BACKOFF = BackoffPolicy(base_s=0.5, cap_s=30.0)


_PRESSURE = 0.75  # from this share of a bound on, tables are flushed before they are due
_RELIEF = 0.5  # until this share of the bound is left


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPolicy:
    """Flush by size, by age, and under pressure of memory or disk: the largest, or the oldest, first.

    A table without resolved rows is left alone until the manifest has fallen far behind.
    """

    flush_bytes: int
    flush_interval_s: float
    idle_flush_interval_s: float
    memory_bytes: int
    wal_bytes: int

    def choose(self, tables: Iterable[TableBacklog], *, now: float, wal_bytes: int) -> list[int]:
        """Return the tables to flush now, most urgent first."""
        backlogs = list(tables)
        ready = [backlog for backlog in backlogs if backlog.flushable]
        chosen: dict[int, None] = {}
        chosen |= dict.fromkeys(self._for_disk(ready, wal_bytes))
        memory_bytes = sum(backlog.memory_bytes for backlog in backlogs)
        chosen |= dict.fromkeys(self._for_memory(ready, memory_bytes))
        chosen |= dict.fromkeys(backlog.table_id for backlog in ready if self._is_due(backlog, now))
        chosen |= dict.fromkeys(
            backlog.table_id
            for backlog in backlogs
            if not backlog.flushable and backlog.behind_s >= self.idle_flush_interval_s
        )
        return list(chosen)

    def must_wait(self, tables: Iterable[TableBacklog], *, wal_bytes: int) -> bool:
        """Return whether new rows wait for flushes: the disk is full, and flushing can free some of it.

        When nothing can be flushed, waiting would hold back the very resolved-ts that makes flushes possible.
        """
        return wal_bytes > self.wal_bytes and any(backlog.flushable for backlog in tables)

    def _is_due(self, backlog: TableBacklog, now: float) -> bool:
        return backlog.held_bytes >= self.flush_bytes or now - backlog.oldest_at >= self.flush_interval_s

    def _for_memory(self, ready: list[TableBacklog], used: int) -> list[int]:
        if used < self.memory_bytes * _PRESSURE:
            return []
        largest = sorted(ready, key=lambda backlog: -backlog.memory_bytes)
        sizes = [backlog.memory_bytes for backlog in largest]
        return _take_until_free(largest, sizes, used - self.memory_bytes * _RELIEF)

    def _for_disk(self, ready: list[TableBacklog], used: int) -> list[int]:
        if used < self.wal_bytes * _PRESSURE:
            return []
        oldest = sorted(ready, key=lambda backlog: backlog.oldest_at)
        sizes = [backlog.held_bytes for backlog in oldest]
        return _take_until_free(oldest, sizes, used - self.wal_bytes * _RELIEF)


def _take_until_free(backlogs: list[TableBacklog], sizes: list[int], wanted: float) -> list[int]:
    """Return as many tables from the front as free the wanted bytes."""
    chosen: list[int] = []
    for backlog, size in zip(backlogs, sizes, strict=True):
        if wanted <= 0:
            break
        chosen.append(backlog.table_id)
        wanted -= size
    return chosen


@dataclass(slots=True)
class OwnedTable:
    """A table that is owned here. Whoever flushes it, or commits to its manifest, holds `flushing`."""

    rows: TableLog
    ownership: Ownership
    index: TableIndex
    flushing: threading.Lock = field(default_factory=threading.Lock)
    retry_at: float = 0.0
    failures: int = 0

    def commit(
        self,
        *,
        add: Sequence[ObjectInfo] = (),
        remove: Sequence[Removal] = (),
        flushed_ts: int = 0,
        schemas: Sequence[SchemaVersion] = (),
        facts: Sequence[Mapping[str, Any]] = (),
        archive: Archive | None = None,
        forget: Sequence[str] = (),
        collect: Sequence[str] = (),
        moves: Moves | None = None,
    ) -> ManifestState:
        """Append an entry to the manifest and bring the index up to it; return the state after it.

        `moves` says what the entry does to the index; without it the objects are read. After Unavailable the
        commit may have happened: settle the ownership before anything else.
        """
        # An archive must not take objects that the index has not seen.
        needs_index = bool(add) or archive is not None
        if needs_index:
            self.index.catch_up(self.ownership.state)
        state = self.ownership.commit(
            add=add,
            remove=remove,
            flushed_ts=flushed_ts,
            schemas=schemas,
            facts=facts,
            archive=archive,
            forget=forget,
            collect=collect,
        )
        if needs_index and moves is not None:
            self.index.apply(moves, state)
        elif needs_index:
            self.index.catch_up(state)
        return state


@dataclass(frozen=True, slots=True)
class Flusher:
    """Flushes tables, and decides what a failure means.

    When storage does not answer, or refuses its credentials, the flush is tried again later. A newer owner
    ends the table here (`on_fenced`), and so do rows that cannot be kept (`on_refused`). Any other error ends
    the store (`on_failure`).
    """

    build: Build
    schemas: Schemas
    sort_bytes: int
    large_txn_bytes: int
    clock: Clock
    on_fenced: Callable[[OwnedTable], None]
    on_refused: Callable[[OwnedTable, PenstockError], None]
    on_failure: Callable[[PenstockError], None]

    def storable_ts(self, rows: TableLog) -> int:
        """Return how far a table's changes can be kept: as its schemas allow, and not past a rewrite.

        A rewritten column has its values in every row, and they may not have come as changes; nor may the
        rows that a FLASHBACK CLUSTER took back. It is 0 until the rows are stored that the first scan left
        out.
        """
        if rows.incomplete:
            return 0
        upto = self.schemas.storable_ts(rows.table_id)
        pending = self.find_rewrite(rows), self.schemas.flashback(rows.table_id, rows.begun_ts)
        return min([upto, *(ts - 1 for ts in pending if ts)])

    def find_rewrite(self, rows: TableLog) -> int:
        """Return the first rewrite whose values are not stored yet; 0 when there is none."""
        schemas = self.schemas
        if rows.rewritten_ts == TS_MAX:
            return 0
        return min(schemas.rewrites(rows.table_id, rows.rewritten_ts, schemas.resolved_ts()), default=0)

    def changes(self, rows: TableLog, from_ts: int, to_ts: int) -> Generator[pa.RecordBatch, None, None]:
        """Yield the changes that a table holds in (from_ts, to_ts], in order and once; close it after use.

        Raises Unavailable when they were flushed meanwhile. Nothing else refers to the rows, so their memory
        is free as soon as they are sorted.
        """
        held = rows.list_held(from_ts, to_ts)
        return sort_changes(
            partial(rows.load, held, from_ts, to_ts),
            sum(batch.weight for batch in held),
            memory_bytes=self.sort_bytes,
            scratch=self.build.scratch,
        )

    def flush(self, table: OwnedTable) -> bool:
        """Move every complete change into objects; return whether that succeeded."""
        try:
            self._flush(table)
        except (Unavailable, Denied) as error:
            metrics.EVENTSTORE_FLUSH_FAILURES_TOTAL.labels("unavailable").inc()
            self._postpone(table, error)
            return False
        except Fenced as error:
            metrics.EVENTSTORE_FLUSH_FAILURES_TOTAL.labels("fenced").inc()
            _log.warning("table lost", extra={"table_id": table.rows.table_id, "reason": str(error)})
            table.rows.disown()
            self.on_fenced(table)
            return False
        except Invalid as error:
            metrics.EVENTSTORE_FLUSH_FAILURES_TOTAL.labels("refused").inc()
            table.rows.disown()
            self.on_refused(table, error)
            return False
        except PenstockError as error:
            metrics.EVENTSTORE_FLUSH_FAILURES_TOTAL.labels("failed").inc()
            self.on_failure(error)
            return False
        except Exception as error:
            _log.exception("a flush failed unexpectedly", extra={"table_id": table.rows.table_id})
            self.on_failure(
                PenstockError(f"a flush of table {table.rows.table_id} failed ({type(error).__name__})")
            )
            raise
        table.failures = 0
        return True

    def _postpone(self, table: OwnedTable, error: PenstockError) -> None:
        table.failures += 1
        pause = _BACKOFF.delay_s(table.failures)
        table.retry_at = self.clock.monotonic() + pause
        _log.warning(
            "flush failed; it will be tried again",
            extra={"table_id": table.rows.table_id, "reason": str(error), "pause_s": pause},
        )

    def _flush(self, table: OwnedTable) -> None:
        started = self.clock.monotonic()
        rows = table.rows
        if rows.disowned:  # its rows were dropped, which does not mean that there are no changes
            return
        settled = table.ownership.settle()
        if settled.flushed_ts > rows.flushed_ts:  # a commit whose answer was lost
            rows.release(settled.flushed_ts)
        from_ts = rows.flushed_ts
        to_ts = min(rows.resolved_ts, self.storable_ts(rows))
        if to_ts <= from_ts:
            return
        versions = self.schemas.versions(rows.table_id, from_ts, to_ts)
        # A reader of the table up to here must know that it ended: it has no rows any more.
        ends = [dropped_fact(ts) for ts in self.schemas.ends(rows.table_id, from_ts, to_ts)]
        with closing(self.changes(rows, from_ts, to_ts)) as changes:
            self._commit_chunks(table, versions, changes, to_ts, ends)
        metrics.EVENTSTORE_FLUSH_SECONDS.observe(self.clock.monotonic() - started)

    def _commit_chunks(
        self,
        table: OwnedTable,
        versions: list[SchemaVersion],
        changes: Iterable[pa.RecordBatch],
        to_ts: int,
        facts: Sequence[Mapping[str, Any]],
    ) -> None:
        """Commit chunk by chunk, each once the index has all before it: tombstones look rows up there.

        The first chunk carries the facts of the range, so that no manifest is complete without them.
        """
        parts = cut_chunks(changes, large_bytes=self.large_txn_bytes, chunk_bytes=self.sort_bytes // 2)
        chunks = groupby(parts, key=lambda part: (part.chunk, part.direct))
        chunk = next(chunks, None)
        if chunk is None:
            self._commit(table, versions, Built([], to_ts, None), facts)
            return
        table.index.catch_up(table.ownership.state)
        while chunk is not None:
            (_, direct), rest = chunk
            build = self.build.build_direct if direct else self.build.build_appendable
            rows = (part.rows for part in rest)
            recorder = None if tracing.current is None else tracing.current.start_recorder()
            if recorder is not None:
                rows = recorder.pass_through(rows)
            built = build(table.rows.table_id, versions, rows, table.index.find)
            chunk = next(chunks, None)
            self._commit(table, versions, built if chunk else replace(built, last_ts=to_ts), facts)
            facts = ()
            if recorder is not None:
                table_id, name = table.rows.table_id, versions[-1].name
                recorder.record_arrival(tracing.Stage.FLUSH, key=str(table_id), table_id=table_id, table=name)

    def _commit(
        self,
        table: OwnedTable,
        versions: list[SchemaVersion],
        built: Built,
        facts: Sequence[Mapping[str, Any]],
    ) -> None:
        """Make a chunk part of the table, and drop its rows from the log."""
        table.commit(
            add=built.objects,
            flushed_ts=built.last_ts,
            schemas=versions,
            facts=[fact for fact in facts if fact not in table.ownership.state.facts],
            moves=built.moves,
        )
        table.rows.release(built.last_ts)
        for info in built.objects:
            metrics.EVENTSTORE_FLUSHED_ROWS_TOTAL.labels(info.side).inc(info.rows)
