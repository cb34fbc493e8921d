"""A stream over many tables whose batches become Parquet folders."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["MARKER", "follow"]

MARKER = "shop.marker"
"""The table whose first row ends a run."""


def follow(
    spark: "SparkSession", config: Path, folder: Path, done: "Callable[[int, bool], None]"
) -> "StreamingQuery":
    """Write each batch into a folder named by its number, then call `done` with it.

    `done` also learns whether the batch has the marker. A batch that comes again replaces the one before.
    """
    from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

    def take(batch: "DataFrame", number: int) -> None:
        batch = batch.withColumn("payload", F.to_json("payload")).persist()
        batch.write.mode("overwrite").parquet(f"{folder}/batches/{number}")
        marked = bool(batch.where(F.col("_table") == MARKER).head(1))
        batch.unpersist()
        done(number, marked)

    frame = spark.readStream.format("penstock").options(config=str(config), tables="shop.*").load()
    writer = frame.writeStream.foreachBatch(take)
    return writer.option("checkpointLocation", f"{folder}/checkpoint").start()
