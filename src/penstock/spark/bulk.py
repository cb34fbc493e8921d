"""Loading a table's first snapshot: executors read ranges of the key-value store and write objects."""

from typing import TYPE_CHECKING

from penstock.spark.executorsettings import for_executors
from penstock.spark.loadjob import LoadReport, load_table
from penstock.spark.tasks import Progress, run_on_executors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from penstock.eventstore.upkeep.load import RangeTask
    from penstock.settings import Settings

__all__ = ["LoadReport", "load_snapshot"]


def load_snapshot(
    spark: "SparkSession",
    settings: "Settings",
    table: str,
    *,
    restart: bool = False,
    progress: Progress | None = None,
) -> LoadReport:
    """Load `database.table` as of now, so that a capture goes on from there without gap or overlap.

    A capture leaves the table alone until the load is committed. A load that was interrupted (a driver or an
    executor that crashed, a store that did not answer) goes on when this is called again, with the same
    timestamp and with the ranges that are left; `restart` begins anew. History is held back in the cluster
    from the first call until a day after the last. Raises Invalid when there is no such table, or it is
    captured already, or history at an interrupted load's timestamp is gone; Unavailable when the cluster or
    storage does not answer, from here or from an executor.
    """

    def run(tasks: "Sequence[RangeTask]") -> None:
        run_on_executors(spark, tasks, progress=progress)

    return load_table(for_executors(settings), table, run, restart=restart)
