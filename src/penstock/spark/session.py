"""The one place that builds a Spark session. Everything else is given one."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from penstock import process
from penstock.errors import Invalid, PenstockError, Unavailable
from penstock.settings import Settings, SparkSettings
from penstock.spark import jvm, shipping
from penstock.spark.errors import as_penstock_error, first_line
from penstock.spark.home import spark_home
from penstock.spark.java import require_java
from penstock.spark.masters import Master, parse_master, require_master
from penstock.spark.pools import allocation_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG_FILE = Path(__file__).with_name("log4j2.properties")
_PYTHON = "PYSPARK_PYTHON"
_DRIVER_PYTHON = "PYSPARK_DRIVER_PYTHON"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_EXECUTOR_JAVA_OPTIONS = "spark.executor.extraJavaOptions"
_ARROW_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Spark asks for a value only where there is one; Arrow need not check that again."""


def build_session(settings: Settings, *, app_name: str = "penstock") -> "SparkSession":
    """Build the session of this process, with the data source registered for these settings.

    With a master that is not local the package is shipped to the executors. A session that runs already on
    the same master is returned as it is. Raises Invalid when Java is missing or too old or when a setting is
    refused, Unavailable when the master does not answer: one line each.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from penstock.spark.registering import register

    master = parse_master(settings.spark.master)
    running = SparkContext._active_spark_context
    if running is None:
        require_java()
        require_master(master)
        spark = _start(settings.spark, master, app_name)
    elif running.master == master.url:
        spark = SparkSession.builder.getOrCreate()
    else:
        raise Invalid(
            f"a Spark session on {running.master} runs in this process;"
            f" stop it before one on {master.url} is built"
        )
    register(spark, settings)
    return spark


def session_conf(
    wanted: SparkSettings, master: Master, *, app_name: str, allocations: Path
) -> dict[str, str]:
    """Spark's configuration for the settings; what `conf` says wins."""
    conf = {
        "spark.master": master.url,
        "spark.app.name": app_name,
        "spark.driver.memory": wanted.driver_memory,
        "spark.executor.memory": wanted.executor_memory,
        "spark.python.worker.reuse": "true",
        "spark.scheduler.allocation.file": allocations.as_uri(),
        "spark.scheduler.mode": "FAIR",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": str(wanted.ui_port != 0).lower(),
        "spark.ui.showConsoleProgress": "false",
        **{f"spark.executorEnv.{name}": value for name, value in process.ENVIRONMENT.items()},
    }
    if wanted.ui_port:
        conf["spark.ui.port"] = str(wanted.ui_port)
    if master.in_process:  # nothing connects from elsewhere, and host names that do not resolve do no harm
        conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    conf |= wanted.conf
    driver, executor = (wanted.conf.get(each, "") for each in (_JAVA_OPTIONS, _EXECUTOR_JAVA_OPTIONS))
    conf[_JAVA_OPTIONS] = f"{_console_options(wanted)} {_ARROW_OPTIONS} {driver}".strip()
    conf[_EXECUTOR_JAVA_OPTIONS] = f"{_ARROW_OPTIONS} {executor}".strip()
    return conf


def _console_options(wanted: SparkSettings) -> str:
    repeated = "off" if wanted.log_level in {"off", "error"} else wanted.log_level
    return (
        f"-Dlog4j2.configurationFile={_LOG_FILE.as_uri()} -Dpenstock.spark.log.level={wanted.log_level}"
        f" -Dpenstock.spark.repeated.level={repeated}"
    )


def _start(wanted: SparkSettings, master: Master, app_name: str) -> "SparkSession":
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    with (
        TemporaryDirectory(prefix="penstock-spark-") as folder,
        _interpreters(wanted) as python,
        spark_home(master, python),
    ):
        allocations = Path(folder, "pools.xml")
        allocations.write_text(allocation_file(wanted.pools), encoding="utf-8")
        pairs = session_conf(wanted, master, app_name=app_name, allocations=allocations)
        conf = SparkConf(loadDefaults=False).setAll(list(pairs.items()))
        java = SparkContext._gateway or jvm.launch(conf)
        try:
            SparkContext(conf=conf, gateway=java)
            spark = SparkSession.builder.getOrCreate()
            if not master.in_process:
                shipping.ship(spark)
        except (PySparkException, Py4JError) as error:
            raise _why_not_started(error, master) from error
    return spark


@contextmanager
def _interpreters(wanted: SparkSettings) -> Iterator[str]:
    """Name the interpreters while Spark starts: it takes them from the environment, and then remembers them.

    One, which is returned, runs on executors and plans reads; the driver's own looks for data sources.
    """
    before = {name: os.environ.get(name) for name in (_PYTHON, _DRIVER_PYTHON)}
    os.environ[_PYTHON] = python = wanted.python or before[_PYTHON] or sys.executable
    os.environ[_DRIVER_PYTHON] = before[_DRIVER_PYTHON] or sys.executable
    try:
        yield python
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _why_not_started(error: Exception, master: Master) -> PenstockError:
    known = as_penstock_error(error)
    if known is not None:
        return known
    line = first_line(error)
    if "IllegalArgument" in f"{type(error).__name__} {error}":
        return Invalid(f"Spark refuses its configuration: {line}; check spark.* in the settings")
    return Unavailable(f"Spark did not start on {master.url}: {line}; look at the master's log")
