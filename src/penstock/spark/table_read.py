"""Reads of a table's rows at one timestamp: from the event store, or with `option("from", "kv")` from the
cluster.

A read of the cluster has one partition for each range of a region.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.spark.arrow_types import as_declared, json_columns, require_columns, spark_schema
from penstock.spark.tables import TableAtVersion, VersionedRead

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.eventstore.read.partition import TableView
    from penstock.eventstore.read.snapshot import SnapshotPartition
    from penstock.spark.filters import ReadFilter
    from penstock.spark.options import SourceOptions
    from penstock.spark.tasks import Parallelism
    from penstock.tables.kv_scan import KvScan, KvScanPartition
    from penstock.tables.schema import TableInfo

__all__ = ["KvRead", "KvReader", "SnapshotRead", "SnapshotReader"]


_PART_BYTES_MIN = 4 * 1024 * 1024  # a task for less costs more than it saves
_PARTS_PER_TASK = 2  # for each task that runs at once, so that a long part keeps others waiting less


@dataclass(frozen=True)
class _FixedSnapshot:
    """A snapshot whose timestamp is fixed, and the columns to read."""

    table: TableAtVersion
    schema: "pa.Schema"

    @property
    def info(self) -> "TableInfo":
        """The table at that timestamp."""
        return self.table.table


class SnapshotRead(VersionedRead[_FixedSnapshot, "SnapshotReader"]):
    """A read of the event store's rows at one timestamp."""

    def _fix(self, columns: Sequence[str] | None) -> _FixedSnapshot:
        from penstock.eventstore.read.snapshot import snapshot_schema
        from penstock.spark.tables import name_stale_reads
        from penstock.tables.arrow import arrow_name

        with name_stale_reads(self.options.table):
            table = TableAtVersion.of(self.options, self.options.as_of_ts)
            names = columns or [arrow_name(column) for column in table.table.stored_columns]
            return _FixedSnapshot(table, snapshot_schema(table.view, table.ts, names))

    def _reader(self, fixed: _FixedSnapshot, schema: "StructType") -> "SnapshotReader":
        return SnapshotReader(self.options, fixed, schema, parallelism=self.parallelism)


class SnapshotReader(DataSourceReader):
    """Plans the parts on the driver, and reads each on an executor. `filter` is set before it plans."""

    filter: "ReadFilter | None" = None

    def __init__(
        self,
        options: "SourceOptions",
        snapshot: _FixedSnapshot,
        schema: "StructType",
        *,
        parallelism: "Parallelism",
    ) -> None:
        self.options = options
        self._table = snapshot.table
        self._columns = tuple(snapshot.schema.names)
        self._schema = schema
        self.parallelism = parallelism

    def partitions(self) -> Sequence[InputPartition]:
        """Return parts of about the same size in objects; rows that are not flushed may be one more part."""
        from penstock.eventstore.read.snapshot import plan_snapshot
        from penstock.spark.tables import name_stale_reads, open_table, plan_with_retry

        options, ts = self.options, self._table.ts
        first, last = _handles(self._table.table, options, self.filter)
        wanted = None
        if self.filter is not None:
            if self.filter.passes_nothing:
                return []
            wanted = self.filter.wanted_rows(self._table.table, self._columns)

        def plan(view: "TableView") -> "list[SnapshotPartition]":
            return plan_snapshot(
                view,
                ts,
                columns=self._columns,
                handle_from=first,
                handle_to=last,
                partition_bytes=self._part_bytes(view),
                wanted=wanted,
            )

        with name_stale_reads(options.table):
            parts = plan_with_retry(self._table.view, plan, reopen=lambda: open_table(options, at_ts=ts))
        return [SnapshotInput(part) for part in parts]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of a part, in the Arrow schema that Spark expects."""
        from penstock.spark.tables import name_stale_reads, require_storage

        assert isinstance(partition, SnapshotInput)
        part = partition.part
        require_storage(part.partition.storage, part.partition.table_id)
        with name_stale_reads(self.options.table):
            rows = as_declared(part.read(), self._schema)
            yield from rows if self.filter is None else self.filter.apply(rows)

    def _part_bytes(self, view: "TableView") -> int:
        """Return the size of a part: at most that of the options, less when tasks would have no work."""
        ts = self._table.ts
        states = [partition.state(from_ts=ts) for partition in view.partitions]
        whole = sum(
            info.size_bytes
            for state in states
            for info in state.visible_objects("data", min(ts, state.flushed_ts))
        )
        share = max(_PART_BYTES_MIN, -(-whole // (_PARTS_PER_TASK * self.parallelism.ask())))
        return min(self.options.partition_bytes, share)


class SnapshotInput(InputPartition):
    """A part, in the form that Spark hands to an executor."""

    def __init__(self, part: "SnapshotPartition") -> None:
        super().__init__(None)
        self.part = part


class KvRead:
    """A read of the cluster's rows at one timestamp, which `schema` fixes; implements TableRead."""

    def __init__(self, options: "SourceOptions") -> None:
        self._options = options
        self._scan: KvScan | None = None

    def schema(self) -> "StructType":
        """Fix the timestamp; return the wanted columns as the table has them there."""
        self._scan = self._plan(self._options.columns)
        variants = json_columns(self._scan.table) if self._options.json_as_variant else ()
        return spark_schema(self._scan.schema, variants)

    def reader(self, schema: "StructType") -> "KvReader":
        """Return a reader of these columns; raise Invalid when the table has other columns or types."""
        scan = self._scan or self._plan(self._options.columns or tuple(schema.names))
        require_columns(schema, scan.schema, table=self._options.table, json=json_columns(scan.table))
        return KvReader(self._options, scan, schema)

    def _plan(self, columns: Sequence[str] | None) -> "KvScan":
        from penstock.kv.cluster_ref import ClusterRef
        from penstock.tables.kv_scan import plan_scan

        cluster = ClusterRef.of(self._options.settings)
        return plan_scan(cluster, self._options.table, ts=self._options.as_of_ts, columns=columns)


class KvReader(DataSourceReader):
    """Plans the ranges on the driver, and reads each on an executor. `filter` is set before it plans."""

    filter: "ReadFilter | None" = None

    def __init__(self, options: "SourceOptions", scan: "KvScan", schema: "StructType") -> None:
        self._options = options
        self._scan = scan
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return a partition for each region that has some of the rows now."""
        from penstock.tables.kv_scan import ranges_of

        if self.filter is not None and self.filter.passes_nothing:
            return []
        first, last = _handles(self._scan.table, self._options, self.filter)
        client = self._scan.cluster.client()
        return [
            KvInputPartition(scan_range)
            for scan_range in ranges_of(client, self._scan, handle_from=first, handle_to=last)
        ]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of a range, in the Arrow schema that Spark expects."""
        from penstock.tables.impossible_dates import hide_and_log

        assert isinstance(partition, KvInputPartition)
        name = self._scan.table.name
        batches = (hide_and_log(name, batch) for batch in partition.range.read())
        rows = as_declared(batches, self._schema)
        yield from rows if self.filter is None else self.filter.apply(rows)


def _handles(
    table: "TableInfo", options: "SourceOptions", wanted: "ReadFilter | None"
) -> tuple[bytes, bytes]:
    """Return the handles that the options and a filter allow: the first, and the first after them."""
    from penstock.spark.options import handle_bounds

    asked = handle_bounds(table, options.range_from, options.range_to)
    return asked if wanted is None else wanted.handles(table, asked)


class KvInputPartition(InputPartition):
    """A range, in the form that Spark hands to an executor."""

    def __init__(self, range_: "KvScanPartition") -> None:
        super().__init__(None)
        self.range = range_
