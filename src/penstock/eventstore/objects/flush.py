"""One table's flush: from the rows that are complete to objects that the manifest names.

When which table is flushed. A pure decision: no clock, no thread.
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
from penstock.clock import Clock
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

        `moves` says what the entry does to the index; without it the objects are read. After Unavailable
        it may have happened: settle the ownership before anything else.
        """
        told = bool(add) or archive is not None  # an archive must not take what the index has not seen
        if told:
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
        if told and moves is not None:
            self.index.apply(moves, state)
        elif told:
            self.index.catch_up(state)
        return state


@dataclass(frozen=True, slots=True)
class Flusher:
    """Flushes tables, and decides what a failure means.

    Storage that does not answer, or refuses its credentials, is tried again later; a newer owner ends the
    table here (`fenced`), and so do rows that cannot be kept (`refused`); anything else ends the store
    (`failed`).
    """

    build: Build
    schemas: Schemas
    sort_bytes: int
    large_txn_bytes: int
    clock: Clock
    fenced: Callable[[OwnedTable], None]
    refused: Callable[[OwnedTable, PenstockError], None]
    failed: Callable[[PenstockError], None]

    def changes(self, rows: TableLog, from_ts: int, to_ts: int) -> Generator[pa.RecordBatch, None, None]:
        """The changes that a table holds in (from_ts, to_ts], in order and once; close it after use.

        Raises Unavailable when they were flushed meanwhile. Nothing else refers to the rows, so that they
        go as soon as they are sorted.
        """
        held = rows.list_held(from_ts, to_ts)
        return sort_changes(
            partial(rows.load, held, from_ts, to_ts),
            sum(batch.weight for batch in held),
            memory_bytes=self.sort_bytes,
            scratch=self.build.scratch,
        )

    def flush(self, table: OwnedTable) -> bool:
        """Move everything complete into objects; return whether that succeeded."""
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
            self.fenced(table)
            return False
        except Invalid as error:
            metrics.EVENTSTORE_FLUSH_FAILURES_TOTAL.labels("refused").inc()
            table.rows.disown()
            self.refused(table, error)
            return False
        except PenstockError as error:
            metrics.EVENTSTORE_FLUSH_FAILURES_TOTAL.labels("failed").inc()
            self.failed(error)
            return False
        except Exception as error:
            _log.exception("a flush failed unexpectedly", extra={"table_id": table.rows.table_id})
            self.failed(
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
        if rows.disowned:  # it holds nothing any more, which does not mean that there is nothing
            return
        settled = table.ownership.settle()
        if settled.flushed_ts > rows.flushed_ts:  # a commit whose answer was lost
            rows.release(settled.flushed_ts)
        from_ts = rows.flushed_ts
        to_ts = min(rows.resolved_ts, self.schemas.storable_ts(rows.table_id))
        if to_ts <= from_ts:
            return
        versions = self.schemas.versions(rows.table_id, from_ts, to_ts)
        # Whoever reads the table up to here must know that it ended: its rows are no rows any more.
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
        """Commit chunk by chunk, each when the index knows of all before it: a tombstone asks it.

        The first one says what else is true of the range, so that no manifest is complete without it.
        """
        pieces = cut_chunks(changes, large_bytes=self.large_txn_bytes, chunk_bytes=self.sort_bytes // 2)
        chunks = groupby(pieces, key=lambda piece: (piece.chunk, piece.direct))
        chunk = next(chunks, None)
        if chunk is None:
            self._commit(table, versions, Built([], to_ts, None), facts)
            return
        table.index.catch_up(table.ownership.state)
        while chunk is not None:
            (_, direct), rest = chunk
            build = self.build.build_direct if direct else self.build.build_appendable
            rows = (piece.rows for piece in rest)
            passage = None if tracing.current is None else tracing.current.start_recorder()
            if passage is not None:
                rows = passage.pass_through(rows)
            built = build(table.rows.table_id, versions, rows, table.index.find)
            chunk = next(chunks, None)
            self._commit(table, versions, built if chunk else replace(built, last_ts=to_ts), facts)
            facts = ()
            if passage is not None:
                table_id, name = table.rows.table_id, versions[-1].name
                passage.record_arrival(tracing.Stage.FLUSH, key=str(table_id), table_id=table_id, table=name)

    def _commit(
        self,
        table: OwnedTable,
        versions: list[SchemaVersion],
        built: Built,
        facts: Sequence[Mapping[str, Any]],
    ) -> None:
        """Make a chunk part of the table, and let its rows go."""
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


_PRESSURE = 0.75  # of a bound: from here on tables are flushed before they are due
_RELIEF = 0.5  # of a bound: down to here


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPolicy:
    """Flush by size, by age, and under pressure of memory or disk: largest, or oldest, first.

    A table without resolved rows is left alone until the manifest has fallen far behind.
    """

    flush_bytes: int
    flush_interval_s: float
    idle_flush_interval_s: float
    memory_bytes: int
    wal_bytes: int

    def choose(self, tables: Iterable[TableBacklog], *, now: float, wal_bytes: int) -> list[int]:
        """The tables to flush now, most urgent first."""
        loads = list(tables)
        ready = [load for load in loads if load.flushable]
        chosen: dict[int, None] = {}
        chosen |= dict.fromkeys(self._for_disk(ready, wal_bytes))
        chosen |= dict.fromkeys(self._for_memory(ready, sum(load.memory_bytes for load in loads)))
        chosen |= dict.fromkeys(load.table_id for load in ready if self._is_due(load, now))
        chosen |= dict.fromkeys(
            load.table_id
            for load in loads
            if not load.flushable and load.behind_s >= self.idle_flush_interval_s
        )
        return list(chosen)

    def must_wait(self, tables: Iterable[TableBacklog], *, wal_bytes: int) -> bool:
        """Whether new rows wait for flushes: the disk is full, and flushing can free some of it.

        Where nothing can be flushed, waiting would hold back the very resolved-ts that is waited for.
        """
        return wal_bytes > self.wal_bytes and any(load.flushable for load in tables)

    def _is_due(self, load: TableBacklog, now: float) -> bool:
        return load.held_bytes >= self.flush_bytes or now - load.oldest_at >= self.flush_interval_s

    def _for_memory(self, ready: list[TableBacklog], used: int) -> list[int]:
        if used < self.memory_bytes * _PRESSURE:
            return []
        largest = sorted(ready, key=lambda load: -load.memory_bytes)
        return _until(largest, [load.memory_bytes for load in largest], used - self.memory_bytes * _RELIEF)

    def _for_disk(self, ready: list[TableBacklog], used: int) -> list[int]:
        if used < self.wal_bytes * _PRESSURE:
            return []
        oldest = sorted(ready, key=lambda load: load.oldest_at)
        return _until(oldest, [load.held_bytes for load in oldest], used - self.wal_bytes * _RELIEF)


def _until(loads: list[TableBacklog], sizes: list[int], wanted: float) -> list[int]:
    """As many tables from the front as free what is wanted."""
    chosen: list[int] = []
    for load, size in zip(loads, sizes, strict=True):
        if wanted <= 0:
            break
        chosen.append(load.table_id)
        wanted -= size
    return chosen
