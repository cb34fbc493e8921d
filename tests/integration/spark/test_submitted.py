"""Sessions of `spark-submit` and of notebooks are used as they are."""

import json
import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pyspark
import pytest

from support.spark import SHORT_LIVED

pytestmark = pytest.mark.timeout(600)
PROGRAM = Path(__file__).with_name("submitted_program.py")
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"


def test_what_spark_submit_was_given_is_kept_with_and_without_a_session_of_the_users_own(
    tmp_path: Path,
) -> None:
    given = {
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.ui.enabled": "false",
        "spark.penstock.storage": f"file://{tmp_path}/events",
    }
    jar = tmp_path / "iceberg-spark-runtime-4.1_2.13-0.jar"  # a connector of the user's own
    ZipFile(jar, "w").close()
    options = ["--jars", str(jar), "--master", "local[2]", "--name", "theirs", "--driver-memory", "600m"]
    options += [word for pair in given.items() for word in ("--conf", "=".join(pair))]
    done = subprocess.run(
        [SUBMIT, *options, PROGRAM],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kept = {
        "spark.master": "local[2]",
        "spark.app.name": "theirs",
        "spark.driver.memory": "600m",
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.ui.enabled": "false",
    }
    kept["spark.penstock.storage"] = given["spark.penstock.storage"]
    ours = {"spark.sql.shuffle.partitions": "7", "again": True, "count": 5}
    extension = {"spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"}
    # spark-submit prints what a program writes to standard error with the rest.
    said = [line for line in done.stdout.splitlines() if line.startswith(('"', "{"))]
    without_penstock, *sessions = [json.loads(line) for line in said]
    assert f"storage file://{tmp_path}/events is not a folder" in without_penstock
    assert sessions == [{**kept, **ours, **extension}, {**kept, **ours, "spark.sql.extensions": ""}]
    # The second session was there before its settings were known.
    assert done.stdout.count("does not have all of spark.connectors") == 1
