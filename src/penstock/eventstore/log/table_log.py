"""One table between the log and its objects: rows that are durable, and how far they are complete.

How much of the unflushed rows is kept in memory.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from penstock import metrics, tracing
from penstock.clock import TS_MAX, Clock, physical_ms
from penstock.errors import Unavailable
from penstock.eventstore.log.rows import select_between, commit_bounds
from penstock.eventstore.log.segments import LogLocation
from penstock.eventstore.log.wal import Wal


class MemoryBudget:
    """Bytes of rows in memory, over all tables. Thread-safe.

    Rows that find no room are not refused: they are in the log already and are read from there.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._used = 0
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Bytes taken now."""
        return self._used

    def take(self, nbytes: int) -> bool:
        """Reserve room; False when there is none."""
        with self._lock:
            if self._used + nbytes > self._limit:
                metrics.EVENTSTORE_SPILLED_BYTES_TOTAL.inc(nbytes)
                return False
            self._used += nbytes
            metrics.EVENTSTORE_MEMORY_BYTES.set(self._used)
            return True

    def give_back(self, nbytes: int) -> None:
        """Return room that was reserved."""
        with self._lock:
            self._used -= nbytes
            assert self._used >= 0, "more was given back than taken"
            metrics.EVENTSTORE_MEMORY_BYTES.set(self._used)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBacklog:
    """What a table holds that is not in objects yet."""

    table_id: int
    held_bytes: int  # in the log, and in memory too unless spilled
    memory_bytes: int
    oldest_at: float  # when its oldest row arrived, in seconds of the monotonic clock
    flushable: bool  # some of its rows are resolved
    behind_s: float  # how far the manifest could move on


_BATCH_BYTES = 4096  # what Arrow and Python need for a batch besides its rows; much, where it has one row


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """A raw batch that is in the log and not in objects yet; `batch` is None when only the log has it."""

    place: LogLocation
    rows: int
    nbytes: int
    min_ts: int
    max_ts: int
    arrived_at: float
    batch: pa.RecordBatch | None

    @classmethod
    def of(
        cls,
        place: LogLocation,
        batch: pa.RecordBatch,
        ends: tuple[int, int],
        arrived_at: float,
        *,
        in_memory: bool,
    ) -> "LoggedBatch":
        """Describe a batch, of commits from the first to the second of `ends`, stored at a place."""
        return cls(
            place=place,
            rows=batch.num_rows,
            nbytes=batch.get_total_buffer_size(),
            min_ts=ends[0],
            max_ts=ends[1],
            arrived_at=arrived_at,
            batch=batch if in_memory else None,
        )

    @property
    def weight(self) -> int:
        """What it takes in memory, or would."""
        return self.nbytes + _BATCH_BYTES


class TableLog:
    """The puller's side of a table. Thread-safe.

    Invariants: every change with flushed_ts < commit_ts <= resolved_ts is held; `resolved_ts` and
    `flushed_ts` never decrease. Rows above `resolved_ts` may be held more than once.
    """

    def __init__(
        self,
        table_id: int,
        *,
        wal: Wal,
        memory: MemoryBudget,
        clock: Clock,
        flushed_ts: int,
        resolved_ts: int,
        changed_ts: int = 0,
        recovered: Iterable[LoggedBatch] = (),
        admit: Callable[[], None],
        advanced: Callable[[], None],
        named: Callable[[], str] = lambda: "",
    ) -> None:
        self.table_id = table_id
        self._wal = wal
        self._memory = memory
        self._clock = clock
        self._admit = admit
        self._advanced = advanced
        self._named = named
        self._lock = threading.Lock()
        self._flushed_ts = flushed_ts
        self._resolved_ts = max(flushed_ts, resolved_ts)
        self._changed_ts = changed_ts
        self._disowned = False
        self._held: list[LoggedBatch] = []
        self._held_bytes = 0
        self._memory_held_bytes = 0
        self._lowest_ts = TS_MAX  # the lowest commit-ts that may be held and is not flushed
        self._unsettled: list[tuple[int, int]] = []  # first and last commit-ts of batches above resolved_ts
        kept = [held for held in recovered if held.max_ts > flushed_ts]
        self._keep(kept)
        self._unsettled += [(held.min_ts, held.max_ts) for held in kept]
        self._settle()

    @property
    def flushed_ts(self) -> int:
        """Everything up to it is in objects."""
        return self._flushed_ts

    @property
    def resolved_ts(self) -> int:
        """Everything up to it is in objects or held here. A subscription starts from it."""
        return self._resolved_ts

    @property
    def changed_ts(self) -> int:
        """No change up to a `resolved_ts` that was seen before was committed after it."""
        return self._changed_ts

    def raise_changed_ts(self, ts: int) -> None:
        """There may be changes up to `ts` that were never held here."""
        with self._lock:
            self._changed_ts = max(self._changed_ts, ts)

    @property
    def disowned(self) -> bool:
        """Whether the table was given up; nothing is held then."""
        return self._disowned

    def consume_kv_events(self, raw: pa.RecordBatch, finish: Callable[[], None]) -> bool:
        """Take a raw batch, as the span pipeline's contract has it.

        True: `finish` is called, on the log's thread, once the rows are on the disk; it must not block.
        False: there is nothing to wait for; every row had been delivered before, or the table is no
        longer ours. Blocks while the log's queue, or the disk that flushes free, is full. Raises
        Unavailable when the log has failed.
        """
        self._admit()
        if self._disowned:
            metrics.EVENTSTORE_ROWS_TOTAL.labels("disowned").inc(raw.num_rows)
            return False
        if not raw.num_rows:
            return False
        fresh, ends = raw, commit_bounds(raw)
        if ends[0] <= self._resolved_ts:
            fresh = select_between(raw, self._resolved_ts, TS_MAX)
            metrics.EVENTSTORE_ROWS_TOTAL.labels("late").inc(raw.num_rows - fresh.num_rows)
            if not fresh.num_rows:
                return False
            ends = commit_bounds(fresh)
        self._wal.append(self.table_id, fresh, ends[1], partial(self._on_stored, fresh, ends, finish))
        return True

    def _on_stored(
        self, batch: pa.RecordBatch, ends: tuple[int, int], finish: Callable[[], None], place: LogLocation
    ) -> None:
        in_memory = self._memory.take(batch.get_total_buffer_size() + _BATCH_BYTES)
        held = LoggedBatch.of(place, batch, ends, self._clock.monotonic(), in_memory=in_memory)
        with self._lock:
            if not self._disowned:
                self._keep((held,))
                self._unsettled.append(ends)
            elif in_memory:
                self._memory.give_back(held.weight)
        metrics.EVENTSTORE_ROWS_TOTAL.labels("stored").inc(held.rows)
        if tracing.current is not None:
            at = f"{place.segment}/{place.offset}"
            tracing.current.record_capture(batch, self._named, table_id=self.table_id, place=at)
        finish()

    def advance_resolved_ts(self, ts: int) -> None:
        """Every change up to `ts` has been stored. A lower ts than before changes nothing. Never blocks."""
        with self._lock:
            if ts <= self._resolved_ts or self._disowned:
                return
            self._resolved_ts = ts
            self._settle()
            self._wal.mark_resolved(self.table_id, ts)
        self._advanced()

    def list_held(self, from_ts: int, to_ts: int) -> list[LoggedBatch]:
        """The batches that may have changes in (from_ts, to_ts], in the order of their arrival.

        Raises Unavailable when the table was given up: what it held is not known any more.
        """
        with self._lock:
            if self._disowned:
                raise Unavailable(f"table {self.table_id} is not captured here any more; ask its owner")
            return [held for held in self._held if held.max_ts > from_ts and held.min_ts <= to_ts]

    def load(self, chosen: Iterable[LoggedBatch], from_ts: int, to_ts: int) -> Iterable[pa.RecordBatch]:
        """The rows of batches in (from_ts, to_ts]; raise Unavailable when they were flushed meanwhile."""
        for held in chosen:
            batch = held.batch if held.batch is not None else self._wal.load(held.place)
            yield select_between(batch, from_ts, to_ts)

    def release(self, flushed_ts: int) -> None:
        """Changes up to `flushed_ts` are in objects: let them go."""
        with self._lock:
            before = self._drop_all()
            self._flushed_ts = max(self._flushed_ts, flushed_ts)
            self._keep(held for held in before if held.max_ts > flushed_ts)
            self._resolved_ts = max(self._resolved_ts, flushed_ts)
            self._settle()
        self._give_back(held for held in before if held.max_ts <= flushed_ts)
        self._wal.mark_flushed(self.table_id, flushed_ts)

    def disown(self) -> None:
        """Another owner has the table: drop its rows, take no more."""
        with self._lock:
            gone = self._drop_all()
            self._disowned = True
        self._give_back(gone)

    def measure_backlog(self, schema_resolved_ts: int) -> TableBacklog:
        """What flushing this table would move."""
        with self._lock:
            upto = min(self._resolved_ts, schema_resolved_ts)
            return TableBacklog(
                table_id=self.table_id,
                held_bytes=self._held_bytes,
                memory_bytes=self._memory_held_bytes,
                oldest_at=self._held[0].arrived_at if self._held else 0.0,
                flushable=self._lowest_ts <= upto,
                behind_s=(physical_ms(upto) - physical_ms(self._flushed_ts)) / 1000,
            )

    def _keep(self, batches: Iterable[LoggedBatch]) -> None:
        for held in batches:
            self._held.append(held)
            self._held_bytes += held.nbytes
            self._memory_held_bytes += held.weight if held.batch is not None else 0
            self._lowest_ts = min(self._lowest_ts, max(held.min_ts, self._flushed_ts + 1))

    def _settle(self) -> None:
        """Count the changes up to `resolved_ts`. Of later ones nothing is said: nobody can read them yet."""
        for first_ts, last_ts in self._unsettled:
            if first_ts <= self._resolved_ts:
                self._changed_ts = max(self._changed_ts, min(last_ts, self._resolved_ts))
        self._unsettled = [ends for ends in self._unsettled if ends[1] > self._resolved_ts]

    def _drop_all(self) -> list[LoggedBatch]:
        gone, self._held = self._held, []
        self._held_bytes = self._memory_held_bytes = 0
        self._lowest_ts = TS_MAX
        return gone

    def _give_back(self, gone: Iterable[LoggedBatch]) -> None:
        self._memory.give_back(sum(held.weight for held in gone if held.batch is not None))
