"""MERGE of a change feed into real Delta and Iceberg tables, by the code that the guide shows."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from penstock.settings import SparkSettings
from penstock.spark import connectors
from penstock.spark.session import build_session
from support.itemtables import item, item_table
from support.servedworld import ServedWorld
from support.spark import local_settings, stop_session

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "lakemerge" / "lakemerge.py"
EXISTING = connectors.CONNECTORS[connectors.spark_version()]
"""The connectors of this version of Spark."""
MISSING = connectors.missing_jars(
    [jar for connector in EXISTING for jar in connector.jars], connectors.jar_folder(SparkSettings())
)


def needs(name: str) -> pytest.MarkDecorator:
    """Skip where the connector does not exist, or where its jars could not be fetched."""
    reason = f"there is no {name} connector for Spark {pyspark.__version__}"
    absent = name not in {connector.name for connector in EXISTING}
    if MISSING and not absent:
        reason = f"{MISSING[0].file_name} is not here; `make setup` fetches it where Maven Central is reached"
    return pytest.mark.skipif(absent or bool(MISSING), reason=reason)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with every connector that exists; a session that this process had before ends."""
    base = local_settings()
    conf = {
        **base.spark.conf,
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.cache-enabled": "false",  # else a session does not see what another commits
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(tmp_path_factory.mktemp("iceberg")),
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("delta")),
    }
    names = tuple(connector.name for connector in EXISTING)
    update = {"conf": conf, "connectors": names}
    stop_session()
    settings = base.model_copy(update={"spark": base.spark.model_copy(update=update)})
    yield build_session(settings, app_name="penstock-lake")
    stop_session()


def example() -> Any:
    spec = importlib.util.spec_from_file_location("lakemerge", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Copy:
    """A lake table that follows a table; each run merges what can be read and ends."""

    def __init__(self, spark: SparkSession, world: ServedWorld, folder: Path, name: str) -> None:
        self.spark = spark
        self.world = world
        self.checkpoint = folder / "checkpoint"
        self.format = name
        self.target = "copies" if name == "delta" else "lake.shop.copies"
        if name == "iceberg":
            spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.shop")
        spark.sql(f"CREATE TABLE {self.target} (id BIGINT, name STRING) USING {name}")

    def run(self) -> None:
        self.world.resolve()
        changes = self.spark.readStream.format("penstock").option("readChangeFeed", "true")
        frame = changes.options(**self.world.options(consumerId=f"copy-{self.format}")).load()
        merge = example().merge_into(self.target, ["id"], table_format=self.format)
        writer = frame.writeStream.foreachBatch(merge)
        query = writer.option("checkpointLocation", str(self.checkpoint)).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def forget_last_commit(self) -> None:
        """As after a crash between the MERGE of the last batch and Spark's note that it is done."""
        last = max((int(path.name), path) for path in (self.checkpoint / "commits").glob("[0-9]*"))[1]
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)

    def rows(self) -> dict[int, str]:
        found = self.spark.table(self.target).toArrow().to_pylist()
        assert len(found) == len({row["id"] for row in found})
        return {row["id"]: row["name"] for row in found}

    def commits(self) -> int:
        if self.format == "delta":
            return self.spark.sql(f"DESCRIBE HISTORY {self.target}").count()
        return self.spark.table(f"{self.target}.snapshots").count()


def row(number: int, name: str) -> dict[str, Any]:
    return item("integer", number, name)


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in ("delta", "iceberg")])
def test_a_lake_table_follows_its_source_and_a_replayed_batch_commits_nothing(
    lake: SparkSession, tmp_path: Path, name: str
):
    with ServedWorld(tmp_path / "world", item_table()) as world:
        world.commit(*(row(number, f"a{number}") for number in range(1, 6)))
        world.flush()
        copy = Copy(lake, world, tmp_path, name)
        copy.run()
        assert copy.rows() == {number: f"a{number}" for number in range(1, 6)}

        world.commit(row(1, "b1"), row(6, "b6"), delete=[(2,)])
        world.commit(row(1, "c1"), row(7, "c7"), delete=[(3,)])
        world.commit(row(3, "d3"), delete=[(7,), (4,)])
        copy.run()
        assert copy.rows() == {1: "c1", 3: "d3", 5: "a5", 6: "b6"}

        commits = copy.commits()
        copy.forget_last_commit()
        world.commit(row(8, "e8"), delete=[(5,)])
        copy.run()
        assert (copy.rows(), copy.commits()) == ({1: "c1", 3: "d3", 6: "b6", 8: "e8"}, commits + 1)


def test_the_guide_shows_the_code_that_is_tested():
    shown = EXAMPLE.read_text().partition("FEED_COLUMNS =")[2]
    assert shown in (ROOT / "docs" / "lakemerge.md").read_text()


@needs("kafka")
def test_a_session_has_the_connector_for_kafka(lake: SparkSession) -> None:
    topic = lake.read.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:1")
    assert topic.option("subscribe", "orders").load().columns[:4] == ["key", "value", "topic", "partition"]
    loader = lake.sparkContext._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    assert loader.loadClass("org.apache.kafka.clients.producer.KafkaProducer") is not None
    assert loader.loadClass("org.apache.commons.pool2.impl.GenericKeyedObjectPool") is not None
