"""The one place that builds a Spark session; everything else is given one.

`build_session` builds it, `end_session` ends it, also when its Java is gone.
"""

import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary
from xml.etree import ElementTree

from penstock import process
from penstock.errors import Invalid, PenstockError, Unavailable
from penstock.settings import Settings, SparkSettings
from penstock.spark import connectors, shipping
from penstock.spark.defaults import memory_mib, with_defaults
from penstock.spark.errors import as_penstock_error, first_line
from penstock.spark.jvm import (
    CONNECT,
    DRIVER_JAVA_OPTIONS,
    JavaProcess,
    Master,
    find_context,
    local_folder,
    parse_master,
    require_java,
    require_master,
    shown_master,
    spark_home,
)
from penstock.spark.parallelism import user_session

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from penstock.settings import PoolSettings

_log = logging.getLogger(__name__)

_LOG_FILE = Path(__file__).with_name("log4j2.properties")
_PYTHON = "PYSPARK_PYTHON"
_DRIVER_PYTHON = "PYSPARK_DRIVER_PYTHON"
_EXECUTOR_JAVA_OPTIONS = "spark.executor.extraJavaOptions"
_ARROW_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Spark checks for null before it reads a value, so Arrow need not check again."""
_GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"  # spark-submit sets it: Java runs already
_REMOTE = "SPARK_REMOTE"  # names a server of Spark Connect
_own: "WeakValueDictionary[str, SparkContext | SparkSession]" = WeakValueDictionary()
"""The context that this module has built, the session of others that we have shipped the package to, and the
one of which a warning was given."""
_LIMITED = ("yarn", "k8s://")  # masters that end an executor which takes more memory than it asked for
_OVERHEAD = "spark.executor.memoryOverhead"
_OVERHEAD_FACTOR = "spark.executor.memoryOverheadFactor"
_WORKER_MIB = 256  # of a Python worker, with what it has imported
_BATCHES = 4
_BATCH_MIB = 64  # where Spark has no limit: our own batches are smaller
_SHARED_AUTH = "spark.authenticate.secret"
_AUTHENTICATED = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
"""Only those who know the session's secret can talk to Spark, and messages are encrypted.

Without it, whoever can open a connection to the driver can send it objects to run.
"""
_ENCRYPTED_BLOCKS = {"spark.io.encryption.enabled": "true"}
"""For disks of other machines. With a local master blocks are in a private folder, and PySpark would pass
every frame that is made of rows through a socket that must answer within 15 seconds."""


def build_session(
    settings: Settings, *, app_name: str = "penstock", java: JavaProcess | None = None
) -> "SparkSession":
    """Build the session of this process, with the data source registered for these settings.

    A session that is there is used as it is: the active one, or that of `spark-submit`. It keeps its master,
    memory, time zone and name, and gets only those entries of `spark.conf` in the settings that it was not
    given itself; a session of Spark Connect, which does not tell what it was given, gets all of them.
    A session that is built has what the settings say, then what the user's `spark-defaults.conf` says, then
    defaults of Penstock. With a master that is not local, the package is shipped to the executors.

    Raises Invalid when Java is missing or too old, a setting is refused, a standalone master is used
    without a secret, or a session that this function built runs on another master; Unavailable when the
    master does not answer; messages have one line. `java` is started when no Java runs for this process yet.
    """
    from penstock.spark.source import register

    wanted = with_defaults(settings.spark)
    spark = _find_session(settings.spark.model_copy(update={"master": wanted.master}))
    if spark is None:
        master = parse_master(wanted.master)
        require_secret(wanted, master)
        require_java()
        require_master(master)
        spark = _start(wanted, master, app_name, java or JavaProcess())
    register(spark, settings)
    return spark


def has_session() -> bool:
    """Return whether `build_session` would use a session that is there, or that of `spark-submit`."""
    from pyspark.sql import is_remote

    if is_remote() or _GATEWAY_PORT in os.environ or _REMOTE in os.environ:
        return True
    from pyspark import SparkContext  # which pyspark-client, always remote, does not have

    return SparkContext._active_spark_context is not None


def _find_session(wanted: SparkSettings) -> "SparkSession | None":
    """Return the session that is there, or that of a server of Spark Connect; None without one."""
    from pyspark.sql import SparkSession, is_remote

    if is_remote() or _REMOTE in os.environ or wanted.master.startswith(CONNECT):
        return _connect(wanted)
    from pyspark import SparkContext  # which pyspark-client, always remote, does not have

    running = SparkContext._active_spark_context
    if running is None:
        if _GATEWAY_PORT not in os.environ:
            return None
        # What spark-submit was given, and Spark's files of defaults, are properties of Java.
        given = SparkContext.getSystemProperty
        ours = {key: value for key, value in wanted.conf.items() if given(key) is None}
        theirs = {key: value for key in connectors.session_keys() if (value := given(key)) is not None}
        ours |= connectors.session_conf(wanted.model_copy(update={"conf": {**wanted.conf, **theirs}}))
        connectors.add_to_java(SparkContext._gateway, ours)
        return _adopt(SparkSession.builder.config(map=dict(ours)).getOrCreate())
    if running is not _own.get("context"):
        spark = _active_session()
        their_conf = running.getConf()
        _set_conf(spark, {key: value for key, value in wanted.conf.items() if not their_conf.contains(key)})
        _warn_of_connectors(wanted, spark)
        return _adopt(spark)
    if running.master != parse_master(wanted.master).url:
        raise Invalid(
            f"a Spark session on {running.master} runs in this process;"
            f" stop it before one on {shown_master(wanted.master)} is built"
        )
    return _active_session()


def _active_session() -> "SparkSession":
    """Return the active session of this thread; the context's first one where a thread has none.

    PySpark's builder returns the first one always, also where `newSession` has made the one that is used.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    return (None if active is None else user_session(active)) or SparkSession.builder.getOrCreate()


def _connect(wanted: SparkSettings) -> "SparkSession":
    """Return the session of Spark Connect that is there, or a new one on the server of the settings."""
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    if spark is None:
        builder = SparkSession.builder
        url = connect_url(wanted.master)
        if url:
            require_master(parse_master(url))
        if wanted.master.startswith(CONNECT):
            builder = builder.remote(wanted.master)
        spark = builder.getOrCreate()
    _set_conf(spark, wanted.conf)
    _warn_of_connectors(wanted, spark)
    return _adopt(spark)


def _warn_of_connectors(wanted: SparkSettings, spark: "SparkSession") -> None:
    """Say which connectors of the settings a session does not have: they count only while it is built."""
    if not wanted.connectors or _own.get("warned") is spark:
        return
    _own["warned"] = spark
    conf = {key: spark.conf.get(key, "") or "" for key in connectors.session_keys()}
    absent = connectors.absent_connectors(wanted, conf)
    if absent:
        _log.warning(
            "the Spark session that runs does not have all of spark.connectors; build it with"
            " penstock.spark.connectors.connector_conf",
            extra={"connectors": ", ".join(absent)},
        )


def _set_conf(spark: "SparkSession", conf: Mapping[str, str]) -> None:
    from pyspark.errors import PySparkException

    kept = []
    for key, value in conf.items():
        try:
            spark.conf.set(key, value)
        except PySparkException:  # it counts only while a session is built
            kept.append(key)
    if kept:
        _log.warning("the Spark session that runs keeps its own values", extra={"keys": ", ".join(kept)})


def _adopt(spark: "SparkSession") -> "SparkSession":
    """Ship the package to the executors of a session that somebody else built, once."""
    context = find_context(spark)
    receiver = spark if context is None else context
    is_local = context is not None and (context.master or "").partition("[")[0] == "local"
    if not is_local and _own.get("shipped") is not receiver:
        shipping.ship(spark)
        _own["shipped"] = receiver
    return spark


def session_conf(
    wanted: SparkSettings, master: Master, *, app_name: str, allocations: Path
) -> dict[str, str]:
    """Return Spark's configuration for the settings; entries of `conf` win.

    Only `security_conf` is left out, which Java need not have at its start.
    """
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
        **{f"spark.executorEnv.{name}": value for name, value in process.LIBRARY_ENVIRONMENT.items()},
    }
    if wanted.ui_port:
        conf["spark.ui.port"] = str(wanted.ui_port)
    if master.in_process:  # no other machine connects; works when the host name does not resolve
        conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        conf["spark.local.dir"] = local_folder()
    if master.url.startswith(_LIMITED):
        conf[_OVERHEAD] = f"{overhead_mib(wanted)}m"
    conf |= wanted.conf
    if _OVERHEAD_FACTOR in wanted.conf and _OVERHEAD not in wanted.conf:
        conf.pop(_OVERHEAD, None)  # Spark would ignore the factor
    conf |= connectors.session_conf(wanted)
    driver, executor = (wanted.conf.get(key, "") for key in (DRIVER_JAVA_OPTIONS, _EXECUTOR_JAVA_OPTIONS))
    conf[DRIVER_JAVA_OPTIONS] = f"{_console_options(wanted)} {_ARROW_OPTIONS} {driver}".strip()
    conf[_EXECUTOR_JAVA_OPTIONS] = f"{_ARROW_OPTIONS} {executor}".strip()
    return conf


def overhead_mib(wanted: SparkSettings) -> int:
    """Return how much memory an executor needs outside of its Java heap.

    Java itself needs what Spark gives it by default. Each task that runs at once has a Python worker, with
    some batches of Arrow in it and on their way to it.
    """
    heap = memory_mib(wanted.executor_memory)
    cores = int(wanted.conf.get("spark.executor.cores", "1"))
    batch = memory_mib(wanted.conf.get("spark.sql.execution.arrow.maxBytesPerBatch", "0"), unit="b")
    return max(384, heap // 10) + cores * (_WORKER_MIB + _BATCHES * (batch if batch > 0 else _BATCH_MIB))


def security_conf(wanted: SparkSettings, master: Master) -> dict[str, str]:
    """Return what makes Spark authenticate and encrypt; entries of `conf` win.

    With a local master Spark makes the secret itself. The processes of a standalone cluster share one, which
    its operator chooses; `require_secret` says where it may be missing.
    """
    conf: dict[str, str] = {}
    if master.in_process:
        conf = _AUTHENTICATED
    elif is_standalone(master) and _SHARED_AUTH in wanted.conf:
        conf = _AUTHENTICATED | _ENCRYPTED_BLOCKS
    return {key: wanted.conf.get(key, value) for key, value in conf.items()}


def require_secret(wanted: SparkSettings, master: Master) -> None:
    """Raise Invalid when a standalone master is used without authentication.

    `wanted` includes the user's defaults of Spark. Whoever reaches such a master, or the driver that
    executors connect to, can run code there; loopback is reached by every user of the machine.
    """
    if not is_standalone(master) or wanted.insecure:
        return
    if _SHARED_AUTH not in wanted.conf:
        raise Invalid(
            f"spark.master = {shown_master(master.url)} has no secret, and whoever reaches it can run code;"
            f" set {_SHARED_AUTH} in spark.conf as on the cluster, or write spark.insecure: true"
        )
    if security_conf(wanted, master)["spark.authenticate"].strip().lower() != "true":
        raise Invalid(
            f"spark.master = {shown_master(master.url)} is used with spark.authenticate off; leave that entry"
            " out, or write spark.insecure: true"
        )


def is_standalone(master: Master) -> bool:
    """Return whether a master is one of a standalone cluster, whose operator chooses its secret."""
    return master.url.startswith("spark://")


def _console_options(wanted: SparkSettings) -> str:
    repeated = "off" if wanted.log_level in {"off", "error"} else wanted.log_level
    return (
        f"-Dlog4j2.configurationFile={_LOG_FILE.as_uri()} -Dpenstock.spark.log.level={wanted.log_level}"
        f" -Dpenstock.spark.repeated.level={repeated}"
    )


def _start(wanted: SparkSettings, master: Master, app_name: str, java: JavaProcess) -> "SparkSession":
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
        gateway = SparkContext._gateway
        if gateway is None:
            gateway = java.start(pairs, Path(folder))
        else:
            connectors.add_to_java(gateway, pairs)
        pairs |= security_conf(wanted, master)  # not for Java's start: its properties stay for other sessions
        conf = SparkConf(loadDefaults=False).setAll(list(pairs.items()))
        try:
            context = SparkContext(conf=conf, gateway=gateway)
            _own["context"] = context
            _expect_the_end(context)
            spark = SparkSession.builder.getOrCreate()
            if not master.in_process:
                shipping.ship(spark)
        except (PySparkException, Py4JError, OSError) as error:  # OSError: Java has ended
            raise _why_not_started(error, master) from error
    return spark


@contextmanager
def _interpreters(wanted: SparkSettings) -> Iterator[str]:
    """Set the interpreters in the environment while Spark starts, which then remembers them.

    One, which is yielded, runs on executors and plans reads; the driver's own finds data sources.
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
    return Unavailable(f"Spark did not start on {shown_master(master.url)}: {line}; read the master's log")


def _expect_the_end(context: "SparkContext") -> None:
    """Keep PySpark's server of accumulators from printing a traceback when Java ends without notice."""
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


def end_session() -> None:
    """End the session of this process, and make PySpark forget its Java, which may be gone or is to end.

    PySpark keeps a gateway for the whole life of a process, and has no way to give it up: every later session
    would use it. So this is the one place that changes PySpark's own attributes (ADR 90). Raises nothing.
    """
    from pyspark.sql import SparkSession, is_remote

    if is_remote():
        with suppress(Exception):  # a call of a server that is gone
            SparkSession.active().stop()
        return
    from pyspark import SparkContext  # which pyspark-client, always remote, does not have

    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    if context is not None:
        with warnings.catch_warnings(action="ignore"):  # it warns of a Java that does not answer
            with suppress(Exception):  # a call of a Java that is gone
                context.stop()
            context.stop()  # what is left of it in this process; it calls Java no more
    SparkContext._gateway = SparkContext._jvm = None
    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown()


def close_client(spark: "SparkSession") -> None:
    """Make every call of a session of Spark Connect fail soon, also those under way; return at once.

    The server keeps the session until nobody has used it for a while.
    """
    client: Any = spark.client  # type: ignore[operator]  # a property of classes, which mypy does not know
    # PySpark waits for calls that tell the server what was read.
    threading.Thread(target=client.close, name="penstock-close", daemon=True).start()


def retry_shortly(spark: "SparkSession") -> None:
    """Have a session of Spark Connect repeat calls of a server that does not answer for ten seconds.

    PySpark does so for ten minutes; a service repeats its work by itself.
    """
    from pyspark.sql.connect.client.retries import DefaultPolicy

    client: Any = spark.client  # type: ignore[operator]  # as above
    client.set_retry_policies([DefaultPolicy(max_retries=8, max_backoff=2000)])


def connect_url(master: str) -> str:
    """Return the address of the server of Spark Connect in the settings or the environment; else empty."""
    url = master if master.startswith(CONNECT) else os.environ.get(_REMOTE, "")
    return url if url.startswith(CONNECT) else ""


def allocation_file(pools: Mapping[str, "PoolSettings"]) -> str:
    """Return Spark's allocation file for the pools of the settings; jobs in a pool share it fairly too."""
    root = ElementTree.Element("allocations")
    for name, pool in pools.items():
        element = ElementTree.SubElement(root, "pool", name=name)
        ElementTree.SubElement(element, "schedulingMode").text = "FAIR"
        ElementTree.SubElement(element, "weight").text = str(pool.weight)
        ElementTree.SubElement(element, "minShare").text = str(pool.min_share)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)
