"""Keep a Delta or Iceberg table equal to a table that Penstock captures, with MERGE INTO, exactly once."""

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

FEED_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")


def merge_into(target: str, keys: Sequence[str], *, table_format: str) -> Callable[[DataFrame, int], None]:
    """Return what `foreachBatch` calls to merge each micro-batch into a table of a format, in one commit."""

    def merge(batch: DataFrame, number: int) -> None:
        spark = batch.sparkSession
        # The id is the checkpoint's: with a new checkpoint, numbers begin again and nothing is skipped.
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        if table_format == "delta":  # Delta itself skips a batch that it has
            spark.conf.set("spark.databricks.delta.write.txnAppId", str(query))
            spark.conf.set("spark.databricks.delta.write.txnVersion", str(number))
        else:
            label = f"{query}/{number}"
            spark.conf.set("spark.sql.iceberg.snapshot-property.penstock-batch", label)
            done = spark.sql(f"SELECT 1 FROM {target}.snapshots WHERE summary['penstock-batch'] = '{label}'")
            if not done.isEmpty():
                return
        columns = [name for name in batch.columns if name not in FEED_COLUMNS]
        last_changes(batch, keys).createOrReplaceTempView("changes")
        spark.sql(f"""
            MERGE INTO {target} AS copy USING changes
            ON {" AND ".join(f"copy.{name} = changes.{name}" for name in keys)}
            WHEN MATCHED AND changes._change_type = 'delete' THEN DELETE
            WHEN MATCHED THEN UPDATE SET {", ".join(f"copy.{name} = changes.{name}" for name in columns)}
            WHEN NOT MATCHED AND changes._change_type <> 'delete' THEN
                INSERT ({", ".join(columns)}) VALUES ({", ".join(f"changes.{name}" for name in columns)})
        """)

    return merge


def last_changes(batch: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the last change of each key; of a delete and an insert in one commit, the insert."""
    last = Window.partitionBy(*keys).orderBy(F.desc("_commit_version"), F.col("_change_type") == "delete")
    after = batch.where("_change_type <> 'update_preimage'")
    return after.withColumn("_place", F.row_number().over(last)).where("_place = 1").drop("_place")
