"""Tables and changes on Spark: the session, the data source `penstock`, and bulk jobs.

Importing this package registers the data source with the active session, if there is one. Sessions that are
built later find it by themselves, through the package `pyspark_penstock`. A process that has not imported
PySpark has no session, and PySpark is not imported for it: most processes that could use Spark never do.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.connectors import connector_conf
    from penstock.spark.errors import translate_spark_errors
    from penstock.spark.jvm import fast_start_conf
    from penstock.spark.many_tables import by_table
    from penstock.spark.source import register
    from penstock.spark.sql import changes_view

__all__ = [
    "by_table",
    "changes_view",
    "connector_conf",
    "fast_start_conf",
    "register",
    "translate_spark_errors",
]

_PLACES = {
    "by_table": "penstock.spark.many_tables",
    "changes_view": "penstock.spark.sql",
    "connector_conf": "penstock.spark.connectors",
    "fast_start_conf": "penstock.spark.jvm",
    "register": "penstock.spark.source",
    "translate_spark_errors": "penstock.spark.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def _register_with_active_session() -> None:
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        import_module(_PLACES["register"]).register(active)


if "pyspark.sql" in sys.modules:
    _register_with_active_session()
