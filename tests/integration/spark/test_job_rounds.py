"""Iterations on Spark: many tables in one job, the same changes as a local read, and no row read here."""

import random  # noqa: TID251 - seeded by the test
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.changes import collect_changes
from penstock.changes.columns import choose_columns
from penstock.changes.limits import ReadLimit
from penstock.errors import StaleRead
from penstock.follow.scans import change_options, scan_snapshot, scan_tail
from penstock.jobs.consumer import Consumer, DataRetriever, DataType, read_net_changes
from penstock.jobs.iteration import range_read
from penstock.jobs.iteration.ordering import BatchProjection, ConsumerBatch, iter_in_order
from penstock.jobs.iteration.range_read import RoundReader
from penstock.jobs.iteration.rounds import ReadRound, ReadRounds, SparkReadJobs, warm_up
from penstock.jobs.iteration.spark_frame import SparkFrames
from penstock.spark.rounds import TaskResult
from support.campaign import length
from support.itemtables import TABLES, item, item_table
from support.jobworld import job_world
from support.rowcounts import RowCounts
from support.servedworld import ServedWorld

COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)")]


class CountedJobs(SparkReadJobs):
    """SparkReadJobs that keep the rounds that they have run."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(lambda: spark)
        self.ran: list[ReadRound] = []

    def run(self, round_: ReadRound, tag: str) -> list[TaskResult[Any]]:
        self.ran.append(round_)
        return super().run(round_, tag)


def side_rows(batches: list[ConsumerBatch]) -> tuple[list[Any], list[Any]]:
    return (
        [row for batch in batches for row in batch.inserts.to_pylist()],
        [row for batch in batches for row in batch.deletes.to_pylist()],
    )


@pytest.mark.parametrize("kind", sorted(TABLES)[: length(1, len(TABLES))])
def test_rounds_give_the_changes_that_a_local_read_gives(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(range_read, "SMALL_ROWS", 30)
    monkeypatch.setattr(range_read, "_PART_ROWS", 25)
    mix = random.Random(kind)
    rounds = ReadRounds(SparkReadJobs(lambda: spark))
    with ServedWorld(tmp_path, item_table(kind)) as world, closing(rounds):
        start = world.commit(item(kind, 0, "a"))
        for number in range(60):
            world.commit(item(kind, mix.randrange(25), f"name {number}"))
            if number in {20, 40}:
                world.flush()
        world.resolve()
        for from_ts in (0, start, world.ts - 8):
            view = world.view(world.flight_rows())
            snapshot = from_ts == 0
            scan = (
                scan_snapshot(view, world.ts) if snapshot else scan_tail(view, from_ts, world.ts, ReadLimit())
            )
            projection = BatchProjection(scan.schema, choose_columns(scan.schema.table, None).names)
            handle = collect_changes(scan.view, scan.from_ts, scan.to_ts, **change_options(view, scan, None))
            with handle:
                wanted = side_rows(list(iter_in_order(handle, projection, tmp_path / "order")))
            found = side_rows(list(RoundReader(rounds).begin(scan, None, "default").batches()))
            times = [row["_commit_ts"] for row in found[0]]
            assert snapshot or times == sorted(times)
            assert last_rows(found) == last_rows(wanted)


def last_rows(sides: tuple[list[Any], list[Any]]) -> dict[Any, Any]:
    """Return the row of each key after all changes, None where it is deleted."""
    steps = [(row["_commit_ts"], side, row) for side in (1, 0) for row in sides[1 - side]]
    last: dict[Any, Any] = {}
    for _, is_insert, row in sorted(steps, key=lambda step: step[:2]):
        key = row.get("id", row.get("_handle"))
        last[key] = row if is_insert else None
    return last


def test_history_that_is_gone_is_told_to_the_reader(spark: SparkSession, tmp_path: Path) -> None:
    rounds = ReadRounds(SparkReadJobs(lambda: spark))
    with ServedWorld(tmp_path, item_table()) as world, closing(rounds):
        start = world.commit(item("integer", 1, "a"))
        world.commit(item("integer", 1, "b"))
        world.flush()
        scan = scan_tail(world.view(world.flight_rows()), start, world.ts, ReadLimit())
        world.store.record_fact(1, {"kind": "begun", "ts": world.ts})
        with pytest.raises(StaleRead):
            list(RoundReader(rounds).begin(scan, None, "default").batches())


def batched(seen: dict[str, dict[int, str]]) -> type[Consumer]:
    class Batched(Consumer):
        def consume(self, data: DataRetriever) -> None:
            rows = seen.setdefault(self.job.id.table, {})
            if data.data_type is DataType.SNAPSHOT:
                rows.clear()
            net = read_net_changes(data, self.job.scratch)
            for key in net.changed_keys.to_pylist():
                rows.pop(key["id"], None)
            rows |= {row["id"]: row["name"] for row in net.upserts.to_pylist()}

    return Batched


async def test_tables_that_are_due_together_are_read_by_few_jobs(spark: SparkSession, tmp_path: Path) -> None:
    """No row is read by the process itself, and idle jobs cost no Spark job."""
    warm_up(spark)
    seen: dict[str, dict[int, str]] = {}
    jobs, local = CountedJobs(spark), RowCounts("local")
    names = [f"t{number}" for number in range(12)]
    async with job_world(tmp_path, jobs={"workers": 3, "interval_s": 1.0}) as world:
        for name in names:
            await world.create(f"shop.{name}", COLUMNS)
            await world.insert(f"shop.{name}", {"id": 1, "name": "a"}, {"id": 2, "name": "a"})
            await world.register(f"shop.{name}/copy", consumer="copy", trigger={"job_type": "default"})
        with closing(ReadRounds(jobs)) as rounds:
            running = world.running(
                find=lambda _name: batched(seen), frames=SparkFrames(lambda: spark), rounds=rounds
            )
            async with running:
                await world.until(lambda: len(seen) == 12 and all(len(rows) == 2 for rows in seen.values()))
                first = len(jobs.ran)
                for name in names:
                    await world.upsert(f"shop.{name}", {"id": 1, "name": "b"})
                    await world.delete(f"shop.{name}", 2)
                await world.until(lambda: all(rows == {1: "b"} for rows in seen.values()))
                tails = jobs.ran[first:]
    read = sum(len(round_.pieces) for round_ in tails)
    assert read >= 12
    assert len(tails) < read / 2, "tables did not share rounds"
    assert "read" not in local.new


async def test_nothing_is_done_here_for_consumers_that_work_on_executors(
    spark: SparkSession, tmp_path: Path
) -> None:
    local, on_spark = RowCounts("local"), RowCounts("spark")
    async with job_world(tmp_path) as world:
        await world.create("shop.items", COLUMNS)
        await world.insert("shop.items", {"id": 1, "name": "river"}, {"id": 2, "name": "dam"})
        uri = str(tmp_path / "index")
        await world.register(
            "shop.items/words", consumer="fulltext", options={"uri": uri, "text_columns": "name"}
        )
        with closing(ReadRounds(SparkReadJobs(lambda: spark))) as rounds:
            async with world.running(
                frames=SparkFrames(lambda: spark), rounds=rounds, spark=lambda _account: spark
            ):
                ts = await world.upsert("shop.items", {"id": 1, "name": "weir"}, {"id": 3, "name": "lock"})
                await world.caught_up("shop.items/words", ts)
    assert local.new == {}
    assert on_spark.new["read"] == on_spark.new["consume"] >= 3
