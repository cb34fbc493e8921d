"""Starting the Java process of a session, with a console that shows what concerns the user only."""

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.errors import Invalid

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from pyspark import SparkConf

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
