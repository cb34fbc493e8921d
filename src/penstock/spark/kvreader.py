"""`option("from", "kv")`: a table straight from the key-value store, one partition for each region range."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.errors import Invalid

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.spark.options import SourceOptions
    from penstock.tables.kv_scan import KvScan, KvScanPartition

__all__ = ["KvRead", "KvReader"]


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
        from penstock.spark.handlerange import handle_bounds
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
