"""Verifying a table: executors read it from the key-value store and from the event store, and compare."""

from typing import TYPE_CHECKING, Any

from penstock.spark.executorsettings import for_executors
from penstock.spark.tasks import Progress, run_on_executors
from penstock.verify.event_store import Difference, Mismatch, TableVerifyReport
from penstock.verify.verifyjob import verify

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from penstock.settings import Settings, TlsSettings

__all__ = ["Difference", "Mismatch", "TableVerifyReport", "verify_table"]


def verify_table(
    spark: "SparkSession",
    settings: "Settings",
    table: str,
    *,
    ts: int | None = None,
    flight_tls: "TlsSettings | None" = None,
    progress: Progress | None = None,
) -> TableVerifyReport:
    """Compare `database.table` in the event store with the cluster's own, row by row, as of `ts`.

    Without `ts` it is the newest that the event store can read. The report lists keys, no values. Raises as
    `penstock.verify.verifyjob.verify` does.
    """

    def run(pieces: "Sequence[Any]") -> list[Any]:
        return run_on_executors(spark, pieces, progress=progress) if pieces else []

    return verify(
        for_executors(settings),
        table,
        run,
        ts=ts,
        flight_tls=flight_tls or settings.capture.flight_client_tls,
    )
