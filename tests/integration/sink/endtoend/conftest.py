"""An S3 server on loopback."""

import logging
from collections.abc import Iterator

import boto3
import pytest
from moto.server import ThreadedMotoServer

SECRET = "hunter2hunter2"


@pytest.fixture(scope="module")
def s3_options() -> Iterator[dict[str, str]]:
    """How to reach the server, by obstore's names; it has a bucket `lake`."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # else a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "me", "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=endpoint, **keys)
    client.create_bucket(Bucket="lake")
    client.close()
    yield {
        "access_key_id": "me",
        "secret_access_key": SECRET,
        "region": "us-east-1",
        "endpoint": endpoint,
        "allow_http": "true",
    }
    server.stop()
