"""The Java side of a session: start Java, and check before that Java, Spark and the master are there.

`JavaProcess` starts Java with a console that shows only lines that concern the user. `require_java` and
`require_master` give clear errors: Spark's own script answers vaguely, and Spark takes a minute to say that a
master does not answer. `spark_home` makes Python workers start faster.
"""

import json
import logging
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.clock import SYSTEM
from penstock.durable_files import PRIVATE_FOLDER, open_private
from penstock.errors import Invalid, Unavailable
from penstock.spark.class_archive import archive_options, link_spark, make_home

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = [
    "JAVA_MIN",
    "JavaProcess",
    "Master",
    "fast_start_conf",
    "fast_start_environment",
    "find_context",
    "find_java",
    "parse_master",
    "quick_home",
    "require_java",
    "require_master",
    "shown_master",
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
_SHARING = ("-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-Xshare")
_ADDRESS_VARIABLE = "_PYSPARK_DRIVER_CONN_INFO_PATH"  # where Spark's gateway writes its port and its secret
_START_POLL_S = 0.05


class JavaProcess:
    """Java with Spark in it, as the leader of a session of its own: Ctrl-C of a terminal does not reach it.

    It ends when this process does, also by a crash, because it reads its input until the end. `start` is
    called once; the other methods may be called at any time, from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False

    def start(self, conf: Mapping[str, str], folder: Path) -> Any:
        """Start Java; return py4j's gateway. Raises Invalid when Java ends at once, Unavailable after `kill`.

        The configuration is passed in files of `folder`, which others cannot read and which may be removed
        afterwards.
        """
        logging.getLogger().addFilter(_is_not_of_py4j)
        address = folder / "gateway"
        console = _Console()
        arguments = ["--properties-file", str(_write_conf(conf, folder)), "--load-spark-defaults"]
        arguments += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        process = self._open(arguments, address, console)
        while process.poll() is None and not address.is_file():
            SYSTEM.pause(_START_POLL_S)
        if not address.is_file():
            if self._killed:
                raise Unavailable("Spark was stopped while it started; start it again")
            raise Invalid(
                f"Java ended before Spark started: {console.failure()}; check spark.driver_memory and"
                " spark.conf"
            )
        console.release()
        gateway = _connect(address)
        gateway.proc = process  # where PySpark itself keeps it
        return gateway

    def _open(self, arguments: list[str], address: Path, console: "_Console") -> "subprocess.Popen[bytes]":
        import pyspark

        home = os.environ.get(HOME) or str(Path(pyspark.__file__).parent)
        # Our own Popen and not PySpark's: that one gives its process away only when Java has started, and
        # runs code between fork and exec, which may hang in a process with threads.
        out, err = console.pipe(_to_stdout), console.pipe(_to_stderr)
        environment = {**os.environ, "SPARK_CONNECT_MODE": "0", _ADDRESS_VARIABLE: str(address)}
        try:
            with self._lock:
                if self._killed:
                    raise Unavailable("Spark was stopped before it started; start it again")
                self._process = subprocess.Popen(  # noqa: S603 - Spark's own script
                    [Path(home, "bin", "spark-submit"), *arguments],
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=err,
                    env=environment,
                    start_new_session=True,
                )
        except OSError as error:
            raise Invalid(
                f"Spark at {home} cannot be started ({error.strerror}); install pyspark, or correct {HOME}"
            ) from error
        finally:
            os.close(out)
            os.close(err)
        return self._process

    @property
    def is_started(self) -> bool:
        """Whether there is a process: a session may have found another Java."""
        return self._process is not None

    def wait(self) -> str:
        """Wait until Java has ended; return how it ended."""
        assert self._process is not None, "Java was not started"
        code = self._process.wait()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def end(self, within_s: float) -> None:
        """End Java in order, if it runs; kill it when that takes longer."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()  # the end of its input
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def kill(self) -> None:
        """End Java at once, or keep it from starting. Calls of it that are under way fail."""
        with self._lock:
            self._killed = True
            process = self._process
        if process is not None and process.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.killpg(process.pid, signal.SIGKILL)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Leave out what py4j writes to the root logger, with a traceback, before it raises the same error."""
    return "py4j" not in PurePath(record.pathname).parts


def _connect(address: Path) -> Any:
    """Return py4j's gateway to the Java that wrote its port and its secret into a file."""
    from pyspark.java_gateway import launch_gateway

    content = address.read_bytes()
    port, secret = int.from_bytes(content[:4], "big"), content[8:].decode()
    with _environment({"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}):
        return launch_gateway()  # type: ignore[no-untyped-call]  # PySpark does not annotate it


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process during the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


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


def find_context(spark: "SparkSession") -> "SparkContext | None":
    """Return the context of a session; None for one of Spark Connect, which has no driver in this process."""
    try:
        return spark.sparkContext
    except AttributeError:
        return None


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
CONNECT = "sc://"  # the scheme of servers of Spark Connect
_CONNECT_PORT = 15002
_ALLOWED = "use local[*], local[N], spark://host:port, yarn, k8s://https://host:port or sc://host:port"


@dataclass(frozen=True, slots=True)
class Master:
    """A parsed master URL; one of its addresses must answer before a session can start."""

    url: str
    in_process: bool = False
    addresses: tuple[tuple[str, int], ...] = ()


def shown_master(url: str) -> str:
    """Return a master URL for messages and logs: that of Spark Connect may have a token after a `;`."""
    return url.partition(";")[0]


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
    if url.startswith(CONNECT):
        return Master(url, addresses=(_address(url, urlsplit(url).netloc, _CONNECT_PORT),))
    raise Invalid(f"spark.master = {shown_master(url)!r} is not a master that Spark knows; {_ALLOWED}")


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
            f"Spark master {shown_master(master.url)} does not answer ({why.lower()}); start it, or correct"
            " spark.master"
        ) from reason


class MasterWatch:
    """Notices that a standalone master, or a server of Spark Connect, has gone.

    Spark goes on without its master: executors stay as long as their workers do, nobody gives new ones, and a
    master that is started again does not know the application. So a connection to each of the master's
    addresses is kept, over which nothing is sent: the system closes it when the master ends, also when
    another runs at its address a moment later, and within a minute when its machine has vanished. With `tls`
    Netty closes a connection that is silent: there a master is lost when it accepts no other connection.

    A server of Spark Connect closes silent connections, too. It is lost when it refuses two in a row.
    Other kinds of masters are not watched. Use it from one thread at a time.
    """

    def __init__(self, url: str, *, tls: bool = False) -> None:
        self._tls = tls
        self._sockets: dict[tuple[str, int], socket.socket] = {}
        for address in parse_master(url).addresses if url.startswith("spark://") else ():
            with suppress(OSError):  # one of several, which does not run
                self._sockets[address] = _keep_connection(address)
        self._is_watched = bool(self._sockets)
        self._server = parse_master(url).addresses[0] if url.startswith(CONNECT) else None
        self._refusals = 0

    def is_lost(self) -> bool:
        """Return whether every master that ran at the start has ended; False where nothing is watched."""
        if self._server is not None:
            self._refusals = 0 if _accepts(self._server) else self._refusals + 1
            return self._refusals >= _REFUSALS_MAX
        for address, connection in list(self._sockets.items()):
            if not _has_ended(connection):
                continue
            connection.close()
            del self._sockets[address]
            if self._tls:
                with suppress(OSError):
                    self._sockets[address] = _keep_connection(address)
        return self._is_watched and not self._sockets

    def close(self) -> None:
        """Close the connections; nothing is lost from then on."""
        self._is_watched, self._server = False, None
        while self._sockets:
            self._sockets.popitem()[1].close()


_REFUSALS_MAX = 2
_KEEPALIVE = {
    socket.TCP_KEEPIDLE: 10,
    socket.TCP_KEEPINTVL: 10,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 40_000,  # milliseconds
}
"""A machine that has vanished sends nothing: the system asks it, and closes the connection within 40 s."""


def _keep_connection(address: tuple[str, int]) -> socket.socket:
    """Return a connection that is not waited for; raise OSError when there is none."""
    connection = socket.create_connection(address, _CONNECT_TIMEOUT_S)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.settimeout(0)  # never wait for a byte
    return connection


def _has_ended(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False  # nothing was sent, and the connection stands
    except OSError:
        return True


def _accepts(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, _CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _address(url: str, text: str, default_port: int | None = None) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port or default_port
    except ValueError:
        host, port = None, None
    if not host or not port:
        raise Invalid(
            f"spark.master = {shown_master(url)!r} has an address that is not host:port; {_ALLOWED}"
        )
    return host, port


HOME = "SPARK_HOME"
_WORKER_PYTHON = "PYSPARK_PYTHON"


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


def fast_start_conf(java_options: str = "") -> dict[str, str]:
    """Return the configuration with which a local session that you build yourself starts faster.

    For example `SparkSession.builder.config(map=fast_start_conf()).getOrCreate()`, as the first session of a
    program. Java takes Spark's classes from the archive that `penstock doctor --fix` makes, and Python
    workers import the installed PySpark instead of compiling its zip file. For that it sets the variables
    SPARK_HOME and PYSPARK_PYTHON of this process. Where they name another Spark or another Python, they stay,
    and nothing is faster. `java_options` are options of your own for Java.
    """
    environment = fast_start_environment()
    archive = ""
    if environment:
        os.environ.update(environment)
        archive = archive_options(Path(environment[HOME]), find_java(os.environ))
    options = f"{archive} {java_options}".strip()
    return {DRIVER_JAVA_OPTIONS: options} if options else {}


def fast_start_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of `fast_start_conf`; none where the user's own name another Spark or Python."""
    wanted = {HOME: quick_home(), _WORKER_PYTHON: sys.executable}
    return wanted if all(environ.get(name, value) == value for name, value in wanted.items()) else {}


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
