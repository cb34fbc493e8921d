"""The doctor's probe of a bucket."""

from collections.abc import Iterator

import boto3
import pytest
from moto.server import ThreadedMotoServer

from penstock.app.doctor import storages
from penstock.app.doctor.findings import Verdict
from penstock.eventstore.partition import StorageRef
from penstock.eventstore.storage import open_storage


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, str]]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.client(
        "s3",
        endpoint_url=f"http://{host}:{port}",
        aws_access_key_id="a",
        aws_secret_access_key="b",
        region_name="eu-central-1",
    )
    client.create_bucket(Bucket="clinic", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    client.close()
    yield {
        "endpoint": f"http://{host}:{port}",
        "allow_http": "true",
        "access_key_id": "a",
        "secret_access_key": "b",
        "region": "eu-central-1",
    }
    server.stop()


def test_a_bucket_is_written_to_on_conditions_and_left_as_it_was(options: dict[str, str]) -> None:
    found = storages.storage("capture.storage", StorageRef("s3://clinic/shop", options))
    assert (found.verdict, "on conditions too" in found.what) == (Verdict.OK, True)
    assert open_storage("s3://clinic/shop", options).names("") == []


def test_a_bucket_that_is_not_there_is_told(options: dict[str, str]) -> None:
    found = storages.storage("capture.storage", StorageRef("s3://ocean/shop", options))
    assert (found.verdict, "s3://ocean/shop" in found.what) == (Verdict.BAD, True)
