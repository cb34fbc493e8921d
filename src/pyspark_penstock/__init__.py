"""Lets Spark find the data source `penstock` by itself: Spark imports every package named pyspark_*."""

from penstock.spark.source import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
