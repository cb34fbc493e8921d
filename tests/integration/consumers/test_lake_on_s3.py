"""Copies in each format on an S3 server."""

import random  # noqa: TID251 - seeded
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.consumers.lake.delta import Delta
from penstock.errors import Fenced, Invalid, Unavailable
from penstock.testing.consumers import SourceModel, job_context
from support.itemtables import item_table
from support.lakeworld import FORMATS, Killed, LakeWorld
from support.s3server import SECRET, Fault, FaultyS3, S3Bucket


@pytest.fixture(params=sorted(FORMATS))
def world(request: pytest.FixtureRequest, tmp_path: Path, s3_bucket: S3Bucket) -> Iterator[LakeWorld]:
    more = s3_bucket.options
    if request.param == "iceberg":
        more = {f"s3.{name.replace('_', '-')}": value for name, value in more.items() if name != "allow_http"}
    made = LakeWorld(request.param, tmp_path, url=f"{s3_bucket.url}/{tmp_path.name}", more=more)
    yield made
    made.close()


def test_a_copy_follows_its_source(world: LakeWorld) -> None:
    model = SourceModel(replace(item_table("composite"), id=1))
    for data in model.iterations(random.Random(7), count=5):
        assert world.committed_ts() == data.from_ts
        world.consumer().consume(data)
        assert world.rows(data.keys) == model.at(data.to_ts)
    with pytest.raises(Fenced):
        world.consumer().consume(data.again())


def test_what_a_killed_attempt_left_is_removed(world: LakeWorld) -> None:
    model = SourceModel(replace(item_table("integer"), id=1))
    model.churn(random.Random(1))
    with pytest.raises(Killed):
        world.mortal(3).consume(model.retriever(0, model.ts))
    made = world.consumer()
    made.consume(model.retriever(0, model.ts))
    version = made.table.latest()
    assert version is not None
    live = [each.path for each in made.table.files(version)]
    store = made.table.stage(version, version.schema, whole=False).open_store()
    assert store.names(made.table.folder) == live
    assert world.rows(("id",)) == model.at(model.ts)


def test_of_racing_writers_one_commits(world: LakeWorld) -> None:
    model = SourceModel(replace(item_table("integer"), id=1))
    model.churn(random.Random(1))
    world.consumer().consume(model.retriever(0, model.ts))
    begin = model.ts
    end = model.commit({"id": 1, "name": "raced"})
    racers = [world.consumer() for _ in range(3)]
    start = threading.Barrier(3)
    outcomes: list[str] = []

    def race(consumer: Delta) -> None:
        consumer.committed_ts()
        start.wait(60)
        try:
            consumer.consume(model.retriever(begin, end))
            outcomes.append("committed")
        except Fenced:
            outcomes.append("fenced")

    threads = [threading.Thread(target=race, args=(each,)) for each in racers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["committed", "fenced", "fenced"]
    assert world.rows(("id",)) == model.at(end)


def test_wrong_credentials_and_secrets_are_not_shown(s3_bucket: S3Bucket, tmp_path: Path) -> None:
    storage = {f"storage.{name}": value for name, value in s3_bucket.options.items()}
    consumer = Delta(job_context(tmp_path, "delta", {"uri": "s3://nowhere/x", **storage}))
    with pytest.raises((Unavailable, Invalid)) as caught:
        consumer.committed_ts()
    assert SECRET not in f"{caught.value} {consumer.options!r} {consumer.job!r}"


@pytest.mark.parametrize("world", ["delta", "parquet"], indirect=True)  # Iceberg commits in its catalog
@pytest.mark.parametrize("fault", [Fault.CONFLICT, Fault.LOST_ANSWER])
def test_a_commit_that_s3_refused_for_the_moment_or_did_not_answer_leaves_a_whole_copy(
    world: LakeWorld, s3_bucket: S3Bucket, faulty_s3: FaultyS3, fault: Fault
) -> None:
    behind = faulty_s3.before(s3_bucket)
    world.more = {
        name: behind.endpoint if value == s3_bucket.endpoint else value for name, value in world.more.items()
    }
    model = SourceModel(replace(item_table("integer"), id=1))
    for data in model.iterations(random.Random(3), count=3):
        faulty_s3.faults.append(fault)
        for _ in range(3):  # as a job does
            if world.committed_ts() == data.to_ts:
                break
            try:
                world.consumer().consume(data.again())
            except (Fenced, Unavailable):
                faulty_s3.faults.clear()
        assert world.rows(data.keys) == model.at(data.to_ts)
