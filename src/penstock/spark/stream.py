"""`spark.readStream.format("penstock")`: a table's rows, then its changes, in batches that can be replayed.

An offset is a timestamp: everything up to it has been read. It also names the physical tables that the table
had then: rows of one that is not there any more went without a delete, and the stream ends. A stream without
a start begins with the rows that the table has at some moment, which its first offset fixes; of these a part
may be read at a time, up to a handle. Rows depend on the two offsets of a batch alone, so that a batch that
is replayed has the same rows, whatever was flushed, merged or committed meanwhile.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.clock import SYSTEM, physical_ms
from penstock.errors import Invalid, PenstockError, StaleRead, Unavailable
from penstock.spark.errors import one_line
from penstock.spark.tasks import task_begins

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.changes import ChangesPartition
    from penstock.changes.limits import ReadLimit as ChangeLimit
    from penstock.eventstore.read.partition import PartitionState, TableView
    from penstock.eventstore.schema_version import SchemaVersion
    from penstock.follow.holds import StreamHold
    from penstock.spark.change_rows import ChangeRows, DeclaredSchema
    from penstock.spark.options import SourceOptions
    from penstock.spark.tables import TableRead
    from penstock.tables.schema import TableInfo

__all__ = ["ChangeStreamReader", "Offset", "RefusedStreamReader", "open_stream"]

T = TypeVar("T")

_LOOK_S = 0.5  # between two looks at a table that had nothing new: Spark asks a hundred times a second
_IDLE_MS = 600_000  # after which a stream goes on without changes, so that history need not be kept for it


@dataclass(frozen=True, slots=True)
class Offset:
    """Everything up to `ts` was read; with a handle, of the snapshot at `ts` the rows before it.

    `ids` are the physical tables that the table had at `ts`; none in an offset of an earlier version.
    """

    ts: int
    handle: bytes = b""
    ids: tuple[int, ...] = ()

    @classmethod
    def read(cls, tree: dict[str, Any]) -> "Offset":
        """An offset out of a checkpoint; raise Invalid when it is not one of ours."""
        try:
            ids = tuple(int(each) for each in tree.get("ids", ()))
            return cls(int(tree["ts"]), bytes.fromhex(tree.get("handle", "")), ids)
        except (KeyError, TypeError, ValueError) as error:
            raise Invalid(
                "the checkpoint has an offset that is none of this source's; start with a new checkpoint"
            ) from error

    def as_json(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        handle = {"handle": self.handle.hex()} if self.handle else {}
        return {"ts": self.ts, **handle, **({"ids": list(self.ids)} if self.ids else {})}

    @property
    def in_snapshot(self) -> bool:
        """Whether what follows is rows of a snapshot."""
        return not self.ts or bool(self.handle)


class ChangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in one process for as long as the query runs, and reads them on executors.

    `declared` is the table that the columns were taken from; None when the caller named them.
    """

    def __init__(
        self,
        options: "SourceOptions",
        schema: "StructType",
        declared: "DeclaredSchema | None",
        *,
        parallelism: int,
    ) -> None:
        self._options = options
        self._schema = schema
        self._declared = declared
        self._parallelism = parallelism
        self._until_ts = options.to_ts
        self._newest_ts = 0
        self._look_at = 0.0
        self._hold: StreamHold | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Where the options say; Spark asks again when it replays the first batch."""
        return Offset(self._options.from_ts or 0).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark takes one limit; `latestOffset` keeps to both."""
        if self._options.max_rows_per_trigger is not None:
            return ReadMaxRows(self._options.max_rows_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """What is committed from now on belongs to another run."""
        with one_line(), self._explained():
            newest_ts = self._of_table(_readable_ts)
            self._until_ts = newest_ts if self._until_ts is None else min(self._until_ts, newest_ts)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next micro-batch; `start` when nothing has changed."""
        with one_line(), self._explained():
            begin = Offset.read(start)
            if SYSTEM.monotonic() < self._look_at:
                return start
            end = self._of_table(lambda view: self._next(view, begin, self._limit(limit)))
            if end == begin:
                self._look_at = SYSTEM.monotonic() + _LOOK_S
            return end.as_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """How far the table could be read when it was looked at."""
        return Offset(self._newest_ts).as_json() if self._newest_ts else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The parts of a micro-batch."""
        with one_line(), self._explained():
            begin, stop = Offset.read(start), Offset.read(end)
            if (begin.ts, begin.handle) == (stop.ts, stop.handle):
                return []
            return self._of_table(lambda view: self._planned(view, begin, stop), at_ts=stop.ts)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The rows of a part, on an executor."""
        from penstock.spark.change_rows import read_feed
        from penstock.spark.tables import as_declared

        assert isinstance(partition, StreamInput)
        task_begins()
        with one_line(), self._explained():
            yield from as_declared(read_feed(partition.part, partition.rows), self._schema)

    def _of_table(self, found: Callable[["TableView"], T], *, at_ts: int | None = None) -> T:
        """What is found in the table; looked up anew when it is with another capture meanwhile."""
        from penstock.spark.tables import open_table

        try:
            return found(open_table(self._options, at_ts=at_ts))
        except Unavailable:
            return found(open_table(self._options, at_ts=at_ts))

    def _next(self, view: "TableView", begin: Offset, limit: "ChangeLimit") -> Offset:
        """The end of the batch from `begin` on. What came before is done, so it need not be kept."""
        self._newest_ts = _readable_ts(view)
        if begin.in_snapshot:
            return self._next_of_snapshot(view, begin, limit)
        self._keep(view, begin.ts)
        end_ts = self._end_ts()
        return begin if end_ts <= begin.ts else self._next_change(view, begin, end_ts, limit)

    def _end_ts(self) -> int:
        return self._newest_ts if self._until_ts is None else min(self._newest_ts, self._until_ts)

    def _next_of_snapshot(self, view: "TableView", begin: Offset, limit: "ChangeLimit") -> Offset:
        from penstock.changes.collect import fix_range
        from penstock.changes.limits import admitted_handle

        ts = begin.ts or self._snapshot_ts(view)
        if not ts:
            return begin
        self._keep(view, ts)
        states = fix_range(view, 0, ts).states
        low, high = self._bounds(view, ts)
        cut = admitted_handle(states, ts, max(low, begin.handle), limit)
        whole = cut is None or (high and cut >= high)
        return Offset(ts, b"" if whole or cut is None else cut, _ids(states))

    def _snapshot_ts(self, view: "TableView") -> int:
        """The newest moment at which the table has the declared columns."""
        end_ts = self._end_ts()
        if self._declared is None or end_ts <= self._declared.ts:
            return end_ts
        states = [partition.state(from_ts=self._declared.ts) for partition in view.partitions]
        change = self._declared.first_change(_versions(states, self._declared.ts, end_ts))
        return end_ts if change is None else change.since_ts - 1

    def _next_change(self, view: "TableView", begin: Offset, end_ts: int, limit: "ChangeLimit") -> Offset:
        from penstock.changes.collect import fix_range
        from penstock.changes.limits import ChangeCounts

        _, states, set_ts = fix_range(view, begin.ts, end_ts, one_set=True)
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
            raise self._declared.stopped_by(change)
        is_late = physical_ms(end_ts) - physical_ms(begin.ts) >= _IDLE_MS
        return Offset(end_ts, ids=ids) if is_late or grows else begin

    def _planned(self, view: "TableView", begin: Offset, stop: Offset) -> list[InputPartition]:
        from penstock.spark.change_rows import feed_parts

        rows = self._rows(view, stop.ts)
        low, high = self._bounds(view, stop.ts)
        ends = [each for each in (high, stop.handle) if each]
        parts = feed_parts(
            view,
            0 if begin.in_snapshot else begin.ts,
            stop.ts,
            rows,
            handles=(max(low, begin.handle), min(ends, default=b"")),
            part_bytes=self._options.partition_bytes,
            parallelism=self._parallelism,
        )
        return [StreamInput(part, rows) for part in parts]

    def _rows(self, view: "TableView", ts: int) -> "ChangeRows":
        """The rows that are declared; where the caller named columns, as the table has them at `ts`."""
        from penstock.spark.change_rows import ChangeRows
        from penstock.spark.tables import require_columns

        if self._declared is not None:
            return ChangeRows(self._declared.table, self._options.columns)
        rows = ChangeRows(_table_at(view, ts), self._options.columns or tuple(self._schema.names))
        require_columns(self._schema, rows.schema, table=self._options.table)
        return rows

    def _bounds(self, view: "TableView", ts: int) -> tuple[bytes, bytes]:
        from penstock.spark.options import handle_bounds

        options = self._options
        if options.range_from is None and options.range_to is None:
            return b"", b""
        return handle_bounds(_table_at(view, ts), options.range_from, options.range_to)

    def _limit(self, limit: ReadLimit) -> "ChangeLimit":
        from penstock.changes.limits import ReadLimit as ChangeLimit

        if isinstance(limit, ReadAllAvailable):
            return ChangeLimit()
        return ChangeLimit(self._options.max_rows_per_trigger, self._options.max_bytes_per_trigger)

    def _keep(self, view: "TableView", ts: int) -> None:
        from penstock.follow.holds import StreamHold

        if self._hold is None:
            holder = self._options.consumer_id or SYSTEM.unique_id()
            self._hold = StreamHold(view.partitions[0].storage.open(), f"stream-{holder}")
        self._hold.hold([partition.table_id for partition in view.partitions], ts)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say what to do when a stream ends: history is gone, or somebody does not answer."""
        try:
            yield
        except Unavailable as error:
            raise Unavailable(f"{error}; start the query again: it goes on from its checkpoint") from error
        except StaleRead as error:
            if error.replaced:
                raise StaleRead(
                    self._options.table,
                    error.ts,
                    oldest_ts=error.oldest_ts,
                    replaced=True,
                    remedy="start the query with a new checkpoint",
                ) from error
            raise Invalid(
                f"history of {self._options.table} at version {error.ts} is gone; the oldest that can be read"
                f" is {error.oldest_ts}: start the query with a new checkpoint"
            ) from error


class RefusedStreamReader(DataSourceStreamReader):
    """Stands for a stream that cannot be; says why when it is first asked for something.

    Spark hides what is raised while a stream's reader is made.
    """

    def __init__(self, reason: PenstockError) -> None:
        self._reason = reason

    def initialOffset(self) -> dict[str, Any]:
        """Raise the reason."""
        with one_line():
            raise self._reason

    def partitions(self, _start: dict[str, Any], _end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise the reason: a replayed batch does not ask for an offset first."""
        with one_line():
            raise self._reason

    def read(self, _partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Never called: nothing was planned."""
        raise self._reason


def open_stream(opened: "Callable[[], TableRead]", schema: "StructType") -> DataSourceStreamReader:
    """The stream of a read; one that says why when there is none."""
    from penstock.spark.change_feed import ChangeFeedRead

    try:
        read = opened()
        if not isinstance(read, ChangeFeedRead):
            raise Invalid("streams are of changes; give option readChangeFeed = true as well")
        return ChangeStreamReader(read.options, schema, read.declare(), parallelism=read.parallelism)
    except PenstockError as error:
        return RefusedStreamReader(error)


class StreamInput(InputPartition):
    """A part of a micro-batch, in the form that Spark hands to an executor."""

    def __init__(self, part: "ChangesPartition", rows: "ChangeRows") -> None:
        super().__init__(None)
        self.part = part
        self.rows = rows


def _readable_ts(view: "TableView") -> int:
    """How far every partition can be read; 0: not at all yet."""
    return min(partition.state().newest_ts for partition in view.partitions)


def _ids(states: "Sequence[PartitionState]") -> tuple[int, ...]:
    return tuple(state.table_id for state in states)


def _table_at(view: "TableView", ts: int) -> "TableInfo":
    return view.partitions[0].state(from_ts=ts).schema_at(ts).table


def _versions(states: "Sequence[PartitionState]", from_ts: int, to_ts: int) -> "list[SchemaVersion]":
    from penstock.changes.collect import schema_parts

    return [schema for _, _, schema in schema_parts(states, from_ts, to_ts)]
