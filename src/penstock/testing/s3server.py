"""An S3 server on loopback: one for each process that runs tests, started when the first test asks for it.

A pytest plugin. Its state is the process's, so every module of tests gets a bucket of its own.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from itertools import count

import pytest

ACCESS_KEY, SECRET, REGION = "penstock", "hunter2hunter2", "us-east-1"


@dataclass(frozen=True, slots=True)
class S3Bucket:
    """A bucket, and how to reach it."""

    name: str
    endpoint: str

    @property
    def url(self) -> str:
        """What paths in it begin with."""
        return f"s3://{self.name}"

    @property
    def options(self) -> dict[str, str]:
        """Address and credentials by obstore's names."""
        return {
            "endpoint": self.endpoint,
            "allow_http": "true",
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET,
            "region": REGION,
        }

    @property
    def query(self) -> str:
        """Address and credentials as parameters of a changefeed's URI."""
        return f"endpoint={self.endpoint}&region={REGION}&access-key={ACCESS_KEY}&secret-access-key={SECRET}"


@dataclass(frozen=True, slots=True)
class S3Server:
    """A server that runs. It checks no signatures."""

    host: str
    port: int
    _numbers: Iterator[int] = field(default_factory=count)

    def bucket(self, name: str = "") -> S3Bucket:
        """Create a bucket, with a name that no other has unless one is given."""
        name = name or f"bucket-{next(self._numbers)}"
        connection = HTTPConnection(self.host, self.port)
        try:
            connection.request("PUT", f"/{name}")
            assert connection.getresponse().status == 200, f"bucket {name} cannot be made"
        finally:
            connection.close()
        return S3Bucket(name, f"http://{self.host}:{self.port}")


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """The process's server."""
    from moto.server import ThreadedMotoServer  # takes most of a second: only who needs it waits

    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # else a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield S3Server(*server.get_host_and_port())
    server.stop()


@pytest.fixture(scope="module")
def s3_bucket(s3_server: S3Server) -> S3Bucket:
    """An empty bucket for a module of tests."""
    return s3_server.bucket()
