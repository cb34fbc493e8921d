"""Starting the Java process of a session, with a console that shows what concerns the user only."""

import os
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from penstock.errors import Invalid

if TYPE_CHECKING:
    from pyspark import SparkConf

_ABOUT_JAVA_ITSELF = ("WARNING: Using incubator modules", "Picked up JAVA_TOOL_OPTIONS")
_LAST_LINES = 20


def launch(conf: "SparkConf") -> Any:
    """Start Java with Spark in it and return py4j's gateway; raise Invalid when Java ends at once.

    The process ends when this one does.
    """
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    reading, writing = os.pipe()
    console = _Console(reading)
    try:
        try:
            # pyspark does not annotate this function
            gateway = launch_gateway(conf, popen_kwargs={"stderr": writing})  # type: ignore[no-untyped-call]
        finally:
            os.close(writing)
    except PySparkRuntimeError as error:
        raise Invalid(
            f"Java ended before Spark started: {console.last_words()};"
            " check spark.driver_memory and spark.conf"
        ) from error
    return gateway


class _Console:
    """Passes on what Java writes to standard error, and remembers the end of it."""

    def __init__(self, source: int) -> None:
        self._source = source
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._thread = threading.Thread(target=self._copy, name="penstock-spark-console", daemon=True)
        self._thread.start()

    def last_words(self) -> str:
        """The line of a finished process that most likely says why it ended."""
        self._thread.join(timeout=5)
        lines = [each for each in self._last if each]
        telling = [each for each in lines if each.startswith(("Error", "Exception", "Invalid"))]
        return (telling or lines or ["it gave no reason"])[0].rstrip(".")

    def _copy(self) -> None:
        with os.fdopen(self._source, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith(_ABOUT_JAVA_ITSELF):
                    continue
                self._last.append(line.strip())
                sys.stderr.write(line)
