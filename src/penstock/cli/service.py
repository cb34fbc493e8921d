"""What services in the foreground have in common: they say when they are ready, and show their metrics.

Services in the foreground: they run until a signal asks them to end.

The metrics of one process over HTTP, for Prometheus: GET /metrics and GET /health.

A thread a request, a few at a time, none for long: who asks too much is sent away, and the process goes on.
"""

import asyncio
import contextlib
import json
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socket import AF_INET, AF_INET6
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Self

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder

from penstock.errors import Invalid
from penstock.eventloop import shared_loop
from penstock.settings.network import is_loopback, joined, parted

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["MetricServer", "metrics_shown", "run_until_signalled", "say_ready"]


_REQUESTS_MAX = 8
"""At the same time; Prometheus asks one at a time."""
_REQUEST_S = 10.0
"""How long a caller may take to ask, or to read."""
_POLL_S = 0.05
_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


class MetricServer:
    """Serves until `close`. Made by `start`."""

    def __init__(self, server: "_Server") -> None:
        self._server = server
        self.addr = server.addr
        """Where it listens: the port is the one that it got."""
        self._thread = threading.Thread(
            target=server.serve_forever, args=(_POLL_S,), name="penstock-metrics", daemon=True
        )
        self._thread.start()

    @classmethod
    def start(cls, addr: str, *, allow_remote: bool = False, registry: CollectorRegistry = REGISTRY) -> Self:
        """Listen on an address; port 0 takes a free one.

        There is neither TLS nor a token, so an address that other machines reach needs `allow_remote`:
        somebody has asked for it by name. Raises Invalid without, for what is no address, or is taken.
        """
        if not allow_remote and not is_loopback(addr):
            raise Invalid(
                f"metrics on {addr!r} could be read by other machines; listen on 127.0.0.1, or say so with"
                " metrics_addr"
            )
        host, port = parted(addr)
        try:
            return cls(_Server(host, port, registry))
        except OSError as error:
            raise Invalid(
                f"metrics cannot be shown on {addr} ({error.strerror}); free the port or change metrics_addr"
            ) from error

    def close(self) -> None:
        """Listen no more. Answers that are under way may still end; may be called again."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ThreadingMixIn, TCPServer):
    # Not http.server's, which asks a name server for its own name.
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 32

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        self.address_family = AF_INET6 if ":" in host else AF_INET
        self.registry = registry
        self._room = threading.BoundedSemaphore(_REQUESTS_MAX)
        super().__init__((host, port), _Handler)
        self.addr = joined(host, int(self.server_address[1]))

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            request.settimeout(0)
            request.send(_BUSY)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that goes away, or is too slow, is nobody's concern."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "penstock"
    sys_version = ""
    timeout = _REQUEST_S

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            encode, content_type = choose_encoder(self.headers.get("Accept", ""))
            self._answer(HTTPStatus.OK, content_type, encode(self.server.registry))
        elif path == "/health":
            self._answer(HTTPStatus.OK, "application/json", b'{"status":"ok"}')
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"GET /metrics or /health\n")

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Say nothing of each request."""


def say_ready(facts: Mapping[str, Any]) -> None:
    """Print one line of JSON, for whoever started the service."""
    with suppress(BrokenPipeError):  # nobody has to read it
        print(json.dumps(facts), flush=True)


@contextmanager
def metrics_shown(addr: str | None) -> Iterator[dict[str, str]]:
    """Show the process's metrics at an address, if one is given; yields what to say of it when ready.

    Raises Invalid when the address cannot be used.
    """
    if addr is None:
        yield {}
        return
    with MetricServer.start(addr, allow_remote=True) as server:
        yield {"metrics": server.addr}


def run_until_signalled(work: Coroutine[Any, Any, None]) -> None:
    """Run it to its end. A signal cancels it, and it may take its time to end; the next cancels that too."""
    started: Future[asyncio.Task[None]] = Future()

    async def run() -> None:
        task = asyncio.create_task(work)
        started.set_result(task)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    loop = shared_loop()
    running = asyncio.run_coroutine_threadsafe(run(), loop)
    task = started.result()
    with _on_signals(lambda: loop.call_soon_threadsafe(task.cancel)):
        running.result()


@contextlib.contextmanager
def _on_signals(call: Callable[[], object]) -> Iterator[None]:
    def handle(_number: int, _frame: "FrameType | None") -> None:
        call()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
