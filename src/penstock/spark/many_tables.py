"""`option("tables", "shop.*")`: the changes of many tables as one stream, and its batches by table.

An offset is one timestamp for all tables, so a batch has whole transactions, whichever tables they touched.
No batch has rows from before and from after a DDL of a table: a batch ends before a DDL that changes a
table's columns or takes rows away. Tables come and go by their names. Where rows of a name go without a
change of them, a row says so (`truncate`, or `drop` when no table has the name any more); where rows come in
that way, by a rename or a partition, they come as inserts.

A row has its table, its schema, and its columns as a VARIANT; `by_table` gives the columns back their types.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    DayTimeIntervalType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from penstock.clock import physical_ms
from penstock.columnar.variant import VARIANT, encode_objects
from penstock.errors import Invalid, Unavailable
from penstock.spark.arrow_types import spark_schema
from penstock.spark.change_rows import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    ChangeRows,
    commit_times,
    feed_parts,
    read_feed,
)
from penstock.spark.errors import hide_worker_traceback
from penstock.spark.stream import ADMISSION, IDLE_MS, MicroBatchReader, Offset
from penstock.spark.tables import name_stale_reads, require_storage
from penstock.spark.tasks import Parallelism, begin_task, spread
from penstock.tables.arrow import shown_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.changes import ChangesPartition
    from penstock.changes.limits import ReadLimit
    from penstock.eventstore.read.partition import PartitionState
    from penstock.eventstore.read.partition_sets import Life
    from penstock.follow.catalog import TableCatalog, TableCut
    from penstock.object_storage import StorageRef
    from penstock.spark.filters import ReadFilter
    from penstock.spark.options import SourceOptions

__all__ = ["PAYLOAD", "SCHEMA", "SCHEMA_VERSION", "TABLE", "ManyTablesRead", "by_table"]

TABLE, SCHEMA_VERSION, SCHEMA, PAYLOAD = "_table", "_schema_version", "_schema", "payload"
_FEED = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)

_SPARK_SCHEMA = StructType(
    [
        StructField(TABLE, StringType(), nullable=False),
        StructField(SCHEMA_VERSION, LongType(), nullable=False),
        StructField(SCHEMA, StringType(), nullable=False),
        StructField(PAYLOAD, VariantType()),
        StructField(CHANGE_TYPE, StringType(), nullable=False),
        StructField(COMMIT_VERSION, LongType(), nullable=False),
        StructField(COMMIT_TIMESTAMP, TimestampType(), nullable=False),
    ]
)
_ARROW_SCHEMA = pa.schema(
    [
        pa.field(TABLE, pa.string(), nullable=False),
        pa.field(SCHEMA_VERSION, pa.int64(), nullable=False),
        pa.field(SCHEMA, pa.string(), nullable=False),
        pa.field(PAYLOAD, VARIANT),
        pa.field(CHANGE_TYPE, pa.string(), nullable=False),
        pa.field(COMMIT_VERSION, pa.int64(), nullable=False),
        pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)
_BATCH_BYTES = 64 * 1024 * 1024  # of columns that become payloads at once: Arrow's limit is far above
_GROUPS_PER_TASK = 2  # parts of small tables share a task; as many tasks as `feed_parts` gives a large one


def by_table(batch: "DataFrame") -> "dict[str, DataFrame]":
    """Split a batch of a stream over many tables into one frame for each table, with the table's columns.

    The frames have the columns that the table has in this batch, then `_change_type`, `_commit_version` and
    `_commit_timestamp`. A row of type `truncate` or `drop` says that every earlier row of the table is gone;
    its columns are null. It has the version of the DDL, and so have the rows that the DDL brought: order by
    `_commit_version`, and within one version take `truncate`, `drop`, `delete` and `update_preimage` first.

    Reads the batch once to find its tables, and again for each frame that is used: persist it before. Raises
    Invalid when the batch is of another source, or a table has two schemas in it, which only a read of a
    range with a DDL in it can have.
    """
    missing = {TABLE, SCHEMA, PAYLOAD, *_FEED}.difference(batch.columns)
    if missing:
        raise Invalid(
            f"the batch has no column {min(missing)}; by_table is for streams with option tables, before"
            " their columns are selected"
        )
    found = sorted(tuple(row) for row in batch.select(TABLE, SCHEMA).distinct().collect())
    for (name, _), (other, _) in pairwise(found):
        if name == other:
            raise Invalid(
                f"table {name} has two schemas in this frame; read up to its DDL and from there on apart,"
                " or as a stream, whose batches end there"
            )
    return {name: _typed_frame(batch, name, declared) for name, declared in found}


def _typed_frame(batch: "DataFrame", name: str, declared: str) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812 - as everybody names it

    microsecond = F.expr("INTERVAL '0 00:00:00.000001' DAY TO SECOND")
    columns = StructType.fromDDL(declared)
    assert isinstance(columns, StructType)
    stored = ", ".join(
        # VARIANT has no intervals: a TIME is a number of microseconds in it.
        f"{_quote(field.name)}: {'bigint' if _is_interval(field) else field.dataType.simpleString()}"
        for field in columns
    )
    row = F.variant_get(F.col(PAYLOAD), "$", f"struct<{stored}>")
    values = [
        microsecond * row.getField(field.name) if _is_interval(field) else row.getField(field.name)
        for field in columns
    ]
    named = [value.alias(field.name) for value, field in zip(values, columns, strict=True)]
    return batch.where(F.col(TABLE) == F.lit(name)).select(*named, *(F.col(column) for column in _FEED))


def _is_interval(field: StructField) -> bool:
    return isinstance(field.dataType, DayTimeIntervalType)


def _quote(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


@dataclass(frozen=True)
class _Label:
    """What all rows of a table have in a batch. Can be pickled."""

    table: str
    schema_version: int
    schema: str

    @classmethod
    def of(cls, life: "Life", rows: ChangeRows) -> "_Label":
        own = [field for field in spark_schema(rows.schema) if field.name not in _FEED]
        declared = ", ".join(f"{_quote(field.name)} {field.dataType.simpleString()}" for field in own)
        return cls(life.schema.name, life.schema.version, declared)

    def batch(self, payload: pa.Array, feed: Sequence[pa.Array]) -> pa.RecordBatch:
        """Return rows in the schema of the stream."""
        rows = len(payload)
        own = [
            pa.repeat(pa.scalar(self.table, pa.string()), rows),
            pa.repeat(pa.scalar(self.schema_version, pa.int64()), rows),
            pa.repeat(pa.scalar(self.schema, pa.string()), rows),
        ]
        return pa.RecordBatch.from_arrays([*own, payload, *feed], schema=_ARROW_SCHEMA)


@dataclass(frozen=True)
class _RowsPiece:
    """A part of the changes of one table; `came_ts` is when a DDL brought them, 0 for changes of rows."""

    label: _Label
    part: "ChangesPartition"
    rows: ChangeRows
    came_ts: int = 0

    @property
    def weight(self) -> int:
        return self.part.rows

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; raise StaleRead with the table's name when its history is gone."""
        with name_stale_reads(self.label.table):
            for batch in read_feed(self.part, self.rows):
                step = max(1, batch.num_rows * _BATCH_BYTES // max(1, batch.nbytes))
                for start in range(0, batch.num_rows, step):
                    yield self._encode(batch.slice(start, step))

    def _encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        kinds, *commits = (columns.pop(name) for name in _FEED)
        if self.came_ts:
            commits = _commits(self.came_ts, batch.num_rows)
        shown = {shown_name(name): column for name, column in columns.items()}
        return self.label.batch(encode_objects(shown, batch.num_rows), [kinds, *commits])


@dataclass(frozen=True)
class _EndPiece:
    """One row that says that the rows of a table are gone. Can be pickled."""

    label: _Label
    kind: str
    ts: int
    weight: int = 1

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the row."""
        yield self.label.batch(pa.nulls(1, VARIANT), [pa.array([self.kind]), *_commits(self.ts, 1)])


def _commits(ts: int, rows: int) -> list[pa.Array]:
    """Return the version and the time of rows that all belong to one commit."""
    versions = pa.repeat(pa.scalar(ts, pa.int64()), rows)
    return [versions, commit_times(versions.to_numpy())]


class ManyTablesInput(InputPartition):
    """Some pieces of a batch, in the form that Spark hands to an executor."""

    def __init__(self, pieces: "Sequence[_RowsPiece | _EndPiece]") -> None:
        super().__init__(None)
        self.pieces = pieces


def _read_pieces(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, ManyTablesInput)
    for piece in partition.pieces:
        for batch in piece.read():
            if batch.num_rows:
                yield batch.select(schema.names)


class _Planner:
    """Finds cuts through many tables, and plans their parts. Lives in the process that plans."""

    def __init__(self, options: "SourceOptions", parallelism: Parallelism) -> None:
        from penstock.object_storage import StorageRef

        capture = options.settings.capture
        self._options = options
        self._parallelism = parallelism
        self.storage = StorageRef(capture.storage, capture.storage_options)
        require_storage(self.storage)
        self.catalog = _open_catalog(options, self.storage)

    def plan_snapshot(self, ts: int) -> list[InputPartition]:
        """Return the parts that give every row of every table at `ts`."""
        tables = self.catalog.history.tables_at(ts)
        return self._group(piece for life in tables.values() for piece in self._rows(life, 0, ts))

    def plan_cut(self, cut: "TableCut") -> list[InputPartition]:
        """Return the parts of a cut; all that DDLs did comes first, in the order of time."""
        return self._group(self._pieces(cut))

    def plan_range(self, from_ts: int, to_ts: int) -> list[InputPartition]:
        """Return the parts of a range, whatever DDLs it has."""
        history = self.catalog.history
        ends = [ts - 1 for ts in history.ddl_times(from_ts + 1, to_ts)]
        cuts = [history.cut(start, end) for start, end in pairwise([from_ts, *ends, to_ts])]
        return self._group(piece for cut in cuts for piece in self._pieces(cut))

    def find_states(self, from_ts: int, to_ts: int, *, quiet_ts: int = 0) -> "list[PartitionState]":
        """Return the states of all tables that may have changes in a range that has no DDL inside.

        Nothing has changed up to `quiet_ts`.
        """
        from penstock.changes.collect import open_range

        tables = self.catalog.history.tables_at(to_ts).values()
        changed = self.catalog.changed_since(max(from_ts, quiet_ts), tables)
        found: list[PartitionState] = []
        for life in changed:
            with name_stale_reads(life.schema.name):
                found += open_range(self.catalog.view(life), from_ts, to_ts)
        return found

    def _pieces(self, cut: "TableCut") -> "Iterator[_RowsPiece | _EndPiece]":
        begin_ts = cut.from_ts + 1
        for name, life in cut.ended.items():
            after = cut.tables.get(name)
            rows = ChangeRows((after or life).schema.table)
            label = _Label.of(after or life, rows)
            yield _EndPiece(label, "drop" if after is None else "truncate", begin_ts)
        changed = {id(life) for life in self.catalog.changed_since(cut.from_ts, cut.tables.values())}
        for name, life in cut.tables.items():
            if name in cut.arrived:
                yield from self._rows(life, 0, begin_ts, came_ts=begin_ts)
            from_ts = begin_ts if name in cut.arrived else cut.from_ts
            if from_ts < cut.to_ts and id(life) in changed:
                yield from self._rows(life, from_ts, cut.to_ts)

    def _rows(self, life: "Life", from_ts: int, to_ts: int, *, came_ts: int = 0) -> Iterator[_RowsPiece]:
        rows = ChangeRows(life.schema.table)
        label = _Label.of(life, rows)
        with name_stale_reads(life.schema.name):
            parts = feed_parts(
                self.catalog.view(life),
                from_ts,
                to_ts,
                rows,
                part_bytes=self._options.partition_bytes,
                parallelism=self._parallelism.ask(),
            )
        return (_RowsPiece(label, part, rows, came_ts) for part in parts)

    def _group(self, pieces: "Iterable[_RowsPiece | _EndPiece]") -> list[InputPartition]:
        """Return pieces in tasks of about the same size."""
        groups = spread(pieces, _GROUPS_PER_TASK * self._parallelism.ask(), weight=lambda piece: piece.weight)
        return [ManyTablesInput(group) for group in groups]


def _open_catalog(options: "SourceOptions", storage: "StorageRef") -> "TableCatalog":
    """Return the catalog of the options' tables; its captures are those with a lease, or the named one."""
    from concurrent.futures import ThreadPoolExecutor

    from penstock.eventstore.read.flight_client import FlightReader
    from penstock.follow.captures import Captures, live_captures
    from penstock.follow.catalog import TableCatalog
    from penstock.kv.cluster_ref import ClusterRef
    from penstock.tables.table_patterns import TablePatterns

    connect = partial(
        FlightReader, tls=options.flight_tls, token=options.settings.capture.read_flight_token()
    )
    patterns = TablePatterns(options.tables)
    if options.flight_addr is not None:
        named = [connect(options.flight_addr)]
        return TableCatalog(storage, patterns, lambda: named)
    client = ClusterRef.of(options.settings).client()
    captures = Captures(partial(live_captures, client), connect, ThreadPoolExecutor(1))
    return TableCatalog(storage, patterns, captures.readers)


class ManyTablesStreamReader(MicroBatchReader):
    """The micro-batches of many tables, planned by one process for all of them."""

    _opened: _Planner | None = None
    _quiet: tuple[int, int] = (0, 0)  # a begin, and up to when nothing has changed since
    _seen: Mapping[int, str] = MappingProxyType({})  # the tables at the last offset

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some parts, on an executor."""
        begin_task()
        with hide_worker_traceback(), self._explain_errors():
            yield from _read_pieces(partition, self._schema)

    def __getstate__(self) -> Mapping[str, object]:
        return {**vars(self), "_opened": None, "_hold": None, "_seen": {}}  # connections stay where they are

    @property
    def _planner(self) -> _Planner:
        if self._opened is None:
            self._opened = _Planner(self._options, self._parallelism)
        return self._opened

    def _find_newest_ts(self) -> int:
        self._planner.catalog.refresh()
        return self._planner.catalog.newest_ts()

    def _find_next(self, begin: Offset, limit: "ReadLimit") -> Offset:
        planner = self._planner
        if not begin.ts:
            self._newest_ts = self._find_newest_ts()
            tables = planner.catalog.history.tables_at(self._end_ts()).values()
            self._hold_history(planner.storage, _ids(tables), self._end_ts())
            return self._offset(self._end_ts())
        planner.catalog.refresh()
        self._require_same_tables(begin)
        self._newest_ts = planner.catalog.readable_ts(begin.ts)
        self._hold_history(
            planner.storage, _ids(planner.catalog.history.tables_at(begin.ts).values()), begin.ts
        )
        return begin if self._end_ts() <= begin.ts else self._find_cut(begin, self._end_ts(), limit)

    def _find_cut(self, begin: Offset, end_ts: int, limit: "ReadLimit") -> Offset:
        """Return the end of the batch: before the first DDL that follows changes, or within the limits."""
        from penstock.changes.limits import ChangeCounts

        planner, history = self._planner, self._planner.catalog.history
        quiet_ts = self._quiet[1] if self._quiet[0] == begin.ts else 0
        low, shows_ddl = begin.ts, False
        for ddl_ts in history.ddl_times(begin.ts, end_ts):
            before = planner.find_states(low, ddl_ts - 1, quiet_ts=quiet_ts) if ddl_ts - 1 > low else []
            if shows_ddl or ChangeCounts(before, low, ddl_ts - 1).has_changes():
                end_ts = ddl_ts - 1
                break
            low = ddl_ts - 1
            cut = history.cut(low, ddl_ts)
            shows_ddl = bool(cut.ended or cut.arrived)
        counts = ChangeCounts(planner.find_states(low, end_ts, quiet_ts=quiet_ts), low, end_ts)
        if shows_ddl or counts.has_changes():
            return self._offset(counts.last_admitted_ts(limit) if counts.states else end_ts)
        self._quiet = begin.ts, end_ts
        is_late = physical_ms(end_ts) - physical_ms(begin.ts) >= IDLE_MS
        return self._offset(end_ts) if is_late else begin

    def _offset(self, ts: int) -> Offset:
        return Offset(ts, tables=_digest(self._tables_at(ts)))

    def _tables_at(self, ts: int) -> dict[int, str]:
        """Return the tables that exist at `ts` by id; remember them for the message of an error."""
        lives = self._planner.catalog.history.tables_at(ts).values()
        found = {life.schema.table.id: life.schema.name for life in lives}
        self._seen = self._seen or found
        return found

    def _require_same_tables(self, offset: Offset) -> None:
        """Raise Invalid when captures have tables that the stream left out up to an offset.

        It would give changes of rows that it never gave.
        """
        tables = self._tables_at(offset.ts)
        if not offset.tables or _digest(tables) == offset.tables:
            self._seen = tables
            return
        came = sorted(set(tables.values()) - set(self._seen.values()))
        which = f"table {came[0]}" if came else "a table"
        raise Invalid(
            f"{which} of this stream was there before and is captured only now: capture.tables was changed;"
            " start the query with a new checkpoint, which begins with the rows of all tables"
        )

    def _plan_batch(self, begin: Offset, stop: Offset) -> list[InputPartition]:
        planner = self._planner
        if stop.ts > self._newest_ts:  # a batch of a run before this one
            planner.catalog.refresh()
        try:
            return self._plan(begin, stop)
        except Unavailable:  # another capture may own a table now
            planner.catalog.refresh()
            return self._plan(begin, stop)

    def _plan(self, begin: Offset, stop: Offset) -> list[InputPartition]:
        planner = self._planner
        self._require_same_tables(stop)
        if not begin.ts:
            return planner.plan_snapshot(stop.ts)
        cut = planner.catalog.history.cut(begin.ts, stop.ts)
        planner.catalog.require_readable(stop.ts, cut.tables.values())
        return planner.plan_cut(cut)


if ADMISSION is not None:

    class AdmittedManyTablesReader(ADMISSION, ManyTablesStreamReader):  # type: ignore[misc]
        """The reader for Spark 4.2 and later."""


_STREAM_READER = ManyTablesStreamReader if ADMISSION is None else AdmittedManyTablesReader


class ManyTablesRead:
    """A read of the changes of many tables; implements TableRead and StreamRead. Can be pickled."""

    def __init__(self, options: "SourceOptions", *, parallelism: Parallelism) -> None:
        self._options = options
        self._parallelism = parallelism

    def schema(self) -> StructType:
        """Return the columns, which are the same whatever the tables have."""
        return _SPARK_SCHEMA

    def reader(self, schema: StructType) -> "ManyTablesReader":
        """Return a reader of a range; raise Invalid when no start is given, or columns are others."""
        if self._options.from_ts is None:
            raise Invalid(
                "no start is given for the changes; give startingVersion or startingTimestamp:"
                " 0 begins with the rows that the tables have at the end"
            )
        return ManyTablesReader(self._options, _require(schema), self._parallelism)

    def stream_reader(self, schema: StructType) -> ManyTablesStreamReader:
        """Return a reader of micro-batches; raise Invalid when columns are others."""
        return _STREAM_READER(self._options, _require(schema), parallelism=self._parallelism)


class ManyTablesReader(DataSourceReader):
    """Plans the parts of a range of many tables on the driver, and reads each on an executor."""

    filter: "ReadFilter | None" = None  # always: the option `where` is of one table

    def __init__(self, options: "SourceOptions", schema: StructType, parallelism: Parallelism) -> None:
        self._options = options
        self._schema = schema
        self._parallelism = parallelism

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts up to the option's end, or to what can be read now.

        Raises Unavailable when not all tables can be read up to the option's end.
        """
        planner = _Planner(self._options, self._parallelism)
        planner.catalog.refresh()
        from_ts = self._options.from_ts or 0
        newest_ts = planner.catalog.readable_ts(from_ts) if from_ts else planner.catalog.newest_ts()
        to_ts = newest_ts if self._options.to_ts is None else self._options.to_ts
        if to_ts > newest_ts:
            raise Unavailable(f"the tables can be read up to {newest_ts}, not {to_ts}; wait, or end earlier")
        if not from_ts:
            return planner.plan_snapshot(to_ts)
        return planner.plan_range(from_ts, to_ts) if from_ts < to_ts else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some parts, on an executor."""
        return _read_pieces(partition, self._schema)


def _require(declared: StructType) -> StructType:
    """Return the schema that a caller gave; raise Invalid unless its columns are those of this read."""
    types = {field.name: field.dataType for field in _SPARK_SCHEMA}
    for field in declared:
        if types.get(field.name) != field.dataType:
            raise Invalid(
                f"a read of many tables has no column {field.name} of type {field.dataType.simpleString()};"
                " leave the schema to the data source"
            )
    return declared


def _digest(table_ids: Iterable[int]) -> str:
    """Return a short text for a set of tables, which may have thousands: each offset has it."""
    return hashlib.sha256(json.dumps(sorted(table_ids)).encode()).hexdigest()[:16]


def _ids(lives: "Iterable[Life]") -> list[int]:
    return [table_id for life in lives for table_id in life.ids]
