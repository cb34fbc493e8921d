"""Arrow schemas and batches as Spark wants them."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["as_declared", "require_columns", "spark_schema"]


def spark_schema(schema: pa.Schema) -> "StructType":
    """The schema that Spark declares for batches of an Arrow schema."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def require_columns(declared: "StructType", found: pa.Schema, *, table: str) -> None:
    """Raise Invalid unless every column of a declared schema is there with its type."""
    there = {field.name: field.dataType for field in spark_schema(found)}
    for field in declared:
        kind = there.get(field.name)
        if kind != field.dataType:
            has = "not there" if kind is None else kind.simpleString()
            raise Invalid(
                f"column {field.name} of {table} is {has}, not {field.dataType.simpleString()};"
                " leave the schema to the data source"
            )


def as_declared(batches: Iterable[pa.RecordBatch], declared: "StructType") -> Iterator[pa.RecordBatch]:
    """Batches with exactly the columns that Spark expects; nothing is copied where nothing differs."""
    from pyspark.sql.pandas.types import to_arrow_schema

    wanted = to_arrow_schema(declared, timezone="UTC")
    for batch in batches:
        if batch.num_rows:
            yield batch if batch.schema.equals(wanted) else batch.select(wanted.names).cast(wanted)
