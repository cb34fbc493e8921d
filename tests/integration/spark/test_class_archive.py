"""The archive of Spark's classes: Java takes them from it, and a session starts without one as well."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from penstock.cli.doctor.machine import check_class_archive
from penstock.errors import Unavailable
from penstock.spark import class_archive
from penstock.spark.class_archive import archive_options, archive_path, build_archive, make_home
from penstock.spark.jvm import fast_start_environment, find_java, quick_home

JAVA = find_java(os.environ)
SUBMIT = "org.apache.spark.deploy.SparkSubmit"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def home() -> Path:
    """The home of this environment, whose archive `make setup` has made."""
    found = Path(quick_home())
    if not archive_path(found, JAVA).exists():
        build_archive(found, JAVA)
    return found


def start(home: Path, options: str) -> "subprocess.CompletedProcess[str]":
    """Run Spark's own start script, and let Java say where it takes its classes from."""
    environ = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_SUBMIT_OPTS": f"{options} -Xlog:class+load:stdout",
    }
    command = [home / "bin" / "spark-submit", "--version"]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=120)


def sources(printed: str) -> set[str]:
    return {line.partition("source: ")[2] for line in printed.splitlines() if f" {SUBMIT} source" in line}


def test_java_takes_sparks_classes_from_it(home: Path) -> None:
    started = start(home, archive_options(home, JAVA))
    assert started.returncode == 0, started.stderr
    assert sources(started.stdout) == {"shared objects file (top)"}
    assert archive_path(home, JAVA).stat().st_mode & 0o077 == 0, "others can read or replace it"


_OWN = """
import json, sys
from pyspark.sql import SparkSession
from penstock.spark import fast_start_conf

conf = fast_start_conf("-Xlog:class+load:file=classes.log")
local = {"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
spark = SparkSession.builder.master("local[1]").config(map={**conf, **local}).getOrCreate()

def place(batches):
    import pyarrow, pyspark, sys
    for _ in batches:
        yield pyarrow.record_batch({"place": [f"{sys.executable} {pyspark.__file__}"]})

(row,) = spark.range(1).mapInArrow(place, "place string").collect()
print(json.dumps(row.place))
spark.stop()
"""


def test_a_session_of_the_users_own_takes_classes_and_pyspark_from_there(home: Path, tmp_path: Path) -> None:
    environ = {name: os.environ[name] for name in os.environ if name not in {"SPARK_HOME", "PYSPARK_PYTHON"}}
    done = subprocess.run(
        [sys.executable, "-c", _OWN],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == f"{sys.executable} {pyspark.__file__}"
    loaded = (tmp_path / "classes.log").read_text().splitlines()
    shared = [line for line in loaded if "org.apache.spark" in line and "shared objects file (top)" in line]
    assert len(shared) > 1000


def test_variables_of_the_users_own_stay(home: Path) -> None:
    ours = {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    assert fast_start_environment({}) == fast_start_environment(ours) == ours
    assert fast_start_environment({"SPARK_HOME": "/opt/spark"}) == {}
    assert fast_start_environment({"PYSPARK_PYTHON": "python3.99"}) == {}
    found = check_class_archive(environ={"PATH": os.environ["PATH"]})
    assert f"SPARK_HOME={home} PYSPARK_PYTHON={sys.executable} and spark.driver.extraJava" in found.what
    assert "SPARK_HOME" not in check_class_archive(environ={**os.environ, "SPARK_HOME": "/opt/spark"}).what


def test_java_starts_without_a_word_when_it_does_not_fit(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "home"
    other.mkdir()
    class_archive.link_spark(Path(os.path.realpath(home / "jars")).parent, other)
    (other / "jars").unlink()
    (other / "jars").mkdir()
    for jar in (home / "jars").glob("*.jar"):
        if "arrow" not in jar.name:
            (other / "jars" / jar.name).symlink_to(jar.resolve())
    archive_path(other, JAVA).symlink_to(archive_path(home, JAVA))
    started = start(other, archive_options(other, JAVA))
    assert started.returncode == 0
    assert "shared objects file (top)" not in sources(started.stdout)
    assert "[warning]" not in started.stdout + started.stderr


def test_nothing_is_asked_of_java_without_one(home: Path, tmp_path: Path) -> None:
    assert archive_options(tmp_path, JAVA) == ""
    assert archive_path(home, JAVA).name in archive_options(home, JAVA)


def test_an_archive_of_another_user_is_not_used(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert archive_options(home, JAVA) == ""


def test_the_home_stays_the_same_and_is_the_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spark = Path(os.path.realpath(Path(quick_home(), "jars"))).parent
    made = make_home(spark)
    assert made is not None
    assert made.is_relative_to(tmp_path / "penstock")
    assert make_home(spark) == made
    assert list((made / "jars").glob("spark-core_*.jar"))
    assert made.stat().st_mode & 0o077 == 0
    assert [path.name for path in (tmp_path / "penstock").iterdir()] == [made.name]


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert make_home(tmp_path) is None


def test_a_home_that_everybody_may_change_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody could put another spark-submit there, which we would run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert make_home(tmp_path) is not None
    (tmp_path / "penstock").chmod(0o777)
    assert make_home(tmp_path) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_home_of_another_user_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o700)
    script = (  # the first call imports what the other user may not be able to
        "import os, pathlib; from penstock.spark.class_archive import make_home;"
        f" spark = pathlib.Path({str(tmp_path)!r}); make_home(spark); del os.environ['XDG_CACHE_HOME'];"
        " os.seteuid(65534); print(make_home(spark))"
    )
    environ = {**os.environ, "HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.returncode) == ("None\n", 0), done.stderr


def test_an_archive_that_takes_too_long_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "java"
    java.touch()
    home = tmp_path / "spark-home"
    (home / "jars").mkdir(parents=True)
    monkeypatch.setattr(class_archive, "_BUILD_S", 0.0)
    with pytest.raises(Unavailable, match="the archive was not ready after 0 s"):
        build_archive(home, str(java))
    assert not list(home.glob("*.jsa"))
