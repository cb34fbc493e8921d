"""Clients that connect and do nothing, or everything very slowly, shut nobody out."""

import asyncio
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from penstock import eventloop, process
from penstock.api.app import create_app
from penstock.api.connections import Admission
from penstock.api.deployment import LateDeployment
from penstock.api.server import serve
from penstock.cli import service
from penstock.cli.service import MetricServer
from penstock.clock import SYSTEM
from penstock.eventstore.capture.flight_service import FlightService
from penstock.eventstore.read.flight_client import FlightReader
from penstock.settings import parse
from penstock.store import server as server_module
from support.apiworld import blocking
from support.certificates import issue

CLIENT_S = 0.5
LATE_S = 10.0
"""A connection that is not ended within this many seconds is never ended."""
LARGE = 32 * 1024 * 1024


@contextmanager
def api(**options: object) -> Iterator[str]:
    """The API of a cluster that is away, with two routes for these tests."""
    tree = {"addr": "127.0.0.1:0", "client_timeout_s": CLIENT_S, "requests_burst": 100_000, **options}
    settings = parse({"pd_addrs": ["127.0.0.1:1"], "api": tree})
    app = create_app(LateDeployment(settings))

    async def echo(request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))

    def large(_request: Request) -> Response:
        return PlainTextResponse("x" * LARGE)

    app.add_route("/echo", echo, methods=["POST"])
    app.add_route("/large", large)
    with blocking(serve(app, settings.api)) as url:
        yield url


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with api() as made:
        yield made


def connect(url: str) -> socket.socket:
    found = httpx.URL(url)
    return socket.create_connection((found.host, found.port), timeout=LATE_S)


def closed_after(client: socket.socket) -> float:
    """Seconds until the server has ended the connection; whatever it still sends is read."""
    began = SYSTEM.monotonic()
    try:
        while client.recv(1 << 20):
            pass
    except ConnectionError:
        pass
    return SYSTEM.monotonic() - began


def drip(client: socket.socket, pieces: Callable[[], bytes]) -> None:
    """Send a piece every tenth of a second until the connection is ended."""
    deadline = SYSTEM.monotonic() + LATE_S
    try:
        while SYSTEM.monotonic() < deadline:
            client.sendall(pieces())
            SYSTEM.pause(CLIENT_S / 5)
    except OSError:
        return
    raise AssertionError("the server takes bytes for ever")


def test_a_silent_connection_is_ended(url: str) -> None:
    with connect(url) as client:
        assert CLIENT_S / 2 < closed_after(client) < LATE_S


@pytest.mark.parametrize(
    "piece", [b"x", b"X-Line: 1\r\n", b"\r\n"], ids=["bytes", "header lines", "empty lines"]
)
def test_a_head_that_never_ends_is_ended(url: str, piece: bytes) -> None:
    with connect(url) as client:
        if piece != b"\r\n":
            client.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        drip(client, lambda: piece)


def test_a_head_that_never_ends_is_ended_after_an_answer_too(url: str) -> None:
    with connect(url) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
        drip(client, lambda: b"x")


@pytest.mark.parametrize(
    ("head", "piece"),
    [(b"Content-Length: 100000\r\n\r\n", b"x"), (b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n")],
    ids=["a length", "chunks"],
)
def test_a_body_that_never_ends_is_ended(url: str, head: bytes, piece: bytes) -> None:
    with connect(url) as client:
        client.sendall(b"POST /echo HTTP/1.1\r\nHost: 127.0.0.1\r\n" + head)
        drip(client, lambda: piece)


@pytest.mark.parametrize("path", ["/large", "/openapi.json"])
def test_whoever_does_not_read_the_answer_is_ended(url: str, path: str) -> None:
    """Also where the whole answer waits in the server's memory, and where many are asked for at once."""
    with connect(url) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        client.setblocking(True)
        client.settimeout(LATE_S)
        deadline = SYSTEM.monotonic() + LATE_S
        try:
            while SYSTEM.monotonic() < deadline:
                client.sendall(request * 100)
                SYSTEM.pause(CLIENT_S / 5)
        except (ConnectionError, TimeoutError):
            pass
        assert SYSTEM.monotonic() < deadline, "the server keeps the answer for ever"


def read_steadily(url: str, **options: Any) -> int:
    """Read an answer, which takes several times the time-out, and every moment some of it."""
    got = 0
    with httpx.stream("GET", url, timeout=LATE_S, **options) as answer:
        for chunk in answer.iter_raw(1 << 20):
            got += len(chunk)
            SYSTEM.pause(CLIENT_S / 8)
    return got


def test_whoever_reads_steadily_gets_all_of_a_large_answer(url: str) -> None:
    assert read_steadily(f"{url}/large") == LARGE


def test_a_body_in_pieces_and_a_connection_that_stays_are_served(url: str) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(5):
            yield b"x" * 1000
            SYSTEM.pause(CLIENT_S / 20)

    with httpx.Client(base_url=url) as client:
        for _ in range(3):
            assert client.post("/echo", content=pieces()).text == "5000"
            assert client.get("/health").status_code == 200
            SYSTEM.pause(CLIENT_S / 2)


def test_requests_that_run_are_not_ended_for_new_connections() -> None:
    release = threading.Event()
    settings = parse({"pd_addrs": ["127.0.0.1:1"], "api": {"addr": "127.0.0.1:0", "connections": 2}})
    app = create_app(LateDeployment(settings))
    running = threading.Semaphore(0)

    def work(_request: Request) -> Response:
        running.release()
        release.wait(LATE_S)
        return PlainTextResponse("done")

    app.add_route("/work", work)
    with blocking(serve(app, settings.api)) as url:
        workers = [connect(url) for _ in range(2)]
        for worker in workers:
            worker.sendall(b"GET /work HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        for _ in workers:
            assert running.acquire(timeout=LATE_S)
        with connect(url) as third:
            assert closed_after(third) < LATE_S, "there is no room for a third"
        release.set()
        for worker in workers:
            assert worker.recv(1 << 16).startswith(b"HTTP/1.1 200")
            worker.close()


def test_silent_connections_are_ended_before_the_tls_handshake_too(tmp_path: Path) -> None:
    authority = issue(tmp_path, "authority")
    server = issue(tmp_path, "server", authority)
    context = ssl.create_default_context(cafile=str(authority.cert_path))
    tls = {"cert_path": server.cert_path, "key_path": server.key_path}
    with api(tls=tls, connections=20, connections_per_address=20) as url, ExitStack() as held:
        with connect(url) as silent:
            assert closed_after(silent) < LATE_S
        with connect(url) as dripping:
            drip(dripping, lambda: b"\x16")
        silent_ones = [held.enter_context(connect(url)) for _ in range(100)]
        for _ in range(3):
            assert httpx.get(f"{url}/health", verify=context, timeout=LATE_S).status_code == 200
        assert sum(closed_after(client) < LATE_S for client in silent_ones) == 100
        with connect(url) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert closed_after(plain) < LATE_S
        with httpx.Client(base_url=url, verify=context) as client:
            assert client.post("/echo", content=b"x" * 200_000).text == "200000"
            assert len(client.get("/large").text) == LARGE
        assert read_steadily(f"{url}/large", verify=context) == LARGE


def test_slow_and_silent_connections_keep_no_scraper_from_the_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with MetricServer.start("127.0.0.1:0") as server, ExitStack() as held:
        host, _, port = server.addr.rpartition(":")
        other = held.enter_context(socket.create_connection((host, int(port)), 60, ("127.0.0.2", 0)))
        other.sendall(b"GET /health HTTP/1.0\r\n")
        silent = [held.enter_context(connect(f"http://{server.addr}")) for _ in range(200)]
        assert httpx.get(f"http://{server.addr}/metrics", timeout=LATE_S).status_code == 200
        assert threading.active_count() < 100, "each of them has a thread"
        assert closed_after(silent[0]) < LATE_S
        other.sendall(b"\r\n")
        assert other.recv(12) == b"HTTP/1.0 200", "one address does not end the requests of another"
        monkeypatch.setattr(service, "_REQUEST_S", CLIENT_S)
        with connect(f"http://{server.addr}") as client:
            drip(client, lambda: b"x")
        with connect(f"http://{server.addr}") as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(b"GET /health HTTP/1.0\r\nX: ")
            assert CLIENT_S / 2 < closed_after(client) < LATE_S


def test_silent_connections_to_the_placement_driver_and_the_stores_are_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With fewer places than connections: who comes later waits until the silent ones are gone."""
    few = {"grpc.max_allowed_incoming_connections": 20, "grpc.server_handshake_timeout_ms": 1000}
    given = {key for key, _ in server_module._OPTIONS}
    assert given >= {
        *few,
        "grpc.max_connection_idle_ms",
        "grpc.max_concurrent_streams",
        "grpc.keepalive_time_ms",
    }
    options = [(key, few.get(key, value)) for key, value in server_module._OPTIONS]
    monkeypatch.setattr(server_module, "_OPTIONS", options)

    async def attack() -> None:
        endpoint = server_module.Endpoint("127.0.0.1:0")
        await endpoint.start([])
        with ExitStack() as held:
            clients = [held.enter_context(connect(f"http://{endpoint.address}")) for _ in range(300)]
            async with grpc.aio.insecure_channel(endpoint.address) as channel:
                asked = health_pb2.HealthCheckRequest()
                call = health_pb2_grpc.HealthStub(channel).Check(asked, timeout=LATE_S, wait_for_ready=True)
                assert (await call).status == health_pb2.HealthCheckResponse.SERVING
            for client in clients:
                assert await asyncio.to_thread(closed_after, client) < LATE_S
        await endpoint.stop()

    eventloop.run(attack())


def test_a_thousand_silent_connections_to_flight_shut_nobody_out() -> None:
    """It has no caps of its own; a process may have enough files open for all of them."""
    process.raise_file_limit()
    store: Any = SimpleNamespace(tables=list)
    service = FlightService("127.0.0.1:0", store, store)
    try:
        with ExitStack() as held:
            for _ in range(1005):
                held.enter_context(connect(f"http://{service.addr}"))
            with FlightReader(service.addr) as reader:
                assert reader.tables() == []
    finally:
        service.close()


def test_a_process_may_open_more_files_than_the_usual_limit() -> None:
    code = (
        "import resource; from penstock import process;"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE);"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard)); process.raise_file_limit();"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, 65536))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "True"


def test_the_one_that_waited_longest_makes_room() -> None:
    admission: Admission[str] = Admission(3, 2)
    assert [admission.enter(name, "a") for name in ("a1", "a2")] == [None, None]
    admission.wait("a1")
    admission.wait("a2")
    admission.wait("a1")
    assert admission.enter("a3", "a") == "a2", "of the same address"
    assert admission.enter("b1", "b") is None
    admission.work("a1")
    assert admission.enter("b2", "b") == "b2", "nobody waits: the new one goes"
    admission.wait("b1")
    assert admission.enter("c1", "c") == "b1", "of another address when all are too many"
    assert admission.enter("a4", "a") == "a4", "its own address is full, and nobody of it waits"
    for name in ("a1", "a3", "c1", "c1"):
        admission.leave(name)
    assert len(admission) == 0
