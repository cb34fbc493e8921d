"""Merging a table's objects on executors; its capture plans and commits."""

from typing import TYPE_CHECKING

from penstock.spark.executorsettings import for_executors
from penstock.spark.mergejob import MergeReport, merge
from penstock.spark.tasks import Progress, run_on_executors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from penstock.eventstore.upkeep.merge import MergeOutput
    from penstock.settings import Settings, TlsSettings
    from penstock.spark.mergejob import MergeTask

__all__ = ["MergeReport", "merge_table"]


def merge_table(
    spark: "SparkSession",
    settings: "Settings",
    table: str,
    *,
    flight_tls: "TlsSettings | None" = None,
    progress: Progress | None = None,
) -> MergeReport:
    """Merge the objects of `database.table` until it is in good shape; readers notice nothing but speed.

    Raises Invalid when there is no such table, Unavailable when no capture owns it or somebody does not
    answer, from here or from an executor; what was committed until then stays.
    """

    def run(tasks: "Sequence[MergeTask]") -> "list[MergeOutput]":
        return run_on_executors(spark, tasks, progress=progress)

    return merge(
        for_executors(settings), table, run, flight_tls=flight_tls or settings.capture.flight_client_tls
    )
