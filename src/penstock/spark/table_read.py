"""A table of the event store as of one timestamp.

`option("from", "kv")`: a table straight from the key-value store, one partition for each region range.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.errors import Invalid
from penstock.spark.tables import TableAtVersion, VersionedRead

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.eventstore.read.partition import TableView
    from penstock.eventstore.read.snapshot import SnapshotPartition
    from penstock.spark.options import SourceOptions
    from penstock.tables.kv_scan import KvScan, KvScanPartition

__all__ = ["KvRead", "KvReader", "SnapshotRead", "SnapshotReader"]


_PART_BYTES_MIN = 4 * 1024 * 1024  # below it a task costs more than it saves
_SHARES = 2  # for each task that runs at once, so that a long one keeps the others waiting less


@dataclass(frozen=True)
class _Snapshot:
    """What a read is of, once that is fixed."""

    moment: TableAtVersion
    schema: "pa.Schema"


class SnapshotRead(VersionedRead[_Snapshot, "SnapshotReader"]):
    """A read of the rows as of one timestamp."""

    def _fixed(self, columns: Sequence[str] | None) -> _Snapshot:
        from penstock.eventstore.read.snapshot import snapshot_schema
        from penstock.spark.tables import naming

        with naming(self.options.table):
            moment = TableAtVersion.of(self.options, self.options.as_of_ts)
            names = columns or [column.name for column in moment.table.stored_columns]
            return _Snapshot(moment, snapshot_schema(moment.view, moment.ts, names))

    def _reader(self, found: _Snapshot, schema: "StructType") -> "SnapshotReader":
        return SnapshotReader(self.options, found, schema, parallelism=self.parallelism)


class SnapshotReader(DataSourceReader):
    """Plans the parts on the driver, and reads each on an executor."""

    def __init__(
        self, options: "SourceOptions", found: _Snapshot, schema: "StructType", *, parallelism: int
    ) -> None:
        self.options = options
        self._moment = found.moment
        self._columns = tuple(found.schema.names)
        self._schema = schema
        self.parallelism = parallelism

    def partitions(self) -> Sequence[InputPartition]:
        """Parts of about as many bytes of objects; rows that are not flushed may be one more."""
        from penstock.eventstore.read.snapshot import plan_snapshot
        from penstock.spark.options import handle_bounds
        from penstock.spark.tables import naming, open_table, planned

        options, ts = self.options, self._moment.ts
        first, last = handle_bounds(self._moment.table, options.range_from, options.range_to)

        def plan(view: "TableView") -> "list[SnapshotPartition]":
            return plan_snapshot(
                view,
                ts,
                columns=self._columns,
                handle_from=first,
                handle_to=last,
                partition_bytes=self._part_bytes(view),
            )

        with naming(options.table):
            parts = planned(self._moment.view, plan, again=lambda: open_table(options, at_ts=ts))
        return [SnapshotInput(each) for each in parts]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The rows of a part, in Spark's own Arrow schema."""
        from penstock.spark.tables import as_declared, naming, require_storage

        assert isinstance(partition, SnapshotInput)
        part = partition.part
        require_storage(part.partition.storage, part.partition.table_id)
        with naming(self.options.table):
            yield from as_declared(part.read(), self._schema)

    def _part_bytes(self, view: "TableView") -> int:
        """At most what the options say, and less where tasks would be left without work."""
        ts = self._moment.ts
        states = [partition.state(from_ts=ts) for partition in view.partitions]
        whole = sum(
            info.size_bytes for each in states for info in each.visible_objects("data", min(ts, each.flushed_ts))
        )
        share = max(_PART_BYTES_MIN, -(-whole // (_SHARES * self.parallelism)))
        return min(self.options.partition_bytes, share)


class SnapshotInput(InputPartition):
    """A part, in the form that Spark hands to an executor."""

    def __init__(self, part: "SnapshotPartition") -> None:
        super().__init__(None)
        self.part = part


class KvRead:
    """A read of the rows as of one timestamp, which `schema` fixes; implements TableRead."""

    def __init__(self, options: "SourceOptions") -> None:
        self._options = options
        self._scan: KvScan | None = None

    def schema(self) -> "StructType":
        """The columns that are wanted, as the table had them at the timestamp."""
        self._scan = self._planned(self._options.columns)
        return _spark_schema(self._scan)

    def reader(self, schema: "StructType") -> "KvReader":
        """A reader of these columns; raise Invalid when the table has them otherwise."""
        scan = self._scan or self._planned(self._options.columns or tuple(schema.names))
        found = {field.name: field.dataType for field in _spark_schema(scan)}
        for field in schema:
            if found.get(field.name) != field.dataType:
                there = found[field.name].simpleString() if field.name in found else "not there"
                raise Invalid(
                    f"column {field.name} of {self._options.table} is {there}, not"
                    f" {field.dataType.simpleString()}; leave the schema to the data source"
                )
        return KvReader(self._options, scan, schema)

    def _planned(self, columns: Sequence[str] | None) -> "KvScan":
        from penstock.kv.cluster_ref import ClusterRef
        from penstock.tables.kv_scan import plan_scan

        cluster = ClusterRef.of(self._options.settings)
        return plan_scan(cluster, self._options.table, ts=self._options.as_of_ts, columns=columns)


class KvReader(DataSourceReader):
    """Plans the ranges on the driver, and reads each on an executor."""

    def __init__(self, options: "SourceOptions", scan: "KvScan", schema: "StructType") -> None:
        self._options = options
        self._scan = scan
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """One for each region that holds some of the rows now."""
        from penstock.spark.options import handle_bounds
        from penstock.tables.kv_scan import ranges_of

        first, last = handle_bounds(self._scan.table, self._options.range_from, self._options.range_to)
        client = self._scan.cluster.client()
        return [
            KvInputPartition(each)
            for each in ranges_of(client, self._scan, handle_from=first, handle_to=last)
        ]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The rows of a range, in Spark's own Arrow schema."""
        from pyspark.sql.pandas.types import to_arrow_schema

        assert isinstance(partition, KvInputPartition)
        declared = to_arrow_schema(self._schema, timezone="UTC")
        for batch in partition.range.read():
            yield batch.select(declared.names).cast(declared)


class KvInputPartition(InputPartition):
    """A range, in the form that Spark hands to an executor."""

    def __init__(self, range_: "KvScanPartition") -> None:
        super().__init__(None)
        self.range = range_


def _spark_schema(scan: "KvScan") -> "StructType":
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(scan.schema)
