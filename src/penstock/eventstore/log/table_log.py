"""One table between the log and its objects: durable rows that are not flushed, and their progress.

`MemoryBudget` bounds how much of the rows of all tables is kept in memory.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from penstock import metrics, tracing
from penstock.clock import TS_MAX, Clock, physical_ms
from penstock.errors import Unavailable
from penstock.eventstore.log.rows import commit_bounds, select_between
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
        """Bytes that are reserved now."""
        return self._used

    def take(self, nbytes: int) -> bool:
        """Reserve room; return False when there is none."""
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
    """The unflushed rows of a table in numbers, for the decision to flush it."""

    table_id: int
    held_bytes: int  # in the log, and in memory too unless spilled
    memory_bytes: int
    oldest_at: float  # when its oldest row arrived, in seconds of the monotonic clock
    flushable: bool  # some of its rows are resolved
    behind_s: float  # seconds by which a flush could move flushed_ts on


_BATCH_BYTES = 4096  # memory of a batch besides its rows; it counts where a batch has one row


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
        bounds: tuple[int, int],
        arrived_at: float,
        *,
        in_memory: bool,
    ) -> "LoggedBatch":
        """Describe a batch at a place of the log; `bounds` are its lowest and highest commit-ts."""
        return cls(
            place=place,
            rows=batch.num_rows,
            nbytes=batch.get_total_buffer_size(),
            min_ts=bounds[0],
            max_ts=bounds[1],
            arrived_at=arrived_at,
            batch=batch if in_memory else None,
        )

    @property
    def weight(self) -> int:
        """Bytes that the batch takes in memory, or would take."""
        return self.nbytes + _BATCH_BYTES


class TableLog:
    """The durable, unflushed rows of a table, and its place in the span pipeline. Thread-safe.

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
        rewritten_ts: int = TS_MAX,
        begun_ts: int = TS_MAX,
        incomplete: bool = False,
        recovered: Iterable[LoggedBatch] = (),
        admit: Callable[[], None],
        on_advance: Callable[[], None],
        name: Callable[[], str] = lambda: "",
    ) -> None:
        self.table_id = table_id
        self._wal = wal
        self._memory = memory
        self._clock = clock
        self._admit = admit
        self._on_advance = on_advance
        self._name = name
        self._lock = threading.Lock()
        self._flushed_ts = flushed_ts
        self._resolved_ts = max(flushed_ts, resolved_ts)
        self._changed_ts = changed_ts
        self._rewritten_ts = rewritten_ts
        self.begun_ts = begun_ts  # a FLASHBACK CLUSTER up to then is among the changes of the first scan
        self._incomplete = incomplete
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
        """Every change up to it is in objects."""
        return self._flushed_ts

    @property
    def resolved_ts(self) -> int:
        """Every change up to it is in objects or held here. A subscription starts from it."""
        return self._resolved_ts

    @property
    def changed_ts(self) -> int:
        """No change up to a `resolved_ts` that was read before was committed after it."""
        return self._changed_ts

    def raise_changed_ts(self, ts: int) -> None:
        """Record that there may be changes up to `ts` that were never held here."""
        with self._lock:
            self._changed_ts = max(self._changed_ts, ts)

    @property
    def rewritten_ts(self) -> int:
        """Values that MODIFY COLUMN wrote into rows are stored for every rewrite up to it.

        Nothing above the next rewrite can be read or flushed before `finish_rewrite`.
        """
        return self._rewritten_ts

    def finish_rewrite(self, ts: int) -> None:
        """Record that the values of the rewrite at `ts` are stored."""
        with self._lock:
            if ts <= self._rewritten_ts:
                return
            self._rewritten_ts = ts
        self._on_advance()

    @property
    def incomplete(self) -> bool:
        """Whether the first scan may have left out rows; nothing can be read or flushed then."""
        return self._incomplete

    def finish_first_scan(self) -> None:
        """Record that the rows are stored which the first scan left out."""
        with self._lock:
            self._incomplete = False
            self._settle()
        self._on_advance()

    @property
    def disowned(self) -> bool:
        """Whether the table was given up; it holds nothing then."""
        return self._disowned

    def consume_kv_events(self, raw: pa.RecordBatch, finish: Callable[[], None]) -> bool:
        """Take a raw batch, as the contract of the span pipeline says.

        True: `finish` is called, on the log's thread, once the rows are on the disk; it must not block.
        False: there is nothing to wait for, because every row was delivered before, or the table was given
        up. Blocks while the log's queue, or the disk that flushes free, is full. Raises Unavailable when the
        log has failed.
        """
        self._admit()
        if self._disowned:
            metrics.EVENTSTORE_ROWS_TOTAL.labels("disowned").inc(raw.num_rows)
            return False
        if not raw.num_rows:
            return False
        fresh, bounds = raw, commit_bounds(raw)
        if bounds[0] <= self._resolved_ts:
            fresh = select_between(raw, self._resolved_ts, TS_MAX)
            metrics.EVENTSTORE_ROWS_TOTAL.labels("late").inc(raw.num_rows - fresh.num_rows)
            if not fresh.num_rows:
                return False
            bounds = commit_bounds(fresh)
        self._wal.append(self.table_id, fresh, bounds[1], partial(self._on_stored, fresh, bounds, finish))
        return True

    def store_backfill(self, raw: pa.RecordBatch, finish: Callable[[], None]) -> bool:
        """Take rows that were read from the cluster, all with the commit-ts of what holds the table back.

        `finish` and the answer are as in `consume_kv_events`, but nothing is late: no reader has come so far.
        Storing the same rows again changes nothing.
        """
        if self._disowned or not raw.num_rows:
            return False
        bounds = commit_bounds(raw)
        assert bounds[0] > self._flushed_ts, "the rewrite holds the table back"
        self._wal.append(self.table_id, raw, bounds[1], partial(self._on_stored, raw, bounds, finish))
        return True

    def _on_stored(
        self, batch: pa.RecordBatch, bounds: tuple[int, int], finish: Callable[[], None], place: LogLocation
    ) -> None:
        in_memory = self._memory.take(batch.get_total_buffer_size() + _BATCH_BYTES)
        held = LoggedBatch.of(place, batch, bounds, self._clock.monotonic(), in_memory=in_memory)
        with self._lock:
            if not self._disowned:
                self._keep((held,))
                self._unsettled.append(bounds)
            elif in_memory:
                self._memory.give_back(held.weight)
        metrics.EVENTSTORE_ROWS_TOTAL.labels("stored").inc(held.rows)
        if tracing.current is not None:
            at = f"{place.segment}/{place.offset}"
            tracing.current.record_capture(batch, self._name, table_id=self.table_id, place=at)
        finish()

    def advance_resolved_ts(self, ts: int) -> None:
        """Record that every change up to `ts` is stored. A lower ts changes nothing. Never blocks."""
        with self._lock:
            if ts <= self._resolved_ts or self._disowned:
                return
            self._resolved_ts = ts
            self._settle()
            self._wal.mark_resolved(self.table_id, ts)
        self._on_advance()

    def list_held(self, from_ts: int, to_ts: int) -> list[LoggedBatch]:
        """Return the batches that may have changes in (from_ts, to_ts], in the order of their arrival.

        Raises Unavailable when the table was given up, because its rows are not known any more.
        """
        with self._lock:
            if self._disowned:
                raise Unavailable(f"table {self.table_id} is no longer captured here; ask its owner")
            return [held for held in self._held if held.max_ts > from_ts and held.min_ts <= to_ts]

    def load(self, chosen: Iterable[LoggedBatch], from_ts: int, to_ts: int) -> Iterable[pa.RecordBatch]:
        """Yield the rows of batches in (from_ts, to_ts]; raise Unavailable when they were flushed."""
        for held in chosen:
            batch = held.batch if held.batch is not None else self._wal.load(held.place)
            yield select_between(batch, from_ts, to_ts)

    def release(self, flushed_ts: int) -> None:
        """Drop the changes up to `flushed_ts`, which are in objects now."""
        with self._lock:
            before = self._drop_all()
            self._flushed_ts = max(self._flushed_ts, flushed_ts)
            self._keep(held for held in before if held.max_ts > flushed_ts)
            self._resolved_ts = max(self._resolved_ts, flushed_ts)
            self._settle()
        self._give_back(held for held in before if held.max_ts <= flushed_ts)
        self._wal.mark_flushed(self.table_id, flushed_ts)

    def disown(self) -> None:
        """Drop the rows and take no more, because the table is given up."""
        with self._lock:
            dropped = self._drop_all()
            self._disowned = True
        self._give_back(dropped)

    def measure_backlog(self, schema_resolved_ts: int) -> TableBacklog:
        """Return what a flush of this table would move; schemas are known up to `schema_resolved_ts`."""
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
        """Raise `changed_ts` to the changes up to `resolved_ts`; later ones cannot be read yet."""
        for first_ts, last_ts in self._unsettled:
            if first_ts <= self._resolved_ts:
                self._changed_ts = max(self._changed_ts, min(last_ts, self._resolved_ts))
        self._unsettled = [bounds for bounds in self._unsettled if bounds[1] > self._resolved_ts]

    def _drop_all(self) -> list[LoggedBatch]:
        dropped, self._held = self._held, []
        self._held_bytes = self._memory_held_bytes = 0
        self._lowest_ts = TS_MAX
        return dropped

    def _give_back(self, dropped: Iterable[LoggedBatch]) -> None:
        self._memory.give_back(sum(held.weight for held in dropped if held.batch is not None))
