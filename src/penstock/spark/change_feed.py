"""`option("readChangeFeed", True)`: the changes of a table, one row for each side of each change."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.errors import Invalid, Unavailable
from penstock.spark.change_rows import feed_parts, read_feed
from penstock.spark.tables import TableAtVersion, VersionedRead

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.changes import ChangesPartition
    from penstock.eventstore.read.partition import TableView
    from penstock.spark.change_rows import ChangeRows, DeclaredSchema
    from penstock.spark.filters import ReadFilter
    from penstock.spark.options import SourceOptions
    from penstock.spark.tasks import Parallelism
    from penstock.tables.schema import TableInfo

__all__ = [
    "ChangeFeedInput",
    "ChangeFeedRead",
    "ChangeFeedReader",
]

_NO_START = (
    "no start is given for the changes; give startingVersion or startingTimestamp:"
    " 0 begins with the rows that the table has at the end"
)


@dataclass(frozen=True)
class _FeedRange:
    """The range of a read whose end is fixed, and the rows that its changes become."""

    end: TableAtVersion
    rows: "ChangeRows"

    @property
    def schema(self) -> "pa.Schema":
        """The columns of the change feed."""
        return self.rows.schema

    @property
    def info(self) -> "TableInfo":
        """The table at the end of the range."""
        return self.end.table


class ChangeFeedRead(VersionedRead[_FeedRange, "ChangeFeedReader"]):
    """A read of the changes up to one timestamp, with the columns that the table has there."""

    def reader(self, schema: "StructType") -> "ChangeFeedReader":
        """Return a reader of these columns; raise Invalid when their types differ or no start is given."""
        if self.options.from_ts is None:
            raise Invalid(_NO_START)
        return super().reader(schema)

    def declare(self) -> "DeclaredSchema | None":
        """Return the schema that a stream of this read declares; None before the table is known."""
        from penstock.spark.change_rows import DeclaredSchema

        fixed = self._fixed
        return None if fixed is None else DeclaredSchema(fixed.end.table, fixed.end.ts, self.options.columns)

    def _fix(self, columns: Sequence[str] | None) -> _FeedRange:
        from penstock.spark.change_rows import ChangeRows
        from penstock.spark.tables import name_stale_reads

        with name_stale_reads(self.options.table, inclusive=True):
            end = TableAtVersion.of(self.options, self.options.to_ts)
            return _FeedRange(end, ChangeRows(end.table, columns))

    def _reader(self, fixed: _FeedRange, schema: "StructType") -> "ChangeFeedReader":
        return ChangeFeedReader(self.options, fixed, schema, parallelism=self.parallelism)


class ChangeFeedReader(DataSourceReader):
    """Plans the parts of the range on the driver, and reads each on an executor.

    `filter` is set before it plans.
    """

    filter: "ReadFilter | None" = None

    def __init__(
        self,
        options: "SourceOptions",
        wanted: _FeedRange,
        schema: "StructType",
        *,
        parallelism: "Parallelism",
    ) -> None:
        self.options = options
        self._range = wanted
        self._schema = schema
        self.parallelism = parallelism

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts of the range, in the order of time."""
        from penstock.spark.options import handle_bounds
        from penstock.spark.tables import name_stale_reads, open_table, plan_with_retry

        options, wanted = self.options, self._range
        from_ts, to_ts = options.from_ts or 0, wanted.end.ts
        if from_ts == to_ts:
            return []  # no change after the start
        if from_ts > to_ts:
            raise Unavailable(
                f"changes of {options.table} can be read up to {to_ts}, and are to start at {from_ts + 1};"
                " wait, or start earlier"
            )
        bounds = handle_bounds(wanted.end.table, options.range_from, options.range_to)

        def plan(view: "TableView") -> "list[ChangesPartition]":
            return feed_parts(
                view,
                from_ts,
                to_ts,
                wanted.rows,
                handles=bounds,
                part_bytes=options.partition_bytes,
                parallelism=self.parallelism.ask(),
                wanted=self.filter,
            )

        with name_stale_reads(options.table, inclusive=True):
            parts = plan_with_retry(wanted.end.view, plan, reopen=lambda: open_table(options, at_ts=to_ts))
        return [ChangeFeedInput(part) for part in parts]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the changes of a part, in order, in the Arrow schema that Spark expects."""
        from penstock.spark.arrow_types import as_declared
        from penstock.spark.tables import name_stale_reads

        assert isinstance(partition, ChangeFeedInput)
        with name_stale_reads(self.options.table, inclusive=True):
            rows = as_declared(read_feed(partition.part, self._range.rows), self._schema)
            yield from rows if self.filter is None else self.filter.apply(rows)


class ChangeFeedInput(InputPartition):
    """A part, in the form that Spark hands to an executor."""

    def __init__(self, part: "ChangesPartition") -> None:
        super().__init__(None)
        self.part = part
