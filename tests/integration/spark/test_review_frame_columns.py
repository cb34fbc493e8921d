"""Columns of frames whose names mean something to Spark, or to Penstock."""

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock.jobs.consumer import Consumer, DataRetriever
from penstock.jobs.iteration.spark_frame import SparkFrames
from support.jobworld import job_world


def _framed(rows: list[dict[str, Any]]) -> type[Consumer]:
    class Framed(Consumer):
        def consume(self, data: DataRetriever) -> None:
            rows.extend(data.dataframe().toArrow().to_pylist())

    return Framed


async def test_names_with_blanks_and_quotes_are_names(spark: SparkSession, tmp_path: Path) -> None:
    found: list[dict[str, Any]] = []
    async with job_world(tmp_path) as world:
        await world.create(
            "shop.items",
            [("item`id", "bigint"), ("price net", "int"), ("a`b", "int"), ("plain", "int")],
            primary_key=["item`id"],
        )
        row = {"item`id": 7, "price net": 1, "a`b": 2, "plain": 3}
        await world.insert("shop.items", row)
        await world.register("shop.items/j", consumer="j", columns=["price net", "a`b"])
        async with world.running(
            find=lambda _name: _framed(found), frames=SparkFrames(lambda: spark), spark=lambda _account: spark
        ):
            await world.until(lambda: bool(found))
    (read,) = found
    del read["_commit_ts"]
    assert read == {"item`id": 7, "price net": 1, "a`b": 2, "_deleted": False}


async def test_a_column_that_is_called_as_a_mark_of_frames_has_its_name_and_the_mark_another(
    spark: SparkSession, tmp_path: Path
) -> None:
    found: list[dict[str, Any]] = []
    async with job_world(tmp_path) as world:
        await world.create("shop.items", [("id", "bigint primary key"), ("_Deleted", "int"), ("size", "int")])
        await world.insert("shop.items", {"id": 7, "_Deleted": 1, "size": 2})
        await world.register("shop.items/all", consumer="j")
        await world.register("shop.items/some", consumer="j", columns=["size"])
        async with world.running(
            find=lambda _name: _framed(found), frames=SparkFrames(lambda: spark), spark=lambda _account: spark
        ):
            await world.until(lambda: len(found) == 2)
    for row in found:
        assert row.pop("_commit_ts")
    expected = [{"_Deleted": 1, "_deleted ": False}, {"_deleted": False}]
    assert sorted(found, key=len, reverse=True) == [{"id": 7, "size": 2} | marks for marks in expected]
