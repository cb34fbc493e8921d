"""The Java side of a session: start Java, and check before that Java, Spark and the master are there.

`launch` starts Java with a console that shows only lines that concern the user. `require_java` and
`require_master` give clear errors: Spark's own script answers vaguely, and Spark takes a minute to say that a
master does not answer. `spark_home` makes Python workers start faster.
"""

import json
import os
import re
import shlex
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

from penstock.durable_files import PRIVATE_FOLDER, open_private
from penstock.errors import Invalid, Unavailable
from penstock.spark.class_archive import archive_options, link_spark, make_home

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = [
    "JAVA_MIN",
    "Master",
    "driver_context",
    "find_java",
    "parse_master",
    "quick_home",
    "require_java",
    "require_master",
    "spark_home",
]


_NOISE = ("WARNING: Using incubator modules", "Picked up JAVA_TOOL_OPTIONS")
_NO_REASON = (
    "Error occurred during initialization",
    "Error: Could not create",
    "Error: A fatal exception",
)
_HELD_LINES = 200
DRIVER_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_SHARING = ("-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-Xshare")


def launch(conf: Mapping[str, str], folder: Path) -> Any:
    """Start Java with Spark in it; return py4j's gateway. Raises Invalid when Java ends at once.

    The configuration is passed in files of `folder`, which others cannot read and which may be removed
    afterwards. The Java process ends when this one does.
    """
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    console = _Console()
    pipes = {"stdout": console.pipe(_to_stdout), "stderr": console.pipe(_to_stderr)}
    try:
        try:
            with _submit_arguments(_write_conf(conf, folder)):
                # pyspark does not annotate this function
                gateway = launch_gateway(popen_kwargs=dict(pipes))  # type: ignore[no-untyped-call]
        finally:
            for end in pipes.values():
                os.close(end)
    except PySparkRuntimeError as error:
        raise Invalid(
            f"Java ended before Spark started: {console.failure()}; check spark.driver_memory and spark.conf"
        ) from error
    console.release()
    return gateway


def _write_conf(conf: Mapping[str, str], folder: Path) -> Path:
    """Write the configuration for Spark's start script; return the path of the file.

    Every user of the machine sees the arguments of a process, and a configuration has passwords: Spark reads
    it from this file, and Java its options from another one.
    """
    options = folder / "java-options"
    given = shlex.split(conf.get(DRIVER_JAVA_OPTIONS, ""))
    if os.environ.get(HOME) == quick_home() and not any(option.startswith(_SHARING) for option in given):
        given = [*shlex.split(archive_options(Path(quick_home()), find_java(os.environ))), *given]
    _write_private(options, "".join(f"{_java_argument(option)}\n" for option in given))
    pairs = {**conf, DRIVER_JAVA_OPTIONS: f"@{options}"}
    path = folder / "spark.properties"
    _write_private(path, "".join(f"{_property(key)}={_property(value)}\n" for key, value in pairs.items()))
    return path


def _write_private(path: Path, text: str) -> None:
    with open_private(path, "xb") as file:
        file.write(text.encode())


def _property(text: str) -> str:
    """Return a key or value as java.util.Properties reads it."""
    escaped = json.dumps(text)[1:-1]  # characters that are not ASCII as UTF-16, as Java wants them
    for character in " =:":
        escaped = escaped.replace(character, f"\\{character}")
    return escaped


def _java_argument(option: str) -> str:
    """Return an option as Java reads it from a file of arguments."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


@contextmanager
def _submit_arguments(properties: Path) -> Iterator[None]:
    """Have PySpark give the file to Spark's start script, with what the user wants of the script.

    The defaults in Spark's own folder count as well, where the file does not name a key.
    """
    before = os.environ.get(_SUBMIT_ARGUMENTS)
    ours = f"--properties-file {shlex.quote(str(properties))} --load-spark-defaults"
    os.environ[_SUBMIT_ARGUMENTS] = f"{ours} {before or 'pyspark-shell'}"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SUBMIT_ARGUMENTS]
        else:
            os.environ[_SUBMIT_ARGUMENTS] = before


class _Console:
    """Passes on what Java writes; holds lines back until Java has started, because one may be the error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: deque[tuple[Callable[[str], object], str]] | None = deque(maxlen=_HELD_LINES)
        self._threads: list[threading.Thread] = []

    def pipe(self, write: Callable[[str], object]) -> int:
        """Return a descriptor for the process to write to; its lines go to `write`."""
        source, end = os.pipe()
        copying = threading.Thread(target=self._copy, args=(source, write), name="spark-console", daemon=True)
        copying.start()
        self._threads.append(copying)
        return end

    def release(self) -> None:
        """Pass on the lines that were held back, and from now on each line at once."""
        with self._lock:
            for write, line in self._held or ():
                write(line)
            self._held = None

    def failure(self) -> str:
        """Return the line of a finished process that says why it ended."""
        for thread in self._threads:
            thread.join(timeout=5)
        lines = (line.strip() for _, line in self._held or ())
        reasons = (line for line in lines if line and not line.startswith(_NO_REASON))
        return next(reasons, "it gave no reason").rstrip(".")

    def _copy(self, source: int, write: Callable[[str], object]) -> None:
        with os.fdopen(source, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith(_NOISE):
                    continue
                with self._lock:
                    if self._held is not None:
                        self._held.append((write, line))
                    else:
                        write(line)


def _to_stdout(text: str) -> None:
    sys.stdout.write(text)  # looked up for each line, because programs replace it


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)


def driver_context(spark: "SparkSession") -> "SparkContext":
    """Return the context of a session; raise Invalid for one of Spark Connect, which has no driver here."""
    try:
        return spark.sparkContext
    except AttributeError as error:
        raise Invalid(
            "this is a session of Spark Connect; changefeeds, jobs, pools and shipping need a driver in this"
            " process: build a session with penstock.spark.session.build_session"
        ) from error


JAVA_MIN = 17
_VERSION = re.compile(r'version "(?P<first>\d+)(?:\.(?P<second>\d+))?')
_REMEDY = f"install Java {JAVA_MIN} or newer (for instance: apt-get install openjdk-{JAVA_MIN}-jre-headless)"


def require_java(environ: Mapping[str, str] = os.environ) -> None:
    """Raise Invalid with the remedy when the Java that Spark would take is missing or too old."""
    path = find_java(environ)
    try:
        # This is the program that Spark runs.
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - Java itself
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Invalid(f"Java at {path} cannot be run; {_REMEDY} and set JAVA_HOME to it") from error
    version = major_version(done.stderr + done.stdout)
    if version is None:
        raise Invalid(f"Java at {path} does not say its version; {_REMEDY} and set JAVA_HOME to it")
    if version < JAVA_MIN:
        raise Invalid(f"Java at {path} is version {version}; {_REMEDY} and set JAVA_HOME to it")


def major_version(text: str) -> int | None:
    """Return the major version in the output of `java -version`, where 1.8 is 8; None when there is none."""
    match = _VERSION.search(text)
    if match is None:
        return None
    first, second = int(match["first"]), match["second"]
    return int(second) if first == 1 and second else first


def find_java(environ: Mapping[str, str]) -> str:
    """Return the Java that Spark's start script runs; raise Invalid when there is none."""
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
    """A parsed master URL; one of its addresses must answer before a session can start."""

    url: str
    in_process: bool = False
    addresses: tuple[tuple[str, int], ...] = ()


def parse_master(url: str) -> Master:
    """Parse a master URL; raise Invalid when Spark does not know such a master."""
    if _LOCAL.fullmatch(url):
        return Master(url, in_process=not url.startswith("local-cluster"))
    if url == "yarn":
        return Master(url)
    if url.startswith("spark://"):
        return Master(url, addresses=tuple(_address(url, text) for text in url[8:].split(",")))
    if url.startswith("k8s://"):
        parts = urlsplit(url[6:] if "://" in url[6:] else f"https://{url[6:]}")
        default = 80 if parts.scheme == "http" else 443
        return Master(url, addresses=(_address(url, parts.netloc, default),))
    if url.startswith("sc://"):
        raise Invalid(
            f"spark.master = {url!r} is a Spark Connect server; build that session with"
            " SparkSession.builder.remote and give it to penstock.spark.register"
        )
    raise Invalid(f"spark.master = {url!r} is not a master that Spark knows; {_ALLOWED}")


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


def local_folder() -> str:
    """Return a folder for Spark's blocks that only this user can read; it is removed with this process.

    Spark makes its own folders below it with modes that follow the umask.
    """
    folder = Path(_folder().name, "blocks")
    folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    return str(folder)


def quick_home() -> str:
    """Return a copy of PySpark's folder without the archive of its sources.

    With the archive, every Python process that Spark starts imports PySpark from it and compiles it first,
    which takes a second. Without the archive it imports the installed package, which is compiled. It is in
    the user's cache folder, or else in a folder that is removed with this process.
    """
    return str(_home())


@contextmanager
def spark_home(master: Master, python: str) -> Iterator[None]:
    """Set SPARK_HOME to `quick_home` while Spark starts.

    Not when the user has set it, and only when workers run on this machine with this program's interpreter.
    """
    if HOME in os.environ or not master.in_process or python != sys.executable:
        yield
        return
    os.environ[HOME] = quick_home()
    try:
        yield
    finally:
        del os.environ[HOME]


@cache
def _home() -> Path:
    import pyspark

    spark = Path(pyspark.__file__).parent
    home = make_home(spark)
    if home is None:
        home = Path(_folder().name)
        link_spark(spark, home)
    return home


@cache
def _folder() -> "TemporaryDirectory[str]":
    # Java may still remove its own files in it while this process ends.
    return TemporaryDirectory(prefix="penstock-spark-", ignore_cleanup_errors=True)
