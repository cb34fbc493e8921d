"""Making the data source, and what belongs to it in SQL, known to a session."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.spark.source import PenstockDataSource
from penstock.spark.sql import FUNCTION, changes_function

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.settings import Settings

_PREFIX = "spark.penstock."


def register(spark: "SparkSession", settings: "Settings | None" = None) -> None:
    """Make the data source `penstock` and the SQL function `penstock_changes` known to a session.

    Doing it again replaces what they knew.

    What reads do not say themselves is taken from the session's spark.penstock.* configuration as it is now,
    then from `settings`, or else from the settings file that PENSTOCK_CONFIG names. Raises Invalid when a key
    of spark.penstock.* is unknown.
    """
    from penstock.spark.options import CONFIG_VARIABLE, check_defaults

    found = {
        key[len(_PREFIX) :]: value for key, value in spark.conf.getAll.items() if key.startswith(_PREFIX)
    }
    check_defaults(found)
    path = os.environ.get(CONFIG_VARIABLE)
    if settings is None and path and "config" not in {key.lower() for key in found}:
        found["config"] = str(Path(path).absolute())  # workers may run elsewhere and without the variable
    known = settings
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    at_once = PenstockDataSource.parallelism if context is None else context.defaultParallelism

    class Configured(PenstockDataSource):  # made here, so that it is pickled as a whole, with what it knows
        settings = known
        defaults = found
        parallelism = at_once

    spark.dataSource.register(Configured)
    spark.udtf.register(FUNCTION, changes_function(known, found))
