"""Starting the Java process of a session, with a console that shows what concerns the user only.

Is there a Java that Spark can run on? Asked before Spark starts, whose script would answer vaguely.

Where Spark is, for a session whose Python processes have PySpark installed.

Where a Spark session runs, and whether it is there: Spark itself would take a minute to say no.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

__all__ = [
    "JAVA_MIN",
    "Master",
    "driver_context",
    "parse_master",
    "quick_home",
    "require_java",
    "require_master",
    "spark_home",
]


_ABOUT_JAVA_ITSELF = ("WARNING: Using incubator modules", "Picked up JAVA_TOOL_OPTIONS")
_SAYS_NOTHING = (
    "Error occurred during initialization",
    "Error: Could not create",
    "Error: A fatal exception",
)
_HELD_LINES = 200


def launch(conf: "SparkConf") -> Any:
    """Start Java with Spark in it and return py4j's gateway; raise Invalid when Java ends at once.

    The process ends when this one does.
    """
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    console = _Console()
    pipes = {"stdout": console.pipe(_to_stdout), "stderr": console.pipe(_to_stderr)}
    try:
        try:
            # pyspark does not annotate this function
            gateway = launch_gateway(conf, popen_kwargs=dict(pipes))  # type: ignore[no-untyped-call]
        finally:
            for end in pipes.values():
                os.close(end)
    except PySparkRuntimeError as error:
        raise Invalid(
            f"Java ended before Spark started: {console.last_words()};"
            " check spark.driver_memory and spark.conf"
        ) from error
    console.release()
    return gateway


class _Console:
    """Passes on what Java writes; until Java has started it holds lines back, for one may be the error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: deque[tuple[Callable[[str], object], str]] | None = deque(maxlen=_HELD_LINES)
        self._threads: list[threading.Thread] = []

    def pipe(self, write: Callable[[str], object]) -> int:
        """A descriptor for the process to write to."""
        source, end = os.pipe()
        copying = threading.Thread(target=self._copy, args=(source, write), name="spark-console", daemon=True)
        copying.start()
        self._threads.append(copying)
        return end

    def release(self) -> None:
        """Pass on what was held back, and from now on everything at once."""
        with self._lock:
            for write, line in self._held or ():
                write(line)
            self._held = None

    def last_words(self) -> str:
        """The line of a finished process that says why it ended."""
        for each in self._threads:
            each.join(timeout=5)
        lines = (line.strip() for _, line in self._held or ())
        telling = (line for line in lines if line and not line.startswith(_SAYS_NOTHING))
        return next(telling, "it gave no reason").rstrip(".")

    def _copy(self, source: int, write: Callable[[str], object]) -> None:
        with os.fdopen(source, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith(_ABOUT_JAVA_ITSELF):
                    continue
                with self._lock:
                    if self._held is not None:
                        self._held.append((write, line))
                    else:
                        write(line)


def _to_stdout(text: str) -> None:
    sys.stdout.write(text)  # whatever it is by then: programs replace it


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)


def driver_context(spark: "SparkSession") -> "SparkContext":
    """The context of a session whose driver is this process; raise Invalid for one of Spark Connect."""
    try:
        return spark.sparkContext
    except AttributeError as error:
        raise Invalid(
            "this session is of Spark Connect; changefeeds, jobs, pools and shipping need a driver in this"
            " process: build a session with penstock.spark.session.build_session"
        ) from error


JAVA_MIN = 17
_VERSION = re.compile(r'version "(?P<first>\d+)(?:\.(?P<second>\d+))?')
_REMEDY = f"install Java {JAVA_MIN} or newer (for instance: apt-get install openjdk-{JAVA_MIN}-jre-headless)"


def require_java(environ: Mapping[str, str] = os.environ) -> None:
    """Raise Invalid with the remedy when the Java that Spark would take is missing or too old."""
    path = _find(environ)
    try:
        # the same program that Spark would run
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - Java itself
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Invalid(f"Java at {path} cannot be run; {_REMEDY} and set JAVA_HOME to it") from error
    found = major_version(done.stderr + done.stdout)
    if found is None:
        raise Invalid(f"Java at {path} does not tell its version; {_REMEDY} and set JAVA_HOME to it")
    if found < JAVA_MIN:
        raise Invalid(f"Java at {path} is version {found}; {_REMEDY} and set JAVA_HOME to it")


def major_version(text: str) -> int | None:
    """The version in what `java -version` writes; 1.8 counts as 8. None when there is none."""
    match = _VERSION.search(text)
    if match is None:
        return None
    first, second = int(match["first"]), match["second"]
    return int(second) if first == 1 and second else first


def _find(environ: Mapping[str, str]) -> str:
    """The same choice as Spark's start script."""
    home = environ.get("JAVA_HOME")
    if home:
        path = Path(home, "bin", "java")
        if not path.is_file():
            raise Invalid(f"JAVA_HOME is {home}, which has no bin/java; correct it or unset it")
        return str(path)
    found = shutil.which("java", path=environ.get("PATH"))
    if found is None:
        raise Invalid(f"Spark needs Java, and there is none on the PATH; {_REMEDY}")
    return found


_LOCAL = re.compile(r"local(\[(\*|[1-9]\d*)(,\s*\d+)?\])?|local-cluster\[\d+,\s*\d+,\s*\d+\]")
_CONNECT_TIMEOUT_S = 5.0
_ALLOWED = "use local[*], local[N], spark://host:port, yarn or k8s://https://host:port"


@dataclass(frozen=True, slots=True)
class Master:
    """A master URL taken apart: which addresses must answer before a session can start."""

    url: str
    in_process: bool = False
    addresses: tuple[tuple[str, int], ...] = ()


def parse_master(url: str) -> Master:
    """Take a master URL apart; raise Invalid when it is none that Spark knows."""
    if _LOCAL.fullmatch(url):
        return Master(url, in_process=not url.startswith("local-cluster"))
    if url == "yarn":
        return Master(url)
    if url.startswith("spark://"):
        return Master(url, addresses=tuple(_address(url, each) for each in url[8:].split(",")))
    if url.startswith("k8s://"):
        parts = urlsplit(url[6:] if "://" in url[6:] else f"https://{url[6:]}")
        default = 80 if parts.scheme == "http" else 443
        return Master(url, addresses=(_address(url, parts.netloc, default),))
    if url.startswith("sc://"):
        raise Invalid(
            f"spark.master = {url!r} is a Spark Connect server; build that session with"
            " SparkSession.builder.remote and give it to penstock.spark.register"
        )
    raise Invalid(f"spark.master = {url!r} is no master of Spark's; {_ALLOWED}")


def require_master(master: Master, environ: Mapping[str, str] = os.environ) -> None:
    """Raise Unavailable when none of the master's addresses answers, Invalid when YARN is not configured."""
    if master.url == "yarn" and not (environ.get("HADOOP_CONF_DIR") or environ.get("YARN_CONF_DIR")):
        raise Invalid(
            "spark.master = 'yarn' needs the cluster's configuration; set HADOOP_CONF_DIR to its folder"
        )
    reason: OSError | None = None
    for host, port in master.addresses:
        try:
            socket.create_connection((host, port), _CONNECT_TIMEOUT_S).close()
        except OSError as error:
            reason = error
        else:
            return
    if reason is not None:
        why = reason.strerror or str(reason)
        raise Unavailable(
            f"Spark master {master.url} does not answer ({why.lower()}); start it, or correct spark.master"
        ) from reason


def _address(url: str, text: str, default_port: int | None = None) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port or default_port
    except ValueError:
        host, port = None, None
    if not host or not port:
        raise Invalid(f"spark.master = {url!r} has an address that is not host:port; {_ALLOWED}")
    return host, port


HOME = "SPARK_HOME"


def quick_home() -> str:
    """PySpark's folder without the archive of its sources; removed with this process.

    Every Python process that Spark starts would import PySpark from the archive and compile it first, which
    takes it a second; without the archive it imports the installed package, which is compiled.
    """
    return _folder().name


@contextmanager
def spark_home(master: Master, python: str) -> Iterator[None]:
    """Name it while Spark starts, unless the user has: where Python runs here, as this program does."""
    if HOME in os.environ or not master.in_process or python != sys.executable:
        yield
        return
    os.environ[HOME] = quick_home()
    try:
        yield
    finally:
        del os.environ[HOME]


@cache
def _folder() -> "TemporaryDirectory[str]":
    import pyspark

    folder = TemporaryDirectory(prefix="penstock-spark-home-")
    for name in ("bin", "jars"):
        Path(folder.name, name).symlink_to(Path(pyspark.__file__).parent / name)
    return folder
