"""Where Spark is, for a session whose Python processes have PySpark installed."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.spark.masters import Master

__all__ = ["quick_home", "spark_home"]

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
