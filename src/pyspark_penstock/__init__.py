"""Where Spark finds the data source `penstock` by itself: it imports every package named pyspark_*."""

from penstock.spark.source import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
