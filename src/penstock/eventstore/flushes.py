"""One table's flush: from the rows that are complete to objects that the manifest names."""

import logging
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from penstock import metrics
from penstock.clock import Clock
from penstock.errors import Fenced, PenstockError, Unavailable
from penstock.eventstore.building import Build, Schemas
from penstock.eventstore.ownership import Ownership
from penstock.eventstore.rows import ordered
from penstock.eventstore.table import TableRows

_log = logging.getLogger(__name__)

_RETRY_FIRST_S = 0.5
_RETRY_MAX_S = 30.0


@dataclass(slots=True)
class Table:
    """A table that is owned here. Whoever flushes it holds `flushing`."""

    rows: TableRows
    ownership: Ownership
    flushing: threading.Lock = field(default_factory=threading.Lock)
    retry_at: float = 0.0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Flusher:
    """Flushes tables, and decides what a failure means.

    Storage that does not answer is tried again later; a newer owner ends the table here (`fenced`);
    anything else ends the store (`failed`).
    """

    build: Build
    schemas: Schemas
    sort_bytes: int
    clock: Clock
    fenced: Callable[[Table], None]
    failed: Callable[[PenstockError], None]

    def changes(self, rows: TableRows, from_ts: int, to_ts: int) -> Generator[pa.RecordBatch, None, None]:
        """The changes that a table holds in (from_ts, to_ts], in order and once; close it after use.

        Raises Unavailable when they were flushed meanwhile. Nothing else refers to the rows, so that they
        go as soon as they are sorted.
        """
        held = rows.held(from_ts, to_ts)
        return ordered(
            partial(rows.load, held, from_ts, to_ts),
            sum(each.weight for each in held),
            memory_bytes=self.sort_bytes,
            scratch=self.build.scratch,
        )

    def flush(self, table: Table) -> bool:
        """Move everything complete into objects; return whether that succeeded."""
        try:
            self._flush(table)
        except Unavailable as error:
            metrics.EVENTSTORE_FLUSH_FAILURES_TOTAL.labels("unavailable").inc()
            self._postpone(table, error)
            return False
        except Fenced as error:
            metrics.EVENTSTORE_FLUSH_FAILURES_TOTAL.labels("fenced").inc()
            _log.warning("table lost", extra={"table_id": table.rows.table_id, "reason": str(error)})
            table.rows.disown()
            self.fenced(table)
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

    def _postpone(self, table: Table, error: Unavailable) -> None:
        table.failures += 1
        pause = min(_RETRY_MAX_S, _RETRY_FIRST_S * 2 ** min(table.failures - 1, 10))
        table.retry_at = self.clock.monotonic() + pause
        _log.warning(
            "flush failed; it will be tried again",
            extra={"table_id": table.rows.table_id, "reason": str(error), "pause_s": pause},
        )

    def _flush(self, table: Table) -> None:
        started = self.clock.monotonic()
        rows = table.rows
        settled = table.ownership.settle()
        if settled.flushed_ts > rows.flushed_ts:  # a commit whose answer was lost
            rows.release(settled.flushed_ts)
        from_ts, to_ts = rows.flushed_ts, min(rows.resolved_ts, self.schemas.resolved_ts())
        if to_ts <= from_ts:
            return
        versions = self.schemas.versions(rows.table_id, from_ts, to_ts)
        with closing(self.changes(rows, from_ts, to_ts)) as changes:
            made = self.build.objects(versions, rows.table_id, changes)
        table.ownership.commit(add=made, flushed_ts=to_ts, schemas=versions)
        rows.release(to_ts)
        for info in made:
            metrics.EVENTSTORE_FLUSHED_ROWS_TOTAL.labels(info.side).inc(info.rows)
        metrics.EVENTSTORE_FLUSH_SECONDS.observe(self.clock.monotonic() - started)
