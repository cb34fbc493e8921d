"""Copies in each format on an S3 server."""

import random  # noqa: TID251 - seeded
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from penstock.consumers.delta import Delta
from penstock.errors import Fenced, Invalid, Unavailable
from penstock.testing.itemtables import item_table
from penstock.testing.lakeworld import FORMATS, Killed, LakeWorld
from penstock.testing.retrievers import SourceModel, job_context

SECRET = "hunter2hunter2"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=address, **keys)
    client.create_bucket(Bucket="lake")
    client.close()
    yield address
    server.stop()


@pytest.fixture(params=sorted(FORMATS))
def world(request: pytest.FixtureRequest, tmp_path: Path, endpoint: str) -> Iterator[LakeWorld]:
    if request.param == "iceberg":
        keys = {"s3.access-key-id": "a", "s3.secret-access-key": SECRET}
        more = {"s3.endpoint": endpoint, "s3.region": "us-east-1", **keys}
    else:
        keys = {"access_key_id": "a", "secret_access_key": SECRET}
        more = {"endpoint": endpoint, "region": "us-east-1", "allow_http": "true", **keys}
    made = LakeWorld(request.param, tmp_path, url=f"s3://lake/{tmp_path.name}", more=more)
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
    version = made.table.look()
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


def test_wrong_credentials_and_secrets_are_not_shown(endpoint: str, tmp_path: Path) -> None:
    options = {
        "uri": "s3://nowhere/x",
        "storage.endpoint": endpoint,
        "storage.allow_http": "true",
        "storage.region": "us-east-1",
        "storage.access_key_id": "a",
        "storage.secret_access_key": SECRET,
    }
    consumer = Delta(job_context(tmp_path, "delta", options))
    with pytest.raises((Unavailable, Invalid)) as caught:
        consumer.committed_ts()
    assert SECRET not in f"{caught.value} {consumer.options!r} {consumer.job!r}"
