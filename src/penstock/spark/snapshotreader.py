"""A table of the event store as of one timestamp."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.eventstore.partition import TableView
    from penstock.eventstore.snapshot import SnapshotPartition
    from penstock.spark.options import SourceOptions
    from penstock.tables.schema import TableInfo

__all__ = ["SnapshotRead", "SnapshotReader"]

_PART_BYTES_MIN = 4 * 1024 * 1024  # below it a task costs more than it saves
_SHARES = 2  # for each task that runs at once, so that a long one keeps the others waiting less


@dataclass(frozen=True)
class _Moment:
    """What a read is of, once that is fixed."""

    view: "TableView"
    ts: int
    table: "TableInfo"
    schema: "pa.Schema"


class SnapshotRead:
    """A read of the rows as of one timestamp, which `schema` fixes; implements TableRead.

    `parallelism` is how many tasks Spark runs at once: a table that is large enough is read by as many.
    """

    def __init__(self, options: "SourceOptions", *, parallelism: int) -> None:
        self._options = options
        self._parallelism = parallelism
        self._moment: _Moment | None = None

    def schema(self) -> "StructType":
        """The columns that are wanted, as the table had them at the timestamp."""
        from penstock.spark.sparkschema import spark_schema

        self._moment = self._fixed(self._options.columns)
        return spark_schema(self._moment.schema)

    def reader(self, schema: "StructType") -> "SnapshotReader":
        """A reader of these columns; raise Invalid when the table has them otherwise."""
        from penstock.spark.sparkschema import require_columns

        moment = self._moment or self._fixed(self._options.columns or tuple(schema.names))
        require_columns(schema, moment.schema, table=self._options.table)
        return SnapshotReader(self._options, moment, schema, parallelism=self._parallelism)

    def _fixed(self, columns: Sequence[str] | None) -> _Moment:
        from penstock.eventstore.snapshot import snapshot_schema
        from penstock.spark.tablerows import naming, newest_ts, open_table, require_readable

        ts = self._options.as_of_ts
        with naming(self._options.table):
            view = open_table(self._options, at_ts=ts)
            if ts is None:
                ts = newest_ts(view)
            else:
                require_readable(view, ts)
            table = view.partitions[0].state(from_ts=ts).schema_at(ts).table
            names = columns or [column.name for column in table.stored_columns]
            return _Moment(view, ts, table, snapshot_schema(view, ts, names))


class SnapshotReader(DataSourceReader):
    """Plans the parts on the driver, and reads each on an executor."""

    def __init__(
        self, options: "SourceOptions", moment: _Moment, schema: "StructType", *, parallelism: int
    ) -> None:
        self._options = options
        self._moment = moment
        self._schema = schema
        self._parallelism = parallelism

    def partitions(self) -> Sequence[InputPartition]:
        """Parts of about as many bytes of objects; rows that are not flushed may be one more."""
        from penstock.eventstore.snapshot import plan_snapshot
        from penstock.spark.handlerange import handle_bounds
        from penstock.spark.tablerows import naming, open_table, planned

        options, ts = self._options, self._moment.ts
        first, last = handle_bounds(self._moment.table, options.range_from, options.range_to)

        def plan(view: "TableView") -> "list[SnapshotPartition]":
            return plan_snapshot(
                view,
                ts,
                columns=self._moment.schema.names,
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
        from penstock.spark.tablerows import naming, require_storage

        assert isinstance(partition, SnapshotInput)
        part = partition.part
        require_storage(part.partition.storage, part.partition.table_id)
        with naming(self._options.table):
            yield from as_declared(part.read(), self._schema)

    def _part_bytes(self, view: "TableView") -> int:
        """At most what the options say, and less where tasks would be left without work."""
        ts = self._moment.ts
        states = [partition.state(from_ts=ts) for partition in view.partitions]
        whole = sum(
            info.size_bytes for each in states for info in each.visible("data", min(ts, each.flushed_ts))
        )
        share = max(_PART_BYTES_MIN, -(-whole // (_SHARES * self._parallelism)))
        return min(self._options.partition_bytes, share)


class SnapshotInput(InputPartition):
    """A part, in the form that Spark hands to an executor."""

    def __init__(self, part: "SnapshotPartition") -> None:
        super().__init__(None)
        self.part = part
