"""`spark.readStream.format("penstock")`: a table's rows, then its changes, in batches that can be replayed.

An offset is a timestamp: everything up to it has been read. It also names the physical tables that the table
had at that time: when one of them is dropped, its rows go without a delete, and the stream ends. A stream
without a start begins with a snapshot, whose timestamp its first offset fixes; a batch may have a part of the
snapshot, up to a handle. The rows of a batch depend on its two offsets alone: a batch that is replayed has
the same rows, whatever was flushed, merged or committed meanwhile.

Spark 4.2 and later say where a batch begins and how much it may have. Spark 4.1 says neither, but plans the
last batch of a checkpoint again before it asks for the next one: the reader keeps where that one ended.
"""

import importlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from penstock.clock import SYSTEM, physical_ms
from penstock.errors import Invalid, PenstockError, StaleRead, Unavailable
from penstock.spark.errors import hide_worker_traceback
from penstock.spark.tasks import Parallelism, begin_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.changes import ChangesPartition
    from penstock.changes.limits import ReadLimit as ChangeLimit
    from penstock.eventstore.manifest import ManifestState
    from penstock.eventstore.read.flight_client import FlightReader
    from penstock.eventstore.read.partition import CaptureProgress, Partition, PartitionState, TableView
    from penstock.eventstore.schema_version import SchemaVersion
    from penstock.follow.holds import StreamHold
    from penstock.object_storage import StorageRef
    from penstock.spark.change_rows import ChangeRows, DeclaredSchema
    from penstock.spark.options import SourceOptions
    from penstock.spark.tables import TableRead
    from penstock.tables.schema import TableInfo

__all__ = [
    "ADMISSION",
    "IDLE_MS",
    "STREAM_READER",
    "ChangeStreamReader",
    "MicroBatchReader",
    "Offset",
    "RefusedStreamReader",
    "StreamRead",
    "open_stream",
]

T = TypeVar("T")

_log = logging.getLogger(__name__)

_admission: Any = None
"""What Spark 4.2 and later have for sources that limit their batches; None before."""
with suppress(ModuleNotFoundError):
    _admission = importlib.import_module("pyspark.sql.streaming.datasource")

_POLL_S = 0.5  # between two reads of the progress of a table without changes: Spark asks 100 times a second
_SILENT_S = 30.0  # after which a stream that waits for a capture or for storage says so
_MANIFEST_S = 10.0  # for which a manifest is kept: garbage collection leaves its objects for longer
IDLE_MS = 600_000
"""Milliseconds after which a stream goes on without changes, so that it holds no old history."""


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a stream has read: everything up to `ts`; with a handle, the rows before it of the snapshot at
    `ts`.

    `ids` are the physical tables that the table had at `ts`; empty in an offset of an earlier version. In a
    stream over many tables, `tables` is a digest of those that were there at `ts`.
    """

    ts: int
    handle: bytes = b""
    ids: tuple[int, ...] = ()
    tables: str = ""

    @classmethod
    def read(cls, tree: dict[str, Any]) -> "Offset":
        """Read an offset from a checkpoint; raise Invalid when it is not an offset of this source."""
        try:
            ids = tuple(int(table_id) for table_id in tree.get("ids", ()))
            return cls(int(tree["ts"]), bytes.fromhex(tree.get("handle", "")), ids, tree.get("tables", ""))
        except (KeyError, TypeError, ValueError) as error:
            raise Invalid(
                "the checkpoint has an offset of another source; start with a new checkpoint"
            ) from error

    def as_json(self) -> dict[str, Any]:
        """Return the offset as a checkpoint keeps it."""
        more = {"handle": self.handle.hex(), "ids": list(self.ids), "tables": self.tables}
        return {"ts": self.ts, **{name: value for name, value in more.items() if value}}

    @property
    def in_snapshot(self) -> bool:
        """Whether rows of a snapshot follow."""
        return not self.ts or bool(self.handle)


class MicroBatchReader(DataSourceStreamReader, ABC):
    """Plans micro-batches in one process for as long as the query runs; executors read them."""

    def __init__(self, options: "SourceOptions", schema: "StructType", *, parallelism: Parallelism) -> None:
        if ADMISSION is None:
            _warn_of_one_batch(options)
        self._options = options
        self._schema = schema
        self._parallelism = parallelism
        self._until_ts = options.to_ts
        self._newest_ts = 0
        self._poll_at = 0.0
        self._planned: Offset | None = None
        self._answered = False  # once, so that the options are right
        self._silent_since: float | None = None
        self._warned = False
        self._ends = False  # with what there is now: a run of Trigger.AvailableNow
        self._hold: StreamHold | None = None

    @abstractmethod
    def _find_next(self, begin: Offset, limit: "ChangeLimit") -> Offset:
        """Return the end of the batch that starts at `begin`; `begin` when nothing has changed."""

    @abstractmethod
    def _plan_batch(self, begin: Offset, stop: Offset) -> list[InputPartition]:
        """Return the parts of a batch, which is not empty; its rows depend on the offsets alone."""

    @abstractmethod
    def _find_newest_ts(self) -> int:
        """Return the timestamp up to which everything can be read now."""

    def initialOffset(self) -> dict[str, Any]:
        """Return the start that the options name; Spark asks again when it replays the first batch."""
        return self._first().as_json()

    def latestOffset(self) -> dict[str, Any]:
        """Return the end of the next micro-batch within the limits; its begin when nothing has changed."""
        begin = self._planned or self._first()
        return self._find_end(begin, self._change_limit())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the parts of a micro-batch."""
        with hide_worker_traceback(), self._explain_errors():
            begin, stop = Offset.read(start), Offset.read(end)
            planned: Sequence[InputPartition] = []
            if (begin.ts, begin.handle) != (stop.ts, stop.handle):
                planned = self._plan_batch(begin, stop)
            self._planned = stop
            return planned

    def _first(self) -> Offset:
        return Offset(self._options.from_ts or 0)

    def _change_limit(self) -> "ChangeLimit":
        from penstock.changes.limits import ReadLimit as ChangeLimit

        return ChangeLimit(self._options.max_rows_per_trigger, self._options.max_bytes_per_trigger)

    def _find_end(self, begin: Offset, limit: "ChangeLimit") -> dict[str, Any]:
        with hide_worker_traceback(), self._explain_errors():
            if SYSTEM.monotonic() < self._poll_at:
                return begin.as_json()
            try:
                end = self._find_next(begin, limit)
            except Unavailable as error:
                if not self._answered or self._ends:
                    raise
                self._warn_of(error)
                end = begin
            else:
                self._answered, self._silent_since, self._warned = True, None, False
            if end == begin:
                self._poll_at = SYSTEM.monotonic() + _POLL_S
            return end.as_json()

    def _warn_of(self, error: Unavailable) -> None:
        """Say once what a stream waits for: a capture that restarts is no reason to end."""
        now = SYSTEM.monotonic()
        self._silent_since = now if self._silent_since is None else self._silent_since
        if not self._warned and now >= self._silent_since + _SILENT_S:
            self._warned = True
            _log.warning("a stream waits for what it reads from", extra={"reason": str(error)})

    def _end_ts(self) -> int:
        return self._newest_ts if self._until_ts is None else min(self._newest_ts, self._until_ts)

    def _hold_history(self, storage: "StorageRef", table_ids: Collection[int], ts: int) -> None:
        from penstock.follow.holds import StreamHold

        if self._hold is None:
            holder = self._options.consumer_id or SYSTEM.unique_id()
            self._hold = StreamHold(storage.open(), f"stream-{holder}")
        self._hold.hold(table_ids, ts)

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Add the remedy to the errors that end a stream: history is gone, or a service does not answer."""
        try:
            yield
        except Unavailable as error:
            raise Unavailable(f"{error}; start the query again: it goes on from its checkpoint") from error
        except StaleRead as error:
            table = self._options.table or error.table
            if error.replaced:
                raise StaleRead(
                    table,
                    error.ts,
                    oldest_ts=error.oldest_ts,
                    replaced=True,
                    remedy="start the query with a new checkpoint",
                ) from error
            raise Invalid(
                f"history of {table} at version {error.ts} is gone; the oldest that can be read"
                f" is {error.oldest_ts}: start the query with a new checkpoint"
            ) from error


class ChangeStreamReader(MicroBatchReader):
    """The micro-batches of one table.

    `declared` is the table from which the columns were taken; None when the caller gave a schema.
    """

    def __init__(
        self,
        options: "SourceOptions",
        schema: "StructType",
        declared: "DeclaredSchema | None",
        *,
        parallelism: Parallelism,
    ) -> None:
        super().__init__(options, schema, parallelism=parallelism)
        self._declared = declared
        self._kept: _KeptTable | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_kept": None, "_hold": None}  # connections stay where they are

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of a part, on an executor."""
        from penstock.spark.arrow_types import as_declared
        from penstock.spark.change_rows import read_feed

        assert isinstance(partition, StreamInput)
        begin_task()
        with hide_worker_traceback(), self._explain_errors():
            yield from as_declared(read_feed(partition.part, partition.rows), self._schema)

    def _find_next(self, begin: Offset, limit: "ChangeLimit") -> Offset:
        kept = self._kept
        if kept is not None and kept.refresh():
            if kept.is_quiet(begin):
                self._newest_ts = kept.newest_ts
                self._hold_view(kept.view, begin.ts)
                return begin
            with suppress(Unavailable):  # another capture may own the table now
                return self._look(kept.open(), begin, limit)
        self._kept = None
        return self._with_table(lambda view: self._look(view, begin, limit))

    def _look(self, view: "TableView", begin: Offset, limit: "ChangeLimit") -> Offset:
        """Return the end of the next batch; keep the table for the batches after it."""
        end = self._next(view, begin, limit)
        if self._kept is None:
            self._kept = _KeptTable.of(view, self._newest_ts)
        if self._kept is not None and end == begin and not begin.in_snapshot:
            self._kept.note_quiet(begin, max(begin.ts, self._newest_ts))
        return end

    def _plan_batch(self, begin: Offset, stop: Offset) -> list[InputPartition]:
        if self._kept is not None and self._kept.has_name_at(stop.ts):
            with suppress(Unavailable):  # as above
                return self._plan(self._kept.open(), begin, stop)
        return self._with_table(lambda view: self._plan(view, begin, stop), at_ts=stop.ts)

    def _find_newest_ts(self) -> int:
        return self._with_table(_readable_ts)

    def _with_table(self, work: Callable[["TableView"], T], *, at_ts: int | None = None) -> T:
        """Do work with the table; once more after a failure: another capture may own the table now."""
        from penstock.spark.tables import open_table

        try:
            return work(open_table(self._options, at_ts=at_ts))
        except Unavailable:
            return work(open_table(self._options, at_ts=at_ts))

    def _next(self, view: "TableView", begin: Offset, limit: "ChangeLimit") -> Offset:
        """Return the end of the batch that starts at `begin`; hold history from `begin` on only."""
        self._newest_ts = _readable_ts(view)
        if begin.in_snapshot:
            return self._next_of_snapshot(view, begin, limit)
        self._hold_view(view, begin.ts)
        end_ts = self._end_ts()
        return begin if end_ts <= begin.ts else self._next_change(view, begin, end_ts, limit)

    def _next_of_snapshot(self, view: "TableView", begin: Offset, limit: "ChangeLimit") -> Offset:
        from penstock.changes.collect import fix_range
        from penstock.changes.limits import admitted_handle

        ts = begin.ts or self._snapshot_ts(view)
        if not ts:
            return begin
        self._hold_view(view, ts)
        states = fix_range(view, 0, ts).states
        low, high = self._bounds(view, ts)
        end = admitted_handle(states, ts, max(low, begin.handle), limit)
        whole = end is None or (high and end >= high)
        return Offset(ts, b"" if whole or end is None else end, _ids(states))

    def _snapshot_ts(self, view: "TableView") -> int:
        """Return the newest timestamp at which the table has the declared columns."""
        end_ts = self._end_ts()
        if self._declared is None or end_ts <= self._declared.ts:
            return end_ts
        states = [partition.state(from_ts=self._declared.ts) for partition in view.partitions]
        change = self._declared.first_change(_versions(states, self._declared.ts, end_ts))
        return end_ts if change is None else change.since_ts - 1

    def _next_change(self, view: "TableView", begin: Offset, end_ts: int, limit: "ChangeLimit") -> Offset:
        from penstock.changes.collect import fix_range
        from penstock.changes.limits import ChangeCounts

        # A column that the stream has ends the range before it is rewritten: it gets another id.
        _, states, set_ts = fix_range(view, begin.ts, end_ts, one_set=True, across_rewrites=True)
        ids = _ids(states)
        if not set(begin.ids) <= set(ids):
            since_ts = states[0].schema_at(set_ts).since_ts
            raise StaleRead(self._options.table, begin.ts, oldest_ts=since_ts, replaced=True)
        grows, end_ts = set_ts < end_ts, set_ts
        change = None
        if self._declared is not None:
            change = self._declared.first_change(_versions(states, begin.ts, end_ts))
        if change is not None:
            end_ts = max(begin.ts, change.since_ts - 1)
        counts = ChangeCounts(states, begin.ts, end_ts)
        if end_ts > begin.ts and counts.has_changes():
            return Offset(counts.last_admitted_ts(limit), ids=ids)
        if change is not None and self._declared is not None:
            raise self._declared.stop_error(change)
        is_late = physical_ms(end_ts) - physical_ms(begin.ts) >= IDLE_MS
        return Offset(end_ts, ids=ids) if is_late or grows else begin

    def _plan(self, view: "TableView", begin: Offset, stop: Offset) -> list[InputPartition]:
        from penstock.spark.change_rows import feed_parts

        rows = self._rows(view, stop.ts)
        low, high = self._bounds(view, stop.ts)
        ends = [handle for handle in (high, stop.handle) if handle]
        parts = feed_parts(
            view,
            0 if begin.in_snapshot else begin.ts,
            stop.ts,
            rows,
            handles=(max(low, begin.handle), min(ends, default=b"")),
            part_bytes=self._options.partition_bytes,
            parallelism=self._parallelism.ask(),
        )
        return [StreamInput(part, rows) for part in parts]

    def _rows(self, view: "TableView", ts: int) -> "ChangeRows":
        """Return the declared rows; when the caller gave a schema, those of the table at `ts`."""
        from penstock.spark.arrow_types import json_columns, require_columns
        from penstock.spark.change_rows import ChangeRows

        if self._declared is not None:
            return ChangeRows(self._declared.table, self._options.columns)
        rows = ChangeRows(_table_at(view, ts), self._options.columns or tuple(self._schema.names))
        require_columns(self._schema, rows.schema, table=self._options.table, json=json_columns(rows.table))
        return rows

    def _bounds(self, view: "TableView", ts: int) -> tuple[bytes, bytes]:
        from penstock.spark.options import handle_bounds

        options = self._options
        if options.range_from is None and options.range_to is None:
            return b"", b""
        return handle_bounds(_table_at(view, ts), options.range_from, options.range_to)

    def _hold_view(self, view: "TableView", ts: int) -> None:
        held = [partition.table_id for partition in view.partitions]
        self._hold_history(view.partitions[0].storage, held, ts)


if _admission is not None:

    class _AdmittedReader(MicroBatchReader, _admission.SupportsTriggerAvailableNow):  # type: ignore[misc]
        """What Spark 4.2 and later ask of a reader: where a run of Trigger.AvailableNow ends, and limits."""

        def getDefaultReadLimit(self) -> Any:
            """Return one limit, because Spark takes one; `latestOffset` obeys both."""
            if self._options.max_rows_per_trigger is not None:
                return _admission.ReadMaxRows(self._options.max_rows_per_trigger)
            if self._options.max_bytes_per_trigger is not None:
                return _admission.ReadMaxBytes(self._options.max_bytes_per_trigger)
            return _admission.ReadAllAvailable()

        def prepareForTriggerAvailableNow(self) -> None:
            """End the run with what is committed now; later changes belong to another run."""
            with hide_worker_traceback(), self._explain_errors():
                newest_ts = self._find_newest_ts()
                self._ends = True
                self._until_ts = newest_ts if self._until_ts is None else min(self._until_ts, newest_ts)

        def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # type: ignore[override]
            """Return the end of the next micro-batch; `start` when nothing has changed."""
            from penstock.changes.limits import ReadLimit as ChangeLimit

            unlimited = isinstance(limit, _admission.ReadAllAvailable)
            with hide_worker_traceback():
                begin = Offset.read(start)
            return self._find_end(begin, ChangeLimit() if unlimited else self._change_limit())

        def reportLatestOffset(self) -> dict[str, Any] | None:
            """Return how far everything could be read at the last call of `latestOffset`."""
            return Offset(self._newest_ts).as_json() if self._newest_ts else None

    class AdmittedStreamReader(_AdmittedReader, ChangeStreamReader):
        """The reader of one table for Spark 4.2 and later."""


ADMISSION: Any = None if _admission is None else _AdmittedReader
"""The first base class of a reader for Spark 4.2 and later; None before."""

STREAM_READER: type[ChangeStreamReader] = ChangeStreamReader if _admission is None else AdmittedStreamReader
"""The reader for the version of Spark that is installed."""


class RefusedStreamReader(DataSourceStreamReader):
    """The reader of a stream that cannot be opened; raises the reason when Spark first calls it.

    Spark hides errors that are raised while it creates a stream's reader.
    """

    def __init__(self, reason: PenstockError) -> None:
        self._reason = reason

    def initialOffset(self) -> dict[str, Any]:
        """Raise the reason."""
        with hide_worker_traceback():
            raise self._reason

    def latestOffset(self, *_: Any) -> dict[str, Any]:
        """Raise the reason: Spark 4.1 asks for the end of the first batch before its begin."""
        with hide_worker_traceback():
            raise self._reason

    def partitions(self, _start: dict[str, Any], _end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise the reason: for a batch that is replayed, Spark asks for no offset first."""
        with hide_worker_traceback():
            raise self._reason

    def read(self, _partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Raise the reason; never called, because nothing was planned."""
        raise self._reason


@runtime_checkable
class StreamRead(Protocol):
    """A read that makes its own reader of micro-batches."""

    def stream_reader(self, schema: "StructType") -> DataSourceStreamReader:
        """Return the reader; raise a PenstockError of one line."""


def open_stream(open_read: "Callable[[], TableRead]", schema: "StructType") -> DataSourceStreamReader:
    """Return the stream of a read, or a RefusedStreamReader with the reason when it cannot be opened."""
    from penstock.process import configure_logs
    from penstock.spark.change_feed import ChangeFeedRead

    ours = logging.getLogger("penstock")
    if ours.propagate and not logging.getLogger().handlers:
        # A process that Spark has started: its warnings would not be shown.
        configure_logs(style="text", level="WARNING")
    try:
        read = open_read()
        if isinstance(read, StreamRead):
            return read.stream_reader(schema)
        if not isinstance(read, ChangeFeedRead):
            raise Invalid("a stream reads changes; give option readChangeFeed = true as well")
        return STREAM_READER(read.options, schema, read.declare(), parallelism=read.parallelism)
    except PenstockError as error:
        return RefusedStreamReader(error)


_warned_of_one_batch = False


def _warn_of_one_batch(options: "SourceOptions") -> None:
    """Say once what Spark 4.1 makes of limits: it tells no source which trigger a query has."""
    global _warned_of_one_batch  # noqa: PLW0603 - it is about the process
    if not _warned_of_one_batch and (options.max_rows_per_trigger or options.max_bytes_per_trigger):
        _warned_of_one_batch = True
        _log.warning(
            "with maxRowsPerTrigger or maxBytesPerTrigger, Spark 4.1 ends availableNow and once after one"
            " limited batch; leave the limits out, or use Spark 4.2"
        )


class _KeptTable:
    """A table as a look found it: kept while its captures say that no DDL came and that they own it still.

    So a batch of new rows costs one call of each capture, and no lease, name or manifest is read. Manifests
    are read again after a flush, and every ten seconds for what merges and garbage collection did.
    """

    def __init__(self, view: "TableView", owners: "Mapping[int, FlightReader]", since_ts: int) -> None:
        from penstock.follow.catalog import WatchedTable

        self.view = view
        self._owners = owners
        self._since_ts = since_ts
        self._watched = WatchedTable(view.name, owners, since_ts)
        self._seen: dict[int, CaptureProgress] = {}
        self._manifests: dict[int, tuple[ManifestState, float]] = {}
        self._quiet: tuple[Offset, int] | None = None

    @classmethod
    def of(cls, view: "TableView", newest_ts: int) -> "_KeptTable | None":
        """Keep a view that was opened when `newest_ts` was the newest timestamp.

        None when a physical table has no capture: only its objects say whether it has changed.
        """
        from penstock.eventstore.read.flight_client import FlightReader

        owners = {
            partition.table_id: partition.rows
            for partition in view.partitions
            if isinstance(partition.rows, FlightReader)
        }
        return cls(view, owners, newest_ts) if len(owners) == len(view.partitions) else None

    def refresh(self) -> bool:
        """Ask the captures; return whether the view is still right."""
        self._seen = self._watched.read_progress() or {}
        return bool(self._seen)

    @property
    def newest_ts(self) -> int:
        """Up to when the table could be read at the last refresh; 0 before."""
        return min((progress.readable_ts for progress in self._seen.values()), default=0)

    def note_quiet(self, begin: Offset, upto_ts: int) -> None:
        """Note that a look found no change between an offset and `upto_ts`."""
        self._quiet = begin, upto_ts

    def is_quiet(self, begin: Offset) -> bool:
        """Return whether nothing has changed since an offset, and not for so long that a stream goes on."""
        if self._quiet is None or self._quiet[0] != begin:
            return False
        is_late = physical_ms(self.newest_ts) - physical_ms(begin.ts) >= IDLE_MS
        return not is_late and all(found.changed_ts <= self._quiet[1] for found in self._seen.values())

    def has_name_at(self, ts: int) -> bool:
        """Return whether the table surely has its name at `ts`, with these partitions."""
        return self._since_ts <= ts <= self.newest_ts

    def open(self) -> "TableView":
        """Return the table as the last refresh saw it; raise Unavailable when storage does not answer."""
        return replace(self.view, partitions=tuple(map(self._open_partition, self.view.partitions)))

    def _open_partition(self, partition: "Partition") -> "Partition":
        from penstock.follow.captures import OwnedRows

        seen, now = self._seen[partition.table_id], SYSTEM.monotonic()
        manifest, read_at = self._manifests.get(partition.table_id, (None, 0.0))
        if manifest is None or manifest.flushed_ts != seen.flushed_ts or now >= read_at + _MANIFEST_S:
            manifest = partition.state().manifest
            self._manifests[partition.table_id] = manifest, now
        return replace(partition, rows=OwnedRows(self._owners[partition.table_id], seen), manifest=manifest)


class StreamInput(InputPartition):
    """A part of a micro-batch, in the form that Spark hands to an executor."""

    def __init__(self, part: "ChangesPartition", rows: "ChangeRows") -> None:
        super().__init__(None)
        self.part = part
        self.rows = rows


def _readable_ts(view: "TableView") -> int:
    """Return the timestamp up to which every partition can be read; 0 when nothing can be read yet."""
    return min(partition.state().newest_ts for partition in view.partitions)


def _ids(states: "Sequence[PartitionState]") -> tuple[int, ...]:
    return tuple(state.table_id for state in states)


def _table_at(view: "TableView", ts: int) -> "TableInfo":
    return view.partitions[0].state(from_ts=ts).schema_at(ts).table


def _versions(states: "Sequence[PartitionState]", from_ts: int, to_ts: int) -> "list[SchemaVersion]":
    from penstock.changes.collect import schema_parts

    return [schema for _, _, schema in schema_parts(states, from_ts, to_ts)]
