"""Streams through the data source: what each batch has, over restarts, crashes and changes of schema."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.errors import Invalid, StaleRead
from penstock.eventstore.history_holds import HistoryHolds
from penstock.spark.errors import translate_spark_errors
from penstock.spark.options import parse_options
from penstock.spark.stream import STREAM_READER
from penstock.spark.tasks import Parallelism
from penstock.tables.alter import add_column
from support.feedworld import FeedWorld, WorldTable
from support.itemtables import item, item_table
from support.servedworld import ServedDatabase, ServedWorld
from support.spark import HAS_ADMISSION, latest_offset

Change = tuple[int, str, int, str]
DEADLINE_S = 60


def row(number: int, name: str, **more: Any) -> dict[str, Any]:
    return item("integer", number, name, **more)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServedWorld]:
    """A table with five rows, three of them in objects."""
    with ServedWorld(tmp_path / "world", item_table()) as made:
        made.commit(*(row(number, f"a{number}") for number in (1, 2, 3)))
        made.flush()
        made.commit(row(4, "a4"))
        made.commit(row(5, "a5"))
        made.resolve()
        yield made


class Stream:
    """A query with its checkpoint, run whenever a test says so. Collects the rows of each batch."""

    def __init__(self, spark: SparkSession, world: ServedWorld, checkpoint: Path, **options: Any) -> None:
        self.spark = spark
        self.world = world
        self.checkpoint = checkpoint
        self.options = options
        self.schema = ""
        self.batches: dict[int, list[Change]] = {}

    def load(self) -> DataFrame:
        reader = self.spark.readStream.format("penstock").option("readChangeFeed", "true")
        if self.schema:
            reader = reader.schema(self.schema)
        return reader.options(**self.world.options(**self.options)).load()

    def start(self, frame: DataFrame | None = None, **trigger: Any):
        def take(batch: DataFrame, number: int) -> None:
            columns = ["_commit_version", "_change_type", "id", "name"]
            self.batches[number] = [
                tuple(each.values()) for each in batch.select(columns).toArrow().to_pylist()
            ]

        writer = (frame or self.load()).writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return (writer.trigger(**trigger) if trigger else writer).start()

    def run(self, frame: DataFrame | None = None, **trigger: Any) -> list[list[Change]]:
        """The batches of one run to its end."""
        self.batches.clear()
        single_batch = not HAS_ADMISSION and not trigger  # what Spark 4.1 makes of availableNow
        query = self.start(frame, **(trigger or ({} if single_batch else {"availableNow": True})))
        try:
            with translate_spark_errors():
                if single_batch:
                    query.processAllAvailable()
                    query.stop()
                assert query.awaitTermination(DEADLINE_S), "the query does not end"
        finally:
            query.stop()
        return [sorted(self.batches[number]) for number in sorted(self.batches)]

    def forget_last_commit(self) -> None:
        """As after a crash between the last batch and the entry that says it is done."""
        last = max((int(each.name), each) for each in (self.checkpoint / "commits").glob("[0-9]*"))[1]
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)

    def write_offsets_without_ids(self) -> None:
        """As versions wrote them that did not know of physical tables."""
        for path in (self.checkpoint / "offsets").glob("[0-9]*"):
            lines = path.read_text().splitlines()
            tree = json.loads(lines[-1])
            assert tree.pop("ids")
            path.write_text("\n".join([*lines[:-1], json.dumps(tree)]))
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def stream(spark: SparkSession, world: ServedWorld, tmp_path: Path) -> Stream:
    return Stream(spark, world, tmp_path / "checkpoint")


def ids(batch: list[Change]) -> list[int]:
    return [each[2] for each in batch]


def test_a_stream_begins_with_the_rows_and_goes_on_with_exactly_the_changes_it_missed(
    stream: Stream, world: ServedWorld
):
    stream.options = {"consumerId": "billing"}
    (first,) = stream.run()
    assert [(each[1], *each[2:]) for each in first] == [("insert", n, f"a{n}") for n in range(1, 6)]
    assert stream.run() == []
    ts = world.commit(row(1, "b1"), row(6, "b6"), delete=[(2,)])
    late = world.commit(row(7, "b7"))
    world.resolve()
    (second,) = stream.run()
    assert second == [
        (ts, "delete", 2, "a2"),
        (ts, "insert", 6, "b6"),
        (ts, "update_postimage", 1, "b1"),
        (ts, "update_preimage", 1, "a1"),
        (late, "insert", 7, "b7"),
    ]
    (held,) = HistoryHolds(world.storage.open()).list_holds(world.ids[0])
    assert held.path.endswith("/stream-billing.json")
    assert held.ts == max(each[0] for each in first), "what a restart of the last run needs"
    assert held.expires_at_ms is not None


def test_a_running_query_takes_changes_as_they_come_and_can_be_stopped_between_batches(
    stream: Stream, world: ServedWorld
):
    query = stream.start()
    query.processAllAvailable()
    assert ids(sorted(stream.batches[0], key=lambda each: each[2])) == [1, 2, 3, 4, 5]
    while_it_ran = world.commit(row(6, "b6"))
    world.flush()
    while 1 not in stream.batches:
        query.processAllAvailable()
    query.stop()
    while_it_did_not = world.commit(row(7, "b7"))
    world.resolve()
    again = stream.start()
    while 2 not in stream.batches:
        again.processAllAvailable()
    again.stop()
    assert stream.batches[1] == [(while_it_ran, "insert", 6, "b6")]
    assert stream.batches[2] == [(while_it_did_not, "insert", 7, "b7")]


def test_a_batch_that_is_replayed_after_a_crash_is_the_same_whatever_happened_meanwhile(
    stream: Stream, world: ServedWorld, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("penstock.eventstore.upkeep.merge_policy._FANOUT", 2)
    first = stream.run()
    stream.forget_last_commit()
    world.commit(row(1, "c1"), delete=[(5,)])
    world.flush()
    assert world.store.merge(world.ids[0])
    second = stream.run()
    assert second[0] == first[0]
    assert [each[1:] for each in second[1]] == [
        ("delete", 5, "a5"),
        ("update_postimage", 1, "c1"),
        ("update_preimage", 1, "a1"),
    ]
    stream.forget_last_commit()
    world.commit(row(9, "d9"), row(1, "d1"))
    world.flush()
    third = stream.run()
    assert (third[0], len(third)) == (second[1], 2)


def test_no_batch_is_larger_than_is_admitted_unless_a_single_commit_is(stream: Stream, world: ServedWorld):
    stream.options = {"maxRowsPerTrigger": 3, "startingVersion": world.ts + 1}
    for number in (10, 11):
        world.commit(row(number, "x"))
    world.commit(*(row(number, "x") for number in range(12, 17)))  # more than three
    world.flush()
    for number in range(17, 22):
        world.commit(row(number, "x"))
    world.resolve()
    batches = stream.run()
    assert [ids(batch) for batch in batches] == [
        [10, 11],
        [12, 13, 14, 15, 16],
        [17, 18, 19],
        [20, 21],
    ]
    world.commit(*(row(number, "y") for number in (17, 18, 19)))
    world.commit(row(20, "y"))
    world.resolve()
    (everything,) = stream.run(once=True)
    assert len(everything) == (8 if HAS_ADMISSION else 6), "Spark 4.1 does not say that it reads but once"


def test_bytes_bound_the_first_rows_the_changes_in_objects_and_those_that_are_not_flushed(
    spark: SparkSession, tmp_path: Path
):
    with ServedWorld(tmp_path / "world", item_table()) as world:
        commits: dict[int, int] = {}

        def commit(*numbers: int, flush: bool) -> None:
            for number in numbers:
                commits[number] = world.commit(row(number, f"x{number}"))
                if flush:
                    world.flush()

        def inserted(*numbers: int) -> list[Change]:
            return [(commits[number], "insert", number, f"x{number}") for number in numbers]

        commit(10, 11, 12, flush=True)  # an object each, all about as large
        largest = max(each.size_bytes for each in world.manifest().objects.values())
        stream = Stream(spark, world, tmp_path / "checkpoint", maxBytesPerTrigger=2 * largest)
        assert stream.run() == [inserted(10, 11), inserted(12)], "the rows of the table"
        commit(20, 21, 22, flush=True)
        commit(23, 24, flush=False)
        world.resolve()
        assert stream.run() == [inserted(20, 21), inserted(22, 23), inserted(24)], "its changes"


def test_a_stream_of_a_partitioned_table_gives_exactly_the_changes_of_all_partitions(
    spark: SparkSession, tmp_path: Path
):
    table = item_table(table_id=1, partitions=(2, 3))
    with ServedWorld(tmp_path / "world", table, partitions=(2, 3)) as world:
        first = world.commit(row(1, "a1"), row(2, "a2"))
        world.flush()
        second = world.commit(row(3, "a3"), into=1)
        world.resolve()
        stream = Stream(spark, world, tmp_path / "checkpoint", maxRowsPerTrigger=3)
        rows = [(first, "insert", 1, "a1"), (first, "insert", 2, "a2"), (second, "insert", 3, "a3")]
        assert stream.run() == [rows]

        stream.forget_last_commit()
        both = world.tick()
        world.commit(row(4, "b4"), at=both)
        world.commit(row(5, "b5"), into=1, at=both)
        world.store.open_table(2).advance_resolved_ts(world.ts)
        assert stream.run() == [rows], "a commit is read when every partition has it"

        world.resolve()
        assert world.store.flush(3), "of one partition it is in objects, of the other it is not"
        moved = world.commit(row(1, "c1"), into=1)
        changed = world.commit(row(2, "c2"), delete=[(3,)])
        world.resolve()
        assert stream.run() == [
            [(both, "insert", 4, "b4"), (both, "insert", 5, "b5")],
            [(moved, "delete", 1, "a1"), (moved, "insert", 1, "c1")],
            [
                (changed, "delete", 3, "a3"),
                (changed, "update_postimage", 2, "c2"),
                (changed, "update_preimage", 2, "a2"),
            ],
        ]


def test_the_first_rows_are_admitted_by_handles(spark: SparkSession, tmp_path: Path):
    with ServedWorld(tmp_path / "world", item_table()) as world:
        for start in (0, 100, 200):
            world.commit(*(row(number, "x") for number in range(start, start + 100)))
            world.flush()
        stream = Stream(spark, world, tmp_path / "checkpoint", maxRowsPerTrigger=150, rangeFrom=10)
        batches = stream.run()
        assert [ids(batch) for batch in batches] == [
            list(range(10, 100)),
            list(range(100, 200)),
            list(range(200, 300)),
        ]


def test_a_new_column_ends_the_stream_before_it_and_a_restart_has_it(stream: Stream, world: ServedWorld):
    stream.options = {"startingVersion": world.ts + 1}
    frame = stream.load()
    world.commit(row(6, "before"))
    ts = world.alter(add_column(world.versions.table, "extra", "varchar(20) default 'none'"))
    world.commit(row(7, "after", extra="more"))
    world.resolve()
    with pytest.raises(Invalid, match=rf"change at version {ts} \(extra is new\); load .* restart the query"):
        stream.run(frame)
    assert [each[3] for each in stream.batches[0]] == ["before"]
    frame = stream.load()
    assert "extra" in frame.columns
    assert [each[3] for each in stream.run(frame)[0]] == ["after"]


def test_a_stream_of_named_columns_goes_on_when_others_change(stream: Stream, world: ServedWorld):
    stream.options = {"columns": "name, id", "startingVersion": world.ts + 1}
    frame = stream.load()
    world.alter(add_column(world.versions.table, "extra", "varchar(20)"))
    world.commit(row(7, "after", extra="more"))
    world.resolve()
    assert [each[3] for each in stream.run(frame)[0]] == ["after"]
    stream.schema = "id long, name string, _change_type string, _commit_version long"
    world.commit(row(8, "own schema", extra=""))
    world.resolve()
    assert [each[3] for each in stream.run()[0]] == ["own schema"]


def test_history_that_is_gone_is_told_with_the_remedy(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("penstock.eventstore.upkeep.merge_policy._FANOUT", 2)
    with ServedWorld(tmp_path / "world", item_table(), upkeep={"history_ttl_s": 0}) as world:
        start = world.ts + 1
        for name in ("first", "second"):
            world.commit(*(row(number, name) for number in range(4)))
            world.flush()
        assert world.store.merge(world.ids[0])
        assert world.store.collect(world.ids[0])
        oldest = world.manifest().oldest_ts
        stream = Stream(spark, world, tmp_path / "checkpoint", startingVersion=start + 1)
        message = (
            rf"shop\.items at version {start} is gone; the oldest that can be read is {oldest}: start .*"
        )
        with pytest.raises(Invalid, match=f"{message} new checkpoint"):
            stream.run()


def test_a_stream_that_is_not_of_changes_is_refused_in_one_line(stream: Stream):
    stream.options = {"readChangeFeed": "false"}
    with pytest.raises(Invalid, match="a stream reads changes; give option readChangeFeed = true") as caught:
        stream.run()
    assert "\n" not in str(caught.value)


def put(world: ServedDatabase, *numbers: int) -> None:
    for number in numbers:
        world.commit((world.tables["shop.items"], [], [row(number, f"a{number}")]))


@pytest.fixture
def ddl_world(tmp_path: Path) -> Iterator[ServedDatabase]:
    with ServedDatabase(tmp_path / "world") as made:
        made.create_table("shop.items", "integer", 2)
        put(made, 1, 2, 3, 4)
        made.resolve_all()
        yield made


@pytest.mark.parametrize(
    ("ddl", "offsets"),
    [
        (lambda world, table: world.truncate_table(table), "with ids"),
        (lambda world, table: world.truncate_partitions(table, 0, 1), "of an earlier version"),
    ],
    ids=["another table", "other partitions"],
)
def test_a_stream_ends_where_rows_were_replaced_while_it_was_stopped(
    spark: SparkSession,
    ddl_world: ServedDatabase,
    tmp_path: Path,
    ddl: Callable[[FeedWorld, WorldTable], object],
    offsets: str,
):
    stream = Stream(spark, ddl_world, tmp_path / "checkpoint")
    (first,) = stream.run()
    assert ids(first) == [1, 2, 3, 4]
    if offsets == "of an earlier version":
        stream.write_offsets_without_ids()
    ddl(ddl_world, ddl_world.tables["shop.items"])
    ddl_ts = ddl_world.ts
    put(ddl_world, 15, 16)
    ddl_world.resolve_all()
    with pytest.raises(StaleRead) as caught:
        stream.run()
    assert caught.value.oldest_ts == ddl_ts
    assert str(caught.value).endswith(f"can be read is {ddl_ts}: start the query with a new checkpoint")
    assert stream.batches == {}
    anew = Stream(spark, ddl_world, tmp_path / "another checkpoint")
    (rows,) = anew.run()
    assert ids(rows) == sorted(each["id"] for each in ddl_world.rows_at(ddl_world.ts)["shop.items"])


def test_a_running_stream_passes_added_partitions_and_ends_where_the_table_is_truncated(
    spark: SparkSession, ddl_world: ServedDatabase, tmp_path: Path
):
    stream = Stream(spark, ddl_world, tmp_path / "checkpoint")
    query = stream.start()
    query.processAllAvailable()
    added = [ddl_world.add_partition(ddl_world.tables["shop.items"])]  # nothing had changed before it
    put(ddl_world, 5, 6, 7)
    added.append(ddl_world.add_partition(ddl_world.tables["shop.items"]))
    put(ddl_world, 8, 9, 10, 11)
    ddl_world.resolve_all()
    seen: list[Change] = []
    while len(seen) < 7:
        query.processAllAvailable()
        seen = [each for number in sorted(stream.batches)[1:] for each in stream.batches[number]]
    assert [each[2] for each in sorted(seen)] == [5, 6, 7, 8, 9, 10, 11]
    for batch in list(stream.batches.values())[1:]:
        assert len({each[0] < added[1] for each in batch}) <= 1, "a batch goes across the DDL"
    ddl_world.truncate_table(ddl_world.tables["shop.items"])
    ddl_ts = ddl_world.ts
    put(ddl_world, 12)
    ddl_world.resolve_all()
    with (
        pytest.raises(StaleRead, match=rf"replaced rows of shop\.items .* read is {ddl_ts}:"),
        translate_spark_errors(),
    ):
        assert query.awaitTermination(DEADLINE_S), "the query does not end"
    query.stop()


def test_a_stream_whose_offset_names_other_physical_tables_ends_whatever_storage_remembers(
    ddl_world: ServedDatabase,
):
    since_ts = ddl_world.resolve_all()
    put(ddl_world, 5)
    ddl_world.resolve_all()
    options = parse_options(ddl_world.options(readChangeFeed="true"), defaults={}, settings=None)
    reader = STREAM_READER(options, StructType(), None, parallelism=Parallelism(1))
    mine = list(ddl_world.tables["shop.items"].info.physical_ids)
    assert latest_offset(reader, {"ts": since_ts, "ids": mine})["ids"] == mine
    with pytest.raises(StaleRead, match="start the query with a new checkpoint"):
        latest_offset(reader, {"ts": since_ts, "ids": [*mine, 9999]})
