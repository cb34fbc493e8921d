"""Tables, changes and snapshots by SQL alone: functions, temporary views and tables of the catalog."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import Invalid
from penstock.spark import register
from penstock.spark.errors import translate_spark_errors
from support.everytype import EVERY_ROW, EVERY_TYPE
from support.servedworld import ServedWorld
from support.tableworld import START


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedWorld]:
    with ServedWorld(tmp_path_factory.mktemp("sql"), EVERY_TYPE) as made:
        empty = dict.fromkeys(EVERY_ROW)
        made.commit(EVERY_ROW, {**empty, "id": 7}, {**EVERY_ROW, "id": 8})
        made.flush()
        made.commit({**EVERY_ROW, "id": 9, "tiny": 4}, delete=[(8,)])
        made.tick()
        made.resolve()
        yield made


@pytest.fixture
def sql(spark: SparkSession, world: ServedWorld) -> Iterator[SparkSession]:
    """A session whose configuration says where the event store is."""
    names = {f"spark.penstock.{name}": value for name, value in world.options().items() if name != "table"}
    for name, value in names.items():
        spark.conf.set(name, value)
    register(spark)
    yield spark
    for name in names:
        spark.conf.unset(name)
    register(spark)


def in_order(frame: DataFrame) -> pa.Table:
    keys = [name for name in ("_commit_version", "_change_type", "id") if name in frame.columns]
    return frame.toArrow().sort_by([(name, "ascending") for name in keys])


def test_functions_have_the_rows_and_types_of_the_reads(sql: SparkSession, world: ServedWorld):
    changes = sql.sql(f"SELECT * FROM penstock_changes('shop.items', {START + 1})")
    feed = world.feed(sql, startingVersion=START + 1)
    assert changes.schema == feed.schema
    assert in_order(changes).equals(in_order(feed))
    snapshot = sql.sql("SELECT * FROM penstock_snapshot('shop.items')")
    assert in_order(snapshot).equals(in_order(world.load(sql)))
    before = sql.sql(f"SELECT id FROM penstock_snapshot('shop.items', {START + 2}) WHERE id > 0")
    assert sorted(row["id"] for row in before.collect()) == [7, 8]
    assert sql.sql(f"SELECT * FROM penstock_changes('shop.items', {world.ts})").collect() == []


def test_a_function_refuses_what_is_no_constant_and_no_moment(sql: SparkSession):
    with (
        pytest.raises(Invalid, match="there is no snapshot at a Decimal; write penstock_snapshot"),
        translate_spark_errors(),
    ):
        sql.sql("SELECT * FROM penstock_snapshot('shop.items', 1.5)").collect()
    with pytest.raises(Invalid, match=r"there is no table shop\.nothing"), translate_spark_errors():
        sql.sql("SELECT * FROM penstock_snapshot('shop.nothing')").collect()


def test_a_view_is_read_like_any_table_and_a_table_is_refused(sql: SparkSession, world: ServedWorld):
    given = ", ".join(f"{name} '{value}'" for name, value in world.options(versionAsOf=START + 2).items())
    sql.sql(f"CREATE OR REPLACE TEMPORARY VIEW items_then USING penstock OPTIONS ({given})")
    found = sql.sql("SELECT id FROM items_then WHERE id > 0 UNION ALL SELECT -count(*) FROM items_then")
    assert sorted(row["id"] for row in found.collect()) == [-3, 7, 8]
    with pytest.raises(Invalid, match="Spark forgets the options of tables"), translate_spark_errors():
        sql.sql(f"CREATE TABLE items_now USING penstock OPTIONS ({given})")
    assert not sql.catalog.tableExists("items_now")
