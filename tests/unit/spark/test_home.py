"""Which folder a session takes Spark from."""

import os
import sys
from pathlib import Path

import pytest

from penstock.spark.jvm import parse_master, quick_home, spark_home

LOCAL = parse_master("local[*]")


@pytest.fixture(autouse=True)
def _nobody_has_named_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)


def test_it_has_spark_without_the_archive_of_pyspark() -> None:
    home = Path(quick_home())
    assert (home / "bin" / "spark-submit").exists()
    assert list((home / "jars").glob("spark-core_*.jar"))
    assert not (home / "python").exists()
    assert quick_home() == str(home)


def test_it_is_named_while_a_local_session_starts() -> None:
    with spark_home(LOCAL, sys.executable):
        assert os.environ["SPARK_HOME"] == quick_home()
    assert "SPARK_HOME" not in os.environ


@pytest.mark.parametrize(
    ("master", "python"), [("local[2]", "python3.99"), ("spark://host:7077", None), ("yarn", None)]
)
def test_python_that_may_lack_pyspark_gets_the_archive(master: str, python: str | None) -> None:
    with spark_home(parse_master(master), python or sys.executable):
        assert "SPARK_HOME" not in os.environ


def test_the_users_own_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    with spark_home(LOCAL, sys.executable):
        assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert os.environ["SPARK_HOME"] == "/opt/spark"
