"""What Python processes of Spark have to import before they read: they start often."""

import subprocess
import sys

READERS = (
    "penstock.changes, penstock.eventstore.snapshot, penstock.spark.changefeed, penstock.spark.changerows,"
    " penstock.spark.snapshotreader, penstock.spark.tablerows"
)


def test_reading_objects_needs_neither_a_client_of_the_cluster_nor_pandas() -> None:
    program = f"import sys, {READERS}; print(sorted({{'grpc', 'pandas', 'penstock.kv'}} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
