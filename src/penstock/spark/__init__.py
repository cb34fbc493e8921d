"""Tables and changes on Spark: the session, the data source `penstock`, and bulk jobs.

Importing this registers the data source with the active session, if there is one. Sessions made later find
it by themselves, through the package `pyspark_penstock`.
"""

from pyspark.sql import SparkSession

from penstock.spark.registering import register
from penstock.spark.sqlchanges import changes_view

__all__ = ["changes_view", "register"]

_active = SparkSession.getActiveSession()
if _active is not None:
    register(_active)
