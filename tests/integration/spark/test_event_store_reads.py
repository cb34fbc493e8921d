"""Snapshots and changes of the event store through the data source, held against the model and the handle."""

import random  # noqa: TID251 - seeded, so that every run is the same
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.clock import physical_ms
from penstock.errors import Invalid, PenstockError, StaleRead, Unavailable
from penstock.spark import changes_view, register
from penstock.spark.errors import translate_spark_errors
from penstock.spark.source import PenstockDataSource
from penstock.tables.alter import add_column
from penstock.tables.define import define_table
from support.chosenmerge import begin_merge
from support.everytype import EVERY_CELL, EVERY_ROW, EVERY_TYPE
from support.itemtables import TABLES, item, item_table
from support.servedworld import ServedDatabase, ServedWorld
from support.tableworld import START, gather_rows

FEED = ["_change_type", "_commit_version", "_commit_timestamp"]


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return frame.toArrow().to_pylist()


def ids(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


def model(world: ServedWorld, ts: int) -> list[dict[str, Any]]:
    return sorted(world.versions.at(ts).values(), key=lambda row: row["id"])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedWorld]:
    """A table with flushed rows, deleted ones, a column that was added, and rows that are not flushed."""
    with ServedWorld(tmp_path_factory.mktemp("world"), item_table()) as made:
        made.commit(*(item("integer", number, f"a{number}") for number in range(1, 9)))
        made.flush()
        made.commit(item("integer", 2, "b2"), delete=[(3,)])
        made.flush()
        made.alter(add_column(made.versions.table, "extra", "varchar(20) default 'none'"))
        made.commit(item("integer", 9, "c9", extra="more"), delete=[(1,)])
        made.flush()
        made.commit(item("integer", 4, "d4", extra="new"), item("integer", 10, "d10", extra=None))
        made.commit(delete=[(5,)])
        made.tick()
        made.resolve()
        yield made


def tasks_begun(spark: SparkSession) -> dict[int, int]:
    """How many tasks of ours each Python process of Spark has begun. They are asked in turn."""

    def ask(batches):
        import os

        from penstock.clock import SYSTEM
        from penstock.spark import tasks

        for _ in batches:
            SYSTEM.pause(0.05)  # so that all are busy
            yield pa.record_batch({"pid": [os.getpid()], "begun": [tasks._tasks_begun]})

    answers = spark.range(0, 16, 1, 16).mapInArrow(ask, "pid long, begun long").collect()
    return dict(answers)


@pytest.mark.parametrize("options", [{}, {"readChangeFeed": "true", "startingVersion": START}])
def test_reads_tell_their_processes_that_a_task_begins(
    spark: SparkSession, world: ServedWorld, options: dict[str, Any]
):
    frame = world.load(spark, **options)
    before = tasks_begun(spark)
    frame.collect()
    assert any(begun > before.get(pid, 0) for pid, begun in tasks_begun(spark).items())


def test_a_snapshot_is_the_newest_that_can_be_read(spark: SparkSession, world: ServedWorld):
    found = world.load(spark)
    assert found.columns == ["id", "name", "extra"]
    assert sorted(rows(found), key=lambda row: row["id"]) == model(world, world.ts)
    assert sorted(rows(found), key=lambda row: row["id"]) == model(world, world.ts)  # evaluated again


def test_a_snapshot_of_any_moment_has_the_rows_and_columns_of_then(spark: SparkSession, world: ServedWorld):
    for ts in (START + 2, START + 4, START + 8, START + 10):
        found = world.load(spark, versionAsOf=ts)
        assert found.columns == world.columns(ts)
        assert sorted(rows(found), key=lambda row: row["id"]) == model(world, ts)


def test_without_its_capture_a_table_is_read_as_far_as_it_is_flushed(spark: SparkSession, world: ServedWorld):
    flushed = world.manifest().flushed_ts
    found = world.load(spark, flightAddr=None, pdAddrs="127.0.0.1:1")
    assert sorted(rows(found), key=lambda row: row["id"]) == model(world, flushed)


def test_a_moment_is_given_as_a_time_too(spark: SparkSession, tmp_path: Path):
    with ServedWorld(tmp_path, item_table()) as made:
        made.commit(item("integer", 1, "a"))
        before = made.ts
        made.commit(item("integer", 2, "b"), at=before + (5000 << 18))
        made.ts = before + (5000 << 18)
        made.flush()
        at = timestamp(before + (2000 << 18)).isoformat()
        assert ids(made.load(spark, timestampAsOf=at)) == [1]
        changed = made.feed(spark, startingTimestamp=at)
        assert [row["id"] for row in rows(changed)] == [2]


def test_columns_and_ranges_are_chosen_by_options(spark: SparkSession, world: ServedWorld):
    found = world.load(spark, columns="NAME, _commit_ts", rangeFrom=2, rangeTo=10)
    assert found.columns == ["name", "_commit_ts"]
    expected = [row["name"] for row in model(world, world.ts) if 2 <= row["id"] < 10]
    assert sorted(row.name for row in found.collect()) == sorted(expected)


def test_a_user_given_schema_is_checked_and_taken(spark: SparkSession, world: ServedWorld):
    reader = spark.read.format("penstock").options(**world.options())
    assert sorted(row.id for row in reader.schema("id long").load().collect()) == [
        row["id"] for row in model(world, world.ts)
    ]
    with (
        pytest.raises(Invalid, match=r"column id of shop\.items is bigint, not string"),
        translate_spark_errors(),
    ):
        reader.schema("id string").load().collect()


def test_every_type_arrives_as_it_was_written(spark: SparkSession, tmp_path: Path):
    with ServedWorld(tmp_path, EVERY_TYPE) as made:
        made.commit(EVERY_ROW)
        made.flush()
        made.commit({**EVERY_ROW, "id": 2}, dict.fromkeys(EVERY_ROW) | {"id": 3})
        made.resolve()
        expected = [EVERY_CELL, {**EVERY_CELL, "id": 2}, dict.fromkeys(EVERY_CELL) | {"id": 3}]
        assert sorted(rows(made.load(spark)), key=lambda row: row["id"]) == expected
        told = made.feed(spark, startingVersion=2).drop(*FEED)
        assert sorted(rows(told), key=lambda row: row["id"]) == expected


def test_json_is_variant_where_that_is_asked_for_with_the_types_of_spark(spark: SparkSession, tmp_path: Path):
    documents = ['{"b": [1, 2.50, 1e2, null], "a": {"ü": "x"}}', "[]", "true", "18446744073709551615", None]
    table = define_table("items", [("id", "bigint primary key"), ("doc", "json"), ("note", "text")])
    with ServedWorld(tmp_path, replace(table, id=item_table().id)) as made:
        made.commit(*({"id": key, "doc": doc, "note": doc} for key, doc in enumerate(documents[:3])))
        made.flush()
        made.commit(*({"id": key, "doc": doc, "note": doc} for key, doc in enumerate(documents)))
        made.resolve()
        chosen = {"jsonAsVariant": "true", "columns": "id,doc"}
        frames = [
            made.load(spark, **chosen),
            made.load(spark, **chosen, where="doc IS NOT NULL"),
            made.feed(spark, startingVersion=2, **chosen).where("_change_type <> 'update_preimage'"),
            spark.read.schema("id long, doc variant").format("penstock").options(**made.options()).load(),
        ]
        texts = made.load(spark, columns="id,doc")
        assert texts.schema["doc"].dataType.simpleString() == "string"
        shown = ["id", "to_json(doc) AS doc", "schema_of_variant(doc) AS kind"]
        known = {
            tuple(row)
            for row in texts.selectExpr("id", "parse_json(doc) AS doc").selectExpr(*shown).collect()
        }
        for number, frame in enumerate(frames):
            assert frame.schema["doc"].dataType.simpleString() == "variant"
            found = {tuple(row) for row in frame.selectExpr(*shown).collect()}
            assert found == (known if number != 1 else {row for row in known if row[1] is not None})
        with (
            pytest.raises(Invalid, match=r"column doc is struct.* cannot be compared so"),
            translate_spark_errors(),
        ):
            made.load(spark, **chosen, where="doc = 'x'")
        wrong = spark.read.schema("id long, note variant").format("penstock").options(**made.options())
        with (
            pytest.raises(Invalid, match=r"column note of .* is string, not variant"),
            translate_spark_errors(),
        ):
            wrong.load().collect()


def test_a_table_is_read_by_as_many_tasks_as_its_objects_allow(spark: SparkSession, world: ServedWorld):
    assert world.load(spark).rdd.getNumPartitions() == 1
    parts = world.load(spark, partitionBytes=1)
    assert parts.rdd.getNumPartitions() > 2
    assert ids(parts) == [row["id"] for row in model(world, world.ts)]


def test_the_partitions_of_a_table_are_read_together(spark: SparkSession, tmp_path: Path):
    with ServedWorld(tmp_path, item_table(table_id=1, partitions=(2, 3)), partitions=(2, 3)) as made:
        made.commit(item("integer", 1, "a"), item("integer", 2, "a"))
        made.flush()
        made.commit(item("integer", 3, "b"), into=1)
        made.commit(item("integer", 1, "c"), into=1)
        made.resolve()
        assert sorted(rows(made.load(spark)), key=lambda row: row["id"]) == model(made, made.ts)
        assert rows(made.feed(spark, startingVersion=2)) == expected_feed(made, 1, made.ts)


def expected_feed(world: ServedWorld, from_ts: int, to_ts: int) -> list[dict[str, Any]]:
    """What the changes handle gives, row by row: the rows that end before those that begin."""
    names = world.columns(to_ts)
    found = []
    for batch in world.changes(from_ts, to_ts, columns=["_start_ts", "_update", *names], **ALL):
        for kind, side in (("ends", batch.tombstones), ("begins", batch.data)):
            for row in side.to_pylist():
                shown = row["_old"] if kind == "ends" else row
                found.append((row["_commit_ts"], row["_start_ts"], kind == "begins", row["_update"], shown))
    found.sort(key=lambda change: change[:3])
    types = {(0, 0): "delete", (0, 1): "update_preimage", (1, 0): "insert", (1, 1): "update_postimage"}
    return [
        {
            **{name: shown.get(name, "none") for name in names if name not in {"_handle"}},
            "_change_type": types[begins, update],
            "_commit_version": commit_ts,
            "_commit_timestamp": timestamp(commit_ts),
        }
        for commit_ts, _, begins, update, shown in found
    ]


ALL: dict[str, Any] = {"coalesce": False, "old_rows": True}


def timestamp(ts: int) -> Any:
    return pa.scalar(physical_ms(ts), pa.timestamp("ms", "UTC")).as_py()


def history(world: ServedWorld, kind: str, mix: random.Random) -> None:
    """Transactions, flushes and one change of the schema, as a seed has them."""
    for step in range(14):
        numbers = mix.sample(range(1, 9), 3)
        made = [item(kind, number, f"{number} at {step}") for number in numbers]
        if step == 7:
            world.alter(add_column(world.versions.table, "extra", "varchar(20) default 'none'"))
        gone = [key for key in map(world.key, made[2:]) if world.versions.last(key) is not None]
        world.commit(*({**row, "extra": "x"} if step >= 7 else row for row in made[:2]), delete=gone)
        if mix.random() < 0.4:
            world.flush()
    world.tick()
    world.resolve()


@pytest.mark.parametrize(("seed", "kind"), list(enumerate(sorted(TABLES))))
def test_the_change_feed_tells_what_the_handle_tells(
    spark: SparkSession, tmp_path: Path, seed: int, kind: str
):
    mix = random.Random(seed)
    with ServedWorld(tmp_path, item_table(kind)) as made:
        history(made, kind, mix)
        moments = list(made.moments())
        first, last = sorted(mix.sample(moments, 2))
        for start, end in ((2, made.ts), (first, last)):
            found = made.feed(spark, startingVersion=start, endingVersion=end)
            assert rows(found) == expected_feed(made, start - 1, end)
        snapshot = made.load(spark, columns=",".join(made.columns(made.ts))).toArrow()
        assert gather_rows(snapshot.to_batches(), made.versions.table) == made.versions.at(made.ts)


def test_changes_from_nothing_are_the_rows_at_the_end(spark: SparkSession, world: ServedWorld):
    found = rows(world.feed(spark, startingVersion=0))
    assert {row["_change_type"] for row in found} == {"insert"}
    shown = [{name: row[name] for name in ("id", "name", "extra")} for row in found]
    assert sorted(shown, key=lambda row: row["id"]) == model(world, world.ts)
    within = world.feed(spark, startingVersion=0, rangeFrom=4, rangeTo=9)
    assert ids(within) == [row["id"] for row in model(world, world.ts) if 4 <= row["id"] < 9]


def test_a_feed_ends_with_the_columns_and_the_range_that_are_asked_for(
    spark: SparkSession, world: ServedWorld
):
    found = world.feed(spark, startingVersion=2, columns="id", rangeFrom=3, rangeTo=5, partitionBytes=1)
    assert found.columns == ["id", *FEED]
    expected = [row for row in expected_feed(world, 1, world.ts) if 3 <= row["id"] < 5]
    told = rows(found)
    assert [(row["id"], row["_change_type"]) for row in told] == [
        (row["id"], row["_change_type"]) for row in expected
    ]
    assert told == rows(found)  # evaluated again


def test_a_feed_that_begins_where_history_ends_is_empty(spark: SparkSession, world: ServedWorld):
    assert world.feed(spark, startingVersion=world.ts + 1).count() == 0


@pytest.fixture(scope="module")
def configured(spark: SparkSession, world: ServedWorld) -> SparkSession:
    """A session whose configuration says where tables are."""
    session = spark.newSession()
    session.conf.set("spark.penstock.storage", world.storage.url)
    session.conf.set("spark.penstock.flightAddr", world.flight.addr)
    register(session)
    return session


def test_the_table_function_gives_the_change_feed(configured: SparkSession, world: ServedWorld):
    last = START + 8
    found = configured.sql(f"select * from penstock_changes('shop.items', 2, {last})")
    assert rows(found) == expected_feed(world, 1, last)
    newest = configured.sql("select count(*) from penstock_changes('shop.items', '2000-01-01')").first()
    assert newest[0] == len(expected_feed(world, 1, world.ts))


def test_a_feed_in_which_rows_were_replaced_names_the_first_version_that_can_be_told(
    spark: SparkSession, tmp_path: Path
):
    with ServedDatabase(tmp_path) as made:
        table = made.create_table("shop.items", "integer", 2)
        made.commit((table, [], [item("integer", 1, "a")]))
        start = made.resolve_all() + 1
        made.truncate_partitions(table, 0, 1)
        first = made.ts + 1
        made.commit((table, [], [item("integer", 2, "b")]))
        made.resolve_all()
        session = spark.newSession()
        session.conf.set("spark.penstock.storage", made.storage.url)
        session.conf.set("spark.penstock.flightAddr", made.flight.addr)
        register(session)

        def feed(version: int) -> DataFrame:
            reader = session.read.format("penstock").option("readChangeFeed", "true")
            return reader.option("table", "shop.items").option("startingVersion", version).load()

        def function(version: int) -> DataFrame:
            return session.sql(f"select * from penstock_changes('shop.items', {version})")

        for read in (feed, function):
            with pytest.raises(StaleRead) as caught, translate_spark_errors():
                read(start).collect()
            assert (caught.value.table, caught.value.oldest_ts) == ("shop.items", first)
            assert caught.value.replaced
            assert ids(read(first)) == [2]


@pytest.fixture
def far_away(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """A session in one time zone, whose Python processes run in another."""
    monkeypatch.setitem(spark.sparkContext.environment, "TZ", "America/New_York")
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")

    def offset(_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from datetime import datetime

        local = datetime.fromtimestamp(0).astimezone()
        yield pa.record_batch({"hours": [int(local.utcoffset().total_seconds()) // 3600]})

    assert session.range(1).mapInArrow(offset, "hours long").first()[0] == -5
    return session


def test_moments_mean_the_same_wherever_sessions_and_python_processes_run(
    far_away: SparkSession, tmp_path: Path
):
    with ServedWorld(tmp_path, EVERY_TYPE) as made:
        made.commit(EVERY_ROW)
        before = made.ts
        made.commit({**EVERY_ROW, "id": 2}, at=before + (5000 << 18))
        made.ts = before + (5000 << 18)
        made.flush()
        at = timestamp(before + (2000 << 18))
        utc, tokyo = (at.astimezone(ZoneInfo(zone)).replace(tzinfo=None) for zone in ("UTC", "Asia/Tokyo"))
        far_away.conf.set("spark.penstock.storage", made.storage.url)
        far_away.conf.set("spark.penstock.flightAddr", made.flight.addr)
        register(far_away)
        feed = rows(made.feed(far_away, startingTimestamp=utc.isoformat(" ")))
        assert [row["id"] for row in feed] == [2]
        for moment in (
            f"timestamp '{tokyo}'",
            f"timestamp '{utc}+00:00'",
            f"timestamp_ntz '{utc}'",
            f"'{utc}'",
            f"'{at.astimezone(ZoneInfo('Asia/Tokyo')).isoformat()}'",
        ):
            found = far_away.sql(f"select * from penstock_changes('shop.items', {moment})")
            assert rows(found) == feed, moment
            ended = far_away.sql(f"select id from penstock_changes('shop.items', 2, {moment})")
            assert [row.id for row in ended.collect()] == [EVERY_ROW["id"]], moment
        everything = far_away.sql("select count(*) from penstock_changes('shop.items', date '2023-11-14')")
        assert everything.first()[0] == 2
        for start in (at, utc):
            assert changes_view(far_away, "shop.items", start).toArrow().to_pylist() == feed
        stream = far_away.readStream.format("penstock").option("readChangeFeed", "true")
        taken: list[int] = []
        query = (
            stream.options(**made.options(startingTimestamp=utc.isoformat()))
            .load()
            .writeStream.foreachBatch(lambda batch, _: taken.extend(row.id for row in batch.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        assert taken == [2]


def test_the_table_function_refuses_what_is_no_moment_in_one_line(configured: SparkSession):
    with pytest.raises(Invalid, match="begin or end at a Decimal") as caught, translate_spark_errors():
        configured.sql("select * from penstock_changes('shop.items', 1.5)")
    assert "\n" not in str(caught.value)


def test_a_view_of_changes_is_read_with_sql(configured: SparkSession, world: ServedWorld):
    changes_view(configured, "shop.items", START + 3)
    found = rows(configured.sql("select * from items_changes where _change_type = 'delete'"))
    deleted = [row for row in expected_feed(world, START + 2, world.ts) if row["_change_type"] == "delete"]
    assert found == deleted
    configured.sql(
        "create temporary view first_items using penstock"
        " options (table 'shop.items', readChangeFeed 'true', startingVersion '2', endingVersion '"
        f"{START + 2}')"
    )
    assert configured.table("first_items").count() == 8


def test_a_view_needs_a_name(configured: SparkSession):
    with pytest.raises(Invalid, match="is not a name for a view"):
        changes_view(configured, "shop.items", 2, name="my view")


def test_the_examples_of_the_documentation_run(spark: SparkSession, tmp_path: Path):
    second = 1000 << 18
    with ServedWorld(tmp_path, item_table()) as made:
        for number in (1, 2, 3):
            made.tick(second)
            made.commit(item("integer", number, "a"), item("integer", 9, f"{number}"), at=made.ts)
        made.flush()
        session = spark.newSession()
        session.conf.set("spark.penstock.storage", made.storage.url)
        session.conf.set("spark.penstock.flightAddr", made.flight.addr)
        text = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
        known: dict[str, Any] = {"spark": session}
        for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(example, known)
        assert ids(known["before"]) == [1, 9]
        assert known["changes"].count() == 5
        assert session.table("item_history").count() == 8


FUTURE = (1 << 62) - 1
UNREACHABLE = {
    "storage": "s3://bucket/events",
    "storageOptions.endpoint": "http://127.0.0.1:1",
    "storageOptions.allow_http": "true",
    "storageOptions.access_key_id": "none",
    "storageOptions.secret_access_key": "none",
}


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"table": "shop.itmes"}, Invalid, r"no table shop\.itmes on .*; there is shop\.items"),
        ({"storage": "file:///nowhere/at/all"}, Invalid, "not a folder on .*; correct option storage"),
        (UNREACHABLE, Unavailable, "cannot list .* at s3://bucket/events"),
        ({"columns": "id, nam"}, Invalid, "no column 'nam'; it has id, name, extra"),
        ({"rangeFrom": 1 << 70}, Invalid, "rangeFrom is not a handle"),
        ({"versionAsOf": FUTURE}, Invalid, "can be read up to .*, which is in the future"),
        ({"versionAsOf": START + 1000}, Unavailable, "can be read up to .*; wait"),
        ({"versionAsOf": START + 1000, "flightAddr": None}, Unavailable, "give pdAddrs or flightAddr"),
        ({"flightAddr": "127.0.0.1:1"}, Unavailable, r"capture at 127\.0\.0\.1:1"),
        ({"readChangeFeed": "true"}, Invalid, "no start is given"),
        ({"readChangeFeed": "true", "startingVersion": START + 1000}, Unavailable, "wait, or start earlier"),
        ({"readChangeFeed": "true", "startingVersion": 2, "columns": "nam"}, Invalid, "no column 'nam'"),
    ],
)
def test_a_mistake_is_told_while_the_read_is_planned(
    world: ServedWorld, options: dict[str, Any], kind: type[PenstockError], said: str
):
    source = PenstockDataSource(world.options(**{"pdAddrs": "127.0.0.1:1", **options}))
    with pytest.raises(kind, match=said) as caught:
        source.reader(source.schema()).partitions()
    assert "\n" not in str(caught.value)


def test_a_mistake_reaches_the_user_of_spark_in_one_line(spark: SparkSession, world: ServedWorld):
    with pytest.raises(Invalid, match=r"there is shop\.items") as caught, translate_spark_errors():
        world.load(spark, table="shop.itmes")
    assert "\n" not in str(caught.value)


def test_history_that_is_gone_is_told_with_the_oldest_version_that_can_be_read(
    spark: SparkSession, tmp_path: Path
):
    with ServedWorld(tmp_path, item_table(), upkeep={"history_ttl_s": 0}) as made:
        made.commit(item("integer", 1, "a"))
        made.flush()
        made.commit(item("integer", 1, "b"))
        made.flush()
        assert begin_merge(made, tmp_path / "merge").commit(made)
        made.tick()
        made.flush()
        made.store.collect(made.ids[0])
        oldest = made.manifest().oldest_ts
        assert oldest
        with pytest.raises(StaleRead, match=r"history of shop\.items") as caught, translate_spark_errors():
            made.feed(spark, startingVersion=2).collect()
        assert caught.value.oldest_ts == oldest + 1
        assert made.feed(spark, startingVersion=caught.value.oldest_ts).count() == 0
        with pytest.raises(StaleRead), translate_spark_errors():
            made.load(spark, versionAsOf=oldest - 1)


def test_a_folder_that_executors_do_not_have_is_told_with_what_to_do(spark: SparkSession, tmp_path: Path):
    with ServedWorld(tmp_path, item_table()) as made:
        made.commit(item("integer", 1, "a"))
        made.flush()
        source = PenstockDataSource(made.options())
        reader = source.reader(source.schema())
        (part,) = reader.partitions()
        shutil.move(tmp_path / "events", tmp_path / "elsewhere")
        with pytest.raises(Unavailable, match="where an executor runs; mount it on every worker"):
            list(reader.read(part))
        shutil.move(tmp_path / "elsewhere", tmp_path / "events")
