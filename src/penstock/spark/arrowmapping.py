"""Mapping the batches of a DataFrame whose columns may be called anything."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.spark.workerprocess import task_begins

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["map_in_arrow"]


def map_in_arrow(
    frame: "DataFrame",
    work: "Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]",
    schema: "StructType | str",
) -> "DataFrame":
    """`mapInArrow`, which alone fails for columns with dots and quotes in their names: it looks them up."""
    names = frame.columns

    def renamed(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        task_begins()
        yield from work(batch.rename_columns(names) for batch in batches)

    return frame.toDF(*(f"c{place}" for place in range(len(names)))).mapInArrow(renamed, schema)
