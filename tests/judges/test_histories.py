"""TiDB runs a script; its record is replayed through capture, event store, Spark, changefeeds and jobs.

The tests are those of the golden record, in their whole length: they also look for each row in the partition
that we compute, and compare CREATE TABLE. A record that fails is kept: its folder is in the message, for
PENSTOCK_TIDB_HISTORY.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.judges import record

pytestmark = pytest.mark.timeout(7200)
SCRIPTS = Path(__file__).parent / "histories"
ROOT = Path(__file__).parents[2]
TESTS = [
    "tests/integration/tidb_history",
    "tests/unit/tables/test_partitions.py",
    "tests/unit/tables/test_portable_statements.py",
]
TAIL_CHARS = 8000


@pytest.mark.parametrize("script", sorted(path.stem for path in SCRIPTS.glob("*.sql")))
def test_every_table_is_tidbs_at_every_point_of_a_history(tmp_path: Path, script: str) -> None:
    folder = tmp_path / script
    record(SCRIPTS / f"{script}.sql", folder)
    replayed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--numprocesses", "0", "--timeout", "3600", *TESTS],
        env={**os.environ, "PENSTOCK_TIDB_HISTORY": str(folder), "PENSTOCK_SOAK": "1"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    said = replayed.stdout.decode(errors="replace")
    assert replayed.returncode == 0, f"the history in {folder} differs:\n{said[-TAIL_CHARS:]}"
