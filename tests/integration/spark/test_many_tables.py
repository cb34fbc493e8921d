"""A stream over many tables on Spark: its rows, its batches by table, and what people get wrong."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.clock import SYSTEM
from penstock.errors import Invalid, Unavailable
from penstock.spark import by_table, register
from penstock.spark.errors import translate_spark_errors
from support.everytype import EVERY_CELL, EVERY_ROW, EVERY_TYPE
from support.itemtables import item
from support.servedworld import ServedDatabase, ServedWorld

DEADLINE_S = 180


def row(number: int, name: str, **more: Any) -> dict[str, Any]:
    return item("integer", number, name, **more)


pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServedDatabase]:
    """Two tables, one with partitions, and one that no pattern below matches."""
    with ServedDatabase(tmp_path / "world") as made:
        one = made.create_table("shop.one", "integer")
        two = made.create_table("shop.two", "integer", 2)
        other = made.create_table("shop.log_x", "integer")
        made.commit((one, [], [row(1, "a")]), (two, [], [row(2, "b")]), (other, [], [row(3, "c")]))
        made.resolve_all()
        yield made


def options(world: ServedDatabase | ServedWorld, **more: Any) -> dict[str, str]:
    given = world.options(tables="shop.*, !shop.log_*", **more)
    return {name: value for name, value in given.items() if name != "table"}


def planners() -> int:
    """Processes below this one that plan streams."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            parents[int(path.name)] = int(fields[1]), (path / "cmdline").read_bytes()

    def is_below(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid][0]
        return pid == os.getpid()

    return sum(
        b"python_streaming_source_runner" in command and is_below(pid)
        for pid, (_, command) in parents.items()
    )


class Batches:
    """The batches of a query that runs until a test ends it, by table."""

    def __init__(self, spark: SparkSession, world: ServedDatabase, checkpoint: Path) -> None:
        self.taken: list[dict[str, list[tuple[Any, ...]]]] = []
        frame = spark.readStream.format("penstock").options(**options(world)).load()
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint))
        self.query = writer.start()

    def _take(self, batch: DataFrame, _number: int) -> None:
        self.taken.append(
            {
                name: sorted(
                    tuple(cells.values())
                    for cells in frame.drop("_commit_version", "_commit_timestamp").toArrow().to_pylist()
                )
                for name, frame in by_table(batch.persist()).items()
            }
        )
        batch.unpersist()

    def wait_for(self, count: int) -> list[dict[str, list[tuple[Any, ...]]]]:
        deadline = SYSTEM.monotonic() + DEADLINE_S
        while len(self.taken) < count:
            assert self.query.isActive, self.query.exception()
            assert SYSTEM.monotonic() < deadline, "the batches do not come"
            SYSTEM.pause(0.05)
        return self.taken


def test_batches_hold_whole_transactions_end_at_ddls_and_split_into_typed_frames(
    spark: SparkSession, world: ServedDatabase, tmp_path: Path
):
    batches = Batches(spark, world, tmp_path / "checkpoint")
    try:
        batches.wait_for(1)
        assert planners() == 1, "one process plans all tables"
        one, two = world.tables["shop.one"], world.tables["shop.two"]
        world.commit((one, [], [row(1, "a2")]), (two, [], [row(5, "b5")]))
        world.add_column(one, "extra", "decimal(5,2)")
        world.commit((one, [], [row(6, "a6", extra=1.5)]))
        world.truncate_table(two)
        new = world.create_table("shop.new", "composite")
        world.commit((two, [], [row(7, "b7")]), (new, [], [{"id": 1, "part": "p", "name": "n"}]))
        world.rename_table(new, "shop.newer")
        world.drop_table(one)
        world.resolve_all()
        assert batches.wait_for(6) == [
            {"shop.one": [(1, "a", "insert")], "shop.two": [(2, "b", "insert")]},
            {
                "shop.one": [(1, "a", "update_preimage"), (1, "a2", "update_postimage")],
                "shop.two": [(5, "b5", "insert")],
            },
            {"shop.one": [(6, "a6", Decimal("1.50"), "insert")]},
            {"shop.two": [(None, None, "truncate")]},
            {"shop.new": [(1, "p", "n", "insert")], "shop.two": [(7, "b7", "insert")]},
            {"shop.new": [(None, None, None, "drop")], "shop.newer": [(1, "p", "n", "insert")]},
        ]
    finally:
        batches.query.stop()


def test_frames_by_table_have_the_types_and_values_of_the_tables_own_change_feed(
    spark: SparkSession, tmp_path: Path
):
    with ServedWorld(tmp_path / "world", EVERY_TYPE) as world:
        since = world.ts + 1
        world.commit(EVERY_ROW, {**dict.fromkeys(EVERY_ROW), "id": 7})
        world.flush()
        world.commit({**EVERY_ROW, "text_": "another"}, delete=[(7,)])
        world.resolve()
        own = world.feed(spark, startingVersion=since)
        read = spark.read.format("penstock").options(**options(world, startingVersion=since)).load()
        assert dict(read.dtypes)["payload"] == "variant"
        (typed,) = by_table(read).values()
        assert typed.dtypes == own.dtypes
        order = [("_commit_version", "ascending"), ("_change_type", "ascending"), ("id", "ascending")]
        found, expected = (frame.toArrow().sort_by(order) for frame in (typed, own))
        assert found.equals(expected)
        assert found.num_rows == 5
        assert {name: found.to_pylist()[0][name] for name in EVERY_CELL} == EVERY_CELL


def test_a_range_with_ddls_is_read_at_once_and_split_only_where_one_schema_is(
    spark: SparkSession, world: ServedDatabase
):
    since = world.ts + 1
    one, two = world.tables["shop.one"], world.tables["shop.two"]
    world.commit((one, [], [row(10, "a")]))
    ddl_ts = world.ts + 1
    world.add_column(one, "extra", "int default 3")
    world.commit((one, [], [row(11, "a", extra=4)]), (two, [], [row(12, "b")]))
    end = world.resolve_all()

    def read(**more: Any) -> DataFrame:
        return spark.read.format("penstock").options(**options(world, **more)).load()

    whole = read(startingVersion=since, endingVersion=end)
    rows = whole.selectExpr("_table", "variant_get(payload, '$.id', 'int') id").collect()
    assert sorted(map(tuple, rows)) == [("shop.one", 10), ("shop.one", 11), ("shop.two", 12)]
    with pytest.raises(Invalid, match=r"shop\.one has two schemas in this frame; read up to its DDL"):
        by_table(whole)
    later = by_table(read(startingVersion=ddl_ts + 1, endingVersion=end))
    assert {name: frame.columns[:3] for name, frame in later.items()} == {
        "shop.one": ["id", "name", "extra"],
        "shop.two": ["id", "name", "_change_type"],
    }
    snapshot = by_table(read(startingVersion=0))
    assert sorted(each["extra"] for each in snapshot["shop.one"].collect()) == [3, 3, 4]


@pytest.mark.parametrize(
    ("more", "kind", "words"),
    [
        ({"flightAddr": "127.0.0.1:1"}, Unavailable, "needs a capture, and none answers; start one, or give"),
        ({"startingVersion": None}, Invalid, "no start is given for the changes; give startingVersion"),
        ({"table": "shop.one"}, Invalid, "options tables and table exclude each other; give one of them"),
        ({"tables": "!shop.one"}, Invalid, "option tables selects no table; give patterns, for instance"),
        ({"tables": "shop"}, Invalid, "'shop' selects no tables; write database.table"),
        ({"endingVersion": 1 << 62}, Unavailable, "the tables can be read up to .* wait, or end earlier"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_what_people_get_wrong_is_one_line(
    spark: SparkSession, world: ServedDatabase, more: dict[str, Any], kind: type[Exception], words: str
):
    given = {**options(world), "startingVersion": 1, **more}
    wanted = {name: str(value) for name, value in given.items() if value is not None}
    with pytest.raises(kind, match=words) as caught, translate_spark_errors():
        spark.read.format("penstock").options(**wanted).load().count()
    assert "\n" not in str(caught.value)


def test_another_frame_is_not_split(spark: SparkSession):
    with pytest.raises(
        Invalid, match="has no column _change_type; by_table is for streams with option tables"
    ):
        by_table(spark.range(3))


def test_the_example_of_the_guide_copies_every_table(
    spark: SparkSession, world: ServedDatabase, tmp_path: Path
):
    page = Path(__file__).parents[3] / "docs" / "streaming.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    (example,) = (block for block in blocks if "by_table" in block)
    assert 'folder = "s3://bucket/shop"' in example
    given = options(world)
    for name in ("storage", "flightAddr"):
        spark.conf.set(f"spark.penstock.{name}", given[name])
    register(spark)
    names: dict[str, Any] = {"spark": spark}
    try:
        exec(example.replace("s3://bucket/shop", str(tmp_path)), names)
        names["query"].processAllAvailable()
        names["query"].stop()
    finally:
        for name in ("storage", "flightAddr"):
            spark.conf.unset(f"spark.penstock.{name}")
        register(spark)
    copies = {
        name: pq.read_table(tmp_path / name).select(["id", "name"]).to_pylist()
        for name in ("shop.one", "shop.two")
    }
    assert copies == {"shop.one": [row(1, "a")], "shop.two": [row(2, "b")]}
