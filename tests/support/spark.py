"""A small Spark session for tests: one for each test process, because starting Java takes seconds."""

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from penstock.settings import PoolSettings, Settings, SparkSettings
from penstock.spark.jvm import parse_master, quick_home
from penstock.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Java that ends before it would be well compiled, with classes that nobody needs to verify again.
SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
SMALL = {
    "spark.driver.extraJavaOptions": SHORT_LIVED,
    "spark.executor.extraJavaOptions": SHORT_LIVED,
    "spark.default.parallelism": "2",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",  # to compile a query takes longer than to run it
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stopTimeout": "30s",
}
QUICK_SPARK: dict[str, Any] = {"master": "local[2]", "driver_memory": "1g", "conf": SMALL}
"""The section `spark` of settings files for processes that live for a test."""
HAS_ADMISSION = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether Spark tells a stream how much a batch may have: from 4.2 on."""
POOLS = {"billing": PoolSettings(weight=3, min_share=1)}


def local_settings(base: Settings | None = None) -> Settings:
    """Settings of a session in this process: two threads, little memory, no web pages."""
    spark = SparkSettings(master="local[2]", driver_memory="1g", pools=POOLS, conf=SMALL)
    return (base or Settings()).model_copy(update={"spark": spark})


def shared_session(settings: Settings) -> "SparkSession":
    """Return the session of this process on the wanted master; one on another master is stopped first."""
    from pyspark import SparkContext

    if not parse_master(settings.spark.master).in_process:
        os.environ.setdefault("SPARK_HOME", quick_home())  # the cluster is this machine
    running = SparkContext._active_spark_context
    if running is not None and running.master != settings.spark.master:
        stop_session()
    return build_session(settings, app_name="penstock-tests")


def stop_session() -> None:
    """Stop the session of this process, if there is one; Java stays for the next."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        SparkSession.builder.getOrCreate().stop()


def latest_offset(reader: Any, start: dict[str, Any]) -> dict[str, Any]:
    """Return the end of the batch that begins at `start`, asked for as this version of Spark does."""
    if HAS_ADMISSION:
        found: dict[str, Any] = reader.latestOffset(start, reader.getDefaultReadLimit())
        return found
    reader.partitions(start, start)  # so Spark 4.1 begins again from a checkpoint
    return dict(reader.latestOffset())
