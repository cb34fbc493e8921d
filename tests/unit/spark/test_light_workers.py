"""What processes import before they need it: services, and Spark's own Python, which starts often."""

import subprocess
import sys

READERS = (
    "penstock.changes, penstock.eventstore.read.snapshot, penstock.spark.change_feed,"
    " penstock.spark.change_rows, penstock.spark.table_read, penstock.spark.tables"
)

SERVICES = "penstock.cli.services.api, penstock.cli.services.changefeeds, penstock.cli.services.jobs"


def imported(modules: str, *, of: set[str]) -> str:
    program = f"import sys, {modules}; print(sorted({of!r} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def test_reading_objects_needs_neither_a_client_of_the_cluster_nor_pandas() -> None:
    assert imported(READERS, of={"grpc", "pandas", "penstock.kv"}) == "[]"


def test_services_do_not_import_spark_before_they_need_it() -> None:
    assert imported(SERVICES, of={"pyspark"}) == "[]"
