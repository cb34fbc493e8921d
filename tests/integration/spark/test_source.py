"""The data source with reads made for the test: what Spark does with a TableRead, and with its errors."""

from collections.abc import Callable

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from penstock.errors import PenstockError, StaleRead, Unavailable
from penstock.settings import CaptureSettings, Settings
from penstock.spark.errors import as_penstock_error
from penstock.spark.source import PenstockDataSource

Load = Callable[..., DataFrame]


def register_double(spark: SparkSession, known: Settings) -> None:
    """A source whose read tells what it knows and fails where it is told to: option `columns` says where."""

    class Reader(DataSourceReader):
        def __init__(self, options, moment):
            self.options = options
            self.moment = moment

        def fail(self, where):
            if self.options.columns == (where,):
                raise StaleRead("shop.orders", 5, oldest_ts=9)

        def partitions(self):
            self.fail("partitions")
            return [] if self.options.table == "shop.empty" else [InputPartition(each) for each in (1, 2)]

        def read(self, partition):
            import pyarrow as pa

            self.fail("read")
            table = self.options.table
            yield pa.record_batch(
                {
                    "table": [table],
                    "part": pa.array([partition.value], pa.int64()),
                    "moment": pa.array([self.moment], pa.int64()),
                    "storage": [self.options.settings.capture.storage],
                }
            )

    class Read:
        def __init__(self, options):
            self.options = options
            self.moment = 0

        def schema(self):
            if self.options.columns == ("schema",):
                raise Unavailable("storage does not answer; try again")
            self.moment = 77  # what it learnt when it was asked for the schema
            return "table string, part long, moment long, storage string"

        def reader(self, schema):
            return Reader(self.options, self.moment)

    class Double(PenstockDataSource):
        settings = known

        @classmethod
        def open_read(cls, options):
            return Read(options)

    spark.dataSource.register(Double)


@pytest.fixture(scope="module")
def load(spark: SparkSession) -> Load:
    session = spark.newSession()
    register_double(session, Settings(capture=CaptureSettings(storage="s3://bucket/events")))
    return lambda table="shop.orders", **options: (
        session.read.format("penstock").options(table=table, **options).load()
    )


def test_rows_come_from_every_partition_with_what_the_read_learnt_before(load: Load):
    rows = load().toArrow().sort_by("part").to_pylist()
    assert [row["part"] for row in rows] == [1, 2]
    assert {row["moment"] for row in rows} == {77}


def test_a_read_without_partitions_has_no_rows(load: Load):
    assert load("shop.empty").count() == 0


def test_settings_of_the_session_and_options_of_the_read_reach_executors(load: Load):
    assert {row.storage for row in load().collect()} == {"s3://bucket/events"}
    assert {row.storage for row in load(storage="s3://other/x").collect()} == {"s3://other/x"}


@pytest.mark.parametrize(
    ("where", "kind"), [("schema", Unavailable), ("partitions", StaleRead), ("read", StaleRead)]
)
def test_an_error_of_ours_is_shown_in_one_line_wherever_it_happens(
    load: Load, where: str, kind: type[PenstockError], capfd: pytest.CaptureFixture[str]
):
    with pytest.raises(Exception, match=r"penstock\.errors") as caught:
        load(columns=where).collect()
    assert "Traceback" not in str(caught.value)
    assert ".py" not in str(caught.value)
    found = as_penstock_error(caught.value)
    assert type(found) is kind
    if isinstance(found, StaleRead):
        assert found.oldest_ts == 9
    assert "\tat " not in capfd.readouterr().err


def test_a_worker_shows_tracebacks_of_other_errors_again_after_one_of_ours(spark: SparkSession, load: Load):
    def fail(batches):
        raise ValueError("of the user's own code")
        yield from batches

    with pytest.raises(Exception, match=r"penstock\.errors"):
        load(columns="read").collect()
    with pytest.raises(Exception, match="of the user's own code") as caught:
        spark.range(2).mapInArrow(fail, "id long").collect()
    assert "Traceback" in str(caught.value)


def test_spark_reads_a_table_of_a_python_source_without_its_options(spark: SparkSession):
    """ADR 145: once this fails, `CREATE TABLE ... USING penstock` can be allowed."""

    class Echo(DataSource):
        @classmethod
        def name(cls):
            return "echo"

        def schema(self):
            return "given string"

        def reader(self, schema):
            return EchoReader(self.options)

    class EchoReader(DataSourceReader):
        def __init__(self, options):
            self.given = sorted(options.items())

        def read(self, partition):
            yield (str(self.given),)

    spark.dataSource.register(Echo)
    read = spark.read.format("echo").option("place", "here").load()
    assert read.first().given == "[('place', 'here')]"
    spark.sql("CREATE TABLE echoed USING echo OPTIONS (place 'here')")
    try:
        assert spark.table("echoed").first().given == "[]"
    finally:
        spark.sql("DROP TABLE echoed")


def test_spark_shows_errors_of_a_python_source_inside_its_own(load: Load):
    """ADR 145: once this fails, users read our line alone."""
    with pytest.raises(PySparkException) as caught:
        load(columns="schema")
    said = str(caught.value)
    assert said.startswith("[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: ")
    assert said.rstrip().endswith("SQLSTATE: 38000")
