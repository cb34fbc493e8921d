"""Java's class data sharing for Spark: a session starts in about two thirds of the time.

Spark loads some fifteen thousand classes at its start, and Java parses and checks each of them anew. An
archive has them as an earlier Java process had them in memory. `build_archive` runs a short session that uses
what Penstock uses of Spark, and has Java write the archive at its end; `archive_options` are Java's options
for the sessions that follow.

Java compares the archive with itself and with its class path before it takes a class from it, and starts
without the archive when they differ. So the class path has to stay the same from session to session:
`make_home` makes a folder that does.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import version as installed_version
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING

from penstock.durable_files import PRIVATE_FILE, make_private_folder, may_hold_code
from penstock.errors import Unavailable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["archive_options", "archive_path", "build_archive", "link_spark", "make_home", "user_cache"]

_BUILD_S = 300.0
_HOME = "spark-"
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
"""Java does not use an archive that does not fit, and need not say so."""


def user_cache(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder for what Penstock can make or fetch again: programs and jars, which it runs.

    None when the user has no home folder, or when others could put something into the folder.
    """
    given = environ.get("XDG_CACHE_HOME", "")
    try:
        # The standard says to ignore a relative one.
        cache = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return cache / "penstock" if may_hold_code(cache / "penstock") else None


def make_home(spark: Path) -> Path | None:
    """Return a folder with the programs and jars of a PySpark, the same one at each start.

    It has no archive of PySpark's sources: see `quick_home`. None when the user has no folder for it.
    """
    cache = user_cache()
    if cache is None:
        return None
    place = hashlib.sha256(os.fsencode(spark)).hexdigest()[:12]
    home = cache / f"{_HOME}{installed_version('pyspark')}-{place}"
    try:
        if home.is_dir():
            return home
        make_private_folder(cache)
        made = Path(mkdtemp(prefix=f".{_HOME}", dir=cache))
        link_spark(spark, made)
        try:
            made.rename(home)
        except OSError:  # another process was faster
            shutil.rmtree(made)
        return home if home.is_dir() else None
    except OSError:  # a home folder that cannot be written to, or is another user's
        return None


def link_spark(spark: Path, home: Path) -> None:
    """Let a folder have the programs and jars of a PySpark."""
    for name in ("bin", "jars"):
        (home / name).symlink_to(spark / name)


def archive_path(home: Path, java: str) -> Path:
    """Return where the archive for a Java program is, or would be. Another Java has another archive."""
    program = Path(os.path.realpath(java))
    found = program.stat()
    facts = f"{program} {found.st_size} {found.st_mtime_ns}"
    return home / f"classes-{hashlib.sha256(os.fsencode(facts)).hexdigest()[:12]}.jsa"


def archive_options(home: Path, java: str) -> str:
    """Return the options with which Java takes classes from the archive; nothing when there is none.

    An archive of another user is not used: it is code.
    """
    path = archive_path(home, java)
    try:
        found = path.stat()
    except OSError:
        return ""
    if found.st_uid != os.geteuid() or not may_hold_code(path):
        return ""
    return f"-XX:SharedArchiveFile={path} {_QUIET}"


def build_archive(home: Path, java: str) -> Path:
    """Run a session, and keep the classes that it loaded; raise Unavailable when that fails.

    Takes about twenty seconds. Several processes may do so at once: the last one's archive stays. Removes the
    archives of a Spark that was uninstalled.
    """
    path = archive_path(home, java)
    for other in home.parent.glob(f"{_HOME}*"):
        if not (other / "jars").exists():
            shutil.rmtree(other, ignore_errors=True)
    with TemporaryDirectory(prefix=".classes-", dir=home, ignore_cleanup_errors=True) as scratch:
        new = Path(scratch, "classes.jsa")
        # Java writes the archive when the session's process has ended, and keeps this pipe open until then.
        try:
            done = subprocess.run(  # noqa: S603 - this module
                [sys.executable, "-P", "-m", __name__, str(new)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_BUILD_S,
                check=False,
                env={**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable},
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(
                f"the archive was not ready after {_BUILD_S:.0f} s; try again when the machine is less busy"
            ) from error
        if done.returncode != 0 or not new.exists():
            lines = [line for line in done.stdout.splitlines() if line.strip()]
            raise Unavailable(
                f"Java did not write an archive of classes: {lines[-1] if lines else 'no reason'}"
            )
        new.chmod(PRIVATE_FILE)
        new.replace(path)
    return path


def _pass_on(batches: "Iterable[pa.RecordBatch]") -> "Iterable[pa.RecordBatch]":
    yield from batches


def _look(batch: "DataFrame", _number: int) -> None:
    batch.collect()


def _use_spark(spark: "SparkSession", folder: Path) -> None:
    """Load the classes that reads, jobs and streams of Penstock load."""
    rows = spark.range(100).selectExpr("id", "cast(id % 7 as string) as name", "current_timestamp() as at")
    rows.mapInArrow(_pass_on, rows.schema).write.parquet(f"{folder}/rows")
    read = spark.read.parquet(f"{folder}/rows")
    read.createOrReplaceTempView("rows")
    spark.sql("select name, count(*), max(at) from rows where id > 3 group by name order by name").collect()
    read.join(read.groupBy("name").count(), "name").repartition(2).toArrow()
    read.limit(3).write.json(f"{folder}/json")
    stream = spark.readStream.schema(read.schema).parquet(f"{folder}/rows").writeStream
    query = stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    query.foreachBatch(_look).start().awaitTermination(60)


def _main(archive: str) -> None:
    from pyspark.sql import SparkSession

    with TemporaryDirectory(prefix="penstock-classes-", ignore_cleanup_errors=True) as folder:
        builder = SparkSession.builder.master("local[2]").appName("penstock-class-archive")
        builder = builder.config("spark.driver.extraJavaOptions", f"-XX:ArchiveClassesAtExit={archive}")
        local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        quiet = {"spark.ui.enabled": "false", "spark.local.dir": folder}
        spark = builder.config(map={**local, **quiet}).getOrCreate()
        _use_spark(spark, Path(folder))
        spark.stop()


if __name__ == "__main__":
    _main(sys.argv[1])
