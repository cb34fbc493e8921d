"""`option("readChangeFeed", True)`: what changed in a table, one row for each side of each change."""

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
    from penstock.spark.options import SourceOptions

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
class _Range:
    """What a read is of, once that is fixed: changes up to a moment."""

    end: TableAtVersion
    rows: "ChangeRows"

    @property
    def schema(self) -> "pa.Schema":
        """The columns of the feed."""
        return self.rows.schema


class ChangeFeedRead(VersionedRead[_Range, "ChangeFeedReader"]):
    """A read of the changes up to one timestamp; the table's columns are as they are then."""

    def reader(self, schema: "StructType") -> "ChangeFeedReader":
        """A reader of these columns; raise Invalid when the feed has them otherwise, or has no start."""
        if self.options.from_ts is None:
            raise Invalid(_NO_START)
        return super().reader(schema)

    def declare(self) -> "DeclaredSchema | None":
        """The schema that a stream of this read has declared; None before the table is known."""
        from penstock.spark.change_rows import DeclaredSchema

        found = self._found
        return None if found is None else DeclaredSchema(found.end.table, found.end.ts, self.options.columns)

    def _fixed(self, columns: Sequence[str] | None) -> _Range:
        from penstock.spark.change_rows import ChangeRows
        from penstock.spark.tables import naming

        with naming(self.options.table, inclusive=True):
            end = TableAtVersion.of(self.options, self.options.to_ts)
            return _Range(end, ChangeRows(end.table, columns))

    def _reader(self, found: _Range, schema: "StructType") -> "ChangeFeedReader":
        return ChangeFeedReader(self.options, found, schema, parallelism=self.parallelism)


class ChangeFeedReader(DataSourceReader):
    """Plans the parts of the range on the driver, and reads each on an executor."""

    def __init__(
        self, options: "SourceOptions", wanted: _Range, schema: "StructType", *, parallelism: int
    ) -> None:
        self.options = options
        self._range = wanted
        self._schema = schema
        self.parallelism = parallelism

    def partitions(self) -> Sequence[InputPartition]:
        """Parts that follow each other in time."""
        from penstock.spark.options import handle_bounds
        from penstock.spark.tables import naming, open_table, planned

        options, wanted = self.options, self._range
        from_ts, to_ts = options.from_ts or 0, wanted.end.ts
        if from_ts == to_ts:
            return []  # nothing has happened since
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
                parallelism=self.parallelism,
            )

        with naming(options.table, inclusive=True):
            parts = planned(wanted.end.view, plan, again=lambda: open_table(options, at_ts=to_ts))
        return [ChangeFeedInput(each) for each in parts]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The changes of a part, in order, in Spark's own Arrow schema."""
        from penstock.spark.tables import as_declared, naming

        assert isinstance(partition, ChangeFeedInput)
        with naming(self.options.table, inclusive=True):
            yield from as_declared(read_feed(partition.part, self._range.rows), self._schema)


class ChangeFeedInput(InputPartition):
    """A part, in the form that Spark hands to an executor."""

    def __init__(self, part: "ChangesPartition") -> None:
        super().__init__(None)
        self.part = part
