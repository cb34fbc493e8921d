"""What services in the foreground share: they print when they are ready, end on a signal, and serve metrics.

The metrics server answers GET /metrics and GET /health. It handles a few requests at a time, each in a thread
and each for a limited time; a new one takes the place of the oldest, so that scraping cannot disturb the
service, and silent connections do not keep scrapers out. One address has at most half of the requests: beyond
that its own oldest one makes room. A request with an unknown host name is refused, as the API does: a web
page has pointed its own name here, to read the names of tables.
"""

import asyncio
import contextlib
import json
import signal
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from socket import AF_INET, AF_INET6, SHUT_RDWR, gethostname
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Self

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder

from penstock.clock import SYSTEM
from penstock.errors import Invalid
from penstock.eventloop import shared_loop
from penstock.settings.network import (
    accepted_hosts,
    host_of,
    is_loopback,
    join_address,
    split_address,
)

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["MetricServer", "print_ready", "run_until_signalled", "serve_metrics"]


_REQUESTS_MAX = 8
"""Requests at the same time. Prometheus sends one at a time."""
_REQUESTS_PER_ADDRESS = 4
_THREADS_MAX = 32
"""Threads of requests, with those that were ended and have not noticed yet. Beyond them it answers 503."""
_REQUEST_S = 10.0
"""Seconds for a client to send its request and to read the answer, in all."""
_POLL_S = 0.05
_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


class MetricServer:
    """Serves metrics until `close`. Create it with `start`."""

    def __init__(self, server: "_Server") -> None:
        self._server = server
        self.addr = server.addr
        """Where it listens, with the real port."""
        self._thread = threading.Thread(
            target=server.serve_forever, args=(_POLL_S,), name="penstock-metrics", daemon=True
        )
        self._thread.start()

    @classmethod
    def start(
        cls,
        addr: str,
        *,
        allow_remote: bool = False,
        hosts: Collection[str] = (),
        registry: CollectorRegistry = REGISTRY,
    ) -> Self:
        """Listen on an address; port 0 takes a free port.

        Requests name it by an address, by the name of this machine, or by one of `hosts`. It has neither TLS
        nor a token, so an address that other machines can reach needs `allow_remote`.
        Raises Invalid without it, and when the address is malformed or in use.
        """
        if not allow_remote and not is_loopback(addr):
            raise Invalid(
                f"other machines could read the metrics on {addr!r}; listen on 127.0.0.1, or set the address"
                " in metrics_addr"
            )
        host, port = split_address(addr)
        try:
            names = accepted_hosts(addr, (*hosts, gethostname()))
            return cls(_Server(host, port, names, registry))
        except OSError as error:
            raise Invalid(
                f"metrics cannot be served on {addr} ({error.strerror}); free the port or change metrics_addr"
            ) from error

    def close(self) -> None:
        """Stop listening. Running answers may still end. A second call does nothing."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ThreadingMixIn, TCPServer):
    """A TCPServer and not http.server's HTTPServer, which asks a name server for its own name."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, names: Collection[str], registry: CollectorRegistry) -> None:
        self.address_family = AF_INET6 if ":" in host else AF_INET
        self.names = names
        self.registry = registry
        self._slots = threading.BoundedSemaphore(_THREADS_MAX)
        self._lock = threading.Lock()
        self._due: dict[Any, tuple[float, str]] = {}
        """When open connections are ended, and their addresses; the oldest comes first."""
        super().__init__((host, port), _MetricsHandler)
        self.addr = join_address(host, int(self.server_address[1]))

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            request.settimeout(0)
            request.send(_BUSY)
            self.shutdown_request(request)
            return
        with self._lock:
            address = str(client_address[0])
            own = [other for other, (_, theirs) in self._due.items() if theirs == address]
            if len(own) >= _REQUESTS_PER_ADDRESS:
                self._end(own[0])
            elif len(self._due) >= _REQUESTS_MAX:
                self._end(next(iter(self._due)))
            self._due[request] = SYSTEM.monotonic() + _REQUEST_S, address
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._due.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End the connections that are due; the server calls this many times a second."""
        now = SYSTEM.monotonic()
        with self._lock:
            for request in [request for request, (due, _) in self._due.items() if due <= now]:
                self._end(request)

    def _end(self, request: Any) -> None:
        """Wake the thread of a connection: its read is at the end, its write fails."""
        del self._due[request]
        with suppress(OSError):  # the client was faster
            request.shutdown(SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnects or is too slow."""


class _MetricsHandler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "penstock"
    sys_version = ""
    timeout = _REQUEST_S

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if not self._is_named():
            text = b"the host name of the request is unknown; add it to api.hosts\n"
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, "text/plain; charset=utf-8", text)
        elif path == "/metrics":
            encode, content_type = choose_encoder(self.headers.get("Accept", ""))
            self._answer(HTTPStatus.OK, content_type, encode(self.server.registry))
        elif path == "/health":
            self._answer(HTTPStatus.OK, "application/json", b'{"status":"ok"}')
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"GET /metrics or /health\n")

    def _is_named(self) -> bool:
        """Return whether the request names this server: a browser's has a Host, and an address is no name."""
        said = self.headers.get("Host")
        if said is None:
            return True
        host = host_of(said)
        with suppress(ValueError):
            return bool(ip_address(host))
        return host in self.server.names

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Log nothing for a request."""


def print_ready(facts: Mapping[str, Any]) -> None:
    """Print one line of JSON for the process that started the service."""
    with suppress(BrokenPipeError):  # the starter need not read it
        print(json.dumps(facts), flush=True)


@contextmanager
def serve_metrics(addr: str | None, hosts: Collection[str] = ()) -> Iterator[dict[str, str]]:
    """Serve the process's metrics during the block, if an address is given, also by the names `hosts`.

    Yields the fact for `print_ready`. Raises Invalid when the address cannot be used.
    """
    if addr is None:
        yield {}
        return
    with MetricServer.start(addr, allow_remote=True, hosts=hosts) as server:
        yield {"metrics": server.addr}


def run_until_signalled(
    work: Coroutine[Any, Any, None], *, on_signal: Callable[[], None] = lambda: None
) -> None:
    """Run a coroutine to its end. A signal cancels it; a second signal cancels its cleanup too.

    `on_signal` is called first, in a thread: it makes blocking calls end for which the cleanup would wait.
    """
    started: Future[asyncio.Task[None]] = Future()

    async def run() -> None:
        task = asyncio.create_task(work)
        started.set_result(task)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    loop = shared_loop()
    running = asyncio.run_coroutine_threadsafe(run(), loop)
    task = started.result()

    def cancel() -> None:
        threading.Thread(target=on_signal, name="penstock-signal", daemon=True).start()
        loop.call_soon_threadsafe(task.cancel)

    with _on_signals(cancel):
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
