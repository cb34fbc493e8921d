"""Keeps a copy of shop.orders: Spark's AUTO CDC applies the change feed to a table that supports MERGE."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.temporary_view
def orders_changes() -> DataFrame:
    changes = (
        spark.readStream.format("penstock")
        .option("table", "shop.orders")
        .option("readChangeFeed", "true")
        .option("consumerId", "orders-copy")
        .load()
    )
    # AUTO CDC takes the row after a change; the row before it has the same version.
    return changes.where("_change_type <> 'update_preimage'")


dp.create_streaming_table("orders_copy", format="delta")
dp.create_auto_cdc_flow(
    target="orders_copy",
    source="orders_changes",
    keys=["id"],
    sequence_by="_commit_version",
    apply_as_deletes="_change_type = 'delete'",
    except_column_list=["_change_type", "_commit_version", "_commit_timestamp"],
    stored_as_scd_type=1,
)
