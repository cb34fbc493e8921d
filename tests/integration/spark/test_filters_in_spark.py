"""The option `where` chooses rows as Spark's own filters do, and filters of Spark change no answer."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from penstock.errors import Invalid
from penstock.kv.cluster_ref import ClusterRef
from penstock.settings import Settings
from penstock.spark import register
from penstock.spark.errors import translate_spark_errors
from penstock.spark.source import PenstockDataSource
from penstock.tables import Catalog
from support.everytype import EVERY_ROW, EVERY_TYPE
from support.servedworld import ServedWorld
from support.tableworld import START
from support.warmstore import WarmStore

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
CONDITIONS = [
    "id = 7",
    "8 <= id and id < 10",
    "id between 8 and 9",
    "id in (7, 9, 1000) and (tiny is not null)",
    "tiny is null",
    "tiny <> 4",
    "tiny not in (4, -3)",
    "not (text_ <=> 'ü')",
    "big > 18446744073709551614",
    "price = 12.5",
    "price >= 2",
    "real_ >= 0 and real_ < 1.5e0",
    "day = DATE '2026-02-28'",
    "`at` > '2026-02-28 01:02:03'",
    "utc <= TIMESTAMP '2026-02-28 02:02:03+01:00'",
    "text_ like 'a%'",
    "text_ not like '%c'",
    "text_ like '%b%'",
    "raw = x'00ff'",
    "choice = 'b' and bits = 5 and year_ = 2026",
    "wide = '1.5000000000'",
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedWorld]:
    with ServedWorld(tmp_path_factory.mktemp("filters"), EVERY_TYPE) as made:
        empty = dict.fromkeys(EVERY_ROW)
        made.commit(EVERY_ROW, {**empty, "id": 7}, {**EVERY_ROW, "id": 8, "text_": "abc"})
        made.flush()
        made.commit({**EVERY_ROW, "id": 9, "tiny": 4, "price": 1, "at": datetime(2026, 3, 1)}, delete=[(8,)])
        made.commit({**EVERY_ROW, "id": 10, "text_": "abc"})
        made.tick()
        made.resolve()
        yield made


def ids_where(world: ServedWorld, condition: str, **options: Any) -> set[int]:
    """The rows of a read with the option, in this process."""
    source = PenstockDataSource(world.options(where=condition, **options))
    reader = source.reader(source.schema())
    return {
        row["id"] for part in reader.partitions() for rows in reader.read(part) for row in rows.to_pylist()
    }


def test_conditions_choose_the_rows_that_sparks_filters_choose(spark: SparkSession, world: ServedWorld):
    whole = spark.createDataFrame(world.load(spark).drop("span").toArrow())
    false = functions.lit(False)
    flags = [
        functions.coalesce(functions.expr(text), false).alias(str(at)) for at, text in enumerate(CONDITIONS)
    ]
    answers = whole.select("id", *flags).collect()
    for at, text in enumerate(CONDITIONS):
        expected = {row["id"] for row in answers if row[str(at)]}
        assert ids_where(world, text) == expected, text


def test_a_condition_chooses_rows_of_snapshots_changes_and_views(spark: SparkSession, world: ServedWorld):
    register(spark)
    assert [row["id"] for row in world.load(spark, where="id = 9", columns="id").collect()] == [9]
    ended = world.feed(spark, startingVersion=START + 1, where="_change_type = 'delete'")
    assert [row["id"] for row in ended.collect()] == [8]
    newest = f"_commit_version > {START + 2} and _commit_timestamp >= '2023-11-14 22:13:20' and id > 8"
    assert ids_where(world, newest, readChangeFeed="true", startingVersion=START + 1) == {9, 10}
    options = {**world.options(), "where": "text_ = 'abc'"}
    given = ", ".join(f"{name} '{value}'" for name, value in options.items() if name != "where")
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW abc USING penstock OPTIONS ({given}, `where` \"text_ = 'abc'\")"
    )
    found = spark.sql("SELECT id FROM abc WHERE id > 0 UNION ALL SELECT -count(*) FROM abc").collect()
    assert sorted(row["id"] for row in found) == [-1, 10]


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("nothing = 1", "option where names 'nothing', which is not read; there are id, tiny"),
        ("id = 7 or id = 9", "option where has 'OR'; it takes comparisons of a column with a constant"),
        ("id = tiny", "option where: column tiny is int8; compare it with a constant of that type"),
        ("day = 'tomorrow'", "option where: column day is date32"),
        ("tiny = 1000", "option where: column tiny is int8, which cannot be compared so"),
        ("id < 7.5", "option where: column id is int64, which cannot be compared so"),
        ("day = 5", "option where: column day is date32"),
        ("text_ like 'a_c'", "option where: LIKE takes a text with % before or after it"),
        ("span = '01:00:00'", "option where: column span is duration"),
        ("length(text_) = 1", "option where"),
        ("id =", "option where is no SQL predicate"),
    ],
)
def test_a_condition_that_cannot_be_taken_is_refused(world: ServedWorld, condition: str, message: str):
    with pytest.raises(Invalid, match=r"^option where") as refused:
        PenstockDataSource(world.options(where=condition)).schema()
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_stream_refuses_a_condition(spark: SparkSession, world: ServedWorld, tmp_path: Path):
    stream = spark.readStream.format("penstock").options(
        **world.options(readChangeFeed="true", where="id = 7")
    )
    query = stream.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(Invalid, match="option where is for batch reads"), translate_spark_errors():
        query.awaitTermination(60)
    query.stop()


class PushingSource(DataSource):
    """Two numbers, and a filter on them as Spark documents it."""

    @classmethod
    def name(cls) -> str:
        return "pushing"

    def schema(self) -> str:
        return "id long"

    def reader(self, schema: Any) -> DataSourceReader:
        class Reader(DataSourceReader):
            wanted: Any = None

            def pushFilters(self, filters: list[Any]) -> Iterator[Any]:
                for given in filters:
                    if type(given).__name__ == "EqualTo":
                        self.wanted = given.value
                    else:
                        yield given

            def read(self, _partition: InputPartition) -> Iterator[tuple[int]]:
                yield from ((number,) for number in (1, 2) if self.wanted in {None, number})

        return Reader()


def test_spark_mixes_up_pushed_filters_and_penstock_takes_none(spark: SparkSession, world: ServedWorld):
    """Once Spark counts two rows here, `pushFilters` can be implemented: see ADR 91."""
    register(spark)
    spark.conf.set(PUSHDOWN, "true")
    try:
        spark.dataSource.register(PushingSource)
        mixed = spark.read.format("pushing").load()
        assert (mixed.where("id = 1").count(), mixed.count()) == (1, 1)
        ours = world.load(spark)
        counts = [ours.where("id = 7").count(), ours.count()]
        both = ours.where("id = 7").unionAll(ours.where("id = 9"))
        assert (counts, sorted(row["id"] for row in both.collect())) == ([1, 4], [7, 9])
    finally:
        spark.conf.unset(PUSHDOWN)


def test_a_condition_bounds_a_scan_of_the_cluster(tmp_path: Path):
    with WarmStore.start(tmp_path / "store", stores=1) as store:
        cluster = ClusterRef.of(Settings(pd_addrs=(store.pd_addr,)))
        catalog = Catalog(cluster.client())
        catalog.create_database("shop")
        catalog.create_table("shop.items", [("id", "bigint primary key"), ("n", "int")])
        catalog.table("shop.items").insert([{"id": number, "n": number % 3} for number in range(20)])
        options = {"from": "kv", "table": "shop.items", "pdAddrs": store.pd_addr}
        source = PenstockDataSource({**options, "where": "id >= 15 and n = 0"})
        reader = source.reader(source.schema())
        found = [
            row for part in reader.partitions() for rows in reader.read(part) for row in rows.to_pylist()
        ]
        assert found == [{"id": 15, "n": 0}, {"id": 18, "n": 0}]
        cluster.close()
