"""The sink's jobs on Spark: the chunks and files that one process would make, whatever executors do."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame

from penstock.changefeeds.codecs.options import EncoderOptions
from penstock.changefeeds.engines.encode import encode_part
from penstock.changefeeds.engines.engine import Chunk, DirectFile, EncodeWork, FileWork
from penstock.changefeeds.engines.rounds import LARGE_BYTES, warm_up
from penstock.changefeeds.engines.spark import SparkEngine
from penstock.changes.limits import ReadLimit
from penstock.errors import Unavailable
from penstock.eventstore.read.flight_client import FlightReader
from penstock.follow.slices import Position, Slice, SliceRange, TableSpan, plan_slice
from penstock.object_storage import StorageRef
from penstock.spark.parallelism import work_frame, work_session
from support.gate import Gate, GatedStorage
from support.itemtables import item, item_table
from support.loadedworld import until
from support.rowcounts import RowCounts
from support.servedworld import ServedWorld
from support.tableworld import START

SMALL = EncoderOptions(chunk_bytes=2_000, enable_tidb_extension=True, encoded_at_ms=5)
ROWS = 60
CHANGES = ROWS + len(range(0, ROWS, 7)) + 1


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServedWorld]:
    with ServedWorld(tmp_path, item_table()) as made:
        for number in range(ROWS):
            made.commit(item("integer", number, f"name {number}"))
            if number == ROWS // 2:
                made.flush()
        for number in range(0, ROWS, 7):
            made.commit(item("integer", number, "another name"))
        made.commit(delete=[made.key(item("integer", 3, ""))])
        made.resolve()
        yield made


@pytest.fixture
def target(tmp_path: Path) -> StorageRef:
    return StorageRef(f"file://{tmp_path}/remote")


def sliced(world: ServedWorld, from_ts: int, to_ts: int) -> Slice:
    schema = world.schemas.versions(1, from_ts, to_ts)[-1]
    wanted = SliceRange(TableSpan.of("feed", 1), Position(from_ts), to_ts, ReadLimit(), snapshot=False)
    found = plan_slice(world.view(FlightReader(world.flight.addr)), schema, wanted)
    assert found is not None
    return found


def halves(world: ServedWorld) -> list[EncodeWork]:
    """All changes, as two slices."""
    moments = list(world.moments())
    middle = moments[len(moments) // 2]
    return [
        EncodeWork(sliced(world, START, middle), SMALL),
        EncodeWork(sliced(world, middle, world.ts), SMALL),
    ]


def payloads(work: EncodeWork) -> list[bytes]:
    """What one process makes of it."""
    return [
        encoded.payload
        for number in range(len(work.slice.parts))
        for encoded in encode_part(work.slice, number, work.options)
    ]


def file_of(name: str, *chunks: Chunk, **more: Any) -> FileWork:
    return FileWork(
        dispatcher_id="1",
        chunks=chunks,
        data_path=f"shop/items/1/{name}.json",
        index_path=f"shop/items/1/meta/{name}.index",
        **more,
    )


def persisted(spark: SparkSession) -> int:
    return int(spark.sparkContext._jsc.getPersistentRDDs().size())


async def test_executors_make_the_chunks_and_files_of_one_process(
    spark: SparkSession, world: ServedWorld, target: StorageRef
) -> None:
    work = halves(world)
    engine = SparkEngine(spark, target)
    counts = RowCounts("spark")
    before = persisted(spark)
    first, second = [(await engine.encode([each]))[0].chunks for each in work]
    expected = [payloads(each) for each in work]
    assert len(first) > 1, "several chunks, or there is no order to get wrong"
    assert [[chunk.nbytes for chunk in chunks] for chunks in (first, second)] == [
        [len(payload) for payload in each] for each in expected
    ]
    assert first[-1].end == second[0].start
    files = [
        file_of("mixed", *first[1:], *second[:1], header=b"header\n"),  # of both segments
        file_of("rest", *second[1:]),
        file_of("begin", first[0]),
    ]
    written = await engine.write(files)
    assert [each.error for each in written] == ["", "", ""]
    assert counts.new == dict.fromkeys(("read", "encode", "write"), CHANGES)
    assert [each.data_path for each in written] == [each.data_path for each in files]
    storage = target.open()
    contents = [storage.read(each.data_path) for each in files]
    assert contents == [
        b"header\n" + b"".join([*expected[0][1:], expected[1][0]]),
        b"".join(expected[1][1:]),
        expected[0][0],
    ]
    assert storage.read(files[0].index_path) == b"mixed.json\n"
    assert persisted(spark) > before
    for segment in {chunk.segment for chunk in (*first, *second)}:
        await engine.release(segment)
    assert persisted(spark) == before, "what is released takes no room"
    await engine.close()


async def test_a_file_made_of_slices_counts_its_rows_at_every_stage(
    spark: SparkSession, world: ServedWorld, target: StorageRef
) -> None:
    warm_up(spark)
    engine = SparkEngine(spark, target)
    on_spark, local = RowCounts("spark"), RowCounts("local")
    filtered = [replace(each, options=replace(SMALL, where="id < 30")) for each in halves(world)]
    made = await engine.make_file(DirectFile(file_of("made"), tuple(filtered)))
    assert made.failure is None
    assert 0 < made.rows < CHANGES
    assert on_spark.new == {"read": CHANGES, "encode": made.rows, "write": made.rows}
    target.open().write(file_of("taken").data_path, b"of somebody else")
    refused = await engine.make_file(DirectFile(file_of("taken"), tuple(filtered)))
    assert refused.failure is not None
    assert on_spark.new == {"read": CHANGES, "encode": made.rows, "write": made.rows}
    assert local.new == {}
    await engine.close()


def test_each_piece_of_work_is_a_task_of_its_own(spark: SparkSession) -> None:
    def number_tasks(batches):
        import pyarrow as pa
        from pyspark import TaskContext

        for batch in batches:
            task = TaskContext.get().partitionId()
            yield pa.record_batch(
                {"work": batch.column(0), "task": pa.array([task] * len(batch), pa.int32())}
            )

    pieces = [b"0", b"1", b"2", b"3", b"4"]
    for session in (work_session(spark), spark):
        frame = work_frame(session, pieces).mapInArrow(number_tasks, "work binary, task int")
        assert sorted(map(tuple, frame.collect())) == [(piece, int(piece)) for piece in pieces]
    assert work_session(spark) is work_session(spark)
    assert spark.conf.get("spark.sql.leafNodeDefaultParallelism", None) is None


async def test_files_of_a_train_are_made_side_by_side_in_their_order(
    spark: SparkSession, world: ServedWorld, tmp_path: Path
) -> None:
    (tmp_path / "gate").mkdir()
    gate = Gate(tmp_path / "gate")
    target = GatedStorage(f"file://{tmp_path}/remote", gate=gate, after="create")
    engine = SparkEngine(spark, target)
    work = halves(world)
    names = [f"d{number}" for number in range(4)]
    paths = [file_of(name).data_path for name in names]
    files = [file_of(name, after=before) for name, before in zip(names, ["", *paths], strict=False)]
    gate.open()  # the first round learns how many tasks run at once
    assert (await engine.make_file(DirectFile(file_of("first"), (work[0],)))).failure is None
    gate.close()
    making = [
        asyncio.create_task(engine.make_file(DirectFile(file, (work[0],), LARGE_BYTES))) for file in files
    ]
    try:  # the second file is put while the task of the first one waits behind its own
        await asyncio.to_thread(until, lambda: len(gate.waiting()) == 2, "two files are not made at once")
        assert [name for name in target.open().names("") if name in paths] == paths[:2]
    finally:
        gate.open()
    made = await asyncio.gather(*making)
    assert [result.failure for result in made] == [None] * 4
    assert [name for name in target.open().names("") if name in paths] == paths
    await engine.close()


@contextmanager
def plans_of_jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Collects the plan of each frame that comes to the driver, without the numbers that Spark gives out."""
    plans: list[str] = []
    to_arrow = DataFrame.toArrow

    def noted(frame: Any) -> Any:
        table = to_arrow(frame)
        plan = frame._jdf.queryExecution().executedPlan().toString()
        plans.append(re.sub(r"#\d+L?|plan_id=\d+|\[id=\d+\]|\d+/\d+", "", plan))
        return table

    with monkeypatch.context() as patch:
        patch.setattr(DataFrame, "toArrow", noted)
        yield plans


async def test_plans_are_the_same_from_round_to_round_and_few_bytes_need_no_shuffle(
    spark: SparkSession, world: ServedWorld, target: StorageRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SparkEngine(spark, target)
    rounds: list[list[str]] = []
    for number, work in enumerate(halves(world)):
        with plans_of_jobs(monkeypatch) as plans:
            made = await engine.make_file(DirectFile(file_of(f"made{number}"), (work,)))
            ((chunks, _),) = await engine.encode([work])
            written = await engine.write([file_of(f"written{number}", *chunks)])
        assert (made.failure, [each.error for each in written]) == (None, [""])
        rounds.append(plans)
    assert len(rounds[0]) == 3
    assert rounds[0] == rounds[1]
    assert not any("REPARTITION" in plan for plan in rounds[0])
    monkeypatch.setattr("penstock.changefeeds.engines.spark._ONE_TASK_BYTES", 0)
    with plans_of_jobs(monkeypatch) as plans:
        (again,) = await engine.write([replace(file_of("shuffled", *chunks))])
    assert not again.error
    assert "REPARTITION" in plans[0]
    storage = target.open()
    contents = [storage.read(file_of(name).data_path) for name in ("made1", "written1", "shuffled")]
    assert contents[0] == contents[1] == contents[2]
    await engine.close()


async def test_many_slices_are_encoded_by_one_job(
    spark: SparkSession, world: ServedWorld, target: StorageRef
) -> None:
    work = halves(world)
    engine = SparkEngine(spark, target)
    encoded = await engine.encode(work)
    chunks = [each.chunks for each in encoded]
    assert all(each.seconds > 0 for each in encoded)
    assert [[chunk.nbytes for chunk in each] for each in chunks] == [
        [len(payload) for payload in payloads(each)] for each in work
    ]
    assert len({chunk.segment for each in chunks for chunk in each}) == 1
    await engine.close()


async def test_slices_without_rows_leave_nothing_behind(
    spark: SparkSession, world: ServedWorld, target: StorageRef
) -> None:
    nothing = replace(SMALL, where="id < 0")
    engine = SparkEngine(spark, target)
    before = persisted(spark)
    counts = RowCounts("spark")
    encoded = await engine.encode([replace(each, options=nothing) for each in halves(world)])
    assert [each.chunks for each in encoded] == [[], []]
    assert persisted(spark) == before
    assert counts.new == {"read": CHANGES}, "the filter has left out all"
    await engine.close()


async def test_a_file_that_cannot_be_written_does_not_stop_the_others(
    spark: SparkSession, world: ServedWorld, target: StorageRef
) -> None:
    engine = SparkEngine(spark, target)
    ((chunks, _),) = await engine.encode([EncodeWork(sliced(world, START, world.ts), SMALL)])
    taken, free = file_of("taken", *chunks[:2]), file_of("free", *chunks[2:])
    target.open().write(taken.data_path, b"of somebody else")
    counts = RowCounts("spark")
    bad, good = await engine.write([taken, free])
    assert counts.new == {"write": sum(chunk.rows for chunk in free.chunks)}
    assert "exists with other content" in bad.error
    assert (bad.final, good.seconds > 0) == (True, True)
    assert target.open().read(taken.index_path) is None, "a file that is not ours is not announced"
    assert not good.error
    again, _ = await engine.write([free, taken])
    assert not again.error, "the same file again is the same file"
    await engine.close()


async def test_a_payload_that_is_not_what_was_encoded_is_not_written(
    spark: SparkSession, world: ServedWorld, target: StorageRef
) -> None:
    engine = SparkEngine(spark, target)
    ((chunks, _),) = await engine.encode([EncodeWork(sliced(world, START, world.ts), SMALL)])
    other = replace(chunks[0], nbytes=chunks[0].nbytes + 1)
    nowhere = replace(chunks[0], number=12345)
    wrong, short, gone = await engine.write(
        [file_of("wrong", other), file_of("short", chunks[1], nowhere), file_of("gone", nowhere)]
    )
    assert "not those that were encoded" in wrong.error
    assert "not those that were encoded" in short.error
    assert "gone from the spool" in gone.error
    assert wrong.final
    assert gone.final
    assert target.open().names("") == []
    await engine.close()


async def test_a_source_that_is_away_is_said_in_one_line(
    spark: SparkSession, world: ServedWorld, target: StorageRef
) -> None:
    work = halves(world)
    world.flight.close()
    engine = SparkEngine(spark, target)
    before = persisted(spark)
    counts = RowCounts("spark")
    with pytest.raises(Unavailable) as caught:
        await engine.encode(work)
    assert counts.new == {}
    assert "\n" not in str(caught.value)
    assert persisted(spark) == before
    await engine.close()
