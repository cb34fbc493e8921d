"""Indexes on an S3 server: commits are conditional there too."""

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from penstock.errors import Fenced
from penstock.testing.indexworld import IndexWorld
from penstock.testing.itemtables import item_table


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, str]]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    client = boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1"
    )
    client.create_bucket(Bucket="indexes")
    client.close()
    yield {
        "storage.access_key_id": "a",
        "storage.secret_access_key": "b",
        "storage.region": "us-east-1",
        "storage.endpoint": endpoint,
        "storage.allow_http": "true",
    }
    server.stop()


@pytest.mark.parametrize(
    ("consumer", "more"),
    [("fulltext", {"text_columns": "name"}), ("vector", {"text_columns": "name", "dimension": "8"})],
)
def test_rows_and_watermark_are_one_conditional_commit(
    tmp_path: Path, options: dict[str, str], consumer: str, more: dict[str, str]
) -> None:
    where = {"uri": f"s3://indexes/{consumer}", **options, **more}
    world = IndexWorld(tmp_path, consumer, item_table(), where)
    world.source.commit({"id": 1, "name": "green"}, {"id": 2, "name": "red"})
    world.catch_up()
    world.source.commit({"id": 2, "name": "green"}, {"id": 3, "name": "green"}, delete=[(1,)])
    given_up = world.changes()
    given_up.fault = lambda _: world.catch_up() if world.consumer().committed_ts() != given_up.to_ts else None
    with pytest.raises(Fenced):
        world.consumer().consume(given_up)
    assert sorted(world.search("green").rows.column("id").to_pylist()) == [2, 3]
    assert world.verifier().verify().same
    world.catch_up(resync=True)
    assert world.search("green").complete


def test_the_secret_is_not_shown(tmp_path: Path, options: dict[str, str]) -> None:
    secret = {**options, "storage.secret_access_key": "hush-hush"}
    world = IndexWorld(
        tmp_path, "fulltext", item_table(), {**secret, "uri": "s3://nowhere/x", "text_columns": "name"}
    )
    consumer = world.consumer()
    assert "hush-hush" not in repr(consumer._options)
    with pytest.raises(Exception, match="nowhere") as failed:
        consumer.committed_ts()
    assert "hush-hush" not in str(failed.value)
