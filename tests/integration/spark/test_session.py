import importlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

import penstock.spark
from penstock.clock import SYSTEM
from penstock.errors import Invalid
from penstock.settings import Settings, SparkSettings
from penstock.spark import register
from penstock.spark.errors import as_penstock_error, translate_spark_errors
from penstock.spark.labels import interrupt_jobs, label_jobs
from penstock.spark.parallelism import work_frame, work_session
from penstock.spark.session import build_session
from support.spark import local_settings


def test_arrow_is_on_time_is_utc_and_jobs_share_fairly(spark: SparkSession):
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.getConf().get("spark.scheduler.mode") == "FAIR"
    assert spark.sparkContext.uiWebUrl is None


def test_workers_run_this_interpreter_and_import_the_installed_pyspark(spark: SparkSession):
    def places(batches):
        import sys

        import pyarrow as pa
        import pyspark

        for _ in batches:
            yield pa.record_batch({"prefix": [sys.prefix], "package": [pyspark.__file__]})

    (row,) = spark.range(1).mapInArrow(places, "prefix string, package string").collect()
    assert (row.prefix, row.package) == (sys.prefix, pyspark.__file__)


def test_jobs_of_an_account_run_in_its_pool_with_its_share(spark: SparkSession):
    context = spark.sparkContext
    with label_jobs(spark, "three rows", tag="penstock-three", account="billing"):
        assert context.getLocalProperty("spark.scheduler.pool") == "billing"
        assert context.getLocalProperty("spark.job.description") == "three rows"
        assert set(context.getJobTags()) == {"penstock-three"}
        assert spark.range(3).count() == 3
    assert context.getLocalProperty("spark.scheduler.pool") is None
    assert context.getLocalProperty("spark.job.description") is None
    assert set(context.getJobTags()) == set()
    pool = context._jsc.sc().getPoolForName("billing").get()
    assert (pool.weight(), pool.minShare(), pool.schedulingMode().toString()) == (3, 1, "FAIR")


def test_interrupted_jobs_end_on_their_executors(spark: SparkSession):
    def work_forever(batches):
        from penstock.clock import SYSTEM

        for batch in batches:
            SYSTEM.pause(3600.0)
            yield batch

    def run() -> None:
        with label_jobs(spark, "an hour", tag="penstock-hour"):
            spark.range(1).mapInArrow(work_forever, "id long").count()

    tracker = spark.sparkContext.statusTracker()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        deadline = SYSTEM.monotonic() + 120
        try:
            while not running.done() and SYSTEM.monotonic() < deadline:
                if tracker.getActiveJobsIds():
                    interrupt_jobs(spark, "penstock-hour")
                SYSTEM.pause(0.05)
        finally:
            if not running.done():
                spark.sparkContext.cancelAllJobs()
        assert "cancelled" in str(running.exception(timeout=60)).lower()
    while tracker.getActiveJobsIds():  # Spark notes the end of a job a moment after it failed
        assert SYSTEM.monotonic() < deadline, "the job goes on"
        SYSTEM.pause(0.05)


def test_a_session_on_the_same_master_is_the_one_that_runs(spark: SparkSession):
    again = build_session(local_settings())
    assert again.sparkContext is spark.sparkContext


def test_the_active_session_is_used_and_not_the_first_one(spark: SparkSession):
    active = spark.newSession()
    active.createDataFrame([(1,)], "id long")  # which makes it the active one
    try:
        assert build_session(local_settings()) is active
        work_frame(work_session(active), [b"work"])  # as changefeeds and jobs do meanwhile
        assert build_session(local_settings()) is active
    finally:
        spark.createDataFrame([(1,)], "id long")
    assert build_session(local_settings()) is spark


def test_a_session_on_another_master_is_refused_while_one_runs(spark: SparkSession):
    with pytest.raises(
        Invalid, match=r"on local\[2\] runs in this process; stop it before one on local\[1\]"
    ):
        build_session(Settings(spark=SparkSettings(master="local[1]")))


def test_sessions_that_nobody_registered_with_find_the_source_by_themselves(spark: SparkSession):
    with pytest.raises(Invalid, match="unknown option 'tabel'; did you mean table"), translate_spark_errors():
        spark.newSession().read.format("penstock").option("tabel", "a.b").load()


def test_importing_the_package_registers_the_source_with_the_active_session(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
):
    session = spark.newSession()
    session.conf.set("spark.penstock.storage", "memory://")
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: session)
    importlib.reload(penstock.spark)
    with pytest.raises(Invalid, match="memory:// belongs to one process"), translate_spark_errors():
        session.read.format("penstock").option("table", "a.b").load()


def test_configuration_of_a_session_reaches_its_reads(spark: SparkSession):
    session = spark.newSession()
    session.conf.set("spark.penstock.storage", "memory://")
    register(session)
    with pytest.raises(Invalid, match="memory:// belongs to one process"), translate_spark_errors():
        session.read.format("penstock").option("table", "a.b").load()


def test_the_settings_file_of_the_environment_reaches_reads_of_workers_that_started_before_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "penstock.yaml").write_text("capture: {storage: 'memory://'}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_CONFIG", "penstock.yaml")
    session = spark.newSession()
    register(session)
    with pytest.raises(Invalid, match="memory:// belongs to one process"), translate_spark_errors():
        session.read.format("penstock").option("table", "a.b").load()


def test_an_unknown_key_of_the_configuration_is_refused(spark: SparkSession):
    session = spark.newSession()
    session.conf.set("spark.penstock.storrage", "s3://x")
    with pytest.raises(Invalid, match=r"spark\.penstock\.storrage is not a default"):
        register(session)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no table is named"),
        ({"table": "a.b", "timestampAsOf": "yesterday"}, "option timestampAsOf = 'yesterday' is not a date"),
        ({"table": "a.b", "versionAsOf": "1", "readChangeFeed": "true"}, "versionAsOf is for snapshots"),
    ],
)
def test_mistakes_in_options_are_told_in_one_line(spark: SparkSession, options: dict[str, str], message: str):
    with pytest.raises(Exception, match=message) as caught:
        spark.read.format("penstock").options(**options).load()
    assert "Traceback" not in str(caught.value)
    assert isinstance(as_penstock_error(caught.value), Invalid)


def test_java_that_cannot_start_says_why_in_one_line(tmp_path: Path):
    program = """
from penstock.errors import Invalid
from penstock.settings import Settings, SparkSettings
from penstock.spark.session import build_session
try:
    build_session(Settings(spark=SparkSettings(master="local[1]", driver_memory="900000t")))
except Invalid as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        check=True,
    )
    (line,) = (done.stdout + done.stderr).splitlines()
    assert line.startswith("Java ended before Spark started: Could not reserve enough space")
    assert line.endswith("check spark.driver_memory and spark.conf")
