"""A table of the event store as of one timestamp."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.spark.fixedread import TableAtVersion, VersionedRead

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.eventstore.read.partition import TableView
    from penstock.eventstore.read.snapshot import SnapshotPartition
    from penstock.spark.options import SourceOptions

__all__ = ["SnapshotRead", "SnapshotReader"]

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
        from penstock.spark.handlerange import handle_bounds
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
        from penstock.spark.sparkschema import as_declared
        from penstock.spark.tables import naming, require_storage

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
            info.size_bytes for each in states for info in each.visible("data", min(ts, each.flushed_ts))
        )
        share = max(_PART_BYTES_MIN, -(-whole // (_SHARES * self.parallelism)))
        return min(self.options.partition_bytes, share)


class SnapshotInput(InputPartition):
    """A part, in the form that Spark hands to an executor."""

    def __init__(self, part: "SnapshotPartition") -> None:
        super().__init__(None)
        self.part = part
