"""An S3 server on loopback: one for each process that runs tests, started when the first test asks for it.

A pytest plugin. Its state is the process's, so every module of tests gets a bucket of its own.
"""

import logging
import socket
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from itertools import count
from typing import TYPE_CHECKING, ClassVar

import pytest

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

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
    answers: threading.Event
    _numbers: Iterator[int] = field(default_factory=count)

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Answer nobody, from entry to exit. What was asked meanwhile is done then, whoever has given up."""
        self.answers.clear()
        try:
            yield
        finally:
            self.answers.set()

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
    # moto takes most of a second: only who needs it waits
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # else a line for each request
    moto = DomainDispatcherApplication(create_backend_app)
    answers = threading.Event()
    answers.set()
    application = _OneConditionAtATime(moto, answers)
    with make_server(
        "127.0.0.1", 0, application, threaded=True, request_handler=MotoRequestHandler
    ) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield S3Server("127.0.0.1", server.server_port, answers)
        server.shutdown()
        thread.join()


class _OneConditionAtATime:
    """Lets one request at a time change an object on a condition.

    S3 decides and writes in one step; moto looks first and writes then, and two writers can both succeed.
    Nobody is served while `answers` is not set.
    """

    def __init__(self, application: "WSGIApplication", answers: threading.Event) -> None:
        self._application = application
        self._answers = answers
        self._lock = threading.Lock()

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        self._answers.wait()
        conditional = {"HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"} & environ.keys()
        if not conditional or environ["REQUEST_METHOD"] in {"GET", "HEAD"}:
            return self._application(environ, start_response)
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = BytesIO(body)  # a client that stops in the middle must not hold the lock
        with self._lock:
            return list(self._application(environ, start_response))


@pytest.fixture(scope="module")
def s3_bucket(s3_server: S3Server) -> S3Bucket:
    """An empty bucket for a module of tests."""
    return s3_server.bucket()


class Fault(StrEnum):
    """What happens to a put on a condition."""

    NONE = "none"
    CONFLICT = "ConditionalRequestConflict"
    """409: another request for the object was under way. Nothing was done, and it may be tried again."""
    LOST_ANSWER = "InternalError"
    """500, and yet the object was written."""


@dataclass(slots=True)
class Held:
    """Holds the first request of a method for a path with some text, until its client is gone."""

    method: str
    part: str
    reached: threading.Event = field(default_factory=threading.Event)
    gone: threading.Event = field(default_factory=threading.Event)

    def takes(self, method: str, path: str) -> bool:
        """Return whether to hold a request."""
        return method == self.method and self.part in path and not self.reached.is_set()

    def hold(self, client: socket.socket) -> None:
        """Return when the client has closed its connection, be it because it was killed."""
        self.reached.set()
        client.settimeout(_HELD_S)
        with suppress(ConnectionError):
            client.recv(1)  # it sends nothing more, so this is the end
        self.gone.set()


_HELD_S = 300.0


@dataclass(frozen=True, slots=True)
class FaultyS3:
    """A proxy before the server. Each put on a condition takes the next of `faults`, if there is one.

    A request of `held` is forwarded when its client is gone: late, as requests on a network can be.

    A request whose path has a key of `blurts` is refused with an error that repeats the texts there, and the
    headers of the request too.
    """

    port: int
    faults: deque[Fault]
    blurts: dict[str, list[str]]
    held: list[Held]

    def before(self, bucket: S3Bucket) -> S3Bucket:
        """Return a bucket as it is reached through the proxy."""
        return S3Bucket(bucket.name, f"http://127.0.0.1:{self.port}")


@pytest.fixture
def faulty_s3(s3_server: S3Server) -> Iterator[FaultyS3]:
    """A proxy that is there for one test."""
    faults = deque[Fault]()
    blurts = dict[str, list[str]]()
    held = list[Held]()

    class Handler(_FaultyHandler):
        holding = held
        behind = s3_server
        waiting = faults
        blurted = blurts

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield FaultyS3(proxy.server_port, faults, blurts, held)
        proxy.shutdown()
        thread.join()


class _FaultyHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # some clients wait for 100 Continue
    behind: ClassVar[S3Server]
    waiting: ClassVar[deque[Fault]]
    blurted: ClassVar[dict[str, list[str]]]
    holding: ClassVar[list[Held]]

    def handle_one_request(self) -> None:
        """Every method is treated alike."""
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        held = next((each for each in self.holding if each.takes(self.command, self.path)), None)
        if held is not None:
            held.hold(self.connection)
            self._forward(body)
            self.close_connection = True
            return
        repeated = next((texts for part, texts in self.blurted.items() if part in self.path), None)
        if repeated is not None:
            told = [*repeated, *(f"{name}: {value}" for name, value in self.headers.items())]
            self._answer(400, [], " ".join(told).encode())
            return
        conditional = self.command == "PUT" and {"if-match", "if-none-match"} & {
            *map(str.lower, self.headers)
        }
        fault = self.waiting.popleft() if conditional and self.waiting else Fault.NONE
        if fault is Fault.CONFLICT:
            self._answer(409, [], f"<Error><Code>{fault}</Code><Message>try again</Message></Error>".encode())
            return
        status, headers, answer = self._forward(body)
        if fault is Fault.LOST_ANSWER:
            assert status == 200, f"there is nothing to lose of {status}"
            self._answer(500, [], f"<Error><Code>{fault}</Code></Error>".encode())
            return
        self._answer(status, headers, answer)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = HTTPConnection(self.behind.host, self.behind.port)
        try:
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        dropped = {"content-length", "connection", "transfer-encoding"} - (
            {"content-length"} if self.command == "HEAD" else set()
        )
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in dropped:
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.close_connection = True
