from pathlib import Path

import pytest

from penstock.errors import Invalid
from penstock.settings import SparkSettings
from penstock.spark.defaults import (
    launch_defaults,
    memory_mib,
    parse_properties,
    parse_submit,
    with_defaults,
)
from penstock.spark.jvm import parse_master
from penstock.spark.session import overhead_mib, security_conf, session_conf

DEFAULTS = """
# of the cluster's operator
spark.master            yarn
spark.driver.memory     6g
spark.executor.memory = 7g
spark.ui.enabled        true
spark.sql.session.timeZone Europe/Berlin
spark.driver.extraJavaOptions -Dtheirs=1
spark.hadoop.x:y
hive.x                  not of Spark
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "spark-defaults.conf").write_text(DEFAULTS)
    return {"SPARK_CONF_DIR": str(tmp_path)}


def conf_of(wanted: SparkSettings) -> dict[str, str]:
    return session_conf(wanted, parse_master(wanted.master), app_name="x", allocations=Path("/p.xml"))


def test_a_users_defaults_count_above_ours(environ: dict[str, str]) -> None:
    wanted = with_defaults(SparkSettings(), environ)
    assert (wanted.master, wanted.driver_memory, wanted.executor_memory) == ("yarn", "6g", "7g")
    conf = conf_of(wanted)
    assert conf["spark.sql.session.timeZone"] == "Europe/Berlin"
    assert (conf["spark.ui.enabled"], conf["spark.hadoop.x"]) == ("true", "y")
    assert conf["spark.driver.extraJavaOptions"].endswith("-Dtheirs=1")
    assert "-Dlog4j2.configurationFile" in conf["spark.driver.extraJavaOptions"]
    assert "hive.x" not in conf


def test_the_settings_count_above_a_users_defaults(environ: dict[str, str]) -> None:
    own = {"spark.sql.session.timeZone": "UTC", "spark.driver.extraJavaOptions": "-Dours=1"}
    given = SparkSettings(master="local[2]", driver_memory="1g", executor_memory="2g", ui_port=0, conf=own)
    wanted = with_defaults(given, environ)
    assert (wanted.master, wanted.driver_memory, wanted.executor_memory) == ("local[2]", "1g", "2g")
    conf = conf_of(wanted)
    assert (conf["spark.master"], conf["spark.driver.memory"]) == ("local[2]", "1g")
    assert (conf["spark.sql.session.timeZone"], conf["spark.ui.enabled"]) == ("UTC", "false")
    assert conf["spark.driver.extraJavaOptions"].endswith("-Dours=1")


def test_a_secret_in_a_users_defaults_is_the_clusters(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.authenticate.secret of-the-cluster\n")
    wanted = with_defaults(SparkSettings(master="spark://a:7077"), {"SPARK_CONF_DIR": str(tmp_path)})
    assert security_conf(wanted, parse_master(wanted.master))["spark.authenticate"] == "true"
    assert "of-the-cluster" not in repr(wanted)


def test_the_home_of_spark_has_defaults_too_and_nobody_needs_them(tmp_path: Path) -> None:
    wanted = SparkSettings()
    assert with_defaults(wanted, {}) is wanted
    assert with_defaults(wanted, {"SPARK_CONF_DIR": str(tmp_path)}) is wanted
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.master local[3]")
    assert with_defaults(wanted, {"SPARK_HOME": str(tmp_path)}).master == "local[3]"
    elsewhere = {"SPARK_HOME": str(tmp_path), "SPARK_CONF_DIR": str(tmp_path)}
    assert with_defaults(wanted, elsewhere) is wanted


def test_defaults_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "spark-defaults.conf"
    path.write_bytes(b"spark.x \xff")
    with pytest.raises(Invalid, match=r"spark-defaults\.conf cannot be read \(not UTF-8\); correct it"):
        with_defaults(SparkSettings(), {"SPARK_CONF_DIR": str(tmp_path)})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("spark.a b c ", "b c"),
        ("  spark.a=b=c", "b=c"),
        ("spark.a = b:c", "b:c"),
        ("spark.a :\tb", "b"),
        ("spark.a b,\\\n   c", "b,c"),
        (r"spark.a C:\\x\u0041\t.", "C:\\xA\t."),
        ("spark.a", ""),
        ("spark.a one\nspark.a two", "two"),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, value: str) -> None:
    assert parse_properties(f"! a comment\n#spark.a no\n{text}\n") == {"spark.a": value}


@pytest.mark.parametrize(
    ("text", "mib"), [("512m", 512), ("2g", 2048), ("1T", 2**20), ("2048k", 2), ("300", 300), ("1gb", 1024)]
)
def test_sizes_are_read_as_spark_reads_them(text: str, mib: int) -> None:
    assert memory_mib(text) == mib
    with pytest.raises(Invalid, match="is not a size"):
        memory_mib(f"{text} or so")


def test_memory_outside_of_the_heap_grows_with_cores_and_batches() -> None:
    assert overhead_mib(SparkSettings(executor_memory="2g")) == 384 + 512
    assert overhead_mib(SparkSettings(executor_memory="10g", conf={"spark.executor.cores": "4"})) == 3072
    batches = {"spark.sql.execution.arrow.maxBytesPerBatch": str(128 * 2**20)}
    assert overhead_mib(SparkSettings(conf=batches)) == 384 + 256 + 4 * 128
    unlimited = {"spark.sql.execution.arrow.maxBytesPerBatch": "-1"}
    assert overhead_mib(SparkSettings(conf=unlimited)) == 896


def test_memory_outside_of_the_heap_is_asked_for_where_it_is_limited() -> None:
    key, factor = "spark.executor.memoryOverhead", "spark.executor.memoryOverheadFactor"
    assert conf_of(SparkSettings(master="k8s://https://a:6443"))[key] == "896m"
    assert conf_of(SparkSettings(master="k8s://https://a:6443", conf={key: "3g"}))[key] == "3g"
    assert key not in conf_of(SparkSettings(master="k8s://https://a:6443", conf={factor: "0.4"}))
    assert key not in conf_of(SparkSettings(master="local[2]"))
    assert key not in conf_of(SparkSettings(master="spark://a:7077"))


JAVA = ["/usr/bin/java", "-cp", "x", "org.apache.spark.deploy.SparkSubmit"]


def test_options_of_the_data_source_are_found_where_spark_was_started(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.penstock.storage s3://theirs\nspark.penstock.partitionBytes 1MiB\nspark.master yarn\n"
    )
    environ = {"SPARK_CONF_DIR": str(tmp_path)}
    in_file = {"storage": "s3://theirs", "partitionBytes": "1MiB"}
    assert launch_defaults(environ, []) == in_file
    assert launch_defaults({}, []) == {}
    given = [*JAVA, "--verbose", "--conf", "spark.penstock.storage=s3://a?b=c", "app.py", "--conf", "x=y"]
    daemon = ["python3", "-m", "pyspark.daemon"]
    assert launch_defaults(environ, [daemon, given]) == in_file | {"storage": "s3://a?b=c"}
    other = tmp_path / "other.conf"
    other.write_text("spark.penstock.pdAddrs a:1\n")
    command = [*JAVA, "--properties-file", str(other), "pyspark-shell"]
    assert launch_defaults(environ, [command]) == {"pdAddrs": "a:1"}
    command.insert(-1, "--load-spark-defaults")
    assert launch_defaults(environ, [command]) == in_file | {"pdAddrs": "a:1"}
    other.unlink()  # by who started Spark, as our own sessions do
    assert launch_defaults(environ, [command]) == in_file
    other.write_bytes(b"spark.penstock.x \xff")
    with pytest.raises(Invalid, match="cannot be read"):
        launch_defaults(environ, [[*JAVA, f"--properties-file={other}", "app.py"]])


def test_arguments_of_a_submitted_program_are_not_those_of_spark() -> None:
    arguments = ["--master", "yarn", "-c", "a=1", "--conf=b=2", "--class", "X", "app.jar", "--conf", "c=3"]
    assert parse_submit(arguments) == ({"a": "1", "b": "2"}, None)
    assert parse_submit(["--properties-file"]) == ({}, "")
